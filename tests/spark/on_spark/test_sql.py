"""The queries of docs/spark-sql.md give what they promise, over entries of a real gateway."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from pyspark_weir.gateway import of_stream
from tests.documents.programs import programs
from tests.spark.weir import Weir

DOCUMENT: Final = (Path(__file__).parents[3] / "docs" / "spark-sql.md").read_text()
QUERIES: Final[Mapping[str, str]] = dict(
    re.findall(r"^```sql\n-- (\S+)\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
)
NOON: Final = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)


def _publish(weir: Weir, stream: str, *entries: tuple[datetime, Mapping[str, str]]) -> None:
    body = {"entries": [{"id": str(_ms(at)), "fields": dict(fields)} for at, fields in entries]}
    weir.gateway.post(f"{of_stream(stream)}/entries", body)


@pytest.fixture
def answers(spark: SparkSession, own_weir: Weir) -> "Answers":
    """Visits of three minutes, receipts and dead letters, as the view `entries`."""
    made = str(_ms(NOON) - 250)
    _publish(
        own_weir,
        "visits",
        (NOON, {"path": "/a", "ms": "10", "user": "ann", "made_at": made}),
        (NOON + 0.5 * MINUTE, {"path": "/a", "ms": "30", "user": "bob"}),
        (NOON + 0.6 * MINUTE, {"path": "/b", "ms": "slow", "user": "ann"}),
        (NOON + MINUTE, {"path": "/a", "user": "ann", "made_at": str(_ms(NOON + MINUTE) + 5)}),
        (NOON + 12 * MINUTE, {"path": "/a", "ms": "1", "user": "ann", "made_at": "never"}),
    )
    _publish(
        own_weir,
        "receipts",
        (NOON + MINUTE, {"worker": "w1", "entry": f"{_ms(NOON)}-0"}),
        (NOON + 2 * MINUTE, {"worker": "w1", "entry": f"{_ms(NOON + MINUTE)}-7"}),
    )
    _publish(
        own_weir, "orders", (NOON, {"n": "1"}), (NOON + MINUTE, {"n": "2"}), (NOON + 2 * MINUTE, {"n": "3"})
    )
    group = "/v1/streams/orders/groups/billing"
    own_weir.gateway.group("orders", "billing").ensure(start="0", dead_letter={"stream": "orders-dead"})
    own_weir.gateway.post(f"{group}/consumers/c/read", {"count": 3})
    for at, reason in ((NOON, "timeout"), (NOON + MINUTE, "bad"), (NOON + 2 * MINUTE, "timeout")):
        own_weir.gateway.post(f"{group}/dead-letter", {"ids": [f"{_ms(at)}-0"], "reason": reason})
    options = own_weir.options(subscribePattern=".*")
    spark.read.format("weir").options(**options).load().createOrReplaceTempView("entries")
    return Answers(spark, own_weir)


class Answers:
    """What queries of the document give, as rows of plain values."""

    def __init__(self, spark: SparkSession, weir: Weir) -> None:
        self.spark = spark
        self.weir = weir

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(QUERIES[name]).collect()]


def test_the_queries_give_what_they_promise(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test for all of them: they share a gateway and a view. Times are in UTC, without a zone."""
    noon, minute = NOON.replace(tzinfo=None), MINUTE

    def local(moment: datetime) -> datetime:
        """As `collect` shows a time: in the zone of this process."""
        return moment.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)

    assert set(QUERIES) == {"windows", "sessions", "latency", "receipts", "dead-letters"}
    assert answers.of("windows") == [
        (local(noon), "/a", 2, 20.0, 30.0, 2),
        (local(noon), "/b", 1, None, None, 1),
        (local(noon + minute), "/a", 1, None, None, 1),
        (local(noon + 12 * minute), "/a", 1, 1.0, 1.0, 1),
    ]
    assert answers.of("sessions") == [
        # More than ten minutes after the last one, a new session begins.
        ("ann", local(noon), 3),
        ("ann", local(noon + 12 * minute), 1),
        ("bob", local(noon + 0.5 * minute), 1),
    ]
    assert answers.of("latency") == [("visits", 2, 1, [-5, 250, 250], 250)]
    assert answers.of("receipts") == [("w1", 2, [60_000, 60_000])]
    letters = answers.of("dead-letters")
    assert [row[:4] for row in letters] == [
        ("orders", "billing", "timeout", 2),
        ("orders", "billing", "bad", 1),
    ]
    assert {row[5] for row in letters} == {1}

    # The streaming one: windows that the watermark has passed are written, the last one is not over.
    monkeypatch.chdir(tmp_path)
    program = programs(DOCUMENT)["follow.py"].replace("http://localhost:8080", answers.weir.server.url)
    for name in ("visits-by-minute-checkpoint", "visits-by-minute"):
        program = program.replace(f'"{name}"', f'"{tmp_path / name}"')
    exec(program, {"spark": answers.spark})
    found = answers.spark.read.parquet(str(tmp_path / "visits-by-minute")).orderBy("minute", "path").collect()
    assert [tuple(row) for row in found] == [
        (local(noon), "/a", 2),
        (local(noon), "/b", 1),
        (local(noon + minute), "/a", 1),
    ]
