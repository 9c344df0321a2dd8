"""What a subscriber of a feed takes, for coroutines. Must never know: what is tested."""

import asyncio

from app.live.feeds import FeedItem, Subscriber
from engine import EngineError


async def look(tail: Subscriber, count_max: int, bytes_max: int) -> FeedItem | None:
    """What comes next, without waiting for anything new. Raises EngineError."""
    item = tail.take(count_max, bytes_max)
    if item is not None or tail.caught_up:
        return item
    found: asyncio.Future[FeedItem | EngineError | None] = asyncio.get_running_loop().create_future()
    tail.look_behind(count_max, bytes_max, found.set_result)
    item_or_error = await asyncio.shield(found)
    if isinstance(item_or_error, EngineError):
        raise item_or_error
    return item_or_error


async def wait_for(tail: Subscriber, count_max: int, bytes_max: int) -> FeedItem:
    """What comes next. Raises EngineError."""
    while (item := await look(tail, count_max, bytes_max)) is None:
        ready = asyncio.Event()
        tail.call_when_ready(ready.set)
        await ready.wait()
    return item
