"""A head that was seen before is answered as one that was not, byte by byte, whatever came in between.

Each test asks two gateways at a moment that stands still: one behind our server, which keeps plans, and one
behind a server that knows nothing but ASGI, where every request is judged anew.
"""

import asyncio
import gc
import json
import re
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count, pairwise
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from app.auth.certificates import ClientCertificate
from app.live import joiner
from app.main import _routes
from app.settings import Settings
from engine import Call, EngineError, errors, ids
from engine.commands.durable_commands import AppendBatches, AppendDurable
from engine.commands.types import XAdd, XLen
from engine.commands.weir_commands import Acknowledge
from engine.read_handle import Replies
from engine.replies import Added
from tests import halves
from tests.app.both_servers import BURST, CHANGES, Side, Sides, opened, sent_from_now
from tests.app.holding import holds
from tests.app.http_requests import ENTRIES, ENTRY, GROUP, JSON, NDJSON, post, request
from tests.app.ten_doors import SAMPLED
from tests.engine.asking import reply_to
from tests.engine.clocks import let_threads_run, settle
from tests.engine.conversation import SlowDisk

APPENDS: Final = "/v1/stream/d"
MESSAGE: Final = b'{"token":"Hel"}'
TEXT: Final = "Content-Type: text/plain"
ACK: Final = f"{GROUP}/ack"
LAST: Final = request("GET /healthz/live", None, "Connection: close")
PENDING: Final = 300
LINE_ID: Final = re.compile(rb'"request_id":"[^"]*"')


def get(path: str, *headers: str) -> Callable[[int], bytes]:
    return lambda _: request(f"GET {path}", None, *headers)


def send(path: str, body: bytes, *headers: str) -> Callable[[int], bytes]:
    """The same each time; `%d` in it is the number of the request."""
    return lambda number: post(path, body.replace(b"%d", b"%d" % number), *headers)


def batch(seq: int, *, producer: str = "p", epoch: int = 0, body: bytes = MESSAGE) -> bytes:
    """A producer's request."""
    named = (f"Producer-Id: {producer}", f"Producer-Epoch: {epoch}", f"Producer-Seq: {seq}")
    return post(APPENDS, body, JSON, *named)


def ack(*entry_ids: str) -> bytes:
    """The request to acknowledge these."""
    return post(ACK, b'{"ids":["%b"]}' % b'","'.join(map(str.encode, entry_ids)))


class Kind(NamedTuple):
    """A request that comes again and again with an equal head, by its number, and its status."""

    ask: Callable[[int], bytes]
    status: int = 200


def head_of(kind: Kind) -> Callable[[int], bytes]:
    """The same by HEAD."""
    return lambda number: kind.ask(number).replace(b"GET ", b"HEAD ", 1)


_LINES: Final = b'{"a":"1"}\n{"a":"2"}\n'
_STREAM: Final = "/v1/streams/{stream}"
_GROUP: Final = f"{_STREAM}/groups/{{group}}"
_READS: Final = {
    "/healthz/live": Kind(get("/healthz/live")),
    _STREAM: Kind(get("/v1/streams/s")),
    f"{_STREAM} in full": Kind(get("/v1/streams/s?full=true")),
    f"{_STREAM}/entries": Kind(get(ENTRIES)),
    f"{_STREAM}/entries of a part": Kind(get(f"{ENTRIES}?start=1-1&end=(4-0")),
    f"{_STREAM}/entries in reverse": Kind(get(f"{ENTRIES}?reverse=true&count=2")),
    f"{_STREAM}/entries since then": Kind(get(f"{ENTRIES}?since=1970-01-01T00:00:00Z&count=2")),
    f"{_STREAM}/entries behind one": Kind(get(f"{ENTRIES}?after=297-0")),
    f"{_STREAM}/entries from now": Kind(get(f"{ENTRIES}?after=$")),
    f"{_STREAM}/entries without a gap": Kind(get(f"{ENTRIES}?after=1&on_gap=fail&count=1")),
    f"{_STREAM}/entries by generation": Kind(get(f"{ENTRIES}?cursor=generation&count=2")),
    f"{_STREAM}/entries in some fields": Kind(get(f"{ENTRIES}?fields=a&last=2")),
    f"{_STREAM}/entries/{{id}}": Kind(get(f"{ENTRIES}/4-0")),
    f"{_STREAM}/groups": Kind(get("/v1/streams/s/groups")),
    _GROUP: Kind(get(GROUP)),
    f"{_GROUP}/consumers": Kind(get(f"{GROUP}/consumers")),
    f"{_GROUP}/consumers/{{consumer}}": Kind(get(f"{GROUP}/consumers/c")),
    f"{_GROUP}/pending": Kind(get(f"{GROUP}/pending")),
    f"{_GROUP}/pending one by one": Kind(get(f"{GROUP}/pending?count=2")),
    f"{_STREAM}/schedules": Kind(get("/v1/streams/s/schedules")),
    "/v1/stream/{stream:path}": Kind(get(APPENDS)),
}
_COMMANDS: Final = "/v1/commands"
_WRITES: Final = {
    _COMMANDS: Kind(send(_COMMANDS, b'["XLEN","s"]')),
    f"{_COMMANDS}/pipeline": Kind(send(f"{_COMMANDS}/pipeline", b'[["XLEN","s"]]')),
    f"{_COMMANDS}/multi-exec": Kind(send(f"{_COMMANDS}/multi-exec", b'[["XLEN","s"]]')),
    f"{_GROUP}/consumers/{{consumer}}/read": Kind(send(f"{GROUP}/consumers/c/read", b'{"count":1}')),
    f"{_GROUP}/ack": Kind(send(ACK, b'{"ids":["%d-0"]}')),
    f"{_GROUP}/nack": Kind(send(f"{GROUP}/nack", b'{"mode":"fail","ids":["9%d-0"]}')),
    f"{_GROUP}/dead-letter": Kind(send(f"{GROUP}/dead-letter", b'{"ids":["10%d-0"]}')),
    f"{_GROUP}/extend": Kind(send(f"{GROUP}/extend", b'{"consumer":"c","ids":["11%d-0"]}')),
    f"{_GROUP}/claim": Kind(
        send(f"{GROUP}/claim", b'{"consumer":"d","min_idle_ms":0,"ids":["12%d-0"]}'),
    ),
    f"{_GROUP}/autoclaim": Kind(send(f"{GROUP}/autoclaim", b'{"consumer":"d","min_idle_ms":0,"count":1}')),
    "/v1/stream/{stream:path}": Kind(send(APPENDS, MESSAGE), 204),
    "/v1/stream/{stream:path} of a producer": Kind(batch),
    f"{_STREAM}/entries": Kind(send(ENTRIES, ENTRY), 201),
    f"{_STREAM}/entries as lines": Kind(send(ENTRIES, b'{"a":"1"}\n', NDJSON), 201),
    f"{_STREAM}/entries that trim": Kind(send(f"{ENTRIES}?maxlen=400", ENTRY), 201),
    f"{_STREAM}/entries/batch": Kind(send(f"{ENTRIES}/batch", b'{"entries":[{"fields":{"a":"1"}}]}'), 201),
    f"{_STREAM}/entries/ndjson": Kind(send(f"{ENTRIES}/ndjson", b'{"a":"1"}\n', NDJSON), 201),
    f"{_STREAM}/entries/raw": Kind(send(f"{ENTRIES}/raw", b"x", "Content-Type: image/png"), 201),
    f"{_COMMANDS} that adds": Kind(send(_COMMANDS, b'["XADD","s","*","a","1"]')),
}
# Those that read come first, those that publish last. No head of a HEAD is kept.
KINDS: Final[Mapping[str, Kind]] = {
    **{f"GET {label}": kind for label, kind in _READS.items()},
    **{f"HEAD {label}": Kind(head_of(kind)) for label, kind in _READS.items()},
    **{f"POST {label}": kind for label, kind in _WRITES.items()},
}
# One for each way that a command may join others.
PUBLISH, APPEND, BATCH, ACKNOWLEDGE = JOINING = (
    f"POST {_STREAM}/entries",
    "POST /v1/stream/{stream:path}",
    "POST /v1/stream/{stream:path} of a producer",
    f"POST {_GROUP}/ack",
)


class World(NamedTuple):
    """Both gateways, and the number of the next request of each kind."""

    sides: Sides
    numbers: dict[str, "count[int]"]

    def next(self, name: str) -> bytes:
        """The next request of this kind."""
        return self.sides.own(KINDS[name].ask(next(self.numbers[name])))

    async def see(self, name: str) -> None:
        """Ask until the head is known."""
        for _ in range(3):
            # A token is known only behind a request.
            assert await self.sides.status(self.next(name)) == KINDS[name].status, name
        assert self.keeps(name) == (not name.startswith("HEAD ")), name

    def keeps(self, name: str) -> bool:
        """Whether the plan of this kind is kept, and holds."""
        return self.sides.ours.keeps(self.sides.own(KINDS[name].ask(0)))

    async def others(self) -> "World":
        """Another connection to each."""
        return self._replace(sides=await self.sides.others())


@asynccontextmanager
async def entered(**set_to: Any) -> AsyncIterator[World]:
    """A stream `s` of entries that a consumer of the group `g` was given, but for some, and an empty one `d`
    of Durable Streams.
    """
    async with opened(**set_to) as sides:
        rows = [{"id": f"{number}-0", "fields": {"a": str(number)}} for number in range(1, PENDING + 1)]
        group = {"name": "g", "start": "0", "dead_letter": {"stream": "dead"}}
        for made in (
            post(ENTRIES, json.dumps({"entries": rows}).encode()),
            post("/v1/streams/s/groups", json.dumps(group).encode()),
            post(f"{GROUP}/consumers/c/read", b'{"count":%d}' % (PENDING - 20)),
            request(f"PUT {APPENDS}", b"", JSON),
        ):
            assert await sides.status(sides.own(made)) in (200, 201), made
        yield World(sides, {name: count() for name in KINDS})


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with entered() as world:
        yield world


# What programs ask now and then, or of the gateway alone, in the same way as one of `KINDS`.
_SELDOM: Final = re.compile(
    r"(PUT|PATCH|DELETE) |\S+ /($|v1$|docs|errors|console|asyncapi|"
    r"v1/(admin|hooks|whoami|ws|publish|read)|v1/streams($|/\{stream\}/"
    r"(close|last-id|trim|schedules/|entries/delete)))|POST .*/(groups|redrive)$|\S+ .*/why$"
)


def test_each_operation_that_may_have_a_plan_is_asked() -> None:
    routes = _routes(Settings(durable_streams=True))
    plain = {one.label for one in routes if one.is_plain and not _SELDOM.match(one.label)}
    assert plain == {name for name in KINDS if name in plain}
    assert len(KINDS) > len(plain)


_FILES: Final = "files are read in a thread"
_PIECES: Final = "its answer is sent in pieces"
_OTHERS: Final = "other processes are asked"
# What waits for more than the engine before it asks that, or is answered for as long as its client stays.
TASKS: Final[Mapping[str, str]] = {
    "GET /openapi.json": "the document is made in a thread",
    **dict.fromkeys(("GET /docs/swagger-ui-bundle.js", "GET /docs/swagger-ui.css"), _FILES),
    **dict.fromkeys(("GET /console", "GET /console/{file:path}"), _FILES),
    "GET /healthz/ready": "its caller may have to be looked up",
    **dict.fromkeys(("GET /metrics", "GET /v1/status", "GET /v1/hooks", "POST /v1/tickets"), _OTHERS),
    **dict.fromkeys(("POST /v1/admin/tokens", "DELETE /v1/admin/tokens/{token}"), _FILES),
    **dict.fromkeys(("POST /v1/admin/revocations", "POST /v1/admin/backup"), _FILES),
    **dict.fromkeys(("POST /v1/commands/pipeline", "POST /v1/commands/multi-exec"), _PIECES),
    "POST /v1/hooks/{hook}": "its signature is looked at, of a long body in a thread",
    "GET /v1/schedules": "a page over all streams is made in many turns",
    "POST /v1/plan": "it is made a few streams at a time, and names are matched in a thread",
    **dict.fromkeys((f"GET {_STREAM}/export", f"GET {_STREAM}/tail", "GET /v1/tail"), _PIECES),
    f"GET {_STREAM}/columns": "a page of any length is made in many turns",
    f"GET {_GROUP}/consumers/{{consumer}}/stream": _PIECES,
}


def test_only_what_waits_for_more_than_the_engine_needs_a_task() -> None:
    routes = _routes(Settings(durable_streams=True))
    assert {one.label for one in routes if not one.is_plain and one.method != "HEAD"} == TASKS.keys()


# ---- what has changed between two equal requests

_DELETED: Final = request("DELETE /v1/streams/s"), request(f"DELETE {APPENDS}")
_ADDED: Final = post(ENTRIES, ENTRY), request(f"PUT {APPENDS}", b"", JSON)


def command(*words: str) -> bytes:
    return post("/v1/commands", json.dumps(words).encode())


_HIGHEST: Final = "18446744073709551615-18446744073709551614"
# What another connection does.
DONE: Final[Mapping[str, Sequence[bytes]]] = {
    "entries are added": [post(ENTRIES, _LINES, NDJSON)],
    "entries are deleted": [post(f"{ENTRIES}/delete", b'{"ids":["1-0","4-0"]}')],
    "all is trimmed": [post("/v1/streams/s/trim", b'{"maxlen":0,"approx":false}')],
    "they are acknowledged": [command("XACK", "s", "g", "3-0", "4-0", "93-0")],
    "another consumer has them": [command("XCLAIM", "s", "g", "e", "0", "3-0", "4-0", "113-0")],
    "the group is deleted": [request(f"DELETE {GROUP}?pending=drop")],
    "another last ID": [post("/v1/streams/s/last-id", b'{"last_id":"1700000000001-0"}')],
    "the streams are closed": [
        post("/v1/streams/s/close", b"{}"),
        post(APPENDS, b"", "Stream-Closed: true"),
    ],
    "they are deleted": _DELETED,
    "they are made again": [*_DELETED, *_ADDED],
    "they are made again as others": [
        *_DELETED,
        request(f"PUT {APPENDS}", b"", TEXT),
        command("XADD", "s", "*", "data", "1"),
    ],
    "they are made by others": [*_DELETED, command("XADD", "d", "*", "data", "1")],
    "one is hidden": [
        request("PUT /v1/stream/f", b"", JSON, f"Stream-Forked-From: {APPENDS}"),
        request(f"DELETE {APPENDS}"),
    ],
    "they are renamed": [command("RENAME", "d", "e"), command("RENAME", "s", "t")],
    "they are at their highest ID but one": [
        command("XADD", "d", _HIGHEST, "data", "1"),
        command("XADD", "s", _HIGHEST, "a", "1"),
    ],
}
# What publishes, and what is not there where a stream is not.
_PUBLISHES: Final = "POST .*(entries|stream:path)"
_ABSENT: Final = r"/v1/streams/\{stream\}( in full)?$|/groups|/schedules|\{id|:path"
# Statuses behind a change where they differ from those before, by patterns of the kinds.
BEHIND: Final[Mapping[str, Mapping[str, int]]] = {
    **{name: {"": 503} for name in ("it drains", "its engine fails", "its engine is gone")},
    **{name: {"": 401} for name in ("the token is gone", "the token is revoked", "the token has expired")},
    "it may not write": {"POST /v1/s|adds": 403},
    "it may only write": {"GET|HEAD|/groups|commands(?! that)": 403},
    "it may do that elsewhere": {"": 403},
    "it may use another group": {r"/groups/\{": 403},
    "it has a rate": {"": 429},
    "it has a quota": {f"{_PUBLISHES}|adds": 507},
    "it is a tenant": {_ABSENT: 404},
    "entries are deleted": {r"\{id": 404},
    "all is trimmed": {r"\{id": 404},
    "the group is deleted": {r"/groups/\{": 404},
    "the streams are closed": {_PUBLISHES: 409, "adds": 400},
    "they are deleted": {_ABSENT: 404},
    "they are made again": {r"/groups/\{|\{id": 404, "of a producer": 409},
    "they are made again as others": {r"/groups/\{|\{id": 404, "POST .*:path": 409},
    "they are made by others": {"POST .*:path": 405, ":path": 200, _ABSENT: 404},
    "one is hidden": {":path": 410},
    "they are renamed": {_ABSENT: 404},
    "they are at their highest ID but one": {
        "producer|entries/[a-z]|POST .*entries (as|that)": 409,
        "adds": 400,
    },
}


def behind(change: str, kind: str) -> int:
    """The status of a request of this kind behind this change."""
    found = [] if "/healthz/" in kind else BEHIND.get(change, {}).items()
    return next((status for pattern, status in found if re.search(pattern, kind)), KINDS[kind].status)


async def seen_by_all(world: World) -> Mapping[str, World]:
    """A connection of each kind of request, whose head is seen there."""
    ways = {kind: await world.others() for kind in KINDS}
    for kind, way in ways.items():
        await way.see(kind)
    return ways


@pytest.mark.parametrize("name", DONE)
async def test_what_another_has_done_holds_at_once(world: World, name: str) -> None:
    """For every kind of request, whose head was seen."""
    ways = await seen_by_all(world)
    for done in DONE[name]:
        assert await world.sides.status(world.sides.own(done)) // 100 == 2, done
    found = {}
    for kind, way in ways.items():
        found[kind] = await way.sides.status(way.next(kind))
        await way.sides.both(way.next(kind))
    assert found == {kind: behind(name, kind) for kind in KINDS}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_holds_for_the_next_request(world: World, name: str) -> None:
    """The first one behind it is asked anew, for every kind of request; and so is the next one."""
    ways = await seen_by_all(world)
    CHANGES[name](world.sides)
    await settle()
    found, is_limited = {}, name == "it has a rate"
    for kind, way in ways.items():
        # As many as there is room for.
        world.sides.clock.pass_ms(BURST if is_limited else 0)
        for _ in range(BURST if is_limited else 0):
            assert await way.sides.status(way.next(kind)) == KINDS[kind].status, kind
        found[kind] = [await way.sides.status(way.next(kind)) for _ in range(1 if name == "it drains" else 2)]
        if found[kind][-1] < 300 and name != "it drains":
            # Its new plan is kept as the one before was.
            assert way.keeps(kind) == (not kind.startswith("HEAD ")), kind
    assert found == {kind: [behind(name, kind)] * len(found[kind]) for kind in KINDS}


# ---- requests unlike the one before

_SHORT: Final = b'{"ids":["250-0"]}'
UNLIKE: Final[Mapping[str, bytes]] = {
    # publishing
    "a key": post(ENTRIES, ENTRY, JSON, "Idempotency-Key: k"),
    "a condition": post(ENTRIES, ENTRY, JSON, 'If-Match: "1-1"'),
    "an expectation": post(ENTRIES, ENTRY, JSON, "Expect: 100-continue"),
    "synced": post(ENTRIES, ENTRY, JSON, "Prefer: durability=fsync"),
    "a trace": post(ENTRIES, ENTRY, JSON, f"traceparent: {SAMPLED}"),
    "its own request ID": post(ENTRIES, ENTRY, JSON, "Weir-Request-Id: mine"),
    "chunks": request(f"POST {ENTRIES}", None, JSON, "Transfer-Encoding: chunked")
    + b"14\r\n%b\r\n0\r\n\r\n" % ENTRY,
    "a query": post(f"{ENTRIES}?maxlen=2000&approx=false", ENTRY),
    "another stream": post("/v1/streams/t/entries", ENTRY),
    "as large as others": post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 16_300)),
    "no JSON": post(ENTRIES, ENTRY[:-1]),
    "larger": post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 16_400)),
    "much larger": post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 70_000)),
    # appending
    "several": post(APPENDS, b'[{"token":"a"},{"token":"b"}, 3]'),
    "an empty list": post(APPENDS, b"[]"),
    "a long list": post(APPENDS, b"[%b]" % b",".join([b"1"] * 20_000)),
    "a much larger text": post(APPENDS, b'{"token":"%b"}' % (b"x" * 70_000)),
    "a sequence": post(APPENDS, MESSAGE, JSON, "Stream-Seq: 1"),
    "an append in chunks": request(f"POST {APPENDS}", None, JSON, "Transfer-Encoding: chunked")
    + b"1\r\n5\r\n0\r\n\r\n",
    "half a producer": post(APPENDS, MESSAGE, JSON, "Producer-Id: p"),
    "another producer": batch(0, producer="q"),
    "the next run of a producer": batch(0, producer="q", epoch=1),
    "a gap": batch(7, producer="q", epoch=1),
    "a producer's list": batch(0, producer="r", body=b"[1,2]"),
    "by the way of others": post("/v1/streams/d/entries", b'{"fields":{"data":"1"}}'),
    "pages": request(f"GET {APPENDS}"),
    # acknowledging
    "two IDs": ack("201-0", "202-0"),
    "one that is not pending": ack("205-0", "9999-0"),
    "blanks": post(ACK, b'{ "ids" : [ "211-0" ] }\n'),
    "with deletion": post(ACK, b'{"ids":["217-0"],"delete":"keep"}'),
    "another group": post("/v1/streams/s/groups/h/ack", _SHORT),
    "a group of another stream": post("/v1/streams/t/groups/g/ack", _SHORT),
    "a condition that is not looked at": post(ACK, _SHORT, JSON, 'If-Match: "1-1"'),
    # reading
    "another part": request(f"GET {ENTRIES}?start=5&count=1"),
    "a wait": request(f"GET {ENTRIES}?after=9-0&wait=1&count=1"),
    "not modified": request(f"GET {ENTRIES}/4-0", None, "If-None-Match: *"),
    "many commands": post("/v1/commands/pipeline", b'[["XLEN","s"],["XLEN","d"]]'),
    "no route": request("GET /v1/none"),
    "no method": request("PUT /v1/streams", b""),
    "options": request(f"OPTIONS {ENTRIES}"),
}


@pytest.mark.parametrize("kind", [*JOINING, f"GET {_STREAM}/entries of a part"])
async def test_a_request_unlike_the_one_before_is_served_as_ever(world: World, kind: str) -> None:
    """As often as it comes, and so is what comes behind it, until the last."""
    await world.see(kind)
    for name, unlike in UNLIKE.items():
        for _ in range(2):
            await world.sides.both(world.sides.own(unlike))
        for _ in range(2):
            assert await world.sides.status(world.next(kind)) == KINDS[kind].status, name
    # Of another caller on the same connection, too.
    assert await world.sides.status(post(ENTRIES, ENTRY)) == 401
    assert await world.sides.status(world.next(kind)) == KINDS[kind].status
    assert b"\r\nconnection: close\r\n" in await world.sides.both(LAST)


@pytest.mark.parametrize("seq", [0, 2, 3, 4, (1 << 53) - 1, 1 << 53, 10**16, 10**17])
@pytest.mark.parametrize("epoch", [0, 1])
async def test_any_batch_behind_the_one_before_is_answered_alike(world: World, seq: int, epoch: int) -> None:
    """The next one, one that was there, one that leaves some out; and what comes behind it."""
    await world.see(BATCH)
    for number in (seq, seq, seq + 1, 3, 4):
        await world.sides.both(world.sides.own(batch(number, epoch=epoch)))


@pytest.mark.parametrize("seed", range(halves.some(16)))
async def test_requests_in_any_order_and_any_pieces_are_answered_alike(world: World, seed: int) -> None:
    """Those whose heads are known, those that are not, and a stamp that advances between them."""
    random, sides = Random(seed), world.sides
    likely = random.sample([*KINDS], 6)
    for _ in range(120):
        asked = world.next(random.choice(likely))
        if random.random() < 0.3:
            asked = sides.own(random.choice([*UNLIKE.values()]))
        cut = random.randrange(len(asked)) if random.random() < 0.2 else 0
        if random.random() < 0.1:
            sides.ours.gateway.stamp.advance()
        assert await sides.status(*filter(None, (asked[:cut], asked[cut:])))


@pytest.mark.parametrize("kind", JOINING)
@pytest.mark.parametrize("cuts", [(1,), (20,), (-1,), (-1, -10), (-len(ENTRY),)])
async def test_a_request_in_pieces_is_answered_alike(world: World, kind: str, cuts: Sequence[int]) -> None:
    """As are those behind it; many clients send a head and its body apart."""
    await world.see(kind)
    for _ in range(2):
        asked = world.next(kind)
        ends = sorted(cut % len(asked) for cut in cuts)
        pieces = [asked[at:end] for at, end in pairwise([0, *ends, len(asked)])]
        assert await world.sides.status(*pieces) == KINDS[kind].status
        assert not world.sides.ours.connection.has_deadline
    assert await world.sides.status(world.next(kind)) == KINDS[kind].status


async def test_what_is_sent_at_once_is_answered_in_order(world: World) -> None:
    """Every kind of request, three times, in one piece; and in another one while the first is answered."""
    for kind in KINDS:
        if not kind.startswith("HEAD "):
            await world.see(kind)
    asked = [world.next(kind) for kind in KINDS if not kind.startswith("HEAD ")] * 3
    for side in (world.sides.ours, world.sides.theirs):
        for at in range(0, len(asked), len(asked) // 2):
            side.writer.write(b"".join(asked[at : at + len(asked) // 2]))
    statuses = [await world.sides.status() for _ in asked]
    assert set(statuses[: len(statuses) // 3]) == {200, 201, 204}


# ---- what comes together


@pytest.mark.parametrize("query", ["count=1", "after=$&wait=1"])
async def test_what_is_behind_an_entry_that_is_stored_at_once_comes_before_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """By an engine that answers at once, where what is joined is full before the cycle ends."""
    await world.see(PUBLISH)
    side, asked = world.sides.ours, world.next(PUBLISH)
    read = world.sides.own(request(f"GET {ENTRIES}?{query}"))
    for _ in range(2):
        side.writer.write(read)
        await settle()
        world.sides.clock.pass_ms(5)
        await side.ask()
    monkeypatch.setattr(joiner, "_NUMBER_MAX", 1)
    send_on, at_once = side.engine.send, [Added((1 << ids.SEQUENCE_BITS,))]
    monkeypatch.setattr(
        side.engine,
        "send",
        lambda call, done: at_once if isinstance(call.commands[0], XAdd) else send_on(call, done),
    )
    for piece in (asked + read, asked):
        side.connection.data_received(piece)
    await settle()
    world.sides.clock.pass_ms(5)
    assert [(await side.ask())[9:12] for _ in range(3)] == [b"201", b"200", b"201"]


@pytest.mark.parametrize("seed", range(halves.some(8)))
async def test_what_comes_together_is_answered_as_one_behind_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each has its own place, what is wrong concerns itself alone, and each kind is one command."""
    random, sides = Random(seed), world.sides
    entries = [ENTRY, b'{"fields": {"b":"2"}}', b'{"fields":{"a":"\xff"}}', b'{"fields":{"a":1}}', b"{"]
    bodies = [b"1", b"[1,2]", b"[[3],4,5]", b"[]", b"{", b'"%b"' % (b"x" * 40)]
    producers = {name: _Producer(name, random) for name in "pqrst"}
    for kind in JOINING:
        await world.see(kind)
    for name in producers:
        for seq in range(3):
            await sides.both(sides.own(batch(seq, producer=name)))
        for epoch in range(1, 12):
            # What is refused has a plan too. A head that is new would be behind those that were seen.
            await sides.both(sides.own(batch(0, producer=name, epoch=epoch, body=b"{")))
    ways = [await world.others() for _ in range(21)]
    sent = sent_from_now(sides.ours, monkeypatch)
    for number in range(10, 90, 8):
        asked = [post(APPENDS, random.choice(bodies)) for _ in range(5)]
        asked += [producers[name].batch(random.choice(_KINDS)) for name in "pqrs"]
        # A producer with two connections.
        asked += [producers["t"].batch("next") for _ in range(2)]
        asked += [ack(*random.sample([f"{number + one}-0" for one in range(8)], 2)) for _ in range(5)]
        asked += [post(ENTRIES, random.choice(entries[: random.choice([2, 5])])) for _ in range(5)]
        for way, one in zip(ways, asked, strict=True):
            way.sides.ours.connection.data_received(sides.own(one))
        together = [await way.sides.ours.ask() for way in ways]
        alone = [await way.sides.theirs.ask(sides.own(one)) for way, one in zip(ways, asked, strict=True)]
        assert together == alone
    # Each has learnt the ID of its own entry.
    assert await sides.status(sides.own(request(f"GET {ENTRIES}?after={PENDING}-0&count=1000"))) == 200
    assert max(len(one.batches) for one in sent if isinstance(one, AppendBatches)) >= len(producers)
    assert max(len(one.ids) for one in sent if isinstance(one, Acknowledge)) >= 10
    assert max(len(one.bodies) for one in sent if isinstance(one, AppendDurable) and one.batch is None) > 5
    assert max(len(one.bodies) for one in sent if isinstance(one, XAdd)) == 5


_KINDS: Final = ["repeated", "gap", "older run", "next run", "bad next run", *["next"] * 4]


class _Producer:
    """Sends what comes next; what was there, what leaves some out, or what is of another run."""

    def __init__(self, name: str, random: Random) -> None:
        self._name, self._random = name, random
        self._epoch, self._seq = 0, 2

    def batch(self, kind: str) -> bytes:
        epoch, seq = self._epoch, self._seq
        if kind == "next":
            self._seq = seq = seq + 1
        elif kind == "gap":
            seq += 3
        elif kind == "older run":
            epoch = max(0, epoch - 1)
        elif kind == "next run":
            self._epoch, self._seq = epoch, seq = epoch + 1, 0
        elif kind == "bad next run":
            epoch += 1
        body = self._random.choice([b"7", b"[7,8]"])
        return batch(seq, producer=self._name, epoch=epoch, body=body)


# Refusals of what may have been done: a fault, or a backend that has not answered; and their statuses.
@pytest.mark.parametrize("kind", JOINING)
@pytest.mark.parametrize(
    ("refusal", "status"),
    [(errors.internal(), b"500"), (errors.restarting(is_unknown=True), b"503")],
)
async def test_what_may_have_been_done_is_not_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str, refusal: EngineError, status: bytes
) -> None:
    await world.see(kind)
    tried: list[Call] = []

    def fail(call: Call, _: object) -> Replies:
        tried.append(call)
        return call.refused(refusal)

    side = world.sides.ours
    monkeypatch.setattr(side.engine, "send", fail)
    assert (await side.ask(world.next(kind)))[9:12] == status
    assert len(tried) == 1
    assert side.gateway.reports.counters.rejected[refusal.code] == 1


async def test_who_waits_for_room_is_woken(world: World) -> None:
    """A reader over server-sent events goes on once what it was given is acknowledged elsewhere."""
    await world.see(ACKNOWLEDGE)
    settled: list[Sequence[int]] = []
    stop = world.sides.ours.gateway.tenant("").leases.follow("s", settled.append)
    assert (await world.sides.ours.ask(world.next(ACKNOWLEDGE)))[9:12] == b"200"
    stop()
    assert [len(one) for one in settled] == [1]


# ---- what is counted


@pytest.mark.parametrize("kind", KINDS)
async def test_each_request_counts_once_for_the_rate(world: World, kind: str) -> None:
    """What is left stands in the answers, which are alike; what is refused takes nothing."""
    rate = {"requests_per_s": 1, "requests_burst": 10, "bytes_per_s": 1_000_000}
    world.sides.change_token(rate=rate)
    await world.see(kind)
    if "/healthz/" in kind:
        assert b"ratelimit" not in await world.sides.both(world.next(kind))
        return
    answers = [await world.sides.both(world.next(kind)) for _ in range(8)]
    assert [left(answer) for answer in answers] == [6, 5, 4, 3, 2, 1, 0, 0]
    assert answers[-1][9:12] == b"429"
    world.sides.clock.pass_ms(1_000)
    assert [await world.sides.status(world.next(kind)) == 429 for _ in range(2)] == [False, True]


def left(answer: bytes) -> int:
    """How many requests the caller has left."""
    return int(answer.partition(b'"requests";r=')[2].partition(b";")[0])


async def test_the_rate_of_the_settings_is_held_alike() -> None:
    """Where no token has one."""
    async with entered(rate_requests=f"1/s burst {PENDING + 13}") as world:
        answers = [await world.sides.both(world.next(PUBLISH)) for _ in range(12)]
        assert [left(answer) for answer in answers] == [*range(9, -1, -1), 0, 0]
        assert [answer[9:12] for answer in answers[-3:]] == [b"201", b"429", b"429"]
        world.sides.clock.pass_ms(5_000)
        batch = world.sides.own(post(ENTRIES, _LINES, NDJSON, "Prefer: return=minimal"))
        answers = [await world.sides.both(batch) for _ in range(3)]
        assert [(answer[9:12], left(answer)) for answer in answers] == [(b"201", 3), (b"201", 1), (b"429", 1)]
        refused = await world.sides.both(world.sides.own(post(ENTRIES, b'{"fields":{}}')))
        assert (refused[9:12], left(refused)) == (b"422", 0)


@pytest.mark.parametrize("logged", ["all", "none"])
async def test_requests_are_counted_and_logged_alike(logged: str) -> None:
    """Every kind, and what is refused: by route and status, timed, with a line of each if that is asked."""
    async with entered(log_requests=logged) as world:
        sides = world.sides
        for kind in KINDS:
            await world.see(kind)
        for unlike in UNLIKE.values():
            await sides.both(sides.own(unlike))
        ours, theirs = [[LINE_ID.sub(b"?", line) for line in lines_of(side)] for side in sides[:2]]
        assert ours == theirs
        assert (len(ours) > 3 * len(KINDS)) == (logged == "all")
        of_ours, of_theirs = (side.gateway.reports.counters for side in (sides.ours, sides.theirs))
        assert of_ours.requests == of_theirs.requests
        assert of_ours.rejected == of_theirs.rejected
        assert of_ours.delivered == of_theirs.delivered
        assert of_ours.times.histogram.counts == of_theirs.times.histogram.counts


def lines_of(side: Side) -> list[bytes]:
    """The log of requests that is not written yet."""
    return side.app.exchanges._lines._lines  # noqa: SLF001


# ---- clients that leave, and servers that do


async def test_nothing_is_served_to_a_client_that_takes_no_answers(world: World) -> None:
    """What it has sent behind them waits until it reads again."""
    await world.see(PUBLISH)
    side, own = world.sides.ours, world.sides.own
    for _ in range(10):
        await side.ask(own(post("/v1/streams/t/entries", b'{"fields":{"a":"%b"}}' % (b"x" * 15_000))))
    read = own(request("GET /v1/streams/t/entries"))
    side.writer.write(read * 100 + world.next(PUBLISH))
    async with asyncio.timeout(None):
        while not side.connection.has_unsent:
            await let_threads_run()
    for _ in range(20):
        await settle()
    assert await reply_to(side.engine, XLen(stream="s")) == PENDING + 3
    answers = [await side.ask() for _ in range(101)]
    assert [answer[9:12] for answer in answers] == [b"200"] * 100 + [b"201"]


@pytest.mark.parametrize(
    "kind", [*JOINING, f"POST {_STREAM}/entries as lines", f"POST {_GROUP}/consumers/{{consumer}}/read"]
)
@pytest.mark.parametrize("stop", [lambda side: side.connection.shutdown(), lambda side: side.life.drain()])
async def test_the_last_answer_closes_the_connection(stop: Callable[[Side], None], kind: str) -> None:
    """A stop between a request and its answer, which waits for the disk: it is done, and answered. Of a
    gateway that drains, what comes later is refused, and its connection closed too.
    """
    disks = SlowDisk(), SlowDisk()
    async with entered(fsync="always", storages=disks) as world:
        await world.see(kind)
        later, asked = await world.others(), world.next(kind)
        for side, disk in zip(world.sides[:2], disks, strict=True):
            disk.hold()
            side.connection.data_received(asked)
            await settle()
            stop(side)
            disk.let_go()
        answer = await world.sides.both()
        assert int(answer[9:12]) == KINDS[kind].status
        assert b"\r\nconnection: close\r\n" in answer
        if world.sides.ours.gateway.state == "draining":
            assert b"\r\nconnection: close\r\n" in await later.sides.both(asked)


async def test_a_connection_that_waits_holds_nothing_of_what_was_sent(world: World) -> None:
    """There may be thousands of them: neither an entry, nor a message, nor what was refused."""
    text, side, own = b"x" * 15_000, world.sides.ours, world.sides.own
    for kind in JOINING:
        await world.see(kind)
    for asked, status in (
        (post(ENTRIES, b'{"fields":{"a":"%b"}}' % text), b"201"),
        (post(ENTRIES, b'{"fields":{"a":"%b"},"a":1}' % text), b"422"),
        (post(APPENDS, b'"%b"' % text), b"204"),
        (batch(3, body=b'"%b"' % text), b"200"),
        (post(ACK, b'{"ids":["%b"]}' % text), b"400"),
    ):
        for _ in range(2):
            assert (await side.ask(own(asked)))[9:11] == status[:2]
        assert not holds(vars(side.connection), text[:100])
        assert not holds(vars(side.gateway.joiner), text[:100])


@pytest.mark.parametrize("body", [ENTRY, ENTRY.replace(b"{", b"{ ", 1)])
async def test_a_client_that_left_without_its_answer_is_forgotten(body: bytes) -> None:
    """Its entry is stored; its connection is not kept for as long as an idle one would be."""
    async with entered(fsync="always", keep_alive_s=3_600) as world:
        await world.see(PUBLISH)
        asked = world.sides.own(post(ENTRIES, body))
        leaving = await world.sides.ours.another()
        assert (await leaving.ask(asked))[9:12] == b"201"
        connection = leaving.connection
        connection.data_received(asked)
        await asyncio.sleep(0)
        assert connection.answering is not None
        connection.transport.abort()
        # The disk takes a while; what comes behind it is answered behind it.
        assert (await world.sides.ours.ask(world.next(PUBLISH)))[9:12] == b"201"
        assert connection.answering is None
        # Those of `see`, both of the one that left, and the last one.
        assert await reply_to(world.sides.ours.engine, XLen(stream="s")) == PENDING + 3 + 3
        gone = weakref.ref(connection)
        leaving.writer.close()
        del connection, leaving
        await settle()
        gc.collect()
        assert gone() is None


# ---- which heads are kept


async def test_no_more_heads_are_kept_than_there_is_room_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.see(PUBLISH)
    asked = [world.sides.own(request(f"GET {ENTRIES}?count={number}")) for number in range(1, 40)]
    kept = world.sides.ours.connection._heads  # noqa: SLF001
    monkeypatch.setattr(kept, "_kept_max", 10)
    for one in asked * 2:
        assert (await world.sides.ours.ask(one))[9:12] == b"200"
        assert world.sides.ours.keeps(one)
        assert all(len(by) <= 10 for by in (kept._plans, kept._seen, kept._headers, kept._once))  # noqa: SLF001


async def test_an_odd_head_is_not_kept(world: World) -> None:
    """Nor one that is longer than others, or that says how bytes go on. Both answer alike."""
    await world.see(PUBLISH)
    for line in (
        "Connection: close",
        "Expect: 100-continue",
        "Accept: */*\r\nAccept: */*",
        f"X: {'x' * 3_000}",
    ):
        asked = world.sides.own(post(ENTRIES, ENTRY, JSON, line))
        for _ in range(2):
            await (await world.others()).sides.both(asked)
        assert not world.sides.ours.keeps(asked), line


async def test_nothing_kept_for_the_connection_of_a_certificate_is_used_by_another(world: World) -> None:
    """Who its caller is, its bytes do not say: it has heads of its own."""
    shown, other = await world.sides.ours.another(), await world.sides.ours.another()
    connection = shown.connection
    connection.client_certificate = ClientCertificate(("dns:a",), 9e9)
    connection.connection_made(connection.transport)
    asked = world.sides.own(request(f"GET {ENTRIES}?count=77"))
    for _ in range(2):
        assert (await shown.ask(asked))[9:12] == b"200"
    assert shown.keeps(asked)
    assert not other.keeps(asked)


# ---- how much is held, and how safe an answer is


async def test_the_bound_of_a_reply_is_held_alike(world: World) -> None:
    """Where others hold all of the pool it is refused, and served when they have let go."""
    kind = f"GET {_STREAM}/entries"
    await world.see(kind)
    pools = [side.gateway.limits.budgets.output for side in world.sides[:2]]
    held = [pool.hold("others", pool.bytes_max) for pool in pools]
    for _ in range(2):
        assert b'"code":"overloaded"' in await world.sides.both(world.next(kind))
    for one in held:
        one.release()
    assert await world.sides.status(world.next(kind)) == 200
    assert [pool.held_bytes for pool in pools] == [0, 0]


async def test_what_is_shown_is_as_safe_as_promised() -> None:
    """An answer with an entry that is not on disk waits for the disk, holding what it takes meanwhile."""
    disks = SlowDisk(), SlowDisk()
    async with entered(fsync="always", storages=disks) as world:
        for _ in range(16):
            asked = world.sides.own(post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 7_000)))
            assert await world.sides.status(asked) == 201
        read = world.sides.own(request(f"GET {ENTRIES}?reverse=true&count=15"))
        for _ in range(3):
            await world.sides.both(read)
        publishers, readers = (await world.others()).sides, (await world.others()).sides
        for disk in disks:
            disk.hold()
        for publisher, reader in zip(publishers[:2], readers[:2], strict=True):
            publisher.writer.write(world.sides.own(post(ENTRIES, ENTRY)))
            await settle()
            reader.writer.write(read)
            pool = publisher.gateway.limits.budgets.output
            async with asyncio.timeout(None):
                while pool.held_bytes <= 90_000:
                    await let_threads_run()
        for disk in disks:
            disk.let_go()
        answer = await readers.both()
        assert answer.count(b'{"id":') == 15
        assert b'"fields":{"a":"1"}' in answer
        assert await publishers.status() == 201
        assert not any(side.gateway.limits.budgets.output.held_bytes for side in world.sides[:2])


async def test_what_waits_behind_another_is_judged_when_it_begins(world: World) -> None:
    """Its head came before the token was revoked."""
    sides = world.sides
    await sides.both(sides.own(request(f"POST {ENTRIES}", b'{"fields":{"a":"1"}}', JSON)))
    before = await reply_to(sides.ours.engine, XLen(stream="s"))
    read = sides.own(request(f"GET {ENTRIES}?after=$&wait=5000", None, "X-Odd: 1"))
    remove = sides.own(request("DELETE /v1/streams/s", None, "X-Odd: 1"))
    for side in (sides.ours, sides.theirs):
        side.writer.write(read + remove)
    await settle()
    CHANGES["the token is revoked"](sides)
    sides.clock.pass_ms(6_000)
    for side in (sides.ours, sides.theirs):
        assert [(await side.ask(b""))[9:12] for _ in range(2)][1] == b"401"
    assert await reply_to(sides.ours.engine, XLen(stream="s")) == before


async def test_what_is_held_goes_before_what_comes_next(world: World) -> None:
    """Also where the request before it was answered at once, and its own body is still to come."""
    sides = world.sides
    read = sides.own(request("GET /v1/streams/s", None))
    entry = sides.own(request(f"POST {ENTRIES}", b'{"fields":{"a":"%b"}}' % (b"x" * len(read)), JSON))
    for _ in range(3):
        await sides.both(entry)
        await sides.both(read)
    for side in (sides.ours, sides.theirs):
        side.writer.write(read + entry[:-10])
        await settle()
        side.writer.write(entry[-10:])
        assert [(await side.ask(b""))[9:12] for _ in range(2)] == [b"200", b"201"]
