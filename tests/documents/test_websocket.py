"""docs/websocket.md: its conversations are had."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.sync.client import connect

from tests.server import Server

DOCUMENT: Final = (Path(__file__).parents[2] / "docs" / "websocket.md").read_text()
CONVERSATIONS: Final = re.findall(r"^```frames\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)


def settled(frame: str) -> Any:
    """A frame without what differs from run to run: IDs made by the clock, and the request's."""
    frame = re.sub(r'"[0-9]{13}-[0-9]+"', '"made"', frame)
    return json.loads(re.sub(r'"(request_id|idle_ms)":("[^"]*"|[0-9]+)', r'"\1":0', frame))


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=range(len(CONVERSATIONS)))
def test_a_conversation_goes_as_it_is_told(server: Server, conversation: str) -> None:
    """Frame by frame; `hello` and heartbeats are checked once."""
    url = f"ws://127.0.0.1:{server.port}/v1/ws"
    with connect(url, subprotocols=["weir.v1"], compression=None) as socket:  # type: ignore[list-item]
        lines = conversation.splitlines()
        if '"hello"' not in lines[0]:
            assert "hello" in str(socket.recv(5))
        for line in lines:
            way, frame = line.split(" ", 1)
            if way == "→":
                socket.send(frame)
            else:
                assert settled(str(socket.recv(5))) == settled(frame)


def test_all_frames_are_told() -> None:
    """The page shows each kind of frame once, but for three that are sent when it ends."""
    ops = set(re.findall(r'"op": ?"(\w+)"', "".join(CONVERSATIONS)))
    assert ops >= {"publish", "subscribe", "consume", "ack", "nack", "credit", "unsubscribe", "command"}
    assert ops >= {"hello", "ok", "error", "entries", "caught_up", "gap", "paused"}
    assert all(word in DOCUMENT for word in ("revoked", "goaway", "heartbeat"))
