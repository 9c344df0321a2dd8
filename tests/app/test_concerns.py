"""What holds at every way in: 11 doors, 3 kinds that join × 21 concerns, each cell checked or with a reason.

`CONCERNS` names the functions that implement a concern. Where there are several, the doors differ in more
than their bytes.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from structlog.testing import capture_logs

from app.api.socket import Sockets
from app.auth import Grant, Principal
from app.auth.rate_limiter import Meter
from app.doors.resp.port import Port
from app.doors.resp.session import RespSession
from app.http.common.exchanges import Exchanges
from app.life import Life
from app.live.budgets import Pool
from app.live.sessions import OpenSessions
from app.live.shares import Shares
from app.live.waiting import Waits
from app.metrics.counters import Counters
from app.metrics.reports import Reports
from app.metrics.tracing import Tracer
from app.settings import Settings
from app.work import Work
from engine import Memory, Quota, entries
from engine.commands.types import XAdd
from tests.app.joining_doors import JOINING_DOORS, JoiningDoor
from tests.app.ten_doors import BURST, LATE_S, LONG, Bench, Check, Door, Redis, Sse, WebSocket, filled
from tests.app.ten_doors import DOORS as TEN_DOORS
from tests.bounds import BOUNDS
from tests.engine.asking import reply_to

DOORS: Final = (*TEN_DOORS, *JOINING_DOORS)

# ---- the concerns


async def each_stream_is_asked_for(bench: Bench, door: Door) -> None:
    """One that is allowed beside it changes nothing."""
    before = bench.gateway.reports.counters.rejected["forbidden"]
    await door.read(bench, "orders", "secret")
    assert bench.gateway.reports.counters.rejected["forbidden"] == before + 1
    assert not any(bench.gateway.reports.counters.delivered.values())


async def requests_are_counted(bench: Bench, door: Door) -> None:
    """Each is at least one of the caller's rate."""
    before, _ = bench.taken()
    await door.read_often(bench, 3)
    after, _ = bench.taken()
    assert after - before >= 3


async def bytes_in_are_counted(bench: Bench, door: Door) -> None:
    """Those of an entry."""
    _, before = bench.taken()
    await door.publish(bench, "orders")
    _, after = bench.taken()
    assert after - before >= len(LONG)


async def bytes_out_are_counted(bench: Bench, door: Door) -> None:
    """Those of replies."""
    _, before = bench.taken()
    await door.read(bench, "orders")
    _, after = bench.taken()
    assert after - before >= len(LONG)


async def refusals_are_counted(bench: Bench, door: Door) -> None:
    """By their codes, the gateway's and the engine's."""
    rejected = bench.gateway.reports.counters.rejected
    await door.read(bench, "secret")
    assert rejected["forbidden"] == 1
    await door.read_for_group(bench, "nobody")
    assert rejected["no_group"] == 1


async def answers_are_counted_and_logged(bench: Bench, door: Door) -> None:
    """By their status; a line each, where all are wanted."""
    status = door.status
    before, lines = _answers(bench, status), len(door.lines(bench))
    await door.read(bench, "orders")
    assert await bench.come(lambda: _answers(bench, status) > before)
    written = door.lines(bench)[lines:]
    assert any(f'"status":{status}'.encode() in line for line in written)


def _answers(bench: Bench, status: int) -> int:
    return sum(by_status.get(status, 0) for by_status in bench.gateway.reports.counters.requests.values())


async def deliveries_are_counted(bench: Bench, door: Door) -> None:
    """Entries, by API."""
    delivered = bench.gateway.reports.counters.delivered
    await door.read(bench, "orders")
    assert await bench.come(lambda: delivered[door.label] == 1)


async def faults_are_counted(bench: Bench, door: Door) -> None:
    """As `internal`."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    before = bench.gateway.reports.counters.rejected["internal"]
    await door.read(bench, "bad")
    assert bench.gateway.reports.counters.rejected["internal"] == before + 1


async def changes_are_audited(bench: Bench, door: Door) -> None:
    """Done or refused; one that is refused hides none behind it."""
    await door.delete(bench, "secret", "orders")
    lines = await bench.audited()
    # A transaction of Redis is discarded at the refusal, so that what follows is not tried; several commands
    # of one request are authorised together.
    outcomes = {"RESP MULTI": ["forbidden"], "pipeline": ["forbidden"] * 2, "multi-exec": ["forbidden"] * 2}
    assert [line["outcome"] for line in lines] == outcomes.get(door.name, ["forbidden", "done"])


async def publishing_is_traced(bench: Bench, door: Door) -> None:
    """A span for a request with `traceparent`."""
    await door.publish(bench, "orders")
    assert _spans(bench) == ["publish orders"]


async def group_reads_are_traced(bench: Bench, door: Door) -> None:
    """A span, linked to that of the publisher."""
    await DOORS[0].publish(bench, "orders")
    bench.spans.clear()
    await door.read_for_group(bench)
    assert await bench.come(lambda: bool(_spans(bench)))
    assert _spans(bench) == ["read orders"]


def _spans(bench: Bench) -> list[str]:
    return [span.name for span in bench.spans.get_finished_spans()]


async def memory_is_bounded(bench: Bench, door: Door) -> None:
    """A long reply has its bytes reserved, or nothing is read."""
    await reply_to(bench.engine, XAdd(stream="orders", bodies=[entries.body([("f", "x" * 100_000)])]))
    pool = bench.gateway.limits.budgets.output
    held = pool.reserve("another", pool.bytes_max)
    read = door.read_long if isinstance(door, WebSocket) else door.read
    await read(bench, "orders")
    assert bench.gateway.reports.counters.rejected["overloaded"] == 1
    assert not any(bench.gateway.reports.counters.delivered.values())
    held.release()


async def a_quota_is_held(bench: Bench, door: Door) -> None:
    """A stream more than the caller may have is not made, and existing ones are written to."""
    grant = {"actions": ["read", "write", "manage"], "streams": "orders*", "streams_max": 1}
    vars(bench.policy)["principal"] = Principal("tester", [Grant.from_value(grant)])
    bench.policy.on_changed()
    rejected = bench.gateway.reports.counters.rejected
    said = await door.publish(bench, "orders2")
    refusal = "-OOM the quota of" if isinstance(door, Redis) else "quota of"
    assert f"{refusal} 'orders*' is used up: 1 streams" in said
    assert rejected["quota_exceeded"] >= 1
    assert bench.engine.figures().streams == 1
    before = rejected["quota_exceeded"]
    await door.publish(bench, "orders")
    assert rejected["quota_exceeded"] == before


async def full_memory_is_said(bench: Bench, door: Door) -> None:
    """Nothing is added, and once there is room again it is."""
    engine: Any = bench.engine
    rejected, usual = bench.gateway.reports.counters.rejected, vars(engine.memory).copy()
    vars(engine.memory).update(bytes_max=1, _full_at=0)
    added = bench.engine.figures().appended
    said = await door.publish(bench, "orders")
    oom = f"{'-' if isinstance(door, Redis) else ''}OOM command not allowed"
    assert "memory_full" in said or oom in said
    before = rejected["memory_full"]
    assert before >= 1
    assert bench.engine.figures().appended == added
    vars(engine.memory).update(usual)
    await door.publish(bench, "orders")
    assert rejected["memory_full"] == before


async def a_rate_is_held(bench: Bench, door: Door) -> None:
    """What is beyond it is refused, takes nothing and gives nothing, until it is paid."""
    counters, limiter = bench.gateway.reports.counters, bench.gateway.limits.rates
    assert limiter is not None
    meter = Meter(limiter, "tester", limiter.rates)
    meter.take_requests(BURST - bench.taken()[0])
    said = await door.read(bench, "orders")
    assert "rate_limited" in said or "the limit of requests is reached" in said
    # An EventSource gives up at 429.
    assert not isinstance(door, Sse) or (said[:3] == "200" and "event: end" in said)
    assert counters.rejected["rate_limited"] >= 1
    assert bench.taken()[0] == BURST
    assert not any(counters.delivered.values())


@asynccontextmanager
async def _staying(bench: Bench, door: Door) -> AsyncIterator[None]:
    """While one more stays, whom others do not end."""
    staying = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        one = tasks.create_task(door.stay(bench, staying.set))
        await staying.wait()
        yield
        assert not one.done()
        one.cancel()


async def _is_refused(bench: Bench, code: str, asked: Awaitable[str], words: str) -> str:
    """What is said: the code where a door has codes, and these words. It counts, and nothing is delivered."""
    counters = bench.gateway.reports.counters
    before, delivered = counters.rejected[code], counters.delivered.copy()
    said = await asked
    assert code in said or "ERR " in said, said
    assert words in said or "event: end" in said, said
    assert (counters.rejected[code], counters.delivered) == (before + 1, delivered)
    return said


async def waiting_reads_are_bounded(bench: Bench, door: Door) -> None:
    """One that has something to give does not wait; one that leaves makes room, and holds nothing."""
    waits = bench.gateway.waits
    for _ in range(2):
        async with _staying(bench, door):
            assert isinstance(door, Sse) or LONG in await door.wait(bench, "0")
            await _is_refused(bench, "too_many_waiters", door.wait(bench), _TOO_MANY)
            assert waits.count == 1
        assert await bench.come(lambda: not (waits.count or waits.each or bench.gateway.limits.connections))


async def waiting_reads_of_groups_are_bounded(bench: Bench, door: Door) -> None:
    """The same. The connection of a Redis client goes on."""
    async with _staying(bench, door):
        assert LONG in await door.wait_for_group(bench)
        await _is_refused(bench, "too_many_waiters", door.wait_for_group(bench), _TOO_MANY)
        read = ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "orders", ">")
        assert not isinstance(door, Redis) or "PONG" in await door.send(bench, read, ("PING",))
        assert bench.engine.figures().waiting == 1


async def waiting_reads_are_shared(bench: Bench, door: Door) -> None:
    """Another caller waits meanwhile."""
    async with _staying(bench, door):
        await _is_refused(bench, "too_many_waiters", door.wait(bench), _ONE_EACH)
        _be_another(bench)
        async with _staying(bench, door):
            assert await bench.come(lambda: bench.gateway.waits.count == 2)


async def connections_are_bounded(bench: Bench, door: Door) -> None:
    """One that leaves makes room, and holds nothing."""
    words = "-ERR max number of clients reached" if isinstance(door, Redis) else "see the setting sockets_max"
    for _ in range(2):
        async with _staying(bench, door):
            said = await _is_refused(bench, "too_many_sockets", door.stay(bench, lambda: None), words)
            assert not isinstance(door, WebSocket) or "retry-after: 30" in said.lower()
        assert await bench.come(lambda: not (bench.connections or bench.gateway.limits.connections))


async def connections_are_shared(bench: Bench, door: Door) -> None:
    """Another caller has its own."""
    async with _staying(bench, door):
        await _is_refused(bench, "too_many_sockets", door.stay(bench, lambda: None), _ONE_EACH)
        _be_another(bench)
        async with _staying(bench, door):
            assert await bench.come(lambda: len(bench.gateway.limits.connections) == 2)


def _be_another(bench: Bench) -> None:
    """Have all who come from now on be another caller."""
    vars(bench.policy)["principal"] = Principal("another", bench.policy.principal.grants)
    bench.policy.on_changed()


async def revocation_ends_it(bench: Bench, door: Door) -> None:
    """What is open is closed."""
    said = await _ended(bench, door, lambda: bench.policy.revoke(bench.gateway.access.sessions))
    assert any(word in said for word in ("401 ", "4500", "revoked", "closed")), said


async def draining_ends_it(bench: Bench, door: Door) -> None:
    """What is open ends with the reason, and what comes next is refused with it."""
    if door.name != "multi-exec":
        said = await _ended(bench, door, lambda: door.stop(bench))
        assert any(word in said for word in ("draining", "shutting down", "goaway", "closed")), said
        assert said.startswith("-") or door.name != "RESP blocked"
    else:
        door.stop(bench)
    if not isinstance(door, WebSocket | Redis | JoiningDoor):
        assert "draining" in (said := await door.read(bench, "orders")), said


async def _ended(bench: Bench, door: Door, end: Callable[[], None]) -> str:
    """What is said at the end of what stays open."""
    staying = asyncio.Event()
    open_one = asyncio.create_task(door.stay(bench, staying.set))
    async with asyncio.timeout(LATE_S):
        await staying.wait()
        end()
        said = await open_one
    assert await bench.come(lambda: not bench.engine.figures().waiting)
    return said


# ---- the table


class Concern(NamedTuple):
    """A check, what implements the concern, why a door may have none of it, and with which limits."""

    check: Check
    by: tuple[Callable[..., Any], ...]
    without: Mapping[str, str] = {}
    limits: Mapping[str, int] = {}


_ONE_TURN: Final = "it is one turn: none of it stays open"
_PUSHED: Final = "what is pushed is not counted, see docs/limits.md: credit and the reader's pace bound it"
_ASKS: Final = "events are asked for, without a body"
_NO_TRACE: Final = "Redis's protocol has no place for `traceparent`"
_NO_GROWTH: Final = "what is acknowledged takes no room"
_ONE_ID: Final = "it is answered with an ID or some, which tests/app/test_plans.py counts"


def _joining(reason: str) -> dict[str, str]:
    """Why no request that joins others has any of a concern."""
    return dict.fromkeys([door.name for door in JOINING_DOORS], reason)


def _only(names: str, reason: str) -> dict[str, str]:
    """Why no other door has any of a concern."""
    return {door.name: reason for door in DOORS if door.name not in names.split(", ")}


_SOCKETS: Final = "websocket, RESP, RESP MULTI, RESP blocked"
_WAITING: Final = "http, asgi, durable, command, pipeline"
_NO_WAIT: Final = "it does not wait, or not for groups, or is counted as a connection"
_OF_HTTP: Final = "descriptors bound its connections"
_TOO_MANY: Final = "too many reads wait already: try again later"
_ONE_EACH: Final = "one caller may have at most 1 at a time: see the setting per_principal_max"
_ONE: Final = {"per_principal_max": 1}
CONCERNS: Final = (
    Concern(each_stream_is_asked_for, (Principal.may,)),
    Concern(requests_are_counted, (Meter.take_requests,)),
    Concern(bytes_in_are_counted, (Meter.take_requests,), {"sse": _ASKS}),
    Concern(
        bytes_out_are_counted, (Meter.charge,), {"sse": _PUSHED, "websocket": _PUSHED, **_joining(_ONE_ID)}
    ),
    Concern(
        refusals_are_counted, (Counters.refuse,), _joining("it has one refusal, of each stream's concern")
    ),
    Concern(answers_are_counted_and_logged, (Exchanges.note_end, RespSession.note_end)),
    Concern(deliveries_are_counted, (Counters.deliver,), _joining("nothing is delivered")),
    Concern(faults_are_counted, (Counters.refuse,)),
    Concern(
        changes_are_audited,
        (Work.audit,),
        {
            "sse": "events change nothing",
            **_joining("entries that are added or acknowledged are not audited"),
        },
    ),
    Concern(
        publishing_is_traced,
        (Tracer.sending,),
        {
            "sse": _ASKS,
            **dict.fromkeys(("RESP", "RESP MULTI", "RESP blocked"), _NO_TRACE),
            "publishing together": "with `traceparent` it goes alone, as at the door http",
            "acknowledging together": "an acknowledgement has no span",
            "appending together": "neither has one of these",
        },
    ),
    Concern(
        group_reads_are_traced,
        (Reports.trace_read,),
        {**_joining("it reads nothing"), "durable": "the protocol has no groups"},
    ),
    Concern(
        memory_is_bounded,
        (Pool.reserve,),
        {
            "sse": "its pieces are as short as there is room for: tests/app/test_unread_answers.py",
            **_joining(_ONE_ID),
        },
    ),
    Concern(a_quota_is_held, (Quota,), {"sse": _ASKS, "acknowledging together": _NO_GROWTH}),
    Concern(full_memory_is_said, (Memory,), {"sse": _ASKS, "acknowledging together": _NO_GROWTH}),
    Concern(
        a_rate_is_held,
        (Meter.take_requests,),
        {"websocket": "its handshake is refused; of its frames tests/app/test_rates.py has more"},
    ),
    Concern(
        waiting_reads_are_bounded,
        (Waits.enter,),
        _only(f"{_WAITING}, sse, RESP blocked", _NO_WAIT),
        {"waiters_max": 1},
    ),
    Concern(
        waiting_reads_of_groups_are_bounded,
        (Waits.enter,),
        _only("http, asgi, command, pipeline, RESP blocked", _NO_WAIT),
        {"waiters_max": 1},
    ),
    Concern(waiting_reads_are_shared, (Shares.enter,), _only(_WAITING, _NO_WAIT), _ONE),
    Concern(
        connections_are_bounded,
        (Port.refusal_of_connection, Sockets.answer),
        _only(_SOCKETS, _OF_HTTP),
        {"sockets_max": 1},
    ),
    Concern(connections_are_shared, (Shares.enter,), _only(f"{_SOCKETS}, sse", _OF_HTTP), _ONE),
    Concern(revocation_ends_it, (OpenSessions.enter,), {"multi-exec": _ONE_TURN}),
    Concern(draining_ends_it, (Life.drain,)),
)


def _cells() -> list[Any]:
    return [
        pytest.param(concern, door, id=f"{concern.check.__name__}-{door.name}")
        for concern in CONCERNS
        for door in DOORS
        if door.name not in concern.without
    ]


def test_what_a_door_has_not_has_its_reason() -> None:
    """All other cells are checked below."""
    doors = {door.name for door in DOORS}
    assert all({*concern.without} < doors and all(concern.without.values()) for concern in CONCERNS)


# What each has by itself, or the same code looks at for all: with a test of its own.
_OTHER_LIMITS: Final = (
    *("answer_bytes_max", "batch_entries_max", "body_bytes_max", "columns_count_max", "consumers_max"),
    *("count_max", "drain_s_max", "entry_bytes_max", "entry_fields_max", "groups_max", "head_bytes_max"),
    *("ids_max", "json_depth_max", "pipeline_commands_max", "rate_failures", "request_s_max"),
    *("request_streams_max", "stall_s_max", "streams_max", "wait_ms_max"),
)


def test_each_limit_of_the_settings_is_a_concern_or_has_a_test_of_its_own() -> None:
    """Those that `opened` sets, or a check fills, have no row with their name."""
    limits = {name for name in (*Settings.model_fields, *BOUNDS) if re.search("_max$|^rate_", name)}
    filled = {"buffer_bytes_max", "memory_bytes_max", "rate_bytes", "rate_requests"}
    assert limits == filled.union(_OTHER_LIMITS, *(concern.limits for concern in CONCERNS))


@pytest.fixture
async def bench(tmp_path: Path, concern: Concern) -> AsyncIterator[Bench]:
    async with filled(tmp_path, **concern.limits) as bench:
        yield bench


@pytest.mark.parametrize(("concern", "door"), _cells())
async def test_a_concern_holds_at_each_door(bench: Bench, concern: Concern, door: Door) -> None:
    """In the words of each protocol. A refusal is no error in the log."""
    with capture_logs() as lines:
        async with asyncio.timeout(2 * LATE_S):
            await concern.check(bench, door)
    assert concern.check is faults_are_counted or "error" not in [line["log_level"] for line in lines]
