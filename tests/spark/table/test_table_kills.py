"""Writers that are killed in the midst of it, and others that go on: each entry is in the table once.

Knows: the table's API, processes. Must never know: Spark.
"""

import random
import signal
import subprocess
import sys
import time

import pytest

from pyspark_weir.table.ranges import gaps
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable
from tests.spark.table.archiving import batch, stored_ids
from tests.spark.table.object_store import ObjectStore

_SECONDS_MAX = 300


def after(number: int) -> str:
    """Where batch `number` begins."""
    return f"1-{2 * number}" if number else "0-0"


def write(root: ArchiveRoot, batches: int) -> None:
    """Commit what is missing of the batches, each of two entries, as a query does that starts again."""
    table = ArchiveTable.create(root)
    done = table.positions().get(("g0", "orders"))
    # From the last batch, which Spark would repeat if it was killed before its own commit.
    first = max(0, done.upto.seq // 2 - 1) if done else 0
    for number in range(first, batches):
        table.commit(batch(root, number, after(number), [f"1-{2 * number + 1}", f"1-{2 * number + 2}"]))


_PROGRAM = """
import sys
from pyspark_weir.table.root import ArchiveRoot
from tests.spark.table.test_table_kills import write
url, batches, *options = sys.argv[1:]
write(ArchiveRoot.of(url, dict(one.split("=", 1) for one in options)), int(batches))
"""


def _writer(root: ArchiveRoot, batches: int) -> "subprocess.Popen[bytes]":
    options = [f"{name}={value}" for name, value in root.options.items()]
    return subprocess.Popen([sys.executable, "-c", _PROGRAM, root.url, str(batches), *options])


def _write_through_kills(root: ArchiveRoot, batches: int, kills: int) -> None:
    """Two writers at once, of which one is killed at a random moment after a commit more, again and again."""
    chance = random.Random(7)
    ArchiveTable.create(root)
    writers = [_writer(root, batches), _writer(root, batches)]
    end = time.monotonic() + _SECONDS_MAX
    try:
        for number in range(kills):
            seen = ArchiveTable.open(root).version
            while ArchiveTable.open(root).version == seen and any(one.poll() is None for one in writers):
                assert time.monotonic() < end
                time.sleep(0.02)
            # Within the next commits, most of which take less.
            time.sleep(chance.random() * 0.1)
            victim = writers[number % 2]
            victim.kill()
            victim.wait()
            writers[number % 2] = _writer(root, batches)
        for one in writers:
            assert one.wait(_SECONDS_MAX) == 0
    finally:
        for one in writers:
            one.kill()
            one.wait()


def _check(root: ArchiveRoot, batches: int) -> None:
    table = ArchiveTable.open(root)
    assert sorted(stored_ids(table), key=lambda text: int(text[2:])) == [
        f"1-{number + 1}" for number in range(2 * batches)
    ]
    [whole] = table.ranges()
    assert (whole.rows, str(whole.upto)) == (2 * batches, f"1-{2 * batches}")
    assert not gaps(table.ranges())


def test_writers_are_killed_on_this_machine(root: ArchiveRoot) -> None:
    _write_through_kills(root, batches=30, kills=4)
    _check(root, 30)


def test_writers_are_killed_beside_an_object_store(store: ObjectStore) -> None:
    root = store.root("kills")
    _write_through_kills(root, batches=8, kills=2)
    _check(root, 8)


@pytest.mark.parametrize("call", ["write_cache", "sync"])
def test_a_commit_counts_although_its_writer_dies_right_after(root: ArchiveRoot, call: str) -> None:
    """Between Delta's commit and the cache of ranges, and before the disk is sure to hold it."""
    program = f"""
import os, sys
from pyspark_weir.table import ranges
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable
from tests.spark.table.test_table_kills import after
from tests.spark.table.archiving import batch
root = ArchiveRoot.of(sys.argv[1])
table = ArchiveTable.create(root)
for number in range(9):
    table.commit(batch(root, number, after(number), [f"1-{{2 * number + 1}}", f"1-{{2 * number + 2}}"]))
last = batch(root, 9, after(9), ["1-19", "1-20"])
die = lambda *_: os.kill(os.getpid(), {int(signal.SIGKILL)})
if {call!r} == "sync":
    ArchiveRoot.sync = die
else:
    ranges.write_cache = die
table.commit(last)
"""
    assert (
        subprocess.run([sys.executable, "-c", program, root.url], check=False).returncode == -signal.SIGKILL
    )
    table = ArchiveTable.open(root)
    assert str(table.positions()["g0", "orders"].upto) == "1-20"
    assert table.commit(batch(root, 9, after(9), ["1-19", "1-20"])).repeated
    assert len(stored_ids(table)) == 20
