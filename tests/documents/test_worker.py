"""docs/worker.md: the worker as it stands there, killed where it hurts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.documents.programs import programs, start
from tests.server import Server
from tests.waiting import until

DOCUMENT = (Path(__file__).parents[2] / "docs" / "worker.md").read_text()
G = "/v1/streams/orders/groups/billing"

# Notes each task when it is done, and does not return while there is a file `hold`.
TASKS = """
import pathlib
import time


def work(fields):
    if fields["order"] == "bad":
        raise ValueError("no such order")
    with open("done", "a") as done:
        done.write(fields["order"] + "\\n")
    while pathlib.Path("hold").exists():
        time.sleep(0.01)
"""


@pytest.fixture
def http(tmp_path: Path) -> Iterator[httpx.Client]:
    with Server(tmp_path / "weir-data") as server, httpx.Client(base_url=server.url) as client:
        yield client


def test_the_worker_is_short() -> None:
    """Under fifty lines, its imports and its description included."""
    assert len(programs(DOCUMENT)["worker.py"].splitlines()) < 50


def test_a_worker_killed_before_the_acknowledgement_gets_its_entry_back(
    http: httpx.Client, tmp_path: Path
) -> None:
    """Its history comes first, with delivery count 2; a deleted entry in it is acknowledged and passed over;
    then it goes on with what is new.
    """
    (tmp_path / "worker.py").write_text(programs(DOCUMENT)["worker.py"])
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "hold").touch()
    done = tmp_path / "done"
    arguments = ("worker.py", str(http.base_url), "orders", "billing", "worker-1")
    http.post("/v1/streams/orders/entries", json={"id": "1-0", "fields": {"order": "first"}})
    http.post("/v1/streams/orders/entries", json={"id": "2-0", "fields": {"order": "second"}})

    worker = start(tmp_path, *arguments)
    try:
        until(lambda: done.exists() and done.read_text(), "the first entry is worked on")
        assert _counts(http) == {"1-0": 1, "2-0": 1}
    finally:
        worker.kill()
        worker.wait()
    http.request("DELETE", "/v1/streams/orders/entries/2-0").raise_for_status()

    worker = start(tmp_path, *arguments)
    try:
        until(lambda: done.read_text() == "first\nfirst\n", "the entry comes back")
        assert _counts(http)["1-0"] == 2
        (tmp_path / "hold").unlink()
        http.post("/v1/streams/orders/entries", json={"id": "3-0", "fields": {"order": "third"}})
        until(lambda: not _counts(http) and "third" in done.read_text(), "everything is acknowledged")
    finally:
        worker.kill()
        worker.wait()
    assert done.read_text() == "first\nfirst\nthird\n"
    assert http.get(G).json()["lag"] == 0


def test_a_work_that_fails_holds_up_no_other(http: httpx.Client, tmp_path: Path) -> None:
    """The worker says why and goes on; that entry comes again until it is a dead letter, and it alone."""
    (tmp_path / "worker.py").write_text(programs(DOCUMENT)["worker.py"])
    (tmp_path / "tasks.py").write_text(TASKS)
    http.put(G, json={"start": "0", "dead_letter": {"stream": "dead", "max_deliveries": 2}})
    for place, order in enumerate(["bad", "good"], 1):
        http.post("/v1/streams/orders/entries", json={"id": f"{place}-0", "fields": {"order": order}})
    arguments = ("worker.py", str(http.base_url), "orders", "billing", "worker-1")
    worker = start(tmp_path, *arguments)
    try:
        until(lambda: http.get("/v1/streams/dead").status_code == 200, "it is a dead letter")
        until(lambda: not _counts(http), "everything is settled")
    finally:
        worker.kill()
        worker.wait()
    assert (tmp_path / "done").read_text() == "good\n"
    assert http.get("/v1/streams/dead").json()["length"] == 1
    assert (tmp_path / "worker.py.log").read_text().count("ValueError: no such order") == 2


def _counts(http: httpx.Client) -> dict[str, int]:
    rows = http.get(f"{G}/pending?count=10").json()["pending"]
    return {one["id"]: one["delivery_count"] for one in rows}


def test_the_example_work_is_complete() -> None:
    """What the document shows as the reader's own part defines what the worker imports."""
    scope: dict[str, Any] = {}
    exec(programs(DOCUMENT)["tasks.py"], scope)
    scope["work"]({"order": "4711"})
