"""A web log is archived while it is published, its driver killed three times: nothing lost, nothing double.

Knows: the job as a program of its own, the gateway as another, the archive as anybody reads it.
Must never know: how any of them works.

`WEIR_WEBLOG_ENTRIES=300000` makes it as large as it gets; the default is what a gate has time for.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from pyspark_weir import gateway as calls
from pyspark_weir.gateway import Access, Gateway
from pyspark_weir.jobs.verify import verify
from pyspark_weir.manifest import Archive
from pyspark_weir.place import Place
from tests.server import Server
from tests.spark.weblog import Entry, Weblog, publish

ENTRIES: Final = int(os.environ.get("WEIR_WEBLOG_ENTRIES", "24000"))
# So many batches that three drivers die with work left.
_batches: Final = 12
_chunk: Final = 2_000
_step_s_max: Final = 240.0
_look_s: Final = 0.002
_JVM: Final = "spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class Driver:
    """The archive job, in a process group of its own."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.root = folder / "archive"
        self._folder = folder
        self._command = [
            *(sys.executable, "-m", "pyspark_weir", "archive", str(self.root)),
            *("--gateway", server.url, "--pattern", "web:.*", "--checkpoint", str(folder / "checkpoint")),
            *("--source", f"maxEntriesPerTrigger={max(1, ENTRIES // _batches)}"),
            *("--conf", _JVM),
        ]
        self._runs = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Run it, until it is killed or ends."""
        self._runs += 1
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command, *options], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def _log(self) -> Path:
        return self._folder / f"driver-{self._runs}.log"

    def kill_when(self, moment: Callable[[], bool]) -> None:
        """Kill -9 the driver and its Java, as soon as something is so."""
        assert self._process is not None, "it was started"
        deadline = time.monotonic() + _step_s_max
        while not moment():
            assert self._process.poll() is None, f"it ended by itself: {self._log.read_text()}"
            assert time.monotonic() < deadline, f"the moment did not come: {self._log.read_text()}"
            time.sleep(_look_s)
        self.kill()

    def kill(self) -> None:
        """Kill -9, whatever it does."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def finish(self) -> None:
        """Wait for its end, which is to be a good one."""
        assert self._process is not None, "it was started"
        assert self._process.wait(_step_s_max) == 0, self._log.read_text()

    def manifests(self) -> int:
        """How many batches count."""
        return len(list((self.root / "_manifest").glob("0*.json")))

    def begun(self) -> int:
        """How many batches have written something."""
        return len(list((self.root / "data").glob("batch=*")))


class Publisher(threading.Thread):
    """Publishes a log, evenly over some time, and keeps what it has published."""

    def __init__(self, server: Server, log: Weblog, over_s: float) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._log = log
        self._over_s = over_s
        self._enough = threading.Event()
        self.published: dict[str, list[Entry]] = {stream: [] for stream in log.streams()}
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            self._publish()
        except BaseException as error:  # noqa: BLE001 - told where the thread is joined
            self.failed = error

    def hurry(self) -> None:
        """No more pauses."""
        self._enough.set()

    def _publish(self) -> None:
        begun_s, sent = time.monotonic(), 0
        with Gateway(Access("g0", self._server.url)) as gateway:
            for number, chunk in enumerate(self._log.chunks(_chunk)):
                publish(gateway, chunk, number)
                for stream, entries in chunk.items():
                    self.published[stream] += entries
                    sent += len(entries)
                due_s = begun_s + self._over_s * sent / self._log.entries
                self._enough.wait(max(0.0, due_s - time.monotonic()))


@contextmanager
def publishing(server: Server, over_s: float) -> Iterator[Publisher]:
    """A log that is being published meanwhile, and has been wholly at the end."""
    publisher = Publisher(server, Weblog(ENTRIES), over_s)
    publisher.start()
    try:
        yield publisher
    finally:
        publisher.hurry()
        publisher.join(_step_s_max)
    if publisher.failed is not None:
        raise publisher.failed


def read_plainly(root: Path) -> dict[str, list[tuple[str, list[tuple[str, bytes]]]]]:
    """What the archive holds, by JSON and pyarrow alone."""
    files = [
        file
        for manifest in sorted((root / "_manifest").glob("0*.json"))
        for file in json.loads(manifest.read_text())["content"]["add"]
    ]
    found: dict[str, list[tuple[str, list[tuple[str, bytes]]]]] = {}
    for file in files:
        rows = pq.ParquetFile(root / file["path"]).read(columns=["id", "fields"]).to_pylist()
        found.setdefault(file["stream"], []).extend(
            (row["id"], [(pair["name"], pair["value"]) for pair in row["fields"]]) for row in rows
        )
    return found


def expected(published: dict[str, list[Entry]]) -> dict[str, list[tuple[str, list[tuple[str, bytes]]]]]:
    """What was published, in the same form."""
    return {
        stream: [(entry.id, list(entry.pairs)) for entry in entries]
        for stream, entries in published.items()
        if entries
    }


def in_order(entries: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Files of one batch may follow each other in any order; within each, entries ascend already."""
    return sorted(entries, key=lambda entry: tuple(map(int, entry[0].split("-"))))


@pytest.fixture
def driver(server: Server, tmp_path: Path) -> Iterator[Driver]:
    made = Driver(server, tmp_path)
    yield made
    made.kill()


def test_a_log_is_archived_once_through_three_kills(server: Server, driver: Driver) -> None:
    """Killed while it writes a batch, right after a manifest, and in the middle of anything; then trimmed."""
    with publishing(server, over_s=30.0) as publisher:
        driver.start("--every", "0")
        driver.kill_when(lambda: driver.begun() > max(1, driver.manifests()))
        counted = driver.manifests()
        driver.start("--every", "0")
        driver.kill_when(lambda: driver.manifests() > counted + 1)
        counted = driver.manifests()
        driver.start("--every", "0")
        driver.kill_when(lambda: driver.manifests() > counted)
        publisher.hurry()
    driver.start("--once")
    driver.finish()
    wanted = expected(publisher.published)
    found = read_plainly(driver.root)
    assert sum(map(len, found.values())) == ENTRIES
    assert {stream: in_order(entries) for stream, entries in found.items()} == wanted
    place = Place.of(str(driver.root))
    with Gateway(Access("g0", server.url)) as gateway:
        report = verify(place, Archive.read(place), {"g0": gateway}, deep=True)
        assert (report.findings, report.rows, report.compared) == ((), ENTRIES, ENTRIES)
        trimmed = subprocess.run(
            [
                sys.executable,
                "-m",
                "pyspark_weir",
                "trim",
                str(driver.root),
                "--gateway",
                server.url,
                "--yes",
            ],
            capture_output=True,
            check=False,
        )
        assert trimmed.returncode == 0, trimmed.stderr.decode()
        for stream, entries in wanted.items():
            seen = calls.stream(gateway, stream)
            assert seen is not None
            assert (seen["length"], seen["archived_up_to"]) == (0, entries[-1][0])
        assert verify(place, Archive.read(place), {"g0": gateway}, deep=True).findings == ()
    assert {stream: in_order(entries) for stream, entries in read_plainly(driver.root).items()} == wanted
