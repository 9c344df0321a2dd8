"""Frames of the log as objects of JSON: what `weir log dump` prints.

Knows: how each kind of field looks outside. Must never know: what any record does.

IDs are `ms-seq`, entries as readers get them, other bytes base64; a record's members are its fields.
"""

import base64
import json
from collections.abc import Callable
from typing import Any, Final, get_type_hints

import msgspec

from engine import entries, ids
from engine.codec import MARK_PAYLOAD, RESERVE_PAYLOAD, Frame, Kind
from engine.nodes import Text
from engine.record import Record
from engine.records.payload import decode
from engine.records.restored import RestoreNode

Json = dict[str, Any]


def _texts(stored: Any) -> list[Any]:  # noqa: ANN401 - as all forms here: fields have many types
    return [json.loads(text) for text in stored]


def _ids(values: Any) -> list[str]:  # noqa: ANN401
    return [ids.format(value) for value in values]


# By the mark that `engine.records` gives a field which MessagePack has no form for.
_FORMS: Final[dict[str, Callable[[Any], Any]]] = {
    "id": ids.format,
    "bound": ids.format,
    "ids": _ids,
    "texts": _texts,
}
_TOLD_BY_TEXTS: Final = "in the texts"


def frame_of(file: str, position: int, frame: Frame) -> Json:
    """A frame; `position` is its file's."""
    kind = Kind(frame.kind)
    at_position = position if file.startswith("base-") else position + frame.offset
    fields: Json = {
        "file": file,
        "offset": frame.offset,
        "sequence": frame.sequence,
        "kind": kind.name,
        "position": at_position,
        "durable_upto": frame.durable_upto,
    }
    if kind is Kind.MARK:
        fields["clean"] = bool(MARK_PAYLOAD.unpack(frame.payload)[0])
    elif kind is Kind.RESERVE:
        fields["reserved_ms"] = RESERVE_PAYLOAD.unpack(frame.payload)[0]
    elif kind in (Kind.RECORDS, Kind.BASE):
        fields |= _records(frame.payload)
    return fields


def _records(payload: bytes) -> Json:
    try:
        return {"records": [record_of(record) for record in decode(payload)]}
    except ValueError as error:
        return {"records": None, "undecoded": _form(payload), "reason": str(error)}


def record_of(record: Record) -> Json:
    """A record with its fields."""
    fields: Json = {"record": type(record).__name__}
    hints = get_type_hints(type(record), include_extras=True)
    for field in msgspec.structs.fields(record):
        marks = getattr(hints[field.name], "__metadata__", ())
        value = getattr(record, field.name)
        if _TOLD_BY_TEXTS in marks:
            continue
        if isinstance(record, RestoreNode) and field.name == "packed":
            fields["texts"] = _texts(entries.texts(Text(None, value).plain()))
            continue
        form = next((_FORMS[mark] for mark in marks if mark in _FORMS), _form)
        fields[field.name] = form(value)
    return fields


def _form(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, msgspec.Struct):
        return {name: _form(one) for name, one in msgspec.structs.asdict(value).items()}
    if isinstance(value, list | tuple):
        return [_form(one) for one in value]
    return value
