"""Every disk that a power cut may leave behind.

Knows: that changes of names reach a disk in their order, and contents of files in any; what ext4 and XFS make
of a file that grew.
Must never know: frames, or what a name stands for.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Final

from engine.storage.memory import MemoryStorage

SECTOR_BYTES: Final = 512
# With more combinations of files than this, one file at a time is varied and the others have nothing or all.
COMBINATIONS_MAX: Final = 64

Files = Mapping[str, bytes]


def legal_disks(storage: MemoryStorage) -> Iterator[dict[str, bytes]]:
    """Every directory that a power cut at this moment may leave: names first, then each file's content."""
    for name_changes in range(storage.unsynced_name_changes() + 1):
        remains = storage.remains(name_changes)
        choices = [legal_contents(*contents) for contents in remains.values()]
        for chosen in _combined(choices):
            yield dict(zip(remains, chosen, strict=True))


def legal_contents(surely: bytes, at_most: bytes) -> list[bytes]:
    """What a file may hold: nothing of what was not synced, all, a byte, half, all but a byte; zeros in its
    place; or all but its first sector.
    """
    if surely == at_most:
        return [at_most]
    start, end = common_bytes(surely, at_most), len(at_most)
    if start == end:
        # It was cut, which happens whole.
        return [surely, at_most]
    found = [surely, at_most]
    found += [at_most[:cut] + surely[cut:] for cut in (start + 1, (start + end) // 2, end - 1) if cut > start]
    if end > len(surely):
        found.append(surely + bytes(end - len(surely)))
    sector_end = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
    lost = surely[start:sector_end]
    found.append(at_most[:start] + lost + bytes(sector_end - start - len(lost)) + at_most[sector_end:])
    return list(dict.fromkeys(found))


def common_bytes(one: bytes, other: bytes) -> int:
    """How many bytes at the start of two contents are the same."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _combined(choices: list[list[bytes]]) -> Iterator[tuple[bytes, ...]]:
    if prod(map(len, choices)) <= COMBINATIONS_MAX:
        yield from product(*choices)
        return
    # `choices` begin with nothing and all.
    for others in (0, 1):
        fixed = [each[min(others, len(each) - 1)] for each in choices]
        for at, each in enumerate(choices):
            for content in each:
                yield (*fixed[:at], content, *fixed[at + 1 :])
