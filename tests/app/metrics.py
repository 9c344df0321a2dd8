"""Reads /metrics as Prometheus would.

Knows: the parsers of Prometheus's own client. Must never know: what any metric means.
"""

from collections.abc import Mapping

import httpx
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def parse(text: str, *, openmetrics: bool = False) -> Series:
    """Every series by its name and labels."""
    families = parse_openmetrics(text) if openmetrics else parse_plain(text)  # type: ignore[no-untyped-call]
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


async def scrape(http: httpx.AsyncClient) -> Series:
    """What /metrics shows now."""
    answer = await http.get("/metrics")
    assert answer.status_code == 200, answer.text
    return parse(answer.text)


def value(series: Mapping[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    """One of them; 0 where it is not shown."""
    return series.get((name, frozenset(labels.items())), 0.0)
