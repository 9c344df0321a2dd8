"""The description of the socket: AsyncAPI 3, from the very types that read and write its frames.

Knows: how channels, operations and messages are written in AsyncAPI; which frame answers which.
Must never know: how any of it is served.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from app import VERSION
from app.doors.websocket import frames
from app.openapi.problems import InvalidValue, problem_schema
from app.settings import Settings

Json = dict[str, Any]

_CHANNEL: Final = {"$ref": "#/channels/socket"}
_JSON: Final = "application/json"
_ANSWERED: Final = ("ok", "error")
_REPLIES: Final[dict[str, Sequence[str]]] = {"ping": ("pong",), "credit": ("error",)}
_ABOUT: Final = """\
One socket for all of it: publish, follow streams, work as a consumer of a group. Frames are JSON objects
with `op`, one a message. A client's frame may have `ref`; its answer repeats it. What is pushed has `sub`.

* **Credit counts entries.** Nothing is sent beyond it. Of `consume`, acknowledging gives it back.
* **Close codes** 4000 to 4499: reconnect with back-off (4000 internal, 4001 draining, 4004 slow reader,
  4005 rate limit). 4500 to 4999: do not (4501 protocol error, 4502 forbidden). 1009: a frame was too long.
* **Nothing is pushed before it is safe**: what a client saw, a crash does not take back.
"""

EXAMPLES: Final[dict[str, Json]] = {
    "auth": {"op": "auth", "token": "secret", "ref": 1},
    "publish": {"op": "publish", "stream": "orders", "entries": [{"fields": {"item": "apple"}}], "ref": 2},
    "subscribe": {"op": "subscribe", "sub": "live", "streams": {"orders": "$"}, "ref": 3},
    "consume": {"op": "consume", "sub": "work", "stream": "orders", "group": "billing", "consumer": "anna"},
    "ack": {"op": "ack", "sub": "work", "ids": ["1526919030474-0"]},
    "nack": {"op": "nack", "sub": "work", "ids": ["1526919030474-0"], "mode": "fail"},
    "credit": {"op": "credit", "sub": "live", "n": 100},
    "unsubscribe": {"op": "unsubscribe", "sub": "live", "ref": 4},
    "command": {"op": "command", "command": ["XLEN", "orders"], "ref": 5},
    "ping": {"op": "ping", "ref": 6},
}


def document(settings: Settings) -> bytes:
    """The whole description as JSON."""
    kinds = (*frames.CLIENT_FRAMES, *frames.SERVER_FRAMES)
    _, schemas = msgspec.json.schema_components(
        [*kinds, InvalidValue], ref_template="#/components/schemas/{name}"
    )
    schemas["AckFrame"]["properties"]["ids"]["maxItems"] = settings.ids_max
    schemas["NackFrame"]["properties"]["ids"]["maxItems"] = settings.lookups_max
    names = [_name(kind) for kind in kinds]
    described = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Weir's socket",
            "version": VERSION,
            "description": _ABOUT,
            "license": {"name": "MIT"},
        },
        "defaultContentType": _JSON,
        "servers": {
            "gateway": {
                "host": f"{settings.host}:{settings.port}",
                "protocol": "ws",
                "description": f"offer the subprotocol {frames.SUBPROTOCOL}",
            }
        },
        "channels": {
            "socket": {
                "address": "/v1/ws",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
                "bindings": {"ws": {"method": "GET"}},
            }
        },
        "operations": {**_received(), **_sent()},
        "components": {
            "messages": {_name(kind): _message(kind) for kind in kinds},
            "schemas": {**schemas, "Problem": problem_schema()},
        },
    }
    return msgspec.json.encode(described)


def _name(kind: type[frames.BaseFrame]) -> str:
    return str(kind.__struct_config__.tag)


def _summary(kind: type[frames.BaseFrame]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _message(kind: type[frames.BaseFrame]) -> Json:
    name = _name(kind)
    message: Json = {
        "name": name,
        "title": name,
        "summary": _summary(kind),
        "contentType": _JSON,
        "payload": {"$ref": f"#/components/schemas/{kind.__name__}"},
    }
    if name in EXAMPLES:
        message["examples"] = [{"name": name, "payload": EXAMPLES[name]}]
    return message


def _messages(names: Sequence[str]) -> list[Json]:
    return [{"$ref": f"#/channels/socket/messages/{name}"} for name in names]


def _received() -> Json:
    """What a client may do, and what it is answered."""
    return {
        _name(kind): {
            "action": "receive",
            "channel": _CHANNEL,
            "summary": _summary(kind),
            "messages": _messages([_name(kind)]),
            "reply": {"channel": _CHANNEL, "messages": _messages(_REPLIES.get(_name(kind), _ANSWERED))},
        }
        for kind in frames.CLIENT_FRAMES
    }


def _sent() -> Json:
    """What comes without having been asked for."""
    answers = {*_ANSWERED, "pong"}
    return {
        f"push_{name}": {
            "action": "send",
            "channel": _CHANNEL,
            "summary": _summary(kind),
            "messages": _messages([name]),
        }
        for kind in frames.SERVER_FRAMES
        if (name := _name(kind)) not in answers
    }
