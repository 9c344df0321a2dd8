"""Streams move from a gateway with its own log to one over a cluster, and back, while publishers go on."""

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pytest

from tests.cluster.clusters import primaries
from tests.server import Server, call, free_port
from tests.waiting import completed, until

STREAM: Final = "orders"
ENTRIES: Final = f"/v1/streams/{STREAM}/entries"
GROUP: Final = f"/v1/streams/{STREAM}/groups/g"
ENDED_S_MAX: Final = 60.0


class Place(NamedTuple):
    """A gateway, and its port for Redis clients."""

    server: Server
    redis_port: int


@pytest.fixture(params=["to the cluster", "back"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    """From where to where."""
    ports = free_port(), free_port()
    with primaries(tmp_path) as cluster:
        # There are no replicas.
        words = ("--backend", cluster.url, "--set", "backend_durability=memory")
        with (
            Server(tmp_path / "embedded", "--resp-listen", str(ports[0])) as embedded,
            Server(tmp_path / "over", "--resp-listen", str(ports[1]), *words) as over,
        ):
            both = Place(embedded, ports[0]), Place(over, ports[1])
            yield both if request.param == "to the cluster" else (both[1], both[0])


class Publisher:
    """Publishes one entry after the other to a gateway, in a thread, until the end of its block."""

    def __init__(self, place: Place, name: str) -> None:
        self.published: list[str] = []
        self._name = name
        self._server = place.server
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def wait_for_more(self) -> None:
        """Until it has published some more."""
        wanted = len(self.published) + 20
        until(lambda: len(self.published) >= wanted)

    def _publish(self) -> None:
        while not self._is_over.is_set():
            value = f"{self._name}-{len(self.published)}"
            status, problem = call(self._server, "POST", ENTRIES, {"fields": {"n": value}})
            assert status == 201, problem
            self.published.append(value)
            # Others use the processor too.
            time.sleep(0.005)


def words(source: Place, target: Place, *options: str) -> list[str]:
    """The command that copies."""
    where = ["--redis", f"redis://127.0.0.1:{source.redis_port}", "--url", target.server.url]
    return [sys.executable, "-m", "weir", "import", STREAM, *where, *options]


def copy(source: Place, target: Place, *options: str) -> None:
    """Copy what there is."""
    ran = completed(words(source, target, *options), timeout=ENDED_S_MAX)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@contextmanager
def following(source: Place, target: Place, said: Path, *options: str) -> Iterator[None]:
    """Copy what comes, once it has caught up; it ends well."""
    with said.open("wb") as log:
        process = subprocess.Popen(words(source, target, "--follow", *options), stdout=log, stderr=log)
        try:
            until(lambda: "caught up" in said.read_text())
            yield
            process.send_signal(signal.SIGINT)
            assert process.wait(ENDED_S_MAX) == 0, said.read_text()
        finally:
            process.kill()
            process.wait()


def entries(place: Place) -> list[tuple[str, str]]:
    """IDs and values of all entries."""
    found: list[tuple[str, str]] = []
    after = "0"
    while True:
        page = call(place.server, "GET", f"{ENTRIES}?after={after}&count=1000")[1]
        found += [(one["id"], one["fields"]["n"]) for one in page["entries"]]
        if not page["more"]:
            return found
        after = page["next"]


def pending(place: Place) -> list[Any]:
    """The group's pending entries: IDs, consumers, deliveries."""
    rows = call(place.server, "GET", f"{GROUP}/pending?count=1000")[1]["pending"]
    return [(one["id"], one["consumer"], one["delivery_count"]) for one in rows]


def test_a_stream_moves_while_publishers_go_on(places: tuple[Place, Place], tmp_path: Path) -> None:
    """Workers go over with all that is pending; then publishers, one by one. Each entry is there once."""
    source, target = places
    with Publisher(source, "old") as old:
        old.wait_for_more()
        assert call(source.server, "PUT", GROUP, {"start": "0"})[0] == 201
        _, read = call(source.server, "POST", f"{GROUP}/consumers/c/read", {"count": 10})
        taken = [one["id"] for one in read["entries"]]
        call(source.server, "POST", f"{GROUP}/ack", {"ids": taken[:3]})
        with following(source, target, tmp_path / "followed"):
            old.wait_for_more()
        copies = entries(target)
        assert copies == entries(source)[: len(copies)]
        assert len(copies) >= 40
        assert pending(target) == pending(source) == [(one, "c", 1) for one in taken[3:]]
        with following(source, target, tmp_path / "in use", "--in-use"), Publisher(target, "new") as new:
            new.wait_for_more()
            old.wait_for_more()
    copy(source, target, "--in-use")
    values = [value for _, value in entries(target)]
    assert Counter(values) == Counter([*old.published, *new.published])
    # The order of each publisher is kept.
    assert [value for value in values if value.startswith("old")] == old.published
    assert [value for value in values if value.startswith("new")] == new.published
    assert pending(target) == [(one, "c", 1) for one in taken[3:]]
