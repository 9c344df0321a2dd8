"""The socket's description: valid AsyncAPI 3, and true of what the code reads and writes.

Knows: the specification's own JSON schema, from npm. Must never know: sockets.
"""

import json
from pathlib import Path
from typing import Any, Final

import httpx
import jsonschema_rs
import pytest

from app.doors.websocket import frame_reader, frames
from app.openapi import asyncapi
from app.settings import Settings
from tests.app.conversing import SocketWorld, named, working

SPECIFICATION: Final = (
    Path(__file__).parents[1] / "sdk" / "node_modules" / "@asyncapi" / "specs" / "schemas" / "3.0.0.json"
)
DOCUMENT: Final[dict[str, Any]] = json.loads(asyncapi.document(Settings()))
SCHEMAS: Final = DOCUMENT["components"]["schemas"]
MESSAGES: Final = DOCUMENT["components"]["messages"]


def faults(value: Any, schema: dict[str, Any]) -> list[str]:
    """What is wrong with a value, by a schema of the document."""
    whole = {**schema, "components": DOCUMENT["components"]}
    return [str(error) for error in jsonschema_rs.validator_for(whole).iter_errors(value)]


def test_it_is_what_the_specification_asks_for() -> None:
    """AsyncAPI's own schema has no complaint; with a member misspelt it has."""
    schema = json.loads(SPECIFICATION.read_text())
    validator = jsonschema_rs.Draft7Validator(schema)
    assert [str(error) for error in validator.iter_errors(DOCUMENT)] == []
    assert not validator.is_valid({**DOCUMENT, "chanels": {}})


def test_references_lead_somewhere() -> None:
    """Each names something, and nothing that is described is left out."""

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [one for inner in value.values() for one in references(inner)]
        return [one for inner in value for one in references(inner)] if isinstance(value, list) else []

    found = set(references(DOCUMENT))
    for reference in found:
        place: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]
    assert {f"#/components/schemas/{name}" for name in SCHEMAS} <= found
    assert {f"#/channels/socket/messages/{name}" for name in MESSAGES} <= found


@pytest.mark.parametrize("name", [kind.__struct_config__.tag for kind in frames.CLIENT_FRAMES])
def test_an_example_is_a_frame(name: str) -> None:
    """It is read as what it shows, and has the described shape."""
    (example,) = MESSAGES[name]["examples"]
    frame = frame_reader.read(json.dumps(example["payload"]).encode(), 16)
    assert frame.__struct_config__.tag == name
    assert faults(example["payload"], MESSAGES[name]["payload"]) == []
    assert faults({**example["payload"], "more": 1}, MESSAGES[name]["payload"])
    assert MESSAGES[name]["summary"]
    assert DOCUMENT["operations"][name]["reply"]["messages"]


def test_what_is_sent_has_the_described_shape() -> None:
    """Every kind of frame that a conversation sends, but for those of the socket itself."""
    world = SocketWorld()
    world.add("long", 3)
    world.say("auth", token="t", ref="a")
    world.say("ping", ref=1)
    world.say("command", command=["PING"], ref=2)
    world.say("publish", stream="s", entries=[{"fields": {"a": 1}}], maxlen=5, ref=3)
    world.say("publish", stream="s", fields={"a": "/w=="}, encoding="base64")
    world.say("publish", stream="s", fields=[["a", "1"], ["a", "2"]])
    world.say("publish", stream="s", fields={})
    world.say("subscribe", sub="t", streams={"s": "0", "long": "0"}, credit=9, ref=4)
    world.do(world.session.table.begin_outage)
    world.do(world.session.table.end_outage)
    working(world, 2, credit=2)
    world.say("nack", sub="w", ids=world.pushed("w"), ref=5)
    world.say("ack", sub="w", ids=world.pushed("w"), ref=6)
    world.say("unsubscribe", sub="t", ref=7)
    world.do(world.session.table.revoke, named(world.session, "w"), "replaced")
    world.do(world.session.table.drain, 100)
    seen = {frame["op"] for frame in world.sent}
    assert seen == {
        *("ok", "error", "pong", "entries", "caught_up", "paused", "resumed", "revoked", "goaway"),
    }
    for frame in world.sent:
        assert faults(frame, MESSAGES[frame["op"]]["payload"]) == [], frame


async def test_it_is_served(http: httpx.AsyncClient) -> None:
    """With the limits and the place of this gateway."""
    answer = await http.get("/asyncapi.json")
    assert answer.status_code == 200
    assert answer.json()["asyncapi"] == "3.0.0"
    assert (await http.get("/v1/ws")).status_code == 426
