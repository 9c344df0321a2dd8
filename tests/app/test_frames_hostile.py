"""Frames with hostile values: each is answered under its `ref`, and the conversation goes on."""

from typing import Final

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tests import halves
from tests.app.conversing import names_of
from tests.app.pushing import Json, PushPeer, PushWorld, world_of
from tests.bounds import bounded

WORK: Final = {"sub": '"w"', "stream": '"s"', "group": '"g"', "consumer": '"c"'}
# A valid frame of every kind, member by member as JSON text.
FRAMES: Final[dict[str, dict[str, str]]] = {
    "auth": {"token": '"t"'},
    "publish": {"stream": '"s"', "fields": '{"a":"1"}', "maxlen": "5", "idempotency_key": '"k"'},
    "subscribe": {"sub": '"t"', "streams": '{"s":"0"}', "credit": "1", "batch_max": "1"},
    "consume": {**WORK, "create": '"0"', "credit": "1", "claim_min_idle_ms": "1000"},
    "ack": {"sub": '"held"', "ids": '["5-1"]', "delete": '"keep"'},
    "nack": {"sub": '"held"', "ids": '["5-1"]', "mode": '"fail"'},
    "credit": {"sub": '"held"', "n": "1"},
    "unsubscribe": {"sub": '"held"'},
    "command": {"command": '["XLEN","s"]'},
    "ping": {},
}
MORE: Final = {
    "publish": ("entries", "id", "encoding", "minid", "refs", "if_last_id", "durability", "nomkstream"),
    "subscribe": ("last",),
    "consume": ("noack",),
}
TEXTS: Final = (
    *(
        r'"\ud800"',
        r'"x\udfff"',
        r'"\udc00\ud800"',
        r'"\u0000"',
        r'"\u007f"',
        r'"a\/b"',
        '"."',
        '""',
        '"é\u2028"',
    ),
    *(
        '"' + "n" * 513 + '"',
        '"$"',
        '"5-18446744073709551616"',
        '"18446744073709551615-18446744073709551615"',
    ),
)
NUMBERS: Final = (
    "1e999",
    "-1e999",
    "1e-999",
    "-0",
    "0.5",
    "1" + "0" * 30,
    "9" * 5_000,
    "18446744073709551616",
)
NESTED: Final = ("[" * 17 + "]" * 17, "[" * 5_000 + "]" * 5_000, '{"a":' * 17 + "1" + "}" * 17)
LEAVES: Final = st.sampled_from([*TEXTS, *NUMBERS, *NESTED, "null", "true", "[]", "{}", '{"a":1,"a":2}'])
VALUES: Final = st.one_of(
    LEAVES,
    st.builds("[{}]".format, LEAVES),
    st.builds('{{"a":{}}}'.format, LEAVES),
    st.builds("{{{}:1}}".format, st.sampled_from(TEXTS)),
    st.builds('[{{"fields":{{"a":{}}}}}]'.format, LEAVES),
    st.builds('["XADD","s","*","a",{}]'.format, LEAVES),
)


house = world_of(bounded(log_requests="none", count_max=100, json_depth_max=16), scope="module")


@pytest.fixture(scope="module")
def peer(house: PushWorld) -> PushPeer:
    return house.connect()


@settings(max_examples=halves.some(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), op=st.sampled_from(sorted(FRAMES)), ref_at=st.sampled_from(["first", "last"]))
def test_every_refusal_has_its_ref(
    house: PushWorld, peer: PushPeer, data: st.DataObject, op: str, ref_at: str
) -> None:
    """Any value in any member: 4xx under the frame's `ref`, or success; never the end."""
    members = dict(FRAMES[op])
    names = [*members, *MORE.get(op, ()), "unknown", "op"]
    members[data.draw(st.sampled_from(names))] = data.draw(VALUES)
    members = {"op": f'"{op}"', **members}
    ref = {"ref": '"r"'}
    members = {**ref, **members} if ref_at == "first" else {**members, **ref}
    hand_in(house, peer, members)


@pytest.mark.parametrize("op", sorted(FRAMES))
@pytest.mark.parametrize("value", [r'"\ud800"', "1e999", "[" * 5_000 + "]" * 5_000])
def test_what_cannot_be_read_in_a_member_that_is_not_looked_at(
    house: PushWorld, peer: PushPeer, op: str, value: str
) -> None:
    """422, like what cannot be read in one that is."""
    members = {"op": f'"{op}"', **FRAMES[op], "ref": '"r"', "unknown": value}
    answer = hand_in(house, peer, members)
    assert (answer["op"], answer["problem"]["status"]) == ("error", 422)


def hand_in(house: PushWorld, peer: PushPeer, members: dict[str, str]) -> Json:
    """Send a frame that has the `ref` "r"; its answer, after which the conversation is as before."""
    text = "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"
    before = len(peer.frames)

    def answers() -> list[Json]:
        return [one for one in peer.frames[before:] if one["op"] in ("ok", "error", "pong")]

    house.do(peer.push.received, text.encode())
    house.until(lambda: len(answers()) > 0)
    house.do(peer.say, "ping", ref="then")
    house.settle()
    assert peer.wire.closed is None
    assert answers().pop() == {"op": "pong", "ref": "then"}
    assert [one.get("ref") for one in answers()] == ["r", "then"]
    answer = answers()[0]
    if answer["op"] == "error":
        assert 400 <= answer["problem"]["status"] < 500
        assert answer["problem"]["code"] != "malformed_json"
    for name in names_of(peer.session):
        house.do(peer.say, "unsubscribe", sub=name)
    house.do(peer.say, "consume", sub="held", stream="h", group="g", consumer="c", create="0")
    house.settle()
    return answer
