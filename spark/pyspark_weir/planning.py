"""How the entries of one batch are given to tasks.

Knows: sizes. Every entry goes to exactly one task, a task has entries of one stream in their order, long
streams are cut, short ones share a task.
Must never know: gateways, Spark, what an entry is.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Final

from pyspark_weir import ids

# A task costs about a tenth of a second: with fewer entries it costs more than it brings.
CUT_ENTRIES_MIN: Final = 20_000
# The gateway cuts a range into no more pieces than this at once.
PIECES_MAX: Final = 256


@dataclass(frozen=True)
class TaskRange:
    """Entries of one stream, `(after, end]`; `count` and `bytes` are what the gateway says lies in it.

    `generation` is the stream's; what was removed from its front when this was planned ends at `after`.
    """

    gateway: str
    stream: str
    after: str
    end: str
    count: int
    bytes: int = 0
    generation: str = ""

    @property
    def name(self) -> tuple[str, str]:
        return self.gateway, self.stream


@dataclass(frozen=True)
class Sizes:
    """How large tasks may be, and how many there should be at least; `ordered`: a stream stays in one
    task.
    """

    min_partitions: int
    max_entries: int
    max_bytes: int
    ordered: bool = False


def task_count(ranges: Sequence[TaskRange], sizes: Sizes) -> int:
    """How many tasks these ranges are worth."""
    entries, volume = sum(one.count for one in ranges), sum(one.bytes for one in ranges)
    by_size = max(ceil(entries / sizes.max_entries), ceil(volume / sizes.max_bytes))
    wanted = max(by_size, min(sizes.min_partitions, entries // CUT_ENTRIES_MIN))
    return max(wanted, 1)


def piece_counts(ranges: Sequence[TaskRange], sizes: Sizes) -> dict[tuple[str, str], int]:
    """In how many pieces each range is to be cut, for those of more than one."""
    if sizes.ordered:
        return {}
    tasks = task_count(ranges, sizes)
    entries = sum(one.count for one in ranges)
    # About what a task gets when all get the same.
    share = max(entries / tasks, 1)
    wanted = {}
    for one in ranges:
        by_share = ceil(one.count / share) if tasks > 1 else 1
        by_size = max(ceil(one.count / sizes.max_entries), ceil(one.bytes / sizes.max_bytes))
        # A limit of the user's goes before what is worth while.
        pieces = max(min(by_share, one.count // CUT_ENTRIES_MIN), by_size)
        pieces = min(pieces, PIECES_MAX, one.count)
        if pieces > 1:
            wanted[one.name] = pieces
    return wanted


def cut(one: TaskRange, cuts: Sequence[str]) -> list[TaskRange]:
    """The range in pieces, between IDs that lie inside of it; sizes are taken as equal."""
    inner = sorted({place for place in cuts if ids.is_after(place, one.after)}, key=ids.parse)
    inner = [place for place in inner if ids.is_after(one.end, place)]
    edges = [one.after, *inner, one.end]
    pieces = len(edges) - 1
    return [
        replace(
            one,
            after=after,
            end=end,
            count=_share(one.count, pieces, place),
            bytes=_share(one.bytes, pieces, place),
        )
        for place, (after, end) in enumerate(pairwise(edges))
    ]


def pack(
    ranges: Sequence[TaskRange], sizes: Sizes, cuts: Mapping[tuple[str, str], Sequence[str]]
) -> list[tuple[TaskRange, ...]]:
    """The tasks: the largest range first, each to the task that has least; none is empty.

    In a task ranges stand by gateway, stream and ID.
    """
    pieces = [piece for one in ranges if one.count for piece in cut(one, cuts.get(one.name, ()))]
    tasks = min(task_count(ranges, sizes), max(len(pieces), 1))
    least = [(0, place) for place in range(tasks)]
    packed: list[list[TaskRange]] = [[] for _ in range(tasks)]
    for piece in sorted(pieces, key=lambda one: (-one.count, one.name, ids.parse(one.after))):
        load, place = heapq.heappop(least)
        packed[place].append(piece)
        heapq.heappush(least, (load + piece.count, place))
    ordered = [
        tuple(sorted(bin_, key=lambda one: (one.name, ids.parse(one.after)))) for bin_ in packed if bin_
    ]
    return sorted(ordered, key=lambda bin_: (bin_[0].name, ids.parse(bin_[0].after)))


def _share(whole: int, pieces: int, place: int) -> int:
    """`whole` in `pieces` whole numbers that differ by one at most."""
    return whole // pieces + (1 if place < whole % pieces else 0)
