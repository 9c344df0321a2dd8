"""kill -9 of workers and of the gateway: one entry of a key at a time, in order, and each is done.

Knows: what the workers have noted. Must never know: how the engine finds what is free.

By hand, and nightly by `make soak`, 40 kills beside 50 workers and 1,000 keys:

    WEIR_KILLS=40 WEIR_TASKS=20000 .venv/bin/pytest tests/crash/test_ordering.py
"""

import os
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final, TextIO

from tests.crash.harness import MODES, Crew
from tests.preloaded import Preloaded
from tests.server import Server
from tests.waiting import until
from weir import Client

KILLS: Final = int(os.environ.get("WEIR_KILLS", "4"))
TASKS: Final = int(os.environ.get("WEIR_TASKS", "300"))
WORKERS: Final = min(50, 2 * KILLS)
KEYS: Final = min(1_000, TASKS // 20)
# Of one worker.
AT_ONCE: Final = 5
# How many entries of the hot key there are for one of each other key.
HOT: Final = 4 + KEYS // 100
BATCH: Final = 50
# Published, and not done yet; and of each entry so much that the log is rewritten at nearly any time.
AHEAD: Final = 500
FILLER: Final = "x" * 1_000
# Longer than the gateway is away, and than a worker that has got an entry may take to begin it.
GROUP: Final[Any] = {"start": "0", "ordered_by": "key", "ack_timeout_ms": 5_000}


class Journal:
    """What the workers have noted, judged as it comes."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._rest = file, ""
        self.done: set[str] = set()
        # Of each key the newest entry that was begun, and who has it, or "" once it is done. A worker
        # that gave it back, or was killed, has it until it is begun again.
        self._newest: dict[str, tuple[tuple[int, ...], str]] = {}

    def read(self) -> int:
        """Read on; how many entries are done."""
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for line in lines:
            self._note(*line.split())
        return len(self.done)

    def _note(self, word: str, entry_id: str, key: str, worker: str) -> None:
        own = tuple(map(int, entry_id.split("-")))
        newest, holder = self._newest.get(key, ((), ""))
        if word == "begun":
            assert own >= newest, f"{entry_id} of {key} is begun behind {newest}"
            assert own == newest or not holder, f"{entry_id} of {key} is begun while {holder} has {newest}"
            self._newest[key] = own, worker
        elif word == "done":
            self.done.add(entry_id)
            if (own, worker) == (newest, holder):
                self._newest[key] = own, ""


def _worker(url: str, journal: Path, name: str, via: str) -> Preloaded:
    with journal.with_suffix(".log").open("ab") as log, Path(os.devnull).open("rb") as nothing:
        streams = [nothing.fileno(), log.fileno(), log.fileno()]
        words = [url, str(journal), str(AT_ONCE), name, via]
        return Preloaded(words, streams, os.environ, "tests.crash.ordered_program")


def _publish(url: str, journal: Journal) -> set[str]:
    """All entries, through kills of the gateway; their IDs."""
    published: list[str] = []
    with Client(url, retry_s=None) as client:
        for start in range(0, TASKS, BATCH):
            until(lambda: len(published) < len(journal.done) + AHEAD, "it goes on")
            numbers = random.choices(range(KEYS), [HOT, *[1] * (KEYS - 1)], k=BATCH)
            rows = [{"key": f"k{number}", "filler": FILLER} for number in numbers]
            published.extend(client.publish_batch("s", rows, key=str(start)).ids)
    return {*published}


def test_killed_workers_and_gateways_keep_the_order_of_each_key(tmp_path: Path) -> None:
    """A worker that comes again has what it had, one that does not leaves it to others. All give back some
    entries for now or for later.
    """
    path, server = tmp_path / "journal", Server(tmp_path / "weir-data", *MODES[-1])
    path.touch()
    vias = cycle(("websocket", "long-poll"))
    with (
        path.open() as file,
        server,
        Client(server.url, retry_s=None) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        journal = Journal(file)
        client.ensure_stream("s", retention={"acknowledged": True})
        client.group("s", "g").ensure(**GROUP)
        workers = Crew(partial(_worker, server.url, path))
        with workers.running((f"w{number}", next(vias)) for number in range(WORKERS)):
            publishing = pool.submit(_publish, server.url, journal)
            for kill in range(KILLS):
                enough = TASKS * (kill + 1) // (KILLS + 1)
                until(lambda enough=enough: journal.read() >= enough, f"kill {kill}")
                if kill % 3 == 0:
                    server.restart()
                else:
                    name, via = workers.kill()
                    workers.start(name if kill % 3 == 1 else f"{name}x", via)
            until(lambda: journal.read() >= TASKS, "it is done")
            assert journal.done == publishing.result()
            # What waits, or is not acknowledged, stays.
            until(lambda: client.command("XLEN", "s") == 0, "and gone")
