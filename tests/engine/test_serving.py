"""Reads that were woken, when running one of them again fails: the others must not wait for it."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from engine.commands.base import Command
from engine.commands.execution import Blocked, execute
from engine.commands.types import Cursor, XAdd, XGroupCreate, XRead, XReadGroup
from engine.keyspace import Keyspace
from engine.runtime.wake_queue import ANSWERED_AT_ONCE_MAX, WakeQueue
from engine.waiters import Waiter, Waiters
from tests.engine.clocks import HandClock, settle

MANY = 3 * ANSWERED_AT_ONCE_MAX
FAILING = MANY // 2 + 1


class Reads:
    """Many blocked reads alike, of which one fails; the others are answered when they are run again."""

    def __init__(self, command: Command) -> None:
        self.keyspace = Keyspace()
        self.waiters: Waiters[int] = Waiters()
        self.answered: list[int] = []
        self.failures: list[Any] = []
        self.serving = WakeQueue(self.keyspace, self.waiters, HandClock(), self._run_again, lambda _: None)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, result: self.failures.append(result["exception"]))
        execute(self.keyspace, XGroupCreate(stream="s", group="g", start=0, mkstream=True), 1)
        blocked = execute(self.keyspace, command, 1).reply
        assert isinstance(blocked, Blocked)
        for number in range(MANY):
            self.waiters.add(Waiter(blocked, number, 60.0))
        execute(self.keyspace, XAdd(stream="s", bodies=[b',"fields":{"a":"1"}}']), 2)

    def _run_again(self, waiter: Waiter[int], now_ms: int) -> Mapping[str, None]:
        del now_ms
        if waiter.ticket == FAILING:
            raise RuntimeError("as it happens")
        self.waiters.remove(waiter)
        self.answered.append(waiter.ticket)
        return {}


@pytest.mark.parametrize(
    "command",
    [
        XRead(streams=[("s", 0)], block_ms=60_000),
        XReadGroup(group="g", consumer="c", streams=[("s", Cursor.NEW)], block_ms=60_000),
    ],
    ids=["plain", "of a group"],
)
async def test_a_read_that_fails_holds_up_nobody(command: Command) -> None:
    """Those behind it are served in their order, and later ones at once; it gets the error, and waits on."""
    reads = Reads(command)
    reads.serving.serve({"s": None}, 2)
    await settle()
    assert reads.answered == [number for number in range(MANY) if number != FAILING]
    assert {str(failure) for failure in reads.failures} == {"as it happens"}
    assert not reads.serving.must_wait_behind([command])
    assert [waiter.ticket for waiter in reads.waiters.all_waiters()] == [FAILING]
