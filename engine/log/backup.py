"""A log copied while it is written: for `weir backup`, and back for `weir restore`.

Knows: which files to copy, up to where, that each byte is verified before it is written, the copy's manifest.
Must never know: what payloads mean; who writes the log meanwhile.

A copy contains everything that was acknowledged before it began: the files are held open first, each as long
as it was then. It is sealed but for its last segment, and a frame at its end says that all of it was safe, so
that a damage to the copy is never taken for a torn tail; the manifest says how long that is, as after a clean
stop, so that a part of a copy is not taken for the whole. Files of runs only grow, and have what the log
refers to before it does.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Final, NamedTuple

from engine.codec import MARK_PAYLOAD, RESERVE_PAYLOAD, Kind, encode_header
from engine.log.errors import LogRefusedError
from engine.log.inspection import (
    DIRECTORY,
    File,
    FrameRun,
    Load,
    begins,
    behind,
    follows,
    manifest_from,
    manifest_of,
    read_run,
    rehearse,
)
from engine.log.manifest import MANIFEST, Seal, run_number
from engine.log.run_files import Referred, RunsFound, refusal_of, run_names, scan_runs
from engine.log.view import LogView
from engine.storage import Storage

Ending = Sequence[tuple[Kind, bytes]]  # frames to put behind a log: their kinds and payloads

_SAFE: Final[Ending] = ((Kind.MARK, MARK_PAYLOAD.pack(0)),)


class BackupCopy(NamedTuple):
    """What was copied: files, frames that a start replays, bytes; `left_bytes` were torn and left out."""

    files: int
    frames: int
    bytes: int
    left_bytes: int


def back_up(source: Storage, target: Storage, load: Load | None = None) -> BackupCopy:
    """Copy the log in `source`, which a server may be writing, into the empty directory `target`.

    With `load` a damage in a file of runs is refused only where the log refers to what is damaged.

    Raises LogRefusedError as a start would, OSError for either disk. Without its manifest a target is no log,
    so half a copy is never taken for one.
    """
    with LogView.of(source) as view:
        return _copy(view, target, _SAFE, _referred(load, view))


def restore(
    source: Storage, target: Storage, payloads: Sequence[bytes], now_ms: int, load: Load | None = None
) -> BackupCopy:
    """Copy a backup (any log will do) into the empty directory `target`, and put `payloads` behind it.

    IDs up to `now_ms` are taken for given: what was written after the backup is gone, its IDs are not.
    """
    with LogView.of(source) as view:
        reserved_ms = max(rehearse(view).reservation_ms, now_ms)
        return _copy(view, target, new_life(payloads, reserved_ms), _referred(load, view))


def _referred(load: Load | None, view: LogView) -> Referred | None:
    return None if load is None else cache(partial(load, view))


def new_life(payloads: Sequence[bytes], reserved_ms: int) -> Ending:
    """Return what stands behind a log that goes on from less than was acknowledged.

    No lost ID is given again, also if the clock went back; `payloads` inform the readers.
    """
    lives = [(Kind.RECORDS, payload) for payload in payloads]
    return [(Kind.RESERVE, RESERVE_PAYLOAD.pack(reserved_ms)), *lives, *_SAFE]


def ending_of(run: FrameRun, ending: Ending) -> tuple[bytes, Seal]:
    """Return the frames of `ending` as they stand behind those of `run`, and how the file ends with them.

    No reader sees any of it before all of it is synced, so each calls safe what is before it.
    """
    sequence, checksum = run.sequence, run.checksum
    content = b""
    for kind, payload in ending:
        sequence += 1
        durable_upto = run.end + len(content)
        header, checksum = encode_header(kind, sequence, durable_upto, checksum, run.salt, payload)
        content += header + payload
    return content, Seal(run.length + len(content), checksum)


def _copy(view: LogView, target: Storage, ending: Ending, referred: Referred | None) -> BackupCopy:
    runs = _copy_files(view, target)
    last = runs[-1]
    content, stop = ending_of(last, ending)
    handle = target.open(last.file.name)
    try:
        handle.append(content)
        handle.sync()
    finally:
        handle.close()
    stored = _copy_runs(view, target, referred)
    target.sync_directory()
    manifest = replace(
        manifest_from([run.sealed for run in runs]).stopped(stop),
        runs=tuple(number for each in stored if (number := run_number(each.name)) is not None),
    )
    target.replace(MANIFEST, [manifest.encode()])
    return BackupCopy(
        files=len(runs) + len(stored),
        frames=sum(run.payloads for run in runs),
        bytes=sum(run.length for run in runs) + sum(each.length for each in stored),
        left_bytes=last.size - last.length,
    )


def _copy_files(view: LogView, target: Storage) -> list[FrameRun]:
    """Copy the files that the manifest names, and the segments that go on behind them."""
    manifest = manifest_of(view)
    if not manifest.segments:
        raise LogRefusedError(DIRECTORY, "holds a log that was only just begun")
    runs: list[FrameRun] = []
    for file in manifest.files():
        if file.name not in view.names():
            raise LogRefusedError(file.name, "is missing, but the manifest names it", repairable=True)
        runs.append(_copy_file(view, file, target))
    unclear = False
    for segment in behind(view, manifest):
        if follows(runs[-1], segment):
            runs.append(_copy_file(view, segment, target))
        else:
            unclear = unclear or begins(view, segment.name)
    if unclear or runs[-1].damage:
        # Rare enough to read it all once more: the start's own verdict, torn or damaged.
        rehearse(view)
    return runs


def _copy_runs(view: LogView, target: Storage, referred: Referred | None) -> list[RunsFound]:
    """Copy the files of runs: what the log refers to was in them before it did."""
    copied: list[RunsFound] = []
    names = run_names(view, manifest_of(view))
    for name in names:
        if name not in view.names():
            raise LogRefusedError(name, "is missing, but the manifest names it")
        handle = target.create(name)
        try:
            grows = name == names[-1]
            found = scan_runs(view, name, grows=grows, sink=handle.append, referred=referred)
            handle.sync()
        finally:
            handle.close()
        if found.damage is not None:
            raise refusal_of(found)
        copied.append(found)
    return copied


def _copy_file(view: LogView, file: File, target: Storage) -> FrameRun:
    """Copy what is sound; only an unsealed file may have a damage, at which its copy ends."""
    handle = target.create(file.name)
    try:
        run = read_run(view, file, sink=handle.append)
        if run.fault and (file.seal or run.lacks_stop or not run.frames):
            raise LogRefusedError.of(file.name, run.fault)
        handle.sync()
    finally:
        handle.close()
    return run
