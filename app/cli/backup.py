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

BackupDirectory = Annotated[
    Path, typer.Argument(metavar="DIR", help="directory of the backup", show_default=False)
]


def backup(place: BackupDirectory, *, data: Data = None, as_json: options.Json = False) -> None:
    """Copy the log to a new directory, while a server may go on writing it.

    The copy holds everything that was acknowledged before this began. It appears under its name when it is
    whole and safe on the disk.
    """
    from engine.backup import back_up

    path = chosen(data)
    with ending(path):
        copied = back_up(path, place)
    _report(copied, f"backed up {path} to {place}", as_json=as_json)


def restore(
    place: BackupDirectory,
    *,
    data: Data = None,
    drop_tokens: Annotated[
        bool, typer.Option("--drop-tokens", help="accept none of the tokens that the backup holds")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Verify a backup and copy it to a new data directory, to be served from there.

    Every stream gets a new generation, so that readers notice; no ID is given that was given before. A file
    `revoked` in the directory stays: tokens that were revoked after the backup are not accepted again.
    """
    from app.auth import revocation_file
    from app.live.token_store import DROP_TOKENS
    from engine import SystemClock
    from engine.backup import restore as put_back

    path = chosen(data)
    with ending(place):
        copied = put_back(
            place,
            path,
            now_ms=SystemClock().wall_ms(),
            kept=(revocation_file.NAME,),
            metadata={DROP_TOKENS: b"1"} if drop_tokens else {},
        )
    _report(copied, f"restored {place} to {path}", as_json=as_json)


def _report(copied: "BackupCopy", sentence: str, *, as_json: bool) -> None:
    if as_json:
        output.lines([output.json_line({name: getattr(copied, name) for name in _NAMES})])
        return
    frames = output.counted(copied.frames, "frame", "frames")
    files = output.counted(copied.files, "file", "files")
    output.lines([f"{sentence}: {frames}, {output.counted(copied.bytes, 'byte', 'bytes')} in {files}"])
    if copied.left_bytes:
        output.say(f"the last {copied.left_bytes} bytes are no whole frame, and were left out")
