"""What many readers of one stream get is encoded once, however they read: counted, not timed.

Knows: what makes the form of one entry. Must never know: what it looks like.
"""

import asyncio
from typing import Any, Final

import pytest

from app.doors.durable import bodies
from app.doors.sse import events
from app.main import App, create_app
from app.settings import Settings
from engine import Engine, SystemClock, entries
from engine.commands.durable_commands import AppendDurable, CreateDurable
from engine.commands.types import XAdd
from tests.app.test_waits import Message
from tests.engine.asking import reply_to
from tests.waiting import until_async

READERS: Final = 10_000
PATIENCE_S: Final = 60.0
KINDS: Final = {"json": bodies.JSON, "bytes": "application/octet-stream"}
# Who makes the form of one entry, by what a reader asks for.
WAYS: Final[dict[str, tuple[str, str, Any, str]]] = {
    "SSE": ("/v1/streams/s/tail", "", events, "event"),
    "Durable Streams by SSE": ("/v1/stream/json", "offset=now&live=sse", bodies, "_value"),
    "Durable Streams by long-polls": ("/v1/stream/json", "offset=now&live=long-poll", bodies, "_value"),
}


class Reader:
    """One request, whose answer is taken whole."""

    def __init__(self, app: App, path: str, query: str) -> None:
        self.status = 0
        self.text = b""
        self._left = asyncio.Event()
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1:8080")],
        }
        self.request = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        self.text += message.get("body", b"")

    def leave(self) -> None:
        self._left.set()


@pytest.mark.parametrize("way", WAYS)
async def test_ten_thousand_readers_cost_one_encoding(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each entry that comes while they stay; those of long-polls go with it, and the others stay."""
    path, query, module, name = WAYS[way]
    app = create_app(Settings(log_requests="none", durable_long_poll_s=55), SystemClock())
    async with Engine.open(None, clock=SystemClock()) as engine:
        app.life.open(engine)
        for stream, kind in KINDS.items():
            await reply_to(engine, CreateDurable(stream=stream, media=kind))
        readers = [Reader(app, path, query) for _ in range(READERS)]
        await until_async(lambda: engine.figures().waiting == READERS or all(one.text for one in readers))
        before = [len(one.text) for one in readers]
        made: list[object] = []
        make = getattr(module, name)

        def count(*given: object) -> object:
            made.append(given)
            return make(*given)

        monkeypatch.setattr(module, name, count)
        stored = [entries.data_body(b'{"n":%d}' % number) for number in range(3)]
        for stream, kind in KINDS.items():
            await reply_to(engine, AppendDurable(stream=stream, bodies=stored, kind=kind))
        await reply_to(engine, XAdd(stream="s", bodies=stored))
        await until_async(lambda: all(len(one.text) > had for one, had in zip(readers, before, strict=True)))
        assert {one.status for one in readers} == {200}
        assert len(made) == len(stored)
        for one in readers:
            one.leave()
        await asyncio.gather(*[one.request for one in readers])
