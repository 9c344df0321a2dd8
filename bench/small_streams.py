"""Many streams of one entry, as sessions are, beside Redis: memory of each, and a restart (P18).

Both on loopback with their logs on everysec. Memory is what the process grows by: by writing the streams, and
by starting again from a log that was rewritten. A restart is measured from the log as it was written and from
the rewritten one: seconds until ready, and the processor time of them, which neighbours change less.

    python -m bench.small_streams [--streams 200000] [--rounds 3] [--group]
"""

import argparse
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import redis

from bench.figure import Pairs
from bench.peers import cpu_s_of, redis_server, resident_bytes_of
from bench.versus import Weir

# Commands of one request.
BATCH: Final = 1_000
# Streams that are there before: what the first ones cost once belongs to none of them.
WARM: Final = 5_000
_REDIS: Final = (
    "--appendonly",
    "yes",
    "--appendfsync",
    "everysec",
    "--auto-aof-rewrite-percentage",
    "0",
)

Send = Callable[[Sequence[Sequence[str]]], object]


class Restarts(NamedTuple):
    """Rounds of restarts, ours and Redis's: seconds until ready, and of the processor."""

    ready_s: Pairs
    processor_s: Pairs


class SmallStreams(NamedTuple):
    """Bytes of a stream, ours and Redis's, and restarts: as written, and rewritten."""

    written_bytes: tuple[float, float]
    rewritten_bytes: tuple[float, float]
    written: Restarts
    rewritten: Restarts


class _Load(NamedTuple):
    streams: int
    group: bool

    def rows(self, first: int, count: int) -> Iterator[list[list[str]]]:
        """Requests that make `count` streams of one entry, each with a group if asked for."""
        for start in range(first, first + count, BATCH):
            rows = []
            for number in range(start, min(start + BATCH, first + count)):
                name = f"session:{number:08d}"
                rows.append(["XADD", name, "*", "user", str(number), "state", "open"])
                if self.group:
                    rows.append(["XGROUP", "CREATE", name, "workers", "0"])
            yield rows

    def growth(self, send: Send, resident: Callable[[], int]) -> float:
        """By how many bytes a stream lets the process grow."""
        for rows in self.rows(0, WARM):
            send(rows)
        time.sleep(3)
        before = resident()
        for rows in self.rows(WARM, self.streams):
            send(rows)
        time.sleep(3)
        return (resident() - before) / self.streams


def small_streams(streams: int, rounds: int, *, group: bool = False) -> SmallStreams:
    """Measure streams of one entry; the rounds of restarts alternate."""
    load, kept = _Load(streams, group), Path(tempfile.mkdtemp(prefix="weir-bench-redis-"))
    ours = Weir("--set", f"streams_max={2 * streams + WARM}")
    with contextlib.ExitStack() as cleaning:
        for place in (ours.data, kept):
            cleaning.callback(shutil.rmtree, place, ignore_errors=True)
        written_bytes = _write_ours(ours, load), _write_redis(kept, load)
        written = _restarts(ours, kept, load, rounds)
        rewritten_bytes = _rewrite_ours(ours, load), _rewrite_redis(kept, load)
        return SmallStreams(written_bytes, rewritten_bytes, written, _restarts(ours, kept, load, rounds))


def _write_ours(ours: Weir, load: _Load) -> float:
    def send(rows: Sequence[Sequence[str]]) -> None:
        ours.call("POST", "/v1/commands/pipeline", json.dumps(rows).encode())

    ours.start()
    grown = load.growth(send, ours.resident_bytes)
    ours.stop()
    return grown


def _write_redis(kept: Path, load: _Load) -> float:
    with redis_server(*_REDIS) as (port, data):
        client: Any = redis.Redis(port=port)

        def send(rows: Sequence[Sequence[str]]) -> None:
            pipeline = client.pipeline(transaction=False)
            for row in rows:
                pipeline.execute_command(*row)
            pipeline.execute()

        grown = load.growth(send, lambda: resident_bytes_of(_pid(client)))
        shutil.copytree(data, kept, dirs_exist_ok=True)
    return grown


def _pid(client: Any) -> int:  # noqa: ANN401 - what a client answers has no types
    return int(client.info("server")["process_id"])


def _rewrite_ours(ours: Weir, load: _Load) -> float:
    """Bytes of a stream in a process that was started from a rewritten log, beyond those of an empty one."""
    empty = Weir()
    empty.start()
    before = empty.resident_bytes()
    empty.stop()
    shutil.rmtree(empty.data, ignore_errors=True)
    ours.start()
    ours.call("POST", "/v1/admin/rewrite")
    # A stop would end it.
    while b'"running"' in ours.call("GET", "/v1/admin/rewrite"):
        time.sleep(0.1)
    ours.stop()
    ours.start()
    grown = ours.resident_bytes() - before
    ours.stop()
    return grown / (load.streams + WARM)


def _rewrite_redis(kept: Path, load: _Load) -> float:
    with redis_server() as (port, _):
        before = resident_bytes_of(_pid(redis.Redis(port=port)))
    with redis_server(*_REDIS, "--dir", str(kept)) as (port, _):
        client: Any = redis.Redis(port=port)
        client.bgrewriteaof()
        while client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.1)
    with redis_server(*_REDIS, "--dir", str(kept)) as (port, _):
        grown = resident_bytes_of(_pid(redis.Redis(port=port))) - before
    return grown / (load.streams + WARM)


def _restarts(ours: Weir, kept: Path, load: _Load, rounds: int) -> Restarts:
    ready_s: list[tuple[float, float]] = []
    processor_s: list[tuple[float, float]] = []
    for _ in range(rounds):
        mine = ours.start(), ours.cpu_s()
        ours.stop()
        began = time.perf_counter()
        with redis_server(*_REDIS, "--dir", str(kept), poll_s=0.005) as (port, _):
            their_s, client = time.perf_counter() - began, redis.Redis(port=port)
            assert client.dbsize() == load.streams + WARM, "all are loaded"
            ready_s.append((mine[0], their_s))
            processor_s.append((mine[1], cpu_s_of(_pid(client))))
    return Restarts(ready_s, processor_s)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Many streams of one entry beside Redis.")
    parser.add_argument("--streams", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--group", action="store_true", help="with one group each")
    given = parser.parse_args()
    for name, found in small_streams(given.streams, given.rounds, group=given.group)._asdict().items():
        print(name, found)


if __name__ == "__main__":
    main()
