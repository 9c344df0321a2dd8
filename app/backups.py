"""Backups requested over HTTP: one at a time, in a thread.

Knows: the directory of backups, the result of the last one. Must never know: routes, how a log is copied.
"""

import asyncio
import threading
from pathlib import Path
from typing import Literal, NamedTuple

from app import logs
from app.errors import RefusalError, invalid
from app.settings import Settings
from engine import Clock, LogRefusedError, StorageLockedError, StorageRefusedError, back_up


class LastBackup(NamedTuple):
    """The last backup since the gateway started, or the one under way. Counts are null until it is done."""

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
        self.last = LastBackup()
        self._settings = settings
        self._clock = clock

    async def start(self, name: str) -> LastBackup:
        """Begin a backup of this name, a plain one, below `backup_dir`, and do not wait for it.

        Raises `not_configured`, `invalid`, `busy`.
        """
        if not self._settings.backup_dir:
            hint = "no directory for backups is configured: start the gateway with --set backup_dir=DIR"
            raise RefusalError("not_configured", hint)
        place = Path(self._settings.backup_dir) / name
        if await asyncio.to_thread(place.exists):
            raise invalid("/name", "there is a backup of this name already")
        if self.last.state == "running":
            raise RefusalError("busy", f"the backup {self.last.name} is under way: GET says when it is done")
        self.last = begun = LastBackup("running", name, self._clock.wall_ms())
        # A daemon thread: a shutdown does not wait. An unfinished backup is not valid.
        threading.Thread(target=self._run, args=(begun, place), name="weir-backup", daemon=True).start()
        return begun

    def _run(self, begun: LastBackup, place: Path) -> None:
        log = logs.get()
        try:
            # To load the log beside itself might take more memory than there is.
            copied = back_up(self._settings.data, place, loads=False)
        except (LogRefusedError, StorageLockedError, StorageRefusedError, OSError) as error:
            reason = str(error)  # a sentence for people: no trace would say more
            remedy = (
                "check the disk of the data; `weir backup` on this machine passes over what is not needed"
                if isinstance(error, LogRefusedError)
                else "make room in backup_dir or check its disk, then make another backup"
            )
            log.critical("backup failed", name=begun.name, reason=reason, remedy=remedy)
            end = begun._replace(state="failed", error=reason)
        else:
            log.info("backup done", name=begun.name, frames=copied.frames, bytes=copied.bytes)
            end = begun._replace(state="done", files=copied.files, frames=copied.frames, bytes=copied.bytes)
        self.last = end._replace(ended_ms=self._clock.wall_ms())
