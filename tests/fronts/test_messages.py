"""Every command, reply and refusal crosses to the other process and back unchanged."""

from collections.abc import Collection, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.auth.grants import Grant
from app.fronts.codec import codec_of, decode, encode
from app.fronts.messages import (
    COMMANDS,
    pack_call,
    pack_replies,
    unpack_call,
    unpack_replies,
)
from engine import Call, EngineError, How, ReadHandle, Refused, errors, ids
from engine.commands.base import Command
from engine.replies import Reply

integers = st.sampled_from([0, 1, -1, 255, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 1 << 64, ids.ID_MAX])
texts = st.sampled_from(["", "s", "ü/~", "$"])
LEAVES: Final[Mapping[Any, st.SearchStrategy[Any]]] = {
    int: integers,
    str: texts,
    bytes: st.sampled_from([b"", b"\0\xff", b',"fields":{}}']),
    bool: st.booleans(),
    NoneType: st.none(),
    # What stands in mappings of changes.
    Any: st.sampled_from([None, 1, "s", True]),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in LEAVES:
        return LEAVES[kind]
    if origin is Annotated:
        return values_of(arguments[0])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of([values_of(one) for one in arguments])
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*map(values_of, arguments))
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(texts, values_of(arguments[1]), max_size=2)
    if origin is not None and issubclass(origin, Collection):
        some = st.lists(values_of(arguments[0]), max_size=2)
        return some | some.map(tuple)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: values_of(one) for name, one in hints.items() if name in fields_of(kind)})


def fields_of(kind: Any) -> Collection[str]:
    return kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else kind._fields  # type: ignore[no-any-return]


def plain(value: Any) -> Any:
    """Lists and tuples of the same items are equal here; named ones and structs only to their own type."""
    if isinstance(value, msgspec.Struct) or hasattr(value, "_fields"):
        return [type(value), *(plain(getattr(value, name)) for name in fields_of(type(value)))]
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return type(value), value


def carried(packed: Any) -> Any:
    return decode(encode(packed))


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
@settings(max_examples=8)
@given(data=st.data())
def test_a_command_arrives_as_it_was_sent(kind: type[Command], data: st.DataObject) -> None:
    sent = data.draw(values_of(kind))
    [arrived] = unpack_call(carried(pack_call(Call([sent])))).commands
    assert plain(arrived) == plain(sent)


@pytest.mark.parametrize("kind", get_args(Reply), ids=str)
@settings(max_examples=8)
@given(data=st.data())
def test_a_reply_arrives_as_it_was_sent(kind: Any, data: st.DataObject) -> None:
    sent = data.draw(values_of(kind))
    [arrived] = unpack_replies(carried(pack_replies([sent])))
    assert plain(arrived) == plain(sent)


def test_a_refusal_arrives_with_all_its_words() -> None:
    sent = errors.memory_full(2, 1)
    [arrived] = found = unpack_replies(carried(pack_replies([sent])))
    assert not isinstance(found, Refused)
    assert isinstance(arrived, EngineError)
    assert vars(arrived) == vars(sent)
    assert arrived.args == sent.args


def test_a_refusal_of_the_whole_arrives_as_one() -> None:
    """It is not the reply of the only command."""
    arrived = unpack_replies(carried(pack_replies(Refused(errors.closing()))))
    assert isinstance(arrived, Refused)
    assert arrived.error.code == "draining"


@pytest.mark.parametrize("how", How)
def test_the_terms_of_a_call_arrive(how: How) -> None:
    """What waits has a handle of its own there; what hears of replies before they leave stays here."""
    sent = Call([], how, ReadHandle(), synced=True, going_on=True, origin="req_1", on_run=print, caller="a")
    arrived = unpack_call(carried(pack_call(sent)))
    assert isinstance(arrived.waits, ReadHandle)
    assert arrived == msgspec.structs.replace(sent, waits=arrived.waits, quotas=[], on_run=None)
    assert unpack_call(carried(pack_call(Call([])))).waits is None


def test_a_quota_arrives_with_its_limits_and_matches_the_same_names() -> None:
    sent = Grant.parse("write:a?c*").model_copy(update={"streams_max": 3, "bytes_max": 5}).quota()
    assert sent is not None
    [arrived] = unpack_call(carried(pack_call(Call([], quotas=[sent])))).quotas
    assert arrived[:2] == sent[:2]
    assert arrived[3:] == sent[3:]
    for name in ("abc", "acc-1", "ac", "bbc"):
        assert arrived.matches(name) == sent.matches(name)


def test_a_type_that_cannot_be_carried_is_refused_when_it_is_compiled() -> None:
    """Not when the first value of it comes."""
    with pytest.raises(TypeError, match="no codec"):
        codec_of(complex)
