"""What a program decided about an entry.

Knows: how decisions are put together for one request. Must never know: who decides, how it is sent.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal, NamedTuple


class Settlement(NamedTuple):
    """`ack` with what to delete (None: nothing), or `nack` with a mode and after how many milliseconds."""

    stream: str
    id: str
    kind: Literal["ack", "nack"]
    detail: str | None
    delay_ms: int = 0


def batches(settlements: Iterable[Settlement], size_max: int) -> Iterator[list[Settlement]]:
    """Runs of equal decisions, in order, each of at most `size_max` entries."""
    for _, run in groupby(settlements, key=lambda one: (one.stream, *one[2:])):
        alike = list(run)
        for start in range(0, len(alike), size_max):
            yield alike[start : start + size_max]
