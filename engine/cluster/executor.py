"""Redis or Valkey as the engine: runs commands there, and has their replies in the engine's own terms.

Knows: how requests travel and come back, how reads wait.
Must never know: single commands, their words.

    send ────one request?──► its server's pipeline ──► done        no task, one write a cycle
                  └─no─────► `gathering`, as a task ──► done
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeVar

import msgspec

from engine import errors
from engine.clock import Clock
from engine.cluster import gathering, shadow, words
from engine.cluster.dead_letters import Dying, move
from engine.cluster.due import DueWork
from engine.cluster.figures import BackendFigures
from engine.cluster.gateways import Gateways
from engine.cluster.group_waits import GroupWaits
from engine.cluster.health import BackendHealth
from engine.cluster.keys import slot_of
from engine.cluster.levels import ALWAYS_MISSING
from engine.cluster.losses import Losses
from engine.cluster.maintenance import Maintenance
from engine.cluster.misfits import Misfit
from engine.cluster.node import Node
from engine.cluster.origins import Origins, unnumbered
from engine.cluster.refusals import about, name_of, not_supported, refusal_of, refusal_of_terms
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.scripts import WriteOrigin, cross_slot
from engine.cluster.sending import Sender, settled
from engine.cluster.stream_waits import StreamWaits
from engine.cluster.topology import Topology
from engine.cluster.wakeups import Wakeups
from engine.cluster.wire import ConnectionLostError, ServerError, Words, report
from engine.commands.base import BlockingCommand, Command, StreamCommand
from engine.commands.dead_letters import EXPIRED
from engine.commands.durable_commands import AppendDurable, CreateDurable
from engine.commands.types import Copy, Cursor, Delete, Exists, Rename, XAdd, XGroupCreateConsumer, XReadGroup
from engine.commands.weir_commands import AddEach, GiveBack, Publish, Undo
from engine.errors import EngineError
from engine.memory import Memory
from engine.protocol import Call, Events, Figures, How, unexpected
from engine.read_handle import Done, ReadHandle, Refused, Replies
from engine.replies import (
    Added,
    AddedScheduled,
    Closed,
    DeadLettered,
    Dropped,
    DurableAppended,
    GroupRead,
    Published,
    Reply,
    StreamsRead,
)
from engine.runtime import resident_bytes

# A waiting read looks again about that often, whether it was woken or not.
POLL_S: Final = 5.0
_SCAN_COUNT: Final = 1_000

# Commands that a server does once, however often they are sent.
_NUMBERED: Final = (XAdd, AddEach, AppendDurable, CreateDurable, Publish)

Finish = Callable[[Any], None]
T = TypeVar("T")


class ClusterEngine:
    """Implements `engine.protocol.EngineProtocol`. `start` it, `close` it at the end."""

    def __init__(self, topology: Topology, clock: Clock, poll_s: float = POLL_S) -> None:
        self.events: Final = Events()
        self.memory: Final = Memory()
        self._appended = 0
        self._streams = 0
        self._topology = topology
        self._clock = clock
        self._origins = Origins(clock)
        self._sender = Sender(topology, self._origins.end_write, self._explain)
        self.health: Final = BackendHealth(topology, self._ask, clock, self._observe)
        self._losses = Losses()
        self.health.on_restart = self._losses.note_restart
        self._loop = asyncio.get_running_loop()
        self._keeping: Sequence[asyncio.Task[None]] = ()
        self._tasks: set[asyncio.Task[None]] = set()
        front = secrets.token_hex(8)
        self._wakeups = Wakeups(
            Node.listen, topology.node_of, poll_s, front, topology.database, topology.figures
        )
        nodes, timeout_s = (lambda: topology.nodes), topology.timeout_s
        self.maintenance: Final = Maintenance(
            self.run_request, self._ask, nodes, self._silent_readers, front, poll_s, timeout_s
        )
        # Called with why the server sends no notifications: then waiting reads look again, and are not woken.
        self.on_missing_events: Callable[[str], None] = lambda _: None
        self._wakeups.on_missing_events = self._note_missing_events
        self.gateways: Final = Gateways(self.run_request, self._wakeups)
        self._due = DueWork(self.run_request, clock, self._note_fired)
        self.maintenance.note_schedule = self._due.note_schedule
        counts = self.maintenance.schedules
        self._shadow = shadow.Shadow(self.run_request, self._origins.begin_write, counts)
        # Of each stream on which a command runs in two steps, the writes behind it.
        self._behind: dict[str, list[Callable[[], None]]] = {}
        self._group_waits = GroupWaits(self._wakeups, self._read_group, self._take_back)
        self._stream_waits = StreamWaits(self._wakeups, self._run)

    def start(self) -> asyncio.Future[None]:
        """Begin to connect; done once all servers have answered."""
        self._topology.on_change = self._wakeups.rearrange
        self._topology.start()
        is_up: asyncio.Future[None] = self._loop.create_future()
        work = (self.health.keep_on(is_up), self.maintenance.keep_on())
        self._keeping = [self._loop.create_task(one) for one in work]
        return is_up

    async def close(self) -> None:
        """End all connections; what has no reply yet is refused."""
        self.end_waits()
        for task in self._keeping:
            task.cancel()
        self._due.close()
        self._sender.close()
        await self._wakeups.close()
        await self._topology.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- the way in

    @property
    def durability(self) -> str:
        """What an answer to a write promises."""
        return self._topology.durability.name

    @property
    def delivery_durability(self) -> str:
        """See `CommandEngine`. A delivery that is lost is made again: it waits for no replica."""
        return "memory"

    def send(self, call: Call, done: Done) -> Replies | None:
        """See `engine.protocol`. Nothing is answered at once."""
        refusal = refusal_of_terms(call, syncs=self._topology.durability.disks > 0)
        if call.waits is not None:
            call.waits.begin(call.commands[0], done, self._take_back)
            if refusal is None:
                self._read(call, call.waits)
            else:
                self._loop.call_soon(call.waits.answer, Refused(refusal))
        elif refusal is not None:
            self._loop.call_soon(done, call.refused(refusal))
        elif call.how is How.ALONE:
            (command,) = call.commands
            self._note_read(command)
            self._submit(command, lambda reply: done([reply]), call.origin)
        else:
            self._spawn(self._answer(call, done))
        return None

    async def _answer(self, call: Call, done: Done) -> None:
        run = self._each if call.how is How.EACH else self._together
        replies = await _attempt(run(call), call.origin)
        done(call.refused(replies) if isinstance(replies, EngineError) else replies)

    async def _each(self, call: Call) -> Replies:
        return await self.run_each(call.commands, call.origin)

    async def run_each(self, commands: Sequence[Command], origin: str = "") -> Replies:
        """Run them in their order where they are of one server; a refusal in its place."""
        replies: list[Reply | EngineError] = []
        # Writes go out together, so that one confirmation is for all of them.
        for is_write, some in groupby(commands, self._is_one_write):
            running = (_attempt(self._run_at_once(command), origin) for command in some)
            if is_write:
                replies += await asyncio.gather(*running)
            else:
                replies += [await one for one in running]
        return replies

    async def _together(self, call: Call) -> Replies:
        """One turn needs one server."""
        commands = [command.to_nonblocking() for command in call.commands]
        requests = [self._request(command, is_repeatable=False) for command in commands]
        together = [request for request in requests if request is not None]
        is_one = self._is_one_turn([request.stream for request in together])
        if len(together) == len(requests) and is_one:
            found = await self._turn_on_heads(commands, together, call.origin)
            for command, reply in zip(commands, found, strict=True):
                self._note_run(command, reply)
            return [
                about(reply, command) if isinstance(reply, EngineError) else reply
                for command, reply in zip(commands, found, strict=True)
            ]
        if len(commands) == 1 or not any(command.changes for command in commands):
            return [await _attempt(self._run(command), call.origin) for command in commands]
        if is_one:
            raise not_supported(
                "a transaction with a command on all or on several streams", self.health.level.name
            )
        raise cross_slot()

    async def _turn_on_heads(
        self, commands: Sequence[Command], requests: Sequence[BackendRequest], origin: str
    ) -> Replies:
        """A turn, again where a command's head has changed by then, unless others would be done twice."""
        if not any(map(shadow.is_shadowed, commands)):
            return await self._turn(requests, origin)
        may_repeat = all(
            shadow.is_shadowed(command) or not command.changes or isinstance(command, XGroupCreateConsumer)
            for command in commands
        )
        found: Replies = ()
        for _ in range(shadow.ATTEMPTS_MAX):
            first, whole = await self._shadow.begin_turn(commands, requests)
            found = (await self._turn([*first, *whole], origin))[len(first) :]
            if not may_repeat or not any(isinstance(reply, shadow.ChangedError) for reply in found):
                break
        return found

    async def _turn(self, requests: Sequence[BackendRequest], origin: str) -> Replies:
        """Requests of one turn, each with its own refusal. All or nothing by the server, but for these."""
        results: list[Any] = []

        def keep(kept: Sequence[Any]) -> list[Any]:
            results.extend(kept)
            return results

        whole = words.join(requests)
        if whole.lane is not Lane.READ:
            whole = whole.with_texts()
        await self.run_request(msgspec.structs.replace(whole, decode=keep, takes_refusals=True))
        replies: list[Reply | EngineError] = []
        for request in requests:
            own, results = results[: len(request.commands)], results[len(request.commands) :]
            reply = settled(request, own)
            self._count(reply)
            replies.append(await _attempt(self._move(reply), origin) if isinstance(reply, Dying) else reply)
        return replies

    def _note_run(self, command: Command, reply: Reply | EngineError) -> None:
        if isinstance(command, AppendDurable) and isinstance(reply, DurableAppended) and not reply.duplicate:
            self._appended += len(command.bodies)
        self._group_waits.note_run(command)
        self._due.note_run(command, reply)
        self.maintenance.schedules.note_run(command, reply)

    def _read(self, call: Call, handle: ReadHandle) -> None:
        (command,) = call.commands
        assert isinstance(command, BlockingCommand), "only these wait"
        cursors = [cursor for _, cursor in command.streams]
        if not isinstance(command, XReadGroup) or command.block_ms is None:
            self._read_streams(command, handle, call.origin)
        elif all(cursor is Cursor.NEW for cursor in cursors):
            self._read_in_lane(command, handle)
        else:
            # History is answered at once, empty too: what is pending does not come from elsewhere.
            self._read_streams(command.to_nonblocking(), handle, call.origin)

    def _note_read(self, command: Command) -> None:
        if isinstance(command, XReadGroup):
            self.maintenance.note_read(command.named_streams())

    # --- running

    def _gatherer(self, command: Command) -> gathering.Gather | None:
        if isinstance(command, Delete | Exists) and self._is_one_turn(command.streams):
            return None
        return gathering.gatherer(command)

    def _is_one_turn(self, streams: Collection[str]) -> bool:
        """Whether one server has all of them, now and always."""
        return not self._topology.has_slots or len({slot_of(name.encode()) for name in streams}) <= 1

    def _is_one_write(self, command: Command) -> bool:
        """Whether it is one request on the connection for writes, which keeps their order."""
        is_other = isinstance(command, XReadGroup) or shadow.is_shadowed(command)
        return command.changes and not is_other and self._gatherer(command) is None

    def _request(self, command: Command, *, is_repeatable: bool = True) -> BackendRequest | None:
        """The one request of a command, None where it takes several. Raises EngineError."""
        if shadow.is_shadowed(command):
            return shadow.in_place(command)
        if self._gatherer(command) is not None:
            return None
        is_numbered = is_repeatable and isinstance(command, _NUMBERED)
        origin = self._origins.begin_write() if is_numbered else unnumbered(self._clock.wall_ms())
        try:
            request = self._made(command, origin)
        except BaseException:
            self._origins.end_write(origin.number)
            raise
        if request is None:
            raise not_supported(name_of(command), self.health.level.name)
        return request

    def _made(self, command: Command, origin: WriteOrigin) -> BackendRequest | None:
        if isinstance(command, Publish):
            return words.publish(command, origin, has_slots=self._topology.has_slots)
        if isinstance(command, Rename | Copy | CreateDurable) and not self._is_one_turn(
            command.named_streams()
        ):
            raise cross_slot()
        return words.request(self._losses.informed(command), origin)

    async def _run(self, command: Command) -> Reply:
        if shadow.is_shadowed(command):
            done = await self._shadow.run(command)
            self._note_run(command, done)
            return done
        gather = self._gatherer(command)
        if gather is not None:
            gathered = await gather(self, self._losses.informed(command))
            self._count(gathered)
            self.maintenance.schedules.note_run(command, gathered)
            return gathered
        request = self._request(command)
        assert request is not None, "it is not gathered"
        try:
            reply: Reply = await self.run_request(request)
        except EngineError as refusal:
            raise about(refusal, command) from None
        self._note_run(command, reply)
        return reply

    async def _run_at_once(self, command: Command) -> Reply:
        return await self._run(command.to_nonblocking())

    def _submit(
        self, command: Command, finish: Callable[[Reply | EngineError], None], origin: str = ""
    ) -> None:
        """Run a command by callback, without waiting: without a task where it is one request."""
        if self._behind and command.changes:
            for name in self._behind.keys() & {*(command.named_streams() or ())}:
                self._behind[name].append(partial(self._submit, command, finish, origin))
                return
        if shadow.is_shadowed(command) and command.changes:
            self._behind[shadow.in_place(command).stream] = []
            self._spawn(self._run_before_others(command, finish, origin))
            return
        try:
            command = command.to_nonblocking()
            request = None if shadow.is_shadowed(command) else self._request(command)
        except Exception as error:  # noqa: BLE001 - the caller gets a reply
            self._loop.call_soon(finish, _refusal_of(error, origin))
            return
        if request is None:
            self._spawn(_finish(self._run(command), finish, origin))
            return

        def settle(reply: Any) -> None:  # noqa: ANN401 - a reply or EngineError
            self._count(reply)
            if isinstance(reply, Dying):
                self._spawn(_finish(self._move(reply), finish, origin))
            else:
                finish(about(reply, command) if isinstance(reply, EngineError) else reply)
            self._note_run(command, reply)

        self._send(request, settle)

    async def _run_before_others(self, command: Command, finish: Finish, origin: str) -> None:
        """Run a command in two steps; writes that come later stay behind it."""
        try:
            await _finish(self._run(command), finish, origin)
        finally:
            for go_on in self._behind.pop(shadow.in_place(command).stream):
                go_on()

    def _send(self, request: BackendRequest, finish: Finish) -> None:
        if request.lane is Lane.WRITE and not self.health.can_confirm:
            # Sent, it would be stored, and then refused.
            needs = f"{self.health.level.name}: it needs WAITAOF and an append-only file"
            self._origins.end_write(request.number)
            self._loop.call_soon(finish, not_supported(f"backend_durability={self.durability}", needs))
            return
        self._sender.send(request, finish)

    def _explain(self, stream: str, full: EngineError, finish: Finish) -> None:
        self._spawn(self._name_kept_whole(stream, full, finish))

    async def _name_kept_whole(self, stream: str, full: EngineError, finish: Finish) -> None:
        """Finish with the refusal; it names the stream where that keeps all until it has a group."""
        try:
            info = await self.run_request(words.describe_stream(stream, is_use=False))
        except EngineError:
            finish(full)
        else:
            finish(errors.with_held(full, stream) if info.held_by and not info.held_id else full)

    def _count(self, reply: object) -> None:
        if isinstance(reply, Dropped):
            reply = reply.reply
        if isinstance(reply, StreamsRead):
            self._losses.note(reply)
            return
        if isinstance(reply, Closed | AddedScheduled):
            reply = reply.added
        if isinstance(reply, Added | Published) and not reply.duplicate:
            added = (reply,) if isinstance(reply, Added) else (run for _, run in reply.streams)
            self._appended += sum(len(run.ids) for run in added)

    def _note_fired(self, entries: int) -> None:
        self._appended += entries

    async def run_request(self, request: BackendRequest) -> Any:  # noqa: ANN401 - as `decode` makes it
        """Run one request. Raises EngineError."""
        replied: asyncio.Future[Any] = self._loop.create_future()
        self._send(request, lambda reply: None if replied.done() else replied.set_result(reply))
        reply = await replied
        if isinstance(reply, EngineError):
            raise reply
        self._count(reply)
        return await self._move(reply) if isinstance(reply, Dying) else reply

    async def _move(self, dying: Dying) -> Reply:
        """Move dead letters, then reply what their finder replies. Raises EngineError where a caller named
        them and none could be moved.
        """
        moved = await move(self.run_request, dying)
        names = (dying.stream, dying.group)
        if moved.entries and dying.letters:
            self.events.dead_lettered([(*names, due.id, due.reason) for due in moved.entries])
        expired = dying.expired + sum(due.reason is EXPIRED for due in moved.entries)
        if expired:
            self.events.expired([(*names, expired)])
        if moved.refusals:
            refused = [(*names, dying.letters, refusal.detail) for refusal in moved.refusals]
            self.events.letters_refused(refused)
        reply: Reply = dying.reply
        if not isinstance(reply, DeadLettered):
            return reply
        if moved.refusals and not moved.entries:
            raise moved.refusals[0]
        return msgspec.structs.replace(reply, ids=moved.ids)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            report("a command by callback failed", error)

    async def scan(self, pattern: str, kind: str = "stream") -> Sequence[bytes]:
        """The names of all keys of a type that match, in no order. Raises EngineError."""
        keys: list[bytes] = []
        for node in self._topology.nodes:
            cursor: bytes | int = 0
            while True:
                scan: Words = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT, "TYPE", kind)
                cursor, names = (await self._ask(node, [scan]))[0]
                keys += names
                if cursor == b"0":
                    break
        return keys

    async def is_allowed_all(self) -> bool:
        """Whether the servers let the gateway read any key. Raises EngineError."""
        # No pattern but one of all keys has this name.
        name = secrets.token_hex(16)
        for node in self._topology.nodes:
            (reply,) = await self._replies(node, [words.try_to_read(name)])
            if isinstance(reply, ConnectionLostError):
                raise refusal_of(reply, writes=False)
            # Another server may have its slot: that says that it is allowed.
            if isinstance(reply, ServerError) and reply.code == "NOPERM":
                return False
        return True

    async def _ask(self, node: Node, commands: Sequence[Words]) -> Sequence[Any]:
        """Send commands that change nothing to one server. Raises EngineError."""
        results = await self._replies(node, commands)
        for result in results:
            if isinstance(result, ServerError | ConnectionLostError):
                raise refusal_of(result, writes=False)
        return results

    async def _replies(self, node: Node, commands: Sequence[Words]) -> Sequence[Any]:
        """The replies of one server, refusals among them."""
        replied: asyncio.Future[Sequence[Any]] = self._loop.create_future()
        node.send(
            commands, Lane.READ, lambda replies: None if replied.done() else replied.set_result(replies)
        )
        return await replied

    # --- waiting

    def _read_streams(self, command: BlockingCommand, handle: ReadHandle, origin: str) -> None:
        """Run a read that takes nothing, or that does not wait."""
        ended: asyncio.Future[None] = self._loop.create_future()

        async def wait() -> Reply:
            self._note_read(command)
            return await self._stream_waits.read(command, ended)

        async def run() -> None:
            handle.answer([await _attempt(wait(), origin)])

        task = self._spawn(run())

        def leave() -> None:
            # What a group's read brings is taken back when it is there.
            if not isinstance(command, XReadGroup):
                task.cancel()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        handle.wait(end, leave)

    def _read_in_lane(self, command: XReadGroup, handle: ReadHandle) -> None:
        """Wait for entries of a group behind those that came before."""
        self._note_read(command)

        def serve(reply: GroupRead | EngineError) -> None:
            handle.serve(reply)
            # Never before what ended the wait returns.
            self._loop.call_soon(handle.answer, [reply])

        waiter = self._group_waits.begin_read(command, serve)
        handle.wait(waiter.end, waiter.cancel)

    def _silent_readers(self, streams: Collection[str]) -> dict[str, set[tuple[str, str]]]:
        """See `Maintenance`. The first reader of a lane asks by itself, for as long as it waits."""
        first, behind = self._group_waits.readers()
        silent = {name: {*behind.get(name, ()), *self.events.active_readers(name)} for name in streams}
        return {
            name: found - first.get(name, set()) for name, found in silent.items() if found or name in first
        }

    def _read_group(self, command: XReadGroup, done: Callable[[Any], None]) -> None:
        self._submit(command, done)

    def _take_back(self, command: StreamCommand) -> None:
        """Take back what a read brought for a client that has left, and let the next one have it."""
        assert isinstance(command, Undo | GiveBack), "these take back"
        lane = (command.stream, command.group)
        self._submit(command, lambda _: self._group_waits.wake([lane]))

    def end_waits(self) -> None:
        """See `EngineProtocol`."""
        self._stream_waits.end()
        self._group_waits.end()

    # --- how it is

    @property
    def failure(self) -> str | None:
        """Why the servers cannot be used now; None where they can."""
        return self.health.failure or self.gateways.failure

    @property
    def misfit(self) -> str | None:
        """Why these servers can never be used as the settings name them; None where they can, or may."""
        return self.failure if isinstance(self.failure, Misfit) else None

    def _observe(self, streams: int) -> None:
        """Note how large all is, now that the servers have said it."""
        self._streams = streams
        self.memory.observe(resident_bytes())

    def _note_missing_events(self, reason: str) -> None:
        self.on_missing_events(reason)

    @property
    def backend_figures(self) -> BackendFigures:
        """What is counted of the servers."""
        return self._topology.figures

    def figures(self) -> Figures:
        """See `EngineProtocol`. Schedules are of all gateways, as the last round has found them; those that
        were dropped as far as this gateway has ended their streams, or found them gone.
        """
        schedules = self.maintenance.schedules
        return Figures(
            streams=self._streams,
            expiring_streams=0,
            mean_expiry_ms=0,
            schedules=schedules.count,
            schedules_late_s=schedules.late_ms / 1000,
            schedules_dropped=schedules.dropped,
            appended=self._appended,
            waiting=len(self._group_waits) + len(self._stream_waits),
            outage=self.health.outage or self.gateways.failure,
            backend=self.health.level.name,
            missing=self._missing(),
        )

    def begin_rewrite(self) -> object:
        """Refused: the log is the server's. Raises EngineError."""
        raise not_supported("rewriting the log", "the log is the server's")

    def _missing(self) -> Sequence[str]:
        events = self._wakeups.missing_events
        promise = [] if self.health.unkept_promise is None else [f"backend_durability={self.durability}"]
        syncs = [] if self._topology.durability.disks else ["durability=fsync"]
        return [*ALWAYS_MISSING, *syncs, *promise, *([] if events is None else ["prompt waking of reads"])]


async def _attempt(work: Awaitable[T], origin: str) -> T | EngineError:
    """Its reply, or why there is none: what called with a callback gets one in any case."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - it is reported
        return _refusal_of(error, origin)


async def _finish(work: Awaitable[Reply], finish: Finish, origin: str) -> None:
    finish(await _attempt(work, origin))


def _refusal_of(error: Exception, origin: str) -> EngineError:
    return error if isinstance(error, EngineError) else unexpected(origin, error)
