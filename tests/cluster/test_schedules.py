"""Entries for later over a backend: each is appended at its time, once, whichever gateways are there."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from engine import SystemClock, entries, errors
from engine.cluster import ClusterEngine
from engine.cluster.keys import auxiliary_key
from engine.cluster.routing import BackendRequest
from engine.cluster.schedule_words import fire_due
from engine.commands import schedule_commands
from engine.commands.base import Command
from engine.commands.schedule_commands import Pause
from engine.commands.types import Copy, Delete, Expire, ListStreams, Rename, XAdd, XRange
from engine.commands.weir_commands import Close
from engine.ids import ID_MAX
from engine.keyspace import CAPS_DEFAULT
from engine.recurrence import NEVER_MS, Rule
from engine.replies import Dropped, Entries, Listing, ScheduleInfo, SchedulePage, ScheduleSet
from tests.cluster.engines import opened, refused
from tests.cluster.servers import Backend, BackendServer, full
from tests.engine.asking import reply_of, reply_to
from tests.server import Server, call
from tests.waiting import until, until_async

S: Final = "{t}s"
OTHER: Final = "{t}other"
COUNT: Final = 300
KINDS: Final = "stn"


def body(value: str) -> bytes:
    return entries.body([("n", value)])


def setting(name: str, stream: str = S, **rule: Any) -> schedule_commands.SetSchedule:
    return schedule_commands.SetSchedule(
        stream=stream, schedule=schedule_commands.NewSchedule(name, body(name), Rule(**rule))
    )


async def values(engine: ClusterEngine, stream: str = S) -> list[str]:
    """The values of the field `n`, in the order of the stream."""
    found = await reply_to(engine, XRange(stream=stream, start=0, end=ID_MAX))
    texts = found.parts if isinstance(found, Entries) else []
    return [dict(entries.pairs_of(text))["n"].decode() for text in texts]


async def until_there_are(engine: ClusterEngine, count: int, stream: str = S) -> list[str]:
    async with asyncio.timeout(30):
        while len(found := await values(engine, stream)) < count:  # noqa: ASYNC110 - the other side is a process
            await asyncio.sleep(0.02)
    return found


async def names(engine: ClusterEngine, stream: str = S, **page: Any) -> list[str]:
    found = await reply_of(engine, SchedulePage, schedule_commands.ListSchedules(stream=stream, **page))
    return [one.name for one in found.schedules]


async def test_of_two_gateways_one_appends_each_once(backend: Backend) -> None:
    """Both have all of them due at the same time."""
    async with opened(backend) as one, opened(backend) as other:
        at_ms = int(time.time() * 1000) + 500
        later = [
            schedule_commands.NewSchedule(f"e{n}", body(f"e{n}"), Rule(at_ms=at_ms)) for n in range(COUNT)
        ]
        await reply_to(one, schedule_commands.AddScheduled(stream=S, later=later))
        # It shall look at that time too.
        await reply_to(other, setting("last", at_ms=at_ms))
        found = await until_there_are(other, COUNT + 1)
        await asyncio.sleep(0.1)
        assert Counter(await values(one)) == Counter([f"e{n}" for n in range(COUNT)] + ["last"])
        assert len(found) == COUNT + 1
        assert one.figures().appended + other.figures().appended == COUNT + 1
        assert not any(backend.call("EXISTS", auxiliary_key(S, kind)) for kind in KINDS)


async def test_what_a_gateway_had_that_died_another_appends(backend: Backend) -> None:
    """The one that goes round. What would be too late by then is left out, and what recurs goes on."""
    async with opened(backend) as one:
        await reply_to(one, setting("once", in_ms=300))
        await reply_to(one, setting("late", in_ms=300, expires_in_ms=1))
        await reply_to(one, setting("again", every_ms=1_000, count=2))
    async with opened(backend) as other:
        assert Counter(await until_there_are(other, 3)) == {"once": 1, "again": 2}
        assert await names(other) == []


async def test_what_changed_meanwhile_is_not_appended(backend: Backend, engine: ClusterEngine) -> None:
    """Between the look and the script: cancelled, replaced, or appended by another gateway."""
    backend.call("SET", "weir/maintainer", "another")

    async def fire(*changes: Any) -> None:
        waiting = list(changes)

        async def run(request: BackendRequest) -> Any:
            found = await engine.run_request(request)
            if isinstance(found, list) and waiting:
                await reply_to(engine, waiting.pop())
            return found

        await fire_due(run, S, SystemClock())

    async def be_due(name: str) -> None:
        # Set as of another gateway, so that this one has no timer.
        async with opened(backend) as gone:
            await reply_to(gone, setting(name, in_ms=50))
        await asyncio.sleep(0.1)

    await be_due("a")
    await fire(schedule_commands.CancelSchedule(stream=S, name="a"))
    assert await values(engine) == []
    await be_due("b")
    await fire(setting("b", in_ms=60_000))
    assert (await values(engine), await names(engine)) == ([], ["b"])
    await be_due("c")
    await fire()
    await fire()
    assert await values(engine) == ["c"]


async def test_an_entry_comes_back_as_it_was_given(engine: ClusterEngine) -> None:
    """With line feeds, bytes of zero and metadata; and it is appended so."""
    given = entries.with_meta(entries.body([("a\n", "1\n2"), ("b", b"\0\xff")]), {"k": "v\n"})
    await reply_to(engine, XAdd(stream=S, bodies=[given]))
    schedule = schedule_commands.NewSchedule("a", given, Rule(in_ms=60_000))
    await reply_to(engine, schedule_commands.AddScheduled(stream=S, later=[schedule]))
    shown = await reply_of(engine, ScheduleInfo, schedule_commands.DescribeSchedule(stream=S, name="a"))
    assert shown.body == given
    await reply_to(engine, schedule_commands.AddScheduled(stream=S, later=[due_now(schedule)]))
    async with asyncio.timeout(30):
        while True:
            found = await reply_of(engine, Entries, XRange(stream=S, start=0, end=ID_MAX))
            if found.count == 2:
                break
            await asyncio.sleep(0.02)
    first, second = ([*entries.pairs_of(text), entries.meta_of(text)] for text in found.parts)
    assert first == second


def due_now(schedule: schedule_commands.NewSchedule) -> schedule_commands.NewSchedule:
    return schedule_commands.NewSchedule(schedule.name, schedule.body, Rule(in_ms=0))


async def test_another_program_that_deletes_the_stream_deletes_them(
    backend: Backend, engine: ClusterEngine
) -> None:
    """Nothing comes into a stream that was made anew, and nothing makes it; no list has it."""
    await reply_to(engine, setting("a", in_ms=300))
    backend.call("DEL", S)
    assert await reply_to(engine, ListStreams(scheduled=True)) == Listing([])
    await asyncio.sleep(0.5)
    assert backend.call("EXISTS", S) == 0
    assert (await refused(engine, schedule_commands.ListSchedules(stream=S))).code == "no_stream"
    await reply_to(engine, XAdd(stream=S, bodies=[body("new")]))
    assert (await values(engine), await names(engine)) == (["new"], [])


async def test_a_lifetime_that_is_over_takes_them_along(backend: Backend, engine: ClusterEngine) -> None:
    await reply_to(engine, setting("a", in_ms=60_000))
    backend.call("PEXPIRE", S, 50)
    await until_async(lambda: not backend.call("EXISTS", auxiliary_key(S, "s")), 30)


ENDS: Final[Mapping[str, Command]] = {
    "deleted": Delete(streams=[S, "elsewhere"]),
    "deleted beside others": Delete(streams=["{t}missing", S, OTHER]),
    "renamed onto": Rename(stream=OTHER, target=S),
    "copied onto": Copy(stream=OTHER, target=S, replace=True),
    "closed": Close(stream=S, drops_schedules=True),
    "expired": Expire(stream=S, ms=-1, relative=True, named="pexpire"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_what_goes_with_a_stream_is_counted(engine: ClusterEngine, end: str) -> None:
    """By the gateway that has ended it, in its reply too; and they are no more of those that there are."""
    await reply_to(engine, XAdd(stream=OTHER, bodies=[body("other")]))
    for name in "ab":
        await reply_to(engine, setting(name, in_ms=60_000))
    reply = await reply_of(engine, Dropped, ENDS[end])
    assert (reply.schedules, engine.figures().schedules_dropped, engine.figures().schedules) == (2, 2, 0)


@pytest.mark.parametrize("again", [False, True], ids=["for good", "and is made again at once"])
async def test_what_goes_with_a_stream_that_others_end_is_counted_by_a_round(
    backend: Backend, engine: ClusterEngine, *, again: bool
) -> None:
    """A lifetime that is over, or another program: the server has removed the stream alone."""
    for name in "ab":
        await reply_to(engine, setting(name, in_ms=60_000))
    backend.call("DEL", S)
    if again:
        await reply_to(engine, XAdd(stream=S, bodies=[body("new")]))
    await until_async(lambda: engine.figures().schedules_dropped == 2)
    if again:
        assert await names(engine) == []


async def test_there_is_a_most_of_a_stream(backend: Backend, engine: ClusterEngine) -> None:
    """One that replaces another is none more."""
    most = CAPS_DEFAULT.stream_schedules_max
    await reply_to(engine, setting("a", in_ms=60_000))
    key = auxiliary_key(S, "s")
    for start in range(1, most, 10_000):
        words = [word for n in range(start, min(most, start + 10_000)) for word in (f"x{n}", "x")]
        backend.call("HSET", key, *words)
    refusal = await refused(engine, setting("b", in_ms=60_000))
    assert (refusal.code, refusal.members["limit"]) == ("invalid", "stream_schedules_max")
    assert isinstance(await reply_to(engine, setting("a", in_ms=70_000)), ScheduleSet)


async def test_there_is_a_most_of_all(backend: Backend) -> None:
    """Of streams of all slots. A gateway knows at once what it has added, and soon what others have."""
    async with opened(backend) as one, opened(backend) as other:
        for engine in (one, other):
            engine.maintenance.schedules.most = 3
        await reply_to(one, setting("a", in_ms=60_000))
        two = [schedule_commands.NewSchedule(name, body(name), Rule(in_ms=60_000)) for name in "bc"]
        await reply_to(one, schedule_commands.AddScheduled(stream="elsewhere", later=two))
        assert one.figures().schedules == 3
        await refused_as_one_too_many(one)
        await until_async(lambda: other.figures().schedules == 3)
        await refused_as_one_too_many(other)
        # One that replaces another is none more, and one that is cancelled makes room.
        assert isinstance(await reply_to(other, setting("a", in_ms=70_000)), ScheduleSet)
        await reply_to(other, schedule_commands.CancelSchedule(stream=S, name="a"))
        assert isinstance(await reply_to(other, setting("d", in_ms=60_000)), ScheduleSet)
        await refused_as_one_too_many(other)
    async with opened(backend) as later:
        await until_async(lambda: later.figures().schedules == 3)
        await reply_to(later, setting("soon", in_ms=0))
        await until_async(lambda: later.figures().schedules == 3)
        assert await values(later) == ["soon"]


async def refused_as_one_too_many(engine: ClusterEngine) -> None:
    """Alone, and with an entry that comes at once, which does not come then."""
    add = XAdd(stream=S, bodies=[body("now")])
    later = schedule_commands.NewSchedule("x", body("x"), Rule(in_ms=60_000))
    for command in (
        setting("x", in_ms=60_000),
        schedule_commands.AddScheduled(stream=S, add=add, later=[later]),
    ):
        refusal = await refused(engine, command)
        wanted = errors.too_many_schedules(CAPS_DEFAULT.schedules_max, "schedules_max")
        assert (refusal.code, refusal.redis, refusal.members) == (wanted.code, wanted.redis, wanted.members)
    assert await values(engine) == []


async def test_what_is_late_is_counted_as_late(backend: Backend) -> None:
    """By the round, at whichever gateway; no longer once it has come."""
    async with opened(backend) as one, opened(backend) as other:
        await reply_to(one, setting("a", in_ms=200))
        with full(backend):
            await until_async(
                lambda: min(one.figures().schedules_late_s, other.figures().schedules_late_s) > 0.5
            )
        await until_async(lambda: (one.figures().schedules, one.figures().schedules_late_s) == (0, 0))
        assert await values(other) == ["a"]


async def test_what_is_due_waits_for_room(backend: Backend, engine: ClusterEngine) -> None:
    """A full server refuses it, and nothing of it is lost."""
    await reply_to(engine, setting("a", in_ms=200))
    with full(backend):
        await asyncio.sleep(0.5)
        assert await values(engine) == []
    assert await until_there_are(engine, 1) == ["a"]


@pytest.mark.no_cover
def test_none_is_lost_and_none_comes_twice_as_gateways_are_killed(
    own_server: BackendServer, tmp_path: Path
) -> None:
    """Two gateways; in turn one is killed in the midst of what is due, and started again."""
    words = ["--backend", own_server.url, "--set", "log_requests=none"]
    target = "/v1/streams/s/entries?deliver_at="
    rounds, batch = 6, 500
    with Server(tmp_path / "one", *words) as one, Server(tmp_path / "other", *words) as other:
        for turn in range(rounds):
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2))
            for part, server in enumerate((one, other)):
                listed = [{"fields": {"n": f"{turn}-{part}-{n}"}} for n in range(batch)]
                status, _ = call(server, "POST", target + at, {"entries": listed})
                assert status == 202
            before = own_server.call("XLEN", "s")
            until(lambda before=before: own_server.call("XLEN", "s") > before)
            dying = (one, other)[turn % 2]
            dying.restart()
        wanted = Counter(f"{t}-{p}-{n}" for t in range(rounds) for p in range(2) for n in range(batch))
        until(lambda: own_server.call("XLEN", "s") >= len(wanted))
        assert not own_server.call("EXISTS", auxiliary_key("s", "s"))
    rows = own_server.call("XRANGE", "s", "-", "+")
    assert Counter(fields[1].decode() for _, fields in rows) == wanted


async def test_what_is_paused_waits_at_all_gateways_until_it_is_resumed(backend: Backend) -> None:
    """One resumes what another one has paused; a pause until a time ends by itself."""
    async with opened(backend) as one, opened(backend) as other:
        for name in ("a", "b"):
            await reply_to(one, setting(name, every_ms=1_000, count=2))
        until_ms = int(time.time() * 1000) + 1_500
        for name, pause in (("a", Pause()), ("b", Pause(until_ms=until_ms))):
            await reply_to(one, schedule_commands.PauseSchedule(stream=S, name=name, pause=pause))
        assert await until_there_are(other, 2) == ["b", "b"]
        assert await names(other) == ["a"]
        found = await reply_of(other, ScheduleInfo, schedule_commands.DescribeSchedule(stream=S, name="a"))
        assert (found.at_ms, found.left) == (NEVER_MS, 2)
        moved = f"{S}2"
        await reply_to(one, Rename(stream=S, target=moved))
        resume = schedule_commands.PauseSchedule(stream=moved, name="a", pause=Pause(on=False))
        await reply_to(other, resume)
        assert (await until_there_are(one, 4, moved))[2:] == ["a", "a"]
