"""What an operation costs in a short stream and in a long one, all of whose entries are pending (P12).

The engine runs in process. Each operation alternates between the two streams.
"""

import gc
import statistics
import time
from collections.abc import Callable

from engine import entries, ids
from engine.commands import types
from engine.commands.base import Command
from engine.commands.execution import execute
from engine.keyspace import Keyspace

SMALL = 10_000
BATCH = 1_000
ROUNDS = 200
BODY = entries.body([("sensor-id", "1234"), ("temperature", "19.8")])
FIRST_MS = 1_700_000_000_000


def entry_id(place: int) -> int:
    """The ID of the n-th entry: they are a millisecond apart."""
    return ids.make(FIRST_MS + place, 0)


def median_us(run: Callable[[int], object]) -> float:
    """The median of single calls, in microseconds."""
    times = []
    for place in range(ROUNDS):
        start = time.perf_counter()
        run(place)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def _fill(keyspace: Keyspace, size: int, run: Callable[[Command], object]) -> None:
    """Store `size` entries, all pending for one group, in nodes compressed as in a running engine."""
    streams = (("s", types.Cursor.NEW),)
    for start in range(0, size, BATCH):
        places = range(start, start + BATCH)
        run(types.XAdd(stream="s", bodies=[BODY] * BATCH, ids=[entry_id(place) for place in places]))
        for text in keyspace.cold:
            text.keep_packed(text.compress())
        keyspace.cold.clear()
    for group in ("standing", "g"):
        run(types.XGroupCreate(stream="s", group=group, start=0))
    for _ in range(0, size, BATCH):
        run(types.XReadGroup(group="standing", consumer="c", streams=streams, count=BATCH))


def filled(size: int) -> Keyspace:
    """A keyspace with one such stream."""
    keyspace = Keyspace()
    _fill(keyspace, size, lambda command: execute(keyspace, command, FIRST_MS + size))
    return keyspace


def operations(keyspace: Keyspace, size: int, number: int) -> dict[str, Callable[[int], object]]:
    """What is measured in one round, by name; each is given its place in it."""
    now_ms, first = FIRST_MS + size, number * ROUNDS

    def run(command: Command) -> None:
        execute(keyspace, command, now_ms)

    streams = (("s", types.Cursor.NEW),)
    middle = size // 2 + first
    return {
        "XADD": lambda _: run(types.XAdd(stream="s", bodies=(BODY,))),
        "XREAD of the last 10": lambda _: run(types.XRead(streams=(("s", entry_id(size - 11)),), count=10)),
        "XREADGROUP > 10": lambda _: run(
            types.XReadGroup(group="g", consumer="c", streams=streams, count=10)
        ),
        "XACK from the middle": lambda place: run(
            types.XAck(stream="s", group="standing", ids=(entry_id(middle + place),))
        ),
        "XRANGE 100 from the middle": lambda place: run(
            types.XRange(stream="s", start=entry_id(middle + place), end=ids.ID_MAX, count=100)
        ),
        "XPENDING 100 from the middle": lambda _: run(
            types.XPendingRange(
                stream="s", group="standing", start=entry_id(middle), end=ids.ID_MAX, count=100
            )
        ),
        "XAUTOCLAIM 100 from the middle": lambda _: run(
            types.XAutoClaim(
                stream="s", group="standing", consumer="d", min_idle_ms=0, start=entry_id(middle)
            )
        ),
        "count between two IDs": lambda place: keyspace.keys["s"].stream.count_between(
            entry_id(place), entry_id(size - 100 - place)
        ),
        "XDEL from the middle": lambda place: run(
            types.XDel(stream="s", ids=(entry_id(size // 4 + (first + place) * 3),))
        ),
    }


def growth(size: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Microseconds in the long stream and in the short one, by operation."""
    sizes = (size, SMALL)
    keyspaces = {each: filled(each) for each in sizes}
    gc.collect()
    gc.freeze()
    found: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds):
        runs = {each: operations(keyspaces[each], each, number) for each in sizes}
        for name in runs[size]:
            # Side by side, and in turns the first: a machine changes its speed within a round.
            order = sizes if number % 2 else sizes[::-1]
            took_us = {each: median_us(runs[each][name]) for each in order}
            found.setdefault(name, []).append((took_us[size], took_us[SMALL]))
    return found
