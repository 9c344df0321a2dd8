"""A real engine through a random history on a modelled disk, with every promise that it makes on record.

Knows: tasks, waiting readers, the clock, restarts after every kind of end; when an answer leaves and on what
log position it stands.
Must never know: what a disk may look like after a crash.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import count
from typing import Any, Final, TypeVar

from engine import Engine, EngineError, Fsync, RewriteFailedError, entries
from engine.commands.base import Command
from engine.commands.storing import StoreRuns
from engine.commands.types import XAdd, XAutoClaim, XClaim, XReadGroup
from engine.keyspace import CAPS_DEFAULT, Caps, Keyspace
from engine.log import Log, LogPoisonedError, LogRefusedError
from engine.log.manifest import MANIFEST, file_number, run_number
from engine.records.payload import decode, encode
from engine.records.snapshot import snapshot
from engine.replies import (
    Added,
    AddedScheduled,
    AutoClaimed,
    Claimed,
    Closed,
    DurableAppended,
    Entries,
    GroupRead,
    Published,
    Reply,
    StreamsRead,
)
from engine.runs import Run
from engine.runtime.storing import StoreBounds
from engine.runtime.turns import TurnResult
from engine.storage import TEMPORARY
from engine.storage.memory import Fault, MemoryStorage
from tests.engine.asking import begin_read, reply_to, submit, turn_of
from tests.engine.clocks import HandClock, settle
from tests.engine.images import image
from tests.engine.running import keyspace_of
from tests.engine.shelf import StoringEngine
from tests.proof.histories import Clients, StoringClients
from tests.proof.promises import Promises, contents
from tests.proof.rewriting import next_segment, rewrite
from tests.proof.watched import ChanceLoop, WatchedStorage

R = TypeVar("R")

# The refusals that a failing disk may cause.
FAILED: Final = frozenset({"storage_failed", "storage_full", "draining"})
_STEP_MS: Final = 100
_TURNS_MAX: Final = 40
_LONGER: Final = 5
# How many commands go the ways that call back.
_BY_CALLBACK: Final = 0.5
# The longest wait of a read, and what its answer takes.
_ANSWERED_MS_MAX: Final = 6_000
# Operations of a slow disk that an answer may wait for: a rewrite makes about a dozen, behind a sync.
_SLOW_OPERATIONS: Final = 20
_PAUSES_MS: Final = (0, 0, 0, 1, 10, 200, 900, 1_500, 3_000)


def log_end(engine: Engine) -> int:
    """The position of everything that the engine has staged."""
    return engine._writer.staged_upto  # noqa: SLF001 - to hold what it answers against it


def recovered_upto(storage: MemoryStorage) -> int:
    """Where the log on a disk ends, once it is recovered."""
    log = Log.open(storage)
    log.close(clean=False)
    return log.staged_upto


def restored(keyspace: Keyspace) -> Keyspace:
    """What a base that was written now would give."""
    copy = Keyspace()
    for record in decode(encode(list(snapshot(keyspace)))):
        record.apply(copy)
    return copy


class EarlyStoringEngine(StoringEngine):
    """Each full node goes at once, one in a run, a few runs in a file; and one run is cached."""

    store_bounds = StoreBounds(
        after_nodes=0, run_nodes_max=1, batch_bytes=300, file_bytes_max=600, pause_s=0.0
    )


class BrokenPromiseError(AssertionError):
    """A promise does not hold. The message says which, and how to see it again."""


class Living:
    """`live` runs a history; `look` is called before each operation of the disk, however many there are."""

    def __init__(
        self,
        seed: int,
        fsync: Fsync,
        *,
        look: Callable[["Living"], None] | None = None,
        slow_s: float = 0.0,
        space_bytes: int | None = None,
        faults: Mapping[int, Fault] | None = None,
        stores: bool = False,
    ) -> None:
        self.seed, self.fsync, self.stores = seed, fsync, stores
        self.chance = random.Random(seed)
        self.clock = HandClock()
        self.loop = ChanceLoop(self.clock, self.chance)
        self.loop.slow_s = slow_s
        self.storage = WatchedStorage(space_bytes=space_bytes)
        self.storage.faults = dict(faults or {})
        self.promises = Promises(fsync, stores=stores)
        self.clients = (StoringClients if stores else Clients)(self.chance)
        self.broken: list[str] = []
        self.refusals: list[str] = []
        self.operations = 0  # of all disks so far
        self.rewrites = 0
        self.rewrites_itself = True
        self._renamed = False  # whether a new manifest may be lost in a power cut
        self._look = look
        self._generations = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        # Of a command that runs, by its identity: where the log ended before and after its last turn.
        self._turn_ends: dict[int, tuple[int, int]] = {}
        self.stored = self.moved = 0  # how many runs; and to another file
        self.engine = self._opened()

    # --- an engine ------------------------------------------------------------------------------------------

    def _opened(self) -> Engine:
        """Open what is there; a disk that fails then is a refusal, and the next try finds everything."""
        try:
            return self._open()
        except LogRefusedError:
            if not self.storage.failed:
                raise
            return self._open()

    def _open(self) -> Engine:
        self.storage.look = self._before
        self.storage.now_s = self.clock.monotonic
        self.storage.appended = self.promises.appended
        caps = Caps(memory_bytes_soft=1) if self.stores else CAPS_DEFAULT
        engine = EarlyStoringEngine.open(self.storage, clock=self.clock, fsync=self.fsync, caps=caps)
        keyspace_of(engine).new_generation = lambda: f"{next(self._generations):016x}"
        if self.stores:
            self._watch_turns(engine)
        self.loop.run_until_complete(engine.start())
        return engine

    def _watch_turns(self, engine: Engine) -> None:
        """A command that waits for the disk runs later than it is asked for."""
        turns, run = engine._turns, engine._turns.run_commands  # noqa: SLF001 - as above

        def run_commands(commands: Sequence[Command], **how: Any) -> TurnResult:
            before = log_end(engine)
            ran = run(commands, **how)
            self._turn_ends |= {id(command): (before, log_end(engine)) for command in commands}
            for record, parts in commands[0].rows if isinstance(commands[0], StoreRuns) else ():
                self.stored += record in ran.turn.records
                self.moved += record in ran.turn.records and isinstance(parts[0], Run)
            return ran

        turns.run_commands = run_commands  # type: ignore[method-assign]

    def _before(self, operation: str, name: str) -> None:
        self.operations += 1
        is_of_log = file_number(name) is not None or run_number(name) is not None
        if operation == "unlink" and is_of_log and self._renamed:
            self.report(f"{name} is removed before the directory is synced after the manifest's rename")
        self._renamed = operation != "sync_directory" and (self._renamed or name == MANIFEST + TEMPORARY)
        if self._look is not None and not self.broken:
            self._look(self)

    def report(self, what: str) -> None:
        """Remember that a promise does not hold: raised here it would look like a fault of the disk."""
        self.broken.append(f"{what} [seed {self.seed}, {self.fsync}, operation {self.operations}]")

    def check(self) -> None:
        """Raise what was found broken."""
        if self.broken:
            raise BrokenPromiseError(self.broken[0])

    @property
    def refused_for_good(self) -> bool:
        """Whether the log has failed, and nothing that was changed since may be shown."""
        return "storage_failed" in self.refusals

    # --- a history ------------------------------------------------------------------------------------------

    def live(self, steps: int, *, restarts: bool = True, until_moved: bool = False) -> None:
        """Some hundred operations, with pauses and restarts, and a clean end; and up to five times as many
        `until_moved`, where none of them stored anew what is in files.
        """
        for command in self.clients.opening():
            self.do(command)
        self.settle()
        for step in range(_LONGER * steps):
            if step >= steps and (self.moved or not until_moved):
                break
            self._act()
            self.check()
            if restarts and self.chance.random() < 0.03:
                self.restart()
        self.settle()
        if not self.refused_for_good:
            self._compare()
        self._expect_answers()
        self._close_or_fail()
        self.check()

    def _expect_answers(self) -> None:
        """No command waits longer than was asked for, beside what the disk takes."""
        self.pass_ms(_ANSWERED_MS_MAX + int(_SLOW_OPERATIONS * self.loop.slow_s * 1_000))
        self.settle()
        if self._tasks:
            self.report(f"{len(self._tasks)} commands are never answered")

    def live_on(self, steps: int) -> None:
        """Some more operations, all of which are answered; the engine stays open."""
        for _ in range(steps):
            self._act()
        self.pass_ms(_STEP_MS)
        self.settle()
        self.check()

    def _act(self) -> None:
        kind = self.chance.random()
        if kind < 0.08:
            self.do(self.clients.waiting())
        elif kind < 0.12:
            self._spawn(self._transaction([self.clients.command() for _ in range(3)]))
        elif kind < 0.16 and self.rewrites_itself:
            self._spawn(self._rewrite())
        elif kind < 0.36 and self.stores:
            self.store()
        else:
            self.do(self.clients.command(), synced=kind > 0.97)
        if self.chance.random() < 0.6:
            self.pass_ms(self.chance.choice(_PAUSES_MS))
        if self.chance.random() < 0.5:
            self.settle()

    def store(self) -> None:
        """Memory is short, and what is full goes to files; what is left in sparse ones is stored anew."""
        storer = self.engine._storer  # noqa: SLF001 - at a moment of the history's own
        storer._not_before = 0.0  # noqa: SLF001 - it may have had nothing to do a moment ago
        self.loop.call_soon(storer.begin_if_due)
        self.loop.run_until_complete(asyncio.sleep(0))

    def do(self, command: Command, *, synced: bool = False) -> None:
        """Begin a command; whether it is answered at once is up to the engine."""
        self._spawn(self._execute(command, synced=synced))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        self.loop.run_until_complete(asyncio.sleep(0))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.report(f"a command ended with {task.exception()!r}")

    def settle(self) -> None:
        """Let everything happen that needs no time to pass."""
        for _ in range(_TURNS_MAX):
            if not self._tasks:
                break
            self.loop.run_until_complete(settle())

    def pass_ms(self, ms: int) -> None:
        """Let time pass, step by step."""
        while ms > 0:
            step = min(ms, _STEP_MS)
            self.clock.pass_ms(step)
            self.loop.run_until_complete(settle())
            ms -= step

    # --- commands and their replies -----------------------------------------------------------------------

    async def _execute(self, command: Command, *, synced: bool) -> None:
        self._remember_chosen(command)

        def note(reply: Reply, ends: tuple[int, int]) -> None:
            self._told(command, reply, self._turn_ends.pop(id(command), ends), synced=synced)

        await self._answer(self._run(command, synced=synced), note)

    async def _transaction(self, commands: list[Command]) -> None:
        for command in commands:
            self._remember_chosen(command)

        def note(replies: list[Reply | EngineError], ends: tuple[int, int]) -> None:
            for command, reply in zip(commands, replies, strict=True):
                if not isinstance(reply, EngineError):
                    self._told(command, reply, self._turn_ends.pop(id(command), ends))

        by_callback = self.chance.random() < _BY_CALLBACK
        turn = self._submit(commands) if by_callback else turn_of(self.engine, commands)
        await self._answer(turn, note)

    def _run(self, command: Command, *, synced: bool) -> Coroutine[Any, Any, Reply]:
        """The command in one of the ways that there are into the engine; HTTP uses them all."""
        may_wait = getattr(command, "block_ms", None) is not None
        if self.chance.random() >= _BY_CALLBACK or (may_wait and not isinstance(command, XReadGroup)):
            return reply_to(self.engine, command, synced=synced)
        if isinstance(command, XReadGroup) and not synced:
            return self._read(command)
        return self._submit_one(command, synced=synced)

    async def _submit_one(self, command: Command, *, synced: bool) -> Reply:
        (reply,) = await self._submit([command], synced=synced)
        if isinstance(reply, EngineError):
            raise reply
        return reply

    async def _submit(self, commands: list[Command], *, synced: bool = False) -> list[Reply | EngineError]:
        answered = _Answered(asyncio.get_running_loop())
        submit(self.engine, commands, answered.take, synced=synced)
        replies = list(await answered.replies)
        if len(replies) < len(commands) and isinstance(replies[0], EngineError):
            raise replies[0]
        return replies

    async def _read(self, command: XReadGroup) -> Reply:
        answered = _Answered(asyncio.get_running_loop())
        begin_read(self.engine, command, answered.take, going_on=self.chance.random() < 0.5)
        (reply,) = await answered.replies
        if isinstance(reply, EngineError):
            raise reply
        return reply

    async def _rewrite(self) -> None:
        try:
            await self.engine.rewrite()
            self.rewrites += 1
        except RewriteFailedError as refusal:
            self.refusals.append(str(refusal))

    async def _answer(self, turn: Coroutine[Any, Any, R], note: Callable[[R, tuple[int, int]], None]) -> None:
        """Tell of an answer the moment it leaves, with the positions before and after its turn."""
        loop = asyncio.get_running_loop()
        ends: list[int] = []

        async def taken() -> None:
            ends.append(log_end(self.engine))
            reply = await turn
            note(reply, (ends[0], ends[1] if len(ends) > 1 else log_end(self.engine)))

        work = loop.create_task(taken())
        # The loop keeps the order: what the turn logged, and nothing else, lies between the two looks.
        loop.call_soon(lambda: ends.append(log_end(self.engine)))
        try:
            await work
        except EngineError as refusal:
            self.refusals.append(refusal.code)

    def _remember_chosen(self, command: Command) -> None:
        if isinstance(command, XAdd):
            chosen = ((command.stream, one) for one in command.ids if isinstance(one, int))
            self.promises.chosen.update(chosen)

    def _told(self, command: Command, reply: Reply, ends: tuple[int, int], *, synced: bool = False) -> None:
        before, after = ends
        position = after if after > before else 0
        for stream, to, given in _shown(command, reply):
            self.clients.tell(stream, given)
            position = max(position, self.promises.show(stream, given, after, to))
        if isinstance(reply, Added | Published | Closed | DurableAppended) and not reply.duplicate:
            framed = {
                self.promises.added_at(name, one, after)
                for name, _, ids in _shown(command, reply)
                for one in ids
            }
            if len(framed) > 1:
                self.report(f"one command is in several frames: {sorted(framed)}")
        what = type(command).__name__
        self.promises.acknowledge(self.clock.monotonic(), position, what, synced=synced)

    # --- ends -----------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """End in some way, and begin again from what is there then."""
        kind = self.chance.choice(("close", "kill", "power", "segment", "base"))
        if kind in {"segment", "base"}:
            self.between_runs(next_segment if kind == "segment" else rewrite)
            return
        if kind == "close":
            self.settle()
            self.close()
        if self._look is not None:
            self._look(self)
        disk = self.storage.kill()
        if kind == "power":
            keep = self.chance.random()
            disk = self.storage.crash(
                name_changes=self.chance.randint(0, self.storage.unsynced_name_changes()),
                tail=lambda surely, live: surely + live[len(surely) :][: int(keep * len(live))],
            )
        if kind != "close":
            self.abandon()
        self.go_on(disk)

    def abandon(self) -> None:
        """Let the engine be forgotten as a killed process is: what it still writes goes nowhere."""
        self.storage.look = lambda *_: None
        self.storage.appended = lambda *_: None
        self._drop()
        self._close_or_fail()

    def go_on(self, disk: MemoryStorage) -> None:
        """Open what a disk holds. From now on that is what was promised, and no more."""
        self.storage = WatchedStorage.taking_over(disk)
        self.clock.pass_ms(self.chance.choice((0, 1, 50)))
        self.promises.cut(recovered_upto(disk.kill()))
        self.engine = self._open()
        self._compare()

    def between_runs(self, work: Callable[[MemoryStorage], None]) -> None:
        """Stop, let `work` be done on the directory, and begin again."""
        self.settle()
        self.close()
        disk = WatchedStorage.taking_over(self.storage.kill())
        disk.look, disk.appended = self._before, self.promises.appended
        self.storage = disk
        work(disk)
        self.go_on(disk)

    def _compare(self) -> None:
        # A frame is on record once it is written, which may be a thread's work.
        log = self.engine._writer.log  # noqa: SLF001 - as above
        for _ in range(_TURNS_MAX):
            if log.written_upto == log.staged_upto:
                break
            self.loop.run_until_complete(settle())
        keyspace = keyspace_of(self.engine)
        keyspace.check()
        # One snapshot at a time: a rewrite under way has it.
        if not self.engine.figures().rewrites.running and image(restored(keyspace)) != image(keyspace):
            self.report("a snapshot leaves something out")
        if image(keyspace_of(self.engine)) != self.promises.image_at(log_end(self.engine)):
            self.report("memory is not what the frames say")
        elif self.stores:
            self._read_back(keyspace)

    def _read_back(self, keyspace: Keyspace) -> None:
        try:
            found = contents(keyspace)
        except EngineError:
            self.report(f"entries cannot be read: {keyspace.runs.damaged}")
        else:
            if found != self.promises.contents_at(log_end(self.engine)):
                self.report("what is in files is not what the frames say")

    def _drop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        self.loop.run_until_complete(settle())

    def close(self) -> None:
        """Stop the engine in an orderly way."""
        closing = self.loop.create_task(self.engine.close())
        while not closing.done():
            self.pass_ms(_STEP_MS)
        self._drop()
        closing.result()

    def _close_or_fail(self) -> None:
        try:
            self.close()
        except (LogPoisonedError, OSError) as error:
            if not self.storage.failed:
                self.report(f"closing failed without reason: {error!r}")

    def end(self) -> None:
        """Let go of the loop."""
        self._drop()
        self.loop.close()


class _Answered:
    """The replies that a callback brings, unless the task that waits for them was killed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.replies: asyncio.Future[Sequence[Reply | EngineError]] = loop.create_future()

    def take(self, replies: Sequence[Reply | EngineError]) -> None:
        if not self.replies.cancelled():
            self.replies.set_result(replies)


def _shown(command: Command, reply: Reply | None) -> list[tuple[str, tuple[str, str] | None, list[int]]]:
    """Which IDs of which stream a reply shows, and to which consumer of a group they were delivered."""
    stream: str = getattr(command, "stream", "")
    if isinstance(reply, Added):
        return [(stream, None, list(reply.ids))]
    if isinstance(reply, Closed):
        return [] if reply.added is None else [(stream, None, list(reply.added.ids))]
    if isinstance(reply, AddedScheduled):
        return [] if reply.added is None else [(stream, None, list(reply.added.ids))]
    if isinstance(reply, DurableAppended):
        return [] if reply.duplicate else [(stream, None, [reply.last_id])]
    if isinstance(reply, Published):
        return [(name, None, list(added.ids)) for name, added in reply.streams]
    if isinstance(reply, Entries):
        return [(stream, None, _ids_in(reply.parts))]
    if isinstance(reply, StreamsRead):
        return [(one.stream, None, _ids_in(one.entries.parts)) for one in reply.streams]
    if isinstance(reply, GroupRead) and isinstance(command, XReadGroup):
        to = None if command.noack else (command.group, command.consumer)
        return [(one.stream, to, [each.id for each in one.entries]) for one in reply.streams]
    if isinstance(reply, Claimed | AutoClaimed) and isinstance(command, XClaim | XAutoClaim):
        return [(stream, (command.group, command.consumer), [each.id for each in reply.entries])]
    return []


def _ids_in(parts: Sequence[bytes]) -> list[int]:
    return [entries.id_of(text) for part in parts for text in entries.texts(part)]
