"""`python -m tests.proof.soak [MINUTES [ROW …]]`: the long proof, and its figures beside those of Redis.

Knows: each campaign, its share of the time, and what a real redis-server 7.0.15 did on a 2-core Debian 12.
Exit code 0 if nothing was lost that was promised, nothing was silently different, and every bug was found.
Must never know: how a campaign looks for what it finds.
"""

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from engine import Fsync
from tests.crash.harness import REWRITING
from tests.crash.test_kill import kill_under_load
from tests.proof import prove
from tests.proof.campaigns import power_cuts
from tests.proof.damage import Tally, cuts, directory, flips, verdict
from tests.proof.failing import failing_disk
from tests.proof.machine import no_loop_disk
from tests.proof.old_end import kill_while_storing
from tests.proof.run_damages import RunDamages, damage_runs
from tests.proof.test_damage import check_flips
from tests.proof.test_real_power_cuts import cut_under_load
from tests.server import Server

MODES: Final[tuple[Fsync, ...]] = ("always", "everysec", "no")
MINUTES_DEFAULT: Final = 30.0
# Seeds that the gate does not use.
FIRST_SEED: Final = 1_000
KILLS_PER_ROUND: Final = 10
CUTS_PER_ROUND: Final = 4
DAMAGES_PER_ROUND: Final = 1_000


class SoakCampaign(NamedTuple):
    """A campaign: its name, its share of the time, what Redis did, and the work; it gives the figures."""

    name: str
    share: float
    redis: str
    work: Callable[[float], str]


def _until(deadline: float) -> Iterator[int]:
    """Numbers until the time is over; one at least."""
    for number in itertools.count(FIRST_SEED):
        yield number
        if time.monotonic() > deadline:
            return


def explored(fsync: Fsync, slow_s: float = 0.0, *, stores: bool = False) -> Callable[[float], str]:
    """Every legal disk, before every operation of history after history."""

    def work(deadline: float) -> str:
        lives = disks = recovered = stored = moved = 0
        worst_s = 0.0
        for seed in _until(deadline):
            found = power_cuts(fsync, [seed], steps=90, slow_s=slow_s, stores=stores)
            stored, moved = stored + found.stored, moved + found.moved
            lives, disks, recovered = lives + 1, disks + found.disks, recovered + found.recovered
            worst_s = max(worst_s, found.worst_lost_s)
        runs = f", {stored} runs, {moved} of them moved" if stores else ""
        lost = f", at most {worst_s:.1f} s of answers at risk" if fsync != "always" else ""
        different = f"{disks} disks, {recovered} of them different"
        return f"{lives} histories, {different}{runs}; 0 promises broken{lost}"

    return work


def failed(*, stores: bool) -> Callable[[float], str]:
    """Every operation of history after history fails, in every way."""

    def work(deadline: float) -> str:
        lives = failures = disks = 0
        for seed in _until(deadline):
            for fsync in MODES:
                some, more = failing_disk([seed], fsync, stores=stores)
                lives, failures, disks = lives + 1, failures + some, disks + more
        return f"{lives} histories, {failures} failures, {disks} disks; 0 promises broken"

    return work


def flipped(deadline: float) -> str:
    """Every bit of a whole directory."""
    tally, count, directories = Tally(), 0, 0
    for seed in _until(deadline):
        whole = directory(seed)
        directories += 1
        for _, _, files in flips(whole):
            tally.add(verdict(whole, files))
            count += 1
        assert check_flips(whole, 101) > 0
    assert tally.same == 0, "a flipped bit is seen"
    found = f"{tally.refused} refused, {tally.prefix} torn tails cut, 0 silently different"
    return f"{count} bits of {directories} directories: {found}"


def cut_files(deadline: float) -> str:
    """Every file of a directory, cut at every byte."""
    tally = Tally()
    for seed in _until(deadline):
        whole = directory(seed)
        for _, files in cuts(whole):
            tally.add(verdict(whole, files))
    return f"{tally.cases} cuts: {tally.prefix} exact prefixes, {tally.refused} refused, 0 different"


def killed(fsync: str, *options: str) -> Callable[[float], str]:
    """Killed under load, time after time."""

    def work(deadline: float) -> str:
        kills = stored = acknowledged = 0
        for _ in _until(deadline):
            with (
                tempfile.TemporaryDirectory() as folder,
                Server(Path(folder) / "data", "--fsync", fsync, *options) as server,
            ):
                entries, deliveries = kill_under_load(server, KILLS_PER_ROUND)
            kills, stored = kills + KILLS_PER_ROUND, stored + entries
            acknowledged += deliveries
        return f"{kills} kills, {stored} entries and {acknowledged} deliveries acknowledged, 0 lost"

    return work


def killed_storing(deadline: float) -> str:
    """Killed while entries go to files, are read from them, deleted in them and backed up."""
    kills = stored = backups = most = 0
    for number in _until(deadline):
        with tempfile.TemporaryDirectory() as folder:
            found = kill_while_storing(Path(folder), MODES[number % 2], KILLS_PER_ROUND)
        kills, stored, backups = kills + found.kills, stored + found.stored, backups + found.backups
        most = max(most, found.in_files_bytes)
    return (
        f"{kills} kills, {stored} entries stored, {most} bytes in files, {backups} backups restored, 0 lost"
    )


def damaged_runs(deadline: float) -> str:
    """Files of runs with any damage."""
    tally = RunDamages()
    for seed in _until(deadline):
        tally = asyncio.run(damage_runs(seed, DAMAGES_PER_ROUND, tally))
    return f"{tally.damages} damages, {tally.refused} ranges refused, {tally.sound} sound, 0 served wrong"


def powerless(fsync: str, *options: str, stores: bool = False) -> Callable[[float], str]:
    """Real power cuts, where the machine allows them."""

    def work(deadline: float) -> str:
        reason = no_loop_disk()
        if reason is not None:
            return f"SKIPPED, nothing was proved: {reason}"
        times = stored = lost = worst = restored = 0
        for _ in _until(deadline):
            with tempfile.TemporaryDirectory() as folder:
                found = cut_under_load(Path(folder), fsync, CUTS_PER_ROUND, *options, stores=stores)
            restored += found.backups
            times, stored, lost = times + found.cuts, stored + found.stored, lost + found.lost
            worst = max(worst, found.worst)
        assert not lost or fsync != "always"
        backups = f", {restored} backups restored" if stores else ""
        return (
            f"{times} cuts, {lost} of {stored} lost, worst {worst}, all within what the mode allows{backups}"
        )

    return work


ROWS: Final = (
    SoakCampaign("disks explored, always", 0.1, "-", explored("always")),
    SoakCampaign("disks explored, everysec", 0.1, "-", explored("everysec")),
    SoakCampaign("disks explored, no", 0.06, "-", explored("no")),
    SoakCampaign("disks explored, everysec, slow disk", 0.06, "-", explored("everysec", 6.0)),
    SoakCampaign("disks explored, entries in files", 0.08, "-", explored("everysec", stores=True)),
    SoakCampaign(
        "operations failed", 0.06, "a failed sync ends it, or MISCONF for ever", failed(stores=False)
    ),
    SoakCampaign("operations failed, entries in files", 0.06, "-", failed(stores=True)),
    SoakCampaign("bits flipped", 0.06, "1,500: 280 silently different, 13 shorter", flipped),
    SoakCampaign("files of runs damaged", 0.06, "-", damaged_runs),
    SoakCampaign("files cut at every byte", 0.02, "895: all start, 10 exact prefixes", cut_files),
    SoakCampaign("kill -9, always", 0.08, "60 kills, 0 of 19,750 lost", killed("always")),
    SoakCampaign("kill -9, everysec", 0.08, "60 kills, 708 of 73,259 lost", killed("everysec")),
    SoakCampaign("kill -9, no", 0.06, "-", killed("no")),
    SoakCampaign("kill -9 while rewriting", 0.08, "-", killed("everysec", *REWRITING)),
    SoakCampaign("kill -9 while storing", 0.06, "-", killed_storing),
    SoakCampaign("power cuts while storing", 0.06, "-", powerless("always", stores=True)),
    SoakCampaign("power cuts, always", 0.06, "30 cuts, 0 of 13,315 lost", powerless("always")),
    SoakCampaign("power cuts, always, rewriting", 0.06, "0 of 26,642 lost", powerless("always", *REWRITING)),
    SoakCampaign("power cuts, everysec", 0.06, "20 cuts, 113,200 of 304,091 lost", powerless("everysec")),
    SoakCampaign("power cuts, no", 0.02, "10 cuts, all 127,415 lost", powerless("no")),
)


def main(minutes: float, names: Sequence[str] = ()) -> int:
    """Run all of it, or the rows of these names, whose shares are of the same time; print row by row."""
    tell = sys.stdout.write
    broken = 0
    tell(f"{'campaign':<37} {'Redis 7.0.15':<44} Weir\n")
    for row in [row for row in ROWS if not names or row.name in names]:
        try:
            figures = row.work(time.monotonic() + row.share * minutes * 60)
        except AssertionError as error:
            broken += 1
            figures = f"BROKEN: {' '.join(str(error).split())[:300]}"
        tell(f"{row.name:<37} {row.redis:<44} {figures}\n")
        sys.stdout.flush()
    unproved = 0 if names else prove.main([])
    tell("nothing was lost that was promised\n" if not broken else f"{broken} campaigns found something\n")
    return 1 if broken or unproved else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES_DEFAULT, sys.argv[2:]))
