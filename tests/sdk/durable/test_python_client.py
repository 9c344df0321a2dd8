"""The protocol's own client for Python writes and reads through a gateway that is killed."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest
from durable_streams import (
    DurableStream,
    DurableStreamError,
    LiveMode,
    RetentionGoneError,
    SeqConflictError,
    astream,
    stream,
)

from tests.sdk.durable.test_client import COUNT
from tests.server import Server
from tests.waiting import until

# What it raises of a gateway that is away, or starts.
AWAY: Final = (httpx.TransportError, DurableStreamError)
CLIENT_S_MAX: Final = 60.0


def insist(act: Callable[[], object]) -> None:
    """Ask until there is an answer."""
    while True:
        try:
            act()
        except SeqConflictError:
            # It was stored, and its answer was lost.
            return
        except AWAY:
            time.sleep(0.05)
        else:
            return


def write_tokens(url: str) -> None:
    """One after the other, each with its place in the sequence."""
    with DurableStream(url, content_type="application/json") as handle:
        for number in range(COUNT):
            insist(partial(handle.append, {"token": number}, seq=f"{number:06}"))
            time.sleep(0.005)


def read_tokens(url: str, live: LiveMode, read: list[int]) -> None:
    """Until the last one has come; a connection that breaks is taken up where its last batch has left off."""
    offset = "-1"
    while len(read) < COUNT:
        try:
            with stream(url, offset=offset, live=live) as reading:
                for event in reading.iter_events(mode="json"):
                    read.extend(item["token"] for item in event.data)
                    offset = event.next_offset
                    if len(read) >= COUNT:
                        break
        except AWAY:
            time.sleep(0.05)


async def follow_tokens(url: str, live: LiveMode, read: list[int]) -> None:
    """The same in a loop."""
    offset = "-1"
    while len(read) < COUNT:
        try:
            async with astream(url, offset=offset, live=live) as reading:
                async for event in reading.iter_events(mode="json"):
                    read.extend(item["token"] for item in event.data)
                    offset = event.next_offset
                    if len(read) >= COUNT:
                        break
        except AWAY:
            await asyncio.sleep(0.05)


def read_in_loop(url: str, live: LiveMode, read: list[int]) -> None:
    asyncio.run(follow_tokens(url, live, read))


@pytest.mark.parametrize("reader", [read_tokens, read_in_loop])
@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_tokens_arrive_once_and_in_order_over_kills(
    live: LiveMode, reader: Callable[..., None], tmp_path: Path
) -> None:
    """It has no producers: a sequence tells it which appends were stored before a kill."""
    read: list[int] = []
    with Server(tmp_path / "data") as server:
        url = f"{server.url}/v1/stream/tokens"
        DurableStream.create(url, content_type="application/json").close()
        threads = [
            threading.Thread(target=write_tokens, args=[url], daemon=True),
            threading.Thread(target=reader, args=[url, live, read], daemon=True),
        ]
        for thread in threads:
            thread.start()
        for count in (COUNT // 3, 2 * COUNT // 3):
            until(lambda count=count: len(read) > count, "tokens are read")
            server.restart()
        for thread in threads:
            thread.join(CLIENT_S_MAX)
    assert read == list(range(COUNT))


def test_it_says_what_was_removed(tmp_path: Path) -> None:
    """A reader whose place was trimmed away gets no entries that look like the next ones."""
    with Server(tmp_path / "data") as server:
        url = f"{server.url}/v1/stream/tokens"
        with DurableStream.create(url, content_type="application/json") as handle:
            first = handle.append(0).next_offset
            time.sleep(0.002)
            handle.append(1)
            handle.append(2)
            httpx.post(f"{server.url}/v1/streams/tokens/trim", json={"maxlen": 1}).raise_for_status()
            with pytest.raises(RetentionGoneError):
                handle.stream(offset=first, live=False)
            with handle.stream(live=False) as reading:
                assert reading.read_json() == [2]
