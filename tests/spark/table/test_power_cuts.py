"""What a power cut leaves of an archive: whole batches, and perhaps a last commit on which nothing relies.

Knows: the table's files, an ext4 that loses what was not synced. Must never know: Spark.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveDamagedError
from pyspark_weir.table import deletions, log
from pyspark_weir.table.cleaning import open_repaired, repair, vacuum
from pyspark_weir.table.files import prove
from pyspark_weir.table.ranges import gaps
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable
from tests.proof.machine import CutDisk, needs, no_loop_disk, no_strace
from tests.proof.tracing import calls, recording
from tests.spark.table.archiving import KEY, batch, stored_ids

_CUTS = 4
_SECONDS_MAX = 120

_WRITER = """
import sys
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.cleaning import repair
from tests.spark.table.test_power_cuts import write
root = ArchiveRoot.of(sys.argv[1])
repair(root)
for number in write(root, int(sys.argv[2])):
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


def write(root: ArchiveRoot, batches: int) -> Iterator[int]:
    """Commit the batches that are missing, each of two entries; the number of each that is surely there."""
    table = ArchiveTable.create(root)
    done = table.positions().get((KEY.gateway, KEY.stream))
    first = max(0, done.upto.seq // 2 - 1) if done else 0
    for number in range(first, batches):
        after = f"1-{2 * number}" if number else "0-0"
        table.commit(batch(root, number, after, [f"1-{2 * number + 1}", f"1-{2 * number + 2}"]))
        if number % 7 == 6:
            table.checkpoint()
        yield number


def check(root: ArchiveRoot, batches: int) -> None:
    """The table holds the entries of these batches, each once, in files that are whole."""
    table = ArchiveTable.open(root)
    assert sorted(int(one[2:]) for one in stored_ids(table)) == list(range(1, 2 * batches + 1))
    assert not gaps(table.ranges())
    assert sum(one.rows for one in table.ranges()) == 2 * batches
    for file in table.files():
        prove(root, file)


@needs(no_loop_disk)
def test_batches_that_were_committed_stay_through_power_cuts(tmp_path: Path) -> None:
    """The power is cut at random moments, again and again; what was reported as committed stays."""
    chance = random.Random(13)
    acked = -1
    with CutDisk(tmp_path) as disk:
        root = ArchiveRoot.of(disk.place / "deep" / "archive")
        for _cut in range(_CUTS):
            goal = acked + chance.randrange(4, 12)
            command = [sys.executable, "-c", _WRITER, root.url, "100000"]
            with subprocess.Popen(command, stdout=PIPE, stderr=DEVNULL, text=True) as writer:
                assert writer.stdout is not None
                while acked < goal:
                    acked = int(writer.stdout.readline())
                time.sleep(chance.random() * 0.1)
                disk.cut()
                writer.kill()
                acked = max([acked, *(int(line) for line in writer.stdout)])
            disk.unmount()
            disk.mount()
            table = open_repaired(root)
            held = sum(one.rows for one in table.ranges()) // 2
            assert held in (acked + 1, acked + 2), "at most one more was committed"
            check(root, held)
        assert list(write(root, acked + 3))[-1] == acked + 2
        check(root, acked + 3)


def cuts_of(stored: bytes) -> list[bytes]:
    """A commit as a power cut may leave it."""
    lines = stored.splitlines(keepends=True)
    return [
        b"",
        bytes(len(stored)),
        stored[:1],
        stored[: len(stored) // 2],
        stored[:-1],
        *(b"".join(lines[:count]) for count in range(1, len(lines))),
        b"".join(lines[:1]) + bytes(len(stored) - len(lines[0])),
    ]


def test_a_commit_that_was_cut_short_is_refused_and_removed(root: ArchiveRoot) -> None:
    """Wherever it was cut: it counts in no way, and the batch is committed again."""
    list(write(root, 3))
    last = Path(root.path(log.commit_name(3)))
    stored = last.read_bytes()
    assert len(cuts_of(stored)) >= 8, "at each line too"
    for cut in cuts_of(stored):
        last.write_bytes(cut)
        with pytest.raises(ArchiveDamagedError, match=r"00003\.json was cut short by a power cut: run"):
            ArchiveTable.open(root)
        assert repair(root) == [str(last)]
        check(root, 2)
        assert list(write(root, 3)) == [1, 2]
        check(root, 3)
    assert repair(root) == []


def test_the_commit_that_creates_a_table_may_be_cut_too(root: ArchiveRoot) -> None:
    ArchiveTable.create(root)
    first = Path(root.path(log.commit_name(0)))
    for cut in cuts_of(first.read_bytes()):
        ArchiveTable.create(root)
        first.write_bytes(cut)
        with pytest.raises(ArchiveDamagedError):
            ArchiveTable.open(root)
        assert repair(root) == [str(first)]
        list(write(root, 1))
        check(root, 1)
        shutil.rmtree(root.url)


def test_a_commit_that_others_stand_on_is_never_removed(root: ArchiveRoot) -> None:
    """It was synced before: what cut it short is no power cut."""
    list(write(root, 3))
    damaged = Path(root.path(log.commit_name(2)))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for act in (ArchiveTable.open, repair):
        with pytest.raises(ArchiveDamagedError, match=r"00002\.json is cut short, and .*00003\.json stands"):
            act(root)


def test_commits_of_vacuum_are_removed_together(root: ArchiveRoot) -> None:
    """Two of them, of which the first may be cut and the second whole; they change nothing."""
    table = ArchiveTable.create(root)
    list(write(root, 2))
    orphan = Path(root.path("date=1970-01-01/orphan.parquet"))
    orphan.touch()
    os.utime(orphan, (0, 0))
    assert vacuum(table) == ["date=1970-01-01/orphan.parquet"]
    begun = Path(root.path(log.commit_name(3)))
    begun.write_bytes(begun.read_bytes()[:9])
    with pytest.raises(ArchiveDamagedError):
        ArchiveTable.open(root)
    assert repair(root) == [root.path(log.commit_name(4)), str(begun)]
    check(root, 2)


@pytest.mark.parametrize("size", [0, 1_000])
def test_a_checkpoint_that_was_cut_short_is_removed(root: ArchiveRoot, size: int) -> None:
    """The log has all that it holds."""
    list(write(root, 7))
    checkpoint = Path(root.path(log.checkpoint_name(7)))
    checkpoint.write_bytes(checkpoint.read_bytes()[:size])
    with pytest.raises(ArchiveDamagedError, match="cut short"):
        ArchiveTable.open(root)
    assert repair(root) == [root.path(log.LAST_CHECKPOINT), str(checkpoint)]
    check(root, 7)


def test_recorded_deletions_survive_a_commit_that_was_cut(root: ArchiveRoot) -> None:
    """`trim` records them before it removes entries, so it records them again."""
    list(write(root, 3))
    for number in (1, 2):
        deletions.record(root, {KEY: ids.EntryId(1, number)}, {KEY: [ids.EntryId(1, number)]})
    own = root.inside(deletions.FOLDER)
    last = Path(own.path(log.commit_name(2)))
    for cut in cuts_of(last.read_bytes()):
        last.write_bytes(cut)
        assert repair(root) == [str(last)]
        assert deletions.known_upto(root) == {KEY: ids.EntryId(1, 1)}
        deletions.record(root, {KEY: ids.EntryId(1, 2)}, {KEY: [ids.EntryId(1, 2)]})
        assert deletions.read(root).num_rows == 2


def test_deletions_are_joined_into_one_file(root: ArchiveRoot) -> None:
    list(write(root, 1))
    for number in range(102):
        deletions.record(root, {}, {KEY: [ids.EntryId(1, number)]})
    assert deletions.read(root).num_rows == 102
    own = root.inside(deletions.FOLDER)
    added = (Path(own.path(log.commit_name(102)))).read_text()
    assert added.count('"remove"') == 101, "and the next file beside the one"


@needs(no_strace)
def test_the_order_of_syncs(tmp_path: Path) -> None:
    """The batch's files, then its commit, then the log's folder; then the writer's call returns."""
    root = ArchiveRoot.of(tmp_path / "archive")
    trace = tmp_path / "trace"
    program = [sys.executable, "-c", _WRITER, root.url, "3"]
    subprocess.run([*recording(trace), *program], check=True, timeout=_SECONDS_MAX, capture_output=True)
    seen = list(calls(trace))
    synced = [call for call in seen if call.name in ("fsync", "fdatasync") and call.result == 0]
    answers = [call for call in seen if call.name == "write" and call.arguments.startswith("1<")]
    assert len(answers) == 3
    before = 0
    for number, answer in enumerate(answers):
        mine = [call for call in synced if before < call.begun and call.ended < answer.begun]
        files = [call for call in mine if call.on(".parquet") and call.on("date=")]
        commits = [call for call in mine if call.on(f"{number + 1:020d}.json")]
        folders = [call for call in mine if call.on("/_delta_log>")]
        assert all((files, commits, folders))
        assert files[0].ended < commits[0].begun
        assert any(call.begun > commits[0].begun for call in folders)
        before = answer.ended
