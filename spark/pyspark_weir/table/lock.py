"""One maintenance of an archive at a time: what deletes files or commits holds the archive's lock.

Knows: flock on this machine, and leases elsewhere. Must never know: what is done under the lock.

On this machine the kernel frees the lock of a process that dies. Elsewhere the table's own log holds a lease:
a commit is the one conditional put that every place has, so taking the lease is a commit that must be the
very next version. It ends with another commit, or when its time is over. Batches need no lock: their commits
exclude one another, and vacuum deletes no file that a batch may still commit.
"""

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pyspark_weir import clock
from pyspark_weir.table.errors import ArchiveLockedError
from pyspark_weir.table.ranges import FOLDER, Lease
from pyspark_weir.table.table import ArchiveTable

# A holder that died blocks others for as long; the clocks of machines may differ by a part of it.
LEASE_MS: Final = 600_000
_FILE: Final = f"{FOLDER}/lock"


class Held:
    """The lock while it is held. Call `keep` between steps that take less than half of LEASE_MS each."""

    def __init__(self, table: ArchiveTable, now_ms: Callable[[], int]) -> None:
        self._table = table
        self._now_ms = now_ms
        self._lease = Lease(uuid.uuid4().hex, 0)

    def keep(self) -> None:
        """Make sure that the lock is still held. Raises ArchiveLockedError where its time was over and
        another process has taken it: stop, and change nothing more.
        """
        if self._table.root.is_local:
            return
        now_ms = self._now_ms()
        if self._lease.until_ms - now_ms < LEASE_MS // 2:
            renewed = self._lease.until_ms > 0
            wanted = Lease(self._lease.holder, now_ms + LEASE_MS)
            self._table.lease(wanted, now_ms, renewed=renewed)
            self._lease = wanted

    def release(self) -> None:
        """Let others take it at once."""
        if not self._table.root.is_local:
            with suppress(ArchiveLockedError):
                self._table.lease(Lease(self._lease.holder, 0), self._now_ms(), renewed=True)


@contextmanager
def writer_lock(table: ArchiveTable, now_ms: Callable[[], int] = clock.wall_ms) -> Iterator[Held]:
    """Hold the archive's lock. Raises ArchiveLockedError where another process holds it.

    `table` is used for the lease, and goes on to later versions by it. `now_ms` is the wall clock.
    """
    held = Held(table, now_ms)
    if table.root.is_local:
        with _flock(Path(table.root.path(_FILE))):
            yield held
        return
    held.keep()
    try:
        yield held
    finally:
        held.release()


@contextmanager
def _flock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveLockedError(f"another process of this machine holds {path}") from None
        yield
    finally:
        os.close(descriptor)
