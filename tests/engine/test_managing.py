"""Streams and groups as resources: ensured, changed, described, removed.

Knows: what is refused while something is pending, what a transfer keeps, pages of streams.
Must never know: APIs.
"""

from typing import Any

import pytest

from engine import EngineError, ids
from engine.commands import weir_commands
from engine.commands.base import Command
from engine.commands.execution import Blocked, execute, execute_all
from engine.commands.managing import TRANSFERRED_MAX
from engine.commands.types import (
    Claim,
    Cursor,
    Delete,
    XAck,
    XClaim,
    XDel,
    XGroupCreate,
    XGroupDestroy,
    XInfoStreamFull,
    XReadGroup,
)
from engine.parts.keeping import Retention, kept_of
from engine.replies import Archived, Edges, GroupInfo, GroupRead, StreamDetail, StreamPage
from tests.engine.house import House, adding, everywhere, id_of


def reading(consumer: str = "c", **more: Any) -> XReadGroup:
    return XReadGroup(group="g", consumer=consumer, streams=[("s", Cursor.NEW)], **more)


def removing(consumer: str = "c", **more: Any) -> weir_commands.DeleteConsumer:
    return weir_commands.DeleteConsumer(stream="s", group="g", consumer=consumer, **more)


def ensuring(start: int | Cursor = 0, **more: Any) -> weir_commands.EnsureGroup:
    return weir_commands.EnsureGroup(stream="s", group="g", start=start, **more)


def described(house: House) -> GroupInfo:
    return house.of(GroupInfo, weir_commands.DescribeGroup(stream="s", group="g"))


def rows(house: House) -> list[tuple[str, str | None, int, int]]:
    """Pending entries in order of delivery: ID, owner, time, count."""
    return [
        (
            ids.format(entry_id),
            one.consumer.name if one.consumer else None,
            one.delivery_time_ms,
            one.delivery_count,
        )
        for entry_id, one in house.key("s").groups["g"].in_order_of_delivery()
    ]


# --- streams --------------------------------------------------------------------------------------------


def test_a_stream_is_created_once(house: House) -> None:
    """True the first time; then its retention is set, and everything else is left alone."""
    assert house.run(weir_commands.EnsureStream(stream="s", retention=Retention(max_len=5))) is True
    house.fill("s", 3)
    generation = house.key("s").generation
    assert house.run(weir_commands.EnsureStream(stream="s", retention=Retention(max_age_ms=7))) is False
    assert kept_of(house.key("s")).retention == Retention(max_age_ms=7)
    assert (len(house.live("s")), house.key("s").generation) == (3, generation)
    house.run(weir_commands.EnsureStream(stream="s", retention=Retention(max_age_ms=7)))
    assert not house.turn.records


def test_streams_are_listed_in_pages(house: House) -> None:
    """In order of names, each once, with any limit; `next` is None at the end."""
    names = sorted(f"{prefix}{number}" for prefix in "abü" for number in range(5))
    for name in names:
        house.run(weir_commands.EnsureStream(stream=name))
    for limit in (1, 2, 5, 15, 100):
        found: list[str] = []
        after: str | None = None
        while True:
            page = house.of(StreamPage, weir_commands.StreamInfos(after=after, limit=limit))
            found += [name for name, _ in page.streams]
            assert len(page.streams) <= limit
            if (after := page.next) is None:
                break
        assert found == names
    page = house.of(StreamPage, weir_commands.StreamInfos(prefix="b", after="b2"))
    assert [name for name, _ in page.streams] == ["b3", "b4"]
    assert house.of(StreamPage, weir_commands.StreamInfos(prefix="c")) == StreamPage([], None)


def test_the_edges_of_a_stream(house: House) -> None:
    """None without the stream; its first and last ID, what was removed from its front, its generation."""
    assert house.run(weir_commands.DescribeEdges(stream="s")) is None
    house.fill("s", 3)
    house.run(XDel(stream="s", ids=[id_of("1"), id_of("3")]))
    edges = house.of(Edges, weir_commands.DescribeEdges(stream="s"))
    archived = house.of(Archived, weir_commands.DescribeArchived(stream="s", low=0, high=ids.ID_MAX))
    assert (archived.generation, archived.removed_upto) == (edges.generation, edges.removed_upto)
    assert (edges.first_id, edges.last_id, edges.removed_upto) == (id_of("2"), id_of("3"), id_of("1"))
    assert edges.generation == house.keyspace.keys["s"].generation


# --- groups ---------------------------------------------------------------------------------------------


@everywhere
def test_a_group_is_created_once(house: House) -> None:
    """True the first time; one that is there keeps its position and its policy, which go with it."""
    assert house.refused(ensuring()).code == "no_stream"
    assert house.run(ensuring(mkstream=True, policy={"ack_timeout_ms": 5})) is True
    house.fill("s", 3)
    house.run(reading(count=2))
    assert house.run(ensuring(Cursor.LATEST, policy={"ack_timeout_ms": 9, "max_deliveries": 1})) is False
    assert not house.turn.records
    info = described(house)
    assert (ids.format(info.last_delivered_id), info.ack_timeout_ms, info.max_deliveries) == ("2-0", 5, None)
    (detail,) = house.of(StreamDetail, XInfoStreamFull(stream="s")).groups
    assert detail.group.ack_timeout_ms == 5
    for end in (XGroupDestroy(stream="s", group="g"), Delete(streams=["s"])):
        house.run(weir_commands.UpdateGroup(stream="s", group="g", policy={"dead_letter_stream": "d"}))
        house.run(end)
        house.run(ensuring(mkstream=True))
        assert (described(house).ack_timeout_ms, described(house).dead_letter_stream) == (None, None)


def test_a_group_starts_where_it_is_told(house: House) -> None:
    house.fill("s", 3)
    assert house.run(ensuring(Cursor.LATEST, entries_read=99)) is True
    info = described(house)
    assert (ids.format(info.last_delivered_id), info.entries_read, info.lag) == ("3-0", 3, 0)


def test_a_change_of_a_group_names_only_what_changes(house: House) -> None:
    """Position, count and each part of the policy, each by itself; None takes a part away."""
    house.fill("s", 5)
    house.run(ensuring(policy={"dead_letter_stream": "d", "max_deliveries": 3}))
    house.run(weir_commands.UpdateGroup(stream="s", group="g", policy={"ack_timeout_ms": 7}))
    house.run(weir_commands.UpdateGroup(stream="s", group="g", start=id_of("2-0"), entries_read=2))
    house.run(weir_commands.UpdateGroup(stream="s", group="g", policy={"max_deliveries": None}))
    assert described(house) == GroupInfo(
        name="g", consumers=0, pending=0, last_delivered_id=id_of("2-0"), entries_read=2, lag=3,
        dead_letter_stream="d", ack_timeout_ms=7, state="no_consumers")  # fmt: skip
    house.run(weir_commands.UpdateGroup(stream="s", group="g", entries_read=1))
    assert described(house).entries_read == 1
    house.run(weir_commands.UpdateGroup(stream="s", group="g", start=Cursor.LATEST))
    assert (described(house).last_delivered_id, described(house).lag) == (id_of("5-0"), 0)
    house.run(weir_commands.UpdateGroup(stream="s", group="g"))
    assert not house.turn.records
    assert house.refused(weir_commands.UpdateGroup(stream="s", group="h")).code == "no_group"


def test_a_group_with_pending_entries_is_not_removed(house: House) -> None:
    """Unless they are to be dropped; its waiting readers get an error."""
    house.fill("s", 2)
    house.run(ensuring())
    house.run(reading())
    refusal = house.refused(weir_commands.DeleteGroup(stream="s", group="g"))
    assert (refusal.code, refusal.members) == ("group_has_pending", {"pending": 2})
    waiting = execute(house.keyspace, reading(consumer="c", block_ms=9), house.now_ms).reply
    assert isinstance(waiting, Blocked)
    assert house.run(weir_commands.DeleteGroup(stream="s", group="g", drop=True)) is True
    assert list(house.turn.signalled) == ["s"]
    result = execute(house.keyspace, waiting.command, house.now_ms).reply
    assert isinstance(result, EngineError)
    assert result.code == "no_group"
    assert house.refused(weir_commands.DeleteGroup(stream="s", group="g")).code == "no_group"


def test_a_group_with_nothing_pending_is_removed(house: House) -> None:
    house.fill("s", 1)
    house.run(ensuring())
    house.run(reading())
    house.run(XAck(stream="s", group="g", ids=[id_of("1-0")]))
    assert house.run(weir_commands.DeleteGroup(stream="s", group="g")) is True


# --- consumers ------------------------------------------------------------------------------------------


@pytest.fixture
def shared(house: House) -> House:
    """A group of two; `c` holds entries delivered at several times, not in order of their IDs."""
    house.fill("s", 6)
    house.run(ensuring())
    house.run(reading("c", count=3))
    house.pass_ms(10)
    house.run(reading("d", count=2))
    house.pass_ms(10)
    house.run(reading("c", count=1))
    house.call("XCLAIM", "s", "g", "c", 0, "5-0", "2-0")
    return house


@everywhere
def test_a_consumer_with_pending_entries_is_not_removed(shared: House) -> None:
    """Unless another one takes them over."""
    refusal = shared.refused(removing())
    assert (refusal.code, refusal.members) == ("consumer_has_pending", {"pending": 5})
    assert shared.refused(removing("x")).code == "no_consumer"
    assert shared.refused(removing("x", transfer_to="d")).code == "no_consumer"
    group_gone = weir_commands.DeleteConsumer(stream="s", group="h", consumer="c")
    assert shared.refused(group_gone).code == "no_group"
    assert shared.run(removing(transfer_to="d")) == 5
    found = shared.of(GroupRead, XReadGroup(group="g", consumer="d", streams=[("s", 0)]))
    assert [ids.format(one.id) for one in found.streams[0].entries] == [f"{n}-0" for n in range(1, 7)]


def test_dropped_entries_are_pending_no_more(shared: House) -> None:
    assert shared.run(removing(drop=True)) == 5
    assert [row[:2] for row in rows(shared)] == [("4-0", "d")]
    assert shared.consumers("s", "g") == ["d"]


@pytest.mark.parametrize("heir", ["d", "new"])
def test_transferred_entries_stay_as_they_are(shared: House, heir: str) -> None:
    """Counts, times and order are kept: nothing was delivered. An heir that is missing is made."""
    shared.run(XDel(stream="s", ids=[id_of("3-0")]))
    shared.pass_ms(50)
    before = rows(shared)
    active = shared.key("s").groups["g"].consumers["d"].active_time_ms
    assert shared.run(removing(transfer_to=heir)) == 5
    assert rows(shared) == [(each, heir if owner == "c" else owner, at, n) for each, owner, at, n in before]
    assert [each for each, *_ in before] == ["1-0", "3-0", "4-0", "6-0", "5-0", "2-0"]
    assert shared.consumers("s", "g") == sorted({"d", heir})
    consumers = shared.key("s").groups["g"].consumers
    assert consumers[heir].active_time_ms == (active if heir == "d" else -1)
    assert consumers[heir].seen_time_ms == shared.now_ms


def test_a_transfer_that_is_too_much_for_one_turn_is_refused_in_a_transaction() -> None:
    """One at the limit is not, nor does its frame outgrow the log's reserve, however long the names."""
    house = House()
    house.fill("s", TRANSFERRED_MAX + 1)
    house.run(XGroupCreate(stream="s", group="g" * 400, start=0))
    for _ in range(TRANSFERRED_MAX + 1):
        house.pass_ms(1)
        house.run(XReadGroup(group="g" * 400, consumer="c", streams=[("s", Cursor.NEW)], count=1))
    removal = weir_commands.DeleteConsumer(stream="s", group="g" * 400, consumer="c", transfer_to="d")
    (refusal,), turn = execute_all(house.keyspace, [removal], house.now_ms)
    assert isinstance(refusal, EngineError)
    assert not turn.records
    assert (refusal.code, refusal.members) == ("invalid", {"pending": TRANSFERRED_MAX + 1})
    assert "too many for one turn" in refusal.detail
    one = Claim(min_idle_ms=0, ids=[id_of("1-0")])
    house.run(XClaim(stream="s", group="g" * 400, consumer="d", claim=one))
    assert house.run(removal) == TRANSFERRED_MAX


def test_released_entries_are_nobodys_to_give(shared: House) -> None:
    shared.call("XNACK", "s", "g", "FAIL", "IDS", 2, "1-0", "2-0")
    assert shared.run(removing(transfer_to="d")) == 3
    assert [owner for _, owner, *_ in rows(shared)].count(None) == 2


def test_a_consumer_that_is_its_own_heir_stays(shared: House) -> None:
    assert shared.run(removing(transfer_to="c")) == 5
    assert not shared.turn.records


@pytest.mark.parametrize("options", [{}, {"drop": True}, {"transfer_to": "heir"}])
def test_a_consumer_with_nothing_pending_is_removed(house: House, options: dict[str, Any]) -> None:
    """And no consumer is created to inherit nothing."""
    house.run(ensuring(mkstream=True))
    house.run(reading())
    assert house.run(removing(**options)) == 0
    assert house.consumers("s", "g") == []


def test_refusals_come_before_any_change(house: House) -> None:
    """Commands on streams that are missing create nothing."""
    asked: list[Command] = [
        weir_commands.UpdateGroup(stream="s", group="g"), removing(),
        weir_commands.DescribeGroup(stream="s", group="g"),
        weir_commands.DeleteGroup(stream="s", group="g"), ensuring(policy={"max_deliveries": 1}),
    ]  # fmt: skip
    for command in asked:
        assert house.refused(command).code in {"no_group", "no_stream"}
    assert not house.keyspace.keys
    house.run(adding("t"))
