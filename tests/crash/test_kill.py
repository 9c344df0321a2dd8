"""kill -9 at any moment under load: what was acknowledged is there, whole commands only, no ID twice."""

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.server import Server

kills: Final = 4
writers: Final = 4
batch: Final = 5
load_s_min, load_s_max = 0.15, 0.5
STREAM: Final = "/v1/streams/journal"


Call = Callable[..., tuple[int, Any]]


@contextlib.contextmanager
def client(port: int) -> Iterator[Call]:
    """A keep-alive connection as a function: method, path, JSON body → status, JSON answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def call(method: str, path: str, body: object = None) -> tuple[int, Any]:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"content-type": "application/json"} if text else {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    with contextlib.closing(connection):
        yield call


class Journal:
    """What clients tried, and what they were told; kept by them, beyond the reach of a crash."""

    def __init__(self) -> None:
        self.attempted: set[str] = set()
        # value → ID, of acknowledged entries.
        self.stored: dict[str, str] = {}
        self.seen: dict[str, str] = {}
        self.delivered: set[str] = set()
        self.acknowledged: set[str] = set()
        self.ack_attempted: set[str] = set()
        self.batches: list[list[str]] = []
        self._serial = 0
        self._lock = threading.Lock()

    def next_values(self, count: int) -> list[str]:
        with self._lock:
            self._serial += count
            values = [str(number) for number in range(self._serial - count, self._serial)]
            self.attempted.update(values)
            self.batches.append(values)
            return values


def publish(port: int, journal: Journal, over: threading.Event) -> None:
    """Publish, one entry or a batch at a time, until the server is gone."""
    with contextlib.suppress(OSError, http.client.HTTPException), client(port) as call:
        while not over.is_set():
            values = journal.next_values(random.choice((1, batch)))
            if len(values) == 1:
                status, answer = call("POST", f"{STREAM}/entries", {"fields": {"n": values[0]}})
                given = [answer["id"]]
            else:
                entries = [{"fields": {"n": value}} for value in values]
                status, answer = call("POST", f"{STREAM}/entries", {"entries": entries})
                given = answer["ids"]
            assert status == 201, answer
            journal.stored.update(zip(values, given, strict=True))


def work(port: int, journal: Journal, over: threading.Event) -> None:
    """Read as a member of the group, and acknowledge half of what comes."""
    with contextlib.suppress(OSError, http.client.HTTPException), client(port) as call:
        while not over.is_set():
            path = f"{STREAM}/groups/g/consumers/c/read"
            status, answer = call("POST", path, {"count": 10, "wait": 100})
            assert status == 200, answer
            given = [entry["id"] for entry in answer["entries"]]
            journal.delivered.update(given)
            if given[::2]:
                journal.ack_attempted.update(given[::2])
                status, answer = call("POST", f"{STREAM}/groups/g/ack", {"ids": given[::2]})
                assert status == 200, answer
                journal.acknowledged.update(given[::2])


def watch(port: int, journal: Journal, over: threading.Event) -> None:
    """Read along with long-polls; what was seen once must be there for ever."""
    after = "0-0"
    with contextlib.suppress(OSError, http.client.HTTPException), client(port) as call:
        while not over.is_set():
            status, answer = call("GET", f"{STREAM}/entries?after={after}&wait=100&count=1000")
            assert status == 200, answer
            journal.seen.update({entry["id"]: entry["fields"]["n"] for entry in answer["entries"]})
            after = answer["next"]


def everything(port: int) -> dict[str, str]:
    """ID → value, of all entries."""
    found, after, more = dict[str, str](), "0-0", True
    with client(port) as call:
        while more:
            _, answer = call("GET", f"{STREAM}/entries?after={after}&count=10000")
            found.update({entry["id"]: entry["fields"]["n"] for entry in answer["entries"]})
            after, more = answer["next"], answer["more"]
    return found


def pending(port: int) -> dict[str, int]:
    """ID → delivery count, of what is pending in the group."""
    with client(port) as call:
        _, answer = call("POST", "/v1/commands", ["XPENDING", "journal", "g", "-", "+", "1000000"])
    return {entry_id: count for entry_id, _, _, count in answer["result"]}


def check(port: int, journal: Journal) -> None:
    """All that was promised holds."""
    found = everything(port)
    values = list(found.values())
    assert len(values) == len(set(values)), "no entry twice"
    assert set(values) <= journal.attempted, "nothing that nobody sent"
    wrong = {value: entry_id for value, entry_id in journal.stored.items() if found.get(entry_id) != value}
    assert not wrong, f"acknowledged and lost: {wrong}"
    unseen = {entry_id: value for entry_id, value in journal.seen.items() if found.get(entry_id) != value}
    assert not unseen, f"shown and lost: {unseen}"
    present = set(values)
    for one in journal.batches:
        assert present.issuperset(one) or present.isdisjoint(one), f"half a batch: {one}"
    left = pending(port)
    assert not journal.acknowledged & left.keys(), "what was acknowledged is no longer pending"
    lost = journal.delivered - journal.ack_attempted - left.keys()
    assert not lost, f"delivered and forgotten: {lost}"


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_nothing_acknowledged_is_lost_to_kill_9(fsync: str, tmp_path: Path) -> None:
    """Entries, deliveries and acknowledgements that were answered survive kill -9, in every fsync mode."""
    journal = Journal()
    with Server(tmp_path / "data", "--fsync", fsync) as server:
        with client(server.port) as call:
            status, _ = call("POST", f"{STREAM}/groups", {"name": "g", "start": "0", "mkstream": True})
        assert status == 201
        for _ in range(kills):
            over = threading.Event()
            parts = [publish] * writers + [work, watch]
            threads = [threading.Thread(target=part, args=(server.port, journal, over)) for part in parts]
            for thread in threads:
                thread.start()
            time.sleep(random.uniform(load_s_min, load_s_max))
            server.kill()
            over.set()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive(), "a client that lost its server ends"
            server.start()
            check(server.port, journal)
        assert server.stop() == 0, "a clean stop"
    assert len(journal.stored) > 50, "there was a load"
    assert journal.acknowledged, "there was work"
