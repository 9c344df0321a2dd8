"""The same deed needs the same right, over REST and by a Redis command, and is in the audit log by either."""

import asyncio
import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from app.auth import Action
from engine import Engine
from engine.commands.weir_commands import EnsureGroup
from tests.app.auth.callers import app_with, client, made
from tests.engine.asking import reply_to

S: Final = "/v1/streams/s"
G: Final = f"{S}/groups/g"
ENTRY: Final = {"fields": {"a": "b"}}


class Deed(NamedTuple):
    """A request, the command that does the same, and the actions that both need."""

    method: str
    path: str
    body: Any
    words: Sequence[str]
    needs: set[str]


CLAIM: Final = {"consumer": "c", "min_idle_ms": 0}
READ_GROUP: Final = ["XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"]
ACKDEL: Final = ["XACKDEL", "s", "g", "KEEPREF", "IDS", "1", "1-0"]
NACK: Final = ["XNACK", "s", "g", "FAIL", "IDS", "1", "1-0"]
IDS: Final = {"ids": ["1-0"]}

DEEDS: Final = [
    Deed("POST", f"{S}/entries", ENTRY, ["XADD", "s", "*", "a", "b"], {"write"}),
    Deed("GET", f"{S}/entries", None, ["XRANGE", "s", "-", "+"], {"read"}),
    Deed("DELETE", f"{S}/entries/1-0", None, ["XDEL", "s", "1-0"], {"write"}),
    Deed("POST", f"{S}/entries/delete", IDS, ["XDELEX", "s", "IDS", "1", "1-0"], {"write"}),
    Deed("POST", f"{S}/trim", {"maxlen": 9}, ["XTRIM", "s", "MAXLEN", "9"], {"manage"}),
    Deed("POST", f"{S}/last-id", {"last_id": "9-0"}, ["XSETID", "s", "9-0"], {"manage"}),
    Deed("GET", S, None, ["XINFO", "STREAM", "s"], {"read"}),
    Deed("PATCH", S, {"expires_in_ms": 100_000}, ["PEXPIRE", "s", "100000"], {"manage"}),
    Deed("POST", "/v1/read", {"streams": {"s": "0"}}, ["XREAD", "STREAMS", "s", "0"], {"read"}),
    Deed("POST", f"{S}/groups", {"name": "h"}, ["XGROUP", "CREATE", "s", "h", "$"], {"manage"}),
    Deed("PATCH", G, {"last_delivered_id": "0-0"}, ["XGROUP", "SETID", "s", "g", "0"], {"manage"}),
    Deed("GET", f"{S}/groups", None, ["XINFO", "GROUPS", "s"], {"read"}),
    Deed("GET", f"{G}/consumers", None, ["XINFO", "CONSUMERS", "s", "g"], {"read"}),
    Deed("GET", f"{G}/pending", None, ["XPENDING", "s", "g"], {"read"}),
    Deed("PUT", f"{G}/consumers/c", None, ["XGROUP", "CREATECONSUMER", "s", "g", "c"], {"consume"}),
    Deed("POST", f"{G}/consumers/c/read", {}, READ_GROUP, {"consume"}),
    Deed("POST", f"{G}/ack", IDS, ["XACK", "s", "g", "1-0"], {"consume"}),
    Deed("POST", f"{G}/ack", {**IDS, "delete": "keep"}, ACKDEL, {"consume", "write"}),
    Deed("POST", f"{G}/nack", {**IDS, "mode": "fail"}, NACK, {"consume"}),
    Deed("POST", f"{G}/claim", CLAIM | IDS, ["XCLAIM", "s", "g", "c", "0", "1-0"], {"consume"}),
    Deed("POST", f"{G}/extend", {**IDS, "consumer": "c"}, ["WEIR.EXTEND", "s", "g", "c", "1-0"], {"consume"}),
    Deed("POST", f"{G}/autoclaim", CLAIM, ["XAUTOCLAIM", "s", "g", "c", "0", "0"], {"consume"}),
    Deed(
        "DELETE",
        f"{G}/consumers/c?pending=drop",
        None,
        ["XGROUP", "DELCONSUMER", "s", "g", "c"],
        {"manage"},
    ),
    Deed("DELETE", f"{G}/consumers/c", None, ["XGROUP", "DELCONSUMER", "s", "g", "c"], {"manage"}),
    Deed("DELETE", f"{G}?pending=drop", None, ["XGROUP", "DESTROY", "s", "g"], {"manage"}),
    Deed("DELETE", S, None, ["DEL", "s"], {"manage"}),
]
# Of one action, of two, and of three.
HELD: Final = [
    set(some) for count in (1, 2, 3) for some in combinations(("read", "write", "consume", "manage"), count)
]


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: f"{deed.method} {deed.path} {' '.join(deed.words)}")
async def test_a_deed_needs_the_same_actions_by_either_api(
    engine: Engine, tmp_path: Path, deed: Deed
) -> None:
    tokens = [made(f"{','.join(actions)}:*") for actions in HELD]
    app = await app_with(engine, tmp_path, *tokens)
    for actions, token in zip(HELD, tokens, strict=True):
        await reply_to(engine, EnsureGroup(stream="s", group="g", start=0, mkstream=True))
        async with client(app, token.text) as http:
            by_rest = await http.request(deed.method, deed.path, json=deed.body)
            await reply_to(engine, EnsureGroup(stream="s", group="g", start=0, mkstream=True))
            by_command = await http.post("/v1/commands", json=deed.words)
        expected = deed.needs <= actions
        assert (by_rest.status_code != 403) is expected, (actions, by_rest.text)
        assert (by_command.status_code != 403) is expected, (actions, by_command.text)


@pytest.mark.parametrize(("consumer", "allowed"), [("c", True), ("other", False)])
async def test_a_consumer_may_drop_what_it_holds_itself(
    engine: Engine, tmp_path: Path, consumer: str, *, allowed: bool
) -> None:
    """Where its grant is for this consumer alone."""
    token = made(json.dumps({"actions": ["consume"], "streams": "*", "consumer": "c"}))
    app = await app_with(engine, tmp_path, token)
    async with client(app, token.text) as http:
        by_rest = await http.delete(f"{G}/consumers/{consumer}?pending=drop")
        by_command = await http.post("/v1/commands", json=["XGROUP", "DELCONSUMER", "s", "g", consumer])
    assert (by_rest.status_code, by_command.status_code) == ((404, 200) if allowed else (403, 403))


async def test_removing_a_consumer_is_audited(engine: Engine, tmp_path: Path) -> None:
    """By either API, refused or not, whether it holds anything or not."""
    path = tmp_path / "audit"
    manager, consumer = made("consume,manage:*"), made("consume:*")
    app = await app_with(engine, tmp_path, manager, consumer, audit_file=str(path))
    for token in (manager, consumer):
        async with client(app, token.text) as http:
            await http.put(f"{G}/consumers/c")
            await http.delete(f"{G}/consumers/c?pending=drop")
            await http.put(f"{G}/consumers/c")
            await http.post("/v1/commands", json=["XGROUP", "DELCONSUMER", "s", "g", "c"])
            await http.put(f"{G}/consumers/c")
            await http.delete(f"{G}/consumers/c")
    await asyncio.to_thread(app.gateway.access.audit.flush)
    found = [json.loads(line) for line in (await asyncio.to_thread(path.read_text)).splitlines()]
    assert [(one["operation"], one["action"], one["outcome"], one["consumer"]) for one in found] == [
        ("deleteConsumer", Action.MANAGE, "done", "c"),
        ("xgroup|delconsumer", Action.MANAGE, "done", "c"),
        ("deleteConsumer", Action.MANAGE, "done", "c"),
        ("deleteConsumer", Action.MANAGE, "forbidden", "c"),
        ("xgroup|delconsumer", Action.MANAGE, "forbidden", "c"),
        ("deleteConsumer", Action.MANAGE, "forbidden", "c"),
    ]
