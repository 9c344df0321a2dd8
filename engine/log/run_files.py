"""Files of runs as they are copied and checked: run after run, each byte verified.

Knows: that such a file is a row of whole runs, but for the last one of a file that is being written; that a
damage is none where nothing refers to what is damaged.
Must never know: streams, how it is found out which of the runs something still refers to.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from engine.codec import Damage
from engine.log.errors import LogRefusedError
from engine.log.manifest import Manifest, run_name, run_number
from engine.log.view import LogView
from engine.runs import HEAD_BYTES, DamagedRunError, length_at, read_run

_REMEDY: Final = (
    "a start succeeds, and reads of these entries alone are refused: restore a backup, or give them up, as "
    "that refusal says"
)
_CHUNK_BYTES: Final = 1 << 20
# By the names of files, where the runs begin that the log refers to, in order. It loads the whole log, so it
# is called where a damage is found.
Referred = Callable[[], Mapping[str, Sequence[int]]]


class RunsFound(NamedTuple):
    """A file of runs up to its first damage: how many are sound, and the bytes up to there, of `size`."""

    name: str
    size: int
    runs: int
    length: int
    damage: Damage | None


def run_names(view: LogView, manifest: Manifest | None) -> list[str]:
    """The files of runs that exist, or are named, in order."""
    there = {number for name in view.names() if (number := run_number(name)) is not None}
    return [run_name(number) for number in sorted({*there, *(manifest.runs if manifest else ())})]


def refusal_of(found: RunsFound) -> LogRefusedError:
    """Name the damage, and what to do about it."""
    assert found.damage is not None, "it is damaged"
    return LogRefusedError(found.name, f"{found.damage.reason}; {_REMEDY}", offset=found.damage.offset)


def scan_runs(
    view: LogView,
    name: str,
    *,
    grows: bool,
    sink: Callable[[bytes], object] = bool,
    referred: Referred | None = None,
) -> RunsFound:
    """Verify a file and give it to `sink` up to a damage. Of one that `grows`, the last run may not be whole.

    What is damaged and not `referred` to, where that is known, is passed over, and given as it is: all that
    is behind it has to stay in its place.
    """
    size, offset, count = view.size(name), 0, 0
    while offset < size:
        length = length_at(view.read(name, offset, HEAD_BYTES))
        if grows and (size - offset < HEAD_BYTES or (length is not None and offset + length > size)):
            break
        try:
            content = view.read(name, offset, length or 0)
            read_run(content)
        except DamagedRunError as error:
            needed = _next_referred(referred, name, offset, size)
            if needed == offset:
                return RunsFound(name, size, count, offset, Damage(offset, str(error)))
            for start in range(offset, needed, _CHUNK_BYTES):
                sink(view.read(name, start, min(_CHUNK_BYTES, needed - start)))
            offset = needed
            continue
        sink(content)
        offset, count = offset + len(content), count + 1
    return RunsFound(name, size, count, offset, None)


def _next_referred(referred: Referred | None, name: str, offset: int, size: int) -> int:
    """Where the next run begins that is needed, from `offset` on; if it is not known which are, all are."""
    if referred is None:
        return offset
    begins = referred().get(name, ())
    place = bisect_left(begins, offset)
    return begins[place] if place < len(begins) else size
