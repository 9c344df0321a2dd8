"""Tenants know every command and every reply of the engine, and each of their fields."""

import collections.abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args, get_origin

import msgspec
import pytest

from app.tenants.renaming import WHOLE, add_prefix, renamed_fields
from app.tenants.stripping import IN_LISTS, REPLIES, strip_prefix
from app.tenants.tenant_names import TenantNames
from engine import EngineError, replies
from engine.commands import types, weir_commands
from engine.commands.base import BlockingCommand, Command, StreamCommand
from engine.commands.durable_commands import AppendBatches, AppendDurable, CreateDurable
from engine.commands.schedule_commands import AddScheduled, FireDueSchedules, ListSchedules, SetSchedule
from engine.commands.storing import StoreRuns
from engine.replies import Measured, Reply

NAMES = TenantNames("acme.")
# What is renamed of a command beside `stream`. A new field of text is refused until it is known.
RENAMED: Final[Mapping[type[Command], set[str]]] = {
    types.Copy: {"stream", "target"},
    types.Delete: {"streams", "expected"},
    weir_commands.EndWait: {"streams"},
    weir_commands.EnsureGroup: {"stream", "policy"},
    types.Exists: {"streams"},
    weir_commands.FindDeadLetters: {"stream", "letters"},
    types.FindGroup: {"streams"},
    weir_commands.Plan: {"streams", "ends"},
    weir_commands.Redrive: {"stream", "letters"},
    types.Rename: {"stream", "target"},
    weir_commands.Unchanged: {"versions"},
    weir_commands.UpdateGroup: {"stream", "policy"},
    weir_commands.UpdateStream: {"stream", "expected"},
    weir_commands.AddEach: {"stream", "bodies"},
    AppendBatches: {"stream", "bodies"},
    AppendDurable: {"stream", "bodies"},
    CreateDurable: {"stream", "bodies", "fork"},
    types.XAdd: {"stream", "bodies"},
    types.XRead: {"streams"},
    types.XReadGroup: {"streams"},
}
# A function of their own renames these fields.
WHOLE_FIELDS: Final[Mapping[type[Command], set[str]]] = {
    AddScheduled: {"stream", "add", "later", "cancel"},
    weir_commands.Close: {"stream", "add"},
    types.DbSize: set(),
    ListSchedules: {"stream", "after", "before", "before_ms", "by_name"},
    types.ListStreams: {"prefix", "after"},
    weir_commands.Publish: {"parts", "idempotency", "chunk"},
    SetSchedule: {"stream", "schedule"},
    weir_commands.StreamInfos: {"prefix", "after"},
}
WITHOUT_NAMES: Final = {
    *("at", "cancel_required", "drops_schedules", "expected_last_id", "limit", "mkstream", "ms"),
    *("only_new", "reason", "recurring", "relative", "replace"),
}
REFUSED: Final = {
    types.ConfigGet,
    types.ConfigSet,
    weir_commands.ExpireStreams,
    FireDueSchedules,
    types.FlushAll,
    weir_commands.ListMetadata,
    weir_commands.EnforceRetention,
    weir_commands.Maintain,
    weir_commands.MeasureStreams,
    weir_commands.PutMetadata,
    weir_commands.ReleaseDeferred,
    StoreRuns,
}
# Fields of replies that are shown as they are.
NO_NAMES: Final = frozenset(
    {
        "added",
        "archived_up_to",
        "cancelled",
        "closed",
        "consumers",
        "copies",
        "count",
        "created",
        "deleted",
        "deleted_ids",
        "done",
        "duplicate",
        "entries_added",
        "epoch",
        "expires_at_ms",
        "first",
        "first_id",
        "gap",
        "generation",
        "groups",
        "idle_ms",
        "idmp_duration_s",
        "idmp_maxsize",
        "ids",
        "iids_added",
        "iids_duplicates",
        "iids_tracked",
        "info",
        "keep_unacknowledged",
        "keep_unarchived",
        "last",
        "last_id",
        "length",
        "letters",
        "max_age_ms",
        "max_bytes",
        "max_deleted_id",
        "max_len",
        "media",
        "memory_bytes",
        "more",
        "next_start",
        "nodes",
        "not_held",
        "pending_affected",
        "pids_tracked",
        "recurring",
        "refusal",
        "refused",
        "removed_upto",
        "replies",
        "results",
        "scheduled",
        "seq",
        "trimmed",
        "ttl_ms",
        "upto",
    }
)


def concrete(kind: type[Command]) -> Iterator[type[Command]]:
    """The commands among the classes below."""
    for one in kind.__subclasses__():
        if one not in (BlockingCommand, types.BoundedRead, StreamCommand):
            yield one
        yield from concrete(one)


def test_every_command_is_renamed_or_refused() -> None:
    """Those on one stream alone by their field `stream`."""
    every = {one for one in concrete(Command) if one.__module__.startswith("engine.")}
    for kind in every - REFUSED - WHOLE_FIELDS.keys():
        assert set(renamed_fields(kind)) == RENAMED.get(kind, {"stream"}), kind
    assert {kind for kind in every - WHOLE.keys() if not renamed_fields(kind)} == REFUSED


def test_every_field_of_a_command_with_a_function_is_known() -> None:
    """Each is no name of a stream, or the command's function renames it."""
    assert WHOLE.keys() == WHOLE_FIELDS.keys()
    for kind, fields in WHOLE_FIELDS.items():
        assert set(kind.__struct_fields__) - WITHOUT_NAMES == fields, kind


def test_every_reply_is_in_the_table() -> None:
    """But for those of commands that are refused."""
    refused = {replies.NamedValues, replies.Measured, replies.MetadataPage}
    kinds = set(get_args(Reply))
    lists = {one for one in kinds if get_origin(one) is collections.abc.Sequence}
    assert {get_args(one)[0] for one in lists} == set(IN_LISTS)
    assert kinds - lists - refused == set(REPLIES) - {list, tuple}


def test_every_field_of_a_reply_without_names_is_known() -> None:
    """A field that is new here belongs to `NO_NAMES`, or its reply gets a function of its own."""
    same = [kind for kind, strip in REPLIES.items() if strip.__name__ == "_same"]
    for kind in same:
        if issubclass(kind, msgspec.Struct) and kind not in (replies.PendingList, replies.PendingSummary):
            assert set(kind.__struct_fields__) <= NO_NAMES, kind


class NewCommand(StreamCommand, frozen=True):
    """One whose second field may name a stream."""

    beside: Sequence[tuple[str, int]]


@dataclass
class NewReply:
    """One that the table does not have."""

    stream: str


@pytest.mark.parametrize("command", [NewCommand(stream="s", beside=[]), types.FlushAll(), types.ConfigGet()])
def test_what_is_not_known_to_name_streams_is_refused(command: Command) -> None:
    with pytest.raises(EngineError) as refused:
        add_prefix(command, NAMES)
    assert refused.value.code == "forbidden"


@pytest.mark.parametrize("reply", [NewReply("acme.s"), Measured(()), [NewReply("acme.s")]])
def test_a_reply_that_the_table_does_not_have_is_not_shown(reply: Reply) -> None:
    with pytest.raises(EngineError) as refused:
        strip_prefix(reply, NAMES)
    assert refused.value.code == "internal"


def test_waitaof_counts_no_streams_of_others() -> None:
    assert add_prefix(types.DbSize(), NAMES).named_streams() == ()


@pytest.mark.parametrize(("length", "is_refused"), [(507, False), (508, True)])
def test_a_name_has_room_for_the_prefix(length: int, *, is_refused: bool) -> None:
    command = types.XLen(stream="n" * length)
    if not is_refused:
        assert add_prefix(command, NAMES) == types.XLen(stream="acme." + "n" * length)
        return
    with pytest.raises(EngineError) as refused:
        add_prefix(command, NAMES)
    assert (refused.value.code, "507 bytes" in refused.value.detail) == ("invalid_name", True)
