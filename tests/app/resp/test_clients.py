"""Real Redis clients against a gateway: a worker with each, `redis-cli --pipe`, redis-benchmark.

The clients are those of `workers.py`; the gateway is a process of its own.
"""

import asyncio
import os
import pty
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial

import pytest
import redis

from tests.app.resp.workers import HOST, KINDS, KINDS_BY_HAND, Open, Worker
from tests.proof.machine import needs
from tests.server import Server, free_port
from tests.waiting import completed

BLOCK_MS = 20_000
LATE_S = 30.0
POLL_S = 0.005


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    with Server(tmp_path_factory.mktemp("clients") / "data", "--resp-listen", str(port)):
        yield port


@pytest.fixture
def gateway(port: int) -> Iterator[redis.Redis]:
    """What looks on from the side, at an empty gateway."""
    with redis.Redis(HOST, port, protocol=2, decode_responses=True) as client:
        client.flushall()
        yield client


async def has_blocked(gateway: redis.Redis, number: int) -> None:
    """Wait until this number of clients is blocked."""
    async with asyncio.timeout(LATE_S):
        while (await asyncio.to_thread(gateway.info, "clients"))["blocked_clients"] != number:  # noqa: ASYNC110 - another process
            await asyncio.sleep(POLL_S)


async def crash_while_reading(worker: Worker, gateway: redis.Redis) -> None:
    """Lose the connection of a worker that waits for entries."""
    waiting = asyncio.create_task(worker.read("jobs", "ann", ">", BLOCK_MS))
    await has_blocked(gateway, 1)
    await worker.crash()
    waiting.cancel()
    await asyncio.wait([waiting], timeout=LATE_S)


def no_library(program: str) -> str | None:
    """Why this client cannot run here; None if it can."""
    asks = {"php": ("-r", "exit(extension_loaded('redis') ? 0 : 1);"), "ruby": ("-e", "require 'redis'")}[
        program
    ]
    if shutil.which(program) is None:
        return f"needs {program} with its client of Redis"
    ran = subprocess.run([program, *asks], capture_output=True, timeout=LATE_S, check=False)
    return None if ran.returncode == 0 else f"needs the client of Redis for {program}"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_worker_crashes_and_goes_on(kind: str, port: int, gateway: redis.Redis) -> None:
    """It publishes, reads, waits, acknowledges; loses its connection, reads on; another claims."""
    await _crash_and_go_on(KINDS[kind], port, gateway)


@pytest.mark.parametrize(
    "program", [pytest.param(one, marks=needs(partial(no_library, one))) for one in KINDS_BY_HAND]
)
async def test_a_worker_of_another_language(program: str, port: int, gateway: redis.Redis) -> None:
    """The same with a client that the gate does not install."""
    await _crash_and_go_on(KINDS_BY_HAND[program], port, gateway)


async def _crash_and_go_on(open_worker: Open, port: int, gateway: redis.Redis) -> None:
    async with open_worker(port) as boss:
        first, second = [await boss.publish("jobs", item) for item in ("äpple", "pear")]
        await boss.create_group("jobs")
        async with open_worker(port) as ann:
            assert await ann.read("jobs", "ann", ">") == [(first, "äpple"), (second, "pear")]
            assert await ann.acknowledge("jobs", first) == 1
            assert await ann.read("jobs", "ann", ">") == []
            assert await ann.read("jobs", "ann", ">", 1) == []
            waiting = asyncio.create_task(ann.read("jobs", "ann", ">", BLOCK_MS))
            await has_blocked(gateway, 1)
            third = await boss.publish("jobs", "plum")
            assert await waiting == [(third, "plum")]
            await crash_while_reading(ann, gateway)
        await has_blocked(gateway, 0)
        fourth = await boss.publish("jobs", "fig")
        async with open_worker(port) as ann:
            assert await ann.read("jobs", "ann", "0") == [(second, "pear"), (third, "plum")]
            assert await ann.acknowledge("jobs", second) == 1
            assert await ann.read("jobs", "ann", ">") == [(fourth, "fig")]
        async with open_worker(port) as bob:
            assert await bob.claim("jobs", "bob") == [(third, "plum"), (fourth, "fig")]
            assert await bob.read("jobs", "ann", "0") == []
            assert [await bob.acknowledge("jobs", entry_id) for entry_id in (third, fourth, first)] == [
                1,
                1,
                0,
            ]
            assert await bob.pending("jobs") == 0


@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_redis_cli_pipes(protocol: str, port: int, gateway: redis.Redis) -> None:
    """`--pipe`: commands from a file, replies counted, refusals shown."""
    commands = [["XADD", "jobs", "*", "item", str(number)] for number in range(1_000)]
    commands += [["XADD", "jobs", "1-1", "item", "late"], ["XLEN", "jobs"]]
    raw = "".join(
        f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words) for words in commands
    )
    ran = subprocess.run(
        ["redis-cli", protocol, "-p", str(port), "--pipe"],
        input=raw.encode(),
        capture_output=True,
        timeout=LATE_S,
        check=False,
    )
    assert ran.returncode == 1, "one was refused"
    assert b"errors: 1, replies: 1002" in ran.stdout
    assert gateway.xlen("jobs") == 1_000


@pytest.mark.parametrize("options", [(), ("-3",), ("-P", "16"), ("--threads", "2")])
def test_redis_benchmark_runs(options: tuple[str, ...], port: int, gateway: redis.Redis) -> None:
    """All its commands are run."""
    ran = completed(
        [
            "redis-benchmark",
            "-p",
            str(port),
            *options,
            "-q",
            "-n",
            "640",
            "-c",
            "8",
            "XADD",
            "jobs",
            "*",
            "a",
            "b",
        ],
        timeout=LATE_S,
    )
    assert (ran.returncode, "requests per second" in ran.stdout) == (0, True), ran.stderr
    assert gateway.xlen("jobs") == 640


class Terminal:
    """redis-cli as a person uses it: its prompt, what is typed, what it shows."""

    def __init__(self, port: int, *options: str) -> None:
        self._leader, follower = pty.openpty()
        environment = os.environ | {"TERM": "dumb", "REDISCLI_HISTFILE": "/dev/null"}
        program = ["redis-cli", *options, "-p", str(port)]
        self._process = subprocess.Popen(
            program, stdin=follower, stdout=follower, stderr=follower, env=environment
        )
        os.close(follower)
        # The second one inside a transaction.
        self._prompts = tuple(f"{HOST}:{port}{state}> ".encode() for state in ("", "(TX)"))
        self._shown()

    def type(self, line: str) -> str:
        """Type a line; what stands above the next prompt."""
        os.write(self._leader, line.encode() + b"\n")
        return self._shown()

    def _shown(self) -> str:
        shown, late_s = b"", time.monotonic() + LATE_S
        # A terminal that understands nothing is shown the prompt alone.
        while not shown.endswith(self._prompts):
            assert time.monotonic() < late_s, shown
            if select.select([self._leader], [], [], POLL_S)[0]:
                shown += os.read(self._leader, 1 << 16)
        return shown.decode().replace("\r\n", "\n")

    def end(self) -> int:
        """Type `quit`; the exit code."""
        os.write(self._leader, b"quit\n")
        code = self._process.wait(LATE_S)
        os.close(self._leader)
        return code


@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_redis_cli_at_a_terminal(protocol: str, port: int, gateway: redis.Redis) -> None:
    """It shows replies, errors, transactions and help, and goes on after each."""
    terminal = Terminal(port, protocol)
    assert '"5-1"' in terminal.type("XADD jobs 5-1 item 'red apple'")
    assert '"red apple"' in terminal.type("XRANGE jobs - +")
    assert "(error) ERR unknown command 'SET'" in terminal.type("SET a b")
    assert "(nil)" in terminal.type("XREAD BLOCK 1 STREAMS jobs $")
    assert "OK" in terminal.type("MULTI")
    assert "QUEUED" in terminal.type("XLEN jobs")
    assert "1) (integer) 1" in terminal.type("EXEC")
    assert "See docs/redis-clients.md." in terminal.type("help XADD")
    assert terminal.end() == 0
    assert gateway.xlen("jobs") == 1
