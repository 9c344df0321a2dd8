"""What an object holds of a text, however it holds it.

Knows: bytes, and what lists, tuples and structs are made of. Must never know: whose attributes these are.
"""

import gc
from typing import Final

import msgspec

_DEEP_MAX: Final = 4


def holds(root: object, text: bytes, deep: int = _DEEP_MAX) -> bool:
    """Whether bytes with this text in them are reachable from an object, by its own parts alone."""
    for one in gc.get_referents(root):
        if isinstance(one, bytes | bytearray):
            if text in one:
                return True
        elif isinstance(one, list | tuple | msgspec.Struct) and deep and holds(one, text, deep - 1):
            return True
    return False
