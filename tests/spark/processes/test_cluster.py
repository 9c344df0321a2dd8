"""A standalone cluster, a master and two workers as processes: an archive and a sink, killed in the middle.

One session for all of it: its driver archives streams and mirrors some of them, which is the sink.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server import Server
from tests.spark.cluster import Cluster
from tests.spark.prove import SPECULATION, Driver, Killer, Plan, Publisher, Result, Upkeep, compare

pytestmark = pytest.mark.spark

# All is there before it begins; six batches, each of several tasks.
_PLAN = Plan(seconds=0.006, rate=1_000_000, batch_entries=1_000)
_KINDS = ("worker", "executor")
_LOOK_S = 0.05


def _kill_each(killer: Killer, log: Path, running: Future[Any]) -> None:
    """Once each, as soon as the archive has a batch; what is not there at the moment is waited for."""
    kinds = list(_KINDS)
    while kinds and not running.done():
        if len(list(log.glob("*.json"))) > 1 and killer.kill(kinds[0]):
            del kinds[0]
        time.sleep(_LOOK_S)


def test_an_archive_and_a_sink_on_a_cluster_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python worker and an executor are killed: both jobs go on, and each entry is there once."""
    # The driver's processes would be measured at the price of half their speed.
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    found, log = Result(), tmp_path / "archive" / "_delta_log"
    with (
        Server(tmp_path / "weir-data", "--fsync", "always") as server,
        Cluster(tmp_path / "cluster") as cluster,
        ThreadPoolExecutor(1) as thread,
    ):
        publisher = Publisher(server, _PLAN)
        publisher.run()
        driver = Driver(server, tmp_path, {**cluster.conf(), **SPECULATION}, _PLAN)
        killer = Killer(server, cluster, driver, Upkeep(server, tmp_path, _PLAN.upkeep_pause_s), log)
        running = thread.submit(driver.finish)
        _kill_each(killer, log, running)
        running.result()
        compare(found, publisher.published, tmp_path / "archive", server)
    assert driver.complaints == []
    assert found.is_exact, found.table()
    assert found.mirrored > 0
    # Otherwise nothing was tried.
    assert killer.kills == dict.fromkeys(_KINDS, 1)
