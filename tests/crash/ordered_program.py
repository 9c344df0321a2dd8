"""A worker of `test_ordering.py`, which notes what it does in a journal that outlives it.

Knows: entries with a key, delays of its own. Must never know: what others do, when it is killed.
"""

import asyncio
import os
import random
import sys
from typing import Any

from weir import Delivery, Worker


async def _work(url: str, journal: str, at_once: str, consumer: str, via: Any) -> None:
    file = os.open(journal, os.O_WRONLY | os.O_APPEND)

    def note(word: str, delivery: Delivery) -> None:
        # One write a line: the lines of all workers stand in the order in which they were noted.
        entry = delivery.entry
        os.write(file, f"{word} {entry.id} {entry.fields['key']} {consumer}\n".encode())

    async def handle(delivery: Delivery) -> None:
        note("begun", delivery)
        # Some take longer than the gateway is away: what it forgets of them is given while they go on.
        await asyncio.sleep(random.choices((0.005, 1), (19, 1))[0])
        if random.random() < 0.1:
            note("back", delivery)
            delivery.retry_in(random.choice((0, 0.05)))
        else:
            note("done", delivery)

    worker = Worker(url, "s", group="g", consumer=consumer, via=via, ordered_by="key", credit=int(at_once))
    await worker.run(handle, concurrency=int(at_once))


asyncio.run(_work(*sys.argv[1:]))
