"""kill -9 of taskiq's workers: no task is lost, and only what a worker had in hand is done again.

By hand, and nightly by `make soak`, 20 kills among 10,000 tasks:

    WEIR_KILLS=20 WEIR_TASKS=10000 .venv/bin/pytest tests/crash/test_taskiq.py
"""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

from taskiq.kicker import AsyncKicker

from tests.crash.harness import Crew
from tests.server import Server
from tests.waiting import until
from weir import Client
from weir.taskiq import WeirBroker

KILLS: Final = int(os.environ.get("WEIR_KILLS", "2"))
TASKS: Final = int(os.environ.get("WEIR_TASKS", "600"))
# Of one worker.
AT_ONCE: Final = 5
# Of those that send the tasks.
SENDERS: Final = 20
ROOT: Final = Path(__file__).parents[2]


def _worker(url: str, done: Path) -> subprocess.Popen[bytes]:
    """`taskiq worker`, with one process of its own."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "sdk" / "python")])
    own = {"WEIR_URL": url, "TASKS_DONE": str(done), "TASKS_AT_ONCE": str(AT_ONCE), "PYTHONPATH": paths}
    words = ["worker", "tests.crash.taskiq_program:broker", "--workers", "1"]
    with done.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "taskiq", *words, "--max-async-tasks", str(AT_ONCE)],
            env={**os.environ, **own},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


async def _send(url: str) -> None:
    broker = WeirBroker(url)
    numbers = iter(range(TASKS))

    async def send() -> None:
        for number in numbers:
            kicker: AsyncKicker[Any, Any] = AsyncKicker("note", broker, {})
            await kicker.kiq(number)

    await asyncio.gather(*(send() for _ in range(SENDERS)))
    await broker.shutdown()


def test_killed_workers_lose_no_task_and_repeat_what_they_had_in_hand(tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.touch()
    with Server(tmp_path / "weir-data") as server, Client(server.url) as client:
        workers = Crew(partial(_worker, server.url, done))
        asyncio.run(_send(server.url))
        with workers.running([(), ()]):
            for kill in range(KILLS):
                enough = TASKS * (kill + 1) // (KILLS + 1)
                until(lambda enough=enough: done.read_bytes().count(b"\n") >= enough, f"kill {kill}")
                workers.start(*workers.kill())
            until(lambda: client.group("taskiq", "taskiq").info()["pending"] == 0, "it is done")
            until(lambda: client.command("XLEN", "taskiq") == 0, "and gone")
    counts = Counter(done.read_text().split())
    assert counts.keys() == {str(number) for number in range(TASKS)}
    again = counts.total() - len(counts)
    assert again <= KILLS * AT_ONCE, f"{again} tasks were done again"
