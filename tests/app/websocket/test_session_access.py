"""What a token lets a conversation do, and how it ends with its token."""

from app.auth import ANONYMOUS, UNAUTHENTICATED, Grant, Principal
from app.errors import RefusalError
from app.live.sessions import AccessEnd
from tests.app.conversing import Json, SocketWorld
from tests.app.policies import principal_with


def test_what_is_not_allowed_is_refused_by_frame() -> None:
    """Each action on each stream; the conversation goes on."""
    grants: list[str] = []
    world = SocketWorld(principal_with())
    consume = {"sub": "w", "stream": "s", "group": "g", "consumer": "c", "create": "0"}
    frames: list[tuple[str, Json, str]] = [
        ("publish", {"fields": {"a": "1"}, "stream": "s"}, "write:s"),
        # An end cannot be undone.
        ("publish", {"fields": {"a": "1"}, "stream": "s", "close": True}, "close:s"),
        ("subscribe", {"sub": "t", "streams": {"s": "0"}}, "read:s"),
        ("consume", consume, "consume:s"),
        # To create the group is another action.
        ("consume", consume, "manage:s"),
    ]
    for op, members, grant in frames:
        (refused,) = world.say(op, ref=1, **members)
        assert refused["problem"]["code"] == "forbidden"
        grants.append(grant)
        world.tokens["t"] = principal_with(*grants)
        assert world.say("auth", token="t")[0]["op"] == "ok"
        if grant != "consume:s":
            assert world.say(op, ref=1, **members)[0]["op"] == "ok"


def test_a_socket_without_a_token_may_only_show_one() -> None:
    """Every other frame is refused; a wrong token closes with 4500."""
    world = SocketWorld(UNAUTHENTICATED)
    world.tokens["good"] = principal_with("write:s")
    world.tokens["wrong"] = RefusalError("unauthenticated", "unknown")
    for op, members in (
        ("publish", {"stream": "s", "fields": {"a": "1"}}),
        ("subscribe", {"sub": "t", "streams": {"s": "0"}}),
        ("command", {"command": ["PING"]}),
    ):
        (refused,) = world.say(op, ref=1, **members)
        assert (refused["ref"], refused["problem"]["code"]) == (1, "unauthenticated")
    assert world.say("ping") == [{"op": "pong"}]
    assert world.say("auth", token="good", ref=2) == [{"op": "ok", "ref": 2, "expires_at": None}]
    assert world.say("publish", stream="s", fields={"a": "1"})[0]["op"] == "ok"
    (refused,) = world.say("auth", token="wrong", ref=3)
    assert (refused["ref"], refused["problem"]["code"]) == (3, "unauthenticated")
    assert world.closed == (4500, "unauthenticated")


def test_a_narrower_token_ends_what_it_does_not_allow() -> None:
    """`revoked`, reason `forbidden`; the rest goes on, and the connection stays open."""
    world = SocketWorld(ANONYMOUS)
    world.say("subscribe", sub="t", streams={"s": "0", "other": "0"})
    world.say("subscribe", sub="u", streams={"s": "0"})
    world.say("consume", sub="w", stream="s", group="g", consumer="c", create="0")
    world.tokens["narrow"] = principal_with("read:s")
    answered = world.say("auth", token="narrow", ref=1)
    assert answered[0] == {"op": "ok", "ref": 1, "expires_at": None}
    revoked = [(frame["sub"], frame["reason"]) for frame in answered if frame["op"] == "revoked"]
    assert revoked == [("t", "forbidden"), ("w", "forbidden")]
    world.add("s")
    world.settle()
    assert [frame["sub"] for frame in world.sent if frame["op"] == "entries"] == ["u"]
    assert world.closed is None


def test_a_token_for_one_consumer_ends_the_others() -> None:
    """And those of other groups."""
    world = SocketWorld(ANONYMOUS)
    for sub, group, consumer in (("own", "g", "c"), ("another", "g", "d"), ("elsewhere", "h", "c")):
        world.say("consume", sub=sub, stream="s", group=group, consumer=consumer, create="0")
    grant = {"actions": ["consume"], "streams": "s", "groups": "g", "consumer": "c"}
    world.tokens["narrow"] = Principal("tester", [Grant.from_value(grant)])
    answered = world.say("auth", token="narrow", ref=1)
    revoked = [(frame["sub"], frame["reason"]) for frame in answered if frame["op"] == "revoked"]
    assert revoked == [("another", "forbidden"), ("elsewhere", "forbidden")]


def test_a_token_that_ends_closes_the_connection() -> None:
    world = SocketWorld(principal_with("read:*"))
    world.do(world.session.expiring, 60_000)
    assert world.sent[-1] == {"op": "expiring", "after_ms": 60_000}
    world.do(world.session.end_access, AccessEnd.EXPIRED)
    assert world.closed == (4002, "token_expired")
    world = SocketWorld(principal_with("read:*"))
    world.do(world.session.end_access, AccessEnd.REVOKED)
    assert world.closed == (4500, "token_revoked")
