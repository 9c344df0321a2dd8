"""Clients of a real gateway that write down what they tried, what they were answered, and what they saw.

Knows: the public HTTP API of one stream and one group; when each answer came.
Must never know: how the gateway ends, and what it does with its files.
"""

import contextlib
import http.client
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from tests.server import ask

WRITERS: Final = 4
BATCH: Final = 5
STREAM: Final = "/v1/streams/journal"
CLIENT_S_MAX: Final = 30.0


Call = Callable[..., tuple[int, Any]]


@contextlib.contextmanager
def client(port: int) -> Iterator[Call]:
    """A keep-alive connection as a function: method, path, JSON body → status, JSON answer."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as line:
        yield partial(ask, line)


# Works until the event is set, or the gateway is gone.
ClientLoop = Callable[[int, "Journal", threading.Event], None]

# What a gateway that stops, or cannot write, answers.
REFUSED: Final = 503


class Journal:
    """What clients tried, and what they were answered; kept by them, beyond the reach of a crash."""

    def __init__(self) -> None:
        self.attempted: set[str] = set()
        # value → ID, of acknowledged entries.
        self.stored: dict[str, str] = {}
        # Value → when its acknowledgement came.
        self.stored_at: dict[str, float] = {}
        self.seen: dict[str, str] = {}
        self.delivered: set[str] = set()
        self.acknowledged: set[str] = set()
        self.ack_attempted: set[str] = set()
        self.batches: list[list[str]] = []
        # Values whose removal was asked for, and those of which it was acknowledged.
        self.removing: set[str] = set()
        self.removed: set[str] = set()
        # Backups that were made: the name; what was stored by ID, and what was removed, when it began.
        self.backups: list[tuple[str, dict[str, str], set[str]]] = []
        # What a client saw that must not be.
        self.faults: list[str] = []
        self._serial = 0
        self._lock = threading.Lock()

    def known(self) -> dict[str, str]:
        """ID → value of what is stored and stays, in the order of IDs."""
        stored = dict(self.stored)
        kept = [(entry_id, value) for value, entry_id in stored.items() if value not in self.removing]
        return dict(sorted(kept, key=lambda row: parts_of(row[0])))

    def expect(self, holds: bool, fault: object) -> None:  # noqa: FBT001 - as an assertion has it
        """Keep a fault until `check`: raised in a client's thread it would reach no test."""
        if not holds:
            self.faults.append(str(fault))

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
            values = journal.next_values(random.choice((1, BATCH)))
            if len(values) == 1:
                status, answer = call("POST", f"{STREAM}/entries", {"fields": {"n": values[0]}})
                given = [answer.get("id")]
            else:
                entries = [{"fields": {"n": value}} for value in values]
                status, answer = call("POST", f"{STREAM}/entries", {"entries": entries})
                given = answer.get("ids", [])
            if status == REFUSED:
                return
            assert status == 201, answer
            journal.stored_at.update(dict.fromkeys(values, time.monotonic()))
            journal.stored.update(zip(values, given, strict=True))


def work(port: int, journal: Journal, over: threading.Event) -> None:
    """Read as a member of the group, and acknowledge half of what comes."""
    with contextlib.suppress(OSError, http.client.HTTPException), client(port) as call:
        while not over.is_set():
            path = f"{STREAM}/groups/g/consumers/c/read"
            status, answer = call("POST", path, {"count": 10, "wait": 100})
            if status == REFUSED:
                return
            assert status == 200, answer
            given = [entry["id"] for entry in answer["entries"]]
            journal.delivered.update(given)
            if given[::2]:
                journal.ack_attempted.update(given[::2])
                status, answer = call("POST", f"{STREAM}/groups/g/ack", {"ids": given[::2]})
                if status == REFUSED:
                    return
                assert status == 200, answer
                journal.acknowledged.update(given[::2])


def watch(port: int, journal: Journal, over: threading.Event) -> None:
    """Read along with long-polls; what was seen once must be there for ever."""
    after = "0-0"
    with contextlib.suppress(OSError, http.client.HTTPException), client(port) as call:
        while not over.is_set():
            status, answer = call("GET", f"{STREAM}/entries?after={after}&wait=100&count=1000")
            if status == REFUSED:
                return
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


@contextlib.contextmanager
def load(port: int, journal: Journal, *more: ClientLoop) -> Iterator[None]:
    """Clients of every kind at work, and `more`, until the block ends or the gateway does."""
    over = threading.Event()
    parts = [publish] * WRITERS + [work, watch, *more]
    threads = [threading.Thread(target=part, args=(port, journal, over)) for part in parts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(CLIENT_S_MAX)
    assert not any(thread.is_alive() for thread in threads), "a client that lost its server ends"


def open_journal(port: int, node_entries: int = 100) -> Journal:
    """A stream with a group to write a journal of; its nodes are full with that number of entries."""
    with client(port) as call:
        words = ["CONFIG", "SET", "stream-node-max-entries", str(node_entries)]
        assert call("POST", "/v1/commands", words)[0] == 200
        status, answer = call("POST", f"{STREAM}/groups", {"name": "g", "start": "0", "mkstream": True})
    assert status == 201, answer
    return Journal()


def check(port: int, journal: Journal, *, lost_since: float | None = None) -> int:
    """All that was promised holds; what was answered after `lost_since` may be lost. How many answers are."""
    found = everything(port)
    check_found(journal, found)
    known = journal.known()
    wrong = {value: entry_id for entry_id, value in known.items() if found.get(entry_id) != value}
    early = {value for value in wrong if lost_since is None or journal.stored_at[value] < lost_since}
    assert not early, f"acknowledged and lost: {sorted(early)[:9]} of {len(wrong)}"
    if wrong:
        first = min(map(parts_of, wrong.values()))
        assert all(parts_of(entry_id) < first for entry_id in found), "what is lost is the end"
    if lost_since is None:
        assert not journal.removed.intersection(found.values()), "removed for good"
        _check_shown(port, journal, found)
    _check_next(port, journal)
    # What was stored though its answer was lost is there to stay, too.
    for entry_id, value in found.items():
        if value not in journal.stored:
            journal.stored[value], journal.stored_at[value] = entry_id, time.monotonic()
    return len(wrong)


def check_found(journal: Journal, found: dict[str, str]) -> None:
    """What is there, by ID, is what was sent, once each, in whole batches but for what was removed."""
    assert not journal.faults, journal.faults[:3]
    values = list(found.values())
    present = set(values)
    assert len(values) == len(present), "no entry twice"
    assert present <= journal.attempted, "only what was sent"
    for batch in journal.batches:
        one = [value for value in batch if value not in journal.removing]
        assert present.issuperset(one) or present.isdisjoint(one), f"half a batch: {one}"


def _check_shown(port: int, journal: Journal, found: dict[str, str]) -> None:
    unseen = {entry_id: value for entry_id, value in journal.seen.items() if found.get(entry_id) != value}
    unseen = {entry_id: value for entry_id, value in unseen.items() if value not in journal.removing}
    assert not unseen, f"shown and lost: {unseen}"
    left = pending(port)
    assert not journal.acknowledged & left.keys(), "what was acknowledged is no longer pending"
    lost = journal.delivered - journal.ack_attempted - left.keys()
    assert not lost, f"delivered and forgotten: {lost}"


def _check_next(port: int, journal: Journal) -> None:
    """The next ID is above all that were ever shown."""
    (value,) = journal.next_values(1)
    with client(port) as call:
        status, answer = call("POST", f"{STREAM}/entries", {"fields": {"n": value}})
    assert status == 201, answer
    shown = max(map(parts_of, {*journal.stored.values(), *journal.seen}), default=(0, 0))
    assert parts_of(answer["id"]) > shown, f"{answer['id']} comes again, or after {shown}"
    journal.stored[value] = answer["id"]
    journal.stored_at[value] = time.monotonic()


def parts_of(entry_id: str) -> tuple[int, int]:
    ms, _, sequence = entry_id.partition("-")
    return int(ms), int(sequence)


def forget_lost(port: int, journal: Journal) -> None:
    """Go on from what is there: for another round after a loss that was allowed."""
    found = everything(port)
    journal.stored = {
        value: entry_id
        for value, entry_id in journal.stored.items()
        if entry_id in found or value in journal.removing
    }
    # Their removal may be lost.
    journal.removed.difference_update(found.values())
