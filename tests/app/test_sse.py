"""Tails as server-sent events: where they begin, what they tell, how they end."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from app.doors.sse.cursors import TailOptions
from app.doors.sse.tails import Tail
from app.gateway import Gateway
from app.http.cursors import Place
from app.http.responses import GONE_EXTENSION, WRITE_EXTENSION
from app.live.budgets import FREE_BYTES
from app.live.feeds import Feeds
from app.main import App
from app.settings import Settings
from engine import Engine, EngineError, entries
from engine.commands.types import XAdd
from engine.storage.memory import MemoryStorage
from tests.app.conftest import app_on
from tests.app.eventsource import Parser, ReceivedEvent
from tests.app.test_waits import Message
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock, settle

HEADERS = {
    b"content-type": b"text/event-stream",
    b"cache-control": b"no-cache, no-transform",
    b"x-accel-buffering": b"no",
    b"x-content-type-options": b"nosniff",
}
TAIL = "/v1/streams/s/tail"
PLACE = "http://127.0.0.1:8080"


class EventReader:
    """A connection: what came over it, and a client that can leave or stop reading."""

    def __init__(self, app: App, path: str, query: str = "", **headers: str) -> None:
        self._left = asyncio.Event()
        self._takes = asyncio.Event()
        self._takes.set()
        self.parser = Parser()
        self.events: list[ReceivedEvent] = []
        self.head: dict[bytes, bytes] = {}
        self.status = 0
        self.body = b""
        self.over = False
        # Pieces that were written without a task's turn.
        self.written_now = 0
        given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http",
            "method": "GET",
            "raw_path": path.encode(),
            "path": path,
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1:8080"), *given],
            "extensions": {GONE_EXTENSION: self._left.is_set, WRITE_EXTENSION: self._write},
        }
        self.request = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self._takes.wait()
        if self._left.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.head = dict(message["headers"])
            return
        self._take(message["body"])
        self.over = not message.get("more_body")

    def _write(self, piece: bytes) -> bool:
        """Takes it, unless something waits."""
        if self._left.is_set() or not self._takes.is_set():
            return False
        self.written_now += 1
        self._take(piece)
        return True

    def _take(self, piece: bytes) -> None:
        self.body += piece
        if self.head.get(b"content-type") == b"text/event-stream":
            self.events += self.parser.feed(piece)

    def stall(self) -> None:
        """Take nothing more."""
        self._takes.clear()

    def release(self) -> None:
        """Take things again."""
        self._takes.set()

    def lose(self) -> None:
        """The connection breaks: what waits is dropped, as the server does."""
        self._left.set()
        self.release()

    async def leave(self) -> None:
        self._left.set()
        await self.request

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    @property
    def ids(self) -> list[str]:
        """Of the entries."""
        return [json.loads(event.data)["id"] for event in self.events if event.name == "entry"]

    def of(self, name: str) -> list[object]:
        """The data of the events of that name."""
        return [json.loads(event.data) for event in self.events if event.name == name]


class SseWorld:
    """A gateway under clocks that the test moves."""

    def __init__(self, app: App, engine: Engine, clock: HandClock, http: httpx.AsyncClient) -> None:
        self.app = app
        self.engine = engine
        self.clock = clock
        self.http = http
        self.readers: list[EventReader] = []

    def read(self, path: str = TAIL, query: str = "", **headers: str) -> EventReader:
        if "/consumers/" in path:
            headers.setdefault("accept", "text/event-stream")
        reader = EventReader(self.app, path, query, **headers)
        self.readers.append(reader)
        return reader

    async def run(self, *commands: Sequence[str]) -> None:
        for words in commands:
            answer = await self.http.post("/v1/commands", json=list(words))
            assert answer.status_code == 200, answer.text
        await settle()

    async def add(self, *ids: str, stream: str = "s") -> None:
        await self.run(*[("XADD", stream, entry_id, "n", entry_id) for entry_id in ids])

    async def pass_s(self, seconds: float) -> None:
        self.clock.pass_ms(int(seconds * 1000))
        await settle()


@pytest.fixture
async def world(settings: Settings) -> AsyncIterator[SseWorld]:
    clock = HandClock()
    clock.drive(asyncio.get_running_loop())
    engine = Engine.open(None, clock=clock)
    await engine.start()
    app = app_on(engine, settings, clock)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=PLACE) as http:
        world = SseWorld(app, engine, clock, http)
        yield world
    for reader in world.readers:
        if not reader.request.done():
            await reader.leave()
        assert reader.request.exception() is None
    await settle()
    engine.check()
    await engine.close()
    clock.let_be(asyncio.get_running_loop())


async def test_a_tail_tells_old_then_that_it_is_all_then_new(world: SseWorld) -> None:
    """Entries have their ID as `id`, and only they have one; the data is the entry as it is stored."""
    await world.add("1-0", "2-0")
    reader = world.read(query="after=1-0")
    await settle()
    await world.add("3-0")
    assert reader.events == [
        ReceivedEvent("entry", '{"id":"2-0","fields":{"n":"2-0"}}', "2-0"),
        ReceivedEvent("caught_up", '{"next":"2-0"}', "2-0"),
        ReceivedEvent("entry", '{"id":"3-0","fields":{"n":"3-0"}}', "3-0"),
    ]
    assert HEADERS.items() <= reader.head.items()


@pytest.mark.parametrize("accept", ["text/event-stream", "text/event-stream, application/json;q=0.5"])
async def test_the_entries_themselves_can_be_asked_for_events(world: SseWorld, accept: str) -> None:
    """By Accept, as EventSource sends it."""
    await world.add("1-0")
    reader = world.read("/v1/streams/s/entries", "after=0", accept=accept)
    await settle()
    assert reader.names == ["entry", "caught_up"]


async def test_the_first_line_is_the_cursor_that_was_resolved(world: SseWorld) -> None:
    """Else a client that lost its connection before the first entry would resolve `$` again, and miss what
    came between.
    """
    await world.add("1-0")
    reader = world.read()
    await settle()
    assert reader.body.startswith(b"id: 1-0\n\n")
    await reader.leave()
    await world.add("2-0")
    again = world.read(last_event_id=reader.parser.last_id)
    await settle()
    assert again.ids == ["2-0"]


async def test_where_a_client_comes_back_to_wins(world: SseWorld) -> None:
    """`Last-Event-ID` stands above `after` and `last`, which an EventSource repeats each time."""
    await world.add("1-0", "2-0", "3-0")
    for query in ("after=0", "last=3", ""):
        reader = world.read(query=query, last_event_id="2-0")
        await settle()
        assert reader.ids == ["3-0"]
        await reader.leave()


async def test_the_last_entries_come_first_where_that_is_asked_for(world: SseWorld) -> None:
    """`last` counts back from the end."""
    await world.add("1-0", "2-0", "3-0")
    reader = world.read(query="last=2")
    await settle()
    assert reader.body.startswith(b"id: 1-18446744073709551615\n\n")
    assert reader.ids == ["2-0", "3-0"]


async def test_only_the_fields_that_are_asked_for(world: SseWorld) -> None:
    """The same projection as pages have."""
    await world.run(("XADD", "s", "1-0", "a", "1", "b", "2"))
    reader = world.read(query="after=0&fields=b")
    await settle()
    assert reader.events[0].data == '{"id":"1-0","fields":{"b":"2"}}'


async def test_a_gap_is_told_without_an_id(world: SseWorld) -> None:
    """A client that comes back right behind it gets it again rather than not at all."""
    await world.add("1-0", "2-0", "3-0")
    await world.run(("XTRIM", "s", "MAXLEN", "1"))
    reader = world.read(query="after=1-0")
    await settle()
    assert reader.events[:2] == [
        ReceivedEvent("gap", '{"requested":"1-0","first_available":"3-0","lost":null}', "1-0"),
        ReceivedEvent("entry", '{"id":"3-0","fields":{"n":"3-0"}}', "3-0"),
    ]


async def test_a_gap_can_be_a_refusal(world: SseWorld) -> None:
    """410 at the beginning; later, for the head has gone, an `error` event with the same problem."""
    await world.add("1-0", "2-0", "3-0")
    await world.run(("XTRIM", "s", "MAXLEN", "1"))
    refused = world.read(query="after=1-0&on_gap=fail")
    await settle()
    assert (refused.status, json.loads(refused.body)["code"]) == (410, "gap")
    reader = world.read(query="after=3-0&on_gap=fail")
    await settle()
    await world.http.post(
        "/v1/commands/multi-exec",
        json=[["XADD", "s", "4-0", "a", "1"], ["XADD", "s", "5-0", "a", "1"], ["XTRIM", "s", "MAXLEN", "1"]],
    )
    await settle()
    assert reader.names == ["caught_up", "error"]
    assert json.loads(reader.events[1].data)["code"] == "gap"
    assert reader.over


async def test_silence_is_broken_every_fifteen_seconds(world: SseWorld) -> None:
    """By a comment, on the monotonic clock; what is sent meanwhile puts it off."""
    reader = world.read()
    await settle()
    for expected in (1, 2):
        await world.pass_s(14.9)
        assert reader.parser.comments == expected - 1
        await world.pass_s(0.2)
        assert reader.parser.comments == expected
    await world.pass_s(10)
    await world.add("1-0")
    await world.pass_s(10)
    assert reader.parser.comments == 2
    world.clock.pass_ms(3_600_000, 0)
    await settle()
    assert reader.parser.comments == 2


async def test_silence_is_broken_once_though_something_stirs(world: SseWorld) -> None:
    """A reader that is woken for nothing says no more than it would have."""
    reader = world.read()
    await settle()
    await world.pass_s(15.1)
    await world.pass_s(1)
    world.app.gateway.tenant("").feeds._feeds["s"]._changed()  # noqa: SLF001 - as when a gap is not its own
    await settle()
    assert reader.parser.comments == 1


async def test_a_shutdown_is_an_end_with_a_time_to_come_back(world: SseWorld) -> None:
    """What was there is sent first; clients come back at times of their own."""
    readers = [world.read(query="after=0") for _ in range(3)]
    await settle()
    await world.add("1-0")
    world.app.life.drain()
    await settle()
    for reader in readers:
        assert reader.names == ["caught_up", "entry", "end"]
        assert reader.of("end") == [{"reason": "draining"}]
        assert reader.over
        assert reader.parser.retry_ms is not None
        assert 1_000 <= reader.parser.retry_ms <= 5_000
    assert len({reader.parser.retry_ms for reader in readers}) > 1
    refused = world.read()
    await settle()
    assert refused.status == 503


@pytest.mark.parametrize(
    ("path", "query"),
    [
        (TAIL, ""),
        ("/v1/tail", "stream=s&stream=t"),
        ("/v1/streams/s/entries", "after=0"),
        ("/v1/streams/s/groups/g/consumers/c/stream", ""),
    ],
)
async def test_an_eventsource_is_never_answered_what_would_be_its_end(
    world: SseWorld, path: str, query: str
) -> None:
    """Over limits and while the gateway stops it is asked to come back, under 200 and without an ID: at any
    other status browsers give up for good. What it may not do, and what is not there, stays a refusal.
    """
    await world.run(("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM"))
    others = [world.read() for _ in range(3)]
    await settle()
    ends = [world.read(path, query, accept="text/event-stream")]
    await settle()
    wrong = world.read(path, "x=1", accept="text/event-stream")
    await settle()
    world.app.life.drain()
    ends.append(world.read(path, query, accept="text/event-stream, */*;q=0.1"))
    await settle()
    assert [end.status for end in ends] == [200, 200]
    assert [end.of("end") for end in ends] == [[{"reason": "too_many_waiters"}], [{"reason": "draining"}]]
    for end in ends:
        assert (end.names, end.over, end.parser.last_id) == (["end"], True, "")
        assert end.head.items() >= HEADERS.items()
        assert 1_000 <= (end.parser.retry_ms or 0) <= 5_000
        assert b"id:" not in end.body
    assert (wrong.status, json.loads(wrong.body)["code"]) == (400, "unknown_parameter")
    assert all(one.over for one in others)
    for accept in ("text/event-stream;q=0, */*", "*/*", "text/*"):
        other = world.read(path, query, accept=accept)
        await settle()
        assert other.status == 503


async def test_an_eventsource_comes_back_while_the_gateway_starts(closed_app: App) -> None:
    """The other way to have no engine: 503 for everybody else, what asks for JSON first among them."""
    path = "/v1/streams/s/entries"
    reader = EventReader(closed_app, TAIL, accept="text/event-stream")
    await reader.request
    assert (reader.status, reader.of("end")) == (200, [{"reason": "starting"}])
    for asked in (
        EventReader(closed_app, path, accept="application/json, text/event-stream"),
        EventReader(closed_app, TAIL),
    ):
        await asked.request
        assert (asked.status, json.loads(asked.body)["code"]) == (503, "starting")


@pytest.mark.parametrize("size", [FREE_BYTES, FREE_BYTES + 1])
async def test_a_piece_is_in_the_output_budget_from_its_writing_on(world: SseWorld, size: int) -> None:
    """Before anything of it is sent, if it is more than each connection may have."""
    gateway = world.app.gateway
    tail = await Tail.begin(gateway.tenant("").feeds, TailOptions(["s"], [Place(0)]), gateway, "anyone")
    tail.say(b"x" * size)
    assert gateway.limits.budgets.output.held_bytes == (size if size > FREE_BYTES else 0)
    tail.close()
    assert gateway.limits.budgets.output.held_bytes == 0


async def test_tails_are_counted_among_the_reads_that_wait(world: SseWorld) -> None:
    """429 beyond the limit, and there is room again when one leaves."""
    readers = [world.read() for _ in range(3)]
    await settle()
    refused = world.read()
    await settle()
    assert (refused.status, refused.head[b"retry-after"]) == (429, b"1")
    assert (await world.http.get("/v1/streams/s/entries?after=$&wait=10")).status_code == 429
    await readers[0].leave()
    accepted = world.read()
    await settle()
    assert accepted.status == 200


@pytest.mark.parametrize(
    ("path", "query", "last_id", "status", "code"),
    [
        (TAIL, "", "x", 400, "malformed_id"),
        (TAIL, "after=0&last=1", "", 422, "invalid"),
        ("/v1/tail", "", "", 422, "invalid"),
        ("/v1/tail", "stream=a&stream=a", "", 422, "invalid"),
        ("/v1/tail", "stream=a%2F%2Fb", "", 400, "invalid_name"),
        ("/v1/tail", "stream=a&stream=b&after=1.2~3", "", 400, "malformed_id"),
        ("/v1/tail", "stream=a&stream=b", "1-0", 400, "malformed_id"),
        ("/v1/tail", "&".join(f"stream={n}" for n in range(101)), "", 422, "invalid"),
    ],
)
async def test_what_cannot_be_followed_is_refused(
    world: SseWorld, path: str, query: str, last_id: str, status: int, code: str
) -> None:
    """As a problem, before there is a stream of events."""
    reader = world.read(path, query, last_event_id=last_id)
    await settle()
    assert (reader.status, json.loads(reader.body)["code"]) == (status, code)


async def test_head_is_the_head_alone(world: SseWorld) -> None:
    """HEAD ends."""
    answer = await world.http.head(TAIL)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "text/event-stream"


# ---- several streams


async def test_several_streams_have_one_cursor(world: SseWorld) -> None:
    """Each entry names its stream, and an ID from which all of them go on; it is only good for these."""
    await world.add("1-0", "5-0", stream="a")
    await world.add("3-0", stream="b")
    query = "stream=a&stream=b&after=0"
    reader = world.read("/v1/tail", query)
    await settle()
    assert reader.of("entry") == [
        {"stream": "a", "id": "1-0", "fields": {"n": "1-0"}},
        {"stream": "a", "id": "5-0", "fields": {"n": "5-0"}},
        {"stream": "b", "id": "3-0", "fields": {"n": "3-0"}},
    ]
    assert reader.of("caught_up") == [{"next": reader.parser.last_id}]
    await reader.leave()
    for event, expected in zip(reader.events, (["5-0", "3-0"], ["3-0"], []), strict=False):
        again = world.read("/v1/tail", query, last_event_id=event.last_id)
        await settle()
        assert again.ids == expected
        await again.leave()
        other = world.read("/v1/tail", "stream=b&stream=a", last_event_id=event.last_id)
        await settle()
        assert other.status == 400
    by_query = world.read("/v1/tail", f"stream=a&stream=b&after={reader.events[0].last_id}")
    await settle()
    assert by_query.ids == ["5-0", "3-0"]


async def test_where_one_stream_is_refused_none_is_followed() -> None:
    """The tails that were open by then are closed: of a log that failed, what was not written is not read."""
    storage = MemoryStorage()
    async with Engine.open(storage, clock=HandClock(), fsync="always") as engine:
        storage.fail("sync", errno.EIO)
        added = XAdd(stream="b", bodies=[entries.body([("n", "1")])])
        with pytest.raises(EngineError):
            await reply_to(engine, added)
        feeds, gateway = Feeds(engine), Gateway(Settings(), HandClock())
        (await Tail.begin(feeds, TailOptions(["a"], [Place(0)]), gateway, "anyone")).close()
        with pytest.raises(EngineError, match="storage_failed"):
            await Tail.begin(feeds, TailOptions(["a", "b"], [Place(0)] * 2, mark="m"), gateway, "anyone")
        assert len(feeds) == 0
