"""docs/sse.md: its workers as they stand there, killed, and left alone by a gateway that stops."""

from pathlib import Path

import httpx
import pytest

from tests.documents.programs import programs, start
from tests.server import Server
from tests.waiting import until

DOCUMENT = (Path(__file__).parents[2] / "docs" / "sse.md").read_text()
WORKERS = ("sse_worker.py", "sse_worker.mjs")
ENTRIES = "/v1/streams/orders/entries"
GROUP = "/v1/streams/orders/groups/billing"

# They note each order when it is done, and do not return while there is a file `hold`.
TASKS = {
    "tasks.py": """
import pathlib
import time


def work(fields):
    if fields["order"] == "bad":
        raise ValueError("no such order")
    with open("done", "a") as done:
        done.write(fields["order"] + "\\n")
    while pathlib.Path("hold").exists():
        time.sleep(0.01)
""",
    "tasks.mjs": """
import { appendFileSync, existsSync } from "node:fs";

export async function work(fields) {
  if (fields.order === "bad") throw new Error("no such order");
  appendFileSync("done", fields.order + "\\n");
  while (existsSync("hold")) await new Promise((over) => setTimeout(over, 10));
}
""",
}


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_is_short(name: str) -> None:
    """Under fifty lines, its imports and its description included."""
    assert len(programs(DOCUMENT)[name].splitlines()) < 50


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_goes_on_after_every_death(server: Server, tmp_path: Path, name: str) -> None:
    """Its own: what it had not acknowledged comes again. The gateway's: it comes back by itself. An entry
    that cannot be worked on holds up no other, and ends as a dead letter.
    """
    for file, text in {**TASKS, name: programs(DOCUMENT)[name]}.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "hold").touch()
    done = tmp_path / "done"
    arguments = (name, server.url, "orders", "billing", "worker-1")
    with httpx.Client(base_url=server.url) as http:
        _publish(http, "first")
        http.put(GROUP, json={"start": "0", "dead_letter": {"stream": "dead", "max_deliveries": 2}})
        worker = start(tmp_path, *arguments)
        try:
            until(lambda: done.exists() and done.read_text(), "the first entry is worked on")
        finally:
            worker.kill()
            worker.wait()
        worker = start(tmp_path, *arguments)
        try:
            until(lambda: done.read_text() == "first\nfirst\n", "the entry comes again")
            (tmp_path / "hold").unlink()
            until(lambda: _pending(http) == 0, "it is acknowledged")
            server.stop()
            server.start()
        finally:
            _publish(http, "bad")
            _publish(http, "second")
            until(lambda: done.read_text().endswith("second\n"), "the worker comes back")
            until(lambda: _pending(http) == 0, "everything is acknowledged")
            worker.kill()
            worker.wait()
    assert done.read_text() == "first\nfirst\nsecond\n"


def _publish(http: httpx.Client, order: str) -> None:
    http.post(ENTRIES, json={"fields": {"order": order}}).raise_for_status()


def _pending(http: httpx.Client) -> int:
    return int(http.get(GROUP).json()["pending"])
