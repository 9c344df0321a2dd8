"""What a restart costs clients, in ms: a stop and a kill, of a gateway without entries and with a million.

Knows: how to restart a gateway as a supervisor does, and what three clients see meanwhile.
Must never know: the engine's insides, how the Python client connects again.

A publisher posts an entry every two milliseconds, on one connection while that works. Its outage is from the
first request that failed to the first that was stored. Two readers follow the stream with the Python client:
`tail` over server-sent events, a `Worker` over a WebSocket. Theirs is the longest time between two entries:
the publisher's outage is part of it, and the pause before they connect again.

    python -m bench.restart [--entries 1000000] [--rounds 5]
"""

import argparse
import asyncio
import contextlib
import http.client
import shutil
import signal
import statistics
import threading
import time
from typing import Final, Self

from bench.versus import Weir
from weir import Client, Worker

BATCH: Final = 10_000
_PAUSE_S: Final = 0.002
_SETTLED_S: Final = 1.0
_SEEN_S_MAX: Final = 30.0
_STREAM: Final = "s"


class Observer:
    """The moments at which a client was served; `outage_ms` is the longest time between two of them."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._longest_s = 0.0
        self.served = threading.Event()

    def serve(self) -> None:
        """Note that the client was served now."""
        now_s = time.perf_counter()
        if self._last_s is not None:
            self._longest_s = max(self._longest_s, now_s - self._last_s)
        self._last_s = now_s
        self.served.set()

    def outage_ms(self) -> float:
        return self._longest_s * 1_000

    def begin(self) -> None:
        """Forget what was before."""
        self._longest_s = 0.0


class Publisher(Observer):
    """Posts entries; its time begins with the first request that fails."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    def run(self, ended: threading.Event) -> None:
        """Publish until the end."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        is_failing = False
        while not ended.is_set():
            try:
                connection.request("POST", f"/v1/streams/{_STREAM}/entries", b'{"fields":{"a":"1"}}', _JSON)
                answer = connection.getresponse()
                answer.read()
                failed = answer.status != http.HTTPStatus.CREATED
            except (OSError, http.client.HTTPException):
                connection.close()
                failed = True
            if not failed:
                if is_failing:
                    self.serve()
                is_failing = False
            elif not is_failing:
                is_failing = True
                self._last_s = time.perf_counter()
            time.sleep(_PAUSE_S)
        connection.close()


_JSON: Final = {"content-type": "application/json"}


def tail(url: str, seen: Observer, ended: threading.Event) -> None:
    """Follow the stream over server-sent events until the end."""
    with Client(url) as client:
        for _entry in client.tail(_STREAM):
            seen.serve()
            if ended.is_set():
                return


def work(url: str, seen: Observer, ended: threading.Event) -> None:
    """Consume the stream over a WebSocket until the end."""

    async def consume() -> None:
        async with Worker(url, _STREAM, group="g", consumer="c", start="$") as worker:
            async for delivery in worker:
                delivery.ack()
                seen.serve()
                if ended.is_set():
                    return

    asyncio.run(consume())


class Clients:
    """The three clients, at work while the block lasts."""

    def __init__(self, weir: Weir) -> None:
        url = f"http://127.0.0.1:{weir.port}"
        self.publisher, self.tail, self.worker = Publisher(weir.port), Observer(), Observer()
        self._ended, self._stopped = threading.Event(), threading.Event()
        readers = ((tail, self.tail), (work, self.worker))
        self._readers = [
            threading.Thread(target=run, args=(url, seen, self._ended), daemon=True) for run, seen in readers
        ]
        self._publishing = threading.Thread(target=self.publisher.run, args=(self._stopped,), daemon=True)

    def __enter__(self) -> Self:
        for one in (self._publishing, *self._readers):
            one.start()
        for seen in (self.tail, self.worker):
            assert seen.served.wait(_SEEN_S_MAX), "the readers are served"
        return self

    def __exit__(self, *_: object) -> None:
        # A reader ends with an entry: the publisher ends last.
        self._ended.set()
        for one in self._readers:
            one.join(_SEEN_S_MAX)
        self._stopped.set()
        self._publishing.join(_SEEN_S_MAX)

    @property
    def all(self) -> tuple[Observer, ...]:
        return self.publisher, self.tail, self.worker

    def wait_until_served(self) -> None:
        """Until each was served again."""
        for one in self.all:
            one.served.clear()
        for one in self.all[1:]:
            assert one.served.wait(_SEEN_S_MAX), "the readers come back"


def restart(weir: Weir, number: signal.Signals) -> list[float]:
    """End the gateway by a signal, and start it as soon as it has ended: ms until it is ready, and what each
    client saw.
    """
    with Clients(weir) as clients:
        time.sleep(_SETTLED_S)
        for one in clients.all:
            one.begin()
        assert weir.process is not None, "it was started"
        began_s = time.perf_counter()
        weir.process.send_signal(number)
        weir.process.wait(60)
        weir.start()
        ready_ms = (time.perf_counter() - began_s) * 1_000
        clients.wait_until_served()
        time.sleep(_SETTLED_S)
        return [ready_ms, *(one.outage_ms() for one in clients.all)]


def fill(weir: Weir, entries: int) -> None:
    """Entries of one other stream."""
    lines = b"\n".join(
        b'{"sensor-id":"%d","temperature":"%.1f"}' % (n % 9_000, n % 400 / 10) for n in range(BATCH)
    )
    for _ in range(entries // BATCH):
        weir.call("POST", "/v1/streams/filled/entries", lines, "application/x-ndjson")


def measure(entries: int, rounds: int) -> dict[str, list[list[float]]]:
    """What each round of each kind of end has measured."""
    weir = Weir()
    try:
        weir.start()
        fill(weir, entries)
        # The stream is there before a reader begins with its end.
        weir.call("POST", f"/v1/streams/{_STREAM}/entries", b'{"fields":{"a":"1"}}')
        found: dict[str, list[list[float]]] = {"SIGTERM": [], "kill -9": []}
        for _ in range(rounds):
            for name, number in (("SIGTERM", signal.SIGTERM), ("kill -9", signal.SIGKILL)):
                found[name].append(restart(weir, number))
        return found
    finally:
        with contextlib.suppress(ProcessLookupError):
            weir.stop()
        shutil.rmtree(weir.data, ignore_errors=True)


def main() -> None:
    """Measure, and print a table: least / median of the rounds, in ms."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| entries | ended by | ready again | publisher | SSE `tail` | WebSocket `Worker` |")
    print("| --- | --- | --- | --- | --- | --- |")
    for entries in (0, options.entries):
        for name, rounds in measure(entries, options.rounds).items():
            columns = zip(*rounds, strict=True)
            cells = [f"{min(column):,.0f} / {statistics.median(column):,.0f}" for column in columns]
            print(f"| {entries:,} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
