"""How a worker ends when its stream, its group or its permission is gone, and how it goes on where it may.

Knows: both ways to a gateway. Must never know: frames, links.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

import weir
from app.auth import Grant, token_file, tokens
from tests.server import Server
from weir import AsyncClient, Delivery, Gap, Worker

Via = Literal["websocket", "long-poll"]
vias = pytest.mark.parametrize("via", ["websocket", "long-poll"])
ENDS_S_MAX = 20.0


class Work:
    """What a worker has handled, and on which gaps it was called."""

    def __init__(self, **options: Any) -> None:
        self.done: list[str] = []
        self.gaps: list[Gap] = []
        self.worker = Worker(
            group="g", consumer="c", on_gap=self._on_gap, start=options.pop("start", "0"), **options
        )
        self._changed = asyncio.Event()
        # Entries whose handler waits until the test lets it go on.
        self.held: dict[str, asyncio.Event] = {}

    async def handle(self, delivery: Delivery) -> None:
        number = delivery.entry.fields["n"]
        self.done.append(number)
        self._changed.set()
        if number in self.held:
            await self.held[number].wait()

    def _on_gap(self, gap: Gap) -> None:
        self.gaps.append(gap)
        self._changed.set()

    async def until_gap(self) -> None:
        async with asyncio.timeout(ENDS_S_MAX):
            while not self.gaps:
                self._changed.clear()
                await self._changed.wait()

    async def until(self, *done: str) -> None:
        async with asyncio.timeout(ENDS_S_MAX):
            while self.done != list(done):
                self._changed.clear()
                await self._changed.wait()

    @contextlib.asynccontextmanager
    async def running(self, concurrency: int = 1) -> AsyncIterator["asyncio.Task[None]"]:
        """Beside the block; what ends it earlier is for the block to see."""
        running = asyncio.create_task(self.worker.run(self.handle, concurrency=concurrency, stop_on=()))
        try:
            yield running
        finally:
            self.worker.stop()
            await asyncio.wait([running], timeout=40)


async def end_of(running: "asyncio.Task[None]") -> BaseException | None:
    async with asyncio.timeout(ENDS_S_MAX):
        await asyncio.wait([running])
    return running.exception()


@vias
async def test_a_stream_that_is_deleted_ends_the_worker(url: str, stream: str, via: Via) -> None:
    async with AsyncClient(url) as client:
        await client.publish(stream, {"n": 0})
        work = Work(url=url, stream=stream, via=via)
        async with work.running() as running:
            await work.until("0")
            await client.delete_stream(stream)
            ended = await end_of(running)
    assert type(ended) is weir.StreamDeletedError
    assert (ended.code, str(ended)) == ("no_stream", f"the stream {stream!r} was deleted (no_stream)")


@vias
async def test_a_group_that_is_deleted_ends_the_worker(url: str, stream: str, via: Via) -> None:
    async with AsyncClient(url) as client:
        await client.publish(stream, {"n": 0})
        work = Work(url=url, stream=stream, via=via)
        async with work.running() as running:
            await work.until("0")
            await client.group(stream, "g").delete(drop_pending=True)
            ended = await end_of(running)
    assert type(ended) is weir.GroupDeletedError
    assert (ended.code, str(ended).startswith("the group 'g' of the stream")) == ("no_group", True)


@vias
async def test_what_is_settled_after_the_end_of_its_stream_ends_the_worker(
    url: str, stream: str, via: Via
) -> None:
    """Also where it reads nothing, for it has no room left."""
    async with AsyncClient(url) as client:
        await client.publish(stream, {"n": 0})
        work = Work(url=url, stream=stream, via=via, credit=1)
        work.held["0"] = asyncio.Event()
        async with work.running() as running:
            await work.until("0")
            await client.delete_stream(stream)
            work.held["0"].set()
            assert type(await end_of(running)) is weir.StreamDeletedError


@vias
async def test_a_token_that_is_revoked_or_allows_less_ends_the_worker(tmp_path: Path, via: Via) -> None:
    """A token is revoked where the file of tokens, which SIGHUP reads again, has it no more."""
    path = tmp_path / "tokens.toml"
    made = tokens.create((Grant.parse("consume,manage,write:s"),))
    less = tokens.create((Grant.parse("manage,write:s"),))
    path.write_text(token_file.write(made.token) + token_file.write(less.token))
    with Server(tmp_path / "data", "--set", f"tokens_file={path}") as server:
        async with AsyncClient(server.url, token=made.text) as client:
            await client.publish("s", {"n": 0})
        work = Work(url=server.url, stream="s", via=via, token=less.text)
        async with work.running() as running:
            assert type(await end_of(running)) is weir.ForbiddenError
        work = Work(url=server.url, stream="s", via=via, token=made.text)
        async with work.running() as running:
            await work.until("0")
            path.write_text(token_file.write(less.token))
            server.signal(signal.SIGHUP)
            assert type(await end_of(running)) is weir.AuthenticationError


@vias
@pytest.mark.parametrize("start", ["0", "$"])
async def test_a_worker_goes_on_with_the_stream_that_is_made_again(
    url: str, stream: str, via: Via, start: str
) -> None:
    """From its oldest entry on, wherever the first group began, and it is called on the gap."""
    async with AsyncClient(url) as client:
        await client.ensure_stream(stream)
        work = Work(url=url, stream=stream, via=via, on_gone="recreate", start=start)
        async with work.running():
            async with asyncio.timeout(ENDS_S_MAX):
                while not [one async for one in client.list_groups(stream)]:  # noqa: ASYNC110 - a gateway's
                    await asyncio.sleep(0.02)
            await client.publish(stream, {"n": 0}, id="7-0")
            await work.until("0")
            await client.delete_stream(stream)
            # With smaller IDs, as an import has them.
            await client.publish(stream, {"n": 1}, id="3-0")
            await work.until("0", "1")
            await client.publish(stream, {"n": 2}, id="4-0")
            await work.until("0", "1", "2")
        assert (await client.group(stream, "g").info())["pending"] == 0
    assert [(one.requested, one.reason) for one in work.gaps] == [("7-0", "recreated")]


@vias
async def test_a_worker_makes_its_group_again(url: str, stream: str, via: Via) -> None:
    """Entries that the old group has had come again: the new one has not."""
    async with AsyncClient(url) as client:
        await client.publish(stream, {"n": 0})
        work = Work(url=url, stream=stream, via=via, on_gone="recreate")
        async with work.running():
            await work.until("0")
            await client.group(stream, "g").delete(drop_pending=True)
            await work.until("0", "0")
    assert [one.reason for one in work.gaps] == ["recreated"]


@vias
async def test_what_is_held_of_an_old_stream_settles_nothing_of_the_new_one(
    url: str, stream: str, via: Via
) -> None:
    """Though an entry of the new one has its ID; and what was not begun is not begun any more."""
    async with AsyncClient(url) as client:
        await client.publish(stream, {"n": "old"}, id="5-0")
        await client.publish(stream, {"n": "not begun"}, id="5-1")
        work = Work(url=url, stream=stream, via=via, on_gone="recreate")
        work.held |= {"old": asyncio.Event(), "new": asyncio.Event()}
        async with work.running() as running:
            await work.until("old")
            await client.delete_stream(stream)
            await client.publish(stream, {"n": "new"}, id="5-0")
            await work.until_gap()
            work.held["old"].set()
            await work.until("old", "new")
            assert [one["id"] async for one in client.group(stream, "g").pending()] == ["5-0"]
            work.held["new"].set()
            assert not running.done()
        assert (await client.group(stream, "g").info())["pending"] == 0


@vias
async def test_a_worker_that_stops_makes_nothing_again(url: str, stream: str, via: Via) -> None:
    async with AsyncClient(url) as client:
        await client.publish(stream, {"n": 0})
        work = Work(url=url, stream=stream, via=via, on_gone="recreate")
        work.held["0"] = asyncio.Event()
        async with work.running() as running:
            await work.until("0")
            work.worker.stop()
            await client.delete_stream(stream)
            work.held["0"].set()
            assert await end_of(running) is None
        assert await client.get_stream(stream) is None
    assert work.gaps == []
