"""The commands of one caller in order, one piece of work at a time, whichever door they came by.

    words ─► parse: limits of what it carries ─► rights ─► bound: limits of what it may get
          ─► CommandRun: what goes together ─► the engine, with others ─┐
          └► by itself: what waits, takes two steps, a transaction ─────┴► replies ─► a codec ─► its host

Knows: what goes together, when a reply is written, in which order replies leave, what is undone if the caller
has left by then; that a reply which cannot be written fails alone.
Must never know: sockets, statuses, media types, the form of words and replies, who is answered how.

A plain XADD is `XADD stream * name value …` without options: what nearly every publisher sends. A run of them
costs a few microseconds for each, because the engine appends their entries at once. Readers see them at once
too.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from app import logs, names, redis
from app.errors import CODES, RefusalError
from app.limits import CommandLimits, text_bytes
from app.live.turns import slice_of
from app.live.waiting import Wait
from app.redis.bounds import takes_two_steps
from app.redis.parsers.table import changing
from app.redis.request import CommandRequest, Visible
from app.redis.resp import Resp
from app.redis.rights import within_rights
from app.work import Work, dropped
from engine import Call, EngineError, How, ReadHandle, ask, errors
from engine.commands.base import BlockingCommand, Command
from engine.commands.types import XReadGroup
from engine.commands.weir_commands import AddEach, Unchanged
from engine.replies import Added, Reply

_LOADING: Final = "LOADING Redis is loading the dataset in memory"
_ANSWER: Final = "answer_bytes_max"
_TOGETHER: Final = "buffer_bytes_max"
# All replies of a transaction are made at once; they take this much, and half of what all connections have.
_REPLIES_BYTES_MAX: Final = 64 << 20
# Parsed commands between two looks at the clock: each takes some microseconds.
ITEMS_A_LOOK: Final = 8
# BLOCK 0 waits as long as the client does.
_FOREVER_MS: Final = 10 * 365 * 24 * 3_600_000
# To find a member in its class takes Python 3.11 a third of a microsecond.
_ALONE: Final = How.ALONE
_EACH: Final = How.EACH

T = TypeVar("T")
Words: TypeAlias = Sequence[bytes]

# A parsed command, or the reason why it is invalid.
Parsed: TypeAlias = CommandRequest | EngineError
# What a command of a run comes to: the request and the engine's reply, where there is one; or the ID of an
# entry that a plain XADD has added.
RunResult: TypeAlias = tuple[CommandRequest, Reply | EngineError | None] | EngineError | int

# Commands, and IDs that they name: about 10 ms of the event loop.
RUN_COMMANDS_MAX: Final = 1_000
RUN_ENTRY_BYTES_MAX: Final = 1 << 20

_XADD: Final = frozenset({b"XADD", b"xadd"})
_to_json: Final = msgspec.json.Encoder().encode


class Adds(msgspec.Struct):
    """Consecutive plain XADDs to one stream."""

    key: bytes
    stream: str
    bodies: list[bytes]

    def command(self) -> AddEach:
        """What the engine has to run."""
        return AddEach(stream=self.stream, bodies=self.bodies, apart=True)


def stream_of(key: bytes) -> str | None:
    """The stream of this name; None if it is none."""
    try:
        return names.check(key, "stream name")
    except EngineError:
        return None


def parse(words: Words, limits: CommandLimits) -> Parsed:
    """The command within the limits of what it carries, or why it is invalid. A thread may do it."""
    try:
        return redis.checked(redis.parse(words), limits)
    except EngineError as invalid:
        return invalid


class CommandRun:
    """Commands in order. `find` returns the stream of a plain XADD, None where it may not be added to."""

    __slots__ = (
        *("_adding", "_find", "_ids", "_limits", "count", "entry_bytes", "items", "long"),
        "words_bytes",
    )

    def __init__(self, limits: CommandLimits, find: Callable[[bytes], str | None] = stream_of) -> None:
        self._limits = limits
        self._find = find
        self.items: list[Adds | Parsed] = []
        self._adding: Adds | None = None
        self.count = 0
        self.entry_bytes = 0
        # Of what a caller has sent; of plain XADDs the entries.
        self.words_bytes = 0
        self._ids = 0
        # Whether a reply may be long; one at most.
        self.long = False

    def is_full(self) -> bool:
        """Whether the run is as long as the event loop allows."""
        return self.count + self._ids >= RUN_COMMANDS_MAX or self.entry_bytes >= RUN_ENTRY_BYTES_MAX

    def add_plain(self, words: Sequence[bytes]) -> bool:
        """Add a plain XADD; False if these words are something else, or invalid."""
        number = len(words)
        if number < 5 or words[2] != b"*" or words[0] not in _XADD or not number % 2:
            return False
        body = body_of(words[3:], self._limits)
        adding = None if body is None else self._adds_to(words[1])
        if body is None or adding is None:
            return False
        adding.bodies.append(body)
        self.count += 1
        self.entry_bytes += len(body)
        self.words_bytes += len(body)
        return True

    def add_alike(self, commands: Sequence[Sequence[bytes]]) -> bool:
        """Add plain XADDs to one stream with the same names in the same order, a column at a time: a third of
        the time of `add_plain` for each. False, with nothing added, if one of them is something else, or if
        they may be too much for the run.
        """
        first, number = commands[0], len(commands[0])
        if number < 5 or first[2] != b"*" or first[0] not in _XADD or not number % 2:
            return False
        if {*map(len, commands)} != {number} or self.count + len(commands) > RUN_COMMANDS_MAX:
            return False
        columns = [*zip(*commands, strict=True)]
        fixed = (0, 1, 2, *range(3, number, 2))
        if any(columns[place].count(first[place]) != len(commands) for place in fixed):
            return False
        bodies, limits = _bodies_of(first[3::2], columns[4::2]), self._limits
        if not bodies or number // 2 - 1 > limits.entry_fields_max:
            return False
        sizes = [*map(len, bodies)]
        if max(sizes) > limits.entry_bytes_max or self.entry_bytes + sum(sizes) > RUN_ENTRY_BYTES_MAX:
            return False
        adding = self._adds_to(first[1])
        if adding is None:
            return False
        adding.bodies += bodies
        self.count += len(bodies)
        self.entry_bytes += sum(sizes)
        self.words_bytes += sum(sizes)
        return True

    def _adds_to(self, key: bytes) -> Adds | None:
        """The entries that are being added to this stream; None where the caller may not add to it."""
        if self._adding is not None and self._adding.key == key:
            return self._adding
        stream = self._find(key)
        if stream is None:
            return None
        self._adding = Adds(key, stream, [])
        self.items.append(self._adding)
        return self._adding

    def add(self, parsed: Parsed, words_bytes: int = 0) -> None:
        """Add any other command, of words of this size."""
        self.append(parsed)
        self.words_bytes += words_bytes
        if isinstance(parsed, CommandRequest) and parsed.command is not None:
            self.entry_bytes += parsed.command.entry_bytes()
            self._ids += len(parsed.command.named_ids())

    def take(
        self, parsed: Parsed, bound: Callable[[CommandRequest], CommandRequest], words_bytes: int = 0
    ) -> bool:
        """Add it, unless it is by itself, or for the next run: a long reply leaves before the next is made,
        and short ones leave with it. `bound` limits what it may get.
        """
        if isinstance(parsed, CommandRequest):
            if runs_alone(parsed):
                return False
            if redis.is_long(parsed):
                if self.long:
                    return False
                self.long, parsed = True, bound(parsed)
        self.add(parsed, words_bytes)
        return True

    def append(self, parsed: Parsed) -> None:
        """Add any other command, without a look at how much it adds to the run."""
        self._adding = None
        self.items.append(parsed)
        self.count += 1

    def add_adds(self, adds: Adds) -> None:
        """Add plain XADDs of another run."""
        self._adding = None
        self.items.append(adds)
        self.count += len(adds.bodies)
        self.entry_bytes += sum(map(len, adds.bodies))

    @property
    def only_adds(self) -> Adds | None:
        """What it adds, if it is plain XADDs to one stream and nothing else."""
        adds = self.items[0] if len(self.items) == 1 else None
        return adds if isinstance(adds, Adds) else None

    def commands(self) -> list[Command]:
        """What the engine has to run."""
        found: list[Command] = []
        for item in self.items:
            if isinstance(item, CommandRequest):
                if item.command is not None:
                    found.append(item.command)
            elif isinstance(item, Adds):
                found.append(item.command())
        return found

    def outcomes(
        self, replies: Sequence[Reply | EngineError], begun_ms: int | None = None, ended_ms: int | None = None
    ) -> Iterator[RunResult]:
        """What each command comes to; `replies` has one for each of `commands`. What needs no engine has for
        its reply when these began, or when they ended if it is behind one: who asks for TIME on both sides of
        a command learns between which times that ran.
        """
        given, now_ms = iter(replies), begun_ms
        for item in self.items:
            if isinstance(item, CommandRequest):
                now_ms = now_ms if item.command is None else ended_ms
                yield item, now_ms if item.command is None else next(given)
            elif isinstance(item, Adds):
                now_ms = ended_ms
                yield from each_added(next(given), len(item.bodies))
            else:
                yield item


def body_of(words: Sequence[bytes], limits: CommandLimits) -> bytes | None:
    """The body of an entry with these names and values; None where they are not plain, or too much."""
    try:
        texts = [*map(bytes.decode, words)]
    except UnicodeDecodeError:
        return None
    fields = dict(zip(texts[::2], texts[1::2], strict=True))
    body = b',"fields":%b}' % _to_json(fields)
    is_plain = 2 * len(fields) == len(texts) and len(fields) <= limits.entry_fields_max
    return body if is_plain and len(body) <= limits.entry_bytes_max else None


def _bodies_of(names: Sequence[bytes], columns: Sequence[Sequence[bytes]]) -> list[bytes]:
    """The bodies of entries with these names, from a column of values of each; none where JSON has to escape
    something, or a name occurs twice.
    """
    # A blank is part of no other character. What JSON escapes gets longer.
    joined = b" ".join([*names, *chain.from_iterable(columns)])
    try:
        text = joined.decode()
    except UnicodeDecodeError:
        return []
    if len(_to_json(text)) != len(joined) + 2 or len({*names}) != len(names):
        return []
    fields = b",".join([b'"%b":"%%b"' % name.replace(b"%", b"%%") for name in names])
    return [*map((b',"fields":{%b}}' % fields).__mod__, zip(*columns, strict=True))]


def sent_together(
    commands: Sequence[Command], replies: Sequence[Reply | EngineError], *, is_part: bool
) -> Sequence[Reply | EngineError]:
    """The replies of commands that a client has sent together, `is_part`: with others. A client that repeats
    what is refused repeats all of it: so it may only where nothing was changed.
    """
    refused = [reply for reply in replies if isinstance(reply, EngineError)]
    if not any(errors.is_repeated(refusal.redis) for refusal in refused):
        return replies
    maybe = [
        command
        for command, reply in zip(commands, replies, strict=True)
        if command.changes
        and (not isinstance(reply, EngineError) or reply.members.get("outcome") == "unknown")
    ]
    if not (maybe or is_part):
        return replies
    return [errors.unrepeated(reply) if isinstance(reply, EngineError) else reply for reply in replies]


def each_added(reply: Reply | EngineError | None, number: int) -> Iterator[EngineError | int]:
    """The ID of each entry, and the refusal of those that were refused, or for which there were no IDs."""
    if isinstance(reply, EngineError):
        yield from [reply] * number
        return
    assert isinstance(reply, Added), "AddEach adds"
    given, refused = iter(reply.ids), {*reply.refused}
    for place in range(number):
        if place in refused:
            yield errors.invalid(f"ERR {reply.refusal}", reply.refusal)
        else:
            yield next(given, None) or errors.stream_exhausted()


def runs_alone(parsed: CommandRequest) -> bool:
    """Whether the command cannot be part of a run: it waits for entries or the disk, or takes two steps."""
    blocks = getattr(parsed.command, "block_ms", None) is not None
    return blocks or parsed.synced or takes_two_steps(parsed)


# ---- how replies are written


class Room(NamedTuple):
    """The most bytes that a reply may take as text, and the setting that says so."""

    bytes_max: int
    name: str = _ANSWER


class Codec(Protocol):
    """How replies are encoded; `frame_bytes` stand around each that has text of its own. `is_repeated`: its
    clients repeat by themselves what is refused in certain words.
    """

    frame_bytes: ClassVar[int]
    is_repeated: ClassVar[bool]

    def refusal(self, refusal: EngineError) -> bytes:
        """Encode a refusal."""

    def immediate(self, answer: Resp) -> bytes:
        """Encode the answer of a command that needs no engine."""

    def reply(self, parsed: CommandRequest, reply: Reply | EngineError, visible: Visible) -> bytes:
        """Encode the engine's reply; names of streams that are not visible are left out. Raises EngineError:
        the reply itself, or what Redis reports after it has found the key.
        """

    def each_id(self, entry_ids: Sequence[int]) -> bytes:
        """Encode the replies of plain XADDs."""

    def join(self, written: Sequence[bytes]) -> bytes:
        """Put replies one behind the other."""


class Host(Protocol):
    """What its commands are run for: a connection, or a request."""

    @property
    def is_gone(self) -> bool:
        """Whether nothing more reaches the caller."""

    @property
    def joins(self) -> bool:
        """Whether others may ask the same in this cycle, as one command."""

    def put(self, written: bytes) -> None:
        """Let this leave."""

    def go_on(self) -> None:
        """The work that was under way is done."""

    def refuse(self, error: BaseException, name: str = "") -> bytes | None:
        """What work is answered that has failed as a whole; None where the host ends with it: which commands
        have changed something is not known then. `name` is a command's of the host itself.
        """


def _nothing() -> None:
    pass


class CommandQueue:
    """The commands of one caller. `waiting` are those that have not begun, as the host has them; `is_busy`:
    work is under way, and the host goes on when it is done.
    """

    def __init__(self, work: Work, codec: Codec, host: Host, waiting: "deque[Any]") -> None:
        gateway = work.gateway
        self.work = work
        self.codec = codec
        self.waiting = waiting
        self.is_busy = False
        # The read that is waited for.
        self.blocked: Wait | None = None
        # Why nothing more is run: the caller's token has ended, or the gateway stops.
        self.end: EngineError | None = None
        self.limits: Final = gateway.limits.commands
        self.room: Final = Room(gateway.settings.answer_bytes_max)
        self._host = host
        self._clock = gateway.clock
        # Whether what was sent together with the command under way has run, or will.
        self._is_part = False
        # What to call if the caller has left when the work under way is done.
        self._unsent: Callable[[], None] = _nothing

    # ---- before it runs

    def parse(self, words: Words) -> Parsed:
        """The command within the limits of what it carries, or why it is invalid."""
        return self.admit(words, parse(words, self.limits))

    def admit(self, words: Words, parsed: Parsed) -> Parsed:
        """A command as its caller may run it. The audit log has a line of one that is invalid."""
        if isinstance(parsed, CommandRequest):
            return within_rights(parsed, self.work.principal)
        row = changing(words) if words and self.work.gateway.access.audit.is_on else None
        if row is not None:
            action, name = row
            self._audit({"action": action, "operation": name}, parsed)
        return parsed

    def bound(self, parsed: CommandRequest, room: Room | None = None) -> CommandRequest:
        """The command within the limits of what it may get."""
        if self.work.principal.may_see_all:
            parsed = redis.seeing_all(parsed)
        bytes_max, name = room or self.room
        return redis.within(parsed, bytes_max, self.limits, name)

    async def probe(self, parsed: CommandRequest, room: Room | None = None) -> None:
        """Check the size of a reply that is not limited in advance. Raises EngineError if it is too long."""
        bytes_max, name = room or self.room
        probes = redis.probes(parsed, bytes_max)
        if probes:
            replies = await ask(self.work.engine, Call(probes, How.TOGETHER, origin=self.work.request_id))
            redis.check_probed(parsed, replies, bytes_max, self.limits, name)

    async def in_slices(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Each of these, for slices of time between which others have their turn."""
        has_time = slice_of(self._clock.monotonic)
        for number, item in enumerate(items, 1):
            yield item
            if not number % ITEMS_A_LOOK and not has_time():
                await self.work.take_turn()
                has_time = slice_of(self._clock.monotonic)

    # ---- several together

    def submit(self, run: CommandRun) -> None:
        """Have a run under way."""
        self.is_busy = True
        commands = run.commands()
        try:
            if self.end is not None:
                raise self.end
            engine = self.work.engine
            if run.long:
                self.work.reserve_for(*commands)
        except (EngineError, RefusalError) as refusal:
            self._answer(run, [self._ending(refusal)] * len(commands))
            return
        # One takes fewer steps alone; some need no engine, and are none.
        how = _ALONE if run.count == len(commands) == 1 else _EACH
        call, done = self.work.call(commands, how), partial(self._answer, run)
        if len(commands) == 1 and self._host.joins:
            self.work.gateway.joiner.send(engine, call, done)
            return
        replies = engine.send(call, done) if commands else ()
        if replies is not None:
            done(replies)

    def _ending(self, refusal: EngineError | RefusalError) -> EngineError:
        """A refusal in the place of a reply. After the gateway's nothing more is run, unless it is of one
        command alone.
        """
        if isinstance(refusal, EngineError):
            return refusal
        found = in_words_of_redis(refusal)
        if refusal.code != "too_many_waiters":
            self.end = found
        return found

    def _answer(self, run: CommandRun, replies: Sequence[Reply | EngineError]) -> None:
        if self.codec.is_repeated and (run.count > 1 or self._is_part or self.waiting):
            is_part = self._is_part or bool(self.waiting)
            replies = sent_together(run.commands(), replies, is_part=is_part)
        unsent = partial(self._take_back, run.outcomes(replies))
        self.work.note_arrived(*replies)
        if run.long:
            for command, reply in zip(run.commands(), replies, strict=True):
                self.work.note_given(command, reply)
        if self._host.is_gone:
            unsent()
        elif run.only_adds and isinstance(added := replies[0], Added) and len(added.ids) == run.count:
            self._finish_with(self._write_ids, added.ids)
        elif redis.is_laborious(replies):
            self.begin(self._write_in_thread(run.outcomes(replies)), unsent)
        elif run.count == 1:
            self._finish_with(self.write, next(run.outcomes(replies)))
        else:
            self._write_on(run.outcomes(replies))

    # ---- by itself

    def begin(
        self, work: Coroutine[Any, Any, bytes], unsent: Callable[[], None] = _nothing, name: str = ""
    ) -> None:
        """Have this under way, which comes to what it answers; `unsent` is called if the caller has left by
        then. `name` is a command's of the host itself.
        """
        self.is_busy, self._unsent = True, unsent
        asyncio.ensure_future(work).add_done_callback(partial(self._finish_begun, name))

    async def run_alone(self, parsed: CommandRequest) -> bytes:
        """Run a command that waits, or takes two steps, and write its reply."""
        try:
            if self.end is not None:
                raise self.end
            reply: Reply | EngineError | None = await self.ask_alone(parsed)
        except (EngineError, RefusalError) as refusal:
            reply = self.told(self._ending(refusal))
        if redis.is_laborious((reply,)):
            return await self._write_in_thread([(parsed, reply)])
        return self.write((parsed, reply))

    async def ask_alone(self, parsed: CommandRequest, room: Room | None = None) -> Reply | None:
        """The engine's reply to a command within its limits. Raises EngineError, and what a wait raises."""
        if parsed.command is None:
            return None
        await self.probe(parsed, room)
        reply = await self.work.reply_to(parsed.command, synced=parsed.synced)
        self.work.note_given(parsed.command, reply)
        return reply

    def block(self, parsed: CommandRequest, command: BlockingCommand) -> None:
        """Have a read under way that waits for as long as it says, or the caller stays."""

        def served(reply: Reply | EngineError | RefusalError) -> None:
            blocked, self.blocked = self.blocked, None
            assert blocked is not None, "it is answered once, if it was not abandoned"
            if self._host.is_gone:
                blocked.cancel()
            elif isinstance(reply, RefusalError):
                self._finish(self._host.refuse(reply, parsed.name) or b"")
            elif isinstance(reply, EngineError):
                self._finish_with(self.write, (parsed, self.told(reply)))
            elif (refusal := self._refusal_of(reply)) is not None:
                blocked.cancel()
                self._finish(self._host.refuse(refusal, parsed.name) or b"")
            elif redis.is_laborious([reply]):
                self.begin(self._write_in_thread([(parsed, reply)]), blocked.cancel)
            else:
                self._finish_with(self.write, (parsed, reply))

        if not 0 < (command.block_ms or 0) < _FOREVER_MS:
            command = msgspec.structs.replace(command, block_ms=_FOREVER_MS)
        work, waits = self.work, self.work.gateway.waits
        self.is_busy = True
        call = Call((command,), waits=ReadHandle(), origin=work.request_id, caller=work.caller)
        self.blocked = waits.begin_read(work.engine, call, work.caller, served)

    def _refusal_of(self, reply: Reply) -> EngineError | None:
        """Hold what a read that has waited answers; without room, the refusal."""
        try:
            self.work.reserve(text_bytes(reply))
        except EngineError as refusal:
            return refusal
        return None

    def abandon(self) -> None:
        """Take nothing for a read that waits."""
        blocked, self.blocked = self.blocked, None
        if blocked is not None:
            blocked.cancel()

    def pause(self) -> None:
        """Go on in the next cycle."""
        self.is_busy = True
        asyncio.get_running_loop().call_soon(self._finish, b"")

    def told(self, refusal: EngineError) -> EngineError:
        """The refusal of a command: where a client that repeats it repeats others that may have been done, in
        words at which none does.
        """
        is_part = self.codec.is_repeated and (self._is_part or self.waiting)
        return errors.unrepeated(refusal) if is_part else refusal

    # ---- as one turn

    async def transact(
        self, items: Sequence[Adds | Parsed], condition: Unchanged | None = None
    ) -> list[bytes] | None:
        """Run commands as one turn: their replies; None, with nothing run, if the condition does not hold.

        Raises EngineError, and runs nothing, if too many of them read.
        """
        work, room, run = self.work, self._room_of_each(items), CommandRun(self.limits)
        async for item in self.in_slices(items):
            if isinstance(item, Adds):
                run.add_adds(item)
            else:
                run.append(await self._within(item, room))
        commands = run.commands()
        work.reserve(self.limits.answer_bound(commands))
        guard = () if condition is None else (condition,)
        synced = any(isinstance(item, CommandRequest) and item.synced for item in items)
        found: Sequence[Reply | EngineError] = ()
        begun_ms = self._clock.wall_ms()
        if guard or commands:
            found = await ask(work.engine, work.call([*guard, *commands], How.TOGETHER, synced=synced))
        if guard and found[0] is not True:
            return None
        outcomes = [*run.outcomes(found[len(guard) :], begun_ms, self._clock.wall_ms())]
        for command, reply in zip(commands, found[len(guard) :], strict=True):
            work.note_given(command, reply)
        self._unsent = partial(self._take_back, outcomes)
        return await self._write_each(outcomes, room)

    async def _within(self, parsed: Parsed, room: Room) -> Parsed:
        """The command within its room, or its refusal if its reply would be too long."""
        if isinstance(parsed, EngineError):
            return parsed
        try:
            await self.probe(parsed, room)
        except EngineError as refusal:
            return refusal
        return self.bound(parsed, room)

    def _room_of_each(self, items: Sequence[Adds | Parsed]) -> Room:
        """The maximum size of each long reply of a transaction, and the setting that limits it.

        All replies are made in one turn, so the budget is divided in advance. Each reply has at least one
        entry, so the number of long replies is limited by the size of the largest entry.
        """
        gateway = self.work.gateway
        settings, output = gateway.settings, gateway.limits.budgets.output
        most = max(settings.answer_bytes_max, min(_REPLIES_BYTES_MAX, output.bytes_max // 2))
        long = sum(1 for item in items if isinstance(item, CommandRequest) and redis.is_long(item))
        long_max = max(1, most // settings.entry_bytes_max)
        if long > long_max:
            raise errors.invalid(
                f"ERR too many reads: a transaction has at most {long_max} commands that answer with entries "
                f"or lists ({_TOGETHER} / 2 / entry_bytes_max); use several transactions, or a pipeline"
            )
        share = most // max(1, long)
        return self.room if settings.answer_bytes_max <= share else Room(share, _TOGETHER)

    # ---- what is answered

    async def _write_each(self, outcomes: Sequence[RunResult], room: Room) -> list[bytes]:
        """The replies of a transaction: in a thread if some are long, else in slices of time."""
        if redis.is_laborious(outcome[1] for outcome in outcomes if isinstance(outcome, tuple)):
            return await self._written_in_thread(outcomes, room)
        rest = iter(outcomes)
        written, is_done = self.write_some(rest, room)
        while not is_done:
            await self.work.take_turn()
            some, is_done = self.write_some(rest, room)
            written += some
        return written

    async def _written_in_thread(
        self, outcomes: Iterable[RunResult], room: Room | None = None
    ) -> list[bytes]:
        kept = [*outcomes]
        written = await asyncio.to_thread(lambda: [self._written(outcome, room) for outcome in kept])
        return [*map(self._note, kept, written)]

    async def _write_in_thread(self, outcomes: Iterable[RunResult]) -> bytes:
        return self.codec.join(await self._written_in_thread(outcomes))

    def _write_on(self, outcomes: Iterator[RunResult]) -> None:
        """Write replies for a slice of time; the rest behind the turns of others."""
        try:
            written, is_done = self.write_some(outcomes)
        except Exception as error:  # noqa: BLE001 - the caller must not wait for ever
            self._host.refuse(error)
            return
        if is_done:
            self._finish(self.codec.join(written))
        else:
            self.begin(self._write_rest(written, outcomes))

    async def _write_rest(self, written: list[bytes], outcomes: Iterator[RunResult]) -> bytes:
        is_done = False
        while not is_done:
            self._host.put(self.codec.join(written))
            await self.work.take_turn()
            if self._host.is_gone:
                self._take_back(outcomes)
                return b""
            written, is_done = self.write_some(outcomes)
        return self.codec.join(written)

    def write_some(self, outcomes: Iterator[RunResult], room: Room | None = None) -> tuple[list[bytes], bool]:
        """The next replies, as many as a slice of time takes; and whether these were all."""
        has_time = slice_of(self._clock.monotonic)
        written: list[bytes] = []
        added = added_bytes = 0
        is_done = True
        for outcome in outcomes:
            if type(outcome) is int:
                text = self.codec.each_id((outcome,))
                added += 1
                added_bytes += len(text)
            else:
                text = self.write(outcome, room)
            written.append(text)
            if not has_time():
                is_done = False
                break
        if added:
            self.work.note_end("xadd", number=added, sent_bytes=added_bytes)
        return written, is_done

    def _write_ids(self, entry_ids: Sequence[int]) -> bytes:
        """The replies of plain XADDs."""
        written = self.codec.each_id(entry_ids)
        self.work.note_end("xadd", number=len(entry_ids), sent_bytes=len(written))
        return written

    def write(self, outcome: RunResult, room: Room | None = None) -> bytes:
        """The reply of one command. It fails alone: the other commands have run too, and have theirs."""
        return self._note(outcome, self._written(outcome, room))

    def encode(self, parsed: CommandRequest, reply: Reply | None, room: Room | None = None) -> bytes:
        """The reply of one command, of which nothing is kept. Raises EngineError."""
        if parsed.command is None:
            now_ms = reply if isinstance(reply, int) else self._clock.wall_ms()
            return self.codec.immediate(parsed.immediate(now_ms * 1000))
        written = self.codec.reply(parsed, reply, self.work.principal.may_see)
        bytes_max, name = room or self.room
        redis.check_written(parsed, len(written) - self.codec.frame_bytes, bytes_max, name)
        return written

    def _written(self, outcome: RunResult, room: Room | None) -> bytes | EngineError:
        """The reply, or why there is none; a thread may write it."""
        if isinstance(outcome, int):
            return self.codec.each_id((outcome,))
        if isinstance(outcome, EngineError):
            return outcome
        parsed, reply = outcome
        if isinstance(reply, EngineError):
            return reply
        try:
            return self.encode(parsed, reply, room)
        except EngineError as refusal:
            return refusal
        except Exception as error:  # noqa: BLE001 - as `write` says
            logs.note_fault(error, self.work.request_id)
            return errors.internal()

    def _finish_with(self, write: Callable[..., bytes], *replies: object) -> None:
        try:
            written = write(*replies)
        except Exception as error:  # noqa: BLE001 - the caller must not wait for ever
            self._host.refuse(error)
        else:
            self._finish(written)

    def _finish_begun(self, name: str, done: "asyncio.Future[bytes]") -> None:
        unsent, self._unsent = self._unsent, _nothing
        if done.cancelled() or self._host.is_gone:
            unsent()
            return
        error = done.exception()
        written = done.result() if error is None else self._host.refuse(error, name)
        if written is None:
            return
        if name and error is None:
            self.work.note_end(name, sent_bytes=len(written))
        self._finish(written)

    def _finish(self, written: bytes) -> None:
        """The work that was under way is done; `written` is what it answers."""
        self.is_busy = False
        self._is_part = bool(self.waiting)
        self._host.put(written)
        self._host.go_on()

    def _take_back(self, outcomes: Iterable[RunResult]) -> None:
        """Undo what was delivered to a caller that has left: the last delivery first."""
        for outcome in reversed([*outcomes]):
            if isinstance(outcome, tuple) and isinstance(outcome[0].command, XReadGroup):
                self.work.undo_read(outcome[0].command, outcome[1])

    # ---- what is kept of it

    def _note(self, outcome: RunResult, written: bytes | EngineError) -> bytes:
        refusal, name = None, ""
        if isinstance(written, EngineError):
            refusal, written = written, self.codec.refusal(written)
        if isinstance(outcome, tuple):
            parsed, reply = outcome
            name = parsed.name
            self.audit(parsed, refusal, reply)
            if refusal is None and reply is not None and not isinstance(reply, EngineError):
                self.work.note_reply(parsed.command, reply)
        elif refusal is None:
            name = "xadd"
        self.work.note_end(name, refusal, sent_bytes=len(written))
        return written

    def audit(
        self, parsed: CommandRequest, refusal: EngineError | None, reply: Reply | EngineError | None = None
    ) -> None:
        """Have the audit log say what was done to streams, groups or the gateway, or was refused."""
        audited = parsed.audited_by(reply) if self.work.gateway.access.audit.is_on else None
        if audited is not None:
            action, names = audited
            self._audit({"action": action, "operation": parsed.name, **names, **dropped(reply)}, refusal)

    def _audit(self, facts: dict[str, object], refusal: EngineError | None) -> None:
        code = "" if refusal is None else refusal.code
        self.work.audit(facts, status=CODES[code].status if code else 200, code=code)


def in_words_of_redis(refusal: RefusalError) -> EngineError:
    """The gateway's refusal; while the log is read, clients of Redis wait at the word LOADING."""
    if refusal.code in {"starting", "restarting"}:
        return EngineError(refusal.code, _LOADING, refusal.detail)
    return EngineError(refusal.code, f"ERR {refusal.detail}", refusal.detail)
