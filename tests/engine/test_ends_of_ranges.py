"""IDs at both ends of their range, 0-0 and 2^128 - 1, through every command and every record.

An ID is one number of 128 bits. A bound that excludes the highest one is a number more, and a log that could
not write it down took the whole gateway read-only.
"""

from collections.abc import Sequence
from typing import Annotated, Final, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import entries, ids
from engine.commands import types, weir_commands
from engine.commands.base import BlockingCommand, Command, StreamCommand
from engine.commands.types import Trim, XAdd, XTrim
from engine.parts.keeping import Retention
from engine.record import Record
from engine.records.payload import KINDS, decode, encode
from tests import halves
from tests.engine.test_units_records import comparable
from tests.engine.world import ID_MAX, World

BELOW_MAX: Final = "18446744073709551615-18446744073709551614"
INT_MAX: Final = 2**63 - 1
ENDS: Final = (0, 1, ids.ID_MAX - 1, ids.ID_MAX)

entry_ids: Final = st.sampled_from(["0-0", "0-1", BELOW_MAX, ID_MAX])
integers: Final = st.sampled_from([0, 1, 2, INT_MAX])
ends: Final = st.sampled_from(ENDS)


# --- records ------------------------------------------------------------------------------------------------


def field_ends(hint: object) -> tuple[object, object]:
    """The lowest and the highest value of a record's field."""
    if get_origin(hint) is Annotated:
        plain, form = get_args(hint)
        ends_of_id: dict[str, tuple[object, object]] = {
            "id": (0, ids.ID_MAX),
            "bound": (0, ids.ID_MAX + 1),
            "ids": ([0], [0, ids.ID_MAX]),
        }
        if form in ends_of_id:
            return ends_of_id[form]
        texts = [entries.encode(each, entries.body([])) for each in ENDS]
        return ([], []) if plain == Sequence[int] else ([texts[0]], texts)
    table: dict[object, tuple[object, object]] = {
        str: ("\0", "\U0010ffff"),
        bytes: (b"", b"\xff"),
        bool: (False, True),
        int: (-1, INT_MAX),
        int | None: (None, INT_MAX),
        str | None: (None, "\U0010ffff"),
        Sequence[int]: ([], [0, INT_MAX]),
        Sequence[str]: ([], ["\U0010ffff"]),
        Sequence[bytes | None]: ([None], [b"\xff"]),
        Sequence[str | None]: ([None], ["\U0010ffff"]),
        tuple[int, int, int, int]: ((0, 0, 0, 0), (INT_MAX,) * 4),
    }
    return table[hint]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda one: one.__name__)
def test_every_field_of_a_record_is_written_at_both_ends_of_its_range(kind: type[Record]) -> None:
    """And read as it was: what cannot be written is in memory alone when that is noticed."""
    hints = get_type_hints(kind, include_extras=True)
    both = [field_ends(hints[field.name]) for field in msgspec.structs.fields(kind)]
    for values in zip(*both, strict=True) if both else ((),):
        record = kind(*values)
        (read,) = decode(encode([record]))
        if hasattr(record, "texts") and hasattr(record, "ids"):
            record = msgspec.structs.replace(record, ids=[entries.id_of(one) for one in record.texts])
        assert comparable(read) == comparable(record)


# --- commands -----------------------------------------------------------------------------------------------

# `i` is an ID, `n` a number.
WORDS: Final = """\
XADD s i a 1
XADD s * a 1
XADD s 18446744073709551615-* a 1
XADD s 0-* a 1
XADD s i a 1
XADD s MAXLEN n i a 1
XADD s MINID i i a 1
XADD s IDMP p k * a 1
XTRIM s MAXLEN n
XTRIM s MAXLEN ~ n LIMIT n
XTRIM s MAXLEN n DELREF
XTRIM s MAXLEN n ACKED
XTRIM s MINID i
XTRIM s MINID i ACKED
XDEL s i i
XDELEX s DELREF IDS 2 i i
XDELEX s ACKED IDS 1 i
XSETID s i
XSETID s i ENTRIESADDED n MAXDELETEDID i
XGROUP CREATE s g i MKSTREAM
XGROUP CREATE s g i MKSTREAM ENTRIESREAD n
XGROUP CREATE s h $ MKSTREAM
XGROUP SETID s g i
XGROUP SETID s g i ENTRIESREAD n
XGROUP DESTROY s h
XGROUP CREATECONSUMER s g a
XGROUP DELCONSUMER s g a
XREADGROUP GROUP g a STREAMS s >
XREADGROUP GROUP g a COUNT 1 STREAMS s >
XREADGROUP GROUP g b CLAIM 0 STREAMS s >
XREADGROUP GROUP g a NOACK STREAMS s >
XREADGROUP GROUP g a STREAMS s i
XREADGROUP GROUP g a STREAMS s 0
XREAD STREAMS s i
XREAD STREAMS s +
XREAD STREAMS s $
XRANGE s i i
XRANGE s (i +
XRANGE s - (i
XREVRANGE s + -
XLEN s
XACK s g i i
XACKDEL s g DELREF IDS 1 i
XACKDEL s g ACKED IDS 2 i i
XNACK s g FATAL IDS 1 i
XNACK s g SILENT IDS 1 i FORCE
XNACK s g FAIL IDS 1 i RETRYCOUNT n
XPENDING s g
XPENDING s g i i 10
XPENDING s g IDLE n - + 10 a
XCLAIM s g b 0 i i
XCLAIM s g b 0 i FORCE
XCLAIM s g b 0 i FORCE JUSTID LASTID i
XCLAIM s g b 0 i IDLE n RETRYCOUNT n
XCLAIM s g b 0 i TIME n RETRYCOUNT n
XAUTOCLAIM s g b 0 i
XAUTOCLAIM s g b n i COUNT 1 JUSTID
XINFO STREAM s
XINFO STREAM s FULL
XINFO GROUPS s
XINFO CONSUMERS s g
XIDMPRECORD s p k i
XCFGSET s IDMP-DURATION n
XCFGSET s IDMP-MAXSIZE 1
CONFIG SET stream-node-max-entries 1
PEXPIREAT s n
PEXPIREAT s n NX
EXPIRE s n
PTTL s
PEXPIRETIME s
PERSIST s
RENAME s t
RENAME t s
COPY s t
COPY t s REPLACE
DEL s
EXISTS s
TYPE s
DBSIZE
FLUSHALL
""".splitlines()


@st.composite
def words(draw: st.DrawFn) -> tuple[str, ...]:
    """A command of Redis."""
    filled: list[str] = []
    for word in draw(st.sampled_from(WORDS)).split():
        if word.lstrip("(") == "i":
            word = word[:-1] + draw(entry_ids)  # noqa: PLW2901 - filled in
        filled.append(str(draw(integers)) if word == "n" else word)
    return tuple(filled)


def body(text: str) -> bytes:
    return entries.body([("a", text)])


@st.composite
def own(draw: st.DrawFn) -> Command:
    """A command that Redis does not have."""
    number = integers.map(lambda one: min(one, 2**53 - 1))
    kept = st.builds(
        Retention, st.none() | number, st.none() | number, st.none() | number, st.booleans(), st.booleans()
    )
    some = st.lists(ends, min_size=1, max_size=2, unique=True)
    trims = st.builds(lambda old: Trim(older_than_ms=old), number) | st.builds(lambda i: Trim(minid=i), ends)
    part = st.builds(lambda given: XAdd(stream="s", bodies=[body("1")] * len(given), ids=sorted(given)), some)
    made: Command = draw(
        st.one_of(
            st.builds(lambda one: weir_commands.EnsureStream(stream="s", retention=one), kept),
            st.builds(lambda upto: weir_commands.UpdateStream(stream="s", archived_up_to=upto), ends),
            st.builds(
                lambda start, read, most: weir_commands.EnsureGroup(
                    stream="s", group="g", start=start, mkstream=True, entries_read=read,
                    policy={"dead_letter_stream": "dead", "max_deliveries": most, "ack_timeout_ms": most},
                ),
                ends, st.none() | number, st.none() | number.filter(bool),
            ),
            st.builds(lambda start: weir_commands.UpdateGroup(stream="s", group="g", start=start), ends),
            st.builds(lambda one: weir_commands.Publish(parts=[one]), part),
            st.builds(lambda one: XTrim(stream="s", trim=one, guard=True), trims),
            st.builds(lambda one: XTrim(stream="s", trim=one, dry_run=True), trims),
            st.builds(
                lambda one: weir_commands.DeadLetterEntries(stream="s", group="g", ids=one, reason="r"), some
            ),
            st.builds(lambda one: weir_commands.GiveBack(stream="s", group="g", consumer="a", ids=one), some),
            st.builds(
                lambda after, end, durable: weir_commands.Plan(
                    streams=[("s", after)], ends={} if end is None else {"s": end}, durable_only=durable,
                    parts=2,
                ),
                ends, st.none() | ends, st.booleans(),
            ),
            st.sampled_from(
                [
                    weir_commands.DescribeEdges(stream="s"),
                    weir_commands.DescribeGroup(stream="s", group="g"),
                    weir_commands.EndWait(streams=["s"], group="g", consumer="a"),
                    weir_commands.Maintain(),
                    weir_commands.DeleteConsumer(stream="s", group="g", consumer="a", transfer_to="b"),
                    weir_commands.DeleteGroup(stream="s", group="h", drop=True),
                    weir_commands.StreamInfos(),
                ]
            ),
        )
    )  # fmt: skip
    return made


@settings(max_examples=halves.some(150))
@given(st.lists(words() | words() | own(), min_size=1, max_size=25))
def test_ids_at_both_ends_go_through_every_command(steps: list[tuple[str, ...] | Command]) -> None:
    """No turn raises anything but a refusal, every frame can be written, and a restart gives the same."""
    world = World()
    world.keyspace.unsynced_from = lambda _: ids.ID_MAX
    for step in steps:
        if isinstance(step, Command):
            world.execute(step)
        else:
            world.call(*step)
    world.check()


def test_these_are_all_commands_of_redis() -> None:
    """A new one comes into the property above; four name no ID."""
    world = World()
    for line in WORDS:
        world.call(*[{"i": "1-1", "(i": "(1-1", "n": "1"}.get(word, word) for word in line.split()])
    missing = {kind for kind in vars(types).values() if isinstance(kind, type) and issubclass(kind, Command)}
    # What others are made of is no command of its own.
    missing -= world.kinds | {Command, BlockingCommand, types.BoundedRead, StreamCommand}
    names = {kind.__name__ for kind in missing if not kind.__name__.startswith("_")}
    assert names == {*("ConfigGet", "DescribeUse", "FindGroup", "ListStreams")}


def test_the_highest_entry_can_be_trimmed_away() -> None:
    """The cut that excludes it is above all IDs; readers learn what they have missed."""
    world = World()
    world.add("s", BELOW_MAX, ID_MAX)
    assert world.call("XTRIM", "s", "MAXLEN", 1) == 1
    assert world.ids("s") == [ID_MAX]
    assert world.call("XTRIM", "s", "MAXLEN", 0) == 1
    assert world.ids("s") == []
    assert world.keyspace.keys["s"].stream.removed_upto == ids.ID_MAX
    assert str(world.call("XADD", "s", "*", "a", "1")).startswith("-ERR The stream has exhausted")
    world.check()
