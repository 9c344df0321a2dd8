"""Commands of a tenant as the engine runs them: with the prefix in every name.

Knows: which fields of commands hold names of streams.
Must never know: replies, who sends a command.

How a command is renamed follows from its fields. One that names no stream is about all of them and is
refused, as is one with a field of text that is unknown here: `tests/app/tenants/test_tables.py` holds the
engine's commands against it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, get_args, get_type_hints

import msgspec
from msgspec.structs import replace

from app.tenants.sources import names_source, rename_in_body
from app.tenants.stripping import ShownInfo
from app.tenants.tenant_names import TenantNames
from engine import EngineError
from engine.commands.base import Command
from engine.commands.durable_commands import ForkPoint
from engine.commands.schedule_commands import AddScheduled, ListSchedules, NewSchedule, SetSchedule
from engine.commands.types import DbSize, Exists, IdempotencyKey, ListStreams, XAdd
from engine.commands.weir_commands import Close, MeasureStreams, Publish, StreamInfos
from engine.replies import StreamInfo

_LETTERS: Final = "dead_letter_stream"


def add_prefix(command: Command, names: TenantNames) -> Command:
    """The command for the engine. Raises `forbidden` for one on all streams, `invalid_name`."""
    fields = renamed_fields(type(command))
    rename = WHOLE.get(type(command))
    if rename is not None:
        return rename(command, names)
    if not fields:
        raise EngineError(
            "forbidden",
            "NOPERM this command is about the streams of all callers",
            "this is about the streams of all callers, and the token has a prefix",
        )
    return replace(command, **{name: FIELDS[name](getattr(command, name), names) for name in fields})


@cache
def renamed_fields(kind: type[Command]) -> tuple[str, ...]:
    """The fields of a command that hold names of streams; none if a tenant must not run it."""
    fields = {name: hint for name, hint in get_type_hints(kind).items() if name in kind.__struct_fields__}
    unknown = [name for name in fields.keys() - FIELDS.keys() - _NO_NAMES if _has_text(fields[name])]
    return () if unknown or kind in _REFUSED else tuple(name for name in fields if name in FIELDS)


def _has_text(hint: Any) -> bool:  # noqa: ANN401 - a type
    if hint in (str, Any):
        return True
    is_struct = isinstance(hint, type) and issubclass(hint, msgspec.Struct)
    return any(map(_has_text, get_type_hints(hint).values() if is_struct else get_args(hint)))


# ---- fields


def _name(name: str, names: TenantNames) -> str:
    return names.add(name)


def _streams(streams: Sequence[str | tuple[str, Any]], names: TenantNames) -> Sequence[object]:
    """Names, or names with a place each."""
    return [names.add(one) if isinstance(one, str) else (names.add(one[0]), one[1]) for one in streams]


def _by_name(numbers: Mapping[str, int], names: TenantNames) -> Mapping[str, int]:
    return {names.add(name): number for name, number in numbers.items()}


def _bodies(bodies: Sequence[bytes], names: TenantNames) -> Sequence[bytes]:
    """Entries whose field of dead letters gets the prefix, for any value: it is taken away from all that
    the tenant reads, so it reads what it wrote, and learns nothing about the prefix.
    """
    if not any(map(names_source, bodies)):
        return bodies
    return [rename_in_body(body, lambda source: names.prefix_bytes + source) for body in bodies]


def _policy(policy: Mapping[str, Any], names: TenantNames) -> Mapping[str, Any]:
    letters = policy.get(_LETTERS)
    return policy if letters is None else {**policy, _LETTERS: names.add(letters)}


def _fork(fork: ForkPoint | None, names: TenantNames) -> ForkPoint | None:
    return None if fork is None else replace(fork, source=names.add(fork.source))


def _expected(expected: StreamInfo | None, names: TenantNames) -> object:
    """A stream as the engine has it, of what the tenant was shown."""
    return expected.real if isinstance(expected, ShownInfo) else expected


FIELDS: Final[Mapping[str, Callable[[Any, TenantNames], object]]] = {
    "bodies": _bodies,
    "ends": _by_name,
    "expected": _expected,
    "fork": _fork,
    "letters": _name,
    "policy": _policy,
    "stream": _name,
    "streams": _streams,
    "target": _name,
    "versions": _by_name,
}
# Text that names no stream; a key belongs to the stream beside it.
_NO_NAMES: Final = frozenset(
    {
        *("batch", "consumer", "group", "holders", "idempotency", "kind", "known", "media", "name", "named"),
        *("batches", "reason", "retention", "transfer_to"),
    }
)
_REFUSED: Final = frozenset({MeasureStreams})


# ---- whole commands


def _list(command: ListStreams | StreamInfos, names: TenantNames) -> Command:
    after = None if command.after is None else names.prefix + command.after
    return replace(command, prefix=names.prefix + command.prefix, after=after)


def _add(command: XAdd, names: TenantNames) -> XAdd:
    return replace(command, stream=names.add(command.stream), bodies=_bodies(command.bodies, names))


def _close(command: Close, names: TenantNames) -> Command:
    add = None if command.add is None else _add(command.add, names)
    return replace(command, stream=names.add(command.stream), add=add)


def _schedule(new: NewSchedule, names: TenantNames) -> NewSchedule:
    return replace(new, body=_bodies([new.body], names)[0])


def _set_schedule(command: SetSchedule, names: TenantNames) -> Command:
    return replace(command, stream=names.add(command.stream), schedule=_schedule(command.schedule, names))


def _add_scheduled(command: AddScheduled, names: TenantNames) -> Command:
    add = None if command.add is None else _add(command.add, names)
    later = [_schedule(one, names) for one in command.later]
    return replace(command, stream=names.add(command.stream), add=add, later=later)


def _list_schedules(command: ListSchedules, names: TenantNames) -> Command:
    # Those of one stream, by names of their own.
    return replace(command, stream=names.add(command.stream))


def _publish(command: Publish, names: TenantNames) -> Command:
    # What a key was used for belongs to no stream, so tenants would share it.
    key, chunk = command.idempotency, command.chunk
    return replace(
        command,
        parts=[_add(part, names) for part in command.parts],
        idempotency=None if key is None else IdempotencyKey(names.add_to_key(key.key), key.digest),
        chunk=None if chunk is None else replace(chunk, producer=names.add_to_key(chunk.producer)),
    )


def _count_nothing(_: DbSize, __: TenantNames) -> Command:
    """WAITAOF runs it to wait for the disk, and leaves the number out. DBSIZE itself is refused."""
    return Exists(streams=())


WHOLE: Final[Mapping[type[Command], Callable[[Any, TenantNames], Command]]] = {
    AddScheduled: _add_scheduled,
    Close: _close,
    DbSize: _count_nothing,
    ListSchedules: _list_schedules,
    ListStreams: _list,
    Publish: _publish,
    SetSchedule: _set_schedule,
    StreamInfos: _list,
}
