"""Values of the engine as plain ones that msgpack carries, and back, by their types.

Knows: how each kind of type is written. It is compiled once, from annotations.
Must never know: which commands and replies there are.

    struct, named tuple     the list of its fields, in order
    enumeration             its value
    union                   plain values as they are; others as [which of its types, the value]
    int                     as it is; beyond 64 bits, as IDs are, as an extension of 17 bytes

msgspec reads and writes structs itself, but no integer beyond 64 bits.
"""

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import cache
from inspect import Parameter, signature
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import msgpack

Convert = Callable[[Any], Any]
_PLAIN: Final = (int, str, bytes, bool, float, type(None))
_SMALL_MIN: Final = -(1 << 63)
_SMALL_END: Final = 1 << 64
_WIDE: Final = 1
# A sign, and the 128 bits of an ID.
_WIDE_BYTES: Final = 17


class Codec(NamedTuple):
    """How a value is written and read; `same` where it is carried as it is."""

    pack: Convert
    unpack: Convert


def same(value: Any) -> Any:  # noqa: ANN401 - any value
    """The value itself; what would call it for each item leaves that."""
    return value


_AS_IT_IS: Final = Codec(same, same)


def _pack_plain(value: Any) -> Any:  # noqa: ANN401 - any plain value
    if type(value) is int and not _SMALL_MIN <= value < _SMALL_END:
        return msgpack.Ext(_WIDE, value.to_bytes(_WIDE_BYTES, "big", signed=True))
    return value


def _read_extension(code: int, data: memoryview) -> int:
    assert code == _WIDE, "there is one extension"
    return int.from_bytes(data, "big", signed=True)


encode: Final = msgpack.Encoder().encode
decode: Final = msgpack.Decoder(ext_hook=_read_extension).decode


@cache
def codec_of(kind: Any) -> Codec:  # noqa: ANN401 - a type, or a form of typing
    """The codec for values of this type. Raises TypeError for a type without one."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is int:
        return Codec(_pack_plain, same)
    if kind in _PLAIN or kind is Any or origin is Literal:
        return _AS_IT_IS
    if origin is Annotated:
        return codec_of(arguments[0])
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _places(tuple, arguments)
    if origin is tuple:
        return _sequence(arguments[0], tuple)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(arguments[1])
    if origin is not None and issubclass(origin, Collection):
        return _sequence(arguments[0], list)
    if isinstance(kind, type):
        return _class(kind)
    raise TypeError(f"no codec for {kind!r}")


def _class(kind: type) -> Codec:
    if issubclass(kind, Enum):
        return Codec(attrgetter("value"), kind)
    if issubclass(kind, msgspec.Struct):
        return _struct(kind)
    if issubclass(kind, tuple):
        # A named tuple: it has hints for its fields, in order.
        return _places(lambda fields: kind(*fields), [*get_type_hints(kind).values()])
    raise TypeError(f"no codec for {kind!r}")


def _sequence(item: Any, make: Callable[[list[Any]], Sequence[Any]]) -> Codec:  # noqa: ANN401 - a type
    pack, unpack = codec_of(item)

    def pack_items(values: Sequence[Any]) -> list[Any]:
        return list(values) if pack is same else [pack(value) for value in values]

    def unpack_items(values: list[Any]) -> Sequence[Any]:
        return make(values if unpack is same else [unpack(value) for value in values])

    as_it_is = unpack is same and make is list
    return Codec(pack_items, same if as_it_is else unpack_items)


def _mapping(item: Any) -> Codec:  # noqa: ANN401 - a type
    pack, unpack = codec_of(item)

    def pack_items(values: Mapping[str, Any]) -> dict[str, Any]:
        return dict(values) if pack is same else {name: pack(value) for name, value in values.items()}

    def unpack_items(values: dict[str, Any]) -> dict[str, Any]:
        return values if unpack is same else {name: unpack(value) for name, value in values.items()}

    return Codec(pack_items, unpack_items)


def _places(make: Callable[[list[Any]], Any], kinds: Sequence[Any]) -> Codec:
    """A value with a type for each place."""
    pack, unpack = _each_place([codec_of(kind) for kind in kinds])
    return Codec(lambda value: pack(list(value)), lambda fields: make(unpack(fields)))


def _struct(kind: type[msgspec.Struct]) -> Codec:
    names = kind.__struct_fields__
    hints = get_type_hints(kind, include_extras=True)
    pack, unpack = _each_place([codec_of(hints[name]) for name in names])
    # Of one name `attrgetter` gives the value alone.
    read = attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, name) for name in names]

    def pack_fields(value: Any) -> Any:  # noqa: ANN401 - of the kind
        return pack(list(read(value)))

    if any(parameter.kind is Parameter.KEYWORD_ONLY for parameter in signature(kind).parameters.values()):
        return Codec(pack_fields, lambda fields: kind(**dict(zip(names, unpack(fields), strict=True))))
    return Codec(pack_fields, lambda fields: kind(*unpack(fields)))


def _each_place(codecs: Sequence[Codec]) -> tuple[Convert, Convert]:
    packs = [(at, codec.pack) for at, codec in enumerate(codecs) if codec.pack is not same]
    unpacks = [(at, codec.unpack) for at, codec in enumerate(codecs) if codec.unpack is not same]

    def pack_all(fields: list[Any]) -> list[Any]:
        for at, pack in packs:
            fields[at] = pack(fields[at])
        return fields

    def unpack_all(fields: list[Any]) -> list[Any]:
        for at, unpack in unpacks:
            fields[at] = unpack(fields[at])
        return fields

    return pack_all, unpack_all


def _union(kinds: Sequence[Any]) -> Codec:
    """Plain values are as they are, which is never a list."""
    others = [kind for kind in kinds if kind not in _PLAIN and get_origin(kind) is not Literal]
    if not others:
        return Codec(_pack_plain if int in kinds else same, same)
    sequences = [kind for kind in others if not isinstance(kind, type)]
    members: list[tuple[type, Codec]] = [(kind, codec_of(kind)) for kind in others if kind not in sequences]
    if sequences:
        # One codec for all of them: it finds out about each item.
        items: Any = Union[tuple(get_args(kind)[0] for kind in sequences)]  # noqa: UP007 - as many as there are
        members += [(list, _sequence(items, list)), (tuple, _sequence(items, list))]
    packs = {kind: (at, codec.pack) for at, (kind, codec) in enumerate(members)}
    unpacks = [codec.unpack for _, codec in members]

    def pack_member(value: Any) -> Any:  # noqa: ANN401 - of one of the types
        packing = packs.get(type(value))
        if packing is None:
            return _pack_plain(value)
        at, pack = packing
        return (at, pack(value))

    def unpack_member(value: Any) -> Any:  # noqa: ANN401 - of one of the types
        if type(value) is not list:
            return value
        at, packed = value
        return unpacks[at](packed)

    return Codec(pack_member, unpack_member)
