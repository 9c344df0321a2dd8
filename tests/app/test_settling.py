"""A consumer that waits for room goes on at once, by whichever way in its entry is settled."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.live import readers
from engine import entries
from engine.commands.types import XAdd
from engine.commands.weir_commands import EnsureGroup
from tests.app.ten_doors import DOORS, LATE_S, Bench, Commands, Http, Redis, WebSocket, opened
from tests.engine.asking import reply_to

GROUP: Final = "/v1/streams/orders/groups/g"
# A consumer that nothing wakes looks by itself after that time.
NEVER_S: Final = 3_600.0
Settle = Callable[[Bench, str], Awaitable[str]]


def _in_words(door: Commands | Redis, *words: str) -> Settle:
    return lambda bench, entry_id: door.send(bench, (*words, entry_id))


def _by_post(door: Http, path: str, **more: Any) -> Settle:
    return lambda bench, entry_id: door.ask(bench, "POST", GROUP + path, {"ids": [entry_id], **more})


def _by_command(door: WebSocket, *words: str) -> Settle:
    return lambda bench, entry_id: door.ask(bench, {"op": "command", "command": [*words, entry_id]})


def ways() -> Sequence[tuple[str, Settle]]:
    """Each way in, with each way to settle there."""
    acknowledged, deleted = ("XACK", "orders", "g"), ("XACKDEL", "orders", "g", "KEEPREF", "IDS", "1")
    taken = ("XCLAIM", "orders", "g", "other", "0")
    found: list[tuple[str, Settle]] = []
    for door in DOORS:
        name, words = door.name, (acknowledged, deleted, taken)
        if isinstance(door, Commands | Redis):
            found += [(f"{name} {one[0]}", _in_words(door, *one)) for one in words]
        elif isinstance(door, WebSocket):
            found += [(f"{name} {one[0]}", _by_command(door, *one)) for one in words]
        elif type(door) is Http:
            found.append((f"{name} ack", _by_post(door, "/ack")))
            found.append((f"{name} nack", _by_post(door, "/nack", mode="fail")))
    return found


@pytest.mark.parametrize("settle", [pytest.param(settle, id=name) for name, settle in ways()])
async def test_what_is_settled_makes_room_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settle: Settle
) -> None:
    monkeypatch.setattr(readers, "CHECK_S", NEVER_S)
    async with opened(tmp_path) as bench:
        body = entries.body([("n", "1")])
        await reply_to(bench.engine, XAdd(stream="orders", bodies=[body] * 2))
        await reply_to(bench.engine, EnsureGroup(stream="orders", group="g", start=0))
        path = f"{GROUP}/consumers/c/stream?max_in_flight=1"
        async with (
            asyncio.timeout(LATE_S),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{await bench.port()}") as http,
            http.stream("GET", path, headers={"accept": "text/event-stream"}) as answer,
        ):
            seen = []
            async for line in answer.aiter_lines():
                if line.startswith("data:") and "id" in (found := json.loads(line[5:])):
                    seen.append(found["id"])
                    if len(seen) == 2:
                        break
                    await asyncio.sleep(0.05)
                    await settle(bench, found["id"])
