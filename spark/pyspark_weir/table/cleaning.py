"""Deletes what the table no longer needs: files that do not count, commits whose ranges are stored twice.

Knows: how old a file must be, and what makes sure that a commit's ranges are kept.
Must never know: entries, Spark, gateways.

Vacuum looks at all files below the root, since no commit names those of a batch that failed. Files that a
slow writer has still to commit are safe: a commit is refused where they are over half that old.
"""

from typing import Final

from pyarrow import fs

from pyspark_weir.errors import OptionError
from pyspark_weir.table import ranges
from pyspark_weir.table.errors import ArchiveDamagedError
from pyspark_weir.table.lock import Held, writer_lock
from pyspark_weir.table.table import LOG, VACUUM_AGE_MS_MIN, ArchiveTable

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
    with writer_lock(table):
        table.refresh()
        found = table.delta.vacuum(retention_hours=-(-age_ms // _HOUR_MS), dry_run=dry_run, full=True)
        table.refresh()
    return sorted(found)


def clean_log(table: ArchiveTable, now_ms: int, age_ms: int = VACUUM_AGE_MS_MIN) -> int:
    """Delete commits of the log that are over `age_ms` old, if their ranges are stored twice; how many.

    Raises ArchiveDamagedError where what is stored disagrees, ArchiveLockedError where another process holds
    the archive's lock; then nothing is deleted.
    """
    with writer_lock(table) as held:
        return _clean_log(table, held, now_ms - age_ms)


def _clean_log(table: ArchiveTable, held: Held, before_ms: int) -> int:
    table.refresh()
    table.checkpoint()
    stored = [version for version in ranges.cached_versions(table.root) if version <= table.version][:_CACHES]
    if len(stored) < _CACHES or not _agree(table, stored):
        return 0
    before = min(stored[-1] + 1, table.version)
    deleted = 0
    for name in sorted(_older_names(table, before_ms)):
        held.keep()
        number = name[:_VERSION_DIGITS]
        if number.isdecimal() and int(number) < before:
            table.root.delete(f"{LOG}/{name}")
            deleted += 1
    # What is loaded reads commits that are gone.
    table.refresh()
    return deleted


def _agree(table: ArchiveTable, versions: list[int]) -> bool:
    """Whether each cache, with the commits after it, says what the files hold; False if one is torn."""
    found = [table.ranges_from_cache(version) for version in versions]
    if any(one is None for one in found):
        return False
    rows = sum(file.rows for file in table.files())
    for one in found:
        if one != found[0] or one is None or sum(span.rows for span in one) != rows:
            raise ArchiveDamagedError(
                f"{ranges.FOLDER}/ and the log disagree about what {table.root.url} holds: run verify"
            )
    return True


def _older_names(table: ArchiveTable, before_ms: int) -> list[str]:
    selector = fs.FileSelector(table.root.path(LOG), allow_not_found=True)
    found = table.root.files.get_file_info(selector)
    return [
        one.base_name
        for one in found
        if one.type == fs.FileType.File and one.mtime_ns < before_ms * 1_000_000
    ]
