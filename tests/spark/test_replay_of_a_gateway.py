"""A replay from a gateway sends what was planned, or says that it is gone."""

import pytest

from pyspark_weir.errors import DataLoss
from pyspark_weir.gateway import of_stream
from pyspark_weir.jobs import replay
from pyspark_weir.jobs.replay import FromGateway, Piece, entries_of
from pyspark_weir.jobs.replay_plan import EntrySelection, Replay, ReplayRange
from tests.spark.weir import Weir


def planned(weir: Weir, stream: str, slice_rows: int = 10) -> list[ReplayRange]:
    return spans_of(weir, (stream,), slice_rows)


def spans_of(weir: Weir, streams: tuple[str, ...], slice_rows: int) -> list[ReplayRange]:
    asked = Replay(job="j", source="s", wanted=EntrySelection(streams=streams), slice_rows=slice_rows)
    return list(replay.gateway_spans(weir.gateway.access, asked))


def sent(weir: Weir, span: ReplayRange) -> list[str]:
    """The IDs that the task of a range would send."""
    batches = entries_of(FromGateway(weir.gateway.access), [Piece(span)])
    return [one for batch in batches for one in batch["id"].to_pylist()]


def test_what_was_planned_is_sent_and_what_was_sent_may_go(weir: Weir) -> None:
    """Deleted entries leave holes that the plan knows; trimming behind the replay, and what comes later, do
    not matter to it.
    """
    ids = weir.publish(range(1, 32))
    weir.gateway.post(f"{of_stream(weir.name())}/entries/delete", {"ids": ["5-0", "15-0"]})
    spans = planned(weir, weir.name())
    weir.publish([40])
    found = sent(weir, spans[0])
    weir.trim(spans[1].after)
    for span in spans[1:]:
        found += sent(weir, span)
    assert found == [one for one in ids if one not in ("5-0", "15-0")]


def test_more_streams_than_a_call_may_name_are_planned(weir: Weir) -> None:
    """The gateway is asked in several calls."""
    names = [weir.name(f"n{number:04}") for number in range(1_200)]
    for part in (names[:600], names[600:]):
        entries = [{"fields": {"n": str(number)}} for number in range(3)]
        weir.gateway.post("/v1/publish", {"streams": dict.fromkeys(part, entries)})
    spans = spans_of(weir, tuple(names), 100)
    assert {span.stream for span in spans} == set(names)
    assert sum(span.rows for span in spans) == 3_600


def test_a_stream_that_was_deleted_is_not_told_as_sent(weir: Weir) -> None:
    """Nor is another stream of its name read in its place."""
    weir.publish(range(1, 32))
    spans = planned(weir, weir.name())
    assert len(sent(weir, spans[0])) == spans[0].rows
    weir.delete()
    with pytest.raises(DataLoss, match="was deleted before it was read"):
        sent(weir, spans[1])
    weir.publish(range(1, 32))
    with pytest.raises(DataLoss, match="deleted and made anew"):
        sent(weir, spans[1])


def test_entries_that_went_before_they_were_sent_are_missed(weir: Weir) -> None:
    """Trimmed from the front, also where the range begins at the beginning, or deleted one by one."""
    weir.publish(["0-1", *range(1, 20)])
    first, second = planned(weir, weir.name())
    assert first.after == "0-0"
    weir.gateway.post(f"{of_stream(weir.name())}/entries/delete", {"ids": ["15-0"]})
    with pytest.raises(DataLoss, match="9 entries are there, 10 were"):
        sent(weir, second)
    weir.trim(3)
    with pytest.raises(DataLoss, match="up to 2-0 were trimmed"):
        sent(weir, first)
    weir.trim(14)
    with pytest.raises(DataLoss, match="were trimmed before they were read"):
        sent(weir, second)
