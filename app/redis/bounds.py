"""Limits of Redis commands: the size of a command and the size of its reply.

Knows: which commands have many arguments or long replies, and what to suggest when a limit is exceeded.
Must never know: the syntax of a command, the size of other replies in the same request.

A Redis reply cannot say that it is incomplete. So if a command asks for all of something, a reply beyond the
limit is refused, and the refusal names the limit and an alternative. If COUNT is only a maximum and the next
call continues (XREAD, XREADGROUP, XAUTOCLAIM), the reply is shorter and nothing more is delivered.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from app.limits import CommandLimits
from app.redis.request import CommandRequest
from app.redis.resp import Resp
from engine import EngineError, entries, errors, ids
from engine.commands import types
from engine.commands.base import Command
from engine.commands.schedule_commands import SetSchedule
from engine.commands.weir_commands import Close
from engine.replies import Entries, GroupInfo, NamedValues, PendingList, Reply

# The minimum size of a field in a stored entry: `"":"",`.
_FIELD_BYTES_MIN: Final = 6

# A producer has a hundred or more of these in memory.
_PRODUCTION_BYTES_MAX: Final = 512
# Consumers and pending entries that XINFO STREAM FULL shows: each takes up to 15 µs of one turn.
_FULL_ROWS_MAX: Final = 1_000

_GO_ON: Final = "use COUNT, and go on behind the last ID"
_COUNT_LESS: Final = "use a smaller COUNT"
# Reads whose replies cannot be limited in advance: the size is checked afterwards.
_WAYS_ROUND: Final[dict[type[object], str]] = {
    types.XPending: "use XPENDING with a range and a count",
    types.XInfoGroups: "GET /v1/streams/{stream}/groups gives them in pages",
    types.XInfoConsumers: "GET /v1/streams/{stream}/groups/{group}/consumers gives them in pages",
    types.ListStreams: "use SCAN, with a smaller COUNT",
}


# ---- what a command carries


def checked(request: CommandRequest, limits: CommandLimits) -> CommandRequest:
    """The request, with COUNT reduced to the limit where it is a maximum.

    Raises EngineError if the command is too large, for example `entry_too_large`.
    """
    command = request.command
    if command is None:
        return request
    # To ask for the type takes a quarter of `isinstance`, and every command of a pipeline is asked.
    if type(command) is types.XAdd:
        _check_added(command, limits)
        return request
    if type(command) is Close and command.add is not None:
        _check_added(command.add, limits)
    if type(command) is SetSchedule:
        _check_entry(command.schedule.body, limits)
    if type(command) is types.XIdmpRecord:
        _check_production(command.producer_key)
    named = command.named_streams() or ()
    _check_number(named, "streams", "request_streams_max", limits.request_streams_max)
    if entry_ids := command.named_ids():
        name = "lookups_max" if limits.lookups_max < limits.ids_max and command.looks_up else "ids_max"
        _check_number(entry_ids, "IDs", name, getattr(limits, name))
    if type(command) is types.ConfigGet:
        return _with_config(request, limits.config)
    cut = _cut(command, limits.rows_max)
    return request if cut is command else msgspec.structs.replace(request, command=cut)


def _with_config(request: CommandRequest, config: Sequence[tuple[str, int | str]]) -> CommandRequest:
    """CONFIG GET of the gateway's settings too."""

    def shape(reply: Reply) -> Resp:
        assert isinstance(reply, NamedValues), "ConfigGet gives the settings"
        return request.shape(NamedValues(sorted([*reply.values, *config])))

    return msgspec.structs.replace(request, shape=shape)


def _check_added(command: types.XAdd, limits: CommandLimits) -> None:
    _check_production(command.producer_key)
    _check_entry(command.bodies[0], limits)


def _check_entry(body: bytes, limits: CommandLimits) -> None:
    if len(body) > limits.entry_bytes_max:
        most = limits.entry_bytes_max
        raise EngineError(
            "entry_too_large",
            f"ERR entry too large: an entry has at most {most} bytes as stored JSON (entry_bytes_max); "
            "split it, or store it elsewhere and add where it is",
            f"an entry has at most {most} bytes as stored JSON",
        )
    most = limits.entry_fields_max
    if len(body) > most * _FIELD_BYTES_MIN and len(entries.pairs_of(entries.encode(0, body))) > most:
        raise errors.invalid(
            f"ERR too many fields: an entry has at most {most} (entry_fields_max); "
            "put several values into one field, or split the entry"
        )


def _check_production(production: types.ProducerKey | None) -> None:
    if production is not None and max(len(production.producer), len(production.key)) > _PRODUCTION_BYTES_MAX:
        raise errors.invalid(
            f"ERR producer IDs and idempotent IDs have at most {_PRODUCTION_BYTES_MAX} bytes; use a digest"
        )


def _check_number(found: Sequence[object], what: str, name: str, most: int) -> None:
    if len(found) > most:
        raise errors.invalid(
            f"ERR too many {what}: one command names at most {most} ({name}); use several commands"
        )


def _cut(command: Command, rows_max: int) -> Command:
    """The command with its COUNT reduced, if COUNT is a maximum and the next call continues."""
    if type(command) is types.XReadGroup and (command.count is None or command.count > rows_max):
        return msgspec.structs.replace(command, count=rows_max)
    if type(command) is types.XAutoClaim and command.count > rows_max:
        return msgspec.structs.replace(command, count=rows_max)
    return command


# ---- what a command gets


def is_long(request: CommandRequest) -> bool:
    """Whether the reply may be long."""
    return request.command is not None and request.command.has_long_reply()


def within(
    request: CommandRequest, bytes_max: int, limits: CommandLimits, name: str = "answer_bytes_max"
) -> CommandRequest:
    """The request, limited to `bytes_max` bytes of entries in its reply, but at least one entry.

    `answer` refuses a command that asks for more; `name` is the name of the limit. Commands that deliver
    or claim entries get fewer instead.
    """
    command = request.command
    if command is None or not is_long(request):
        return request
    if "bytes_max" in command.__struct_fields__:
        bounded: Command = msgspec.structs.replace(command, bytes_max=bytes_max)
    elif isinstance(command, types.XPendingRange) and command.count > limits.rows_max:
        bounded = msgspec.structs.replace(command, count=limits.rows_max)
    else:
        bounded = command
    return msgspec.structs.replace(request, command=bounded, check=_check(command, bytes_max, limits, name))


def _check(command: Command, bytes_max: int, limits: CommandLimits, name: str) -> Callable[[Reply], None]:
    def check(reply: Reply) -> None:
        # If COUNT ended the list, the reply is complete.
        if isinstance(command, types.XRange) and isinstance(reply, Entries):
            if reply.more and (command.count is None or reply.count < command.count):
                way_round = _GO_ON if command.count is None else _COUNT_LESS
                if sum(map(len, reply.parts)) + limits.entry_bytes_max < bytes_max:
                    # The largest entry had room: it was their number that ended the read.
                    raise errors.invalid(
                        f"ERR the answer is too long: one turn gives no more than these {reply.count} "
                        f"entries; {way_round}"
                    )
                raise too_long(bytes_max, name, way_round)
        elif isinstance(command, types.XPendingRange) and isinstance(reply, PendingList):
            _check_rows(command, reply, limits.rows_max)

    return check


def _check_rows(command: types.XPendingRange, reply: PendingList, rows_max: int) -> None:
    if reply.more and command.count > rows_max:
        raise errors.invalid(
            f"ERR too many rows: XPENDING answers at most {rows_max} (count_max); use a smaller count, and "
            "go on behind the last ID"
        )


def check_written(
    request: CommandRequest, written: int, bytes_max: int, name: str = "answer_bytes_max"
) -> None:
    """Raise if a reply of `written` bytes is too long: for names, groups and consumers, which are not
    limited in advance.
    """
    way_round = _WAYS_ROUND.get(type(request.command))
    if way_round is not None and written > bytes_max:
        raise too_long(bytes_max, name, way_round)


def too_long(bytes_max: int, name: str, way_round: str) -> EngineError:
    """The reply exceeds a limit."""
    return errors.invalid(f"ERR the answer is too long: more than {bytes_max} bytes ({name}); {way_round}")


# ---- XINFO STREAM … FULL


def takes_two_steps(request: CommandRequest) -> bool:
    """Whether the size of its reply has to be found out in advance."""
    return type(request.command) is types.XInfoStreamFull


def probes(request: CommandRequest, bytes_max: int) -> tuple[Command, ...]:
    """Commands that find out the size of an unlimited reply in advance: for `check_probed`."""
    command = request.command
    if not isinstance(command, types.XInfoStreamFull):
        return ()
    return (
        types.XRange(
            stream=command.stream, start=0, end=ids.ID_MAX, count=command.count, bytes_max=bytes_max
        ),
        types.XInfoGroups(stream=command.stream),
    )


def check_probed(
    request: CommandRequest,
    replies: Sequence[Reply | EngineError],
    bytes_max: int,
    limits: CommandLimits,
    name: str = "answer_bytes_max",
) -> None:
    """Raise if the reply would exceed a limit."""
    run, groups = replies
    count = request.command.count if isinstance(request.command, types.XInfoStreamFull) else None
    if isinstance(run, Entries) and run.more and (count is None or run.count < count):
        raise too_long(bytes_max, name, _COUNT_LESS)
    rows = sum(_rows(group, count) for group in groups) if isinstance(groups, list) else 0
    rows_max = min(limits.rows_max, _FULL_ROWS_MAX)
    if rows > rows_max:
        raise errors.invalid(
            f"ERR too many rows: XINFO STREAM FULL shows at most {rows_max} consumers and pending "
            "entries; use a smaller COUNT, or XINFO GROUPS, XINFO CONSUMERS and XPENDING"
        )


def _rows(group: GroupInfo, count: int | None) -> int:
    """The consumers, the group's pending entries and those of each consumer that FULL shows at most."""
    pending, consumers = group.pending, group.consumers
    if count is None:
        return consumers + 2 * pending
    return consumers + min(pending, count) + min(pending, count * consumers)
