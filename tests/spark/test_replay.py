"""What a replay sends is settled before it begins, and is the same when it begins again."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from pyspark_weir import ids
from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.errors import DataLoss, OptionError, PipelineError
from pyspark_weir.gateway import GatewayAccess, of_stream
from pyspark_weir.jobs import replay
from pyspark_weir.jobs.mirror import Targets
from pyspark_weir.jobs.replay import EntrySelection, FromArchive, FromGateway, Replay, ReplayPlan, ReplayRange
from pyspark_weir.table.files import write_files
from pyspark_weir.table.ranges import BatchRanges, Range
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import Batch
from tests.spark.archive_tables import GATEWAY, GENERATION, Maker
from tests.spark.table.making import key_of, read_rows, rows_of
from tests.spark.weir import Weir

DAY_MS = 86_400_000
REPLAY = Replay(job="j", source="somewhere", gateway="there", tasks=2)
TARGET = GatewayAccess("target", "http://127.0.0.1:1")


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "archive")


def entry_ids(start: int, count: int) -> list[str]:
    return [f"{start + number}-0" for number in range(count)]


def plan_of(maker: Maker, asked: Replay = REPLAY, **changes: Any) -> ReplayPlan:
    return replay.plan_of(FromArchive(maker.root), replace(asked, **changes))


def read(source: FromArchive | FromGateway, ranges: list[ReplayRange]) -> dict[str, list[str]]:
    """The IDs that a task would send, by target, in order."""
    found: dict[str, list[str]] = {}
    for batch in replay.rows_of(source, zip(ranges, source.files(ranges), strict=True)):
        for row in batch.to_pylist():
            found.setdefault(row["stream"], []).append(row["id"])
    return found


def sent(maker: Maker, plan: ReplayPlan) -> dict[str, list[str]]:
    source = FromArchive(maker.root)
    return {name: ids for own in plan.tasks() for name, ids in read(source, own).items()}


def test_each_entry_is_sent_once_and_each_stream_in_order(maker: Maker) -> None:
    """Over batches and days."""
    days = [entry_ids(day * DAY_MS + 1, 3) for day in range(3)]
    maker.batch({"a": days[0], "b": days[0][:1]})
    maker.batch({"a": [*days[1], *days[2]]})
    maker.batch({"b": days[2]})
    plan = plan_of(maker)
    assert sent(maker, plan) == {"a": [*days[0], *days[1], *days[2]], "b": [*days[0][:1], *days[2]]}
    assert plan.rows == 13


def test_a_range_is_cut_by_id_within_files(maker: Maker) -> None:
    """After is exclusive, the end is not; rows are counted, not guessed."""
    maker.batch({"a": entry_ids(10, 10), "b": entry_ids(100, 2)})
    plan = plan_of(maker, wanted=EntrySelection(after="12-0", end="15-0"))
    assert sent(maker, plan) == {"a": ["13-0", "14-0", "15-0"]}
    assert plan.ranges == (ReplayRange(GATEWAY, "a", GENERATION, "12-18446744073709551615", "15-0", 3, "a"),)


def test_files_may_share_ids(maker: Maker) -> None:
    """A task that had the first and the third piece of a stream wrote both into one file."""
    files = [
        file
        for some in ([1, 2, 5, 6], [3, 4])
        for file in write_files(maker.root, rows_of(key_of("a"), [f"{one}-0" for one in some]))
    ]
    ranges = (Range(key_of("a"), ids.ZERO, ids.parse("6-0"), 6),)
    maker.table.commit(Batch(BatchRanges("query", 0, ranges), tuple(files)))
    assert sent(maker, plan_of(maker)) == {"a": entry_ids(1, 6)}


def test_streams_are_chosen_by_name_or_pattern(maker: Maker) -> None:
    """A name that the archive has not is an error: a typing error would replay nothing."""
    maker.batch({"a.1": entry_ids(1, 1), "a.2": entry_ids(1, 1), "b": entry_ids(1, 1)})
    for pattern, names in ((r"a\..*", ["a.1", "a.2"]), ("b", ["b"])):
        wanted = EntrySelection(pattern=pattern)
        assert [one.stream for one in plan_of(maker, wanted=wanted).ranges] == names
    with pytest.raises(OptionError, match="no stream c"):
        plan_of(maker, wanted=EntrySelection(streams=("c",)))


def test_a_compaction_between_two_starts_changes_nothing(maker: Maker) -> None:
    """The plan holds ranges of IDs: the files that it was made from may be gone."""
    days = entry_ids(1, 6)
    for first in (0, 2, 4):
        maker.batch({"a": days[first : first + 2], "b": days[first : first + 1]})
    plan = plan_of(maker)
    files = maker.table.files()
    rows = pa.concat_tables([read_rows(maker.root, file) for file in files])
    maker.table.replace(files, write_files(maker.root, rows))
    assert len(maker.table.files()) == 1
    assert sent(maker, plan) == {"a": days, "b": days[::2]}
    assert plan_of(maker) == plan


def test_what_tasks_read_can_be_pickled(maker: Maker) -> None:
    """With files of a day and of none, and credentials."""
    last = f"{ids.HALF_MAX}-{ids.HALF_MAX}"
    maker.batch({"a": ["1-0", last]})
    root = ArchiveRoot.of("s3://bucket/archive", {"AWS_REGION": "eu-1"})
    ranges = plan_of(maker).ranges
    work = FromArchive(root), ranges, FromArchive(maker.root).files(ranges)
    assert sum(map(len, work[2])) == 2
    assert pickle.loads(pickle.dumps(work)) == work


def test_entries_that_were_archived_later_are_not_sent(maker: Maker) -> None:
    """A restarted replay sends what it was to send, though the archive grew."""
    maker.batch({"a": entry_ids(1, 2)})
    plan = plan_of(maker)
    maker.batch({"a": entry_ids(3, 2)})
    assert sent(maker, plan) == {"a": ["1-0", "2-0"]}


def test_a_target_has_one_task(maker: Maker) -> None:
    """Which keeps its order; tasks get about as much each."""
    streams = {name: entry_ids(1, rows) for name, rows in (("a", 5), ("b", 3), ("c", 2), ("d", 1))}
    maker.batch(streams)
    tasks = [[one.target for one in own] for own in plan_of(maker).tasks()]
    assert tasks == [["a", "d"], ["b", "c"]]
    assert [len(own) for own in plan_of(maker, to=Targets(otherwise="all")).tasks()] == [4]


def test_two_streams_cannot_keep_their_ids_in_one(maker: Maker) -> None:
    """They would not ascend; nor those of a stream that was deleted and created anew."""
    maker.batch({"a": entry_ids(1, 2), "b": entry_ids(1, 2)})
    with pytest.raises(OptionError, match="both go to all"):
        plan_of(maker, keep_ids=True, to=Targets(otherwise="all"))
    assert [one.after for one in plan_of(maker, keep_ids=True).ranges] == [f"0-{ids.HALF_MAX}"] * 2


def test_a_slow_replay_has_small_chunks_and_not_too_many() -> None:
    """The gateway remembers so many."""
    assert [replay.enough_rows(2, rows) for rows in (100, 500_000, 10**9)] == [2, 10, 5_000]


def begun(maker: Maker, place: StateFolder, asked: Replay = REPLAY) -> ReplayPlan:
    return replay.begin(place, FromArchive(maker.root), TARGET, asked)


def test_a_plan_survives(maker: Maker, tmp_path: Path) -> None:
    """Written once, read at each start."""
    place = StateFolder.of(str(tmp_path / "state"))
    maker.batch({"a": entry_ids(1, 3)})
    plan = begun(maker, place)
    maker.batch({"a": entry_ids(4, 3)})
    assert begun(maker, place) == plan == replay.load(place)
    for stored, said in ((b"{}", "cannot be read"), (b'{"v":3,"job":"j"}', "of version 3, not 4")):
        place.replace(replay.PLAN, stored)
        with pytest.raises(PipelineError, match=f"WEIR_STATE: .* {said}"):
            begun(maker, place)


@pytest.mark.parametrize(
    ("changes", "other"),
    [
        ({"gateway": "elsewhere"}, "gateway to send to"),
        ({"keep_ids": True}, "keeping of IDs"),
        ({"wanted": EntrySelection(streams=("a",))}, "choice of streams"),
        ({"wanted": EntrySelection(pattern="a|b")}, "choice of streams"),
        ({"wanted": EntrySelection(streams=("a", "b"), after="1-0")}, "beginning"),
        ({"wanted": EntrySelection(streams=("a", "b"), end="9-0")}, "end"),
        ({"to": Targets.parse(["a=x"])}, "place for streams"),
        ({"to": Targets.parse(["x.{stream}"])}, "place for streams"),
    ],
)
def test_a_name_of_before_does_not_pass_for_another_replay(
    maker: Maker, tmp_path: Path, changes: dict[str, Any], other: str
) -> None:
    """With nothing left of the one of before, the other would be reported as done."""
    place = StateFolder.of(str(tmp_path / "state"))
    maker.batch({"a": entry_ids(1, 3), "b": entry_ids(1, 3)})
    asked = replace(REPLAY, wanted=EntrySelection(streams=("a", "b")))
    plan = begun(maker, place, asked)
    assert begun(maker, place, replace(asked, wanted=EntrySelection(streams=("b", "a")))) == plan
    with pytest.raises(OptionError, match=f"begun with another {other}: "):
        begun(maker, place, replace(asked, **changes))


def test_targets_are_names_pairs_and_patterns() -> None:
    """A pair for one stream wins over what is said for all others."""
    targets = Targets.parse(["a=x", "copy.{stream}"])
    assert (targets.of("a"), targets.of("b")) == ("x", "copy.b")
    assert Targets.parse([]).of("a") == "a"
    for wrong in (["a=x", "a=y"], ["x", "y"], ["a="], [""]):
        with pytest.raises(OptionError, match="--to"):
            Targets.parse(wrong)


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    """It would replay nothing."""
    with pytest.raises(OptionError, match="before it begins"):
        EntrySelection(after="5-0", end="4-0")


# ---- of a gateway


def ranges_of(weir: Weir, *streams: str) -> list[ReplayRange]:
    wanted = EntrySelection(streams=streams or (weir.name(),))
    return FromGateway(weir.gateway.access).ranges(replace(REPLAY, wanted=wanted))


def sent_of(weir: Weir, ranges: list[ReplayRange]) -> list[str]:
    return read(FromGateway(weir.gateway.access), ranges)[weir.name()]


def test_what_was_planned_is_sent(weir: Weir) -> None:
    """Deleted entries leave holes that the plan knows; what comes later does not matter to it."""
    published = weir.publish(range(1, 32))
    weir.gateway.post(f"{of_stream(weir.name())}/entries/delete", {"ids": ["5-0", "15-0"]})
    ranges = ranges_of(weir)
    weir.publish([40])
    assert sent_of(weir, ranges) == [one for one in published if one not in ("5-0", "15-0")]


def test_more_streams_than_a_call_may_name_are_planned(weir: Weir) -> None:
    """The gateway is asked in several calls."""
    names = [weir.name(f"n{number:04}") for number in range(1_200)]
    for part in (names[:600], names[600:]):
        weir.gateway.post("/v1/publish", {"streams": dict.fromkeys(part, [{"fields": {"n": "1"}}] * 3)})
    assert {(one.stream, one.rows) for one in ranges_of(weir, *names)} == {(name, 3) for name in names}


def test_a_stream_that_was_deleted_is_not_told_as_sent(weir: Weir) -> None:
    """Nor is another stream of its name read in its place."""
    weir.publish(range(1, 32))
    ranges = ranges_of(weir)
    weir.delete()
    with pytest.raises(DataLoss, match="was deleted before it was read"):
        sent_of(weir, ranges)
    weir.publish(range(1, 32))
    with pytest.raises(DataLoss, match="deleted and made anew"):
        sent_of(weir, ranges)


def test_entries_that_went_before_they_were_sent_are_missed(weir: Weir) -> None:
    """Trimmed from the front, also where the range begins at the beginning, or deleted one by one."""
    weir.publish(["0-1", *range(1, 20)])
    ranges = ranges_of(weir)
    assert ranges[0].after == "0-0"
    weir.gateway.post(f"{of_stream(weir.name())}/entries/delete", {"ids": ["15-0"]})
    with pytest.raises(DataLoss, match="19 entries are there, 20 were"):
        sent_of(weir, ranges)
    weir.trim(3)
    with pytest.raises(DataLoss, match="up to 2-0 were trimmed"):
        sent_of(weir, ranges)
