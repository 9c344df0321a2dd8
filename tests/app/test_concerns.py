"""What holds at every way in for Redis's commands: each concern is checked at each of them.

`CONCERNS` names the function that implements a concern for the command API, and for the Redis port.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.auth import Action, Principal, Resource
from app.doors.resp.accounting import Account
from app.doors.resp.listening import RespServer
from app.http.middleware.request_id import RequestIds
from app.http.requests import Request
from app.main import App, create_app
from app.metrics.tracing import Tracer
from app.settings import Settings
from engine import Engine
from tests.app.conftest import calling
from tests.app.policies import FixedPolicy, principal_with
from tests.app.resp.conftest import Wire
from tests.engine.clocks import HandClock

HTTP: Final = {
    "command": "/v1/commands",
    "pipeline": "/v1/commands/pipeline",
    "multi-exec": "/v1/commands/multi-exec",
}
# Over Redis's protocol: one by one, together in one write, in a transaction, and as reads that wait.
REDIS: Final = ("redis", "redis run", "redis MULTI", "redis BLOCK")
WAYS: Final = (*HTTP, *REDIS)
BURST: Final = 1_000_000
LONG: Final = "x" * 5_000
SAMPLED: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class FaultyPrincipal(Principal):
    """A caller whose right to see one stream cannot be looked up: a bug of the gateway."""

    def may(self, action: Action, resource: Resource) -> bool:
        """Whether it may do this."""
        if resource.stream == "bad" and action is Action.MANAGE:
            raise RuntimeError("a bug")
        return super().may(action, resource)

    def require(self, action: Action, resource: Resource) -> None:
        """Raise unless it may do this."""
        if resource.stream == "bad" and action is Action.MANAGE:
            raise RuntimeError("a bug")
        super().require(action, resource)


class Bench:
    """A gateway with both ways in, and one caller who may not use `secret`."""

    def __init__(self, app: App, engine: Engine, server: RespServer, directory: Path) -> None:
        self.app = app
        self.gateway = app.gateway
        self.engine = engine
        self.server = server
        self.directory = directory
        self.spans = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.gateway.tracer = Tracer(provider, trace)

    async def send(self, way: str, *commands: tuple[object, ...]) -> None:
        """Send the commands this way, and wait for their answers."""
        if way in HTTP:
            async with calling(self.app) as http:
                every = [list(command) for command in commands]
                for body in every if way == "command" else [every]:
                    await http.post(HTTP[way], json=body, headers={"traceparent": SAMPLED})
            return
        path = str(self.directory / "port.sock")
        wire = Wire(*await asyncio.open_unix_connection(path))
        lines: list[tuple[Any, ...]] = list(commands)
        if way == "redis MULTI":
            lines = [("MULTI",), *lines, ("EXEC",)]
        elif way == "redis BLOCK":
            lines = [_waiting(words) for words in lines]
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            # A fault ends the connection.
            for words in lines:
                wire.send(*words)
                if way != "redis run":
                    await wire.reply()
            for _ in lines if way == "redis run" else ():
                await wire.reply()
        wire.close()

    def taken(self) -> tuple[int, int]:
        """Requests and bytes that were taken from the caller's rate."""
        limiter = self.gateway.rate_limiter
        assert limiter is not None
        rates, now_s = limiter.rates, self.gateway.clock.monotonic()
        assert rates.requests is not None
        assert rates.bytes is not None
        left = limiter.requests.remaining("tester", rates.requests, now_s)
        bytes_left = limiter.bytes.remaining("tester", rates.bytes, now_s)
        return round(BURST - left), round(BURST - bytes_left)

    async def audited(self) -> list[dict[str, Any]]:
        """The lines of the audit log, which ends."""
        await asyncio.to_thread(self.gateway.audit.flush)
        text = await asyncio.to_thread((self.directory / "audit").read_text)
        return [json.loads(line) for line in text.splitlines()]


def _waiting(words: tuple[Any, ...]) -> tuple[Any, ...]:
    """A read with BLOCK; any other command as it is."""
    if words[0] not in ("XREAD", "XREADGROUP"):
        return words
    place = words.index("STREAMS")
    return (*words[:place], "BLOCK", 1, *words[place:])


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    clock = HandClock()
    settings = Settings(
        log_requests="all",
        resp_socket=str(tmp_path / "port.sock"),
        audit_file=str(tmp_path / "audit"),
        rate_requests_per_s=1,
        rate_requests_burst=BURST,
        rate_bytes_per_s=1,
        rate_bytes_burst=BURST,
        drain_s_max=1,
    )
    allowed = principal_with("read,write,consume,manage:orders*", "admin:*", "manage:bad")
    caller = FaultyPrincipal("tester", allowed.grants)
    app = await asyncio.to_thread(lambda: create_app(settings, clock, policy=FixedPolicy(caller)))
    engine = Engine.open(None, clock=clock)
    await engine.start()
    app.gateway.open(engine)
    server = RespServer(app.gateway)
    await server.start()
    bench = Bench(app, engine, server, tmp_path)
    # What is there before.
    await bench.send("pipeline", ("XADD", "orders", "*", "f", LONG), ("XGROUP", "CREATE", "orders", "g", "0"))
    yield bench
    await asyncio.to_thread(bench.gateway.audit.flush)
    await server.close()
    await engine.close()


READ: Final = ("XREAD", "STREAMS", "orders", "0")


async def requests_are_counted(bench: Bench, way: str) -> None:
    """Each command is at least one request of the caller's rate."""
    before, _ = bench.taken()
    await bench.send(way, *[READ] * 3)
    after, _ = bench.taken()
    assert after - before >= 3


async def bytes_in_are_counted(bench: Bench, way: str) -> None:
    """Those of entries, and of other words."""
    for command in (("XADD", "orders", "*", "f", LONG), ("XDEL", "orders", *["1-1"] * 1_000)):
        _, before = bench.taken()
        await bench.send(way, command)
        _, after = bench.taken()
        assert after - before >= 3_000, command


async def bytes_out_are_counted(bench: Bench, way: str) -> None:
    """Those of replies."""
    _, before = bench.taken()
    await bench.send(way, READ)
    _, after = bench.taken()
    assert after - before >= len(LONG)


async def refusals_are_counted(bench: Bench, way: str) -> None:
    """By their codes."""
    before = bench.gateway.counters.rejected["forbidden"]
    await bench.send(way, ("XADD", "secret", "*", "f", "v"))
    assert bench.gateway.counters.rejected["forbidden"] == before + 1


async def answers_are_counted_and_logged(bench: Bench, way: str) -> None:
    """By their status; a line each, where all are wanted."""
    written: list[str] = []
    log = bench.server.port.log.lines if way in REDIS else bench.app._outermost._lines  # noqa: SLF001
    log.flush()
    before = _answers(bench)
    await bench.send(way, READ)
    after = _answers(bench)
    assert after.get(200, 0) > before.get(200, 0)
    written += [line.decode() for line in log._lines]  # noqa: SLF001
    assert any('"status":200' in line for line in written)


def _answers(bench: Bench) -> dict[int, int]:
    found: dict[int, int] = {}
    for by_status in bench.gateway.counters.requests.values():
        for status, count in by_status.items():
            found[status] = found.get(status, 0) + count
    return found


async def deliveries_are_counted(bench: Bench, way: str) -> None:
    """Entries, by API."""
    door = "resp" if way in REDIS else "commands"
    before = bench.gateway.counters.delivered[door]  # type: ignore[index]
    await bench.send(way, READ)
    assert bench.gateway.counters.delivered[door] == before + 1  # type: ignore[index]


async def faults_are_counted(bench: Bench, way: str) -> None:
    """As `internal`."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    before = bench.gateway.counters.rejected["internal"]
    await bench.send(way, ("XGROUP", "DESTROY", "bad", "g"))
    assert bench.gateway.counters.rejected["internal"] == before + 1


async def changes_are_audited(bench: Bench, way: str) -> None:
    """Done or refused; one that is refused hides none behind it."""
    setting = ("CONFIG", "SET", "stream-node-max-entries", 50)
    await bench.send(way, ("XTRIM", "secret", "MAXLEN", 0), ("DEL", "orders2"), setting)
    _, *lines = await bench.audited()
    # A transaction of Redis is discarded at the refusal: what follows is not tried.
    tried = ["xtrim"] if way == "redis MULTI" else ["xtrim", "del", "config|set"]
    assert [line["operation"] for line in lines] == tried
    assert lines[0]["outcome"] == "forbidden"


async def group_reads_are_traced(bench: Bench, way: str) -> None:
    """A span, linked to that of the publisher."""
    await bench.send("command", ("XADD", "orders", "*", "f", "v"))
    bench.spans.clear()
    await bench.send(way, ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "orders", ">"))
    names = [span.name for span in bench.spans.get_finished_spans()]
    assert names == ["read orders"]


async def publishing_is_traced(bench: Bench, way: str) -> None:
    """A span for a request with `traceparent`; Redis's protocol has none."""
    bench.spans.clear()
    await bench.send(way, ("XADD", "orders", "*", "f", "v"), ("XADD", "orders", "7-*", "f", "v"))
    spans = bench.spans.get_finished_spans()
    assert {span.name for span in spans} == (set() if way in REDIS else {"publish orders"})


async def test_what_is_done_to_the_port_is_audited(bench: Bench) -> None:
    """Refused or not, with its arguments."""
    await bench.send("redis", ("CLIENT", "KILL", "ID", 7), ("CLIENT", "UNBLOCK", 7), ("SLOWLOG", "RESET"))
    await bench.send("redis", ("CLIENT", "KILL", "nobody"), ("CLIENT", "LIST"))
    _, *lines = await bench.audited()
    assert [(line["operation"], line["arguments"], line["outcome"]) for line in lines] == [
        ("client|kill", "ID 7", "done"),
        ("client|unblock", "7", "done"),
        ("slowlog|reset", "", "forbidden"),
        ("client|kill", "nobody", "invalid"),
    ]


@pytest.mark.parametrize(
    "words", [("INFO",), ("COMMAND", "DOCS"), ("AUTH", "default", "x"), ("SUBSCRIBE", "c")]
)
async def test_commands_about_the_connection_are_counted(bench: Bench, words: tuple[str, ...]) -> None:
    """As requests, with the bytes of their replies."""
    requests, size = bench.taken()
    await bench.send("redis", words)
    more, more_bytes = bench.taken()
    assert more == requests + 1
    assert more_bytes > size
    assert bench.gateway.counters.requests[f"redis {words[0].lower()}"]


async def test_a_rate_holds_until_it_is_paid(bench: Bench) -> None:
    """A long reply is charged: what comes next is refused, inside a transaction too, and costs nothing."""
    _, before = bench.taken()
    await bench.send("redis", ("XADD", "orders", "*", "f", "x" * (BURST - before - 500)))
    await bench.send("redis", ("XRANGE", "orders", "-", "+"))
    wire = Wire(*await asyncio.open_unix_connection(str(bench.directory / "port.sock")))
    requests, size = bench.taken()
    for _ in range(3):
        assert "the limit of bytes is reached" in str(await wire.call("PING"))
    assert "the limit of bytes is reached" in str(await wire.call("MULTI"))
    assert await wire.call("DISCARD") == "-ERR DISCARD without MULTI"
    assert bench.taken()[0] == requests
    assert bench.taken()[1] - size < 100
    wire.close()


async def test_each_stream_that_is_watched_is_counted(bench: Bench) -> None:
    """It is looked up."""
    requests, _ = bench.taken()
    await bench.send("redis", ("WATCH", *[f"orders{number}" for number in range(50)]))
    more, _ = bench.taken()
    assert more == requests + 50


Check = Callable[[Bench, str], Awaitable[None]]


class Concern(NamedTuple):
    """A check, and what implements the concern for the command API and for the Redis port."""

    check: Check
    http: Callable[..., Any]
    redis: Callable[..., Any] | None


CONCERNS: Final = (
    Concern(requests_are_counted, Request.take_more, Account.take),
    Concern(bytes_in_are_counted, Request.take, Account.take),
    Concern(bytes_out_are_counted, Request.take, Account.charge),
    Concern(refusals_are_counted, RequestIds.note, Account.refuse),
    Concern(answers_are_counted_and_logged, RequestIds.note, Account.count),
    Concern(deliveries_are_counted, Request.note_read, Account.note),
    Concern(faults_are_counted, RequestIds.note, Account.refuse),
    Concern(changes_are_audited, Request.note_action, Account.note_audited),
    Concern(group_reads_are_traced, Request.note_read, Account.note),
    Concern(publishing_is_traced, Request.publish, None),
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("concern", CONCERNS, ids=lambda concern: concern.check.__name__)
async def test_a_concern_holds_at_each_way_in(bench: Bench, concern: Concern, way: str) -> None:
    """Whichever function has it there."""
    await concern.check(bench, way)
