"""How many answers leave in one cycle of the loop: those to reads and those of the log share it."""

import asyncio
from functools import partial
from itertools import pairwise

import pytest

from engine.runtime.answers import ANSWERS_AT_ONCE_MAX, ANSWERS_S_MAX, Answers
from tests.engine.clocks import HandClock


class Cycles:
    """What left in each cycle of the loop, while there was anything left."""

    def __init__(self, answer_s: float = 0.0) -> None:
        self.clock = HandClock(1_000)
        self.answers = Answers(self.clock.monotonic)
        self.left: list[str] = []
        self._answer_s = answer_s

    def leave(self, kind: str) -> None:
        self.left.append(kind)
        self.clock.pass_ms(0, round(self._answer_s * 1_000))

    async def each(self) -> list[int]:
        """How many of them left in each cycle, from now on."""
        seen = [0]
        while len(self.answers):
            await asyncio.sleep(0)
            seen.append(len(self.left))
        return [after - before for before, after in pairwise(seen)]


async def test_answers_of_reads_and_of_the_log_share_a_cycle() -> None:
    """Not as many of the one as would leave alone, and as many of the other beside them."""
    cycles = Cycles()
    for _ in range(400):
        cycles.answers.put_later(partial(cycles.leave, "read"))
    for _ in range(2 * ANSWERS_AT_ONCE_MAX):
        cycles.answers.put(partial(cycles.leave, "log"))
    cycles.answers.leave()
    assert cycles.left == ["log"] * ANSWERS_AT_ONCE_MAX
    cycles.left.clear()
    assert await cycles.each() == [ANSWERS_AT_ONCE_MAX, 200, 200]


@pytest.mark.parametrize("answer_s", [ANSWERS_S_MAX / 5, ANSWERS_S_MAX, 2 * ANSWERS_S_MAX])
async def test_a_cycle_ends_by_the_clock(answer_s: float) -> None:
    """Behind the answer that took the last of its time, whichever kind it is; one leaves in any case."""
    cycles = Cycles(answer_s)
    for _ in range(6):
        cycles.answers.put(partial(cycles.leave, "log"))
        cycles.answers.put_later(partial(cycles.leave, "read"))
    a_cycle = max(1, round(ANSWERS_S_MAX / answer_s))
    each = [number for number in await cycles.each() if number]
    assert max(each) == a_cycle
    assert sum(each) == 12


async def test_the_answer_to_a_read_never_leaves_in_its_own_cycle() -> None:
    """Also where others leave in it."""
    cycles = Cycles()
    cycles.answers.put_later(partial(cycles.leave, "read"))
    cycles.answers.put(partial(cycles.leave, "log"))
    cycles.answers.leave()
    assert cycles.left == ["log"]
    await cycles.each()
    assert cycles.left == ["log", "read"]


async def test_an_answer_that_fails_does_not_keep_the_others() -> None:
    """It is reported."""
    cycles, reported = Cycles(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def fail() -> None:
        raise ZeroDivisionError

    cycles.answers.put(fail)
    cycles.answers.put(partial(cycles.leave, "log"))
    cycles.answers.leave()
    assert cycles.left == ["log"]
    assert [type(error) for error in reported] == [ZeroDivisionError]
