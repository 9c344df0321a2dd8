"""Files of runs as they are copied and checked: run after run, each byte verified.

Knows: that such a file is a row of whole runs, but for the last one of a file that is being written.
Must never know: streams, which of the runs something still refers to.
"""

from collections.abc import Callable
from typing import NamedTuple

from engine.codec import Damage
from engine.log.manifest import Manifest, run_name, run_number
from engine.log.view import LogView
from engine.runs import HEAD_BYTES, DamagedRunError, length_at, read_run


class RunsFound(NamedTuple):
    """A file of runs up to its first damage: how many are sound, and their bytes, of `size`."""

    name: str
    size: int
    runs: int
    length: int
    damage: Damage | None


def run_names(view: LogView, manifest: Manifest | None) -> list[str]:
    """The files of runs that exist, or are named, in order."""
    there = {number for name in view.names() if (number := run_number(name)) is not None}
    return [run_name(number) for number in sorted({*there, *(manifest.runs if manifest else ())})]


def scan_runs(view: LogView, name: str, *, grows: bool, sink: Callable[[bytes], object] = bool) -> RunsFound:
    """Verify a file and give what is sound to `sink`. Of one that `grows`, the last run may not be whole."""
    size, offset, count = view.size(name), 0, 0
    while offset < size:
        length = length_at(view.read(name, offset, HEAD_BYTES))
        if grows and (size - offset < HEAD_BYTES or (length is not None and offset + length > size)):
            break
        try:
            content = view.read(name, offset, length or 0)
            read_run(content)
        except DamagedRunError as error:
            return RunsFound(name, size, count, offset, Damage(offset, str(error)))
        sink(content)
        offset, count = offset + len(content), count + 1
    return RunsFound(name, size, count, offset, None)
