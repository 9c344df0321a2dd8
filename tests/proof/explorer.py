"""Recover every disk that a power cut or a kill may leave, before every operation, and hold it against what
was promised by then.

Knows: disks, the engine's recovery, and the record of promises.
Must never know: which history it is that runs.
"""

from dataclasses import dataclass, field
from typing import Final

from engine import Engine, EngineError, LogRefusedError, entries
from engine.backup import referred_runs
from engine.commands.execution import execute
from engine.commands.types import XAdd
from engine.keyspace import Keyspace
from engine.log import Log
from engine.log.backup import back_up
from engine.log.manifest import run_number
from engine.records.payload import encode
from engine.replies import Added
from engine.storage.memory import MemoryStorage
from tests.engine.clocks import HandClock
from tests.engine.images import image
from tests.engine.running import keyspace_of
from tests.proof.disks import Files, legal_disks
from tests.proof.histories import DURABLE, LETTERS, STREAMS
from tests.proof.lives import Living, log_end, recovered_upto
from tests.proof.promises import contents

# The wall clock of the process that starts after the crash: as wrong as it can be.
HOSTILE_WALL_MS: Final = 1
# Disks that differ only in what was not promised recover to the same state.
_REMEMBERED_MAX: Final = 20_000
# With entries in files, a backup is made now and then.
_LOOKS_A_BACKUP: Final = 5


def goes_on(storage: MemoryStorage) -> bool:
    """Whether a recovered log can be written to."""
    log = Log.open(storage)
    upto = log.stage(encode([]))
    log.write(log.take_staged())
    log.sync()
    return recovered_upto(storage.crash()) == upto


@dataclass(frozen=True)
class Recovered:
    """What one disk gives: how far its log reaches, and the next ID of each stream; or why it is wrong."""

    end: int
    next_ids: dict[str, int]
    fault: str | None = None


@dataclass
class Explorer:
    """Give `look` to a life. `disks` were looked at, `recovered` of them opened: no other was like them."""

    disks: int = 0
    recovered: int = 0
    worst_lost_s: float = 0.0
    stored: int = 0  # runs
    moved: int = 0  # of these to another file
    backups: int = 0
    _known: dict[frozenset[tuple[str, bytes]], Recovered] = field(default_factory=dict)
    _cuts: int = 0
    _looks: int = 0

    def forget(self) -> None:
        """Begin with another life."""
        self._known.clear()

    def look(self, life: Living) -> None:
        """Check all disks of this moment."""
        if self._cuts != life.promises.cuts or len(self._known) > _REMEMBERED_MAX:
            # A restart may have changed what a position stands for.
            self._cuts = life.promises.cuts
            self._known.clear()
        # What everysec may lose is counted from when the disk failed: nothing is answered after that.
        now_s = min((one.at_s for one in life.storage.failed), default=life.clock.monotonic())
        kept = life.promises.kept_by_kill()
        files = {name: life.storage.content(name) for name in life.storage.names()}
        self._check(life, files, kept, "a kill")
        kept = life.promises.kept_by_power_cut(now_s) if not life.loop.slow_s else 0
        for disk in legal_disks(life.storage):
            self._check(life, disk, kept, "a power cut")

        self._looks += 1
        if life.promises.stores and self._looks % _LOOKS_A_BACKUP == 0 and not life.storage.failed:
            self._back_up(life)

    def _back_up(self, life: Living) -> None:
        """A backup that is made now has all that was answered by now, in the midst of anything."""
        target = MemoryStorage()
        try:
            back_up(life.storage, target, referred_runs)
        except LogRefusedError as refusal:
            if life.promises.acknowledged:
                life.report(f"no backup can be made: {refusal}")
            return
        self.backups += 1
        files = {name: target.content(name) for name in target.names()}
        self._check(life, files, life.promises.kept_by_kill(), "a backup")

    def _check(self, life: Living, files: Files, kept: int, after: str) -> None:
        self.disks += 1
        key = frozenset(files.items())
        found = self._known.get(key)
        if found is None:
            self.recovered += 1
            found = self._known[key] = recover(life, files)
        promises = life.promises
        if found.fault is not None:
            life.report(f"after {after}: {found.fault}")
        elif found.end < kept:
            lost = next(one for one in promises.acknowledged if one.position > found.end)
            life.report(f"after {after} an answered {lost.what} is lost: {lost}, kept up to {found.end}")
        else:
            self.worst_lost_s = max(self.worst_lost_s, promises.lost_s(found.end))
            for stream, floor in promises.floors(found.end).items():
                if found.next_ids[stream] <= floor:
                    life.report(f"after {after} {stream} gives {found.next_ids[stream]:x}, showed {floor:x}")


def _read_back(life: Living, storage: MemoryStorage, keyspace: Keyspace, end: int) -> str | None:
    """Read all that is in files; what is wrong with it, or would be after a power cut."""
    try:
        found = contents(keyspace)
    except EngineError:
        return f"entries cannot be read: {keyspace.runs.damaged}"
    if found != life.promises.contents_at(end):
        return f"the entries at {end} are not those that were logged by then"
    later = storage.crash()
    names = [name for name in storage.names() if run_number(name) is not None]
    # What nothing refers to may be cut off or not.
    if not all(
        name in later.names() and later.content(name).startswith(storage.content(name)) for name in names
    ):
        return "a power cut after the recovery loses entries in files"
    return None


def recover(life: Living, files: Files) -> Recovered:
    """Open a disk, compare all of its state, publish, and open it once more after another power cut."""
    storage = MemoryStorage(files)
    try:
        engine = Engine.open(storage, clock=HandClock(HOSTILE_WALL_MS), fsync=life.fsync)
    except Exception as error:  # noqa: BLE001 - any error: the log should have opened
        return Recovered(0, {}, f"it does not open: {error!r}")
    end = log_end(engine)
    keyspace = keyspace_of(engine)
    try:
        engine.check()
    except (AssertionError, EngineError) as error:
        return Recovered(end, {}, f"memory does not agree with itself: {error!r}")
    if image(keyspace) != life.promises.image_at(end):
        return Recovered(end, {}, f"the state at {end} is not the one that was logged there")
    if life.promises.stores and (fault := _read_back(life, storage, keyspace, end)) is not None:
        return Recovered(end, {}, fault)
    if recovered_upto(storage.crash()) != end:
        return Recovered(end, {}, "a power cut after the recovery loses what it found")
    if not goes_on(storage.crash()):
        return Recovered(
            end, {}, "what is written and synced after the recovery is not there after another one"
        )
    next_ids: dict[str, int] = {}
    for stream in (*STREAMS, *DURABLE, LETTERS):
        reply = execute(
            keyspace, XAdd(stream=stream, bodies=[entries.body([("data", "1")])]), HOSTILE_WALL_MS
        ).reply
        next_ids[stream] = reply.ids[0] if isinstance(reply, Added) else 1 << 128
    return Recovered(end, next_ids)
