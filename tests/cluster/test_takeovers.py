"""Which server gave an ID is said to that server alone: so a takeover is noted when there was one, and IDs by
the clock are those of its clock.
"""

from collections.abc import Sequence
from typing import Any, Final

import pytest

from engine import EngineProtocol, entries, ids
from engine.cluster import ClusterEngine, ServerAccess
from engine.cluster.keys import auxiliary_key, auxiliary_pattern
from engine.cluster.node import Node
from engine.cluster.routing import Lane
from engine.cluster.wire import IDENTITY, Words, ask
from engine.commands.durable_commands import AppendDurable, CreateDurable
from engine.commands.schedule_commands import AddScheduled, FireSchedule, NewSchedule, SetSchedule
from engine.commands.types import XAdd, XRange
from engine.ids import ID_MAX
from engine.recurrence import Rule
from engine.replies import Added, Entries
from tests.app.tenants.test_same_answers import COMMANDS
from tests.cluster.engines import TIMEOUT_S, opened
from tests.cluster.servers import Backend, BackendServer
from tests.cluster.test_lost_entries import Failover, read
from tests.cluster.test_same_commands import PAUSED, answers
from tests.engine.asking import reply_of, reply_to
from tests.waiting import until_async

BODY: Final = entries.body([("data", "1")])
# More than a stream remembers takeovers.
RUNS: Final = 20


def run_of(server: BackendServer) -> bytes:
    found: bytes = server.call("INFO", "server").partition(b"run_id:")[2].partition(b"\r\n")[0]
    return found


def clock_ms(backend: Backend) -> int:
    server = backend.servers[0] if hasattr(backend, "servers") else backend
    seconds, us = server.call("TIME")
    return int(seconds) * 1000 + int(us) // 1000


async def ids_of(engine: EngineProtocol, stream: str) -> Sequence[int]:
    found = await reply_to(engine, XRange(stream=stream, start=0, end=ID_MAX))
    return [one for one, _ in found.pairs()] if isinstance(found, Entries) else []


def marks(backend: Backend, stream: str) -> int:
    """How many takeovers the stream has seen."""
    return len((backend.call("HGET", auxiliary_key(stream, "m"), "t") or b"").split()) // 2


@pytest.fixture
async def node(server: BackendServer) -> Any:
    found = Node(server.address, ServerAccess(), TIMEOUT_S)
    found.start()
    yield found
    await found.close()


@pytest.mark.parametrize("lane", Lane)
@pytest.mark.parametrize("form", ["alone", "a transaction", "after ASK"])
async def test_each_connection_says_to_its_server_which_it_is(
    server: BackendServer, node: Node, lane: Lane, form: str
) -> None:
    """Of all that a node has, and however commands are sent."""
    found: list[Any] = []
    commands: Sequence[Words] = [("ECHO", IDENTITY)] * (2 if form == "a transaction" else 1)
    node.send(commands, lane, found.extend, asking=form == "after ASK")
    await until_async(lambda: len(found) == len(commands))
    assert set(found) == {run_of(server)}


async def test_the_connection_for_notifications_does_too(server: BackendServer, node: Node) -> None:
    found: list[Any] = []
    listener = node.listen(lambda: None, lambda _: None)
    listener.send(("ECHO", IDENTITY), found.append)
    await until_async(lambda: bool(found))
    assert found == [run_of(server)]
    await listener.close()


async def test_one_that_does_not_know_its_server_refuses_to_name_it(server: BackendServer) -> None:
    with pytest.raises(AssertionError):
        await ask(server.address, ServerAccess(), ("ECHO", IDENTITY), TIMEOUT_S)
    assert await ask(server.address, ServerAccess(), ("ECHO", "a"), TIMEOUT_S) == b"a"


async def test_no_command_is_taken_for_a_takeover(server: BackendServer) -> None:
    """Each of the table. Of each stream, the server that gave its IDs is the one that there is."""
    commands = [*COMMANDS, *PAUSED]
    given, taken_over = set(), {}
    async with opened(server) as engine:
        for words in commands:
            await answers(engine, [words])
            for key in server.call("KEYS", auxiliary_pattern("m")):
                primary, mark = server.call("HMGET", key, "p", "t")
                given.add(primary)
                if mark is not None:
                    taken_over[key] = words
    assert taken_over == {}
    assert given - {None} == {run_of(server)}


async def test_ids_are_those_of_the_clock_while_schedules_run(
    backend: Backend, engine: ClusterEngine
) -> None:
    """Beside what is published; then the stream and a reader know a takeover from none."""
    later = [NewSchedule("a", BODY, Rule(in_ms=0))]
    hourly = SetSchedule(stream="s", schedule=NewSchedule("b", BODY, Rule(every_ms=3_600_000)))
    ways = [
        XAdd(stream="s", bodies=[BODY]),
        AddScheduled(stream="s", add=XAdd(stream="s", bodies=[BODY]), later=later),
        FireSchedule(stream="s", name="b"),
    ]
    await reply_to(engine, hourly)
    known = 0
    for _ in range(RUNS):
        for command, more in zip(ways, (1, 2, 1), strict=True):
            before_ms = clock_ms(backend)
            await reply_to(engine, command)
            await until_async(lambda known=known, more=more: backend.call("XLEN", "s") >= known + more)
            found, after_ms = await ids_of(engine, "s"), clock_ms(backend)
            assert all(before_ms <= ids.ms_of(one) <= after_ms for one in found[known:])
            known = len(found)
    assert marks(backend, "s") == 0
    failover = Failover(backend)
    lost = await reply_of(engine, Added, XAdd(stream="s", bodies=[BODY]))
    failover.take_over()
    for command in ways:
        await reply_to(engine, command)
    await until_async(lambda: backend.call("XLEN", "s") >= known + 4)
    assert marks(backend, "s") == 1
    gap = await read(engine, lost.ids[0])
    assert gap is not None
    assert gap.gap is not None
    assert gap.gap.reason == "failover"


async def test_durable_streams_name_their_server(backend: Backend, engine: ClusterEngine) -> None:
    """Their scripts are their own."""
    kind = "application/json"
    await reply_to(engine, CreateDurable(stream="d", media=kind, config=b"c"))
    for name in ("a", "b", "c"):
        await reply_to(engine, AppendDurable(stream="d", kind=kind, bodies=[BODY]))
        later = [NewSchedule(name, BODY, Rule(in_ms=0))]
        await reply_to(engine, AddScheduled(stream="d", later=later))
    await until_async(lambda: backend.call("XLEN", "d") == 6)
    assert marks(backend, "d") == 0
