"""What was archived goes into another gateway: nothing lost, nothing twice, the same bytes.

Knows: the job as a program of its own and as Spark runs it, gateways as anybody reads them.
Must never know: how any of them works.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from msgspec import structs
from pyspark.sql import SparkSession

from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.cli.main import jobs
from pyspark_weir.errors import DataLoss, OptionError
from pyspark_weir.gateway import GatewayAccess, GatewayClient, of_stream
from pyspark_weir.jobs import replay
from pyspark_weir.jobs.mirror import Targets
from pyspark_weir.jobs.replay import EntrySelection, FromArchive, FromGateway, Replay
from pyspark_weir.sink.keys import pairs_of
from pyspark_weir.table.root import ArchiveRoot
from tests.server import Server
from tests.spark.cluster import JVM
from tests.spark.weblog import Weblog, publish

ENTRIES: Final = 24_000
_chunk: Final = 4_000
_step_s_max: Final = 240.0
_look_s: Final = 0.01
_JVM: Final = f"spark.driver.extraJavaOptions={JVM}"


@dataclass(frozen=True)
class Archived:
    """A gateway with a web log, and the archive of it."""

    server: Server
    root: str
    streams: tuple[str, ...]


@pytest.fixture(scope="module")
def archived(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    folder = tmp_path_factory.mktemp("archived")
    with Server(folder / "data", "--fsync", "always") as server:
        log = Weblog(ENTRIES, sites=4)
        with GatewayClient(GatewayAccess("g0", server.url)) as gateway:
            for number, chunk in enumerate(log.chunks(_chunk)):
                publish(gateway, chunk, number)
        root, checkpoint = str(folder / "archive"), str(folder / "checkpoint")
        which = ("--gateway", server.url, "--pattern", "web:.*", "--source", "maxEntriesPerTrigger=9000")
        jobs(["archive", root, "--checkpoint", checkpoint, *which], standalone_mode=False)
        yield Archived(server, root, tuple(log.streams()))


@pytest.fixture
def target(own_server: Server) -> GatewayAccess:
    """Another gateway, empty."""
    return GatewayAccess("target", own_server.url)


def exported(server_url: str, stream: str) -> bytes:
    """A stream as NDJSON, IDs and all."""
    with GatewayClient(GatewayAccess("g0", server_url)) as gateway:
        accept = {"accept": "application/x-ndjson"}
        return gateway.send("GET", f"{of_stream(stream)}/entries", headers=accept).content


def has_more_than(access: GatewayAccess, entries: float) -> bool:
    return lengths(access) > entries


def lengths(access: GatewayAccess) -> int:
    with GatewayClient(access) as gateway:
        return sum(one["length"] for one in gateway.list_streams())


class Driver:
    """The job, in a process group of its own."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command = [sys.executable, "-m", "pyspark_weir", "replay", *command]
        self._folder = folder
        self._runs = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def _log(self) -> Path:
        return self._folder / f"driver-{self._runs}.log"

    def start(self) -> None:
        """Run it, until it is killed or ends."""
        self._runs += 1
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def kill_when(self, moment: Callable[[], bool]) -> None:
        """Kill -9 the driver and its Java, as soon as something is so."""
        assert self._process is not None, "it was started"
        deadline = time.monotonic() + _step_s_max
        while not moment():
            assert self._process.poll() is None, f"it ended by itself: {self.log}"
            assert time.monotonic() < deadline, f"the moment did not come: {self.log}"
            time.sleep(_look_s)
        self.kill()

    def kill(self) -> None:
        """Kill -9, at any moment."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def test_a_replay_that_was_killed_gives_the_same_bytes(
    session: SparkSession,
    archived: Archived,
    target: GatewayAccess,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The driver dies with -9 in the middle, and the job is begun again; each stream is the same as where it
    came from, to the byte: IDs, order, repeated names and bytes that are no text.
    """
    command = [
        *("--from", archived.root, "--gateway", f"target={target.url}", "--job-id", "move", "--keep-ids"),
        *("--rate", "4000", "--json"),
    ]
    driver = Driver([*command, "--conf", _JVM], tmp_path)
    try:
        driver.start()
        driver.kill_when(partial(has_more_than, target, ENTRIES / 2))
    finally:
        driver.kill()
    assert lengths(target) < ENTRIES
    jobs(["replay", *command], standalone_mode=False)
    last = orjson.loads(capfd.readouterr().out.splitlines()[-1])
    assert (last["done"], last["rows"]) == (True, ENTRIES)
    for stream in archived.streams:
        assert exported(target.url, stream) == exported(archived.server.url, stream)
    assert lengths(target) == ENTRIES


def test_entries_with_new_ids_tell_their_old_ones(
    spark: SparkSession, archived: Archived, target: GatewayAccess, tmp_path: Path
) -> None:
    """In another stream, in the order of before; a second run adds nothing."""
    source = FromArchive(ArchiveRoot.of(archived.root))
    state = StateFolder.of(str(tmp_path / "state"))
    asked = Replay(
        job="copy",
        source=source.address,
        wanted=EntrySelection(streams=archived.streams[:2]),
        to=Targets.parse(["copy.{stream}"]),
        tasks=2,
    )
    plan = replay.begin(state, source, target, asked)
    for _run in range(2):
        replay.run(spark, plan, source=source, target=target, state=state)
    assert replay.begin(state, source, target, asked) == structs.replace(plan, done=True)
    with GatewayClient(GatewayAccess("g0", archived.server.url)) as there, GatewayClient(target) as here:
        for stream in archived.streams[:2]:
            before = there.get(f"{of_stream(stream)}/entries", {"count": 10_000})["entries"]
            after = here.get(f"{of_stream('copy.' + stream)}/entries", {"count": 10_000})["entries"]
            assert [_orig(one) for one in after] == [one["id"] for one in before]
    assert lengths(target) == plan.rows


def test_a_time_range_of_a_gateway_is_replayed(
    spark: SparkSession, archived: Archived, target: GatewayAccess, tmp_path: Path
) -> None:
    """Straight from one gateway to another, IDs kept."""
    stream = archived.streams[0]
    with GatewayClient(GatewayAccess("g0", archived.server.url)) as there:
        every = there.get(f"{of_stream(stream)}/entries", {"count": 10_000})["entries"]
    first, last = every[99]["id"], every[4_999]["id"]
    source = FromGateway(GatewayAccess("from", archived.server.url))
    wanted = EntrySelection(streams=(stream,), after=first, end=last)
    asked = Replay(job="range", source=source.address, wanted=wanted, keep_ids=True)
    state = StateFolder.of(str(tmp_path / "state"))
    replay.run(spark, replay.plan_of(source, asked), source=source, target=target, state=state)
    with GatewayClient(target) as here:
        found = here.get(f"{of_stream(stream)}/entries", {"count": 10_000})["entries"]
    assert found == every[100:5_000]


def test_ids_are_not_kept_where_the_target_is_ahead(
    archived: Archived, target: GatewayAccess, tmp_path: Path
) -> None:
    """Told before anything is sent, and before the plan is settled."""
    stream = archived.streams[0]
    with GatewayClient(target) as here:
        here.post(f"{of_stream(stream)}/entries", {"fields": {"new": "1"}})
    source = FromArchive(ArchiveRoot.of(archived.root))
    asked = Replay(job="ahead", source=source.address, keep_ids=True)
    state = StateFolder.of(str(tmp_path / "state"))
    with pytest.raises(OptionError, match=r"has had entries up to .* empty or behind"):
        replay.begin(state, source, target, asked)
    assert state.read("plan.json") is None


def test_what_a_gateway_has_trimmed_is_not_passed_over(target: GatewayAccess) -> None:
    """The range begins with entries that are gone."""
    with GatewayClient(target) as here:
        ids = [here.post("/v1/streams/cut/entries", {"fields": {"n": str(n)}})["id"] for n in range(5)]
        here.post("/v1/streams/cut/trim", {"minid": ids[3]})
    source = FromGateway(target)
    asked = Replay(job="gone", source=source.address, wanted=EntrySelection(streams=("cut",)))
    later = Replay(job="gone", source=source.address, wanted=EntrySelection(streams=("cut",), after=ids[0]))
    with pytest.raises(DataLoss, match="the replay was to begin after"):
        replay.plan_of(source, later)
    assert replay.plan_of(source, asked).rows == 2


def _orig(entry: dict[str, Any]) -> str | None:
    pairs = pairs_of(entry)
    return pairs[-1][1].decode() if pairs[-1][0] == "_orig_id" else None
