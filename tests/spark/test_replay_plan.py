"""What a replay sends is settled before it begins, and is the same when it begins again."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.jobs import compact, replay_plan
from pyspark_weir.jobs.replay_plan import Done, Form, Plan, Span, Targets, Wanted
from pyspark_weir.jobs.replay_read import FromArchive
from pyspark_weir.manifest import Archive
from pyspark_weir.place import Place
from tests.spark.archives import GENERATION, SHARD, Maker

DAY_MS = 86_400_000
FORM = Form(job="j", source="somewhere", tasks=2, slice_rows=4)
EVERYTHING = Wanted()
ALL = (EVERYTHING, Targets())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.of(str(tmp_path / "archive"))


def entry_ids(start: int, count: int) -> list[str]:
    return [f"{start + number}-0" for number in range(count)]


def made(place: Place, *batches: Mapping[str, Sequence[str]]) -> Archive:
    maker = Maker(place)
    for batch in batches:
        maker.batch(batch)
    return Archive.read(place)


def plan_of(
    archive: Archive, place: Place, form: Form = FORM, wanted: Wanted = EVERYTHING, to: str = "{stream}"
) -> Plan:
    return replay_plan.make(replay_plan.archive_spans(archive, place, wanted, Targets(otherwise=to)), form)


def read(place: Place, plan: Plan) -> dict[str, list[str]]:
    """The IDs that the tasks of a plan would send, by target, in order."""
    source = FromArchive(place.base)
    found: dict[str, list[str]] = {}
    for part in plan.slices:
        for piece in source.pieces(part):
            for batch in source.batches(piece):
                found.setdefault(piece.span.target, []).extend(batch.column("id").to_pylist())
    return found


def test_each_entry_is_sent_once_and_each_stream_in_order(place: Place) -> None:
    """Over batches, days and slices."""
    days = [entry_ids(day * DAY_MS + 1, 3) for day in range(3)]
    archive = made(place, {"a": days[0], "b": days[0][:1]}, {"a": [*days[1], *days[2]]}, {"b": days[2]})
    plan = plan_of(archive, place)
    assert read(place, plan) == {"a": [*days[0], *days[1], *days[2]], "b": [*days[0][:1], *days[2]]}
    assert plan.rows == 13
    assert [sum(span.rows for span in part) for part in plan.slices] == [4, 3, 3, 3]


def test_a_range_is_cut_by_id_within_files(place: Place) -> None:
    """After is exclusive, the end is not; rows are counted, not guessed."""
    archive = made(place, {"a": entry_ids(10, 10), "b": entry_ids(100, 2)})
    plan = plan_of(archive, place, wanted=Wanted(after="12-0", end="15-0"))
    assert read(place, plan) == {"a": ["13-0", "14-0", "15-0"]}
    assert plan.rows == 3


def test_streams_are_chosen_by_name_or_pattern(place: Place) -> None:
    """A name that the archive has not is an error: a typing error would replay nothing."""
    archive = made(place, {"a.1": entry_ids(1, 1), "a.2": entry_ids(1, 1), "b": entry_ids(1, 1)})
    assert read(place, plan_of(archive, place, wanted=Wanted(pattern=r"a\..*"))).keys() == {"a.1", "a.2"}
    assert read(place, plan_of(archive, place, wanted=Wanted(streams=("b",)))).keys() == {"b"}
    with pytest.raises(OptionError, match="no stream c"):
        plan_of(archive, place, wanted=Wanted(streams=("c",)))


def test_a_compaction_between_two_starts_changes_nothing(place: Place) -> None:
    """The plan holds ranges of IDs: the files that it was made from may be gone."""
    days = entry_ids(1, 6)
    archive = made(place, {"a": days[:2]}, {"a": days[2:4]}, {"a": days[4:]})
    plan = plan_of(archive, place)
    before = read(place, plan)
    list(compact.compact(place, compact.Rules(), now_ms=1_000_000))
    assert len(Archive.read(place).live) == 1
    assert read(place, plan) == before == {"a": days}


def test_entries_that_were_archived_later_are_not_sent(place: Place) -> None:
    """A restarted replay sends what it was to send, though the archive grew."""
    maker = Maker(place)
    maker.batch({"a": entry_ids(1, 2)})
    plan = plan_of(Archive.read(place), place)
    maker.batch({"a": entry_ids(3, 2)})
    assert read(place, plan) == {"a": ["1-0", "2-0"]}


def test_a_target_has_one_task(place: Place) -> None:
    """Which keeps its order; tasks get about as much each."""
    streams = {name: entry_ids(1, rows) for name, rows in (("a", 5), ("b", 3), ("c", 2), ("d", 1))}
    plan = plan_of(made(place, streams), place)
    assert plan.task_of == {"a": 0, "b": 1, "c": 1, "d": 0}
    assert plan_of(made(place_of(place, "one"), streams), place_of(place, "one"), to="all").task_of == {
        "all": 0
    }


def place_of(place: Place, name: str) -> Place:
    return Place.of(f"{place.base}-{name}")


def test_two_streams_cannot_keep_their_ids_in_one(place: Place) -> None:
    """They would not ascend."""
    archive = made(place, {"a": entry_ids(1, 2), "b": entry_ids(1, 2)})
    keeping = Form(job="j", source="somewhere", keep_ids=True)
    with pytest.raises(OptionError, match="both go to all"):
        plan_of(archive, place, keeping, to="all")
    assert plan_of(archive, place, keeping).first_ids() == {
        "a": "0-18446744073709551615",
        "b": "0-18446744073709551615",
    }


def test_ids_that_began_again_cannot_be_kept() -> None:
    """A stream was deleted and created anew in between."""
    spans = [
        Span(SHARD, "a", GENERATION, "4-0", "9-0", 5, "a"),
        Span(SHARD, "a", "00000000000000bb", "0-0", "3-0", 3, "a"),
    ]
    with pytest.raises(OptionError, match="created anew"):
        replay_plan.make(spans, Form(job="j", source="s", keep_ids=True))
    assert replay_plan.make(spans, FORM).rows == 8


def test_a_plan_survives_and_belongs_to_one_replay(place: Place) -> None:
    """Written once, read at each start; another source or form is refused."""
    plan = plan_of(made(place, {"a": entry_ids(1, 3)}), place).made_for("there", *ALL)
    assert (replay_plan.load(place), replay_plan.load_done(place)) == (None, Done())
    replay_plan.save(place, plan)
    replay_plan.save_done(place, Done(1, 3))
    assert (replay_plan.load(place), replay_plan.load_done(place)) == (plan, Done(1, 3))
    replay_plan.expect_same(plan, FORM, "there", *ALL)
    with pytest.raises(OptionError, match="another keeping of IDs"):
        replay_plan.expect_same(plan, Form(job="j", source="somewhere", keep_ids=True), "there", *ALL)
    place.write(replay_plan.PLAN, b"{}")
    with pytest.raises(PipelineError, match="WEIR_STATE"):
        replay_plan.load(place)


@pytest.mark.parametrize(
    ("gateway", "wanted", "to", "other"),
    [
        ("elsewhere", Wanted(streams=("a", "b")), Targets(), "gateway to send to"),
        ("there", Wanted(streams=("a",)), Targets(), "choice of streams"),
        ("there", Wanted(pattern="a|b"), Targets(), "choice of streams"),
        ("there", Wanted(streams=("a", "b"), after="1-0"), Targets(), "beginning"),
        ("there", Wanted(streams=("a", "b"), end="9-0"), Targets(), "end"),
        ("there", Wanted(streams=("a", "b")), Targets.parse(["a=x"]), "place for streams"),
        ("there", Wanted(streams=("a", "b")), Targets.parse(["x.{stream}"]), "place for streams"),
    ],
)
def test_a_name_of_before_does_not_pass_for_another_replay(
    place: Place, gateway: str, wanted: Wanted, to: Targets, other: str
) -> None:
    """With nothing left of the one of before, the other would be told as done."""
    archive = made(place, {"a": entry_ids(1, 3), "b": entry_ids(1, 3)})
    asked = Wanted(streams=("a", "b"))
    replay_plan.save(place, plan_of(archive, place, wanted=asked).made_for("there", asked, Targets()))
    plan = replay_plan.load(place)
    assert plan is not None
    replay_plan.expect_same(plan, FORM, "there", Wanted(streams=("b", "a")), Targets())
    with pytest.raises(OptionError, match=f"begun with another {other}: "):
        replay_plan.expect_same(plan, FORM, gateway, wanted, to)


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
        Wanted(after="5-0", end="4-0")
