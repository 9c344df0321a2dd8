"""Entries as a consumer gets them."""

from typing import Annotated, Literal

from pydantic import Field

from app.http.models import INTEGER_MAX, Count, IdText, Milliseconds, ResponseModel, absent
from engine import ids
from engine.replies import Delivered

Base64 = Annotated[Literal["base64"], Field(description="`base64`: all values are base64")]
Pairs = Annotated[list[list[str]], Field(description="[name, value], in order, where a name stands twice")]


class DeliveredEntry(ResponseModel):
    """An entry handed to a consumer. `fields` is null where a pending entry was deleted from the stream."""

    id: IdText
    fields: dict[str, str] | None
    encoding: Base64 = absent()
    pairs: Pairs = absent()
    delivery_count: Count = absent()
    idle_ms: Milliseconds = absent()


def delivered(one: Delivered) -> bytes:
    """An entry with how often it was delivered, this time included, and, where it was taken over, for how
    long it had been idle. `fields` is null where the entry is gone from the stream.
    """
    text = one.text if one.text is not None else b'{"id":"%b","fields":null}' % ids.text(one.id).encode()
    idle = b',"idle_ms":%d' % min(one.idle_ms, INTEGER_MAX) if one.idle_ms is not None else b""
    return b'%b,"delivery_count":%d%b}' % (text[:-1], min(one.delivery_count, INTEGER_MAX), idle)
