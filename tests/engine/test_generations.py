"""What a reader is told whose stream is not the one that it knew."""

from collections.abc import Iterator

import pytest

from engine import entries, ids
from engine.commands import types
from engine.commands.weir_commands import Plan, UpdateStream
from engine.generations import PREVIOUS_MAX, SALTS_MAX, Generations, Identity, gap_of
from engine.keyspace import Keyspace
from engine.records.changes import Regenerate
from engine.records.payload import encode, replay
from engine.records.snapshot import snapshot
from engine.replies import Gap, GroupRead, Planned, PreviousStream, StreamsRead
from tests.engine.house import House, id_of

BODY = entries.body([("n", "1")])
OTHER = "0123456789abcdef"


@pytest.fixture
def house() -> Iterator[House]:
    """A house with a stream of 1-0 to 3-0. At the end nothing would be lost by a restart."""
    house = House()
    house.fill("s", 3)
    yield house
    house.check()


def told(house: House, cursor: str, known: str = "", stream: str = "s") -> tuple[str, str] | None:
    """The reason and where to go on, None where there is no such gap."""
    reply = house.run(types.XRead(streams=[(stream, id_of(cursor))], known=[known]))
    assert isinstance(reply, StreamsRead)
    gap = reply.streams[0].gap if reply.streams else None
    if gap is None or gap.next is None:
        return None
    assert (gap.requested, reply.streams[0].entries.count) == (id_of(cursor), 0)
    return str(gap.reason), ids.format(gap.next)


def test_what_is_there_is_no_gap(house: House) -> None:
    """A position in the stream, at its end, and one that is bare."""
    known = house.key("s").generation
    assert [told(house, cursor, known) for cursor in ("0", "1-0", "3-0")] == [None] * 3
    assert [told(house, cursor) for cursor in ("0", "3-0")] == [None] * 2


def test_a_position_beyond_the_end_goes_on_at_the_end(house: House) -> None:
    """Also with the generation: the last ID may have been set back."""
    assert told(house, "3-1") == ("ahead", "3-0")
    assert told(house, "9-0", house.key("s").generation) == ("ahead", "3-0")
    house.run(types.XSetId(stream="s", last_id=id_of("8-0")))
    assert told(house, "8-1") == ("ahead", "8-0")


def test_a_stream_that_never_had_an_entry_has_no_end(house: House) -> None:
    """As long as there is none, or a group alone: its producer may be about to begin."""
    assert told(house, "9-0", stream="new") is None
    house.run(types.XGroupCreate(stream="new", group="g", start=types.Cursor.LATEST, mkstream=True))
    assert told(house, "9-0", stream="new") is None
    house.run(types.XAdd(stream="new", bodies=[BODY], ids=[id_of("1-0")]))
    assert told(house, "9-0", stream="new") == ("ahead", "1-0")


def test_an_end_is_told_with_its_cause(house: House) -> None:
    """As long as there is no other stream; then that there is another, unless one was put over it."""
    known = house.key("s").generation
    house.run(types.Delete(streams=["s"]))
    assert told(house, "1-0", known) == ("deleted", "0-0")
    house.fill("s", 1)
    assert told(house, "1-0", known) == ("recreated", "0-0")
    house.fill("t", 1)
    known = house.key("s").generation
    house.run(types.Rename(stream="t", target="s", replace=True))
    assert told(house, "1-0", known) == ("replaced", "0-0")
    known = house.key("s").generation
    house.run(types.Rename(stream="s", target="t", replace=True))
    assert told(house, "1-0", known) == ("deleted", "0-0")
    assert told(house, "1-0", known, "t") == ("recreated", "0-0")
    house.run(types.Copy(stream="t", target="s", replace=True))
    assert told(house, "1-0", house.key("t").generation) == ("recreated", "0-0")


def test_a_read_of_redis_is_never_answered_early(house: House) -> None:
    """Nor told anything."""
    reads = [types.XRead(streams=[(name, id_of("9-0"))], block_ms=1) for name in ("s", "none")]
    assert [house.run(read) for read in reads] == [None, None]
    found = house.of(StreamsRead, types.XRead(streams=[("s", id_of("9-0"))]))
    assert (found.streams, found.generations) == ([], [])


def test_a_group_goes_on_where_it_is(house: House) -> None:
    """XGROUP SETID above the end is legal, and no gap."""
    house.run(types.XGroupCreate(stream="s", group="g", start=id_of("9-0"), mkstream=False))
    read = types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)])
    assert house.of(GroupRead, read).streams == []


# ---- restores


def test_a_restored_stream_is_told_as_such(house: House) -> None:
    """By one restore or several, over rewrites; what was deleted before is not in it, what came later is."""
    known = house.key("s").generation
    keyspace = house.keyspace
    for number in range(SALTS_MAX):
        house.payloads.append(encode([Regenerate(bytes([number]) * 16)]))
        replay(keyspace, house.payloads[-1])
    assert _told_in(keyspace, "2-0", known) == ("restored", "2-0")
    assert _told_in(keyspace, "9-0", known) == ("restored", "3-0")
    written = Keyspace()
    replay(written, encode(list(snapshot(keyspace))))
    assert _told_in(written, "2-0", known) == ("restored", "2-0")
    assert _told_in(written, "2-0", OTHER) == ("recreated", "0-0")
    assert _told_in(written, "2-0", written.keys["s"].generation) is None
    replay(written, encode([Regenerate(b"one too many")]))
    assert _told_in(written, "2-0", known) == ("recreated", "0-0")


def _told_in(keyspace: Keyspace, cursor: str, known: str) -> tuple[str, str] | None:
    gap = gap_of(id_of(cursor), known, keyspace.keys["s"].identity, keyspace.generations)
    return None if gap is None or gap.next is None else (str(gap.reason), ids.format(gap.next))


def test_causes_are_kept_of_so_many_ends() -> None:
    """The oldest are forgotten: then it is a deletion, as after a restart."""
    generations = Generations()
    for number in range(10_001):
        generations.note_end(f"{number:016x}", "expired")
    reasons = [gap_of(1, f"{number:016x}", None, generations) for number in (0, 1)]
    assert reasons == [Gap(1, 0, None, "deleted", 0), Gap(1, 0, None, "expired", 0)]
    assert gap_of(5, "", Identity(OTHER, 1, 4, was_filled=True), generations) == Gap(5, 1, None, "ahead", 4)


# ---- who had a name before


def previous(house: House, *names: str) -> list[tuple[str, str, str]]:
    """What is known of who had these names."""
    found = house.of(Planned, Plan(streams=[(name, 0) for name in names])).previous
    return [(one.stream, one.generation, ids.format(one.last_id)) for one in found]


def test_the_last_owner_of_a_name_is_kept_where_it_was_archived(house: House) -> None:
    """However it went; while nobody has the name and after, over rewrites. What came between is known too."""
    house.fill("plain", 2)
    house.run(UpdateStream(stream="s", archived_up_to=id_of("2-0")))
    first = house.key("s").generation
    assert previous(house, "s") == []
    house.run(types.Delete(streams=["s", "plain"]))
    for _owner in ("none", "one without entries", "one that goes unarchived"):
        assert previous(house, "plain", "s") == [("s", first, "3-0")]
        house.run(types.XGroupCreate(stream="s", group="g", start=types.Cursor.LATEST, mkstream=True))
        house.run(types.Delete(streams=["s"]))
    house.fill("s", 2)
    second = house.key("s").generation
    house.run(types.Rename(stream="s", target="t"))
    assert previous(house, "s", "t") == [("s", second, "2-0")]
    house.fill("s", 4)
    third = house.key("s").generation
    house.run(types.FlushAll())
    assert previous(house, "t", "s") == [("s", third, "4-0")]


def test_last_owners_of_so_many_names_are_kept() -> None:
    """Those that ended first go first."""
    generations = Generations()
    for number in (*range(PREVIOUS_MAX), 0, PREVIOUS_MAX):
        generations.note_previous(PreviousStream(f"s{number}", OTHER, number))
    assert [name in generations.previous for name in ("s0", "s1", f"s{PREVIOUS_MAX}")] == [True, False, True]
    assert len(generations.previous) == PREVIOUS_MAX
