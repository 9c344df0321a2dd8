"""What an object holds of a text, however it holds it.

Knows: bytes, and what dictionaries, structs and sequences are made of.
Must never know: whose attributes these are.
"""

import gc
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

_DEEP_MAX: Final = 5


def holds(root: object, text: bytes, deep: int = _DEEP_MAX) -> bool:
    """Whether bytes with this text in them are reachable from an object, by its own parts alone."""
    return _any_holds(gc.get_referents(root), text, deep)


def _any_holds(parts: Iterable[object], text: bytes, deep: int) -> bool:
    for one in parts:
        if isinstance(one, bytes | bytearray):
            if text in one:
                return True
        elif isinstance(one, str) or not deep:
            continue
        elif isinstance(one, dict | msgspec.Struct):
            if holds(one, text, deep - 1):
                return True
        elif _any_holds(_items(one), text, deep - 1):
            return True
    return False


def _items(one: Any) -> Iterable[object]:
    """Those of a sequence; compiled ones say nothing of what they hold but by these."""
    return one if isinstance(one, Sequence) or type(one).__module__ == "engine._rows" else ()
