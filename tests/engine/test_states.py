"""The state of groups and streams in a word: the first that holds, at its limits and one beside them.

Over a backend the machine's clock counts: what takes a minute is asked of the engine of the gateway's own.
"""

from typing import Any, Final

import pytest

from engine import entries
from engine.commands.types import Copy, XInfoGroups, XInfoStream, XInfoStreamFull
from engine.commands.weir_commands import Close, CountGroups, EnsureGroup, UpdateGroup
from engine.replies import GroupCounts, GroupInfo, StreamDetail, StreamInfo
from engine.states import ACTIVE_MS_MAX, FAILED_MS_MAX
from tests.engine.house import House, adding, everywhere

BODY: Final = entries.body([("n", "1")])


@pytest.fixture
def grouped(house: House) -> House:
    """With a group `g` of the stream `s`, from its first entry on."""
    house.run(EnsureGroup(stream="s", group="g", start=0, mkstream=True))
    return house


def state(house: House, stream: str = "s") -> str:
    """As the list has it, and the description in full."""
    groups: Any = house.run(XInfoGroups(stream=stream))
    (group,) = groups
    assert isinstance(group, GroupInfo)
    (described,) = house.of(StreamDetail, XInfoStreamFull(stream=stream, count=1)).groups
    assert described.group.state == group.state
    return group.state


def stream_state(house: House) -> str:
    return house.of(StreamInfo, XInfoStream(stream="s")).state


def read(house: House) -> list[str]:
    house.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    return house.live("s")


@everywhere
def test_a_group_without_work_is_idle_and_one_with_work_needs_consumers(grouped: House) -> None:
    assert state(grouped) == "idle"
    grouped.run(adding("s"))
    assert state(grouped) == "no_consumers"
    read(grouped)
    assert state(grouped) == "running"


def test_who_has_asked_within_a_minute_is_there(grouped: House) -> None:
    """Then no one works on what was delivered."""
    grouped.run(adding("s"))
    (entry_id,) = read(grouped)
    assert state(grouped) == "running"
    grouped.pass_ms(ACTIVE_MS_MAX - 1)
    assert state(grouped) == "running"
    grouped.pass_ms(1)
    assert state(grouped) == "no_consumers"
    grouped.keyspace.readers = lambda _: {("g", "c")}
    assert state(grouped) == "running"
    grouped.keyspace.readers = lambda _: {("other", "c")}
    assert state(grouped) == "no_consumers"
    grouped.call("XACK", "s", "g", entry_id)
    assert state(grouped) == "idle"


def test_a_group_runs_for_a_minute_behind_its_last_delivery(grouped: House) -> None:
    grouped.run(adding("s"))
    grouped.call("XACK", "s", "g", *read(grouped))
    grouped.pass_ms(ACTIVE_MS_MAX - 1)
    assert state(grouped) == "running"
    grouped.pass_ms(1)
    assert state(grouped) == "idle"


def test_a_third_delivery_and_a_dead_letter_are_news_for_five_minutes(grouped: House) -> None:
    """The second delivery is none. A third one is known after a restart, and by a copy."""
    grouped.run(adding("s"))
    (entry_id,) = read(grouped)
    grouped.call("XCLAIM", "s", "g", "c", 0, entry_id)
    assert state(grouped) == "running"
    grouped.call("XCLAIM", "s", "g", "c", 0, entry_id)
    assert state(grouped) == "failing"
    grouped.rewrite()
    grouped.run(Copy(stream="s", target="t"))
    assert (state(grouped), state(grouped, "t")) == ("failing", "failing")
    grouped.pass_ms(FAILED_MS_MAX - 1)
    grouped.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    assert state(grouped) == "failing"
    grouped.pass_ms(1)
    assert state(grouped) == "running"
    grouped.run(UpdateGroup(stream="s", group="g", policy={"dead_letter_stream": "d", "max_deliveries": 3}))
    grouped.call("XCLAIM", "s", "g", "c", 0, entry_id)
    assert (grouped.live("s") == [entry_id], len(grouped.live("d"))) == (True, 1)
    assert state(grouped) == "failing"
    grouped.check()


@everywhere
def test_a_pause_comes_before_all_but_the_end(grouped: House) -> None:
    grouped.run(adding("s"))
    grouped.run(UpdateGroup(stream="s", group="g", policy={"paused": True}))
    assert state(grouped) == "paused"
    grouped.run(UpdateGroup(stream="s", group="g", policy={"paused": False}))
    grouped.call("XACK", "s", "g", *read(grouped))
    grouped.run(UpdateGroup(stream="s", group="g", policy={"paused": True}))
    grouped.run(Close(stream="s"))
    assert state(grouped) == "drained"


@everywhere
def test_a_closed_stream_is_ending_until_its_groups_are_done(grouped: House) -> None:
    """One that has read but not acknowledged is not; what was deleted needs no consumer."""
    grouped.run(adding("s"))
    grouped.run(adding("s"))
    assert stream_state(grouped) == "open"
    grouped.run(Close(stream="s"))
    assert (stream_state(grouped), state(grouped)) == ("ending", "no_consumers")
    grouped.call("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", ">")
    first, last = grouped.live("s")
    grouped.call("XDEL", "s", last)
    assert (stream_state(grouped), state(grouped)) == ("ending", "running")
    grouped.call("XACK", "s", "g", first)
    assert (stream_state(grouped), state(grouped)) == ("closed", "drained")
    grouped.call("XGROUP", "DESTROY", "s", "g")
    assert stream_state(grouped) == "closed"


def test_groups_are_counted_by_their_states(grouped: House) -> None:
    """Some streams in a turn, until all were looked at."""
    for number in range(30):
        for group in range(50):
            grouped.run(EnsureGroup(stream=f"t{number:02}", group=f"g{group}", start=0, mkstream=True))
    grouped.run(adding("t00"))
    total, after, turns = {"idle": 0, "no_consumers": 0}, None, 0
    while after is not None or not turns:
        found = grouped.of(GroupCounts, CountGroups(after=after))
        for name, count in found.counts.items():
            total[name] += count
        after, turns = found.next, turns + 1
    assert (total, turns) == ({"idle": 29 * 50 + 1, "no_consumers": 50}, 2)
