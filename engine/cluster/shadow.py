"""The engine's own commands over a server: each runs on what it looks at, and its records become operations.

Knows: what of a stream a command may look at, and how a record is written there.
Must never know: what any command means, connections.

    head ──► a keyspace of this stream alone ──► the command, as in the engine ──► records ──► operations
      ▲                                                                                            │
      └────────── something that was looked at has changed ◄── commit: all or nothing ◄────────────┘

What is looked at has to be the same at the commit. What is only copied need not: the time, the last ID, where
a group is. A transaction begins with a check of what all its commands have looked at, since what comes before
one of them may change that.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from secrets import token_hex
from typing import Any, Final, NamedTuple

import msgspec

from engine import errors, ids, keyspace, replies
from engine.cluster import kept, scripts, words
from engine.cluster.group_scripts import start_word
from engine.cluster.origins import unnumbered
from engine.cluster.refusals import not_supported
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.schedule_counts import ScheduleCounts
from engine.cluster.schedule_words import info_of, put_words
from engine.cluster.scripts import ScriptCall, Word, WriteOrigin
from engine.commands import schedule_commands
from engine.commands.base import Command, MemoryNeed
from engine.commands.durable_commands import CreateDurable
from engine.commands.execution import execute
from engine.commands.types import Delete, XAdd, XGroupCreate, XSetId
from engine.commands.weir_commands import AddEach, Close, EnsureGroup, EnsureStream, UpdateGroup, UpdateStream
from engine.errors import EngineError
from engine.parts import (
    POLICY_DEFAULT,
    ages,
    closing,
    durable,
    idempotence,
    keeping,
    ordering,
    pauses,
    policy_changes,
    policy_of,
    redelivery,
    schedules,
)
from engine.record import Record
from engine.records.changes import (
    Append,
    CreateGroup,
    CreateStream,
    MoveGroup,
    SetCounters,
    SetLifetime,
)
from engine.records.restored import RestoreStream

Look = tuple[str, str]
# A word, and what belongs to it.
Operation = Sequence[Word]

_SCHEDULES: Final = (
    *(schedule_commands.AddScheduled, schedule_commands.CancelSchedule),
    *(schedule_commands.FireSchedule, schedule_commands.PauseSchedule, schedule_commands.SetSchedule),
)
_GROUPS: Final = (EnsureGroup, UpdateGroup, XGroupCreate)
_STREAMS: Final = (EnsureStream, UpdateStream)
# Those that a server does once, however often they are sent.
_NUMBERED: Final = (*_SCHEDULES, Close, CreateDurable)
# Commands that run so.
KINDS: Final = (*_NUMBERED, *_GROUPS, *_STREAMS, schedule_commands.DescribeSchedule, XSetId)
# Others whose effect the ones behind them in a transaction see.
_SEEN: Final = (AddEach, Delete, XAdd)
# How often what has changed meanwhile is looked at again.
ATTEMPTS_MAX: Final = 16
# A server has room for more streams and groups.
_CAPS: Final = keyspace.CAPS_DEFAULT._replace(streams_max=sys.maxsize, groups_max=sys.maxsize)
# Of a group, which is not looked at: no command moves it there.
_ANYWHERE: Final = -1
_PARTS: Final = ("policies", "scheduling", "looks")
# Of an operation that appends: what is expected, a trim, the form, and how many entries.
_APPEND_WORDS: Final = 4


class ChangedError(EngineError):
    """Nothing was done: something that was looked at has changed."""


def is_shadowed(command: Command) -> bool:
    """Whether a command runs so: all of its kind, but for forks."""
    return isinstance(command, KINDS) and getattr(command, "fork", None) is None


def in_place(command: Any) -> BackendRequest:  # noqa: ANN401 - of these kinds
    """What stands for a command in a transaction until its head is known."""
    return BackendRequest(stream=command.stream, commands=(), decode=bool, lane=Lane.WRITE)


def _add_of(command: Command) -> XAdd | None:
    add: XAdd | None = getattr(command, "add", None)
    return add


def _looks(command: Any) -> Iterator[Look]:  # noqa: ANN401 - of these kinds
    """What the command may look at."""
    yield from (("exists", ""), ("meta", "c"))
    fields: Iterable[str] = ()
    add = _add_of(command)
    if add is not None and add.idempotency is not None:
        yield "answer", add.idempotency.key
    if isinstance(command, schedule_commands.DescribeSchedule):
        yield "schedule", command.name
    elif isinstance(command, _SCHEDULES):
        names, fields = _names(command), ("media",)
        yield from (("schedule", name) for name in names)
        yield "count", str(_CAPS.stream_schedules_max - len(names))
    elif isinstance(command, Close):
        fields = ("media",)
        if not command.drops_schedules:
            yield "count", "0"
    elif isinstance(command, _GROUPS):
        fields = _policy_fields(command.group)
        yield "group", command.group
    elif isinstance(command, _STREAMS):
        fields = kept.RETENTION
        yield "lifetime", ""
        if getattr(command, "expected", None) is not None:
            yield "described", ""
    elif isinstance(command, CreateDurable):
        fields = ("media", "config", "forks", "ttl")
    yield from (("meta", field) for field in fields)


def _names(command: Any) -> Sequence[str]:  # noqa: ANN401 - of a schedule
    """The schedules that it may look at."""
    if isinstance(command, schedule_commands.AddScheduled):
        cancel = [] if command.cancel is None else [command.cancel]
        return list(dict.fromkeys([*cancel, *(one.name for one in command.later)]))
    return [command.schedule.name if isinstance(command, schedule_commands.SetSchedule) else command.name]


def _policy_fields(group: str) -> list[str]:
    return [field.decode() for field in kept.policy_fields(group)]


class _Head:
    """A stream as commands see it, and what of it has to stay so."""

    def __init__(self, stream: str, looks: Sequence[Look], reply: Sequence[Any], room: int) -> None:
        self.stream = stream
        self.now_ms, last_id, deleted_id, added, generation, upto, values = reply
        self.found: dict[Look, bytes] = dict(zip(looks, values, strict=True))
        # What has to stay as it was found: the kind, name and value of each, of a schedule the first line.
        self.guards: list[Word] = []
        for (kind, name), value in self.found.items():
            self.guards += [kind, name, value.partition(b"\n")[0] if kind == "schedule" else value]
        # The generation of a stream that is made; that of schedules that are set.
        self.token = token_hex(8)
        self.keyspace = keyspace.Keyspace(lambda: self.token, caps=_CAPS)
        if last_id:
            parse = ids.parse_canonical
            edges = 0, 0, parse(last_id), parse(deleted_id), parse(upto)
            restored = RestoreStream(stream, generation.decode(), *edges, added, (0, 0, 0, 0))
            for record in chain([restored], self._records()):
                record.apply(self.keyspace)
        elif self.field("forks") is not None:
            self.keyspace.forks.hidden[stream] = None
        schedules.ScheduleIndex.of(self.keyspace).count = _CAPS.schedules_max - room

    def field(self, name: str) -> bytes | None:
        """A field of the metadata."""
        value = self.found.get(("meta", name))
        return value[1:] if value else None

    def _records(self) -> Iterator[Record]:
        """What makes it."""
        stream, closed, media, ttl = self.stream, *map(self.field, ("c", "media", "ttl"))
        if media is not None:
            ttl_ms = None if ttl is None else int(ttl)
            yield durable.SetMedia(stream, media.decode(), ttl_ms, self.field("config") or b"")
        for (kind, name), value in sorted(self.found.items(), key=lambda one: one[0][0] == "count"):
            if kind == "schedule" and value:
                info = info_of(name.encode(), value)
                yield schedules.PutSchedule(stream, name, info.body, info.rule.text, info.at_ms, info.left)
            elif kind == "count" and value:
                self._have_schedules(int(value))
            elif kind == "group" and value:
                policy = kept.policy_from([*map(self.field, _policy_fields(name))])
                yield CreateGroup(stream, name, 0, _ANYWHERE)
                yield from policy_changes(stream, name, POLICY_DEFAULT, policy)
            elif kind == "answer" and value:
                at, size, rest = value.split(b" ", 2)
                given = scripts.ids_of(rest[int(size) :])
                yield idempotence.RememberAnswer(stream, name, rest[: int(size)], given, int(at))
            elif kind == "lifetime":
                yield SetLifetime(stream, int(value) if int(value) > 0 else None)
                yield keeping.Describe(stream, **kept.retention_from([*map(self.field, kept.RETENTION)]))
        if closed is not None:
            at, _, reason = closed.partition(b" ")
            yield closing.CloseStream(stream, int(at), reason.decode())

    def _have_schedules(self, count: int) -> None:
        """Give the stream this number of schedules."""
        kind, key = schedules.StreamSchedules, self.keyspace.keys[self.stream]
        held = kind.of(key) or self.keyspace.put_part(self.stream, kind())
        held.others = count - len(held)


# --- records as operations


def _set(pairs: Iterable[tuple[str, Word | None]]) -> Iterator[Operation]:
    """Fields of the metadata; None for one that goes. A value may be empty."""
    for name, value in pairs:
        word = value if isinstance(value, bytes) else str(value).encode()
        yield "set", name, b"" if value is None else b"+" + word


def _append(add: XAdd, form: str | None = None) -> Operation:
    words.check_add(add)
    expected, _, _, trim, found, *entries = scripts.add_words(add)
    return "append", expected, trim, form or found, *entries


def _appended(command: Command, _: _Head, record: Append) -> Iterator[Operation]:
    bodies = [text[text.index(b'",') + 1 :] for text in record.texts]
    yield _append(_add_of(command) or XAdd(stream=record.stream, bodies=bodies))


def _made_durable(_: Command, __: _Head, record: durable.SetMedia) -> Iterator[Operation]:
    values = (record.media, durable.kind_of(record.media), record.config, record.ttl_ms)
    return _set(zip(("media", "kind", "config", "ttl"), values, strict=True))


def _lived(command: Command, _: _Head, record: SetLifetime) -> Iterator[Operation]:
    ttl_ms = getattr(command, "ttl_ms", None)
    at_ms = "" if record.expires_at_ms is None else record.expires_at_ms
    yield ("lifetime", at_ms) if ttl_ms is None else ("live", ttl_ms)


def _described(_: Command, head: _Head, record: keeping.Describe) -> Iterator[Operation]:
    yield from _set((name, kept.setting_word(name, getattr(record, name))) for name in kept.RETENTION)
    if head.field("max_bytes") != (record.max_bytes and b"%d" % record.max_bytes):
        # The parts are as large as a 64th of the limit.
        yield from _set((("o", None), ("z", None)))


def _placed(command: Any, head: _Head, record: Any) -> Iterator[Operation]:  # noqa: ANN401 - of a group
    start, entries_read = command.start, command.entries_read
    place = "" if start is None else start_word(start), "" if entries_read is None else entries_read
    is_new = isinstance(record, CreateGroup)
    yield "group", "CREATE" if is_new else "SETID", record.group, *place
    if is_new:
        yield from _set([(kept.HAD_GROUP, 1)])
        # Another program may have removed a group of that name.
        yield from _ruled(command, head, record)


def _ruled(_: Command, head: _Head, record: Any) -> Iterator[Operation]:  # noqa: ANN401 - of a group
    policy = policy_of(head.keyspace.keys[record.stream].groups[record.group])
    values = [kept.setting_word(name, policy[name]) for name in kept.POLICY]
    yield from _set(zip(_policy_fields(record.group), values, strict=True))
    if isinstance(record, pauses.PauseGroup):
        # Readers at all gateways hear of it.
        yield ("wake",)


def _unordered(_: Command, __: _Head, record: ordering.OrderByKey) -> Iterator[Operation]:
    if record.ordered_by is not None:
        remedy = "its scripts know no keys of entries; with a log of its own a gateway orders by key"
        raise not_supported("ordered_by", f"the server reads in order of IDs: {remedy}")
    yield from ()


def _counted(command: Any, _: _Head, __: Record) -> Iterator[Operation]:  # noqa: ANN401 - XSETID
    options: list[Word] = []
    if command.entries_added is not None or command.max_deleted_id is not None:
        options += ["ENTRIESADDED", command.entries_added or 0]
        options += ["MAXDELETEDID", ids.format(command.max_deleted_id or 0)]
    yield "counters", ids.format(command.last_id), *options


# What a trim and a retention cut is not here: the server does it by itself.
_WRITE: Final[Mapping[type[Record], Callable[[Any, _Head, Any], Iterable[Operation]]]] = {
    closing.CloseStream: lambda _, __, record: [("close", f"{record.at_ms} {record.reason}")],
    durable.SetMedia: _made_durable,
    keeping.Describe: _described,
    Append: _appended,
    CreateGroup: _placed,
    CreateStream: lambda _, __, ___: [("create",)],
    MoveGroup: _placed,
    idempotence.RememberAnswer: lambda _, __, record: [("answer", record.key, record.digest)],
    SetCounters: _counted,
    SetLifetime: _lived,
    ages.LimitAge: _ruled,
    ordering.OrderByKey: _unordered,
    pauses.PauseGroup: _ruled,
    redelivery.SetPolicy: _ruled,
    schedules.DropSchedule: lambda _, __, record: [("drop", record.name)],
    schedules.PutSchedule: lambda _, __, record: [("put", *put_words(record))],
}
# The keys may go with these, and are not there for another operation then.
_LAST: Final = (schedules.DropSchedule, SetLifetime)


def _operations(command: Command, head: _Head, changes: Sequence[Record]) -> Iterator[Operation]:
    """What the records are at the server. Raises EngineError for what it cannot take."""
    put = {record.name for record in changes if isinstance(record, schedules.PutSchedule)}
    add, appends = _add_of(command), any(isinstance(record, Append) for record in changes)
    if add is not None and add.idempotency is not None and not appends:
        yield "again", add.idempotency.key
    if isinstance(command, Close) and add is None and command.expected_last_id is not None:
        nothing = XAdd(stream=head.stream, bodies=(), expected_last_id=command.expected_last_id)
        yield _append(nothing, "json")
    for record in sorted(changes, key=lambda record: isinstance(record, _LAST)):
        # It is made as the entries are added, which may be refused.
        is_made = isinstance(record, CreateStream) and add is not None and appends
        is_put = isinstance(record, schedules.DropSchedule) and record.name in put
        if type(record) in _WRITE and not (is_made or is_put):
            yield from _WRITE[type(record)](command, head, record)


# --- running


class _Outcome(NamedTuple):
    """The reply or refusal of a command, what it does at the server, and whether it does so at a full one."""

    reply: Any
    operations: Sequence[Operation] = ()
    makes_room: bool = True


def _run_on(head: _Head, command: Command) -> _Outcome:
    """A change is a write in any case: WAIT behind it then covers that of the one that did it before."""
    if isinstance(command, UpdateStream) and command.expected is not None and head.keyspace.keys:
        # What the server says of it is compared with what it said before.
        if head.found["described", ""] != kept.description_of(command.expected).encode():
            return _Outcome(errors.stream_changed())
        command = msgspec.structs.replace(command, expected=None)
    makes_room = command.memory_need(head.keyspace) is MemoryNeed.NONE
    done = execute(head.keyspace, command, head.now_ms)
    if isinstance(done.reply, EngineError):
        return _Outcome(done.reply)
    try:
        found = [*_operations(command, head, done.turn.records)]
    except EngineError as refusal:
        return _Outcome(refusal)
    return _Outcome(done.reply, found or [("touch",)] * command.changes, makes_room)


def _decided(reply: Any, done: Sequence[Any]) -> Any:  # noqa: ANN401 - a reply
    """The reply with what the server has decided; the refusal raised."""
    _, given, removed, affected, dropped, last = done
    replace = msgspec.structs.replace

    def added_of(added: replies.Added | None) -> replies.Added | None:
        return added and replies.Added(scripts.ids_of(given), added.duplicate, removed, affected)

    match reply:
        case EngineError():
            raise reply
        case replies.Added():
            return added_of(reply)
        case replies.AddedScheduled():
            return replace(reply, added=added_of(reply.added))
        case replies.Closed():
            end = replace(reply.end, last_id=ids.parse_canonical(last))
            return scripts.with_dropped(replace(reply, end=end, added=added_of(reply.added)), dropped)
        case replies.Dropped():
            return _decided(reply.reply, done)
        case replies.DurableCreated():
            return replace(reply, info=replace(reply.info, last_id=ids.parse_canonical(last)))
    return reply


def _commit(head: _Head, origin: WriteOrigin, outcome: _Outcome) -> BackendRequest:
    line: list[Word] = [head.token, *scripts.origin_words(origin)[1:], len(head.guards) // 3, *head.guards]
    for name, *rest in outcome.operations:
        # The entries that are appended stand behind the words.
        line += [name, _APPEND_WORDS if name == "append" else len(rest), *rest]

    def decode(found: Any) -> Any:  # noqa: ANN401 - as the server sent it
        if found[0] == b"changed":
            detail = f"nothing was done: others change the stream {head.stream!r} all the time"
            raise ChangedError("overloaded", f"ERR {detail}", f"{detail}; try again soon")
        return _decided(outcome.reply, scripts.checked(found))

    script = scripts.adding("commit", *_PARTS, makes_room=outcome.makes_room)
    requests = [scripts.requests_key(head.stream, origin)] if origin.front else []
    call = ScriptCall(script, [*scripts.stream_keys(head.stream)[:2], *requests], line, decode)
    return words.numbered(words.by_script(head.stream, call), origin)


class Shadow:
    """Runs the commands of these kinds. `begin` gives the origin of a write."""

    def __init__(
        self,
        run: Callable[[BackendRequest], Awaitable[Any]],
        begin: Callable[[], WriteOrigin],
        counts: ScheduleCounts,
    ) -> None:
        self._run, self._begin, self._counts = run, begin, counts

    async def _look(self, stream: str, looks: Iterable[Look], *, is_first: bool = True) -> _Head:
        """The head, which `is_first` of a write: then in order with those before it."""
        wanted = [*dict.fromkeys(looks)]
        script, line = scripts.script("head", "trimming", "retention", *_PARTS), [*sum(wanted, ())]
        call = ScriptCall(script, scripts.stream_keys(stream)[:2], line, scripts.as_it_is)
        lane = Lane.WRITE if is_first else Lane.READ
        request = msgspec.structs.replace(words.by_script(stream, call, lane), looks=is_first)
        return _Head(stream, wanted, await self._run(request), self._counts.room)

    async def run(self, command: Any) -> replies.Reply:  # noqa: ANN401 - of these kinds
        """Run one command. Raises EngineError."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            head = await self._look(command.stream, _looks(command), is_first=command.changes)
            outcome = _run_on(head, command)
            if isinstance(outcome.reply, EngineError):
                raise outcome.reply
            done: replies.Reply = outcome.reply
            if done is None or not command.changes:
                return done
            origin = self._begin() if isinstance(command, _NUMBERED) else unnumbered()
            try:
                done = await self._run(_commit(head, origin, outcome))
            except ChangedError:
                if attempt == ATTEMPTS_MAX:
                    raise
            else:
                return done
        raise AssertionError("the last attempt returns, or raises")

    async def begin_turn(
        self, together: Sequence[Command], requests: Sequence[BackendRequest]
    ) -> tuple[Sequence[BackendRequest], Sequence[BackendRequest]]:
        """What comes first in a transaction, and its requests with those of these kinds, which are done if
        nothing has changed until then. Raises EngineError.
        """
        looks: dict[str, list[Look]] = {}
        for command in filter(is_shadowed, together):
            looks.setdefault(in_place(command).stream, []).extend(_looks(command))
        found = await asyncio.gather(*(self._look(*one) for one in looks.items()))
        heads = {head.stream: head for head in found}
        if sum(command.changes for command in together) == 1:
            # Nothing before it may change what it looks at.
            return (), [*map(partial(self._in_turn, heads), together, requests)]
        passing = [(head, _Outcome("", [("pass", head.token)])) for head in found]
        checks = [_commit(head, unnumbered(), outcome) for head, outcome in passing]
        for head in found:
            head.guards = ["pass", "", head.token]
        return checks, [*map(partial(self._in_turn, heads), together, requests)]

    def _in_turn(self, heads: Mapping[str, _Head], command: Command, place: BackendRequest) -> BackendRequest:
        if is_shadowed(command):
            head = heads[place.stream]
            request = _commit(head, unnumbered(), _run_on(head, command))
            if command.changes and head.guards[:1] != ["pass"]:
                # It is the only change: what is behind it is done if it is.
                head.guards = []
            return request
        for head in heads.values() if isinstance(command, _SEEN) else ():
            if head.stream in (command.named_streams() or ()):
                execute(head.keyspace, command, head.now_ms)
        return place
