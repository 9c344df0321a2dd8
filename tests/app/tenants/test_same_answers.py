"""A tenant is answered as a caller without a prefix is, by every command and route, over the same content.

Each of both has a gateway of its own, whose clock stands still: so each ID and each time is the same, and so
is each answer but for what is drawn at random. The streams have dead letters, which hold names of streams,
and entries that only look like some.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import httpx
import pytest

from app import redis
from app.auth import Grant, Principal
from app.main import App, create_app
from app.settings import Settings
from engine import Engine
from tests.app.conftest import calling
from tests.app.policies import FixedPolicy
from tests.engine.clocks import HandClock

PREFIX: Final = "acme."
S: Final = "/v1/streams/orders"
G: Final = f"{S}/groups/g"
D: Final = f"{S}/groups/d"
# Drawn at random: the IDs of requests, and generations. And sizes of what is stored, with the whole names.
LEFT_OUT: Final = re.compile(rb'"request_id":"[^"]+"|\b[0-9a-f]{16}\b|"(memory_)?bytes":[0-9]+')
LETTER: Final = (
    "v", "1", "weir-source", "orders", "weir-id", "1-0", "weir-group", "g", "weir-consumer", "c",
    "weir-deliveries", "2", "weir-reason", "tried",
)  # fmt: skip

# Each command of the table in an order that gives it something to do; what it answers may be an error.
COMMANDS: Final[Sequence[Sequence[str]]] = [
    ("XADD", "orders", "1-0", "v", "1"),
    ("XADD", "orders", "2-0", "v", "2", "weir-source", "acme.orders"),
    ("XADD", "orders", "*", "v", "3"),
    ("XADD", "orders", "*", "v", "4", "weir-source", "\xff"),
    ("XADD", "orders", "IDMPAUTO", "p", "*", "weir-source", "x"),
    ("XADD", "orders", "IDMPAUTO", "p", "*", "weir-source", "x"),
    ("XADD", "dead", "1-1", *LETTER),
    ("XADD", "other", "1-0", "weir-source", "a", "weir-source", "b"),
    ("XRANGE", "orders", "-", "+"),
    ("XREVRANGE", "dead", "+", "-", "COUNT", "1"),
    ("XREAD", "STREAMS", "orders", "dead", "missing", "0", "0", "0"),
    ("XLEN", "orders"),
    ("XGROUP", "CREATE", "orders", "g", "0"),
    ("XGROUP", "CREATE", "missing", "g", "0"),
    ("XGROUP", "CREATE", "dead", "g", "0"),
    ("XGROUP", "SETID", "orders", "g", "0"),
    ("XGROUP", "CREATECONSUMER", "orders", "g", "c"),
    ("XREADGROUP", "GROUP", "g", "c", "COUNT", "3", "STREAMS", "orders", "dead", ">", ">"),
    ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "orders", "0"),
    ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "missing", ">"),
    ("XREADGROUP", "GROUP", "missing", "c", "STREAMS", "orders", ">"),
    ("WEIR.WHY", "orders", "g"),
    ("XINFO", "STREAM", "orders"),
    ("XINFO", "STREAM", "dead"),
    ("XINFO", "STREAM", "dead", "FULL"),
    ("XINFO", "STREAM", "missing"),
    ("XINFO", "GROUPS", "orders"),
    ("XINFO", "CONSUMERS", "orders", "g"),
    ("XINFO", "CONSUMERS", "orders", "missing"),
    ("XINFO", "HELP"),
    ("XPENDING", "orders", "g"),
    ("XPENDING", "orders", "missing"),
    ("XPENDING", "missing", "g"),
    ("XPENDING", "orders", "g", "-", "+", "10"),
    ("XCLAIM", "dead", "g", "c2", "0", "1-1"),
    ("XCLAIM", "orders", "g", "c2", "0", "1-0", "JUSTID"),
    ("XAUTOCLAIM", "dead", "g", "c", "0", "0"),
    ("XNACK", "orders", "g", "FAIL", "IDS", "1", "1-0"),
    ("WEIR.CLOSE", "missing"),
    ("WEIR.INFO", "missing"),
    ("WEIR.NACK", "orders", "missing", "FAIL", "IDS", "1", "1-0", "DELAY", "5"),
    ("WEIR.EXTEND", "orders", "g", "c", "1-0"),
    ("WEIR.PAUSE", "orders", "missing"),
    ("WEIR.SCHEDULE", "SET", "orders", "once", "AT", "9999999999999999", "FIELDS", "weir-source", "acme.x"),
    ("WEIR.SCHEDULE", "SET", "orders", "once", "AT", "1900000000000", "FIELDS", "weir-source", "acme.x"),
    ("WEIR.SCHEDULE", "GET", "orders", "once"),
    ("WEIR.SCHEDULE", "LIST", "orders"),
    ("WEIR.SCHEDULE", "PAUSE", "orders", "once"),
    ("WEIR.SCHEDULE", "RESUME", "orders", "once"),
    ("WEIR.SCHEDULE", "HELP"),
    ("WEIR.SCHEDULE", "DEL", "orders", "once"),
    ("WEIR.RESUME", "orders", "missing"),
    ("WEIR.GROUP", "SET", "orders", "g", "DEADLETTER", "dead", "MAXDELIVERIES", "9", "MAXAGE", "9999999"),
    ("WEIR.GROUP", "SET", "orders", "g", "DEADLETTER", "orders"),
    ("WEIR.GROUP", "SET", "orders", "missing", "MAXAGE", "0"),
    ("WEIR.GROUP", "HELP"),
    ("XACK", "orders", "g", "1-0"),
    ("XACKDEL", "orders", "g", "KEEPREF", "IDS", "1", "2-0"),
    ("XGROUP", "DELCONSUMER", "orders", "g", "c2"),
    ("XGROUP", "DESTROY", "dead", "g"),
    ("XGROUP", "HELP"),
    ("XDEL", "orders", "1-0"),
    ("XDELEX", "orders", "KEEPREF", "IDS", "1", "7-0"),
    ("XTRIM", "orders", "MAXLEN", "3"),
    ("XSETID", "other", "5-0"),
    ("XCFGSET", "orders", "IDMP-DURATION", "60"),
    ("XIDMPRECORD", "orders", "p", "i", "1-0"),
    ("COPY", "dead", "copy"),
    ("RENAME", "copy", "moved"),
    ("RENAMENX", "moved", "orders"),
    ("RENAME", "missing", "orders"),
    ("EXISTS", "orders", "missing"),
    ("TOUCH", "orders", "missing"),
    ("TYPE", "orders"),
    ("KEYS", "*"),
    ("KEYS", "o*"),
    ("KEYS", "acme.*"),
    ("SCAN", "0"),
    ("EXPIRE", "moved", "100"),
    ("PEXPIRE", "moved", "100000"),
    ("EXPIREAT", "moved", "1800000000"),
    ("PEXPIREAT", "moved", "1800000000000"),
    ("TTL", "moved"),
    ("PTTL", "moved"),
    ("EXPIRETIME", "moved"),
    ("PEXPIRETIME", "moved"),
    ("PERSIST", "moved"),
    ("OBJECT", "ENCODING", "orders"),
    ("OBJECT", "FREQ", "orders"),
    ("OBJECT", "IDLETIME", "orders"),
    ("OBJECT", "REFCOUNT", "orders"),
    ("OBJECT", "HELP"),
    ("MEMORY", "USAGE", "plain"),
    ("MEMORY", "HELP"),
    ("PING",),
    ("ECHO", "acme."),
    ("TIME",),
    ("WAIT", "0", "0"),
    ("WAITAOF", "0", "0", "0"),
    ("COMMAND", "COUNT"),
    ("COMMAND", "HELP"),
    ("CONFIG", "HELP"),
    ("DEL", "moved", "missing"),
    ("UNLINK", "other"),
    ("XADD", "o" * 600, "*", "v", "1"),
]
# A transaction has no more reads of entries.
TOGETHER: Final = 16
# About the gateway, or about the streams of all callers.
NOT_OF_TENANTS: Final = {"config|get", "config|set", "dbsize", "flushall", "flushdb"}
# Which name it gives is chance.
BY_CHANCE: Final = {"randomkey"}

Call = tuple[str, str, dict[str, Any]]
AT: Final = "2030-01-01T00:00:00.000Z"
MANY: Final = {"streams": {"orders": [{"fields": {"weir-source": "z"}}], "b": [{"fields": {"v": "1"}}]}}
CHUNK: Final = {"weir-producer": "p", "weir-chunk": "0"}
ROUTES: Final[Sequence[Call]] = [
    ("GET", "/", {}),
    ("GET", "/v1", {}),
    ("GET", "/healthz/live", {}),
    ("GET", "/healthz/ready", {}),
    ("POST", f"{S}/entries", {"json": {"id": "1-0", "fields": {"v": "1"}}}),
    ("POST", f"{S}/entries", {"json": {"fields": {"v": "2", "weir-source": "acme.x"}}}),
    (
        "POST",
        f"{S}/entries",
        {"json": {"fields": {"v": "/w==", "weir-source": "eA=="}, "encoding": "base64"}},
    ),
    (
        "POST",
        f"{S}/entries",
        {"content": b'{"fields":{"\\u0077eir-source":"y"}}', "headers": {"content-type": "application/json"}},
    ),
    (
        "POST",
        f"{S}/entries",
        {"json": {"entries": [{"fields": {"weir-source": "a"}}, {"fields": {"b": "2"}}]}},
    ),
    ("POST", f"{S}/entries/batch", {"json": {"entries": [{"fields": {"weir-source": "a"}}]}}),
    ("POST", f"{S}/entries/ndjson", {"content": '{"weir-source":"a"}\n{"b":"2"}'}),
    ("POST", f"{S}/entries/raw", {"content": "weir-source"}),
    ("POST", "/v1/publish", {"json": MANY}),
    # Each as a repetition, and then in an epoch that is over.
    *[("POST", "/v1/publish", {"json": MANY, "headers": {"idempotency-key": "k"}})] * 2,
    *[("POST", "/v1/publish", {"json": MANY, "headers": CHUNK | {"weir-epoch": epoch}}) for epoch in "221"],
    ("GET", f"{S}/entries", {}),
    ("GET", f"{S}/entries?reverse=true&count=1", {}),
    ("GET", f"{S}/entries/1-0", {}),
    ("GET", f"{S}/entries/9-9", {}),
    ("GET", f"{S}/export", {}),
    ("GET", f"{S}/columns", {}),
    ("POST", "/v1/read", {"json": {"streams": {"orders": "0", "missing": "0"}}}),
    ("POST", "/v1/plan", {"json": {"streams": {"orders": "0", "missing": "0"}}}),
    ("POST", "/v1/plan", {"json": {"pattern": "*"}}),
    ("PUT", "/v1/streams/c", {"json": {"retention": {"max_len": 5}}}),
    ("PATCH", "/v1/streams/c", {"json": {"retention": {"max_len": 6}}}),
    ("POST", "/v1/streams/c/last-id", {"json": {"last_id": "5-0"}}),
    ("GET", "/v1/streams", {}),
    ("GET", "/v1/streams?limit=1", {}),
    ("GET", "/v1/streams?prefix=or", {}),
    ("GET", S, {}),
    ("GET", f"{S}?full=true", {}),
    ("GET", "/v1/streams/missing", {}),
    ("POST", f"{S}/groups", {"json": {"name": "g", "start": "0"}}),
    ("POST", f"{S}/groups", {"json": {"name": "g", "start": "0"}}),
    ("PUT", D, {"json": {"start": "0", "dead_letter": {"stream": "dead", "max_deliveries": 2}}}),
    ("PATCH", D, {"json": {"dead_letter": {"stream": "dead", "max_deliveries": 1}}}),
    ("GET", D, {}),
    ("GET", f"{S}/groups", {}),
    ("PUT", f"{G}/consumers/w", {}),
    ("POST", f"{G}/consumers/w/read", {"json": {"count": 2}}),
    ("POST", f"{S}/groups/missing/consumers/w/read", {"json": {}}),
    ("GET", f"{G}/consumers", {}),
    ("GET", f"{G}/consumers/w", {}),
    ("GET", f"{G}/pending", {}),
    ("GET", f"{G}/pending?count=5", {}),
    ("POST", f"{G}/nack", {"json": {"ids": ["1-0"], "mode": "fail"}}),
    ("POST", f"{G}/claim", {"json": {"consumer": "x", "min_idle_ms": 0, "ids": ["1-0"]}}),
    ("POST", f"{G}/extend", {"json": {"consumer": "x", "ids": ["1-0", "2-0"]}}),
    ("POST", f"{G}/autoclaim", {"json": {"consumer": "w", "min_idle_ms": 0}}),
    ("POST", f"{G}/ack", {"json": {"ids": ["1-0"]}}),
    ("POST", f"{D}/consumers/w/read", {"json": {}}),
    ("POST", f"{D}/dead-letter", {"json": {"ids": ["1-0"]}}),
    ("POST", f"{D}/consumers/w/read", {"json": {"after": "0"}}),
    ("POST", f"{D}/autoclaim", {"json": {"consumer": "x", "min_idle_ms": 0}}),
    ("GET", "/v1/streams/dead/entries", {}),
    ("GET", "/v1/streams/dead/columns", {}),
    ("POST", f"{D}/dead-letters/redrive", {"json": {"dry_run": True}}),
    ("POST", f"{D}/dead-letters/redrive", {"json": {}}),
    ("GET", f"{G}/why", {}),
    ("GET", f"{D}/why?consumer=w", {}),
    ("DELETE", f"{G}/consumers/x?pending=drop", {}),
    ("DELETE", f"{G}", {}),
    ("POST", f"{S}/trim", {"json": {"maxlen": 3}}),
    ("POST", "/v1/streams/missing/close", {"json": {"reason": "acme."}}),
    ("PUT", f"{S}/schedules/once", {"json": {"entry": {"fields": {"weir-source": "acme.x"}}, "at": AT}}),
    ("GET", f"{S}/schedules/once", {}),
    ("GET", f"{S}/schedules", {}),
    ("GET", "/v1/schedules", {}),
    ("PATCH", f"{S}/schedules/once", {"json": {"paused": True}}),
    ("POST", f"{S}/entries?deliver_at={AT}&schedule=a&cancel_schedule=b", {"json": {"fields": {"v": "9"}}}),
    ("POST", f"{S}/entries?cancel_schedule=a&required=true", {"json": {"id": "100-0", "fields": {"v": "9"}}}),
    ("POST", f"{S}/schedules/missing/fire", {}),
    ("DELETE", f"{S}/schedules/once", {}),
    ("DELETE", f"{S}/entries/1-0", {}),
    ("POST", f"{S}/entries/delete", {"json": {"ids": ["1-0"]}}),
    ("DELETE", "/v1/streams/c", {}),
    ("POST", "/v1/commands", {"json": ["XINFO", "STREAM", "dead"]}),
    ("POST", "/v1/commands/pipeline", {"json": [["XINFO", "STREAM", "dead", "FULL"], ["XLEN", "dead"]]}),
    (
        "POST",
        "/v1/commands/multi-exec",
        {"json": [["XADD", "dead", "*", "v", "1"], ["XINFO", "STREAM", "dead"]]},
    ),
]
# About the gateway or its callers, or they have no end: `test_matrix` follows these.
OTHER_ROUTES: Final = {
    "confirmHook", "consumeGroup", "createRevocation", "createTicket", "createToken", "deleteToken",
    "getBackup", "getCaller", "getRewrite", "getStatus", "getToken", "listHooks", "listRevocations",
    "listTokens", "receiveHook", "startBackup", "startRewrite", "tailStream", "tailStreams",
}  # fmt: skip


def principal(prefix: str | None) -> Principal:
    """Who may do everything with the streams under a prefix."""
    return Principal("tester", [Grant.from_value({"actions": ["*"], "streams": "*", "prefix": prefix})])


async def gateway(stack: AsyncExitStack, prefix: str | None) -> App:
    clock = HandClock()
    settings = Settings(log_requests="none", buffer_bytes_max=256 << 20)
    app = create_app(settings, clock, policy=FixedPolicy(principal(prefix)))
    engine = Engine.open(None, clock=clock)
    await engine.start()
    stack.push_async_callback(engine.close)
    app.life.open(engine)
    return app


@pytest.fixture
async def both() -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """A caller without a prefix, and a tenant."""
    async with AsyncExitStack() as stack:
        root, tenant = [
            await stack.enter_async_context(calling(await gateway(stack, one))) for one in (None, PREFIX)
        ]
        yield root, tenant


async def answer(client: httpx.AsyncClient, method: str, path: str, **options: Any) -> tuple[int, bytes]:
    """Status and body, without what is left out."""
    found = await client.request(method, path, **options)
    return found.status_code, LEFT_OUT.sub(b"", found.content)


def name_of(words: Sequence[str]) -> str:
    one, two = words[0].lower(), "|".join(words[:2]).lower()
    return two if two in redis.COMMANDS else one


@pytest.mark.early
def test_each_command_has_an_example() -> None:
    wanted = redis.COMMANDS.keys() - NOT_OF_TENANTS - BY_CHANCE
    assert {name_of(words) for words in COMMANDS} == wanted, "each has a row in COMMANDS, HELP too"


async def test_a_random_name_is_one_of_its_own(both: tuple[httpx.AsyncClient, ...]) -> None:
    """Without the prefix."""
    tenant = both[1]
    assert (await tenant.post("/v1/commands", json=["RANDOMKEY"])).json() == {"result": None}
    for name in ("a", "b"):
        await tenant.post(f"/v1/streams/{name}/entries", json={"fields": {"v": "1"}})
    found = {(await tenant.post("/v1/commands", json=["RANDOMKEY"])).json()["result"] for _ in range(50)}
    assert found == {"a", "b"}


@pytest.mark.early
async def test_each_route_has_an_example(both: tuple[httpx.AsyncClient, ...]) -> None:
    document = (await both[0].get("/openapi.json")).json()
    templates = {
        (method.upper(), re.compile(re.sub(r"\{\w+\}", "[^/]+", path) + "$")): operation["operationId"]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    called = {
        operation
        for method, path, _ in ROUTES
        for (wanted, template), operation in templates.items()
        if method == wanted and template.match(path.partition("?")[0])
    }
    assert called == set(templates.values()) - OTHER_ROUTES, "each has a row in ROUTES"


async def test_every_route_answers_both_alike(both: tuple[httpx.AsyncClient, ...]) -> None:
    for method, path, options in ROUTES:
        of_root, of_tenant = [await answer(client, method, path, **options) for client in both]
        assert of_tenant == of_root, (method, path)
        assert of_root[0] < 500


async def test_every_command_answers_both_alike(both: tuple[httpx.AsyncClient, ...]) -> None:
    """Each alone."""
    for words in COMMANDS:
        of_root, of_tenant = [await answer(client, "POST", "/v1/commands", json=words) for client in both]
        assert of_tenant == of_root, words
        assert of_root[0] < 500


@pytest.mark.parametrize("path", ["/v1/commands/pipeline", "/v1/commands/multi-exec"])
async def test_commands_together_answer_both_alike(both: tuple[httpx.AsyncClient, ...], path: str) -> None:
    for at in range(0, len(COMMANDS), TOGETHER):
        rows = COMMANDS[at : at + TOGETHER]
        of_root, of_tenant = [await answer(client, "POST", path, json=rows) for client in both]
        assert of_tenant == of_root
        assert of_root[0] == 200, of_root
