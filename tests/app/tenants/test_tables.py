"""Each command of the engine says where it holds names of streams, or is refused to tenants."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec
import pytest

from app.tenants.renaming import add_prefix
from app.tenants.tenant_names import TenantNames
from engine import EngineError
from engine.commands import types, weir_commands
from engine.commands.base import BlockingCommand, Command, StreamCommand
from engine.commands.schedule_commands import FireDueSchedules
from engine.commands.storing import StoreRuns
from engine.name_marks import Mark
from engine.replies import StreamInfo

NAMES = TenantNames("acme.")
# Texts of commands that are no names of streams.
WITHOUT_NAMES: Final[Mapping[str, str]] = {
    "ForkPoint.generation": "16 hexadecimal digits",
    "IdempotencyKey.key": "a key of the stream beside it, but for those with a mark",
    "Chunk.producer": "the text of a key with a mark",
    "ProducerBatch.producer": "a producer of this stream",
    "Rule.cron": "a rule",
    "Rule.missed": "a word of the engine's",
    "Rule.tz": "a place on Earth",
    **dict.fromkeys(("consumer", "transfer_to", "holders"), "a consumer, which tenants choose"),
    "group": "a group, which tenants choose",
    "kind": "a media type",
    "media": "a media type",
    "known": "generations, 16 hexadecimal digits",
    "named": "a word of Redis's",
    "reason": "why something is done, in a tenant's words",
    **dict.fromkeys(("NewSchedule.name", "name", "cancel", "after", "before"), "a schedule of this stream"),
    "retention": "numbers by name",
}
# About the streams of all callers, or the gateway's own.
REFUSED: Final[Sequence[Command]] = (
    types.ConfigGet(),
    types.ConfigSet(values=[]),
    weir_commands.ExpireStreams(),
    FireDueSchedules(),
    types.FlushAll(),
    weir_commands.ListMetadata(),
    weir_commands.EnforceRetention(),
    weir_commands.Maintain(),
    weir_commands.CountGroups(),
    weir_commands.MeasureStreams(streams=["s"], groups_max=1),
    weir_commands.PutMetadata(name="a", value=b""),
    weir_commands.ReleaseDeferred(),
    StoreRuns(rows=[]),
)
_REFUSED: Final = {type(command) for command in REFUSED}


def concrete(kind: type[Command]) -> Iterator[type[Command]]:
    """The commands among the classes below."""
    for one in kind.__subclasses__():
        if one not in (BlockingCommand, types.BoundedRead, StreamCommand):
            yield one
        yield from concrete(one)


COMMANDS: Final = sorted(
    {one for one in concrete(Command) if one.__module__.startswith("engine.")}, key=lambda one: one.__name__
)


def texts(kind: type, prefix: str = "") -> Iterator[str]:
    """The fields of a command, and of what it holds, that have text and no mark."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name in kind.__struct_fields__:  # type: ignore[attr-defined]
            yield from _texts(hint, f"{prefix}{name}")


def _texts(hint: Any, place: str) -> Iterator[str]:
    if get_origin(hint) is Annotated and any(isinstance(one, Mark) for one in get_args(hint)):
        return
    if hint in (str, Any):
        yield place
    elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        if hint is not StreamInfo and not issubclass(hint, Command):
            yield from texts(hint, f"{hint.__name__}.")
    else:
        for one in get_args(hint):
            yield from _texts(one, place)


@pytest.mark.early
@pytest.mark.parametrize(
    "kind", [one for one in COMMANDS if one not in _REFUSED], ids=lambda one: one.__name__
)
def test_every_text_of_a_command_has_a_mark_or_names_no_stream(kind: type[Command]) -> None:
    assert {*texts(kind)} <= WITHOUT_NAMES.keys(), "a new text has its mark, or a line here"


@pytest.mark.parametrize("command", REFUSED, ids=lambda command: type(command).__name__)
def test_a_command_without_marks_is_refused(command: Command) -> None:
    with pytest.raises(EngineError) as refused:
        add_prefix(command, NAMES)
    assert refused.value.code == "forbidden"


def test_no_other_command_is_refused() -> None:
    """It has a mark, so there is something to rename; WAITAOF asks DBSIZE, which is answered nothing."""
    marked = {kind for kind in COMMANDS if Mark.__name__ in repr(get_type_hints(kind, include_extras=True))}
    assert {*COMMANDS} - marked - {types.DbSize} == _REFUSED


class NewCommand(StreamCommand, frozen=True):
    """One with a second name, whose mark was forgotten."""

    beside: Sequence[tuple[str, int]]

    def named_streams(self) -> tuple[str, ...]:
        return (self.stream, *(name for name, _ in self.beside))


def test_a_command_that_names_a_stream_without_a_mark_is_not_run() -> None:
    assert add_prefix(NewCommand(stream="s", beside=[]), NAMES) == NewCommand(stream="acme.s", beside=[])
    with pytest.raises(EngineError) as refused:
        add_prefix(NewCommand(stream="s", beside=[("other.s", 1)]), NAMES)
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
