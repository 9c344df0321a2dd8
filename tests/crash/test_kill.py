"""kill -9 at any moment under load: what was acknowledged is there, whole commands only, no ID twice."""

import random
import time
from pathlib import Path
from typing import Final

import pytest

from tests.crash.harness import REWRITING
from tests.proof.clients import check, load, open_journal
from tests.server import Server

KILLS: Final = 4
load_s_min, load_s_max = 0.15, 0.5


def kill_under_load(server: Server, times: int) -> tuple[int, int]:
    """Kill and start again; how many entries were acknowledged, and how many deliveries."""
    journal = open_journal(server.port)
    for _ in range(times):
        with load(server.port, journal):
            time.sleep(random.uniform(load_s_min, load_s_max))
            server.kill()
        server.start()
        check(server.port, journal)
    return len(journal.stored), len(journal.acknowledged)


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_nothing_acknowledged_is_lost_to_kill_9(fsync: str, tmp_path: Path) -> None:
    """F1, F2: entries, deliveries and acknowledgements that were answered survive, in every fsync mode."""
    with Server(tmp_path / "data", "--fsync", fsync) as server:
        stored, acknowledged = kill_under_load(server, KILLS)
        assert server.stop() == 0, "a clean stop"
    assert stored > 50, "there was a load"
    assert acknowledged, "there was work"


def test_nothing_is_lost_when_killed_while_rewriting(tmp_path: Path) -> None:
    """F21, F22: the old files or the new ones, never a mixture."""
    with Server(tmp_path / "data", "--fsync", "everysec", *REWRITING) as server:
        stored, _ = kill_under_load(server, KILLS)
        assert list((tmp_path / "data").glob("base-*.weir")), "there was a rewrite"
        assert server.stop() == 0
    assert stored > 50


def test_a_crash_loop_at_the_start_loses_nothing(tmp_path: Path) -> None:
    """F36: killed before it is ready, time after time; the log neither grows nor shrinks."""
    with Server(tmp_path / "data", "--fsync", "always") as server:
        journal = open_journal(server.port)
        with load(server.port, journal):
            time.sleep(load_s_max)
            server.kill()
        for _ in range(2 * KILLS):
            server.launch()
            time.sleep(random.uniform(0.2, 0.7))
            server.kill()
        server.start()
        check(server.port, journal)
        sizes = {path.name: path.stat().st_size for path in (tmp_path / "data").iterdir()}
        server.restart()
        after = {path.name: path.stat().st_size for path in (tmp_path / "data").iterdir()}
        assert sizes.keys() == after.keys()


def test_a_stop_under_load_loses_nothing(tmp_path: Path) -> None:
    """F28: SIGTERM: what is under way is answered, the rest refused; exit code 0 within ten seconds."""
    with Server(tmp_path / "data", "--fsync", "everysec") as server:
        journal = open_journal(server.port)
        with load(server.port, journal):
            time.sleep(load_s_max)
            begun = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - begun < 10
        server.start()
        check(server.port, journal)
    assert journal.stored
