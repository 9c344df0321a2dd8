"""What an operation costs in a short stream and in a long one: 10^4 and 10^6 entries, all pending.

Weir's engine runs in process, Redis over a socket, so compare the two columns `x`, the growth, not the times.

    python -m bench.growth [--large 1000000] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import redis

from bench.peers import redis_server
from engine import entries, ids
from engine.commands import (
    Cursor,
    XAck,
    XAdd,
    XAutoClaim,
    XDel,
    XGroupCreate,
    XPendingRange,
    XRange,
    XRead,
    XReadGroup,
)
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


def _fill_weir(keyspace: Keyspace, size: int, run: Callable[[Command], None]) -> None:
    """Store `size` entries, all pending for one group, in nodes compressed as in a running engine."""
    streams = (("s", Cursor.NEW),)
    for start in range(0, size, BATCH):
        places = range(start, start + BATCH)
        run(XAdd(stream="s", bodies=[BODY] * BATCH, ids=[entry_id(place) for place in places]))
        for text in keyspace.cold:
            text.keep_packed(text.compress())
        keyspace.cold.clear()
    for group in ("standing", "g"):
        run(XGroupCreate(stream="s", group=group, start=0))
    for _ in range(0, size, BATCH):
        run(XReadGroup(group="standing", consumer="c", streams=streams, count=BATCH))


def weir(size: int) -> dict[str, float]:
    """Microseconds an operation, in process."""
    keyspace = Keyspace()
    now_ms = FIRST_MS + size

    def run(command: Command) -> None:
        execute(keyspace, command, now_ms)

    _fill_weir(keyspace, size, run)
    streams = (("s", Cursor.NEW),)
    middle = size // 2
    return {
        "XADD": median_us(lambda _: run(XAdd(stream="s", bodies=(BODY,)))),
        "XREAD of the last 10": median_us(
            lambda _: run(XRead(streams=(("s", entry_id(size - 11)),), count=10))
        ),
        "XREADGROUP > 10": median_us(
            lambda _: run(XReadGroup(group="g", consumer="c", streams=streams, count=10))
        ),
        "XACK from the middle": median_us(
            lambda place: run(XAck(stream="s", group="standing", ids=(entry_id(middle + place),)))
        ),
        "XRANGE 100 from the middle": median_us(
            lambda place: run(XRange(stream="s", start=entry_id(middle + place), end=ids.ID_MAX, count=100))
        ),
        "XPENDING 100 from the middle": median_us(
            lambda _: run(
                XPendingRange(stream="s", group="standing", start=entry_id(middle), end=ids.ID_MAX, count=100)
            )
        ),
        "XAUTOCLAIM 100 from the middle": median_us(
            lambda _: run(
                XAutoClaim(stream="s", group="standing", consumer="d", min_idle_ms=0, start=entry_id(middle))
            )
        ),
        "count between two IDs": median_us(
            lambda place: keyspace.keys["s"].stream.count_between(
                entry_id(place), entry_id(size - 100 - place)
            )
        ),
        "XDEL from the middle": median_us(
            lambda place: run(XDel(stream="s", ids=(entry_id(middle // 2 + place * 7),)))
        ),
    }


def _fill_peer(client: redis.Redis, size: int, run: Callable[..., None]) -> None:
    """As `_fill_weir`."""
    for start in range(0, size, BATCH):
        pipeline = client.pipeline(transaction=False)
        for place in range(start, start + BATCH):
            pipeline.execute_command(  # type: ignore[no-untyped-call]
                "XADD", "s", f"{FIRST_MS + place}-0", "sensor-id", "1234", "temperature", "19.8"
            )
        pipeline.execute()
    for group in ("standing", "g"):
        run("XGROUP", "CREATE", "s", group, "0")
    for _ in range(0, size, BATCH):
        run("XREADGROUP", "GROUP", "standing", "c", "COUNT", BATCH, "STREAMS", "s", ">")


def peer(size: int) -> dict[str, float]:
    """Microseconds an operation, over a socket."""
    with redis_server() as (port, _):
        client = redis.Redis(port=port)
        client.response_callbacks.clear()

        def run(*words: object) -> None:
            client.execute_command(*words)  # type: ignore[no-untyped-call]

        _fill_peer(client, size, run)
        middle = FIRST_MS + size // 2
        return {
            "XADD": median_us(lambda _: run("XADD", "s", "*", "sensor-id", "1234", "temperature", "19.8")),
            "XREAD of the last 10": median_us(
                lambda _: run("XREAD", "COUNT", 10, "STREAMS", "s", f"{FIRST_MS + size - 11}-0")
            ),
            "XREADGROUP > 10": median_us(
                lambda _: run("XREADGROUP", "GROUP", "g", "c", "COUNT", 10, "STREAMS", "s", ">")
            ),
            "XACK from the middle": median_us(
                lambda place: run("XACK", "s", "standing", f"{middle + place}-0")
            ),
            "XRANGE 100 from the middle": median_us(
                lambda place: run("XRANGE", "s", f"{middle + place}-0", "+", "COUNT", 100)
            ),
            "XPENDING 100 from the middle": median_us(
                lambda _: run("XPENDING", "s", "standing", f"{middle}-0", "+", 100)
            ),
            "XAUTOCLAIM 100 from the middle": median_us(
                lambda _: run("XAUTOCLAIM", "s", "standing", "d", 0, f"{middle}-0")
            ),
            "XDEL from the middle": median_us(
                lambda place: run("XDEL", "s", f"{FIRST_MS + size // 4 + place * 7}-0")
            ),
        }


def _pair(short: float | None = None, long: float | None = None) -> str:
    return "" if short is None or long is None else f"{short:13.1f}{long:13.1f}{long / short:13.2f}"


def main() -> None:
    """Measure both, print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ours = {size: weir(size) for size in (SMALL, options.large)}
    theirs = {size: peer(size) for size in (SMALL, options.large)}
    heads = [f"weir {SMALL}", "large", "x", f"redis {SMALL}", "large", "x"]
    print(f"{f'us, median of {ROUNDS}':32}" + "".join(f"{head:>13}" for head in heads))
    for name in ours[SMALL]:
        columns = [table[size].get(name) for table in (ours, theirs) for size in (SMALL, options.large)]
        print(f"{name:32}" + "".join(_pair(*columns[at : at + 2]) for at in (0, 2)))
    if options.json:
        options.json.write_text(json.dumps({"weir": ours, "redis": theirs}, indent=1))


if __name__ == "__main__":
    main()
