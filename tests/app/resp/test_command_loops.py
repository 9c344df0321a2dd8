"""Every loop over bytes or commands looks at the clock, before AUTH too, or is short for a reason."""

import ast
import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from app.auth.policy import TokenPolicy
from app.redis.queue import ITEMS_A_LOOK
from engine import Engine
from tests.app.conftest import app_on, calling
from tests.app.resp.conftest import TestedPort
from tests.engine.clocks import HandClock

ROOT: Final = Path(__file__).parent.parent.parent.parent
FILES: Final = (
    *("app/api/commands.py", "app/redis/bodies.py", "app/redis/queue.py"),
    *("app/doors/resp/codec.py", "app/doors/resp/connection.py", "app/doors/resp/session.py"),
)
COUNT: Final = 300

# Functions whose loops look at the clock, and after how many items at the latest.
LOOKING: Final = {
    "CommandQueue.in_slices": ITEMS_A_LOOK,
    "CommandQueue.write_some": 1,
    "RequestQueue._next_run": ITEMS_A_LOOK,
    "RequestQueue.results": COUNT,
    "RespConnection._has_command": COUNT,
    "RespConnection.go_on": 1,
    "RespSession._take_alike": 250,
    "RespSession.begin": 1,
    "_Walker.walk": 64,
    "_read_fast": 64,
}
_IN_SLICES: Final = "it goes through `in_slices`"
_A_RUN: Final = "a run has 1,000 commands at most"
_A_SLICE: Final = "once for each slice of `write_some`"
_THREAD: Final = "in a thread, but for bodies of at most 4,000 words"
SHORT: Final = {
    "CommandQueue._answer": _A_RUN,
    "CommandQueue._take_back": _A_RUN,
    "CommandQueue._write_each": _A_SLICE,
    "CommandQueue._write_rest": _A_SLICE,
    "CommandQueue.transact": f"{_IN_SLICES}; a transaction has 300 commands at most",
    "CommandRun.commands": _A_RUN,
    "CommandRun.outcomes": "`write_some` asks for one at a time",
    "RequestQueue._admit_each": _IN_SLICES,
    "RespSession.watch": "a client watches 1,000 streams at most",
    "_several": "once for each run",
    "each_added": "`write_some` asks for one at a time",
    "outcomes_in_pieces": "what was written in one slice",
    "parse_each": _THREAD,
    "parse_together": _THREAD,
    "split_inline": "a line has 64 KiB at most, and as many words as a command",
}


class WatchedClock(HandClock):
    """Notes which functions look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: Counter[str] = Counter()

    def monotonic(self) -> float:
        # A slice of time is a function in between.
        self.looks[sys._getframe(1).f_code.co_qualname] += 1  # noqa: SLF001 - who asks
        self.looks[sys._getframe(2).f_code.co_qualname] += 1  # noqa: SLF001 - as above
        return super().monotonic()


def functions_with_loops(file: str) -> Iterator[str]:
    def walk(node: ast.AST, name: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from walk(child, f"{name}.{child.name}" if name else child.name)
                continue
            if isinstance(child, ast.For | ast.AsyncFor | ast.While):
                yield name
            yield from walk(child, name)

    return walk(ast.parse((ROOT / file).read_text(encoding="utf-8")), "")


def test_each_loop_is_known() -> None:
    """It looks at the clock, or there is a reason why it need not."""
    found = {name for file in FILES for name in functions_with_loops(file)}
    assert found == {*LOOKING, *SHORT}


def command(*words: str) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join(b"$%d\r\n%b\r\n" % (len(w), w.encode()) for w in words))


ADD: Final = ["XADD", "s", "*", "a", "1"]
MIXED: Final = [*ADD[:1], "t", "*", "b", "2"], ["XLEN", "s"]


# What is sent, how many replies it has, and which functions look at the clock for it.
RESP: Final[dict[str, tuple[bytes, int, set[str]]]] = {
    "alike": (command(*ADD) * COUNT, COUNT, {"RespSession._take_alike", "RespConnection._has_command"}),
    "mixed": (
        b"".join(command(*row) for row in MIXED) * (COUNT // 2),
        COUNT,
        {"_read_fast", "RespSession.begin", "CommandQueue.write_some"},
    ),
    "inline": (b"XLEN s\r\n" * COUNT, COUNT, {"_Walker.walk", "RespSession.begin"}),
    "transaction": (
        command("MULTI") + command(*ADD) * COUNT + command("EXEC"),
        COUNT + 2,
        {"RespConnection.go_on", "CommandQueue.in_slices", "CommandQueue.write_some"},
    ),
    "before AUTH": (
        command("RESET") * COUNT,
        COUNT,
        {"RespConnection.go_on", "RespConnection._has_command"},
    ),
}
HTTP: Final = {"RequestQueue._next_run", "RequestQueue.results", "CommandQueue.in_slices"}


def looked_too_seldom(clock: WatchedClock, functions: set[str]) -> dict[str, int]:
    return {name: clock.looks[name] for name in functions if clock.looks[name] < COUNT // LOOKING[name]}


def test_each_loop_that_looks_is_run() -> None:
    assert {*LOOKING} == HTTP.union(*(functions for _, _, functions in RESP.values()))


@pytest.mark.parametrize("kind", RESP)
async def test_loops_at_the_port_look_at_the_clock(kind: str, open_port: Callable[..., Any]) -> None:
    clock = WatchedClock()
    policy = TokenPolicy([], lambda: 0.0) if kind == "before AUTH" else None
    port: TestedPort = await open_port(policy, clock=clock)
    sent, replies, functions = RESP[kind]
    wire = await port.connect()
    wire.writer.write(sent)
    found = [await wire.reply() for _ in range(replies)]
    assert not any(isinstance(one, str) and one.startswith("-") for one in found)
    assert looked_too_seldom(clock, functions) == {}


async def test_loops_of_a_pipeline_look_at_the_clock(engine: Engine) -> None:
    clock = WatchedClock()
    app = app_on(engine, clock=clock)
    rows = [*MIXED] * (COUNT // 2)
    async with calling(app) as http:
        answer = await http.post("/v1/commands/pipeline", content=orjson.dumps(rows))
    assert len(answer.json()) == COUNT
    assert looked_too_seldom(clock, HTTP) == {}


async def test_another_client_is_not_behind_all_that_a_stranger_sends(open_port: Callable[..., Any]) -> None:
    """Each look takes a millisecond: the stranger's commands are of many cycles."""
    clock = HandClock()
    port: TestedPort = await open_port(TokenPolicy([], lambda: 0.0), clock=clock)
    first, other = await port.connect(), await port.connect()
    clock.ticking_s = 0.001
    first.writer.write(command("RESET") * COUNT)
    other.writer.write(command("RESET"))
    await asyncio.wait_for(other.reply(), 10)
    # What has left by then is what its reader has.
    assert port.server.port.commands_run < COUNT
    assert [await first.reply() for _ in range(COUNT)] == ["RESET"] * COUNT
