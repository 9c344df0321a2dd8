"""What only real files and system calls show: short writes, locks, interrupted calls."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from engine import StorageLockedError
from engine.log import Log
from engine.storage.file import FileStorage, write_all
from tests.proof.planting import ROOT


def test_a_system_that_writes_a_little_at_a_time() -> None:
    """F17: a write that takes less than it was given is continued until everything is there."""
    taken = bytearray()

    def seven(rest: memoryview) -> int:
        taken.extend(rest[:7])
        return min(7, len(rest))

    write_all(seven, b"all of it, in any number of writes")
    assert taken == b"all of it, in any number of writes"


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """F25: at once, with the number of the first, which goes on unharmed."""
    program = (
        "import sys; from pathlib import Path; from engine.log import Log;"
        " from engine.storage.file import FileStorage\n"
        "log = Log.open(FileStorage(Path(sys.argv[1]))); log.stage(b'\\x90'); log.write(log.take_staged())\n"
        "print('open', flush=True); sys.stdin.read(); log.close()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline() == b"open\n"
        second = FileStorage(tmp_path)
        with pytest.raises(StorageLockedError, match=f"process {first.pid}"):
            Log.open(second)
        first.stdin.close()
        assert first.wait(20) == 0, "the first goes on"
    log = Log.open(second)
    assert list(log.replay()) == [b"\x90"]
    log.close()
    second.close()


def test_a_storm_of_signals(tmp_path: Path) -> None:
    """F19: a signal each millisecond interrupts calls, without any effect."""
    command = [sys.executable, "-m", "tests.proof.storm", str(tmp_path / "data"), "200"]
    child = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    entries_there, signals = map(int, child.stdout.split())
    assert entries_there == 200
    assert signals > 10


def test_the_lock_is_the_kernels(tmp_path: Path) -> None:
    """It goes with the process, however that ends: no stale file keeps anybody out."""
    storage = FileStorage(tmp_path)
    storage.lock()
    with (tmp_path / "lock").open("rb") as rival, pytest.raises(BlockingIOError):
        fcntl.flock(rival, fcntl.LOCK_EX | fcntl.LOCK_NB)
    storage.close()
    assert (tmp_path / "lock").exists()
    again = FileStorage(tmp_path)
    again.lock()
    again.close()
