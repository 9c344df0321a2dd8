"""How many streams, groups and consumers there may be: what is beyond is refused, and nothing is changed.

Knows: every way in which one of them comes into being.
Must never know: APIs.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from engine import Caps, Engine, entries
from engine.commands import weir_commands
from engine.commands.base import Command
from engine.commands.types import Cursor, IdempotencyKey, XAdd, XGroupCreate, XReadGroup
from engine.keyspace import Keyspace
from engine.storage.memory import MemoryStorage
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock
from tests.engine.house import House, adding, id_of

CAPS = Caps(streams_max=3, groups_max=2, consumers_max=2)


@pytest.fixture
def house() -> Iterator[House]:
    """Two streams, and room for one; `s` has two groups, `g` of which has two consumers: no room for more.

    At the end a restart gives the same state, with any caps then.
    """
    house = House()
    house.keyspace = Keyspace(caps=CAPS)
    house.fill("s", 3)
    house.fill("t", 1)
    for group in ("g", "h"):
        house.run(XGroupCreate(stream="s", group=group, start=0))
    house.run(XGroupCreate(stream="t", group="g", start=0))
    for consumer in ("a", "b"):
        house.run(reading(consumer, "s", count=1))
    yield house
    house.check()


def reading(consumer: str, *streams: str, **more: Any) -> XReadGroup:
    return XReadGroup(
        group="g", consumer=consumer, streams=[(stream, Cursor.NEW) for stream in streams], **more
    )


def of_words(house: House, *words: str | int) -> str:
    before = len(house.payloads)
    reply = house.call(*words)
    assert len(house.payloads) == before, "a refusal has changed nothing"
    return str(reply)


def full(house: House) -> None:
    """No room for a stream either."""
    house.fill("u", 1)


# --- streams --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        adding("new"),
        weir_commands.EnsureStream(stream="new"),
        weir_commands.EnsureGroup(stream="new", group="g", start=0, mkstream=True),
        XGroupCreate(stream="new", group="g", start=0, mkstream=True),
        weir_commands.Publish(parts=[adding("s"), adding("new")]),
        weir_commands.Publish(parts=[adding("new")], idempotency=IdempotencyKey("k", b"d")),
    ],
    ids=lambda command: type(command).__name__,
)
def test_no_stream_comes_into_being_beyond_the_cap(house: House, command: Command) -> None:
    """The refusal names the setting and what to do; existing ones go on."""
    full(house)
    refusal = house.refused(command)
    assert (refusal.code, refusal.members) == ("invalid", {"limit": "streams_max"})
    assert refusal.redis == (
        "ERR no room for another stream, there may be 3: delete streams, or raise the setting streams_max"
    )
    house.run(adding("u"))
    house.call("DEL", "u")
    house.run(command)


def test_a_publication_needs_room_for_all_its_new_streams(house: House) -> None:
    """Not one of them is made where two are new and one has room."""
    refusal = house.refused(weir_commands.Publish(parts=[adding("new"), adding("newer")]))
    assert refusal.members == {"limit": "streams_max"}
    house.run(weir_commands.Publish(parts=[adding("new"), adding("s")]))


def test_a_transaction_goes_on_behind_what_has_no_room(house: House) -> None:
    replies = house.transaction(["XADD", "u", "1-0", "a", "1"], ["XADD", "v", "1-0", "a", "1"], ["XLEN", "u"])
    assert replies[0] == "1-0"
    assert str(replies[1]).startswith("-ERR no room for another stream")
    assert replies[2] == 1


# --- groups ---------------------------------------------------------------------------------------------


def test_no_group_comes_into_being_beyond_the_cap(house: House) -> None:
    for command in (
        XGroupCreate(stream="s", group="new", start=0),
        weir_commands.EnsureGroup(stream="s", group="new", start=0),
    ):
        refusal = house.refused(command)
        assert (refusal.code, refusal.members) == ("invalid", {"limit": "groups_max"})
        assert refusal.redis.startswith("ERR no room for another group of the stream 's'")
    assert of_words(house, "XGROUP", "CREATE", "s", "g", "0").startswith("-BUSYGROUP"), "it is there"
    assert house.run(weir_commands.EnsureGroup(stream="s", group="g", start=0)) is False


# --- consumers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "XREADGROUP GROUP g new STREAMS s >",
        "XREADGROUP GROUP g new STREAMS t s > >",
        "XREADGROUP GROUP g new BLOCK 10 STREAMS s >",
        "XREADGROUP GROUP g new STREAMS s 0",
        "XGROUP CREATECONSUMER s g new",
        "XCLAIM s g new 0 1-0",
        "XCLAIM s g new 0 1-0 LASTID 3-0",
        "XAUTOCLAIM s g new 0 0",
    ],
)
def test_no_consumer_comes_into_being_beyond_the_cap(house: House, words: str) -> None:
    """Nor is anything else done by the command that would need it, not even in the streams with room."""
    reply = of_words(house, *words.split())
    assert reply.startswith("-ERR no room for another consumer of the group 'g', which may have 2: ")
    assert "consumers_max" in reply
    assert house.call(*words.replace("new", "b").split()) is not None or "BLOCK" in words


def test_entries_are_not_handed_over_to_a_consumer_beyond_the_cap(house: House) -> None:
    heir = weir_commands.DeleteConsumer(stream="s", group="g", consumer="a", transfer_to="new")
    assert house.refused(heir).members == {"limit": "consumers_max"}
    assert house.run(weir_commands.DeleteConsumer(stream="s", group="g", consumer="a", transfer_to="b")) == 1


# --- what no client asked for -----------------------------------------------------------------------------


def test_an_entry_whose_dead_letter_stream_has_no_room_stays_pending(house: House) -> None:
    """It goes on being delivered, and becomes a dead letter once there is room."""
    full(house)
    policy = {"dead_letter_stream": "dead", "max_deliveries": 1, "ack_timeout_ms": 10}
    house.run(weir_commands.EnsureGroup(stream="t", group="x", start=0, policy=policy))
    read = XReadGroup(group="x", consumer="c", streams=[("t", Cursor.NEW)])
    house.run(read)
    house.pass_ms(10)
    house.keep_house()
    assert [(row.consumer, row.delivery_count) for row in house.key("t").groups["x"].pending.values()] == [
        (None, 1)
    ], "housekeeping gave it back"
    assert house.call("XCLAIM", "t", "x", "c", "0", "1-0") == [["1-0", ["a", "1"]]]
    by_hand = weir_commands.DeadLetterEntries(stream="t", group="x", ids=[id_of("1-0")], reason="r")
    assert house.refused(by_hand).members == {"limit": "streams_max"}
    house.call("DEL", "u")
    house.pass_ms(10)
    house.keep_house()
    assert house.live("dead")
    assert not house.key("t").groups["x"].pending


def test_two_groups_that_bury_in_one_turn_share_the_last_room(house: House) -> None:
    """The one that comes second keeps its entries; nothing is lost, nothing raises."""
    for stream in ("s", "t"):
        group = {"dead_letter_stream": f"dead-{stream}", "max_deliveries": 1, "ack_timeout_ms": 10}
        house.call("XGROUP", "DESTROY", stream, "g")
        house.run(weir_commands.EnsureGroup(stream=stream, group="g", start=0, policy=group))
        house.run(reading("c", stream))
    house.pass_ms(10)
    house.keep_house()
    held = {stream: len(house.key(stream).groups["g"].pending) for stream in ("s", "t")}
    assert sorted(held.items()) in ([("s", 0), ("t", 1)], [("s", 3), ("t", 0)])
    assert len(house.keyspace.keys) == 3


async def test_a_log_with_more_than_the_caps_loads_whole() -> None:
    """Caps that were lowered take nothing away."""
    storage = MemoryStorage()
    for caps in (Caps(), Caps(1, 1, 1)):
        async with Engine.open(storage, clock=HandClock(1_000), fsync="always", caps=caps) as engine:
            if caps == Caps():
                for stream in ("s", "t"):
                    await reply_to(engine, XAdd(stream=stream, bodies=[entries.body([("a", "1")])]))
                    for group in ("g", "h"):
                        await reply_to(engine, XGroupCreate(stream=stream, group=group, start=0))
                        await reply_to(
                            engine, XReadGroup(group=group, consumer="c", streams=[(stream, Cursor.NEW)])
                        )
            else:
                await reply_to(engine, weir_commands.Publish(parts=[adding("s"), adding("t")]))
                assert (
                    await reply_to(engine, XReadGroup(group="h", consumer="c", streams=[("t", 0)]))
                    is not None
                )
