"""The state of groups and streams in a word: the first that holds, at its limits and one beside them."""

from typing import Any, Final

import pytest

from engine import entries
from engine.commands.types import Copy, XInfoGroups, XInfoStream
from engine.commands.weir_commands import Close, CountGroups, EnsureGroup, UpdateGroup
from engine.replies import GroupCounts, GroupInfo, StreamInfo
from engine.states import ACTIVE_MS_MAX, FAILED_MS_MAX
from tests.engine.house import House, adding

BODY: Final = entries.body([("n", "1")])


@pytest.fixture
def house() -> House:
    """With a group `g` of the stream `s`, from its first entry on."""
    house = House()
    house.run(EnsureGroup(stream="s", group="g", start=0, mkstream=True))
    return house


def state(house: House, stream: str = "s") -> str:
    groups: Any = house.run(XInfoGroups(stream=stream))
    (group,) = groups
    assert isinstance(group, GroupInfo)
    return group.state


def stream_state(house: House) -> str:
    return house.of(StreamInfo, XInfoStream(stream="s")).state


def read(house: House) -> list[str]:
    house.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    return house.live("s")


def test_a_group_without_work_is_idle_and_one_with_work_needs_consumers(house: House) -> None:
    """Who has asked within a minute is there; then what was delivered has nobody who works on it."""
    assert state(house) == "idle"
    house.run(adding("s"))
    assert state(house) == "no_consumers"
    (entry_id,) = read(house)
    assert state(house) == "running"
    house.pass_ms(ACTIVE_MS_MAX - 1)
    assert state(house) == "running"
    house.pass_ms(1)
    assert state(house) == "no_consumers"
    house.keyspace.readers = lambda _: {("g", "c")}
    assert state(house) == "running"
    house.keyspace.readers = lambda _: {("other", "c")}
    assert state(house) == "no_consumers"
    house.call("XACK", "s", "g", entry_id)
    assert state(house) == "idle"


def test_a_group_runs_for_a_minute_behind_its_last_delivery(house: House) -> None:
    house.run(adding("s"))
    house.call("XACK", "s", "g", *read(house))
    house.pass_ms(ACTIVE_MS_MAX - 1)
    assert state(house) == "running"
    house.pass_ms(1)
    assert state(house) == "idle"


def test_a_third_delivery_and_a_dead_letter_are_news_for_five_minutes(house: House) -> None:
    """The second delivery is none. A third one is known after a restart, and by a copy."""
    house.run(adding("s"))
    (entry_id,) = read(house)
    house.call("XCLAIM", "s", "g", "c", 0, entry_id)
    assert state(house) == "running"
    house.call("XCLAIM", "s", "g", "c", 0, entry_id)
    assert state(house) == "failing"
    house.rewrite()
    house.run(Copy(stream="s", target="t"))
    assert (state(house), state(house, "t")) == ("failing", "failing")
    house.pass_ms(FAILED_MS_MAX - 1)
    house.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    assert state(house) == "failing"
    house.pass_ms(1)
    assert state(house) == "running"
    house.run(UpdateGroup(stream="s", group="g", policy={"dead_letter_stream": "d", "max_deliveries": 3}))
    house.call("XCLAIM", "s", "g", "c", 0, entry_id)
    assert (house.live("s") == [entry_id], len(house.live("d"))) == (True, 1)
    assert state(house) == "failing"
    house.check()


def test_a_pause_comes_before_all_but_the_end(house: House) -> None:
    house.run(adding("s"))
    house.run(UpdateGroup(stream="s", group="g", policy={"paused": True}))
    assert state(house) == "paused"
    house.run(UpdateGroup(stream="s", group="g", policy={"paused": False}))
    house.call("XACK", "s", "g", *read(house))
    house.run(UpdateGroup(stream="s", group="g", policy={"paused": True}))
    house.run(Close(stream="s"))
    assert state(house) == "drained"


def test_a_closed_stream_is_ending_until_its_groups_are_done(house: House) -> None:
    """One that has read but not acknowledged is not; what was deleted needs nobody."""
    house.run(adding("s"))
    house.run(adding("s"))
    assert stream_state(house) == "open"
    house.run(Close(stream="s"))
    assert (stream_state(house), state(house)) == ("ending", "no_consumers")
    house.call("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", ">")
    first, last = house.live("s")
    house.call("XDEL", "s", last)
    assert stream_state(house) == "ending"
    house.call("XACK", "s", "g", first)
    assert (stream_state(house), state(house)) == ("closed", "drained")
    house.call("XGROUP", "DESTROY", "s", "g")
    assert stream_state(house) == "closed"


def test_groups_are_counted_by_their_states(house: House) -> None:
    """Some streams in a turn, until all were looked at."""
    for number in range(30):
        for group in range(50):
            house.run(EnsureGroup(stream=f"t{number:02}", group=f"g{group}", start=0, mkstream=True))
    house.run(adding("t00"))
    total, after, turns = {"idle": 0, "no_consumers": 0}, None, 0
    while after is not None or not turns:
        found = house.of(GroupCounts, CountGroups(after=after))
        for name, count in found.counts.items():
            total[name] += count
        after, turns = found.next, turns + 1
    assert (total, turns) == ({"idle": 29 * 50 + 1, "no_consumers": 50}, 2)
