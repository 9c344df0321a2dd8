"""Backup, restore and repair of a log's directory, as an operator asks for them.

Knows: paths, the record that gives streams a new generation, which files of runs a log refers to.
Must never know: the web.
"""

import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from engine.keyspace import Caps, Keyspace
from engine.log import Log
from engine.log.backup import BackupCopy
from engine.log.backup import back_up as copy_log
from engine.log.backup import restore as copy_back
from engine.log.inspection import Inspection, check_version
from engine.log.inspection import inspect as look_at
from engine.log.manifest import run_name
from engine.log.repair import carry_out
from engine.log.repair import plan as plan_step
from engine.log.steps import RepairStep
from engine.log.view import LogView
from engine.records.changes import Regenerate, SetMetadata
from engine.records.payload import encode, find_newer, replay
from engine.runs import Run
from engine.storage import Storage
from engine.storage.file import FileStorage
from engine.storage.whole import new_directory

_SALT_BYTES: Final = 16


def back_up(data: Path, place: Path, *, loads: bool = True) -> BackupCopy:
    """Copy the log in `data` to the new directory `place`; a server may go on writing it. Blocks.

    If cold entries are damaged, the log is loaded into memory to see whether they are still needed, unless
    `loads` is off.

    It holds everything that was acknowledged before the call. Raises LogRefusedError, StorageRefusedError,
    StorageLockedError, OSError; then there is no `place`.
    """
    source = FileStorage(data)
    try:
        with new_directory(place) as target:
            return copy_log(source, target, referred_runs if loads else None)
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
        with LogView.of(source) as view:
            check_version(view, find_newer)
        with new_directory(data, kept) as target:
            payloads = [*another_life(), *(encode([SetMetadata(*item)]) for item in metadata.items())]
            return copy_back(source, target, payloads, now_ms, referred_runs)
    finally:
        source.close()


def inspect(storage: Storage) -> Inspection:
    """Read and describe all files of a log, also beside a running server. Raises OSError."""
    return look_at(storage, referred_runs, find_newer)


def plan(storage: Storage) -> RepairStep | None:
    """Return the next step of a repair, None for a log that would start. Raises IrreparableError, OSError."""
    return plan_step(storage, find_newer)


def referred_runs(view: LogView) -> Mapping[str, Sequence[int]]:
    """Load a log that would start; by the names of its files of runs, where those begin that it refers to.
    Raises LogRefusedError.
    """
    check_version(view, find_newer)
    log = Log.open(view.again())
    keyspace = Keyspace(caps=Caps())
    keyspace.runs.read = lambda run: log.read_run(run.file, run.offset, run.length)
    keyspace.begin_loading()
    for payload in log.replay():
        replay(keyspace, payload)
        if keyspace.garbage:
            keyspace.free_some()
    keyspace.end_loading()
    log.close(clean=False)
    found: dict[str, list[int]] = {}
    for key in keyspace.keys.values():
        for part in key.stream.nodes.values_from(0) if key.stream.nodes.runs else ():
            if isinstance(part, Run):
                found.setdefault(run_name(part.file), []).append(part.offset)
    return {name: sorted(offsets) for name, offsets in found.items()}


def repair(storage: FileStorage, step: RepairStep, *, now_ms: int) -> None:
    """Do a planned step of a repair."""
    carry_out(storage, step, another_life(), now_ms, find_newer)


def another_life() -> Sequence[bytes]:
    """The payload behind a log that goes on from less than it had."""
    return [encode([Regenerate(secrets.token_bytes(_SALT_BYTES))])]
