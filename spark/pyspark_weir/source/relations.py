"""What a gateway shows of streams, groups, consumers and pending entries, as rows: a snapshot.

Knows: the members of the gateway's answers that have columns.
Must never know: entries, ranges, offsets.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_weir import ids
from pyspark_weir.gateway import GatewayClient
from pyspark_weir.gateways import Gateways
from pyspark_weir.options import SourceOptions

Row = dict[str, Any]

SNAPSHOTS: Final = ("streams", "groups", "consumers", "pending")
_ROWS_A_BATCH_MAX: Final = 5_000
_PENDING_A_PAGE: Final = 5_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class SnapshotPartition(InputPartition):
    """The rows of one gateway."""

    gateway: str


def batches(
    options: SourceOptions, schema: pa.Schema, partition: SnapshotPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of a relation, as they are now. Raises PipelineError."""
    with closing(Gateways(options)) as gateways:
        gateway = gateways.at(partition.gateway)
        wanted = _is_wanted(options, gateways, partition.gateway)
        found = (dict(one) for one in gateway.list_streams() if wanted(one["name"]))
        rows = _RELATIONS[options.relation](gateway, found)
        while some := list(islice(rows, _ROWS_A_BATCH_MAX)):
            yield pa.RecordBatch.from_pylist(
                [{"shard": partition.gateway, **one} for one in some], schema=schema
            )


def _is_wanted(options: SourceOptions, gateways: Gateways, gateway: str) -> Callable[[str], bool]:
    if options.pattern is not None:
        return gateways.wants
    named = frozenset(key.partition("/")[2] for key in gateways.select() if key.startswith(f"{gateway}/"))
    return named.__contains__


def _streams(gateway: GatewayClient, found: Iterator[Row]) -> Iterator[Row]:
    for one in found:
        yield {**one, "stream": one["name"]}


def _groups(gateway: GatewayClient, found: Iterator[Row]) -> Iterator[Row]:
    for stream in found:
        if not stream["groups"]:
            continue
        for one in gateway.groups(stream["name"]):
            letters = one.get("dead_letter") or {}
            yield {
                **one,
                "stream": stream["name"],
                "group": one["name"],
                "dead_letter_stream": letters.get("stream"),
                "max_deliveries": letters.get("max_deliveries"),
            }


def _consumers(gateway: GatewayClient, found: Iterator[Row]) -> Iterator[Row]:
    for group in _groups(gateway, found):
        for one in gateway.consumers(group["stream"], group["group"]):
            yield {**one, "stream": group["stream"], "group": group["group"], "consumer": one["name"]}


def _pending(gateway: GatewayClient, found: Iterator[Row]) -> Iterator[Row]:
    for group in _groups(gateway, found):
        if group["pending"]:
            for one in gateway.pending(group["stream"], group["group"], _PENDING_A_PAGE):
                yield {**one, **_halves(one["id"]), "stream": group["stream"], "group": group["group"]}


def _halves(text: str) -> Row:
    """The columns of an ID; null where it does not fit."""
    ms, seq = ids.parse(text)
    return {
        "ms": ms if ms <= ids.BIGINT_MAX else None,
        "seq": seq if seq <= ids.BIGINT_MAX else None,
        "ts": _EPOCH + timedelta(milliseconds=ms) if ms <= ids.TS_MS_MAX else None,
    }


_RELATIONS: Final = MappingProxyType(
    {"streams": _streams, "groups": _groups, "consumers": _consumers, "pending": _pending}
)
