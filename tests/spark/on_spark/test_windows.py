"""Windows over a real gateway's entries, late ones too, are what plain Python computes, across restarts."""

import json
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_weir.errors import OptionError
from pyspark_weir.jobs import windows as job
from pyspark_weir.jobs.fields import TimeField
from pyspark_weir.jobs.windows import Aggregate, Output, Windows
from pyspark_weir.progress import of_spark
from tests.server import Server

NOW_MS = 1_700_000_040_000  # a whole minute
MINUTE_MS = 60_000
LATENESS_MS = 30_000
NUMBERS = ("count", "sum:t", "mean:t", "min:t", "max:t", "p50:t", "exact-p90:t", "distinct:user")
MINUTES = Windows(
    size_ms=MINUTE_MS,
    lateness_ms=LATENESS_MS,
    time=TimeField("at"),
    by=("stream", "room.no"),
    aggregates=tuple(map(Aggregate.of, NUMBERS)),
)

# Stream, time of the event, the other fields.
Event = tuple[str, int, dict[str, str]]


@pytest.fixture
def http(shared_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared_server.url, timeout=30) as http:
        yield http


def _publish(http: httpx.Client, events: Iterable[Event]) -> None:
    """In the order given, whatever their times: IDs are those of publishing."""
    by_stream: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for stream, at_ms, fields in events:
        by_stream[stream].append({"fields": {**fields, "at": str(at_ms)}})
    for stream, entries in by_stream.items():
        http.post(f"/v1/streams/{stream}/entries", json={"entries": entries}).raise_for_status()


def _events(chance: random.Random, prefix: str, start_ms: int, span_ms: int, count: int) -> list[Event]:
    """At random times, a tenth of them without a number."""
    found = []
    for _ in range(count):
        fields = {"user": f"u{chance.randrange(30)}", "room.no": chance.choice("xy")}
        fields["t"] = repr(chance.gauss(20, 5)) if chance.random() < 0.9 else "broken"
        found.append((f"{prefix}-{chance.choice('ab')}", start_ms + chance.randrange(span_ms), fields))
    return found


def _in_time(increments: list[list[Event]]) -> list[Event]:
    """The events that count: each whose window is not over by the watermark of the increments before."""
    found: list[Event] = []
    watermark_ms = 0
    for events in increments:
        found += [one for one in events if one[1] - one[1] % MINUTE_MS + MINUTE_MS > watermark_ms]
        watermark_ms = max(watermark_ms, max(at_ms for _, at_ms, _ in events) - LATENESS_MS)
    return found


def _computed(events: Iterable[Event]) -> dict[tuple[int, str, str], dict[str, Any]]:
    """What each window of `MINUTES` holds, in plain Python."""
    windows: dict[tuple[int, str, str], list[dict[str, str]]] = defaultdict(list)
    for stream, at_ms, fields in events:
        windows[at_ms - at_ms % MINUTE_MS, stream, fields["room.no"]].append(fields)
    return {key: _numbers(rows) for key, rows in windows.items()}


def _numbers(rows: list[dict[str, str]]) -> dict[str, Any]:
    values = sorted(float(row["t"]) for row in rows if row["t"] != "broken")
    place = 0.9 * (len(values) - 1)
    below, above = values[math.floor(place)], values[math.ceil(place)]
    return {
        "count": len(rows),
        "sum_t": pytest.approx(math.fsum(values)),
        "mean_t": pytest.approx(math.fsum(values) / len(values)),
        "min_t": values[0],
        "max_t": values[-1],
        "p50_t": values[math.ceil(0.5 * len(values)) - 1],
        "exact_p90_t": pytest.approx(below + (above - below) * (place - math.floor(place))),
        "distinct_user": pytest.approx(len({row["user"] for row in rows}), rel=0.06),
    }


def _found(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str, str], dict[str, Any]]:
    """Rows that were read back, in the form of `_computed`."""
    names = [one.name for one in MINUTES.aggregates]
    return {
        (_ms(row[job.START]), row["stream"], row["room.no"]): {name: row[name] for name in names}
        for row in rows
    }


def _ms(time: datetime) -> int:
    return round(time.replace(tzinfo=time.tzinfo or UTC).timestamp() * 1_000)


class Ran(NamedTuple):
    """What a run showed, how many late rows Spark counted, and how many entries had no time."""

    shown: list[dict[str, Any]]
    late: int
    untimed: int


def _run(
    spark: SparkSession, server: Server, streams: str, windows: Windows, mode: str, output: Output
) -> Ran:
    """One run over what is there now."""
    shown: list[dict[str, Any]] = []

    def show(rows: Iterable[Mapping[str, Any]]) -> None:
        shown.extend(dict(row) for row in rows)

    source = {"gateway.urls": server.url, "subscribePattern": streams}
    writer = job.query(spark, source, windows, mode, output, show)
    query = writer.option("checkpointLocation", output.checkpoint).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        told = [of_spark(json.loads(one.json)) for one in query.recentProgress]
    finally:
        query.stop()
    return Ran(
        shown, sum(one.late for one in told), sum(one.observed[job.OBSERVED][job.UNTIMED] for one in told)
    )


def test_late_entries_across_restarts_give_the_numbers_of_plain_python(
    spark: SparkSession, shared_server: Server, http: httpx.Client, checkpoint: str, tmp_path: Path
) -> None:
    """Three runs of one query. Each increment has entries of windows that were told before: those in time
    change them, those too late do not.
    """
    chance = random.Random(11)
    output = Output(checkpoint, str(tmp_path / "out"))
    increments: list[list[Event]] = []
    for number in range(3):
        start_ms = NOW_MS + number * MINUTE_MS
        events = _events(chance, "late", start_ms, MINUTE_MS, 150)
        # A little late: within the lateness of the latest, for some. Much too late: of ten minutes ago.
        events += _events(chance, "late", start_ms - MINUTE_MS, MINUTE_MS, 60)
        events += _events(chance, "late", start_ms - 10 * MINUTE_MS, 2 * MINUTE_MS, 20)
        chance.shuffle(events)
        increments.append(events)
        _publish(http, events)
        # Without the field that has the time, and with nonsense in it.
        timeless = [{"fields": {"user": "u"}}, {"fields": {"at": "soon"}}]
        http.post("/v1/streams/late-a/entries", json={"entries": timeless}).raise_for_status()
        ran = _run(spark, shared_server, "late-.*", MINUTES, job.UPDATE, output)
        assert ran.untimed == 2
        assert (ran.late > 0) == (number > 0), "only what has ended can be missed"
    counted = _in_time(increments)
    assert 0 < len(counted) < sum(map(len, increments)), "some were in time, and some too late"
    assert _found(job.read(str(tmp_path / "out"), MINUTES)) == _computed(counted)


def test_a_window_that_is_over_is_told_once(
    spark: SparkSession, shared_server: Server, http: httpx.Client, checkpoint: str, tmp_path: Path
) -> None:
    """In append mode, and with all that came in time, also what came in another run."""
    chance = random.Random(12)
    output = Output(checkpoint, str(tmp_path / "out"))
    first = _events(chance, "once", NOW_MS, MINUTE_MS, 80)
    second = _events(chance, "once", NOW_MS + 40_000, MINUTE_MS, 80)
    later = [("once-a", NOW_MS + 4 * MINUTE_MS, {"user": "u", "room.no": "x", "t": "1"})]
    shown = []
    for events in (first, second + later):
        _publish(http, events)
        shown += _run(spark, shared_server, "once-.*", MINUTES, job.APPEND, output).shown
    expected = _computed(first + second)
    assert _found(shown) == expected
    assert len(shown) == len(expected), "none of them twice"
    assert _found(job.read(str(tmp_path / "out"), MINUTES)) == expected


def test_sessions_last_until_nothing_comes(
    spark: SparkSession, shared_server: Server, http: httpx.Client, checkpoint: str
) -> None:
    """Two visits of one user are two sessions; a late entry between two of them makes them one."""
    windows = Windows(session_gap_ms=10_000, lateness_ms=LATENESS_MS, time=TimeField("at"), by=("user",))
    seconds = {"ann": [0, 5, 9, 40, 45], "bob": [0], "cat": [20, 34]}
    _publish(
        http, [("visits", NOW_MS + 1_000 * at, {"user": user}) for user, ats in seconds.items() for at in ats]
    )
    shown = _run(spark, shared_server, "visits", windows, job.APPEND, Output(checkpoint)).shown
    late = [("visits", NOW_MS + 27_000, {"user": "cat"}), ("visits", NOW_MS + 1_000, {"user": "bob"})]
    _publish(http, [*late, ("visits", NOW_MS + 600_000, {"user": "eve"})])
    shown += _run(spark, shared_server, "visits", windows, job.APPEND, Output(checkpoint)).shown
    found = [
        (row["user"], _ms(row[job.START]) - NOW_MS, _ms(row[job.END]) - NOW_MS, row["count"]) for row in shown
    ]
    # After the first run the watermark stands at 15 s: bob's session was over, and his second entry too late.
    assert sorted(found) == [
        ("ann", 0, 19_000, 3),
        ("ann", 40_000, 55_000, 2),
        ("bob", 0, 10_000, 1),
        ("cat", 20_000, 44_000, 3),
    ]


def test_results_go_to_a_stream_once_each(
    spark: SparkSession, shared_server: Server, http: httpx.Client, checkpoint: str
) -> None:
    """An entry for a window, its columns as fields; a batch that is run again appends none."""
    windows = Windows(
        size_ms=MINUTE_MS, time=TimeField("at"), aggregates=(Aggregate("count"), Aggregate("mean", "t"))
    )
    output = Output(checkpoint, stream="told-of-windows", sink={"gateway.urls": shared_server.url})
    _publish(http, [("rooms", NOW_MS + n * 20_000, {"t": "x" if n == 3 else str(n)}) for n in range(4)])
    _run(spark, shared_server, "rooms", windows, job.UPDATE, output)
    expected = [
        {
            "window_start": "2023-11-14T22:14:00.000Z",
            "window_end": "2023-11-14T22:15:00.000Z",
            "stream": "rooms",
            "count": "3",
            "mean_t": "1.0",
        },
        # No mean of no numbers.
        {
            "window_start": "2023-11-14T22:15:00.000Z",
            "window_end": "2023-11-14T22:16:00.000Z",
            "stream": "rooms",
            "count": "1",
        },
    ]
    entries = http.get("/v1/streams/told-of-windows/entries").json()["entries"]
    assert [one["fields"] for one in entries] == expected
    for commit in (Path(checkpoint) / "commits").iterdir():
        commit.unlink()
    _run(spark, shared_server, "rooms", windows, job.UPDATE, output)
    assert http.get("/v1/streams/told-of-windows/entries").json()["entries"] == entries


def test_all_entries_count_where_nothing_goes_on(
    spark: SparkSession, shared_server: Server, http: httpx.Client
) -> None:
    """Without a checkpoint none is late; without a field, the time is that of the ID."""
    entries = [{"id": f"{NOW_MS + n * 700}-0", "fields": {"t": str(n)}} for n in range(200)]
    http.post("/v1/streams/plain/entries", json={"entries": entries}).raise_for_status()
    windows = Windows(size_ms=MINUTE_MS, slide_ms=MINUTE_MS // 2, by=(), aggregates=(Aggregate("max", "t"),))
    shown: list[Mapping[str, Any]] = []
    source = {"gateway.urls": shared_server.url, "subscribe": "plain"}
    job.once(spark, source, windows, shown.extend)
    expected: dict[int, float] = {}
    for n in range(200):
        at_ms = NOW_MS + n * 700
        for start_ms in (at_ms - at_ms % 30_000, at_ms - at_ms % 30_000 - 30_000):
            expected[start_ms] = max(expected.get(start_ms, 0), float(n))
    assert {_ms(row[job.START]): row["max_t"] for row in shown} == expected
    assert [row[job.START] for row in shown] == sorted(row[job.START] for row in shown)


def test_what_would_mix_two_queries_is_refused(
    spark: SparkSession, shared_server: Server, http: httpx.Client, checkpoint: str, tmp_path: Path
) -> None:
    """A folder with another query's batches; a checkpoint that was begun for windows of another length."""
    _publish(http, [("mixed", NOW_MS, {})])
    out = str(tmp_path / "out")
    windows = Windows(size_ms=MINUTE_MS, time=TimeField("at"))
    _run(spark, shared_server, "mixed", windows, job.UPDATE, Output(checkpoint, out))
    with pytest.raises(
        StreamingQueryException, match=r"WEIR_OPTION: .*/out holds the results of another query"
    ):
        _run(spark, shared_server, "mixed", windows, job.UPDATE, Output(f"{checkpoint}-2", out))
    longer = Windows(size_ms=2 * MINUTE_MS, time=TimeField("at"))
    with pytest.raises(OptionError, match=r"begun with .*size_ms 60000.*not .*size_ms 120000"):
        _run(spark, shared_server, "mixed", longer, job.UPDATE, Output(checkpoint, out))
