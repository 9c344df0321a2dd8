"""The pools of bytes: reservations, shares of callers, holders that are too slow."""

import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.live.budgets import FREE_BYTES, Budgets, Holder, Pool
from app.settings import Settings
from engine import EngineError, Memory
from tests.app.sockets import ANSWER_S_MAX, masked
from tests.app.test_time_bounds import UPGRADE
from tests.server import Server, free_port
from tests.waiting import until

MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Peer(Holder):
    def __init__(self, waiting: int = 0) -> None:
        self.left = waiting
        self.moved_bytes = 0
        self.closed = False

    def waiting(self) -> int:
        return self.left

    def moved(self) -> int:
        return self.moved_bytes

    def close(self) -> None:
        self.closed = True


def refusal_of(pool: Pool, caller: str, size: int) -> EngineError:
    with pytest.raises(EngineError) as caught:
        pool.reserve(caller, size)
    return caught.value


async def test_a_reservation_is_all_or_nothing_and_given_back() -> None:
    pool = Pool("buffer_bytes_max", 8 * MIB, Clock().monotonic)
    first = pool.reserve("a", MIB)
    pool.reserve("a", MIB)
    refusal = refusal_of(pool, "a", 1)
    assert (refusal.code, refusal.members) == ("overloaded", {"limit": "buffer_bytes_max"})
    assert refusal.redis.startswith("OVERLOADED not run: 1 bytes are needed, and this caller holds 2097152")
    assert pool.held_bytes == 2 * MIB
    first.release()
    first.release()
    assert pool.held_bytes == MIB
    pool.reserve("a", MIB)
    assert pool.figures.refused == 1


async def test_a_caller_has_a_quarter_or_one_reservation() -> None:
    pool = Pool("buffer_bytes_max", 8 * MIB, Clock().monotonic)
    large = pool.reserve("a", 5 * MIB)
    refusal_of(pool, "a", 1)
    pool.reserve("b", 2 * MIB)
    assert "all callers hold" in refusal_of(pool, "c", 2 * MIB).detail
    with pytest.raises(EngineError, match="OVERLOADED"):
        large.grow(7 * MIB)
    assert large.size == 5 * MIB
    large.grow(6 * MIB)
    assert pool.held_bytes == 8 * MIB


async def test_what_was_taken_meanwhile_makes_room() -> None:
    clock = Clock()
    pool = Pool("buffer_bytes_max", 4 * MIB, clock.monotonic)
    peer = Peer(waiting=MIB)
    held = pool.reserve("a", 4 * MIB, peer)
    held.keep(3 * MIB)
    assert pool.held_bytes == 3 * MIB
    pool.reserve("b", MIB)
    pool.reserve("c", 2 * MIB)
    assert held.size == MIB
    clock.now_s += 1
    peer.left = 0
    assert pool.figures.held_bytes == 3 * MIB
    held.keep(FREE_BYTES)
    assert held.size == 0


async def test_the_slowest_holders_of_a_crowded_pool_are_closed() -> None:
    """Not those that take enough, nor those whose answer is still made, nor more of them than it needs."""
    clock = Clock()
    pool = Pool("buffer_bytes_max", 8 * MIB, clock.monotonic)
    peers = {name: Peer(waiting=2 * MIB) for name in "abcd"}
    held = {name: pool.reserve(name, 2 * MIB, peer) for name, peer in peers.items()}
    for name in "abc":
        held[name].keep(2 * MIB)
    peers["a"].moved_bytes, peers["b"].moved_bytes, peers["c"].moved_bytes = FREE_BYTES, 10, 0
    clock.now_s += 4.9
    pool.look()
    assert not any(peer.closed for peer in peers.values())
    clock.now_s += 0.2
    pool.look()
    assert [name for name, peer in peers.items() if peer.closed] == ["c"]
    assert (pool.held_bytes, pool.figures.closed) == (6 * MIB, 1)


async def test_a_peer_that_waits_for_the_gateway_is_not_slow() -> None:
    """It has sent what it may, and its message is not handled yet."""
    clock = Clock()
    pool = Pool("buffer_bytes_max", MIB, clock.monotonic)
    handled, late = Peer(), Peer()
    first = pool.reserve("a", 7 * MIB // 8, handled)
    pool.reserve("b", MIB // 8, late).keep_waiting()
    first.keep_waiting()
    first.end_waiting()
    clock.now_s += 6
    pool.look()
    assert (handled.closed, late.closed) == (False, True)


@pytest.mark.parametrize(
    ("settings", "limit", "expected"),
    [
        ({}, None, (32 * MIB, 32 * MIB)),
        ({}, 1024 * MIB, (128 * MIB, 128 * MIB)),
        ({"fronts": 3}, 2048 * MIB, (64 * MIB, 64 * MIB)),
        ({"buffer_bytes_max": 50 * MIB}, 1024 * MIB, (50 * MIB, 50 * MIB)),
        ({"buffer_bytes_max": 1}, None, (8 * MIB, 24 * MIB)),
    ],
)
def test_the_pools_follow_the_memory_limit(
    settings: dict[str, Any], limit: int | None, expected: tuple[int, int]
) -> None:
    budgets = Budgets(Settings(**settings), Clock().monotonic)
    budgets.size(limit)
    assert (budgets.output.bytes_max, budgets.bodies.bytes_max) == expected


@pytest.mark.parametrize(
    ("settings", "held", "expected"),
    [
        ({}, 0, 8 * MIB),
        ({"fronts": 2}, 0, 128 << 10),
        ({"fronts": 2}, 8 * MIB, 128 << 10),
        ({"fronts": 2}, 8 * MIB + 1, 8 * MIB),
        ({"backend": "redis://127.0.0.1"}, 0, 128 << 10),
    ],
)
async def test_a_reply_that_another_process_makes_holds_its_bound_where_room_is_short(
    settings: dict[str, Any], held: int, expected: int
) -> None:
    """Otherwise a caller's readers of small entries would keep each other out while replies are made."""
    budgets = Budgets(Settings(**settings), Clock().monotonic)
    budgets.size(None)
    budgets.output.reserve("other", held)
    assert budgets.before_run(8 * MIB) == expected
    assert budgets.before_run(1) == 1


async def test_a_reply_that_is_longer_than_was_expected_is_counted_when_it_is_there() -> None:
    """What is in memory has no other way: the longest of those without a reservation are closed."""
    pool = Pool("buffer_bytes_max", 8 * MIB, Clock().monotonic)
    peers = [Peer() for _ in range(3)]
    held = [pool.reserve(str(number), MIB, peer) for number, peer in enumerate(peers)]
    held[0].extend(3 * MIB)
    held[1].extend(2 * MIB)
    held[1].extend(MIB)
    assert pool.held_bytes == 6 * MIB
    held[2].extend(4 * MIB)
    assert [peer.closed for peer in peers] == [False, False, True]
    assert pool.held_bytes == 5 * MIB


def test_buffers_are_not_counted_as_data() -> None:
    """Neither while they are held nor after, when the allocator keeps their memory."""
    memory = Memory(100 * MIB)
    memory.observe(40 * MIB)
    held = 0
    memory.buffers = lambda: held
    held = 90 * MIB
    memory.observe(130 * MIB)
    memory.observe(130 * MIB)
    assert (memory.used_bytes, memory.resident_bytes, memory.is_full) == (40 * MIB, 130 * MIB, False)


BODY = b'{"fields":{"a":"%b"}}' % (b"x" * 200_000)
WORD = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\na\r\n$150000\r\n"
FRAME = b'{"op":"publish","ref":1,"stream":"s","fields":{"a":"%b"}}' % (b"x" * 190_000)
# By door: the beginning of a long message, what comes then, its rest, its answer, and how it is refused.
DOORS = {
    "http": (
        b"POST /v1/streams/s/entries HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY),
        b"100 Continue\r\n\r\n",
        BODY,
        b"HTTP/1.1 201",
        [b"HTTP/1.1 503", b"retry-after: 1\r\n", b'"code":"overloaded"'],
    ),
    "resp": (WORD, b"", b"x" * 150_000 + b"\r\n", b"$", [b"-OVERLOADED not run: "]),
    # Its close frame has the code 4000.
    "websocket": (
        UPGRADE + masked(0x1, FRAME[:150_000], fin=False),
        b'"op":"hello"',
        masked(0x0, FRAME[150_000:]),
        b'"op":"ok"',
        [b"\x0f\xa0"],
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_long_message_has_room_or_is_refused_before_it_is_sent(tmp_path: Path, door: str) -> None:
    """With the end of its connection; small ones go on, and it has room once another was read."""
    begun, greeting, rest, answer, refusal = DOORS[door]
    resp_port, most = free_port(), len(BODY)
    sizes = {"buffer_bytes_max": 4 * most, "body_bytes_max": most, "entry_bytes_max": most}
    words = [f"--set={name}={value}" for name, value in {**sizes, "resp_listen": resp_port}.items()]
    with Server(tmp_path / "data", *words) as server, ExitStack() as stack:

        def send(data: bytes) -> socket.socket:
            address = ("127.0.0.1", resp_port if door == "resp" else server.port)
            link = stack.enter_context(socket.create_connection(address, ANSWER_S_MAX))
            link.sendall(data)
            return link

        first = send(begun)
        until(lambda: held(server) >= 3 * 150_000)
        refused = read(send(begun), None)
        assert all(part in refused for part in refusal), refused
        small = httpx.post(f"{server.url}/v1/streams/s/entries", json={"fields": {"a": "1"}})
        assert small.status_code == 201
        read(first, greeting)
        first.sendall(rest)
        assert answer in read(first, answer)
        assert answer in read(send(begun + rest), answer)
        assert held(server) == 0


def read(link: socket.socket, end: bytes | None) -> bytes:
    """What comes, up to this or to the end of the connection."""
    got = b""
    with suppress(ConnectionError):
        while (end is None or end not in got) and (piece := link.recv(1 << 16)):
            got += piece
    return got


def held(server: Server) -> float:
    """Bytes of bodies that are held."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return next(float(one.split()[-1]) for one in lines if 'weir_buffer_bytes{pool="bodies"}' in one)
