"""Every text of every reply is filled with a name under the prefix, and what comes out is searched for it.

Marks say which fields of replies hold names; this looks at the values.
"""

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import count
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from app.tenants.renaming import SOURCE, strip_prefix, strip_refusal
from app.tenants.tenant_names import TenantNames
from engine import EngineError, entries, errors, replies
from engine.recurrence import Rule
from engine.replies import Reply

NAMES: Final = TenantNames("acme.")
# Of the tenant's own streams, and of another's.
PREFIXES: Final = ("acme.", "other.")
_GROUP: Final = "the name of a group, which tenants choose"
_CONSUMER: Final = "the name of a consumer, which tenants choose"
_CODE: Final = "a word of the engine's"
_GENERATION: Final = "16 hexadecimal digits"
_MEDIA: Final = "a media type, which tenants choose"
_SCHEDULE: Final = "the name of a schedule, which tenants choose"
# Texts that are no names of streams, by type and field, and what they are.
SHOWN: Final[Mapping[str, str]] = {
    "Added.refusal": _CODE,
    "AddedScheduled.recurring": _SCHEDULE,
    "AddedScheduled.scheduled": _SCHEDULE,
    "Archived.generation": _GENERATION,
    "ConsumerDetail.name": _CONSUMER,
    "ConsumerInfo.name": _CONSUMER,
    "DeliveryMark.generation": _GENERATION,
    "DurableAppended.generation": _GENERATION,
    "DurableAppended.refused": _CODE,
    "DurableInfo.generation": _GENERATION,
    "DurableInfo.media": _MEDIA,
    "Edges.generation": _GENERATION,
    "Gap.reason": _CODE,
    "GroupDetail.pending": _CONSUMER,
    "GroupFacts.busy_key": "a value of an entry, which tenants choose",
    "GroupInfo.name": _GROUP,
    "GroupInfo.ordered_by": "the name of a field, which tenants choose",
    "GroupMeasure.name": _GROUP,
    "NamedValues.values": "settings, and what a part says of a stream in a tenant's words",
    "PendingEntry.consumer": _CONSUMER,
    "PendingSummary.consumers": _CONSUMER,
    "ScheduleInfo.name": _SCHEDULE,
    "StreamEnd.reason": "why a stream was closed, in a tenant's words",
    "GroupInfo.state": "a word of the engine's",
    "StreamInfo.state": "a word of the engine's",
    "StreamInfo.close_reason": "why a stream was closed, in a tenant's words",
    "StreamInfo.held_by": _CODE,
    "PreviousStream.generation": _GENERATION,
    "StreamInfo.generation": _GENERATION,
    "StreamInfo.media": _MEDIA,
    "StreamPlan.generation": _GENERATION,
    "StreamsRead.generations": _GENERATION,
    "str": "no command answers a name as a text: RANDOMKEY answers a Listing",
}


_LISTED: Final = "what is listed begins with the prefix that was asked for"
_LETTER: Final = "an operator has the dead letters of another tenant sent there"
# Where a name of another tenant stays as it is.
ELSEWHERE: Final[Mapping[str, str]] = {
    "Delivered.text": _LETTER,
    "Entries.parts": _LETTER,
    "Listing.next": _LISTED,
    "ScheduleInfo.body": _LETTER,
    "StreamInfo.first_entry": _LETTER,
    "StreamInfo.last_entry": _LETTER,
    "StreamPage.next": _LISTED,
}


class Filled:
    """Builds values of any type, with a name of its own in each text, by where that stands."""

    def __init__(self, prefix: str) -> None:
        self.places: dict[str, str] = {}
        self._prefix = prefix
        self._numbers = count(1)

    def _name(self, place: str) -> str:
        name = f"{self._prefix}s{next(self._numbers)}"
        self.places[name] = place
        return name

    def of(self, hint: Any, place: str) -> Any:
        """A value of a type; `place` is the type and the field that have it."""
        if place in SPECIAL:
            return SPECIAL[place](self._name(place))
        if isinstance(hint, type):
            for kind, make in _PLAIN.items():
                if issubclass(hint, kind):
                    return make(self._name(place)) if kind in (str, bytes) else make(hint)
            if fields := get_type_hints(hint):
                # A struct or a tuple with names.
                return hint(**{name: self.of(of, f"{hint.__name__}.{name}") for name, of in fields.items()})
        kind, inner = get_origin(hint), get_args(hint)
        if kind in (Union, types.UnionType):
            texts = [one for one in inner if one is not types.NoneType]
            return self.of(next((one for one in texts if one is str), texts[0]), place)
        if kind is tuple:
            return tuple(self.of(one, place) for one in inner if one is not Ellipsis)
        if kind is not None and issubclass(kind, Sequence):
            return [self.of(inner[0], place)]
        raise AssertionError(f"{place}: {hint!r} is new here")


def _stored(name: str) -> bytes:
    return entries.encode(1 << 64, _body(name))


def _body(name: str) -> bytes:
    return entries.body([(SOURCE, name.encode())])


_PLAIN: Final[Mapping[type, Callable[[Any], Any]]] = {
    bool: lambda _: True,
    Enum: lambda kind: next(iter(kind)),
    int: lambda _: 1,
    float: lambda _: 1.0,
    str: str,
    bytes: _stored,
    Rule: lambda _: Rule(cron="* * * * *", tz="UTC"),
}
# Texts of which a part is a name.
SPECIAL: Final[Mapping[str, Callable[[str], Any]]] = {"ScheduleInfo.body": _body}


def texts(value: Any) -> Iterator[str]:
    """All that a reply holds of text, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode()
    elif isinstance(value, msgspec.Struct):
        yield from texts([getattr(value, name) for name in value.__struct_fields__ if name != "real"])
    elif isinstance(value, Sequence):
        for one in value:
            yield from texts(one)


# What answers a command that is refused is left out; lists are there by what they hold.
_REFUSED: Final = {replies.GroupCounts, replies.MetadataPage, types.NoneType}
_LISTS: Final = {one for one in get_args(Reply) if get_origin(one) is Sequence}
IN_LISTS: Final = {get_args(one)[0] for one in _LISTS}
KINDS: Final = sorted({*get_args(Reply)} - _LISTS - _REFUSED | IN_LISTS, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_text_of_a_reply_has_the_prefix(kind: type, prefix: str) -> None:
    """But where it stands in what a tenant or the engine has chosen, and names no stream."""
    filled = Filled(prefix)
    reply: Any = filled.of(kind, kind.__name__)
    stripped = strip_prefix([reply] if kind in IN_LISTS else reply, NAMES)
    shown = {
        place
        for text in texts(stripped)
        for name, place in filled.places.items()
        if name == text or f'"{name}"' in text
    }
    known = {*SHOWN, *(ELSEWHERE if prefix == PREFIXES[1] else ())}
    todo = "mark a name of a stream (engine/name_marks.py); any other text has a line in SHOWN"
    assert shown <= known, f"{shown - known} show a name as the engine has it: {todo}"


# Parameters of the functions of `engine.errors` that are names of streams.
QUOTED: Final = {"stream"}


def _refusals(name: str) -> Iterator[EngineError]:
    """All refusals of the engine that are about a stream, with this name."""
    for make in vars(errors).values():
        if not isinstance(make, types.FunctionType) or make.__name__.startswith("_"):
            continue
        hints = get_type_hints(make)
        if hints.pop("return", None) is EngineError and QUOTED & hints.keys():
            values = {EngineError: errors.storage_full(), int: 1, bool: True}
            yield make(
                **{key: name if key in QUOTED else values.get(hint, "x") for key, hint in hints.items()}
            )


@pytest.mark.parametrize("stream", ["s1", "with 'a quote'", "ł", "a/b"])
def test_no_refusal_quotes_a_name_as_the_engine_has_it(stream: str) -> None:
    """Its words for Redis clients, its sentence, its members."""
    refusals = [*_refusals(f"acme.{stream}")]
    assert len(refusals) > 10
    for refusal in refusals:
        shown = strip_refusal(refusal, {f"acme.{stream}": stream})
        assert "acme." not in " ".join(texts([shown.redis, shown.detail, repr(shown.members)])), shown
