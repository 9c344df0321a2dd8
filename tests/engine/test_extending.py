"""Extending what a consumer holds: its idle time begins anew, and nothing else changes."""

from typing import Any

from engine import ids
from engine.commands.types import Cursor, XReadGroup
from engine.commands.weir_commands import EnsureGroup, Extend, Maintain, UpdateGroup
from engine.replies import Outcomes
from tests.engine.house import House, everywhere, id_of

TIMEOUT_MS = 1_000


def extend(house: House, consumer: str, *entry_ids: str) -> list[str]:
    command = Extend(stream="s", group="g", consumer=consumer, ids=list(map(id_of, entry_ids)))
    return list(map(ids.format, house.of(Outcomes, command).done))


def begin(house: House) -> None:
    """Two entries, which `a` holds."""
    policy = {"ack_timeout_ms": TIMEOUT_MS}
    house.run(EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=policy))
    house.fill("s", 2)
    house.run(XReadGroup(group="g", consumer="a", streams=[("s", Cursor.NEW)], count=9))


def owners(house: House) -> dict[str, str | None]:
    """Whose each pending entry is."""
    rows: Any = house.pending("s", "g")
    return {row[0]: row[1] or None for row in rows}


def counts(house: House) -> list[int]:
    rows: Any = house.pending("s", "g")
    return [row[3] for row in rows]


def test_the_time_to_acknowledge_counts_from_the_last_word(house: House) -> None:
    begin(house)
    for _ in range(3):
        house.now_ms += TIMEOUT_MS - 1
        assert extend(house, "a", "2-0") == ["2-0"]
        house.run(Maintain())
    assert owners(house) == {"1-0": None, "2-0": "a"}
    house.now_ms += TIMEOUT_MS
    house.run(Maintain())
    assert owners(house) == {"1-0": None, "2-0": None}


@everywhere
def test_an_entry_that_is_not_its_own_is_left_alone(house: House) -> None:
    """Deferred, acknowledged or another's."""
    begin(house)
    house.call("XCLAIM", "s", "g", "b", "0", "1-0", "JUSTID")
    house.call("WEIR.NACK", "s", "g", "FAIL", "IDS", "1", "2-0", "DELAY", "5000")
    command = Extend(stream="s", group="g", consumer="a", ids=[*map(id_of, ("1-0", "2-0", "2-0", "3-0"))])
    assert house.of(Outcomes, command) == Outcomes([], [id_of("1-0"), id_of("2-0")])
    assert owners(house) == {"1-0": "b", "2-0": None}


def test_what_has_timed_out_and_was_given_to_no_one_is_its_own_again(house: House) -> None:
    """Though the consumer was removed meanwhile. It is no delivery, and outlasts a restart."""
    begin(house)
    house.run(UpdateGroup(stream="s", group="g", policy={"consumer_timeout_ms": TIMEOUT_MS}))
    house.now_ms += 2 * TIMEOUT_MS
    house.run(Maintain())
    assert owners(house) == {"1-0": None, "2-0": None}
    assert not house.key("s").groups["g"].consumers
    assert extend(house, "a", "2-0") == ["2-0"]
    house.restart()
    assert owners(house) == {"1-0": None, "2-0": "a"}
    assert counts(house) == [1, 1]


@everywhere
def test_extending_counts_no_delivery_and_no_id_twice(house: House) -> None:
    begin(house)
    house.call("XCLAIM", "s", "g", "b", "0", "2-0", "JUSTID")
    command = Extend(stream="s", group="g", consumer="a", ids=[*map(id_of, ("1-0", "2-0", "2-1", "1-0"))])
    assert house.of(Outcomes, command) == Outcomes([id_of("1-0")], [id_of("2-0")])
    assert owners(house) == {"1-0": "a", "2-0": "b"}
    assert counts(house) == [1, 1]


@everywhere
def test_a_missing_group_is_named(house: House) -> None:
    command = Extend(stream="s", group="g", consumer="a", ids=[1])
    assert house.refused(command).code == "no_group"
