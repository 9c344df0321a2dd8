"""A fault within a turn: the n-th change raises, before or after memory has changed, or cannot be written.

Knows: where changes are applied and encoded. Must never know: what must follow from a fault.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

import engine.runtime.turns as runtime
from engine.keyspace import Keyspace
from engine.record import Record
from engine.records.payload import KINDS, encode

# Nothing of the record is applied, all of it is, or the turn's frame cannot be made.
How = Literal["before", "after", "unwritable"]
HOWS: Final[tuple[How, ...]] = ("before", "after", "unwritable")


class PlantedError(Exception):
    """What went wrong."""


class InjectedFault:
    """`applied` counts the changes since it was planted; `happened` says whether the fault came."""

    def __init__(self, nth: int, how: How) -> None:
        self._nth, self._how = nth, how
        self.applied = 0
        self.happened = False

    def around(self, apply: Callable[[Any, Keyspace], None]) -> Callable[[Any, Keyspace], None]:
        """A record's `apply`, which fails where it is the one."""

        def applied(record: Record, keyspace: Keyspace) -> None:
            self.applied += 1
            due = self.applied == self._nth
            if due and self._how == "before":
                self._raise()
            apply(record, keyspace)
            if due and self._how == "after":
                self._raise()

        return applied

    def encode(self, written: Sequence[Record]) -> bytes:
        """Write a frame, unless it holds the change that fails."""
        if self._how == "unwritable" and self.applied >= self._nth and not self.happened:
            self._raise()
        return _encode(written)

    def _raise(self) -> None:
        self.happened = True
        raise PlantedError(f"{self._how} change {self._nth}")


_encode: Final = encode


@contextmanager
def fault_at(nth: int, how: How) -> Iterator[InjectedFault]:
    """Let the `nth` change from now on be a fault, once."""
    fault = InjectedFault(nth, how)
    applies = {kind: kind.apply for kind in KINDS.values()}
    for kind, apply in applies.items():
        kind.apply = fault.around(apply)  # type: ignore[assignment, method-assign]
    vars(runtime)["encode"] = fault.encode
    try:
        yield fault
    finally:
        for kind, apply in applies.items():
            kind.apply = apply  # type: ignore[method-assign]
        vars(runtime)["encode"] = _encode
