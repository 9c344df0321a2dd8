"""Real power cuts: a gateway on an ext4 that loses, at once, everything that was not synced."""

import random
import signal
import time
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.proof.clients import check, forget_lost, load, open_journal
from tests.proof.machine import CutDisk, needs, no_loop_disk
from tests.proof.old_end import AT_THE_OLD_END, NODE_ENTRIES, StoringServer, check_backup
from tests.server import Server

CUTS: Final = 3
load_s_min, load_s_max = 0.3, 1.6
LOST_S_MAX: Final = 2.0
REWRITING: Final = ("--bound", "rewrite_bytes_min=65536", "--set", "rewrite_growth_percent=1")


class Losses(NamedTuple):
    """What all cuts together took: answers, of how many, and the most in one cut."""

    cuts: int
    stored: int
    lost: int
    worst: int
    backups: int  # that were restored


def cut_under_load(
    folder: Path, fsync: str, times: int, *options: str, idle_s: float = 0.0, stores: bool = False
) -> Losses:
    """Cut the power under load, or after a while without a publish, and start again; check everything
    that was promised.
    """
    stored = lost = worst = restored = 0
    cut_at = 0.0
    backups, more = folder / "backups", AT_THE_OLD_END if stores else ()
    backups.mkdir()
    with CutDisk(folder) as disk:
        data, options = disk.place / "data", ("--fsync", fsync, *options)
        server = StoringServer(data, backups, *options) if stores else Server(data, *options)
        server.log_to(folder / "server.log")
        server.start()
        try:
            journal = open_journal(server.port, NODE_ENTRIES if stores else 100)
            for _ in range(times):
                cut_at = 0.0
                with load(server.port, journal, *more):
                    time.sleep(random.uniform(load_s_min, load_s_max))
                    if not idle_s:
                        # Stopped first: an answer must not leave after the cut.
                        server.signal(signal.SIGSTOP)
                        cut_at = time.monotonic()
                        disk.cut()
                        server.kill()
                if idle_s:
                    time.sleep(idle_s)
                    server.signal(signal.SIGSTOP)
                    cut_at = time.monotonic()
                    disk.cut()
                    server.kill()
                disk.unmount()
                disk.mount()
                server.start()
                gone = check(server.port, journal, lost_since=_since(fsync, cut_at))
                forget_lost(server.port, journal)
                lost, worst = lost + gone, max(worst, gone)
            restored = check_backup(backups, journal)
            stored = len(journal.stored) + lost
        finally:
            if server.running:
                server.kill()
    return Losses(times, stored, lost, worst, restored)


def _since(fsync: str, cut_at: float) -> float | None:
    """From when on answers may be lost."""
    return {"always": None, "everysec": cut_at - LOST_S_MAX, "no": 0.0}[fsync]


@needs(no_loop_disk)
@pytest.mark.parametrize("options", [(), REWRITING])
def test_always_loses_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    """F3, F38: nothing that was answered, delivered or shown to a reader, rewriting or not."""
    losses = cut_under_load(tmp_path, "always", CUTS, *options)
    assert losses.lost == 0
    assert losses.stored > 30, "there was a load"


@needs(no_loop_disk)
def test_always_loses_nothing_while_storing(tmp_path: Path) -> None:
    """Nor is anything there twice or shown that was deleted, and a backup made meanwhile has all of it."""
    losses = cut_under_load(tmp_path, "always", CUTS, stores=True)
    assert losses.lost == 0
    assert losses.stored > 30, "there was a load"


@needs(no_loop_disk)
@pytest.mark.parametrize("idle_s", [0.0, 1.3])
def test_everysec_loses_two_seconds_at_most(tmp_path: Path, idle_s: float) -> None:
    """F4: the last ones, by the time of their answers, no ID comes again; after an idle second nothing."""
    losses = cut_under_load(tmp_path, "everysec", 2, idle_s=idle_s)
    assert losses.stored > 30, "there was a load"
    if idle_s:
        assert losses.lost == 0, "what was published before the idle second is safe"


@needs(no_loop_disk)
def test_no_promises_ids_alone(tmp_path: Path) -> None:
    """After any loss it starts, with whole commands, and no ID comes again."""
    assert cut_under_load(tmp_path, "no", 1).stored > 30
