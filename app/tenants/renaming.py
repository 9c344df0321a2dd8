"""Commands of a tenant as the engine runs them: with the prefix in every name.

Knows: where each command holds names of streams.
Must never know: replies, who sends a command.

The table names every command. One that is about all streams has None, and is refused, as is one without an
entry: `tests/app/tenants/test_tables.py` holds the table against the engine's commands.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from app.tenants.sources import rename_in_dump
from app.tenants.stripping import ShownInfo
from app.tenants.tenant_names import TenantNames
from engine import EngineError, dump
from engine.commands import (
    Acknowledge,
    AddEach,
    BlockingCommand,
    Command,
    ConfigGet,
    ConfigSet,
    Copy,
    DbSize,
    DeadLetterEntries,
    Delete,
    DeleteConsumer,
    DeleteGroup,
    DescribeEdges,
    DescribeGroup,
    DescribeUse,
    Dump,
    EndWait,
    EnsureGroup,
    EnsureStream,
    Exists,
    Expire,
    ExpireStreams,
    FindDeadLetters,
    FindGroup,
    FlushAll,
    GiveBack,
    IdempotencyKey,
    ListMetadata,
    ListStreams,
    Maintain,
    MeasureStreams,
    Persist,
    Plan,
    Publish,
    PutMetadata,
    Redrive,
    Rename,
    Restore,
    StreamCommand,
    StreamInfos,
    TimeToLive,
    Type,
    Unchanged,
    UpdateGroup,
    UpdateStream,
    XAck,
    XAckDel,
    XAdd,
    XAutoClaim,
    XCfgSet,
    XClaim,
    XDel,
    XDelEx,
    XGroupCreate,
    XGroupCreateConsumer,
    XGroupDelConsumer,
    XGroupDestroy,
    XGroupSetId,
    XIdmpRecord,
    XInfoConsumers,
    XInfoGroups,
    XInfoStream,
    XInfoStreamFull,
    XLen,
    XNack,
    XPending,
    XPendingRange,
    XRange,
    XRead,
    XReadGroup,
    XSetId,
    XTrim,
)
from engine.replies import StreamInfo

B = TypeVar("B", bound=BlockingCommand)
Renaming = Callable[[Any, TenantNames], Command]
_LETTERS: Final = "dead_letter_stream"


def add_prefix(command: Command, names: TenantNames) -> Command:
    """The command for the engine. Raises `forbidden` for one on all streams, `invalid_name`."""
    rename = RENAMES.get(type(command))
    if rename is None:
        raise EngineError(
            "forbidden",
            "NOPERM this command is about the streams of all callers",
            "this is about the streams of all callers, and the token has a prefix",
        )
    return rename(command, names)


def _stream(command: StreamCommand, names: TenantNames) -> StreamCommand:
    return replace(command, stream=names.add(command.stream))


def _streams(command: Delete | Exists | FindGroup | EndWait, names: TenantNames) -> Command:
    return replace(command, streams=[names.add(name) for name in command.streams])


def _cursors(command: B, names: TenantNames) -> B:
    return replace(command, streams=[(names.add(name), cursor) for name, cursor in command.streams])


def _plan(command: Plan, names: TenantNames) -> Command:
    ends = {names.add(name): end for name, end in command.ends.items()}
    return replace(_cursors(command, names), ends=ends)


def _target(command: Rename | Copy, names: TenantNames) -> Command:
    return replace(_stream(command, names), target=names.add(command.target))


def _letters(command: FindDeadLetters | Redrive, names: TenantNames) -> Command:
    return replace(_stream(command, names), letters=names.add(command.letters))


def _policy(command: EnsureGroup | UpdateGroup, names: TenantNames) -> Command:
    policy = dict(command.policy)
    if policy.get(_LETTERS) is not None:
        policy[_LETTERS] = names.add(policy[_LETTERS])
    return replace(_stream(command, names), policy=policy)


def _expected(info: StreamInfo | None) -> StreamInfo | None:
    """The stream as the engine has it, of what the tenant was shown."""
    return info.real if isinstance(info, ShownInfo) else info


def _update(command: UpdateStream, names: TenantNames) -> Command:
    return replace(_stream(command, names), expected=_expected(command.expected))


def _unchanged(command: Unchanged, names: TenantNames) -> Command:
    expected = [(names.add(name), _expected(info)) for name, info in command.expected]
    return replace(command, expected=expected)


def _delete(command: Delete, names: TenantNames) -> Command:
    return replace(_streams(command, names), expected=_expected(command.expected))


def _restore(command: Restore, names: TenantNames) -> Command:
    """A dead letter in a dump names a stream of the tenant. The engine gets what it refuses as it is."""
    renamed = replace(_stream(command, names))
    if dump.dump_cost(command.dump) > dump.DUMP_COST_MAX:
        return renamed
    try:
        described = rename_in_dump(command.dump, lambda source: names.prefix_bytes + source)
    except ValueError:
        return renamed
    if described == command.dump:
        return renamed
    return replace(renamed, dump=described, size=len(dump.encode(described)))


def _list(command: ListStreams | StreamInfos, names: TenantNames) -> Command:
    after = None if command.after is None else names.prefix + command.after
    return replace(command, prefix=names.prefix + command.prefix, after=after)


def _publish(command: Publish, names: TenantNames) -> Command:
    # What a key was used for belongs to no stream, so tenants would share it.
    key, chunk = command.idempotency, command.chunk
    return replace(
        command,
        parts=[replace(part, stream=names.add(part.stream)) for part in command.parts],
        idempotency=None if key is None else IdempotencyKey(names.add_to_key(key.key), key.digest),
        chunk=None if chunk is None else replace(chunk, producer=names.add_to_key(chunk.producer)),
    )


def _count_nothing(_: DbSize, __: TenantNames) -> Command:
    """WAITAOF runs it to wait for the disk, and leaves the number out. DBSIZE itself is refused."""
    return Exists(streams=())


RENAMES: Final[Mapping[type[Command], Renaming | None]] = {
    Acknowledge: _stream,
    AddEach: _stream,
    ConfigGet: None,
    ConfigSet: None,
    Copy: _target,
    DbSize: _count_nothing,
    DeadLetterEntries: _stream,
    Delete: _delete,
    DeleteConsumer: _stream,
    DeleteGroup: _stream,
    DescribeEdges: _stream,
    DescribeGroup: _stream,
    DescribeUse: _stream,
    Dump: _stream,
    EndWait: _streams,
    EnsureGroup: _policy,
    EnsureStream: _stream,
    Exists: _streams,
    Expire: _stream,
    ExpireStreams: None,
    FindDeadLetters: _letters,
    FindGroup: _streams,
    FlushAll: None,
    GiveBack: _stream,
    ListMetadata: None,
    ListStreams: _list,
    Maintain: None,
    MeasureStreams: None,
    Persist: _stream,
    Plan: _plan,
    Publish: _publish,
    PutMetadata: None,
    Redrive: _letters,
    Rename: _target,
    Restore: _restore,
    StreamInfos: _list,
    TimeToLive: _stream,
    Type: _stream,
    Unchanged: _unchanged,
    UpdateGroup: _policy,
    UpdateStream: _update,
    XAck: _stream,
    XAckDel: _stream,
    XAdd: _stream,
    XAutoClaim: _stream,
    XCfgSet: _stream,
    XClaim: _stream,
    XDel: _stream,
    XDelEx: _stream,
    XGroupCreate: _stream,
    XGroupCreateConsumer: _stream,
    XGroupDelConsumer: _stream,
    XGroupDestroy: _stream,
    XGroupSetId: _stream,
    XIdmpRecord: _stream,
    XInfoConsumers: _stream,
    XInfoGroups: _stream,
    XInfoStream: _stream,
    XInfoStreamFull: _stream,
    XLen: _stream,
    XNack: _stream,
    XPending: _stream,
    XPendingRange: _stream,
    XRange: _stream,
    XRead: _cursors,
    XReadGroup: _cursors,
    XSetId: _stream,
    XTrim: _stream,
}
