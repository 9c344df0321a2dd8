"""What a replay sends is settled before it begins, and is the same when it begins again."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from pyspark_weir import ids
from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.jobs import replay_plan
from pyspark_weir.jobs.replay import FromArchive
from pyspark_weir.jobs.replay_plan import Done, EntrySelection, Replay, ReplayPlan, ReplayRange, Targets
from pyspark_weir.table.files import write_files
from pyspark_weir.table.ranges import BatchRanges, Range
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import Batch
from tests.spark.archive_tables import GATEWAY, GENERATION, Maker
from tests.spark.table.making import key_of, read_rows, rows_of

DAY_MS = 86_400_000
REPLAY = Replay(job="j", source="somewhere", gateway="there", tasks=2, slice_rows=4)


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "archive")


def entry_ids(start: int, count: int) -> list[str]:
    return [f"{start + number}-0" for number in range(count)]


def plan_of(maker: Maker, replay: Replay = REPLAY, **changes: Any) -> ReplayPlan:
    replay = replace(replay, **changes)
    return replay_plan.make(replay_plan.archive_spans(maker.table, replay), replay)


def read(maker: Maker, plan: ReplayPlan) -> dict[str, list[str]]:
    """The IDs that the tasks of a plan would send, by target, in order."""
    source = FromArchive(maker.root)
    found: dict[str, list[str]] = {}
    for part in plan.slices:
        for piece in source.pieces(part):
            for batch in source.batches(piece):
                found.setdefault(piece.span.target, []).extend(batch.column("id").to_pylist())
    return found


def test_each_entry_is_sent_once_and_each_stream_in_order(maker: Maker) -> None:
    """Over batches, days and slices."""
    days = [entry_ids(day * DAY_MS + 1, 3) for day in range(3)]
    maker.batch({"a": days[0], "b": days[0][:1]})
    maker.batch({"a": [*days[1], *days[2]]})
    maker.batch({"b": days[2]})
    plan = plan_of(maker)
    assert read(maker, plan) == {"a": [*days[0], *days[1], *days[2]], "b": [*days[0][:1], *days[2]]}
    assert plan.rows == 13
    assert [sum(span.rows for span in part) for part in plan.slices] == [4, 3, 3, 3]


def test_a_range_is_cut_by_id_within_files(maker: Maker) -> None:
    """After is exclusive, the end is not; rows are counted, not guessed."""
    maker.batch({"a": entry_ids(10, 10), "b": entry_ids(100, 2)})
    plan = plan_of(maker, wanted=EntrySelection(after="12-0", end="15-0"))
    assert read(maker, plan) == {"a": ["13-0", "14-0", "15-0"]}
    assert plan.rows == 3


def test_files_may_share_ids(maker: Maker) -> None:
    """A task that had the first and the third piece of a stream wrote both into one file."""
    files = [
        file
        for some in ([1, 2, 5, 6], [3, 4])
        for file in write_files(maker.root, rows_of(key_of("a"), [f"{one}-0" for one in some]))
    ]
    ranges = (Range(key_of("a"), ids.ZERO, ids.parse("6-0"), 6),)
    maker.table.commit(Batch(BatchRanges("query", 0, ranges), tuple(files)))
    plan = plan_of(maker)
    assert read(maker, plan) == {"a": entry_ids(1, 6)}
    assert [sum(span.rows for span in part) for part in plan.slices] == [4, 2]


def test_streams_are_chosen_by_name_or_pattern(maker: Maker) -> None:
    """A name that the archive has not is an error: a typing error would replay nothing."""
    maker.batch({"a.1": entry_ids(1, 1), "a.2": entry_ids(1, 1), "b": entry_ids(1, 1)})
    assert read(maker, plan_of(maker, wanted=EntrySelection(pattern=r"a\..*"))).keys() == {"a.1", "a.2"}
    assert read(maker, plan_of(maker, wanted=EntrySelection(streams=("b",)))).keys() == {"b"}
    with pytest.raises(OptionError, match="no stream c"):
        plan_of(maker, wanted=EntrySelection(streams=("c",)))


def test_a_compaction_between_two_starts_changes_nothing(maker: Maker) -> None:
    """The plan holds ranges of IDs: the files that it was made from may be gone."""
    days = entry_ids(1, 6)
    for first in (0, 2, 4):
        maker.batch({"a": days[first : first + 2], "b": days[first : first + 1]})
    plan = plan_of(maker)
    before = read(maker, plan)
    files = maker.table.files()
    rows = pa.concat_tables([read_rows(maker.root, file) for file in files])
    maker.table.replace(files, write_files(maker.root, rows))
    assert len(maker.table.files()) == 1
    assert read(maker, plan) == before == {"a": days, "b": days[::2]}
    again = plan_of(maker)
    assert read(maker, again) == before
    assert [sum(span.rows for span in part) for part in again.slices] == [4, 3, 2]


def test_what_tasks_read_can_be_pickled(maker: Maker) -> None:
    """With files of a day and of none, and credentials."""
    last = f"{ids.HALF_MAX}-{ids.HALF_MAX}"
    maker.batch({"a": ["1-0", last]})
    root = ArchiveRoot.of("s3://bucket/archive", {"AWS_REGION": "eu-1"})
    pieces = FromArchive(maker.root).pieces(plan_of(maker).slices[0])
    work = FromArchive(root), pieces
    assert sum(len(piece.files) for piece in pieces) == 2
    assert pickle.loads(pickle.dumps(work)) == work


def test_entries_that_were_archived_later_are_not_sent(maker: Maker) -> None:
    """A restarted replay sends what it was to send, though the archive grew."""
    maker.batch({"a": entry_ids(1, 2)})
    plan = plan_of(maker)
    maker.batch({"a": entry_ids(3, 2)})
    assert read(maker, plan) == {"a": ["1-0", "2-0"]}


def test_a_target_has_one_task(maker: Maker) -> None:
    """Which keeps its order; tasks get about as much each."""
    streams = {name: entry_ids(1, rows) for name, rows in (("a", 5), ("b", 3), ("c", 2), ("d", 1))}
    maker.batch(streams)
    assert plan_of(maker).task_of == {"a": 0, "b": 1, "c": 1, "d": 0}
    assert plan_of(maker, to=Targets(otherwise="all")).task_of == {"all": 0}


def test_two_streams_cannot_keep_their_ids_in_one(maker: Maker) -> None:
    """They would not ascend."""
    maker.batch({"a": entry_ids(1, 2), "b": entry_ids(1, 2)})
    keeping = Replay(job="j", source="somewhere", keep_ids=True)
    with pytest.raises(OptionError, match="both go to all"):
        plan_of(maker, keeping, to=Targets(otherwise="all"))
    assert plan_of(maker, keeping).first_ids() == {
        "a": "0-18446744073709551615",
        "b": "0-18446744073709551615",
    }


def test_ids_that_began_again_cannot_be_kept() -> None:
    """A stream was deleted and created anew in between."""
    spans = [
        ReplayRange(GATEWAY, "a", GENERATION, "4-0", "9-0", 5, "a"),
        ReplayRange(GATEWAY, "a", "00000000000000bb", "0-0", "3-0", 3, "a"),
    ]
    with pytest.raises(OptionError, match="created anew"):
        replay_plan.make(spans, Replay(job="j", source="s", keep_ids=True))
    assert replay_plan.make(spans, REPLAY).rows == 8


def test_a_plan_survives_and_belongs_to_one_replay(maker: Maker, tmp_path: Path) -> None:
    """Written once, read at each start; another source or form is refused."""
    place = StateFolder.of(str(tmp_path / "state"))
    maker.batch({"a": entry_ids(1, 3)})
    plan = plan_of(maker)
    assert (replay_plan.load(place), replay_plan.load_done(place)) == (None, Done())
    replay_plan.save(place, plan)
    replay_plan.save_done(place, Done(1, 3))
    assert (replay_plan.load(place), replay_plan.load_done(place)) == (plan, Done(1, 3))
    replay_plan.expect_same(plan, REPLAY)
    with pytest.raises(OptionError, match="another keeping of IDs"):
        replay_plan.expect_same(plan, replace(REPLAY, keep_ids=True))
    for stored, said in ((b"{}", "cannot be read"), (b'{"v":2,"job":"j"}', "of version 2, not 3")):
        place.replace(replay_plan.PLAN, stored)
        with pytest.raises(PipelineError, match=f"WEIR_STATE: .* {said}"):
            replay_plan.load(place)


@pytest.mark.parametrize(
    ("changes", "other"),
    [
        ({"gateway": "elsewhere"}, "gateway to send to"),
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
    replay_plan.save(place, plan_of(maker, asked))
    plan = replay_plan.load(place)
    assert plan is not None
    replay_plan.expect_same(plan, replace(asked, wanted=EntrySelection(streams=("b", "a"))))
    with pytest.raises(OptionError, match=f"begun with another {other}: "):
        replay_plan.expect_same(plan, replace(asked, **changes))


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
