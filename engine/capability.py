"""What a capability of a stream and one of a group have in common, for all that walks over them.

Must never know: streams, groups, any capability.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol, Self


class _Holder(Protocol):
    @property
    def parts(self) -> Sequence["Capability"]:
        """What it has of each, in the order of their ranks."""


class Capability:
    """What one stream, or one group, has of it."""

    __slots__ = ()

    # Where it stands among the others, in a snapshot too, for good.
    rank: ClassVar[int]
    # Whether something of it falls due: then the keyspace knows when to look at which stream.
    falls_due: ClassVar[bool] = False

    @classmethod
    def of(cls, holder: _Holder) -> Self | None:
        """What a stream or a group has of it."""
        for part in holder.parts:
            if type(part) is cls:
                return part
        return None

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, counted anew."""
        raise NotImplementedError

    @property
    def kept_bytes(self) -> int:
        """The same as it is kept: what grows is never walked over in a turn."""
        return self.footprint_bytes

    @property
    def due_ms(self) -> int | None:
        """When something of it falls due, by the wall clock."""
        return None

    def garbage(self) -> list[object]:
        """What is large in it, once it was removed."""
        return []
