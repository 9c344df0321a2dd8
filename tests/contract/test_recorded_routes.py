"""What a real Redis of the 8.8 level answered is what the resources of the REST API answer.

The sequences are those of `tests/engine/test_vectors.py`, whole: what has no request of its own goes through
the command API, so that the state is the same. A clock that stands still stands in for theirs.

REST differs on purpose in this, and in nothing else:

* `NO_ROUTE` in `rest_routes` lists what has no request.
* What is missing is 404 where Redis answers 0 or null: the `missing` of each route.
* A request is checked before the stream is looked at; Redis often finds first that something is missing.
* Numbers are at most 2^53 - 1. Fields of XINFO about IDMP, which REST does not have, are not shown.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple

import orjson
import pytest

from app.main import App, create_app
from app.settings import Settings
from engine import Engine
from tests.contract.rest_routes import GRAMMAR, NO_ROUTE, Route, route_of
from tests.engine.clocks import HandClock
from tests.engine.test_vectors import INTEGER_SAFE_MAX, PARTS, agrees, count, sequences

pytestmark = pytest.mark.halved

SETUP: Final = [["FLUSHALL"], ["CONFIG", "SET", "stream-node-max-entries", "100"]]
# By part; of 36, 42,532 and 27,882 commands in all.
ROUTED: Final = {
    "introduction": [30],
    "family-7": [10_356, 10_259, 10_410, 10_322],
    "family-8": [6_343, 6_578, 6_719, 6_460],
}
NOT_SHOWN: Final = {
    "radix-tree-nodes", "idmp-duration", "idmp-maxsize", "pids-tracked", "iids-tracked", "iids-added",
    "iids-duplicates",
}  # fmt: skip

# Redis's sentences for what REST refuses by itself, by the code of the refusal.
CHECKED: Final = {
    "malformed_id": (
        "ERR Invalid stream ID specified as stream command argument",
        "ERR invalid start ID for the interval",
        "ERR invalid end ID for the interval",
        "ERR The > ID can be specified only",
        "ERR The $ ID is meaningless",
        "ERR The + ID is meaningless",
        "ERR Unrecognized XCLAIM option",
    ),
    "invalid": (
        "ERR COUNT must be > 0",
        "ERR syntax error, LIMIT cannot be used without the special ~ option",
        "ERR syntax error, MAXLEN and MINID options at the same time",
        "ERR timeout is negative",
        "ERR The LIMIT argument must be >= 0",
        "ERR Invalid min-idle-time argument for XCLAIM",
        # A query is checked before the body.
        "ERR Invalid stream ID specified as stream command argument",
    ),
}
# What stands in the place of an ID in the sequences, and is none there.
NO_IDS: Final = {"-", "+", "$", ">", "x", "5-", "-5", "(3", "18446744073709551616-0"}
NO_BOUNDS: Final = {*(f"({word}" for word in NO_IDS), "(0-0", "(18446744073709551615-18446744073709551615"}
MISSING: Final = "NOGROUP", "ERR The XGROUP subcommand requires the key to exist", "ERR no such key"


class Recorded(NamedTuple):
    """A reply, or the sentence of an error."""

    reply: object
    error: str | None


@pytest.fixture
async def app() -> AsyncIterator[App]:
    clock = HandClock()
    app = create_app(Settings(log_requests="none"), clock)
    async with Engine.open(None, clock=clock) as engine:
        app.life.open(engine)
        yield app


async def answer(app: App, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Status and body of the answer to a request, without a client."""
    target, _, query = path.partition("?")
    content = b"" if body is None else orjson.dumps(body)
    got: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Any) -> None:
        got.append(message)

    headers = [(b"host", b"127.0.0.1:8080"), (b"content-length", b"%d" % len(content))]
    if content:
        headers.append((b"content-type", b"application/json"))
    scope = {
        "type": "http",
        "method": method,
        "raw_path": target.encode(),
        "path": target,
        "query_string": query.encode(),
        "headers": headers,
        "client": ("127.0.0.1", 4_711),
    }
    await app(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in got[1:])
    return got[0]["status"], orjson.loads(text) if text else None


def shown(recorded: object) -> object:
    """A recorded reply without what REST does not show, and with numbers as REST shows them."""
    if isinstance(recorded, int):
        return min(recorded, INTEGER_SAFE_MAX - 1)
    if not isinstance(recorded, list):
        return recorded
    if recorded[:1] == ["length"]:
        pairs = zip(recorded[::2], recorded[1::2], strict=True)
        recorded = [word for pair in pairs if pair[0] not in NOT_SHOWN for word in pair]
    return list(map(shown, recorded))


def is_alike(words: Sequence[str], recorded: Recorded, route: Route, status: int, body: Any) -> bool:
    """Whether the answer to a request says what is recorded."""
    if status < 300:
        reply = route.created if status == 201 and route.created is not None else route.reply(body)
        return recorded.error is None and agrees(shown(recorded.reply), reply)
    code = body["code"]
    if code == "malformed_id" and not (NO_IDS | NO_BOUNDS) & {*words}:
        return False
    if recorded.error is None:
        # Checked by REST, where Redis finds first that there is nothing.
        return recorded.reply in [
            found for missed, found in route.missing.items() if code in (missed, "malformed_id")
        ]
    if code in CHECKED:
        return recorded.error.startswith((*CHECKED[code], *MISSING))
    return bool(body.get("redis_error") == recorded.error)


async def through_commands(app: App, words: Sequence[str]) -> Recorded:
    """What the command API answers."""
    _, body = await answer(app, "POST", "/v1/commands", words)
    return Recorded(body.get("result"), body.get("error"))


@pytest.mark.parametrize(("name", "part"), PARTS)
async def test_every_recorded_reply_is_given_by_the_resources(app: App, name: str, part: int) -> None:
    """Reply for reply, and error for error: Redis's sentence, or the code that stands for it."""
    differences = dict[str, str]()
    without_route, routed = set[str](), 0
    for number, steps in enumerate(sequences(name, part)):
        await answer(app, "POST", "/v1/commands/pipeline", SETUP)
        for place, step in enumerate(steps):
            words = list(map(str, step["cmd"]))
            recorded = Recorded(step.get("reply"), step.get("error"))
            route = route_of(words)
            if isinstance(route, str):
                without_route.add(route)
                assert recorded.error is not None or route != GRAMMAR, words
                assert agrees([*recorded], [*await through_commands(app, words)]), words
                continue
            routed += 1
            status, body = await answer(app, route.method, route.path, route.body)
            if not is_alike(words, recorded, route, status, body):
                differences[f"{number}, {place}"] = (
                    f"{words}: recorded {recorded}, answered {status} {body!r}"
                )
    assert differences == {}
    assert number == count(name) - 1
    assert routed == ROUTED[name][part]
    assert without_route <= NO_ROUTE
