"""A conversation without a socket, beside the engine's pure commands.

Knows: frames, what a group is. Must never know: event loops, connections.
"""

from typing import Final

import pytest

from app.doors.websocket.stream_subscription import StreamSubscription
from app.live.feeds import FeedPage
from engine import EngineError, ids
from engine.commands import types
from engine.commands.weir_commands import UpdateGroup
from engine.entries import body
from engine.replies import Entries
from tests.app.conversing import LIMITS, Json, SocketWorld, credit_of, named, names_of, ops, working

# ---- publishing


def test_a_publish_is_answered_with_its_ids(world: SocketWorld) -> None:
    """In order, for a list as for one entry; what is stored is what REST would store."""
    (result,) = world.say("publish", stream="s", entries=[{"fields": {"a": 1}}, {"fields": {"a": 2}}], ref=7)
    assert (result["op"], result["ref"], result["count"], result["ids"]) == ("ok", 7, 2, world.texts("s"))
    (result,) = world.say("publish", stream="s", id="9999999999999-1", fields=[["a", "1"], ["a", "2"]])
    assert result["ids"] == ["9999999999999-1"]
    assert "ref" not in result


def test_a_publish_takes_the_options_of_xadd(world: SocketWorld) -> None:
    """Trimming, nomkstream, the expected last ID, the idempotency key."""
    world.say("publish", stream="s", id="1-0", fields={"a": "1"})
    (result,) = world.say("publish", stream="s", id="2-0", fields={"a": "2"}, maxlen=1, approx=False)
    assert (result["trimmed"], world.texts("s")) == (1, ["2-0"])
    (result,) = world.say("publish", stream="t", fields={"a": "1"}, nomkstream=True)
    assert result["problem"]["code"] == "no_stream"
    (result,) = world.say("publish", stream="s", fields={"a": "1"}, if_last_id="1-0")
    assert result["problem"]["code"] == "last_id_mismatch"
    first, again = (
        world.say("publish", stream="s", fields={"a": "1"}, idempotency_key="k")[0] for _ in range(2)
    )
    assert (again["ids"], first["duplicate"], again["duplicate"]) == (first["ids"], False, True)


# ---- following


def test_a_tail_begins_at_most_a_batch_back(world: SocketWorld) -> None:
    """One less and as many are taken, one more is refused."""
    world.add("s", 3)
    for last in (LIMITS.batch_max - 1, LIMITS.batch_max):
        assert world.say("subscribe", sub=f"t{last}", streams={"s": "$"}, last=last)[0]["op"] == "ok"
    refused = world.say("subscribe", sub="t", streams={"s": "$"}, last=LIMITS.batch_max + 1)
    assert refused[0]["problem"]["errors"][0]["pointer"] == "/last"


def test_from_now_on_is_resolved_once(world: SocketWorld) -> None:
    """`ok` says where `$` is; nothing before it is sent."""
    world.add("s", 3)
    sent = world.say("subscribe", sub="t", streams={"s": "$", "empty": "$"})
    assert sent[0]["next"] == {"s": world.texts("s")[-1], "empty": "0-0"}
    assert ops(sent) == ["ok", "caught_up", "caught_up"]


def test_a_gap_costs_no_credit(world: SocketWorld) -> None:
    """It is reported with what is known of it."""
    world.add("s", 3)
    first, _, last = world.texts("s")
    world.run(types.XTrim(stream="s", trim=types.Trim(maxlen=1)))
    sent = world.say("subscribe", sub="t", streams={"s": first}, credit=1)
    assert sent[1] == {
        "op": "gap", "sub": "t", "stream": "s", "requested": first, "first_available": last, "lost": None
    }  # fmt: skip
    assert ops(sent) == ["ok", "gap", "entries", "caught_up", "paused"]


def test_an_encoded_page_is_shared() -> None:
    """Two sockets with a subscription of the same name send the very same bytes."""
    page = FeedPage("s", 0, Entries((b'{"id":"1-0","fields":{"a":"1"}}',), 1, 1 << 64, 1 << 64), "")
    made = []
    for world in (SocketWorld(), SocketWorld()):
        world.tell("subscribe", sub="t", streams={"s": "0"})
        tail = named(world.session, "t")
        assert isinstance(tail, StreamSubscription)
        made.append(tail._frame(page))  # noqa: SLF001 - what it sends of a page
    assert made[0] is made[1]


# ---- working


def test_a_consumer_gets_its_own_entries_first(world: SocketWorld) -> None:
    """What it had not acknowledged, with its count, then `caught_up`, then what is new."""
    working(world)
    again = SocketWorld()
    again.engine.keyspace = world.keyspace
    again.add("s")
    sent = again.say("consume", sub="w", stream="s", group="g", consumer="c")
    assert ops(sent) == ["ok", "entries", "caught_up", "entries"]
    assert [one["delivery_count"] for one in sent[1]["entries"]] == [2, 2, 2]
    assert "delivery_count" not in sent[3]["entries"][0]
    assert again.pushed("w") == again.texts("s")


def test_a_consumer_is_told_that_its_group_is_paused_and_that_it_is_not(world: SocketWorld) -> None:
    """Once each, whatever comes meanwhile; one that begins is told too."""
    working(world, 1)
    assert pausing(world, paused=True) == [("paused", "group")]
    world.add("s")
    assert pausing(world, paused=True) == []
    again = SocketWorld()
    again.engine.keyspace = world.keyspace
    sent = again.say("consume", sub="w", stream="s", group="g", consumer="other")
    assert [(one["op"], one.get("reason")) for one in sent] == [
        ("ok", None),
        ("paused", "group"),
        ("caught_up", None),
    ]
    assert pausing(world, paused=False) == [("resumed", None), ("entries", None)]


def pausing(world: SocketWorld, *, paused: bool) -> list[tuple[str, str | None]]:
    """What is sent when the group is paused or resumed: of each frame what it is, and why."""
    before = len(world.sent)
    world.run(UpdateGroup(stream="s", group="g", policy={"paused": paused}))
    world.settle()
    return [(one["op"], one.get("reason")) for one in world.sent[before:]]


def test_an_acknowledgement_gives_its_credit_back(world: SocketWorld) -> None:
    """So does giving back; an ID that is not held gives nothing."""
    working(world, 5, credit=2)
    first, second = world.pushed("w")
    assert ops(world.sent)[-1] == "paused"
    sent = world.say("ack", sub="w", ids=[first, first, "1-1"], ref=1)
    assert sent[0] == {"op": "ok", "ref": 1, "acknowledged": 1}
    assert len(world.pushed("w")) == 3
    assert ops(world.say("ack", sub="w", ids=[first])) == []
    sent = world.say("nack", sub="w", ids=[second], ref=2)
    assert sent[0] == {"op": "ok", "ref": 2, "released": 1}
    # It has no owner now, so it comes first.
    assert sent[1]["entries"][0]["id"] == second
    assert sent[1]["entries"][0]["delivery_count"] == 2


AWAY: Final = EngineError("backend_unavailable", "ERR away", "the backend cannot be used now")


def refuse(world: SocketWorld, error: EngineError) -> None:
    """The backend answers no read."""
    world.engine.refusals = dict.fromkeys((types.XRead, types.XReadGroup), error)
    world.do(world.engine.serve)


def test_an_outage_is_said_once_to_whom_has_room(world: SocketWorld) -> None:
    """However often reads fail meanwhile; what has no credit hears of it when it gets some."""
    working(world, 1)
    world.say("subscribe", sub="spent", streams={"s": "0"}, credit=0)
    before = len(world.sent)
    refuse(world, AWAY)
    world.settle()
    assert world.sent[before:] == []
    world.do(world.session.table.begin_outage)
    world.settle()
    world.say("credit", sub="spent", n=1)
    world.engine.refusals.clear()
    world.do(world.session.table.end_outage)
    world.do(world.session.table.end_outage)
    said = [(one["op"], one["sub"], one.get("reason")) for one in world.sent[before:]]
    assert said == [
        ("paused", "w", "backend"),
        ("paused", "spent", "backend"),
        ("resumed", "w", None),
        ("resumed", "spent", None),
    ]
    world.settle()
    assert world.pushed("spent") == world.texts("s")


def test_nothing_that_was_sent_once_only_is_looked_for(world: SocketWorld) -> None:
    """With `noack` nothing is pending: it reads on."""
    working(world, 1, noack=True, credit=9)
    world.do(world.engine.lose, AWAY)
    world.settle()
    world.add("s")
    world.settle()
    assert world.pushed("w") == world.texts("s")


def test_an_acknowledgement_may_delete(world: SocketWorld) -> None:
    """XACKDEL."""
    working(world, 1)
    (result,) = world.say("ack", sub="w", ids=world.pushed("w"), delete="acked", ref=1)
    assert (result["acknowledged"], world.texts("s")) == (1, [])


@pytest.mark.no_cover
@pytest.mark.parametrize("place", [0, 12_000, 24_999])
def test_whatever_it_holds_is_looked_at_in_turn(world: SocketWorld, place: int) -> None:
    """However much that is: the last gives credit back as the first does, and each time again."""
    working(world, 25_000, credit=25_000)
    for _ in range(2):
        held = [ids.parse(text) or 0 for text in world.pushed("w")][-25_000:]
        claim = types.Claim(ids=[held[place]], min_idle_ms=0)
        world.run(types.XClaim(stream="s", group="g", consumer="other", claim=claim))
        assert credit_of(world.session, "w") == 0
        for _ in range(3):
            world.settle()
        assert credit_of(world.session, "w") == 1
        world.add("s")
        world.settle()


def test_noack_needs_credit_and_holds_nothing(world: SocketWorld) -> None:
    """Only `credit` goes on."""
    world.add("s", 3)
    request = {"sub": "w", "stream": "s", "group": "g", "consumer": "c", "create": "0", "noack": True}
    (result,) = world.say("consume", **request)
    assert result["problem"]["errors"][0]["pointer"] == "/credit"
    world.say("consume", **request, credit=2)
    assert len(world.pushed("w")) == 2
    (result,) = world.say("ack", sub="w", ids=world.pushed("w"), ref=1)
    assert result["op"] == "error"
    world.say("credit", sub="w", n=5)
    assert world.pushed("w") == world.texts("s")


@pytest.mark.parametrize(
    ("command", "reason"),
    [(["XGROUP", "DESTROY", "s", "g"], "group_destroyed"), (["DEL", "s"], "stream_deleted")],
)
def test_a_consumer_is_told_why_it_ends(world: SocketWorld, command: list[str], reason: str) -> None:
    """The group alone, or the whole stream."""
    from app import redis  # noqa: PLC0415 - for this alone

    working(world, 1)
    request = redis.parse([word.encode() for word in command])
    assert request.command is not None
    world.run(request.command)
    world.settle()
    assert world.sent[-1] == {"op": "revoked", "sub": "w", "reason": reason}
    assert names_of(world.session) == []


def test_a_consumer_waits_while_nobody_can_say_what_is_gone(world: SocketWorld) -> None:
    """The backend is away just when its stream is asked for; afterwards it gets the true reason."""
    working(world, 1)
    sent = len(world.sent)
    world.engine.refusals = {types.Exists: AWAY}
    world.run(types.XGroupDestroy(stream="s", group="g"))
    world.settle()
    assert (world.sent[sent:], names_of(world.session)) == ([], ["w"])
    world.engine.refusals = {}
    world.settle()
    assert world.sent[sent:] == [{"op": "revoked", "sub": "w", "reason": "group_destroyed"}]


@pytest.mark.parametrize("code", ["backend_error", "backend_forbidden"])
@pytest.mark.parametrize("sub", ["w", "t"])
def test_a_subscription_whose_stream_alone_is_refused_is_told_so_and_when_it_is_over(
    world: SocketWorld, code: str, sub: str
) -> None:
    """Once, however often; the socket stays open, as in an outage."""
    if sub == "w":
        working(world, 1)
    else:
        world.say("subscribe", sub="t", streams={"s": "0"})
    sent = len(world.sent)
    refuse(world, EngineError(code, "ERR no", "no"))
    world.settle()
    assert world.sent[sent:] == [{"op": "paused", "sub": sub, "reason": "backend"}]
    # That it is followed again says nothing of its entries.
    world.engine.refusals = {
        types.XRange: world.engine.refusals[types.XRead],
        types.XReadGroup: EngineError(code, "ERR", "no"),
    }
    world.engine.execute(types.XAdd(stream="s", bodies=[body([("n", "1")])]))
    world.settle()
    assert len(world.sent) == sent + 1
    world.engine.refusals = {}
    world.settle()
    assert [one["op"] for one in world.sent[sent:]] == ["paused", "resumed", "entries"]
    assert world.pushed(sub) == world.texts("s")
    assert world.closed is None


def test_a_replaced_consumer_gets_a_frame(world: SocketWorld) -> None:
    """Its name is free again, and what it acknowledges is refused."""
    working(world, 1)
    world.do(world.session.table.revoke, named(world.session, "w"), "replaced")
    assert world.sent[-1] == {"op": "revoked", "sub": "w", "reason": "replaced"}
    (result,) = world.say("ack", sub="w", ids=world.pushed("w"), ref=1)
    assert result["problem"]["code"] == "invalid"
    assert ops(world.say("consume", sub="w", stream="s", group="g", consumer="c"))[:2] == ["ok", "entries"]


# ---- the rest


def test_small_frames(world: SocketWorld) -> None:
    """Ping, auth, command."""
    assert world.say("ping", ref="x") == [{"op": "pong", "ref": "x"}]
    assert world.say("auth", token="t", ref=1) == [{"op": "ok", "ref": 1, "expires_at": None}]
    assert world.say("command", command=["PING"], ref=2) == [{"op": "ok", "ref": 2, "result": ["PING"]}]
    assert world.say("ping") == [{"op": "pong"}]


@pytest.mark.parametrize(("members", "synced"), [({}, False), ({"durability": "fsync"}, True)])
def test_a_publisher_may_wait_for_the_disk(world: SocketWorld, members: Json, *, synced: bool) -> None:
    """For each publish by itself."""
    world.tell("publish", stream="s", fields={"a": "1"}, **members)
    assert world.synced == [synced]


def test_a_stopping_gateway_lets_acknowledge(world: SocketWorld) -> None:
    """`goaway`, nothing new, then 4001 as soon as nothing is held."""
    working(world, 1)
    world.do(world.session.table.drain, 500)
    assert world.sent[-1] == {"op": "goaway", "after_ms": 500}
    (result,) = world.say("publish", stream="s", fields={"a": "1"})
    assert result["problem"]["code"] == "draining"
    assert world.closed is None
    world.say("ack", sub="w", ids=world.pushed("w"))
    assert world.closed == (4001, "draining")


def test_a_socket_follows_as_many_streams_as_it_may(world: SocketWorld) -> None:
    """Six, of one subscription or of several, and no seventh; four subscriptions, and no fifth."""
    six = {str(n): "0" for n in range(6)}
    (result,) = world.say("subscribe", sub="t", streams={**six, "6": "0"})
    assert result["problem"]["errors"][0]["pointer"] == "/streams"
    assert world.say("subscribe", sub="t", streams=six)[0]["op"] == "ok"
    (result,) = world.say("subscribe", sub="u", streams={"6": "0"})
    assert result["problem"]["errors"][0]["pointer"] == "/streams"
    world.say("unsubscribe", sub="t")
    for n in range(4):
        assert world.say("subscribe", sub=str(n), streams={"s": "0"})[0]["op"] == "ok"
    (result,) = world.say("subscribe", sub="4", streams={"s": "0"})
    assert result["problem"]["errors"][0]["pointer"] == "/sub"


def test_what_is_held_counts_among_the_credit_that_there_may_be(world: SocketWorld) -> None:
    """Its credit comes back: of ten, three of them held, 999,990 more are the most."""
    working(world, 3, credit=10)
    (result,) = world.say("credit", sub="w", n=999_991)
    assert result["problem"]["errors"][0]["pointer"] == "/n"
    assert world.say("credit", sub="w", n=999_990) == []
