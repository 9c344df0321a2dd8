"""Files that are named like the log's own and that the manifest does not name: removed, or set aside.

Knows: what a rewrite that was stopped leaves, and how to prove that a file is that.
Must never know: what payloads mean.

A file is removed only if it has nothing in it, or if its frames prove that it belongs to this log and is not
needed any more:

    a segment   its last frame is the one before the first frame of the first segment that is named, or of
                another one that is proved so
    a base      it begins where a segment does that is named or proved so, but not where the named base does

Other files of such a name were not made here. They are renamed, since each may be an only copy.
"""

from collections.abc import Sequence
from contextlib import suppress

from engine.codec import FILE_FRAME_BYTES
from engine.log.files import SET_ASIDE, free_name
from engine.log.inspection import begins, follows, opening, read_run
from engine.log.manifest import Manifest, Segment, file_number
from engine.storage import Storage


def remove_leftovers(storage: Storage, manifest: Manifest) -> list[str]:
    """Remove what is needless and set aside what is not ours; return the new names of the latter.

    Only for a log that was loaded. Best effort: what stays is looked at again at the next start.
    """
    aside: list[str] = []
    leftovers = _leftovers(storage, manifest)
    ours = _ours(storage, manifest, leftovers)
    for name in leftovers:
        with suppress(OSError):
            if name in ours:
                storage.unlink(name)
            else:
                new_name = free_name(storage, f"{name}{SET_ASIDE}")
                storage.rename(name, new_name)
                aside.append(new_name)
    return aside


def _leftovers(storage: Storage, manifest: Manifest) -> list[str]:
    """Bases and older segments that are not named, the newest first; what is newer may still go on, unless it
    was only prepared: it has room on the disk, and not one byte.
    """
    named, first = {file.name for file in manifest.files()}, manifest.segments[0].number
    numbers = {name: file_number(name) for name in storage.names() if name not in named}
    leftovers = [
        (number, name)
        for name, number in numbers.items()
        if number is not None and (name.startswith("base-") or number < first or _is_blank(storage, name))
    ]
    return [name for _, name in sorted(leftovers, reverse=True)]


def _ours(storage: Storage, manifest: Manifest, leftovers: Sequence[str]) -> set[str]:
    """Those of the leftovers that may go."""
    ours = {name for name in leftovers if _is_empty(storage, name)}
    first = manifest.segments[0]
    positions = {segment.position for segment in manifest.segments}
    for name in leftovers:
        if name.startswith("segment-") and name not in ours:
            segment = _followed(storage, name, first)
            if segment is not None:
                ours.add(name)
                positions.add(segment.position)
                first = segment
    if manifest.base is not None:
        positions.discard(manifest.base.position)
    bases = {name for name in leftovers if name.startswith("base-") and name not in ours}
    return ours | {name for name in bases if _position(storage, name) in positions}


def _is_blank(storage: Storage, name: str) -> bool:
    with suppress(OSError):
        return storage.size(name) == 0
    return False


def _is_empty(storage: Storage, name: str) -> bool:
    """Whether a file holds nothing: it is not longer than its first frame, and is that, or zeros."""
    with suppress(OSError):
        size = storage.size(name)
        return size <= FILE_FRAME_BYTES and (begins(storage, name) or not any(storage.read(name, 0, size)))
    return False


def _followed(storage: Storage, name: str, follower: Segment) -> Segment | None:
    """The segment that a file is, if it ends where `follower` goes on."""
    with suppress(OSError):
        run = read_run(storage, opening(storage, name))
        if isinstance(run.file, Segment) and run.damage is None and follows(run, follower):
            return run.file
    return None


def _position(storage: Storage, name: str) -> int | None:
    """The position that a base stands for; None for a file that does not begin as one."""
    with suppress(OSError):
        return opening(storage, name).position if begins(storage, name) else None
    return None
