"""No turn of the loop is longer than 20 ms, whatever a request asks within the limits.

Knows: requests at their maxima, on an engine whose log is on a disk.
Must never know: how the gateway cuts its work.

The time of a turn includes what the client of the test does in it, which is little.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
import pytest

from app.main import create_app
from app.settings import Settings
from engine import Engine, SystemClock, entries, ids
from engine.commands import Cursor, FlushAll, XAdd, XGroupCreate, XReadGroup
from tests.app.conftest import BASE
from tests.turns import longest_turn_s, turn_s_max_here

pytestmark = pytest.mark.alone

SETTINGS: Final = Settings(log_requests="none")
PENDING: Final = 2 * SETTINGS.ids_max
GROUP: Final = "/v1/streams/s/groups/g"
ROUNDS: Final = 3


@pytest.fixture(scope="module")
def turn_s_max() -> float:
    """The limit on this machine, never below the one that is promised."""
    return turn_s_max_here()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    opening = partial(Engine.open, tmp_path / "data", clock=SystemClock())
    async with await asyncio.to_thread(opening) as engine:
        yield engine


async def pending_ids(engine: Engine) -> list[str]:
    """All IDs of a stream whose entries are pending with `c` in `g`, made anew."""
    await engine.execute(FlushAll())
    body = entries.body([("sensor", "1234"), ("temperature", "19.8")])
    for _ in range(0, PENDING, SETTINGS.ids_max):
        await engine.execute(XAdd(stream="s", bodies=[body] * SETTINGS.ids_max))
    await engine.execute(XGroupCreate(stream="s", group="g", start=0))
    found: list[int] = []
    while len(found) < PENDING:
        read = XReadGroup(group="g", consumer="c", count=PENDING, streams=[("s", Cursor.NEW)])
        reply: Any = await engine.execute(read)
        found += [one.id for one in reply.streams[0].entries]
    return list(map(ids.format, found))


def _every(found: list[str]) -> list[str]:
    """As many as a request may look up, spread over the stream."""
    return found[:: len(found) // SETTINGS.lookups_max][: SETTINGS.lookups_max]


MOST: Final[dict[str, tuple[str, Callable[[list[str]], object]]]] = {
    "ack": (f"{GROUP}/ack", lambda found: {"ids": found[: SETTINGS.ids_max]}),
    "ack backwards": (f"{GROUP}/ack", lambda found: {"ids": found[: SETTINGS.ids_max][::-1]}),
    "ack of nothing": (
        f"{GROUP}/ack",
        lambda _: {"ids": [f"{ms}-1" for ms in range(1, SETTINGS.ids_max + 1)]},
    ),
    "ack and delete": (f"{GROUP}/ack", lambda found: {"ids": _every(found), "delete": "delete"}),
    "nack": (f"{GROUP}/nack", lambda found: {"ids": _every(found), "mode": "fail"}),
    "claim": (f"{GROUP}/claim", lambda found: {"ids": _every(found), "consumer": "d", "min_idle_ms": 0}),
    "autoclaim": (f"{GROUP}/autoclaim", lambda _: {"consumer": "d", "min_idle_ms": 0, "count": 10_000}),
    "delete": ("/v1/streams/s/entries/delete", lambda found: {"ids": _every(found)}),
    "XACK": ("/v1/commands", lambda found: ["XACK", "s", "g", *found[: SETTINGS.ids_max]]),
}


@pytest.mark.parametrize("name", MOST)
async def test_a_request_with_as_many_ids_as_it_may_name(
    name: str, engine: Engine, turn_s_max: float
) -> None:
    """The best of three: one may have met another process at work."""
    path, body = MOST[name]
    app = create_app(SETTINGS, SystemClock())
    app.gateway.open(engine)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as http:

        async def ask(content: bytes) -> None:
            headers = {"content-type": "application/json"}
            answer = await http.post(path, content=content, headers=headers)
            assert answer.status_code == 200, answer.text

        longest = []
        for _ in range(ROUNDS):
            content = orjson.dumps(body(await pending_ids(engine)))
            longest.append(await longest_turn_s(ask(content)))
        assert min(longest) <= turn_s_max, longest
