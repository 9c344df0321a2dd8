"""Traces: from what publishes, through the entry and the group that reads it, to the worker."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from app.main import create_app
from app.metrics import tracing
from app.settings import Settings, SettingsError
from engine import Engine, SystemClock, entries
from tests.app.collector import Collector, ReceivedSpan
from tests.app.conftest import calling
from tests.app.sockets import talking
from tests.server import Server
from weir import AsyncClient, Client, Delivery, Worker

ENTRIES: Final = "/v1/streams/s/entries"
TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
PARENT: Final = "b7ad6b7169203331"
SAMPLED: Final = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED: Final = f"00-{TRACE}-{PARENT}-00"
BODY: Final = {"fields": {"n": "1"}}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """What exports in this process and in those that it starts is sent there."""
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield collector


@pytest.fixture
def traced(tmp_path: Path, collector: Collector) -> Iterator[Server]:
    with Server(tmp_path / "data", "--set", "tracing=true") as server:
        yield server


@pytest.fixture
def provider(collector: Collector) -> Iterator[TracerProvider]:
    """The program's own tracing: this process is a publisher and a worker."""
    provider = TracerProvider(resource=Resource({"service.name": "program"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    yield provider
    provider.shutdown()
    # A process has one for good, but for this.
    trace._TRACER_PROVIDER = None  # noqa: SLF001
    trace._TRACER_PROVIDER_SET_ONCE._done = False  # noqa: SLF001


def named(name: str, service: str = "weir") -> Any:
    return lambda span: (span.name, span.service) == (name, service)


async def work(server: Server, via: Any) -> Delivery:
    """Let a worker do one entry; what it was given."""
    done: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

    async def handle(delivery: Delivery) -> None:
        done.set_result(delivery)

    worker = Worker(server.url, "orders", group="g", consumer="c", via=via)
    running = asyncio.create_task(worker.run(handle, stop_on=()))
    found = await asyncio.wait_for(done, 20)
    worker.stop()
    await running
    return found


@pytest.mark.parametrize("via", ["websocket", "long-poll"])
async def test_a_trace_goes_from_the_publisher_to_the_worker(
    traced: Server, collector: Collector, provider: TracerProvider, via: str
) -> None:
    """Publish → entry → group read → worker; the last two have traces of their own, with links."""
    with provider.get_tracer("program").start_as_current_span("shop") as shop:
        async with AsyncClient(traced.url) as client:
            await client.publish("orders", {"item": "apple"})
    given = await work(traced, via)
    root = shop.get_span_context()
    published = await asyncio.to_thread(collector.wait_for, named("publish orders"))
    assert (published.kind, published.trace_id) == ("PRODUCER", f"{root.trace_id:032x}")
    assert published.parent_id == f"{root.span_id:016x}"
    assert published.attributes["messaging.destination.name"] == "orders"
    context = (published.trace_id, published.span_id)
    assert given.entry.meta == {"traceparent": f"00-{context[0]}-{context[1]}-01"}
    assert given.entry.fields == {"item": "apple"}
    for name, service in (("read orders", "weir"), ("process orders", "program")):
        span: ReceivedSpan = await asyncio.to_thread(collector.wait_for, named(name, service))
        assert (span.kind, span.links, span.parent_id) == ("CONSUMER", [context], "")
        assert span.trace_id != published.trace_id
        assert span.attributes["messaging.consumer.group.name"] == "g"
        assert span.attributes["messaging.client.id"] == "c"


def test_metadata_survive_a_restart_and_are_no_field(traced: Server) -> None:
    """They are read with the entry through every API but Redis's, whose entries are fields alone."""
    with httpx.Client(base_url=traced.url, headers={"traceparent": UNSAMPLED}) as http:
        http.post(ENTRIES, json=BODY)
        http.post("/v1/publish", json={"streams": {"s": [BODY, BODY]}})
        http.post(ENTRIES, json=BODY, headers={"traceparent": "00-nonsense"})
    traced.kill()
    traced.start()
    with httpx.Client(base_url=traced.url) as http:
        found = http.get(ENTRIES).json()["entries"]
        assert [one.get("meta") for one in found] == [{"traceparent": UNSAMPLED}] * 3 + [None]
        assert all(one["fields"] == {"n": "1"} for one in found)
        some = http.get(ENTRIES + "?fields=x&count=1").json()["entries"]
        assert [(one["fields"], one["meta"]) for one in some] == [({}, {"traceparent": UNSAMPLED})]
        rows = http.post("/v1/commands", json=["XRANGE", "s", "-", "+"]).json()["result"]
        assert [fields for _, fields in rows] == [["n", "1"]] * 4
        with talking(traced) as client:
            client.send("subscribe", sub="t", streams={"s": "0"})
            assert client.entries(4)[0]["meta"] == {"traceparent": UNSAMPLED}
        with Client(traced.url) as client_of_sdk:
            assert client_of_sdk.read("s").entries[0].meta == {"traceparent": UNSAMPLED}
            assert client_of_sdk.read("s").entries[3].meta == {}


def test_a_frame_of_a_socket_carries_its_trace(traced: Server, collector: Collector) -> None:
    """As the header does: a sampled one gets a span, also where it is refused; a malformed one is ignored."""
    with talking(traced) as client:
        first = client.ask("publish", stream="s", id="1-1", fields={"n": 1}, traceparent=UNSAMPLED)
        assert first["first_id"] == "1-1"
        client.ask("publish", stream="s", entries=[{"fields": {"n": 2}}] * 2, traceparent=SAMPLED)
        client.ask("publish", stream="s", fields={"n": 3}, traceparent=f"{SAMPLED}-extra")
        client.ask("publish", stream="s", fields={"n": 4})
        refused = client.ask("publish", stream="s", id="1-1", fields={"n": 5}, traceparent=SAMPLED)
        assert refused["problem"]["code"] == "id_not_increasing"
        wrong = client.ask("publish", stream="s", fields={"n": 6}, traceparent=7)
        assert wrong["problem"]["code"] == "invalid"
        client.send("subscribe", sub="t", streams={"s": "0"})
        found = client.entries(5)
    collector.wait_for(lambda span: span.name == "publish s" and span.is_error)
    stored, failed = [span for span in collector.spans if span.name == "publish s"]
    assert {(one.kind, one.trace_id, one.parent_id) for one in (stored, failed)} == {
        ("PRODUCER", TRACE, PARENT)
    }
    assert stored.attributes["messaging.batch.message_count"] == 2
    kept = {"traceparent": f"00-{TRACE}-{stored.span_id}-01"}
    assert [one.get("meta") for one in found] == [{"traceparent": UNSAMPLED}, kept, kept, None, None]


def test_dead_letters_and_what_is_redriven_keep_it(traced: Server) -> None:
    """The trace of an entry goes on in its copies."""
    with httpx.Client(base_url=traced.url) as http:
        http.post(ENTRIES, json=BODY, headers={"traceparent": UNSAMPLED})
        policy = {"dead_letter": {"stream": "dead", "max_deliveries": 1}}
        http.put("/v1/streams/s/groups/g", json={"start": "0", **policy})
        (given,) = http.post("/v1/streams/s/groups/g/consumers/c/read", json={}).json()["entries"]
        http.post("/v1/streams/s/groups/g/dead-letter", json={"ids": [given["id"]], "reason": "test"})
        (letter,) = http.get("/v1/streams/dead/entries").json()["entries"]
        http.post("/v1/streams/s/groups/g/dead-letters/redrive", json={"ids": [letter["id"]]})
        copies = http.get(ENTRIES).json()["entries"]
        assert [one["meta"] for one in (letter, copies[-1])] == [{"traceparent": UNSAMPLED}] * 2


@pytest.fixture
async def both(engine: Engine, collector: Collector, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """A gateway in this process, with a tracer or without."""
    settings = Settings(log_requests="none", tracing=request.param)
    app = await asyncio.to_thread(create_app, settings, SystemClock())
    app.life.open(engine)
    async with calling(app) as http:
        yield http
    if app.gateway.reports.tracer is not None:
        await asyncio.to_thread(app.gateway.reports.tracer.close)


@pytest.mark.parametrize("both", [False], indirect=True)
async def test_without_the_setting_nothing_is_kept(both: httpx.AsyncClient) -> None:
    """Clients may send what they like."""
    await both.post(ENTRIES, json=BODY, headers={"traceparent": SAMPLED})
    assert "meta" not in (await both.get(ENTRIES)).json()["entries"][0]


@pytest.mark.parametrize("both", [True], indirect=True)
async def test_what_is_not_sampled_gets_no_span(both: httpx.AsyncClient, collector: Collector) -> None:
    """Neither a publish nor a group read; a sampled one, and one that fails, get theirs."""
    await both.put("/v1/streams/s/groups/g", json={"start": "0", "mkstream": True})
    read = "/v1/streams/s/groups/g/consumers/c/read"
    for header in ({}, {"traceparent": UNSAMPLED}):
        await both.post(ENTRIES, json=BODY, headers=header)
        assert len((await both.post(read, json={})).json()["entries"]) == 1
    await both.post(ENTRIES + "?nomkstream=1", json={**BODY, "id": "1-0"}, headers={"traceparent": SAMPLED})
    found = await asyncio.to_thread(collector.wait_for, named("publish s"))
    assert found.trace_id == TRACE
    assert [span.name for span in collector.spans] == ["publish s"]


@pytest.mark.parametrize(
    ("header", "is_valid"),
    [
        (SAMPLED, True),
        (UNSAMPLED, True),
        (SAMPLED + "-extra", False),
        (f"00-{'0' * 32}-{PARENT}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"ff-{TRACE}-{PARENT}-01", False),
        (SAMPLED.upper(), False),
        ("", False),
    ],
)
def test_only_what_the_standard_allows_is_followed(header: str, *, is_valid: bool) -> None:
    """W3C Trace Context, version 00: anything else would be stored for ever."""
    assert (tracing.valid(header.encode()) is not None) is is_valid


def test_metadata_of_hostile_entries_are_their_own() -> None:
    """No field can pass for metadata."""
    hostile = [
        (',"meta":{"traceparent":"x"}}', ',"meta":{"traceparent":"x"}}'),
        ("meta", '{"traceparent":"x"}'),
        ("a", '","meta":{"traceparent":"x"}}'),
    ]
    body = entries.body(hostile)
    assert entries.meta_of(entries.encode(1, body)) == {}
    marked = entries.encode(1, entries.with_meta(body, {"traceparent": SAMPLED}))
    assert entries.meta_of(marked) == {"traceparent": SAMPLED}
    assert [(name, value.decode()) for name, value in entries.pairs_of(marked)] == hostile
    assert entries.with_meta(body, {}) == body


def test_names_of_the_conventions_are_those_of_the_package() -> None:
    """The table follows OpenTelemetry's own list."""
    from opentelemetry.semconv._incubating.attributes import messaging_attributes  # noqa: PLC0415

    known = {value for name, value in vars(messaging_attributes).items() if name.isupper()}
    assert set(tracing.ATTRIBUTES.values()) <= known


def test_without_the_packages_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the name of the extra that has them."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(SettingsError, match=r"weir-gateway\[otel\]"):
        create_app(Settings(tracing=True), SystemClock())
