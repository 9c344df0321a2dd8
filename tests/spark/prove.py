"""A proof that no entry is lost or doubled: an archive and a mirror, killed at random.

Knows: a publisher, a gateway, a standalone cluster with two workers, a driver, upkeep of the archive, and how
to kill each of them. Must never know: how any of them works.

A web log is published all the time. The driver archives it and mirrors three of its streams; upkeep compacts,
trims, vacuums and verifies it meanwhile. Speculation is on. In the end everything that was published is
compared with the archive, read by deltalake and pyarrow alone, and with the mirror, read from the gateway.

    driver     kill -9 of the driver's Python and its Java
    commit     the same, while the table holds a batch of which Spark does not know that it has ended
    java       kill -9 of its Java alone
    executor   kill -9 of an executor
    worker     kill -9 of a Python worker
    stall      a Python worker stands still for three seconds, so that a second attempt of its task begins
    gateway    kill -9 of the gateway, and a start
    upkeep     kill -9 of what compacts, trims or vacuums

    python -m tests.spark.prove [--minutes 30] [--rate 1000] [--seed 1] [--folder DIR]
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from pyarrow import parquet as pq

from pyspark_weir.gateway import GatewayAccess, GatewayClient, of_stream
from pyspark_weir.sink.keys import pairs_of
from tests.server import Server
from tests.spark.cluster import JVM, Cluster
from tests.spark.prove_driver import COPY, GROUP, MIRRORED, ORIG
from tests.spark.weblog import Weblog, publish

KINDS: Final = ("driver", "commit", "java", "executor", "worker", "stall", "gateway", "upkeep")
_CHUNK: Final = 500
_STALL_S: Final = 3.0
_END_S_MAX: Final = 1_800.0
_ENDS_MAX: Final = 10
_LOOK_S: Final = 0.2
# Between a commit of the table and Spark's own there is a tenth of a second.
_LOOK_AT_COMMITS_S: Final = 0.002
_COMMIT_S_MAX: Final = 20.0
# The name alone is in the path of every Java as well.
_WORKER: Final = "pyspark.daemon"
_BATCH: Final = re.compile(r'"batch":(\d+)')
SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.task.maxFailures": "8",
}


@dataclass(frozen=True)
class Plan:
    """How long and how many entries a second are published, and what is killed: `kinds` in turn, then any of
    them; where `once`, publishing ends after each was killed once. `local`: tasks run in the driver's Java,
    where Spark does not start a second attempt of a slow one. `upkeep_pause_s`: between two rounds of upkeep.
    """

    seconds: float
    rate: int
    seed: int = 1
    pause_s: tuple[float, float] = (5.0, 25.0)
    kinds: tuple[str, ...] = KINDS
    batch_entries: int = 5_000
    once: bool = False
    local: bool = False
    upkeep_pause_s: float = 2.0


@dataclass
class Result:
    """What was found; `lost` and `twice` count entries, `mirror_disordered` streams."""

    published: int = 0
    archived: int = 0
    mirrored: int = 0
    lost: int = 0
    twice: int = 0
    mirror_lost: int = 0
    mirror_twice: int = 0
    mirror_disordered: int = 0
    trimmed: int = 0
    commits: int = 0
    compactions: int = 0
    driver_starts: int = 0
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    upkeep: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """Whether everything is there, each once."""
        mirror = self.mirror_lost or self.mirror_twice or self.mirror_disordered
        return not (self.lost or self.twice or mirror) and self.archived == self.published > 0

    def table(self) -> str:
        """For people."""
        rows = {name: value for name, value in vars(self).items() if name != "complaints"}
        rows |= {
            name: " ".join(f"{one} {count}" for one, count in sorted(rows[name].items()))
            for name in ("kills", "upkeep")
        }
        rows["seconds"] = round(self.seconds)
        return "\n".join([*(f"{name:14} {value}" for name, value in rows.items()), *self.complaints])


class Publisher(threading.Thread):
    """Publishes a web log, and keeps a digest of each entry that the gateway has acknowledged."""

    def __init__(self, server: Server, plan: Plan) -> None:
        super().__init__(daemon=True)
        self._access = GatewayAccess("g0", server.url, retry_timeout_ms=120_000)
        self._plan = plan
        self.log = Weblog(int(plan.seconds * plan.rate), seed=plan.seed)
        self.published: dict[str, list[int]] = {stream: [] for stream in self.log.streams()}
        self.failed: BaseException | None = None
        self._ended = threading.Event()

    def end(self) -> None:
        """Publish no more. Raises what made it fail."""
        self._ended.set()
        self.join()
        if self.failed is not None:
            raise self.failed

    def run(self) -> None:
        try:
            self._publish()
        except BaseException as error:  # noqa: BLE001 - raised where the thread is joined
            self.failed = error

    def _publish(self) -> None:
        begun_s, sent = time.monotonic(), 0
        with GatewayClient(self._access) as gateway:
            for number, chunk in enumerate(self.log.chunks(_CHUNK)):
                publish(gateway, chunk, number)
                for stream, entries in chunk.items():
                    self.published[stream] += [digest(stream, one.id, one.pairs) for one in entries]
                    sent += len(entries)
                if self._ended.wait(max(0.0, begun_s + sent / self._plan.rate - time.monotonic())):
                    return


def digest(stream: str, entry_id: str, pairs: Sequence[tuple[str, bytes]]) -> int:
    """64 bits of all that an entry is."""
    return int.from_bytes(blake2b(repr((stream, entry_id, list(pairs))).encode(), digest_size=8).digest())


class Driver:
    """Runs the driver, and starts it again whenever it ends."""

    def __init__(self, server: Server, folder: Path, conf: dict[str, str], plan: Plan) -> None:
        self.starts = 0
        self.complaints: list[str] = []
        self._folder = folder
        self._asked = {
            "url": server.url,
            "folder": str(folder),
            "conf": conf,
            "batch_entries": plan.batch_entries,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its Python, while it runs."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def keep(self) -> None:
        """Start it, unless it runs."""
        if self.pid is None:
            if self._process is not None and self._process.returncode == 3:
                self.complaints.append(f"entries were gone before they were read: {self._said()}")
            self._start(500)

    def finish(self) -> None:
        """End it, and run it until there is nothing left: again where it fails, as a supervisor does.

        Spark gives the source's Python ten seconds to start, not always enough on a busy machine.
        """
        self.kill()
        due_s = time.monotonic() + _END_S_MAX
        for _attempt in range(_ENDS_MAX):
            self._start(None)
            assert self._process is not None, "it was started"
            with suppress(subprocess.TimeoutExpired):
                if self._process.wait(max(0.0, due_s - time.monotonic())) == 0:
                    return
            self.kill()
        self.complaints.append(f"it does not end: {self._said()}")

    def kill(self) -> None:
        """Kill -9 the driver and its Java."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to the driver and its Java."""
        assert self._process is not None, "it was started"
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def ends_batch(self, commit: Path) -> bool:
        """Whether Spark knows that the batch of a commit of the table has ended; True for other commits, and
        for the first batch, of which a query that begins again takes the end from the table.
        """
        with suppress(FileNotFoundError):
            batch = _BATCH.search(commit.read_text())
            return (
                batch is None
                or batch[1] == "0"
                or (self._folder / "archive-checkpoint/commits" / batch[1]).exists()
            )
        return True

    def _start(self, every_ms: int | None) -> None:
        self.starts += 1
        words = json.dumps({**self._asked, "every_ms": every_ms})
        with (self._folder / f"driver-{self.starts}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.prove_driver", words],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _said(self) -> str:
        return (self._folder / f"driver-{self.starts}.log").read_text()[-2_000:]


class Upkeep(threading.Thread):
    """Compacts, trims and vacuums the archive in turn, each in a process of its own."""

    def __init__(self, server: Server, folder: Path, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._pause_s = pause_s
        root = str(folder / "archive")
        self._log = folder / "upkeep.log"
        self._commands = (
            ("compact", root),
            ("trim", root, "--gateway", server.url, "--yes"),
            ("vacuum", root),
            ("verify", root, "--gateway", server.url),
        )
        self._root = Path(root)
        self._ended = threading.Event()
        self._killed = False
        self._process: subprocess.Popen[bytes] | None = None
        self.done: Counter[str] = Counter()
        self.complaints: list[str] = []

    def run(self) -> None:
        while not self._ended.wait(self._pause_s):
            if (self._root / "_delta_log").exists():
                for command in self._commands:
                    if not self._ended.is_set():
                        self.do(*command)

    def do(self, *command: str) -> None:
        """Run a command to its end."""
        with self._log.open("ab") as log:
            self._killed = False
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pyspark_weir", *command], stdout=log, stderr=subprocess.STDOUT
            )
            code = self._process.wait()
        self._process = None
        if code == 0:
            self.done[command[0]] += 1
        elif not self._killed:
            # A gateway that was just killed; what is really wrong is seen in the end.
            self.done[f"{command[0]} failed"] += 1

    def kill(self) -> bool:
        """Kill -9 what runs; whether something did."""
        process = self._process
        if process is None:
            return False
        self._killed = True
        process.kill()
        return True

    def end(self) -> None:
        """Let the last command end; then do each once more."""
        self._ended.set()
        self.join()
        for command in self._commands:
            self.do(*command)


class Killer:
    """Kills what there is."""

    def __init__(
        self, server: Server, cluster: Cluster | None, driver: Driver, upkeep: Upkeep, log: Path
    ) -> None:
        self._log = log
        self._server = server
        self._cluster = cluster
        self._driver = driver
        self._upkeep = upkeep
        self.dice = random.Random()
        self.kills: Counter[str] = Counter()

    def kill(self, kind: str) -> bool:
        """Kill one of a kind; whether there was one."""
        kills: dict[str, Callable[[], bool]] = {
            "driver": self._kill_driver,
            "commit": self._kill_in_commit,
            "java": lambda: self._signal(_below(self._driver.pid), "java", signal.SIGKILL),
            "executor": lambda: self._signal(self._workers(), "CoarseGrainedExecutorBackend", signal.SIGKILL),
            "worker": lambda: self._signal(self._workers(), _WORKER, signal.SIGKILL),
            "stall": self._stall,
            "gateway": self._kill_gateway,
            "upkeep": self._upkeep.kill,
        }
        done = kills[kind]()
        self.kills[kind] += done
        return done

    def _kill_driver(self) -> bool:
        running = self._driver.pid is not None
        self._driver.kill()
        return running

    def _kill_in_commit(self) -> bool:
        known, due_s = set(self._log.glob("*.json")), time.monotonic() + _COMMIT_S_MAX
        while self._driver.pid is not None and time.monotonic() < due_s:
            time.sleep(_LOOK_AT_COMMITS_S)
            added = set(self._log.glob("*.json")) - known
            if not all(map(self._driver.ends_batch, added)):
                self._driver.signal(signal.SIGSTOP)
                if not all(map(self._driver.ends_batch, added)):
                    self._driver.kill()
                    return True
                self._driver.signal(signal.SIGCONT)
            known |= added
        return False

    def _kill_gateway(self) -> bool:
        self._server.restart()
        return True

    def _stall(self) -> bool:
        found = [pid for pid in self._workers() if _WORKER in _command(pid)]
        if not found:
            return False
        pid = self.dice.choice(found)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(_STALL_S, _go_on, [pid]).start()
        return True

    def _workers(self) -> list[int]:
        return _below(self._driver.pid) if self._cluster is None else _below(*self._cluster.pids)

    def _signal(self, pids: list[int], program: str, number: int) -> bool:
        found = [pid for pid in pids if program in _command(pid)]
        if not found:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.dice.choice(found), number)
        return True


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _below(*roots: int | None) -> list[int]:
    """All processes below these."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {root for root in roots if root is not None}
    while grown := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= grown
    return sorted(found - set(roots))


def prove(plan: Plan, folder: Path, say: Callable[[str], None] = lambda _line: None) -> Result:
    """Run it all; what was found in the end."""
    begun_s = time.monotonic()
    with ExitStack() as stack:
        server = stack.enter_context(Server(folder / "weir-data", "--fsync", "always"))
        _make_groups(server)
        cluster = None if plan.local else stack.enter_context(Cluster(folder / "cluster"))
        conf = {"spark.driver.extraJavaOptions": JVM} if cluster is None else cluster.conf()
        driver = Driver(server, folder, {**conf, **SPECULATION}, plan)
        stack.callback(driver.kill)
        publisher, upkeep = Publisher(server, plan), Upkeep(server, folder, plan.upkeep_pause_s)
        killer = Killer(server, cluster, driver, upkeep, folder / "archive/_delta_log")
        killer.dice.seed(plan.seed)
        publisher.start()
        upkeep.start()
        _kill_all(plan, publisher, driver, killer, folder, say)
        publisher.end()
        say("publishing has ended")
        driver.finish()
        upkeep.end()
        found = Result(driver_starts=driver.starts, kills=killer.kills, upkeep=upkeep.done)
        found.complaints = driver.complaints + upkeep.complaints
        compare(found, publisher.published, folder / "archive", server)
    found.seconds = time.monotonic() - begun_s
    return found


def _kill_all(
    plan: Plan, publisher: Publisher, driver: Driver, killer: Killer, folder: Path, say: Callable[[str], None]
) -> None:
    """While there is a publisher: the kinds of the plan in turn, then any of them, unless each is enough."""
    kinds = chain(plan.kinds, () if plan.once else _any_of(plan.kinds, killer.dice))
    driver.keep()
    while publisher.is_alive() and not (folder / "archive" / "_delta_log").exists():
        driver.keep()
        time.sleep(_LOOK_S)
    for kind in kinds:
        due_s = time.monotonic() + killer.dice.uniform(*plan.pause_s)
        done = False
        while publisher.is_alive() and not done:
            driver.keep()
            time.sleep(_LOOK_S)
            if time.monotonic() >= due_s:
                # What is not there at the moment is waited for.
                done = killer.kill(kind)
        if not done:
            return
        say(f"killed: {kind}")


def _any_of(kinds: Sequence[str], dice: random.Random) -> Iterator[str]:
    while True:
        yield dice.choice(kinds)


def _make_groups(server: Server) -> None:
    """The mirror's group on each stream that it reads, from the beginning."""
    with GatewayClient(GatewayAccess("g0", server.url)) as gateway:
        for stream in Weblog().streams():
            if re.fullmatch(MIRRORED, stream):
                gateway.post(f"{of_stream(stream)}/groups", {"name": GROUP, "start": "0", "mkstream": True})


def compare(found: Result, published: dict[str, list[int]], root: Path, server: Server) -> None:
    """Everything that was published with the archive and the mirror, read by other means than ours."""
    table = DeltaTable(str(root))
    archived = [one for path in table.file_uris() for one in _digests(path)]
    found.published, found.archived = sum(map(len, published.values())), len(archived)
    found.lost, found.twice = _differ([one for own in published.values() for one in own], archived)
    history = table.history()
    found.commits = len(history)
    found.compactions = sum(one.get("weir") == {} for one in history)
    with GatewayClient(GatewayAccess("g0", server.url)) as gateway:
        for stream, entries in published.items():
            seen = gateway.stream(stream)
            found.trimmed += len(entries) - (0 if seen is None else seen["length"])
            if re.fullmatch(MIRRORED, stream):
                copied = list(_copied(gateway, stream))
                lost, twice = _differ(entries, copied)
                found.mirrored += len(copied)
                found.mirror_lost += lost
                found.mirror_twice += twice
                found.mirror_disordered += lost == twice == 0 and entries != copied


def _differ(published: list[int], found: list[int]) -> tuple[int, int]:
    """How many are missing, and how many are there that should not be."""
    wanted, there = Counter(published), Counter(found)
    return (wanted - there).total(), (there - wanted).total()


def _digests(path: str) -> list[int]:
    rows = pq.read_table(path.removeprefix("file://"), columns=["stream", "id", "fields"]).to_pylist()
    return [
        digest(row["stream"], row["id"], [(one["name"], one["value"]) for one in row["fields"]])
        for row in rows
    ]


def _copied(gateway: GatewayClient, stream: str) -> Iterator[int]:
    """The entries of a stream's copy, in its order, as they were in the stream."""
    after, more = "0-0", True
    while more:
        asked = {"after": after, "count": 10_000}
        page = gateway.get(f"{of_stream(COPY.replace('{stream}', stream))}/entries", asked)
        for entry in page["entries"]:
            *pairs, (name, entry_id) = pairs_of(entry)
            assert name == ORIG, "the last field is the mirror's"
            yield digest(stream, entry_id.decode(), pairs)
        after, more = page["next"] or after, page["more"]


def main() -> None:
    """Run it, and print what was found; exit code 1 where it is not exact."""
    given = argparse.ArgumentParser(description="Prove that entries are archived and mirrored once.")
    given.add_argument("--minutes", type=float, default=5.0)
    given.add_argument("--rate", type=int, default=1_000, help="entries a second")
    given.add_argument("--seed", type=int, default=1)
    given.add_argument("--folder", type=Path, help="keep everything there; default: a folder that is deleted")
    asked = given.parse_args()
    with ExitStack() as stack:
        folder = asked.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        begun_s = time.monotonic()

        def say(line: str) -> None:
            sys.stdout.write(f"{time.monotonic() - begun_s:7.1f} s  {line}\n")
            sys.stdout.flush()

        found = prove(Plan(asked.minutes * 60, asked.rate, asked.seed), folder, say)
    sys.stdout.write(f"{found.table()}\n")
    sys.exit(not found.is_exact)


if __name__ == "__main__":
    main()
