"""A caller with hundreds of connections has the share of a few: its requests wait for those of others."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pytest

from app.doors.websocket.connection import Hub
from app.gateway import Gateway
from app.live.fair_queue import FRAMES_A_CYCLE_MAX, REQUESTS_A_CYCLE_MAX, TASK_COST, ConnectionTurn, FairQueue
from app.live.turns import CycleBudget
from app.settings import Settings
from tests.app.resp.conftest import until
from tests.app.test_time_bounds import PUBLISH, UPGRADE, TimedWorld, timed_world
from tests.engine.clocks import HandClock, settle

READ: Final = b"GET /v1/streams/s/entries HTTP/1.1\r\nHost: localhost\r\n\r\n"
# Its handler awaits more than the engine.
READ_THAT_WAITS: Final = READ.replace(b"entries ", b"entries?after=$&wait=1 ")
BODY: Final = b'{"fields":{"a":"1"}}'
# Requests of a caller with more connections than that which are begun in a cycle.
FEW: Final = 2
GREEDY: Final = 6 * FEW
OTHER: Final = "192.0.2.2"


class Connections:
    """Connections of one caller, each with a request, and the numbers of those that were served."""

    def __init__(self, queue: FairQueue, caller: str, count: int) -> None:
        self.served: list[int] = []
        self.turns: list[ConnectionTurn] = []
        for number in range(count):
            self.turns.append(ConnectionTurn(queue, caller, self._asking(number)))

    def _asking(self, number: int) -> Callable[[], None]:
        return lambda: self.ask(number)

    def ask(self, number: int) -> None:
        """A request has arrived, or has its turn."""
        if self.turns[number].may_go_on():
            self.served.append(number)


async def test_few_connections_are_not_counted() -> None:
    """Each request of theirs is begun where it arrives; with one connection more, that number a cycle."""
    clock = HandClock()
    queue = FairQueue(CycleBudget(clock.monotonic), REQUESTS_A_CYCLE_MAX)
    few = Connections(queue, "a", REQUESTS_A_CYCLE_MAX)
    for _ in range(2):
        for number in range(REQUESTS_A_CYCLE_MAX):
            few.ask(number)
    assert len(few.served) == 2 * REQUESTS_A_CYCLE_MAX
    many = Connections(queue, "b", REQUESTS_A_CYCLE_MAX + 1)
    for number in range(REQUESTS_A_CYCLE_MAX + 1):
        many.ask(number)
    assert many.served == list(range(REQUESTS_A_CYCLE_MAX))
    await settle()
    assert many.served == list(range(REQUESTS_A_CYCLE_MAX + 1))


async def test_few_connections_with_long_work_make_no_long_cycle() -> None:
    """Each piece takes 5 ms: one of each caller is begun in a cycle, however few connections it has."""
    clock = HandClock()
    queue = FairQueue(CycleBudget(clock.monotonic), REQUESTS_A_CYCLE_MAX)
    begun, waited_s = list[float](), list[float]()

    def work(number: int) -> None:
        if greedy[number].may_go_on():
            clock.pass_ms(0, 5)
            begun.append(clock.monotonic())
            asyncio.get_running_loop().call_soon(work, number)

    def publish(asked_s: float) -> None:
        if other.may_go_on():
            waited_s.append(clock.monotonic() - asked_s)

    greedy = [ConnectionTurn(queue, "greedy", partial(work, number)) for number in range(20)]
    for number in range(20):
        work(number)
    for _ in range(50):
        asked_s, before = clock.monotonic(), len(begun)
        other = ConnectionTurn(queue, "other", partial(publish, asked_s))
        publish(asked_s)
        await asyncio.sleep(0)
        other.leave()
        assert len(begun) - before <= 2
    assert len(begun) > 25
    assert len(waited_s) == 50
    assert max(waited_s) < 0.02
    for turn in greedy:
        turn.leave()


async def test_connections_take_turns() -> None:
    """What arrives does not pass what waits, nor do those of one caller hold up another."""
    clock = HandClock()
    queue = FairQueue(CycleBudget(clock.monotonic), FEW)
    greedy, other = Connections(queue, "greedy", FEW + 2), Connections(queue, "other", 1)
    for number in range(FEW + 2):
        greedy.ask(number)
    greedy.ask(0)
    other.ask(0)
    assert (greedy.served, other.served) == ([0, 1], [0])
    await settle()
    assert greedy.served == [0, 1, 2, 3, 0]


async def test_a_long_cycle_begins_one_request_of_each_caller() -> None:
    clock = HandClock()
    queue = FairQueue(CycleBudget(clock.monotonic), FEW)
    greedy, other = Connections(queue, "greedy", FEW + 1), Connections(queue, "other", FEW + 1)
    greedy.ask(0)
    clock.pass_ms(0, 5)
    greedy.ask(1)
    other.ask(0)
    other.ask(1)
    assert (greedy.served, other.served) == ([0], [0])
    await settle()
    assert (greedy.served, other.served) == ([0, 1], [0, 1])


async def test_a_connection_that_leaves_is_not_counted() -> None:
    """Nor one that is another caller's by now."""
    clock = HandClock()
    queue = FairQueue(CycleBudget(clock.monotonic), FEW)
    caller = Connections(queue, "a", FEW + 2)
    caller.turns[FEW].leave()
    caller.turns[FEW].leave()
    caller.turns[FEW + 1].pass_to("b")
    for number in (*range(FEW), *range(FEW), FEW, FEW + 1):
        caller.ask(number)
    assert len(caller.served) == 2 * FEW + 2


async def test_requests_have_their_share_beside_frames() -> None:
    """A caller whose sockets always have frames takes no time of a caller with many connections."""
    clock = HandClock()
    gateway = Gateway(Settings(), clock)
    frames, requests = Hub(gateway).frames.flow("sockets"), gateway.limits.requests
    handled = list[int]()

    def handle_frame() -> None:
        frames.note_handled()
        clock.pass_ms(0, 1)
        handled.append(len(balancer.served))
        frames.wait(handle_frame)

    balancer = Connections(requests, "balancer", 4 * REQUESTS_A_CYCLE_MAX)
    for _ in range(FRAMES_A_CYCLE_MAX):
        frames.wait(handle_frame)
    await asyncio.sleep(0)
    for number in range(4 * REQUESTS_A_CYCLE_MAX):
        balancer.ask(number)
    for _ in range(4):
        await asyncio.sleep(0)
    assert len(balancer.served) == 4 * REQUESTS_A_CYCLE_MAX
    assert handled[-1] > 0


async def test_a_connection_that_fails_takes_no_turn_of_another() -> None:
    """Nor of another caller, nor one of its own later on."""
    failures = list[str]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, failure: failures.append(str(failure["exception"])))
    queue = FairQueue(CycleBudget(HandClock().monotonic), FEW)

    def fail() -> None:
        if callers[0].turns[FEW].has_turn:
            raise RuntimeError("a bug")

    callers = [Connections(queue, name, GREEDY) for name in ("a", "b")]
    callers[0].turns[FEW].leave()
    callers[0].turns[FEW] = ConnectionTurn(queue, "a", fail)
    for number in range(GREEDY):
        for caller in callers:
            caller.ask(number)
    await settle()
    assert failures == ["a bug"]
    assert callers[1].served == list(range(GREEDY))
    assert callers[0].served == [number for number in range(GREEDY) if number != FEW]
    assert not callers[0].turns[FEW].has_turn


# ---- requests


@pytest.fixture
async def world() -> AsyncIterator[TimedWorld]:
    async with timed_world() as world:
        world.app.gateway.limits.requests.a_cycle_max = FEW
        yield world


async def connected(world: TimedWorld) -> list[Any]:
    """The gateway's ends of many connections of one caller, and of one of another."""
    for _ in range(GREEDY + 1):
        await world.connect()
    connections: list[Any] = list(world.state.connections)
    connections[-1].client = (OTHER, 4_711)
    return connections


@pytest.mark.parametrize("asked", [READ, PUBLISH + BODY], ids=["a read", "what joins others"])
async def test_requests_of_one_caller_are_begun_in_turn(world: TimedWorld, asked: bytes) -> None:
    connections = await connected(world)
    for connection in connections:
        # The parser takes a connection's first request.
        connection.data_received(asked)
    await until(lambda: world.answers == GREEDY + 1)
    # What was answered last counts in its own cycle.
    await asyncio.sleep(0)
    for connection in connections:
        connection.data_received(asked)
    begun = [not connection.turn.is_waiting for connection in connections]
    assert begun == [True] * FEW + [False] * (GREEDY - FEW) + [True]
    await until(lambda: world.answers == 2 * (GREEDY + 1))


async def test_handshakes_of_one_address_are_begun_in_turn(world: TimedWorld) -> None:
    """Before there is a request, nothing else is known of a caller."""
    world.app.gateway.limits.requests.a_cycle_max = FEW * TASK_COST
    connections = await connected(world)
    for connection in connections[:-1]:
        connection.data_received(UPGRADE)
    begun = [connection for connection in world.state.connections if connection not in connections]
    assert len(begun) == FEW
    opened = world.app.gateway.reports.counters.connections
    await until(lambda: opened["websocket"] == GREEDY)


@pytest.mark.parametrize(
    "request_",
    [READ.removesuffix(b"\r\n") + b"X-Odd: 1\r\n\r\n", READ_THAT_WAITS],
    ids=["the parser", "begun in a task"],
)
async def test_requests_with_tasks_count_as_several(world: TimedWorld, request_: bytes) -> None:
    """All tasks that begin run in the next cycle, however long that takes."""
    *connections, other = await connected(world)
    # The parser takes the first request of all.
    other.data_received(READ)
    await until(lambda: world.answers == 1 and not world.state.tasks)
    world.app.gateway.limits.requests.a_cycle_max = FEW * TASK_COST
    for number, connection in enumerate(connections):
        # A head that was seen before needs no task.
        connection.data_received(request_.replace(b"X-Odd: 1", b"X-Odd: %d" % number))
    assert len(world.state.tasks) == FEW


@pytest.mark.parametrize("header", [b"", b"X-Odd: 1\r\n"], ids=["a head that was seen", "the parser"])
async def test_requests_that_were_sent_ahead_are_begun_in_turn(world: TimedWorld, header: bytes) -> None:
    """Also those that the parser has read already."""
    connections, ahead = (await connected(world))[:-1], 10
    request = READ.removesuffix(b"\r\n") + header + b"\r\n"
    for connection in connections:
        connection.data_received(request * ahead)
    counts = [world.answers]
    while counts[-1] < ahead * GREEDY:
        await asyncio.sleep(0)
        counts.append(world.answers)
    # Those that were begun in different cycles may end in the same one.
    assert max(after - before for before, after in pairwise(counts)) <= 2 * FEW


async def test_requests_that_wait_are_whole(world: TimedWorld) -> None:
    """In pieces of any size, with any number sent ahead."""
    connections = (await connected(world))[:-1]
    half = len(BODY) // 2
    for piece in (PUBLISH[:20], PUBLISH[20:], BODY[:half], BODY[half:] + PUBLISH + BODY + READ[:9], READ[9:]):
        for connection in connections:
            connection.data_received(piece)
    await until(lambda: world.answers == 3 * GREEDY)
    assert world.engine.figures().appended == 2 * GREEDY
