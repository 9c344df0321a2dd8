"""Pushers and the gateway are killed, over and over, while an endpoint fails one time in five.

Knows: how many entries, kills and repeats there may be. Must never know: how a push works.

`python -m tests.push.crashes 100000 50` is the long one, `… 100000 50 strict` the one in order.
"""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import standardwebhooks

from tests.app.senders import WHSEC
from tests.crash.harness import Crew
from tests.push.receiver import Delivered, Receiver, status
from tests.server import Server
from tests.waiting import until_async
from weir import AsyncClient

IN_FLIGHT: Final = 8
PUSHERS: Final = 2
_BATCH: Final = 500
# For what does not come.
_PATIENCE_S: Final = 120.0


class Found(NamedTuple):
    """What has arrived: how many entries, of how many; how often again, and how often that may be; how many
    behind a later one, where they have an order.
    """

    entries: int
    published: int
    repeats: int
    repeats_max: int
    wrong_signatures: int
    out_of_order: int

    @property
    def is_right(self) -> bool:
        """Each at least once, not too often, signed, and in order."""
        enough = self.entries == self.published and self.repeats <= self.repeats_max
        return enough and not self.wrong_signatures and not self.out_of_order


async def run(place: Path, entries: int, kills: int, order: str = "none") -> Found:
    """Push this number of entries through this number of kills, of a pusher or of the gateway."""
    dice = random.Random(1)
    arrived: Counter[str] = Counter()
    wrong, late, last = 0, 0, 0
    secret = place / "secret"
    secret.write_text(WHSEC)
    webhook = standardwebhooks.Webhook(WHSEC)

    async def answer(one: Delivered, writer: asyncio.StreamWriter) -> None:
        nonlocal wrong, late, last
        try:
            webhook.verify(one.body, one.headers)
        except standardwebhooks.WebhookVerificationError:
            wrong += 1
        is_taken = dice.random() >= 0.2
        if is_taken:
            arrived[one.headers["webhook-id"]] += 1
        number = int(json.loads(one.body)["n"])
        late, last = late + (order == "strict" and number < last), max(last, number)
        # Counted by IDs alone: all the bodies would be a gigabyte.
        listening.delivered.clear()
        await status(200 if is_taken else 500)(one, writer)

    listening = Receiver(answer)
    with Server(place / "data", "--fsync", "always") as server:
        async with listening:
            file = place / "push.toml"
            file.write_text(
                f'gateway = "{server.url}"\n[[push]]\nstream = "s"\ngroup = "g"\nurl = "{listening.url}"\n'
                f'secrets = ["file:secret"]\nin_flight = {IN_FLIGHT}\norder = "{order}"\n'
                'backoff = {first = "20ms", max = "1s"}\n'
                'allow_http = ["127.0.0.1"]\nallowed_networks = ["127.0.0.0/8"]\n'
            )
            pushers = Crew(partial(_start, file))
            with pushers.running((f"p{number}",) for number in range(PUSHERS)):
                async with AsyncClient(server.url, retry_s=None) as client:
                    publishing = asyncio.create_task(_publish(client, entries))
                    for kill in range(1, kills + 1):
                        await until_async(
                            lambda kill=kill: len(arrived) >= entries * kill // (kills + 1), _PATIENCE_S
                        )
                        victim = dice.randrange(PUSHERS + 1)
                        if victim == PUSHERS:
                            await asyncio.to_thread(server.restart)
                        else:
                            pushers.start(*pushers.kill(victim))
                    await publishing
                    await until_async(lambda: len(arrived) == entries, _PATIENCE_S)
                    group = client.group("s", "g")
                    while (await group.info())["pending"]:  # noqa: ASYNC110 - another process
                        await asyncio.sleep(0.1)
    repeats = sum(arrived.values()) - len(arrived)
    # A kill of the gateway may repeat what all pushers have in flight.
    return Found(len(arrived), entries, repeats, IN_FLIGHT * PUSHERS * kills, wrong, late)


def _start(file: Path, name: str) -> subprocess.Popen[bytes]:
    words = ["push", "--config", str(file), "--consumer", name]
    with file.with_name(f"{name}.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "weir", *words], stderr=log)


async def _publish(client: AsyncClient, entries: int) -> None:
    for start in range(0, entries, _BATCH):
        rows = [{"n": str(n)} for n in range(start, min(entries, start + _BATCH))]
        await client.publish_batch("s", rows, key=str(start))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        begun_s = time.monotonic()
        found = asyncio.run(run(Path(folder), int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
        sys.stdout.write(f"{found}, {time.monotonic() - begun_s:.0f} s\n")
        sys.exit(0 if found.is_right else 1)
