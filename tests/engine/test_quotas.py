"""Quotas: what is refused at the limit and one beside it, and that sums follow their streams at any cost.

Knows: commands, the engine in memory, the sums of a keyspace.
Must never know: grants, APIs.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Engine, EngineError, Quota, quotas
from engine.commands import types
from engine.commands.base import Command
from engine.commands.types import Copy, Delete, FlushAll, Rename, XAck, XAutoClaim, XDel, XLen, XReadGroup
from engine.commands.weir_commands import DeadLetterEntries, EnsureGroup, EnsureStream, Publish
from engine.keyspace import Key, Keyspace
from engine.storage.memory import MemoryStorage
from tests.engine.asking import reply_to, submit_each, turn_of
from tests.engine.clocks import HandClock, settle
from tests.engine.house import adding, id_of
from tests.engine.running import engine_of


def quota(prefix: str, streams_max: int | None = None, bytes_max: int | None = None) -> Quota:
    return Quota(prefix + "*", prefix, lambda name: name.startswith(prefix), streams_max, bytes_max)


def start(storage: MemoryStorage) -> Engine:
    return Engine.open(storage, clock=HandClock(1_000), fsync="always")


engine = engine_of(clock=lambda: HandClock(1_000), fsync="always")


async def is_refused(engine: Engine, command: Command, *held: Quota) -> bool:
    """Whether the command is over one of these quotas."""
    try:
        await reply_to(engine, command, quotas=held)
    except EngineError as error:
        refusal = error
    else:
        return False
    assert refusal.code == "quota_exceeded", refusal
    assert refusal.redis.startswith("OOM ")
    return True


async def test_streams_up_to_the_limit_may_be_made(engine: Engine) -> None:
    """One below, at, and one above; what is there is written to, and deleting makes room."""
    held = quota("a.", streams_max=2)
    assert not await is_refused(engine, adding("a.1"), held)
    assert not await is_refused(engine, EnsureStream(stream="a.2"), held)
    for third in (
        adding("a.3"),
        EnsureStream(stream="a.3"),
        EnsureGroup(stream="a.3", group="g", start=0, mkstream=True),
        Publish(parts=[adding("a.1"), adding("a.3")]),
        Copy(stream="a.1", target="a.3"),
    ):
        assert await is_refused(engine, third, held)
    assert engine.figures().streams == 2
    assert await reply_to(engine, XLen(stream="a.1")) == 1
    assert not await is_refused(engine, adding("a.1"), held)
    assert not await is_refused(engine, adding("b.1"), held), "it does not match"
    assert not await is_refused(engine, adding("a.3")), "another caller, without a quota"
    await reply_to(engine, Delete(streams=["a.2", "a.3"]), quotas=[held])
    assert not await is_refused(engine, adding("a.4"), held)


async def test_a_publish_that_would_make_too_many_makes_none(engine: Engine) -> None:
    held = quota("a.", streams_max=2)
    await reply_to(engine, adding("a.1"))
    assert await is_refused(engine, Publish(parts=[adding("a.2"), adding("a.3")]), held)
    assert engine.figures().streams == 1
    assert not await is_refused(engine, Publish(parts=[adding("a.2"), adding("b.3")]), held)


async def test_bytes_are_refused_from_the_limit_on(engine: Engine) -> None:
    """One below the limit is room; what makes room goes on."""
    await reply_to(engine, EnsureGroup(stream="a.1", group="g", start=0, mkstream=True))
    await reply_to(engine, adding("a.1", "5-0"))
    used = engine.memory.streams.bytes
    assert await is_refused(engine, adding("a.1"), quota("a.", bytes_max=used))
    assert await is_refused(engine, adding("a.2"), quota("a.", bytes_max=used))
    full = quota("a.", bytes_max=1)
    for going_on in (
        XReadGroup(group="g", consumer="c", streams=[("a.1", types.Cursor.NEW)]),
        XAck(stream="a.1", group="g", ids=[id_of("5-0")]),
        XLen(stream="a.1"),
        XDel(stream="a.1", ids=[id_of("5-0")]),
        Delete(streams=["a.1"]),
    ):
        assert not await is_refused(engine, going_on, full)
    await reply_to(engine, adding("a.1", "5-0"))
    used = engine.memory.streams.bytes
    assert not await is_refused(engine, adding("a.1"), quota("a.", bytes_max=used + 1))


async def test_dead_letters_go_on_at_a_used_up_quota(engine: Engine) -> None:
    """Moved by a delivery or by hand; into a stream that there was not."""
    full = quota("a.", streams_max=1, bytes_max=1)
    policy = {"dead_letter_stream": "a.dead", "max_deliveries": 1}
    await reply_to(engine, EnsureGroup(stream="a.1", group="g", start=0, mkstream=True, policy=policy))
    await reply_to(engine, adding("a.1", "5-0"))
    await reply_to(engine, adding("a.1", "6-0"))
    read = XReadGroup(group="g", consumer="c", streams=[("a.1", types.Cursor.NEW)])
    assert not await is_refused(engine, read, full)
    by_hand = DeadLetterEntries(stream="a.1", group="g", ids=[id_of("5-0")], reason="wrong")
    assert not await is_refused(engine, by_hand, full)
    assert await reply_to(engine, XLen(stream="a.dead")) == 1
    claim = XAutoClaim(stream="a.1", group="g", consumer="c", min_idle_ms=0, start=0)
    assert not await is_refused(engine, claim, full)
    assert await reply_to(engine, XLen(stream="a.dead")) == 2


async def test_renaming_counts_where_the_stream_comes_to(engine: Engine) -> None:
    """Within a quota it takes no more than before."""
    held = quota("a.", streams_max=1)
    await reply_to(engine, adding("b"))
    assert not await is_refused(engine, Rename(stream="b", target="a.1"), held)
    assert not await is_refused(engine, Rename(stream="a.1", target="a.2"), held)
    await reply_to(engine, adding("b"))
    assert await is_refused(engine, Rename(stream="b", target="a.3"), held)
    assert await is_refused(engine, Copy(stream="a.2", target="a.3"), held)
    assert not await is_refused(engine, Rename(stream="a.2", target="c"), held)
    assert not await is_refused(engine, Copy(stream="c", target="a.3"), held)


async def test_each_of_several_quotas_holds(engine: Engine) -> None:
    wide, narrow = quota("a", streams_max=3), quota("a.b", streams_max=1)
    assert not await is_refused(engine, adding("a.b1"), wide, narrow)
    assert await is_refused(engine, adding("a.b2"), wide, narrow)
    assert not await is_refused(engine, Publish(parts=[adding("a.c"), adding("a.d")]), wide, narrow)
    assert await is_refused(engine, adding("a.e"), wide, narrow)


async def test_a_restart_counts_what_there_is(engine: Engine) -> None:
    storage, held = MemoryStorage(), quota("a.", streams_max=2)
    async with start(storage) as before:
        await turn_of(before, [adding("a.1"), adding("a.2"), adding("b")], quotas=[held])
    async with start(storage) as after:
        assert await is_refused(after, adding("a.3"), held)
        assert not await is_refused(after, adding("a.2"), held)
        await reply_to(after, Delete(streams=["a.1"]))
        assert not await is_refused(after, adding("a.3"), held)
        after.check()


async def test_a_transaction_is_refused_as_a_whole(engine: Engine) -> None:
    held = quota("a.", streams_max=1)
    with pytest.raises(EngineError, match="quota"):
        await turn_of(engine, [adding("b"), adding("a.1"), adding("a.2")], quotas=[held])
    assert engine.figures().streams == 0


async def test_of_a_pipeline_those_that_fit_are_run(engine: Engine) -> None:
    """Each command is looked at when those before it have run."""
    held = quota("a.", streams_max=1)
    replies: list[object] = []
    commands = [
        adding("a.1"),
        adding("a.2"),
        Delete(streams=["a.1"]),
        adding("a.3"),
        adding("a.1"),
        adding("b"),
    ]
    submit_each(engine, commands, replies.extend, [held])
    while not replies:
        await reply_to(engine, XLen(stream="b"), synced=True)
    codes = [one.code if isinstance(one, EngineError) else "" for one in replies]
    assert codes == ["", "quota_exceeded", "", "", "quota_exceeded", ""]


async def test_a_pipeline_whose_commands_are_looked_at_one_by_one_lets_others_run() -> None:
    """It goes on in the next cycle of the loop after five milliseconds."""
    held, clock = quota("a.", streams_max=1), HandClock(1_000)
    async with Engine.open(MemoryStorage(), clock=clock) as engine:
        await reply_to(engine, adding("a.1"), quotas=[held])
        refused = [adding(f"a.{number}") for number in range(2, 42)]
        replies: list[object] = []
        submit_each(engine, refused, replies.extend, [held])
        assert len(replies) == 40, "it has time for all"
        replies.clear()
        clock.ticking_s = 0.000_5
        submit_each(engine, refused, replies.extend, [held])
        assert replies == []
        clock.ticking_s = 0.0
        await settle()
        assert len(replies) == 40


async def test_a_flush_leaves_room(engine: Engine) -> None:
    held = quota("a.", streams_max=1)
    await reply_to(engine, adding("a.1"), quotas=[held])
    await reply_to(engine, FlushAll())
    assert not await is_refused(engine, adding("a.2"), held)


# --- the sums


def put(keyspace: Keyspace, name: str, size: int = 0) -> None:
    key = Key("0")
    keyspace.create(name, key)
    key.footprint.add(size)


def names(count: int) -> list[str]:
    return [f"a{number:05}" for number in range(count)]


def test_many_streams_are_counted_in_parts() -> None:
    """One part with each check; what comes and goes meanwhile is counted once, wherever it stands."""
    keyspace, held = Keyspace(), quota("a")
    for name in names(2 * quotas.COUNTED_PER_CHECK + 1):
        put(keyspace, name)
    assert keyspace.quotas.of(held).parts == quotas.COUNTED_PER_CHECK
    keyspace.remove("a00000")
    keyspace.remove("a02000")
    put(keyspace, "a00000x")
    put(keyspace, "a02000x")
    assert keyspace.quotas.of(held).parts == 2 * quotas.COUNTED_PER_CHECK
    assert keyspace.quotas.of(held).parts == 2 * quotas.COUNTED_PER_CHECK + 1
    assert keyspace.quotas.of(held).bytes == keyspace.memory.streams.bytes


def test_exactly_one_part_is_counted_at_once() -> None:
    keyspace, held = Keyspace(), quota("a")
    for name in names(quotas.COUNTED_PER_CHECK):
        put(keyspace, name)
    assert keyspace.quotas.of(held).parts == quotas.COUNTED_PER_CHECK
    put(keyspace, "a99999")
    assert keyspace.quotas.of(held).parts == quotas.COUNTED_PER_CHECK + 1


def test_patterns_beyond_the_limit_are_counted_anew() -> None:
    """The one not used for longest makes room, and leaves nothing behind in its streams."""
    keyspace = Keyspace()
    put(keyspace, "p0.a")
    put(keyspace, "p1.a")
    for number in range(quotas.PATTERNS_MAX):
        keyspace.quotas.of(quota(f"p{number}."))
    keyspace.quotas.of(quota("p0."))
    keyspace.quotas.of(quota("another"))
    assert len(keyspace.quotas) == quotas.PATTERNS_MAX
    put(keyspace, "p1.b")
    found = keyspace.quotas.of(quota("p1."))
    assert (found.parts, found.bytes) == (2, keyspace.memory.streams.bytes * 2 // 3)
    assert keyspace.quotas.of(quota("p0.")).parts == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "take", "move", "look", "grow", "clear"]), st.integers(0, 30)),
        max_size=100,
    )
)
def test_sums_are_those_of_the_streams_whatever_happens(steps: list[tuple[str, int]]) -> None:
    keyspace = Keyspace()
    for step, number in steps:
        name = f"{number:02}"
        is_there = keyspace.find(name) is not None
        if step == "look":
            keyspace.quotas.of(quota(name[: number % 3]))
        elif step == "clear" and number == 0:
            keyspace.clear()
        elif step == "put" and not is_there:
            put(keyspace, name, number)
        elif step == "take" and is_there:
            keyspace.remove(name)
        elif step == "move" and is_there:
            keyspace.rename(name, name + "x")
            keyspace.quotas.check()
            keyspace.rename(name + "x", name)
        elif step == "grow" and is_there:
            keyspace.keys[name].footprint.add(number)
        keyspace.quotas.check()
