"""The tables of tenants know every command and every reply of the engine, and each of their fields."""

import collections.abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, get_args, get_origin

import msgspec
import pytest

from app.tenants.renaming import RENAMES, add_prefix
from app.tenants.stripping import IN_LISTS, REPLIES, strip_prefix
from app.tenants.tenant_names import TenantNames
from engine import EngineError, commands, replies
from engine.commands import BlockingCommand, Command, DbSize, FlushAll, StreamCommand, XLen
from engine.replies import Measured, Reply

NAMES = TenantNames("acme.")
# What a command has beside names of streams. A field that is in none of these sets is new: it belongs here,
# or into the table.
PLAIN: Final = frozenset(
    {
        "absolute",
        "archived_up_to",
        "block_ms",
        "bodies",
        "bytes_max",
        "claim",
        "claim_min_idle_ms",
        "claims_own",
        "condition",
        "consumer",
        "count",
        "drop",
        "dry_run",
        "durable_only",
        "end",
        "entries_added",
        "entries_read",
        "expected_last_id",
        "group",
        "guard",
        "id",
        "ids",
        "just_ids",
        "last_id",
        "lifetime",
        "limit",
        "max_bytes",
        "max_deleted_id",
        "max_entries",
        "min_idle_ms",
        "mkstream",
        "ms",
        "nack",
        "named",
        "noack",
        "producer_key",
        "reason",
        "refs",
        "relative",
        "replace",
        "retention",
        "retry_count",
        "reverse",
        "settings",
        "start",
        "transfer_to",
        "trim",
        "upto",
    }
)
HANDLED: Final[Mapping[str, frozenset[str]]] = {
    "_count_nothing": frozenset(),
    "_cursors": frozenset({"streams"}),
    "_delete": frozenset({"streams", "expected"}),
    "_letters": frozenset({"stream", "letters"}),
    "_list": frozenset({"prefix", "after"}),
    "_plan": frozenset({"streams", "ends"}),
    "_policy": frozenset({"stream", "policy"}),
    "_publish": frozenset({"parts", "idempotency", "chunk"}),
    "_restore": frozenset({"stream", "dump", "size"}),
    "_stream": frozenset({"stream"}),
    "_streams": frozenset({"streams"}),
    "_target": frozenset({"stream", "target"}),
    "_unchanged": frozenset({"expected"}),
    "_update": frozenset({"stream", "expected"}),
}
# Numbers, and keys that belong to the stream beside them.
NOT_NAMES: Final = {
    (commands.Plan, "parts"),
    (commands.Redrive, "idempotency"),
    (commands.XAdd, "idempotency"),
}
# Fields of replies that are shown as they are.
NO_NAMES: Final = frozenset(
    {
        "archived_up_to",
        "consumers",
        "copies",
        "count",
        "deleted",
        "deleted_ids",
        "duplicate",
        "entries_added",
        "expires_at_ms",
        "first",
        "first_id",
        "generation",
        "groups",
        "ids",
        "idle_ms",
        "idmp_duration_s",
        "idmp_maxsize",
        "iids_added",
        "iids_duplicates",
        "iids_tracked",
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
        "memory_bytes",
        "more",
        "next_start",
        "nodes",
        "pending_affected",
        "pids_tracked",
        "removed_upto",
        "results",
        "trimmed",
        "upto",
    }
)


def concrete(kind: type[Command]) -> Iterator[type[Command]]:
    """The commands among the classes below."""
    for one in kind.__subclasses__():
        if one not in (BlockingCommand, StreamCommand):
            yield one
        yield from concrete(one)


def test_every_command_is_in_the_table() -> None:
    assert {one for one in concrete(Command) if one.__module__.startswith("engine.")} == set(RENAMES)


def test_every_field_of_a_command_is_known() -> None:
    """Each is no name of a stream, or the command's function renames it."""
    for kind, rename in RENAMES.items():
        if rename is not None:
            fields = {one for one in kind.__struct_fields__ if (kind, one) not in NOT_NAMES}
            assert fields - PLAIN == HANDLED[rename.__name__], kind


def test_every_reply_is_in_the_table() -> None:
    """But for those of commands that are refused."""
    refused = {replies.ConfigValues, replies.Measured, replies.MetadataPage}
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


class NewCommand(Command, frozen=True):
    """One that the table does not have."""

    stream: str


@dataclass
class NewReply:
    """One that the table does not have."""

    stream: str


@pytest.mark.parametrize("command", [NewCommand(stream="s"), FlushAll(), commands.ConfigGet()])
def test_what_the_table_does_not_allow_is_refused(command: Command) -> None:
    with pytest.raises(EngineError) as refused:
        add_prefix(command, NAMES)
    assert refused.value.code == "forbidden"


@pytest.mark.parametrize("reply", [NewReply("acme.s"), Measured(()), [NewReply("acme.s")]])
def test_a_reply_that_the_table_does_not_have_is_not_shown(reply: Reply) -> None:
    with pytest.raises(EngineError) as refused:
        strip_prefix(reply, NAMES)
    assert refused.value.code == "internal"


def test_waitaof_counts_no_streams_of_others() -> None:
    assert add_prefix(DbSize(), NAMES).named_streams() == ()


@pytest.mark.parametrize(("length", "is_refused"), [(507, False), (508, True)])
def test_a_name_has_room_for_the_prefix(length: int, *, is_refused: bool) -> None:
    command = XLen(stream="n" * length)
    if not is_refused:
        assert add_prefix(command, NAMES) == XLen(stream="acme." + "n" * length)
        return
    with pytest.raises(EngineError) as refused:
        add_prefix(command, NAMES)
    assert (refused.value.code, "507 bytes" in refused.value.detail) == ("invalid_name", True)
