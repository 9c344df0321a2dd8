"""Frames that are refused, and those after which a conversation ends."""

import re
from typing import Final

import pytest

from app.http import strict_json
from tests.app.conversing import Json, SocketWorld, names_of, working

FIELDS: Final = {"fields": {"a": "1"}}
CONSUME: Final = {"sub": "x", "stream": "s", "group": "g", "consumer": "c"}
REFUSED: Final[list[tuple[str, Json, str]]] = [
    ("nothing", {}, "/op"),
    ("ping", {"more": 1}, "/more"),
    ("ping", {"`a` - at `$.ref`": 1}, "/`a` - at `$.ref`"),
    ("ping", {"ref": None, "more": 1}, "/more"),
    ("ping", {"more": None}, "/more"),
    ("credit", {"sub": "w", "n": None}, "/n"),
    ("credit", {"sub": None, "n": 1}, "/sub"),
    ("publish", {"stream": None, **FIELDS, "maxlen": "x"}, "/stream"),
    ("publish", {"stream": "s", **FIELDS, "minid": None, "maxlen": "x"}, "/maxlen"),
    ("publish", {"stream": "s", "fields": None}, "/entries"),
    ("ping", {"ref": "x" * 129}, "/ref"),
    ("publish", {"stream": "s"}, "/entries"),
    ("publish", {"stream": "s", **FIELDS, "entries": [FIELDS]}, "/entries"),
    ("publish", {"stream": "s", "entries": [FIELDS], "id": "1-0"}, "/id"),
    ("publish", {"stream": "s", "entries": []}, ""),
    ("publish", {"stream": "s", "entries": {}}, "/entries"),
    ("publish", {"stream": "s", "entries": [FIELDS, {"fields": {"a": None}}]}, "/entries/1/fields/a"),
    ("publish", {"stream": "s", "fields": {}}, "/fields"),
    ("publish", {"stream": "s", "fields": {"a": []}}, "/fields/a"),
    ("publish", {"stream": "s", **FIELDS, "maxlen": -1}, "/maxlen"),
    ("publish", {"stream": "s", **FIELDS, "maxlen": 1, "minid": "1-0"}, "/maxlen"),
    ("publish", {"stream": "s", **FIELDS, "refs": "acked"}, "/refs"),
    ("publish", {"stream": "s", **FIELDS, "maxlen": 1, "refs": "none"}, "/refs"),
    ("publish", {"stream": "s", **FIELDS, "idempotency_key": ""}, "/idempotency_key"),
    ("publish", {"stream": "s", **FIELDS, "idempotency_key": "ł"}, "/idempotency_key"),
    ("publish", {"stream": "s", **FIELDS, "durability": "replicated:1"}, "/durability"),
    ("publish", {"stream": 1, **FIELDS}, "/stream"),
    ("publish", FIELDS, "/stream"),
    ("publish", {"stream": "s", **FIELDS, "approx": "yes"}, "/approx"),
    ("subscribe", {"sub": "", "streams": {"s": "0"}}, "/sub"),
    ("subscribe", {"sub": "x" * 65, "streams": {"s": "0"}}, "/sub"),
    ("subscribe", {"sub": "ł" * 33, "streams": {"s": "0"}}, "/sub"),
    ("subscribe", {"sub": "t", "streams": {"s": "0"}}, "/sub"),
    ("subscribe", {"sub": "x", "streams": {}}, "/streams"),
    ("subscribe", {"sub": "x", "streams": {"s": 0}}, "/streams"),
    ("subscribe", {"sub": "x", "streams": {str(n): "0" for n in range(7)}}, "/streams"),
    ("subscribe", {"sub": "x", "streams": {"s": "0"}, "credit": -1}, "/credit"),
    ("subscribe", {"sub": "x", "streams": {"s": "0"}, "credit": 1_000_001}, "/credit"),
    ("subscribe", {"sub": "x", "streams": {"s": "0"}, "last": 5}, "/last"),
    ("subscribe", {"sub": "x", "streams": {"s": "$"}, "last": 101}, "/last"),
    ("consume", {**CONSUME, "sub": "t"}, "/sub"),
    ("consume", {**CONSUME, "claim_min_idle_ms": 999}, "/claim_min_idle_ms"),
    ("consume", {**CONSUME, "noack": True}, "/credit"),
    ("consume", {**CONSUME, "create": 0}, "/create"),
    ("ack", {"sub": "none", "ids": ["1-0"]}, "/sub"),
    ("ack", {"sub": "t", "ids": ["1-0"]}, "/sub"),
    ("ack", {"sub": "w", "ids": []}, "/ids"),
    ("ack", {"sub": "w", "ids": ["1-0", 1]}, "/ids/1"),
    ("ack", {"sub": "w", "ids": ["1-0"] * 101}, "/ids"),
    ("ack", {"sub": "w", "ids": ["1-0"], "delete": "all"}, "/delete"),
    ("nack", {"sub": "w", "ids": ["1-0"], "mode": "loud"}, "/mode"),
    ("credit", {"sub": "w", "n": 0}, "/n"),
    ("credit", {"sub": "w", "n": 1_000_000}, "/n"),
    ("credit", {"sub": "t", "n": 1}, "/sub"),
    ("unsubscribe", {"sub": "none"}, "/sub"),
    ("command", {"command": "PING", "more": 1}, "/more"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "members", "pointer"), REFUSED)
def test_a_wrong_frame_is_refused_and_the_conversation_goes_on(op: str, members: Json, pointer: str) -> None:
    """422 with the place where it is wrong, and the frame's `ref` if that can be read."""
    world = SocketWorld()
    world.say("subscribe", sub="t", streams={"s": "0"})
    working(world)
    (result,) = world.say(op, **{"ref": 5, **members})
    assert result["op"] == "error"
    assert result["problem"]["code"] == "invalid"
    assert result["problem"]["request_id"] == "r-1"
    assert result.get("ref") == (5 if "ref" not in members else None)
    if pointer or "errors" in result["problem"]:
        assert result["problem"]["errors"][0]["pointer"] == pointer
    assert not re.search("Expected|Object|Invalid|should", result["problem"]["detail"])
    assert world.closed is None
    assert world.say("ping") == [{"op": "pong"}]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ({"op": "publish", "stream": "a//b", **FIELDS}, "invalid_name"),
        ({"op": "publish", "stream": "", **FIELDS}, "invalid_name"),
        ({"op": "publish", "stream": "x" * 513, **FIELDS}, "invalid_name"),
        ({"op": "publish", "stream": "s", **FIELDS, "if_last_id": "1" * 65}, "malformed_id"),
        ({"op": "publish", "stream": "s", **FIELDS, "id": "x"}, "malformed_id"),
        ({"op": "publish", "stream": "s", **FIELDS, "if_last_id": "x"}, "malformed_id"),
        ({"op": "publish", "stream": "s", "entries": [FIELDS] * 101}, "too_many_entries"),
        ({"op": "publish", "stream": "s", "fields": {"a": "x" * 1_000}}, "entry_too_large"),
        ({"op": "subscribe", "sub": "x", "streams": {"s": "x"}}, "malformed_id"),
        ({"op": "subscribe", "sub": "x", "streams": {"..": "0"}}, "invalid_name"),
        ({"op": "subscribe", "sub": "x", "streams": {"": "0"}}, "invalid_name"),
        ({"op": "subscribe", "sub": "x", "streams": {"s": "1" * 65}}, "malformed_id"),
        ({"op": "ack", "sub": "w", "ids": ["1-0", "x"]}, "malformed_id"),
        ({"op": "consume", **CONSUME, "stream": "none"}, "no_stream"),
        ({"op": "consume", **CONSUME, "group": "none"}, "no_group"),
        ({"op": "consume", **CONSUME, "create": "x"}, "malformed_id"),
        ({"op": "consume", **CONSUME, "group": ""}, "invalid_name"),
        ({"op": "consume", **CONSUME, "consumer": "x" * 513}, "invalid_name"),
    ],
)
def test_refusals_have_the_codes_of_rest(frame: Json, code: str) -> None:
    """The same registry, and nothing is left behind: neither a name in use nor an entry."""
    world = SocketWorld()
    working(world)
    before = world.texts("s")
    (result,) = world.say(frame.pop("op"), ref="r", **frame)
    assert (result["op"], result["ref"], result["problem"]["code"]) == ("error", "r", code)
    assert names_of(world.session) == ["w"]
    assert world.texts("s") == before


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[]", b"1", b'"x"', b"null", b'{"op":"ping"', b'{"op":"ping",}', b"{'op':'ping'}",
        b'{"op":"ping","ref":NaN}', b'{"op":"ping"}{"op":"ping"}', b'{"op":"x","a":' + b"[" * 40,
        b"\xff",
    ],
)  # fmt: skip
def test_what_is_no_json_object_ends_the_conversation(text: bytes) -> None:
    """4501: a client that sends this would only do so again."""
    world = SocketWorld()
    world.do(world.session.receive, text)
    assert world.sent[-1]["problem"]["code"] == "malformed_json"
    assert world.closed == (4501, "malformed_json")
    sent = len(world.sent)
    world.tell("ping")
    assert len(world.sent) == sent


def test_a_binary_message_ends_the_conversation(world: SocketWorld) -> None:
    """The same."""
    world.do(world.session.receive_binary)
    assert world.closed == (4501, "malformed_json")


@pytest.mark.parametrize(
    "text",
    [
        b'{"op":"ping","ref":1,"ref":2}',
        b'{"op":"ping","op":"ping"}',
        b'{"op":"subscribe","sub":"x","streams":{"s":"0","s":"1"}}',
        b'{"op":"publish","stream":"s","stream":"t","fields":{"a":"1"}}',
        b'{"op":"publish","stream":"s","fields":{"a":"1","a":"2"}}',
        b'{"op":"publish","stream":"s","entries":[{"fields":{"a":"1"},"fields":{"a":"2"}}]}',
        b'{"op":"ack","sub":"w","ids":["1-0"],"ids":["2-0"]}',
        b'{"op":"ack","sub":"w","su\\u0062":"w","ids":["1-0"]}',
    ],
)
def test_no_member_stands_twice(text: bytes) -> None:
    """It is unclear which was meant."""
    world = SocketWorld()
    working(world)
    world.do(world.session.receive, text)
    assert world.sent[-1]["problem"]["code"] == "invalid"
    assert "twice" in world.sent[-1]["problem"]["detail"]
    assert world.texts("t") == []


def test_a_null_member_of_a_frame_is_not_given(world: SocketWorld) -> None:
    """As in REST's bodies: docs/decisions/null-is-not-given.md."""
    assert world.say("ping", ref=None) == [{"op": "pong"}]
    (stored,) = world.say("publish", ref=1, stream="s", **FIELDS, entries=None, maxlen=None, minid=None)
    assert (stored["op"], stored["ref"], len(stored["ids"])) == ("ok", 1, 1)
    world.do(world.session.receive, b'{"op":"ping","ref" : null , "ref":2}')
    assert world.sent[-1]["problem"]["errors"] == [{"pointer": "/ref", "detail": "the member occurs twice"}]


def test_a_frame_with_escapes_is_a_frame(world: SocketWorld) -> None:
    """Quotation marks in strings are no reason to refuse it."""
    (result,) = world.say("auth", token='a"b\\"c', ref='"')
    assert (result["op"], result["ref"]) == ("ok", '"')


@pytest.mark.parametrize(("last", "ref"), [(b"", None), (b',"ref":8', 8)])
def test_the_ref_of_a_refused_frame_is_its_own(last: bytes, ref: int | None) -> None:
    """Not that of what is inside of it."""
    world = SocketWorld()
    world.do(world.session.receive, b'{"op":"ping","inner":{"ref":7}%b}' % last)
    (result,) = world.sent
    assert (result["problem"]["errors"][0]["pointer"], result.get("ref")) == ("/inner", ref)


LONG: Final = b"[" + b"1," * 5_000 + b"1]"


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        (b'{"op":"ping","ref":7,"more":%b}', 7),
        (b'{"more":%b,"op":"ping","ref":"r"}', "r"),
        (b'{"op":"ping","ref":"r","ref":8,"more":%b}', 8),
        (b'{"op":"ping","ref":%b}', None),
        (b'{"op":"publish","ref":7,"stream":"s","entries":[],"entries":%b,"x":null}', 7),
        (b'{"op":"publish","ref":7,"stream":"s","more":%b,"entries":[]}', 7),
    ],
)
def test_of_a_long_frame_it_is_not_looked_for_what_is_wrong(
    text: bytes, ref: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To take all of its values apart takes half a second. It is refused as others are."""
    world = SocketWorld()
    parse = strict_json.parse

    def bounded(body: bytes, *, depth_max: int, depth: int = 0) -> strict_json.Json:
        assert len(body) < len(LONG)
        return parse(body, depth_max=depth_max, depth=depth)

    monkeypatch.setattr(strict_json, "parse", bounded)
    world.do(world.session.receive, text % LONG)
    (result,) = world.sent
    assert (result["op"], result["problem"]["code"], result.get("ref")) == ("error", "invalid", ref)
    assert world.say("ping") == [{"op": "pong"}]


def test_a_long_text_that_is_no_object_ends_the_conversation() -> None:
    world = SocketWorld()
    world.do(world.session.receive, b'{"op":"ping","more":%b' % LONG)
    assert world.closed == (4501, "malformed_json")


def test_entries_that_were_read_with_their_frame_are_published_alike() -> None:
    """A long one is read in a thread, before it is known whether it may be published."""
    world = SocketWorld()
    for text in (
        b'{"op":"publish","ref":1,"stream":"s","entries":[{"fields":{"a":"1"}}]}',
        b'{"op":"publish","ref":1,"stream":"s","entries":[{"fields":{}}]}',
        b'{"op":"ping","ref":1}',
        b'{"op":"ping","ref":1,"x":2}',
    ):
        world.do(world.session.receive, text)
        world.settle()
        frame, publication = world.session.read_long(text)
        world.do(world.session.handle, frame, len(text), publication)
        world.settle()
        ids = dict.fromkeys(("ids", "first_id", "last_id"))
        one, other = ({**answer, **ids} for answer in world.sent[-2:])
        assert one == other
    assert len(world.texts("s")) == 2
