"""The workers of three documents as they stand there, killed where it hurts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.documents.programs import programs, started
from tests.server import Server
from tests.waiting import until

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {
    page: programs((ROOT / "docs" / page).read_text()) for page in ("worker.md", "sse.md", "websocket.md")
}
ENTRIES: Final = "/v1/streams/orders/entries"
GROUP: Final = "/v1/streams/orders/groups/billing"
# They note each order when it is begun, and do not return while there is a file `hold`.
TASKS: Final = {
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
# How the gateway of each goes away, None where the worker is to be started again then.
WORKERS: Final[dict[str, Callable[[Server], object] | None]] = {
    "worker.md worker.py": None,
    "sse.md sse_worker.py": Server.stop,
    "sse.md sse_worker.mjs": Server.stop,
    "websocket.md worker.py": Server.kill,
    "websocket.md worker.mjs": Server.kill,
}


@pytest.mark.parametrize("program", WORKERS)
def test_a_worker_goes_on_after_every_death(server: Server, tmp_path: Path, program: str) -> None:
    """Under fifty lines; it makes its group. Its own: what it had not acknowledged comes first, with delivery
    count 2; what was deleted meanwhile is acknowledged and passed over. The gateway's: it comes back by
    itself. An entry that cannot be worked on holds up no other, and ends as a dead letter, it alone; the
    worker says why.
    """
    page, name = program.split()
    assert len(PAGES[page][name].splitlines()) < 50
    for file, text in {**TASKS, name: PAGES[page][name]}.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "node_modules").symlink_to(ROOT / "tests" / "sdk" / "node_modules")
    done, hold = tmp_path / "done", tmp_path / "hold"
    done.touch()
    hold.touch()
    url = f"ws://127.0.0.1:{server.port}/v1/ws" if page == "websocket.md" else server.url
    arguments = (tmp_path, name, url, "orders", "billing", "worker-1")
    with httpx.Client(base_url=server.url) as http:
        _publish(http, {"1-0": "first", "2-0": "second"})
        with started(*arguments):
            until(done.read_text, "the first entry is worked on")
            assert _counts(http) == {"1-0": 1, "2-0": 1}
        http.delete(f"{ENTRIES}/2-0").raise_for_status()
        policy = {"dead_letter": {"stream": "dead", "max_deliveries": 2}}
        http.patch(GROUP, json=policy).raise_for_status()
        with started(*arguments) as worker:
            until(lambda: done.read_text() == "first\nfirst\n", "the entry comes again")
            assert _counts(http)["1-0"] == 2
            hold.unlink()
            until(lambda: not _counts(http), "it is acknowledged")
            if go_away := WORKERS[program]:
                go_away(server)
                server.start()
            _publish(http, {"3-0": "bad", "4-0": "third"})
            until(lambda: done.read_text().endswith("third\n"), "the worker comes back")
            until(lambda: http.get("/v1/streams/dead").status_code == 200, "what fails is a dead letter")
            until(lambda: not _counts(http), "everything is settled")
            assert worker.poll() is None, "it goes on"
        assert done.read_text() == "first\nfirst\nthird\n"
        assert (http.get(GROUP).json()["lag"], http.get("/v1/streams/dead").json()["length"]) == (0, 1)
    assert (tmp_path / f"{name}.log").read_text().count("Error: no such order") == 2


def _publish(http: httpx.Client, orders: dict[str, str]) -> None:
    rows = [{"id": entry_id, "fields": {"order": order}} for entry_id, order in orders.items()]
    http.post(ENTRIES, json={"entries": rows}).raise_for_status()


def _counts(http: httpx.Client) -> dict[str, int]:
    """How often each pending entry was delivered."""
    rows = http.get(f"{GROUP}/pending?count=10").json()["pending"]
    return {one["id"]: one["delivery_count"] for one in rows}


def test_the_example_work_is_complete() -> None:
    """What the document shows as the reader's own part defines what the worker imports."""
    scope: dict[str, Any] = {}
    exec(PAGES["worker.md"]["tasks.py"], scope)
    scope["work"]({"order": "4711"})
