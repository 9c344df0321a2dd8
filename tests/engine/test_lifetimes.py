"""EXPIRE and its kind: when a stream goes, who sees it until then, and what the log has of it."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.commands.expiring import TURN_EXPIRED_MAX
from engine.commands.weir_commands import ExpireStreams, UpdateGroup, UpdateStream
from engine.keyspace import Keyspace
from engine.lifetimes import Lifetimes
from engine.records.changes import RemoveStream, SetLifetime
from engine.records.payload import decode, encode
from tests.engine.world import NOW_MS, World

I64_MAX: Final = (1 << 63) - 1


def stream(*names: str) -> World:
    """A world with these streams, an entry in each."""
    world = World()
    for name in names:
        world.add(name, "5-0")
    return world


def test_a_stream_is_there_to_the_last_millisecond() -> None:
    """At its time it is gone, and the removal is in the log of the command that found it so."""
    world = stream("s")
    assert world.call("PEXPIRE", "s", 10) == 1
    world.pass_ms(9)
    assert (world.call("PTTL", "s"), world.call("XLEN", "s")) == (1, 1)
    world.check()
    world.pass_ms(1)
    assert world.call("XLEN", "s") == 0
    assert decode(world.payloads[-1]) == [RemoveStream("s")]
    assert world.signalled == ["s"]
    assert (world.call("EXISTS", "s"), world.call("TTL", "s"), world.call("TYPE", "s")) == (0, -2, "none")
    world.check()


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        (("XLEN", "s"), 0),
        (("XRANGE", "s", "-", "+"), []),
        (("XREAD", "STREAMS", "s", "0"), None),
        (("EXISTS", "s", "s"), 0),
        (("DEL", "s"), 0),
        (("TYPE", "s"), "none"),
        (("PERSIST", "s"), 0),
        (("PEXPIRE", "s", "10"), 0),
        (("XDEL", "s", "5-0"), 0),
        (("XTRIM", "s", "MAXLEN", "0"), 0),
        (("XADD", "s", "NOMKSTREAM", "*", "a", "1"), None),
        (("XADD", "s", "1-0", "a", "1"), "1-0"),
        (("XINFO", "STREAM", "s"), "-ERR no such key"),
        (
            ("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">"),
            "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option",
        ),
        (("XACK", "s", "g", "5-0"), 0),
        (("KEYS", "*"), ["t"]),
        (("SCAN", "0"), ["0", ["t"]]),
    ],
)
def test_no_command_sees_an_expired_stream(words: tuple[str, ...], reply: object) -> None:
    """Although nothing has removed it yet."""
    world = stream("s", "t")
    world.call("XGROUP", "CREATE", "s", "g", "0")
    world.call("PEXPIRE", "s", 10)
    world.pass_ms(10)
    assert world.call(*words) == reply
    world.check()


def test_a_transaction_sees_one_time() -> None:
    """A stream that expires at its start is gone for all of its commands; a new one has no lifetime."""
    world = stream("s")
    world.call("PEXPIRE", "s", 10)
    world.pass_ms(10)
    replies = world.transaction(["XLEN", "s"], ["XADD", "s", "2-0", "a", "1"], ["XLEN", "s"], ["TTL", "s"])
    assert replies == [0, "2-0", 1, -1]
    world.check()


def test_a_lifetime_belongs_to_the_stream_not_to_its_name() -> None:
    """XADD keeps it, DEL and XADD drop it."""
    world = stream("s")
    generation = world.keyspace.keys["s"].generation
    world.call("EXPIRE", "s", 100)
    world.add("s", "6-0")
    assert world.call("TTL", "s") == 100
    world.call("DEL", "s")
    world.add("s", "5-0")
    assert world.call("TTL", "s") == -1
    assert world.keyspace.keys["s"].generation != generation
    world.pass_ms(100_000)
    assert world.call("XLEN", "s") == 1
    world.check()


@pytest.mark.parametrize("at", [0, -1, NOW_MS, -I64_MAX - 1])
def test_a_time_that_is_over_removes_at_once(at: int) -> None:
    """As DEL does."""
    world = stream("s")
    assert world.call("PEXPIREAT", "s", at) == 1
    assert decode(world.payloads[-1]) == [RemoveStream("s")]
    assert world.signalled == ["s"]
    world.check()


def test_the_next_millisecond_is_not_over() -> None:
    """The edge beside it."""
    world = stream("s")
    assert world.call("PEXPIREAT", "s", NOW_MS + 1) == 1
    assert world.call("PTTL", "s") == 1


def test_the_last_time_there_is_can_be_set() -> None:
    """And one more cannot."""
    world = stream("s")
    assert world.call("PEXPIREAT", "s", I64_MAX) == 1
    assert world.call("PEXPIRETIME", "s") == I64_MAX
    assert world.call("PEXPIRE", "s", I64_MAX - NOW_MS) == 1
    refusal = "-ERR invalid expire time in 'pexpire' command"
    assert world.call("PEXPIRE", "s", I64_MAX - NOW_MS + 1) == refusal
    assert world.call("PEXPIRE", "missing", I64_MAX) == refusal
    world.check()


@given(st.none() | st.integers(0, I64_MAX) | st.sampled_from([0, 1, I64_MAX - 1, I64_MAX]))
def test_every_time_comes_back_from_the_log(at_ms: int | None) -> None:
    """From 0 to the last."""
    assert decode(encode([SetLifetime("s", at_ms)])) == [SetLifetime("s", at_ms)]


def test_streams_go_in_bounded_turns() -> None:
    """However many are due: those of one turn, then those of the next."""
    world = stream(*(f"s{number}" for number in range(TURN_EXPIRED_MAX + 1)))
    for name in list(world.keyspace.keys):
        world.call("PEXPIRE", name, 10)
    world.pass_ms(9)
    assert world.execute(ExpireStreams()) == (False,)
    world.pass_ms(1)
    assert world.execute(ExpireStreams()) == (True,)
    assert len(world.keyspace.keys) == 1
    assert world.execute(ExpireStreams()) == (False,)
    assert not world.keyspace.keys
    world.check()


def test_what_is_not_archived_outlives_its_time() -> None:
    """Where retention says so; with the archive's word it goes."""
    world = stream("s")
    world.execute(UpdateStream(stream="s", retention={"keep_unarchived": True}))
    world.call("PEXPIRE", "s", 10)
    world.pass_ms(10)
    assert world.execute(ExpireStreams()) == (False,)
    assert (world.call("XLEN", "s"), world.call("PTTL", "s")) == (1, 0)
    world.check()
    world.call("RENAME", "s", "t")
    world.check()
    world.call("RENAME", "t", "s")
    assert world.execute(ExpireStreams()) == (False,)
    world.check()
    world.execute(UpdateStream(stream="s", archived_up_to=5 << 64))
    world.check()
    assert world.call("XLEN", "s") == 0


def test_dead_letters_do_not_enter_an_expired_stream() -> None:
    """They make a new one."""
    world = stream("s", "dead")
    world.call("XGROUP", "CREATE", "s", "g", "0")
    policy = {"dead_letter_stream": "dead", "max_deliveries": 1}
    world.execute(UpdateGroup(stream="s", group="g", policy=policy))
    world.read("g", "a", "s")
    world.call("PEXPIRE", "dead", 10)
    world.pass_ms(10)
    assert world.read("g", "a", "s", "0") == [["s", []]]
    assert (world.call("XLEN", "dead"), world.call("TTL", "dead")) == (1, -1)
    world.check()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 3)), max_size=20))
def test_the_index_has_each_stream_at_its_time(changes: list[tuple[str, int | None]]) -> None:
    """And knows the first of them, however they were moved."""
    world, index = World(), dict[str, int]()
    for name in "abc":
        world.add(name, "5-0")
    for name, at_ms in changes:
        world.keyspace.expire_at(name, at_ms)
        index.pop(name, None)
        if at_ms is not None:
            index[name] = at_ms
        world.keyspace.check()
        assert dict(world.keyspace.lifetimes.items()) == index
        assert world.keyspace.lifetimes.next_ms == min(index.values(), default=None)


def test_an_earlier_time_is_reported_once() -> None:
    """A later one is not."""
    lifetimes, reported = Lifetimes(), list[int | None]()
    lifetimes.on_earlier = lambda: reported.append(lifetimes.next_ms)
    lifetimes.add("a", 5)
    lifetimes.add("b", 5)
    lifetimes.add("c", 6)
    lifetimes.add("d", 4)
    assert reported == [5, 4]


def test_flushall_forgets_lifetimes() -> None:
    """A stream of the same name is another one."""
    world = stream("s")
    world.call("PEXPIRE", "s", 10)
    world.call("FLUSHALL")
    assert world.keyspace.lifetimes.first() is None
    world.add("s", "5-0")
    world.pass_ms(10)
    assert world.call("XLEN", "s") == 1
    world.check()


def test_an_empty_keyspace_has_nothing_due() -> None:
    """Not even at the last time there is."""
    assert not Keyspace().lifetimes.is_due(I64_MAX)
