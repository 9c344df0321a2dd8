"""Backups that are asked for over HTTP: one at a time, beside everything else.

Knows: where they may go, what a name may be, how the last one ended. Must never know: routes, how a log is
copied.
"""

import asyncio
import re
import threading
from pathlib import Path
from typing import Final, Literal

import msgspec

from app import logs
from app.errors import Refusal, invalid
from app.settings import Settings
from engine import Clock, LogRefused, StorageLocked, StorageRefused, back_up

# Plain names of directories: nothing that leads elsewhere, hides, or means something to a shell.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_HINT: Final = "1 to 128 letters, digits, '.', '_' and '-', the first a letter or a digit"


class Backup(msgspec.Struct, frozen=True):
    """The last backup, or the one under way. Counts are null until it is done."""

    state: Literal["none", "running", "done", "failed"] = "none"
    name: str | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    files: int | None = None
    frames: int | None = None
    bytes: int | None = None
    error: str | None = None


class Backups:
    """`last` is changed by the thread of a backup when it ends, as a whole."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.last = Backup()
        self._settings = settings
        self._clock = clock

    async def start(self, name: str) -> Backup:
        """Begin a backup below `backup_dir`, and do not wait for it.

        Raises `not_configured`, `invalid`, `busy`.
        """
        if not self._settings.backup_dir:
            hint = "no directory for backups is configured: start the gateway with --set backup_dir=DIR"
            raise Refusal("not_configured", hint)
        if not _NAME.fullmatch(name):
            raise invalid("/name", _HINT)
        place = Path(self._settings.backup_dir) / name
        if await asyncio.to_thread(place.exists):
            raise invalid("/name", "there is a backup of this name already")
        if self.last.state == "running":
            raise Refusal("busy", f"the backup {self.last.name} is under way: GET tells when it is done")
        begun = self.last = Backup("running", name, self._clock.wall_ms())
        # A daemon: a stop does not wait for it, and half a backup never looks like one.
        threading.Thread(target=self._run, args=(begun, place), name="weir-backup", daemon=True).start()
        return begun

    def _run(self, begun: Backup, place: Path) -> None:
        log = logs.get()
        try:
            copied = back_up(self._settings.data, place)
        except (LogRefused, StorageLocked, StorageRefused, OSError) as error:
            reason = str(error)  # a sentence for people: no trace would tell them more
            log.critical("backup failed", name=begun.name, reason=reason)
            end: dict[str, object] = {"state": "failed", "error": reason}
        else:
            log.info("backup done", name=begun.name, frames=copied.frames, bytes=copied.bytes)
            end = {"state": "done", "files": copied.files, "frames": copied.frames, "bytes": copied.bytes}
        self.last = msgspec.structs.replace(begun, ended_ms=self._clock.wall_ms(), **end)
