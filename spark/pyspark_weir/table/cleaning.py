"""Deletes what the table no longer needs: files that do not count, commits whose ranges are stored twice, and
what a power cut left at the end of a log, so that its batch can be committed again.

Knows: flock, how old a file must be, what makes sure that a commit's ranges are kept.
Must never know: entries, Spark, gateways.

On this machine one process at a time deletes files or commits: it holds the archive's lock, which the kernel
frees if it dies. A repair needs it, since writers may give the end of a log anew that it deletes. In a bucket
objects appear whole, and nothing is repaired. Two processes that clean at once there delete the same: what
nothing has named for seven days, and old commits whose ranges are in two files, which only later ones
replace. Batches need no lock: their commits exclude one another, and vacuum deletes no file that a batch may
still commit.

Vacuum looks at all files below the root, since no commit names those of a batch that failed. Files that a
slow writer has still to commit are safe: a commit is refused where they are over half that old.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyarrow import fs

from pyspark_weir.errors import ArchiveDamagedError, ArchiveLockedError, OptionError
from pyspark_weir.table import deletions, log, ranges
from pyspark_weir.table.ranges import FOLDER
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import VACUUM_AGE_MS_MIN, ArchiveTable

_FILE: Final = f"{FOLDER}/lock"


@contextmanager
def writer_lock(root: ArchiveRoot) -> Iterator[None]:
    """Hold the lock of an archive on this machine; a bucket has none. Raises ArchiveLockedError where another
    process holds it.
    """
    if not root.is_local:
        yield
        return
    path = Path(root.path(_FILE))
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


_HOUR_MS: Final = 3_600_000
_VERSION_DIGITS: Final = 20
# Deletion needs two caches of ranges that agree: the older one stays where the newer one is damaged later.
_CACHES: Final = 2


def vacuum(table: ArchiveTable, age_ms: int = VACUUM_AGE_MS_MIN, *, dry_run: bool = False) -> list[str]:
    """Delete files that no commit names or that were replaced, if that is over `age_ms` ago; their paths.

    Raises OptionError for less than seven days: readers of an older version, and writers, still need them;
    ArchiveLockedError where another process holds the archive's lock.
    """
    if age_ms < VACUUM_AGE_MS_MIN:
        raise OptionError("vacuum keeps what is younger than seven days: give 7d or more")
    with writer_lock(table.root):
        table.refresh()
        found = table.delta.vacuum(retention_hours=-(-age_ms // _HOUR_MS), dry_run=dry_run, full=True)
        table.refresh()
    return sorted(found)


def clean_log(table: ArchiveTable, now_ms: int, age_ms: int = VACUUM_AGE_MS_MIN) -> int:
    """Delete commits of the log that are over `age_ms` old, if their ranges are stored twice; how many.

    Raises ArchiveDamagedError where what is stored disagrees, ArchiveLockedError where another process holds
    the archive's lock; then nothing is deleted.
    """
    with writer_lock(table.root):
        return _clean_log(table, now_ms - age_ms)


def _clean_log(table: ArchiveTable, before_ms: int) -> int:
    table.refresh()
    table.checkpoint()
    stored = [version for version in ranges.cached_versions(table.root) if version <= table.version][:_CACHES]
    if len(stored) < _CACHES or not _agree(table, stored):
        return 0
    before = min(stored[-1] + 1, table.version)
    deleted = 0
    for name in sorted(_older_names(table, before_ms)):
        number = name[:_VERSION_DIGITS]
        if number.isdecimal() and int(number) < before:
            table.root.delete(f"{log.FOLDER}/{name}")
            deleted += 1
    table.reload()
    return deleted


def _agree(table: ArchiveTable, versions: list[int]) -> bool:
    """Whether each cache, with the commits after it, says what the files hold; False if one is torn."""
    found = [table.ranges_from_cache(version) for version in versions]
    if any(one is None for one in found):
        return False
    rows = sum(file.rows for file in table.files())
    for one in found:
        if one != found[0] or one is None or sum(one.rows().values()) != rows:
            raise ArchiveDamagedError(
                f"{ranges.FOLDER}/ and the log disagree about what {table.root.url} holds: "
                f"{foreign_changes(table) or 'run verify'}"
            )
    return True


ACCEPT: Final = "`weir-spark erase ROOT --accept-foreign`"


def foreign_changes(table: ArchiveTable) -> str:
    """What other programs have changed, and the remedy; empty where there is nothing."""
    known = [f"version {version} ({what})" for version, what in sorted(table.foreign().items())]
    if not known:
        return ""
    return (
        f"another program has changed entries in {', '.join(known)}: restore an earlier version, or accept "
        f"that with {ACCEPT}; `weir-spark erase` is the way to erase entries"
    )


def _older_names(table: ArchiveTable, before_ms: int) -> list[str]:
    selector = fs.FileSelector(table.root.path(log.FOLDER), allow_not_found=True)
    found = table.root.files.get_file_info(selector)
    return [
        one.base_name
        for one in found
        if one.type == fs.FileType.File and one.mtime_ns < before_ms * 1_000_000
    ]


_LOGS: Final = ("", deletions.FOLDER)


def repair(root: ArchiveRoot) -> list[str]:
    """Delete files of the logs that no writer has finished; their names. Objects appear whole.

    Writers may be at work: their commits appear whole. Raises ArchiveDamagedError where later commits stand
    on such a file, ArchiveLockedError where another process holds the archive's lock.
    """
    return [name for folder in _LOGS for name in _repair(root.inside(folder), root)] if root.is_local else []


def open_repaired(root: ArchiveRoot) -> ArchiveTable:
    """The latest version of an archive, repaired where that is needed. Raises as `repair` and `open` do."""
    repair(root)
    return ArchiveTable.open(root)


def _repair(own: ArchiveRoot, root: ArchiveRoot) -> list[str]:
    if not log.unfinished(own):
        return []
    with writer_lock(root):
        # Another process may have repaired it, and committed since.
        names = log.unfinished(own)
        for name in names:
            own.delete(name)
        own.sync_folder(log.FOLDER)
    return [own.path(name) for name in names]
