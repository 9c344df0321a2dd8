"""docs/reliable-queue.md: its producers and workers as they stand there, under random killing."""

import json
import os
import random
import re
import time
from functools import partial
from pathlib import Path

import httpx

from tests.crash.harness import Crew
from tests.documents.programs import programs, start
from tests.server import Server
from tests.waiting import until

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reliable-queue.md").read_text()
NAMES = ("anna", "bert", "cleo", "dora", "emil")
PRODUCERS = ("monday.txt", "tuesday.txt")
# `make soak` has more of both.
TASKS_EACH = int(os.environ.get("WEIR_TASKS", "150"))
KILLS = int(os.environ.get("WEIR_KILLS", "12"))
POISON = "poison"
HOPELESS = "hopeless"
STREAM = "/v1/streams/tasks"
G = STREAM + "/groups/workers"
OVER_S_MAX = 35.0 + TASKS_EACH / 50

# A task is done when it is noted. One kills each worker that takes it, one cannot be done.
TASKS = f"""
import os
import signal
import time


def work(task):
    if task == "{POISON}":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "{HOPELESS}":
        raise ValueError("this cannot be done")
    time.sleep(0.005)
    with open("done", "a") as done:
        done.write(task + "\\n")
"""


def test_no_task_is_lost(server: Server, tmp_path: Path) -> None:
    """Workers killed at random, the gateway killed once, one poison task: each task is done and acknowledged,
    few of them twice, or a dead letter, the poison among these, and the stream is empty at the end.
    """
    everything = _write_files(tmp_path)
    with httpx.Client(base_url=server.url) as http:
        http.put(STREAM, json=_documented(STREAM)).raise_for_status()
        # But no test waits a minute.
        http.put(G, json={**_documented(G), "ack_timeout_ms": 1_000}).raise_for_status()
    producers = [start(tmp_path, "producer.py", server.url, "tasks", name) for name in PRODUCERS]
    crew = Crew(partial(start, tmp_path, "worker.py", server.url, "tasks", "workers"), mortal=True)
    try:
        with crew.running((name,) for name in NAMES), httpx.Client(base_url=server.url) as http:
            _torment(crew, server)
            for producer in producers:
                assert producer.wait(OVER_S_MAX) == 0
            _until_over(http, crew)
            dead = [one["fields"] for one in http.get("/v1/streams/tasks-dead/entries").json()["entries"]]
            # Queued again: nothing twice, but the one task that is new.
            everything |= {"last"}
            (tmp_path / PRODUCERS[0]).write_text("\n".join([*_tasks(0), "last"]))
            again = start(tmp_path, "producer.py", server.url, "tasks", PRODUCERS[0])
            assert again.wait(OVER_S_MAX) == 0
            _until_over(http, crew)
            assert http.get(STREAM).json()["entries_added"] == len(everything)
            until(lambda: http.get(STREAM).json()["length"] == 0, "what is done is gone")
    finally:
        for producer in producers:
            producer.kill()
    noted = (tmp_path / "done").read_text().split()
    done = set(noted)
    dead_lettered = {one["task"] for one in dead}
    assert {POISON, HOPELESS} <= dead_lettered
    assert done | dead_lettered == everything
    assert not done & {POISON, HOPELESS}
    # With a worker dies one task at most that was done, with the gateway those of all of them.
    assert len(noted) - len(done) <= KILLS + len(NAMES)
    assert all(one["weir-deliveries"] == "3" for one in dead)


def _write_files(directory: Path) -> set[str]:
    """The document's programs, and what the producers are to queue; all tasks there are."""
    for name, text in programs(DOCUMENT).items():
        (directory / name).write_text(text)
    (directory / "tasks.py").write_text(TASKS)
    everything: set[str] = set()
    for number, name in enumerate(PRODUCERS):
        tasks = _tasks(number)
        (directory / name).write_text("\n".join(tasks))
        everything |= set(tasks)
    return everything


def _tasks(number: int) -> list[str]:
    tasks = [f"{number}-{serial}" for serial in range(TASKS_EACH)]
    return [*tasks[:20], (POISON, HOPELESS)[number], *tasks[20:]]


def _documented(path: str) -> dict[str, object]:
    """What the document puts there."""
    found = re.search(rf"-X PUT \S+{path} --json '(.*)'", DOCUMENT)
    assert found is not None, "the document makes it"
    policy: dict[str, object] = json.loads(found[1])
    return policy


def _torment(crew: Crew, server: Server) -> None:
    """Kill workers at random moments, and the gateway in the middle of it."""
    dice = random.Random(7)
    for number in range(KILLS):
        time.sleep(dice.uniform(0.05, 0.35))
        crew.start(*crew.kill(dice.randrange(len(NAMES))))
        crew.revive()
        if number == KILLS // 2:
            server.restart()


def _until_over(http: httpx.Client, crew: Crew) -> None:
    deadline = time.monotonic() + OVER_S_MAX
    while True:
        crew.revive()
        result = http.get(G).json()
        if result["lag"] == 0 and result["pending"] == 0:
            return
        assert time.monotonic() < deadline, result
        time.sleep(0.1)
