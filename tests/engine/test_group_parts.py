"""What a group has beside its pending list: each capability by itself."""

from typing import Any, Final

import msgspec
import pytest

from engine.commands.types import Cursor, Nack, NackMode, XGroupCreate, XNack, XReadGroup
from engine.commands.weir_commands import DescribeGroup, ReleaseDeferred, UpdateGroup
from engine.parts import GROUP_PARTS, POLICY_DEFAULT
from engine.parts.deferrals import Deferrals
from engine.replies import GroupInfo
from tests.engine.house import House

# A value of each setting that is not the default.
SET: Final[dict[str, Any]] = {
    "dead_letter_stream": "dead",
    "max_deliveries": 3,
    "ack_timeout_ms": 1_000,
    "consumer_timeout_ms": 2_000,
    "max_age_ms": 3_000,
    "paused": True,
    "ordered_by": "user",
    "in_flight_per_key": 2,
}
# What another one needs.
NEEDS: Final[dict[str, dict[str, Any]]] = {"in_flight_per_key": {"ordered_by": "user"}}


@pytest.fixture
def house() -> House:
    house = House()
    house.run(XGroupCreate(stream="s", group="g", start=0, mkstream=True))
    return house


def test_a_setting_is_one_of_one_part_and_is_described() -> None:
    """Clients read by these names what they have set."""
    names = [name for kind in GROUP_PARTS for name in kind.settings]
    assert sorted(names) == sorted(set(names)) == sorted(SET)
    described = {field.name: field.default for field in msgspec.structs.fields(GroupInfo)}
    assert {name: described[name] for name in names} == POLICY_DEFAULT


@pytest.mark.parametrize("name", SET)
def test_what_is_set_back_leaves_nothing_behind(house: House, name: str) -> None:
    """Neither in the group, nor in what it is said to take of memory."""
    group, before = house.key("s").groups["g"], house.key("s").footprint.bytes
    needed = NEEDS.get(name, {})
    house.run(UpdateGroup(stream="s", group="g", policy={name: SET[name], **needed}))
    assert [type(part) for part in group.parts] == [kind for kind in GROUP_PARTS if name in kind.settings]
    assert house.key("s").footprint.bytes > before
    house.keyspace.check()
    info = house.of(GroupInfo, DescribeGroup(stream="s", group="g"))
    assert getattr(info, name) == SET[name]
    defaults = {each: POLICY_DEFAULT[each] for each in (name, *needed)}
    house.run(UpdateGroup(stream="s", group="g", policy=defaults))
    assert not group.parts
    assert house.key("s").footprint.bytes == before
    house.keyspace.check()


def test_parts_stand_in_their_order_whichever_came_first(house: House) -> None:
    """Or a snapshot would depend on what was set first."""
    for name in reversed(SET):
        policy = {name: SET[name], **NEEDS.get(name, {})}
        house.run(UpdateGroup(stream="s", group="g", policy=policy))
    kinds = [type(part) for part in house.key("s").groups["g"].parts]
    assert kinds == [kind for kind in GROUP_PARTS if kind.settings]
    house.restart()
    assert [type(part) for part in house.key("s").groups["g"].parts] == kinds


def test_the_last_deferred_entry_takes_all_of_it_along(house: House) -> None:
    house.fill("s", 2)
    house.run(XReadGroup(streams=[("s", Cursor.NEW)], group="g", consumer="c"))
    before = house.key("s").footprint.bytes
    pending = [entry_id for entry_id, _ in house.key("s").groups["g"].pending.items()]
    for entry_id in pending:
        nack = Nack(ids=[entry_id], mode=NackMode.FAIL, delay_ms=10)
        house.run(XNack(stream="s", group="g", nack=nack))
    assert Deferrals.of(house.key("s").groups["g"]) is not None
    house.pass_ms(10)
    assert house.run(ReleaseDeferred()) is False
    assert not house.key("s").groups["g"].parts
    assert house.key("s").footprint.bytes <= before
    house.keyspace.check()
