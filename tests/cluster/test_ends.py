"""A stream over a backend that ends under its readers: each way to end it, for each kind of reader.

As `tests.app.test_ends` has it for an engine of the gateway's own, but for the causes: a server tells none.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx
import pytest

from app.main import App
from app.settings import Settings
from tests.app.conftest import app_on, calling
from tests.app.test_sse import EventReader
from tests.cluster.engines import opened
from tests.cluster.servers import Backend
from tests.waiting import until_async

SETTINGS: Final = Settings(log_requests="none", waiters_max=10, wait_ms_max=60_000)
# One slot of a cluster.
S, OTHER, AWAY = "{t}s", "{t}other", "{t}away"
# What ends the stream, by another program with a `!`; what followers get meanwhile; what comes then, and
# what is shown of it.
WAYS: Final[dict[str, tuple[str, str, str, list[str]]]] = {
    "DEL": (f"DEL {S}", "deleted", f"XADD {S} 20-0 n 1", ["20-0"]),
    "made again below": (f"DEL {S}", "deleted", f"XADD {S} 0-1 n 1", ["0-1"]),
    "another program": (f"!DEL {S}", "deleted", f"XADD {S} 3-0 n 1", ["3-0"]),
    "RENAME over": (f"RENAME {OTHER} {S}", "recreated", f"XADD {S} 3-0 n 1", ["0-7", "3-0"]),
    "COPY over": (f"COPY {OTHER} {S} REPLACE", "recreated", f"XADD {S} 3-0 n 1", ["0-7", "3-0"]),
    "RENAME away": (f"RENAME {S} {AWAY}", "deleted", f"XADD {S} 3-0 n 1", ["3-0"]),
    "EXPIRE": (f"PEXPIRE {S} 10", "deleted", f"XADD {S} 3-0 n 1", ["3-0"]),
}


def _gap(gap: Any) -> str:
    return f"{gap.get('reason')}: {gap['requested']} to {gap.get('next')}"


class LongPoll:
    """Reads behind the last answer's `next`, again and again."""

    def __init__(self, app: App, after: str) -> None:
        self._app, self._after = app, after
        self._seen: list[str] = []
        self._asking = asyncio.ensure_future(self._ask())

    async def _ask(self) -> None:
        async with calling(self._app) as http:
            while True:
                query = f"after={self._after}&wait=60000"
                answer = await http.get(f"/v1/streams/{S}/entries?{query}", timeout=None)
                page = answer.json()
                self._seen += [_gap(page["gap"])] if "gap" in page else []
                self._seen += [one["id"] for one in page["entries"]]
                self._after = page["next"]

    def news(self) -> list[str]:
        """What has come: IDs of entries, and gaps as `reason: requested to next`."""
        return list(self._seen)

    async def leave(self) -> None:
        """Ask for nothing more."""
        self._asking.cancel()
        await asyncio.wait([self._asking])


class Events:
    """Server-sent events, of one stream or of several."""

    def __init__(self, app: App, after: str, path: str = f"/v1/streams/{S}/tail", more: str = "") -> None:
        self._reader = EventReader(app, path, f"after={after}{more}")

    def news(self) -> list[str]:
        rows = [(one.name, json.loads(one.data)) for one in self._reader.events]
        return [row["id"] if name == "entry" else _gap(row) for name, row in rows if name in ("entry", "gap")]

    async def leave(self) -> None:
        await self._reader.leave()


# A client at one of the doors.
Follower = LongPoll | Events


def followers(app: App, after: str) -> list[Follower]:
    several = Events(app, after, "/v1/tail", f"&stream={S}&stream={{t}}none")
    return [LongPoll(app, after), Events(app, after), several]


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[App]:
    """A gateway with a stream of 1-0 and 2-0, and another one."""
    async with opened(backend) as engine:
        app = app_on(engine, SETTINGS)
        await tell(app, f"XADD {S} 1-0 n 1", f"XADD {S} 2-0 n 2", f"XADD {OTHER} 0-7 n 7")
        yield app
        app.gateway.tenant("").feeds.close()


async def tell(app: App, *commands: str) -> None:
    async with calling(app) as http:
        for command in commands:
            answer: httpx.Response = await http.post("/v1/commands", json=command.split())
            assert answer.status_code == 200, answer.text


async def until_all_have(clients: list[Follower], expected: list[str]) -> None:
    try:
        await until_async(lambda: all(one.news() == expected for one in clients))
    except TimeoutError:
        assert [one.news() for one in clients] == [expected] * len(clients)


@pytest.mark.parametrize("way", WAYS)
async def test_the_end_of_a_stream_is_told_to_who_follows_it(backend: Backend, app: App, way: str) -> None:
    """Before anything of the stream that has its name then, of which nothing is left out."""
    end, reason, next_entry, shown = WAYS[way]
    clients = followers(app, "0")
    await until_all_have(clients, ["1-0", "2-0"])
    seen = ["1-0", "2-0", f"{reason}: 2-0 to 0-0"]
    if end.startswith("!"):
        await asyncio.to_thread(backend.call, *end[1:].split())
    else:
        await tell(app, end)
    await until_all_have(clients, [*seen, *shown[:-1]])
    await tell(app, next_entry)
    await until_all_have(clients, [*seen, *shown])
    for one in clients:
        await one.leave()


async def test_a_cursor_beyond_the_end_is_told_so_and_nothing_is_shown_again(app: App) -> None:
    """A stream that was made again with smaller IDs would else be silent for ever."""
    clients = followers(app, "9-0")
    await until_all_have(clients, ["ahead: 9-0 to 2-0"])
    await tell(app, f"XADD {S} 2-1 n 1")
    await until_all_have(clients, ["ahead: 9-0 to 2-0", "2-1"])
    for one in clients:
        await one.leave()


async def test_what_was_trimmed_is_told_with_the_next_entry(app: App) -> None:
    """To who comes back behind it."""
    await tell(app, f"XADD {S} 3-0 n 1", f"XTRIM {S} MAXLEN 0", f"XADD {S} 4-0 n 1")
    clients = followers(app, "1-0")
    async with calling(app) as http:
        page = (await http.get(f"/v1/streams/{S}/entries?after=1-0")).json()
    assert page["gap"] == {"requested": "1-0", "first_available": "4-0", "lost": None}
    await until_all_have(clients, ["None: 1-0 to None", "4-0"])
    for one in clients:
        await one.leave()
