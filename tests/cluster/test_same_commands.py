"""Commands are answered over a backend as over an own log: each of the table, some of a group, lifetimes."""

import json
import re
from collections.abc import Sequence
from itertools import product
from typing import Any, Final

import httpx

from engine import Engine, EngineProtocol, SystemClock
from tests.app.conftest import app_on, calling
from tests.app.tenants.test_same_answers import COMMANDS
from tests.cluster.engines import opened
from tests.cluster.servers import BackendServer

# Commands that docs/scale.md says to be refused, by what they contain.
REFUSED: Final = ("IDMPAUTO", "XCFGSET", "XIDMPRECORD")
# What is the server's own: how it keeps a stream, how large it is, which policy it has, and what time it is.
ITS_OWN: Final = (
    *(("MEMORY", "USAGE"), ("OBJECT", "FREQ"), ("OBJECT", "IDLETIME"), ("TIME",)),
    # It says how long an entry is held.
    ("WEIR.WHY",),
)
PAUSED: Final[Sequence[Sequence[str]]] = [
    ("XADD", "p", "1-0", "v", "1"),
    ("XADD", "p", "2-0", "v", "2"),
    ("XADD", "p", "3-0", "v", "3"),
    ("XGROUP", "CREATE", "p", "g", "0"),
    ("XREADGROUP", "GROUP", "g", "a", "COUNT", "2", "STREAMS", "p", ">"),
    ("XNACK", "p", "g", "FAIL", "IDS", "1", "2-0"),
    ("WEIR.PAUSE", "p", "g"),
    ("WEIR.PAUSE", "p", "g"),
    ("XREADGROUP", "GROUP", "g", "b", "STREAMS", "p", ">"),
    ("XREADGROUP", "GROUP", "g", "b", "CLAIM", "0", "STREAMS", "p", ">"),
    ("XREADGROUP", "GROUP", "g", "a", "STREAMS", "p", "0"),
    ("XAUTOCLAIM", "p", "g", "b", "0", "0"),
    ("XCLAIM", "p", "g", "b", "0", "1-0", "JUSTID"),
    ("XPENDING", "p", "g"),
    ("XINFO", "GROUPS", "p"),
    ("XINFO", "CONSUMERS", "p", "g"),
    ("WEIR.INFO", "p"),
    ("COPY", "p", "q"),
    ("XREADGROUP", "GROUP", "g", "b", "STREAMS", "q", ">"),
    ("WEIR.RESUME", "q", "g"),
    ("XREADGROUP", "GROUP", "g", "b", "STREAMS", "q", ">"),
    ("XREADGROUP", "GROUP", "g", "b", "STREAMS", "p", ">"),
    ("WEIR.RESUME", "p", "g"),
    ("XREADGROUP", "GROUP", "g", "b", "CLAIM", "9999999", "STREAMS", "p", ">"),
    ("WEIR.PAUSE", "none", "g"),
    ("WEIR.PAUSE", "p", "none"),
]
# Times at the edges of what there may be, for a stream that is there and for one that is not.
LIFETIMES: Final[Sequence[Sequence[str]]] = [
    words
    for name, key, time in product(
        ("EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"),
        ("e", "none"),
        (-(1 << 63) - 1, -(1 << 63), -1, 0, 1 << 53, 1 << 55, 1 << 62, (1 << 63) - 1, 1 << 63),
    )
    for words in (("XADD", "e", "*", "v", "1"), (name, key, str(time)), (name, key, str(time), "XX"))
]
# IDs and times by the clock, and generations, in the order in which these are looked for.
_DRAWN: Final = (r"\b[12][0-9]{12}-[0-9]+", r"\b[12][0-9]{12}\b", r"\b[0-9a-f]{16}\b")
# How a stream is kept, the figures of idempotent producers, and how long ago something was.
_LEFT_OUT: Final = {"radix-tree-keys", "radix-tree-nodes", "idle", "inactive", "seen-time", "active-time"}


async def answers(engine: EngineProtocol, commands: Sequence[Sequence[str]]) -> list[Any]:
    """What the command API answers, one command after the other."""
    async with calling(app_on(engine)) as http:
        return [await answer(http, words) for words in commands]


async def answer(http: httpx.AsyncClient, words: Sequence[str]) -> Any:
    found = (await http.post("/v1/commands", json=list(words))).json()
    return found.get("result", found.get("error"))


def comparable(words: Sequence[str], found: Any) -> str:
    """An answer without what may be otherwise."""
    if words[0] == "XPENDING" and len(words) > 3 and isinstance(found, list):
        found = [[*row[:2], *row[3:]] for row in found]
    if words[0] in ("TTL", "PTTL"):
        found = round(found / 60_000)
    text = json.dumps(without(found))
    for pattern in _DRAWN:
        text = re.sub(pattern, "…", text)
    return text


def without(found: Any) -> Any:
    """Lists of names and values without some of these."""
    if not isinstance(found, list):
        return found
    if found and len(found) % 2 == 0 and all(isinstance(name, str) for name in found[::2]):
        pairs = zip(found[::2], found[1::2], strict=True)
        return [
            [name, without(value)]
            for name, value in pairs
            if name not in _LEFT_OUT and not name.startswith(("idmp-", "pids-", "iids-"))
        ]
    return [without(one) for one in found]


async def test_commands_are_answered_as_over_an_own_log(server: BackendServer) -> None:
    """Reply for reply, error for error."""
    every = (*COMMANDS, *PAUSED, *LIFETIMES)
    commands = [words for words in every if not set(words) & set(REFUSED)]
    own = Engine.open(None, clock=SystemClock())
    await own.start()
    here = await answers(own, commands)
    await own.close()
    async with opened(server) as engine:
        there = await answers(engine, commands)
    differences = {
        " ".join(words): (comparable(words, one), comparable(words, other))
        for words, one, other in zip(commands, here, there, strict=True)
        if comparable(words, one) != comparable(words, other)
        and not any(tuple(words[: len(own_words)]) == own_words for own_words in ITS_OWN)
    }
    assert differences == {}


async def test_what_is_refused_says_that_the_backend_cannot(server: BackendServer) -> None:
    """Those that the document names, and they alone."""
    commands = [words for words in COMMANDS if set(words) & set(REFUSED)]
    async with opened(server) as engine:
        found = await answers(engine, commands)
    assert {words[0] for words in commands} == {"XADD", *REFUSED[1:]}
    for words, refusal in zip(commands, found, strict=True):
        assert "is not supported by this backend" in refusal, words


async def test_the_use_of_a_stream_is_the_servers(server: BackendServer) -> None:
    server.call("SET", "text", "1")
    async with opened(server) as engine:
        made, used, idle, none, other = await answers(
            engine,
            [
                ("XADD", "s", "1-0", "a", "1"),
                ("MEMORY", "USAGE", "s"),
                ("OBJECT", "IDLETIME", "s"),
                ("MEMORY", "USAGE", "none"),
                ("OBJECT", "ENCODING", "text"),
            ],
        )
        assert (made, idle, none, other) == ("1-0", 0, None, None)
        assert used == server.call("MEMORY", "USAGE", "s")
        server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
        (refusal,) = await answers(engine, [("OBJECT", "IDLETIME", "s")])
        server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        assert refusal.startswith("ERR An LFU maxmemory policy is selected")
