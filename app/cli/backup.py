"""`weir backup` and `weir restore`: the log's directory copied, beside a server too, and put in place again.

Knows: which directories are meant, what is said about the copy. Must never know: how it is made.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.cli.directory import Data, chosen, ending
from weir.cli import options, output

if TYPE_CHECKING:
    from engine.log.backup import BackupCopy

_NAMES: Final = ("files", "frames", "bytes", "left_bytes")

Place = Annotated[Path, typer.Argument(metavar="DIR", help="directory of the backup", show_default=False)]


def backup(place: Place, *, data: Data = None, as_json: options.Json = False) -> None:
    """Copy the log to a new directory, while a server may go on writing it.

    The copy holds everything that was acknowledged before this began. It appears under its name when it is
    whole and safe on the disk.
    """
    from engine.backup import back_up

    path = chosen(data)
    with ending(path):
        copied = back_up(path, place)
    _tell(copied, f"backed up {path} to {place}", as_json=as_json)


def restore(place: Place, *, data: Data = None, as_json: options.Json = False) -> None:
    """Verify a backup and copy it to a new data directory, to be served from there.

    Every stream gets a new generation, so that readers notice; no ID is given that was given before.
    """
    from engine import SystemClock
    from engine.backup import restore as put_back

    path = chosen(data)
    with ending(place):
        copied = put_back(place, path, now_ms=SystemClock().wall_ms())
    _tell(copied, f"restored {place} to {path}", as_json=as_json)


def _tell(copied: "BackupCopy", sentence: str, *, as_json: bool) -> None:
    if as_json:
        output.lines([output.json_line({name: getattr(copied, name) for name in _NAMES})])
        return
    frames = output.counted(copied.frames, "frame", "frames")
    files = output.counted(copied.files, "file", "files")
    output.lines([f"{sentence}: {frames}, {output.counted(copied.bytes, 'byte', 'bytes')} in {files}"])
    if copied.left_bytes:
        output.say(f"the last {copied.left_bytes} bytes are no whole frame, and were left out")
