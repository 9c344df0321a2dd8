"""No turn holds the loop for more than 20 ms, however many entries are due at once.

Knows: as many schedules as a stream may have, each command at its maximum.
Must never know: how the engine does it.

By hand with a million in ten streams:

    WEIR_SCHEDULED=1000000 .venv/bin/pytest tests/engine/test_schedule_stalls.py
"""

import os
import time
from typing import Final

import pytest

from engine import entries
from engine.commands import schedule_commands
from engine.commands.base import Command
from engine.commands.scheduling import LATER_MAX, PAGE_MAX
from engine.commands.types import Rename
from engine.commands.weir_commands import Close
from engine.parts.schedules import StreamSchedules
from engine.records.snapshot import Capture
from engine.recurrence import Rule
from tests.engine.house import House
from tests.engine.test_stalls import held_s, longest_s
from tests.turns import TURN_S_MAX, assert_within

pytestmark = pytest.mark.paired

SCHEDULED: Final = int(os.environ.get("WEIR_SCHEDULED", "100000"))
OF_A_STREAM: Final = 100_000
DUE_IN_MS: Final = 1_000
BODY: Final = entries.body([("job", "1234"), ("text", "twenty characters!!!")])


def later(stream: str, first: int, count: int) -> schedule_commands.AddScheduled:
    numbers = range(first, first + count)
    each = [
        schedule_commands.NewSchedule(f"sch_{number:011}", BODY, Rule(in_ms=DUE_IN_MS)) for number in numbers
    ]
    return schedule_commands.AddScheduled(stream=stream, later=each)


def filled(count: int = OF_A_STREAM) -> House:
    """Streams with as many schedules as they may have, due at the same time."""
    house = House()
    for first in range(0, count, LATER_MAX):
        house.run(later(f"s{first // OF_A_STREAM}", first, LATER_MAX))
    house.payloads.clear()
    return house


def test_all_that_is_due_at_once_is_appended_in_short_turns() -> None:
    def measured() -> float:
        house = filled(SCHEDULED)
        house.pass_ms(DUE_IN_MS)
        longest, more = 0.0, True
        while more:
            longest = max(longest, held_s(lambda: house.run(schedule_commands.FireDueSchedules())))
            more = house.keyspace.due_times[StreamSchedules].is_due(house.now_ms)
        assert sum(key.stream.length for key in house.keyspace.keys.values()) == SCHEDULED
        return longest

    assert_within(TURN_S_MAX, measured)


def test_cron_expressions_that_are_due_at_once_end_by_the_clock() -> None:
    """Their next times take longer than an entry."""

    def measured() -> float:
        house = House()
        rule = Rule(cron="59 23 31 12 *", tz="Europe/Berlin")
        for number in range(1_000):
            house.run(
                schedule_commands.SetSchedule(
                    stream="s", schedule=schedule_commands.NewSchedule(f"{number}", BODY, rule)
                )
            )
        house.pass_ms(366 * 86_400_000)
        longest = 0.0
        while house.keyspace.due_times[StreamSchedules].is_due(house.now_ms):
            until_s = time.thread_time() + 0.005
            command = schedule_commands.FireDueSchedules(
                has_time=lambda until_s=until_s: time.thread_time() < until_s  # type: ignore[misc]
            )
            longest = max(longest, held_s(lambda command=command: house.run(command)))  # type: ignore[misc]
        assert house.key("s").stream.length == 1_000
        return longest

    assert_within(TURN_S_MAX, measured)


AT_MOST: Final[dict[str, Command]] = {
    "more": later("t", 0, LATER_MAX),
    "by time": schedule_commands.ListSchedules(stream="s0", limit=PAGE_MAX),
    "by name": schedule_commands.ListSchedules(stream="s0", limit=PAGE_MAX, by_name=True),
    "rename": Rename(stream="s0", target="t"),
    "close": Close(stream="s0", drops_schedules=True),
}


@pytest.mark.parametrize("command", AT_MOST)
def test_a_command_on_as_many_as_a_stream_may_have(command: str) -> None:
    assert_within(TURN_S_MAX, lambda: longest_s(filled(), AT_MOST[command]))


def test_a_page_costs_the_same_however_many_have_its_time() -> None:
    """A night of jobs is listed in as many pages as it has, each of which would walk over all of them."""
    last = schedule_commands.ListSchedules(
        stream="s0", limit=100, after=(House().now_ms + DUE_IN_MS, f"sch_{99_800:011}")
    )
    assert_within(TURN_S_MAX / 10, lambda: longest_s(filled(), last))


def test_a_snapshot_holds_them_in_one_turn() -> None:
    def measured() -> float:
        house = filled()
        capture = Capture(house.keyspace)
        longest = held_s(lambda: house.run(Rename(stream="s0", target="t")))
        capture.close()
        return longest

    assert_within(TURN_S_MAX, measured)
