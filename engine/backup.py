"""Backup, restore and repair of a log's directory, as an operator asks for them.

Knows: paths, and the record that gives streams a new generation. Must never know: the web.
"""

import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from engine.log.backup import BackupCopy
from engine.log.backup import back_up as copy_log
from engine.log.backup import restore as copy_back
from engine.log.repair import carry_out
from engine.log.steps import RepairStep
from engine.records import Regenerate, SetMetadata, encode
from engine.storage.file import FileStorage
from engine.storage.whole import new_directory

_SALT_BYTES: Final = 16


def back_up(data: Path, place: Path) -> BackupCopy:
    """Copy the log in `data` to the new directory `place`; a server may go on writing it. Blocks.

    It holds everything that was acknowledged before the call. Raises LogRefusedError, StorageRefusedError,
    StorageLockedError, OSError; then there is no `place`.
    """
    source = FileStorage(data)
    try:
        with new_directory(place) as target:
            return copy_log(source, target)
    finally:
        source.close()


def restore(
    backup: Path,
    data: Path,
    *,
    now_ms: int,
    kept: Collection[str] = (),
    metadata: Mapping[str, bytes] = MappingProxyType({}),
) -> BackupCopy:
    """Copy a backup to the new data directory `data`, where every stream gets a new generation. Blocks.

    Files called as in `kept` may be in `data`, and stay. `metadata` is set beside the streams, as PutMetadata
    does. Raises as `back_up` does.
    """
    source = FileStorage(backup)
    try:
        with new_directory(data, kept) as target:
            payloads = [*another_life(), *(encode([SetMetadata(*item)]) for item in metadata.items())]
            return copy_back(source, target, payloads, now_ms)
    finally:
        source.close()


def repair(storage: FileStorage, step: RepairStep, *, now_ms: int) -> None:
    """Do a planned step of a repair."""
    carry_out(storage, step, another_life(), now_ms)


def another_life() -> Sequence[bytes]:
    """The payload behind a log that goes on from less than it had."""
    return [encode([Regenerate(secrets.token_bytes(_SALT_BYTES))])]
