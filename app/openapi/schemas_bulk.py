"""The shapes of what bulk readers and writers send and get; like `schemas` for the description alone.

Knows: each JSON object of columns by name. Must never know: how any of them is made.
"""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from app.openapi.schemas import Count


class Columns(Struct, omit_defaults=True):
    """Entries as flat lists: both halves of each ID, unsigned 64-bit; `n` fields of each entry; and of every
    field in order its name's place in `kd` and its value. With `b64` all of `kd` and `v` is base64.
    """

    ms: list[int]
    seq: list[int]
    n: list[Count]
    kd: list[str]
    k: list[Count]
    v: list[str]
    b64: Annotated[bool, Meta(description="some value is not UTF-8")] | UnsetType = UNSET
