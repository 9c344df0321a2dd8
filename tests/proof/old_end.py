"""Clients that work at the old end of a journal's stream, where entries are in files: they read back, delete,
trim and back up; and a gateway that stores each full node at once.

Knows: the public HTTP API of one stream, and what the journal says is stored.
Must never know: which entries are in which file, or whether they are in one at all.
"""

import contextlib
import http.client
import random
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

from engine.backup import restore
from tests.proof.clients import (
    REFUSED,
    STREAM,
    Journal,
    check,
    check_found,
    client,
    everything,
    load,
    open_journal,
    parts_of,
)
from tests.proof.storing_early import STORING
from tests.server import Server

PAGE: Final = 40
DELETED_AT_ONCE: Final = 60
# Of the entries that a test leaves, the oldest go: all of them are read again and again.
KEPT: Final = 4_000
NODE_ENTRIES: Final = 5
BACKUP: Final = "/v1/admin/backup"
load_s_min, load_s_max = 0.4, 1.4


class StoringServer(Server):
    """`weir serve` that stores each full node at once, and may back up."""

    program = "tests.proof.storing_early"

    def __init__(self, data: Path, backups: Path, *options: str) -> None:
        super().__init__(data, *STORING, "--set", f"backup_dir={backups}", *options)


def read_back(port: int, journal: Journal, over: threading.Event) -> None:
    """Read old parts, a page at a time: what comes is what was stored, and nothing between is missing."""
    with contextlib.suppress(OSError, http.client.HTTPException), client(port) as call:
        while not over.wait(0.005):
            known = journal.known()
            if not known:
                continue
            start = random.choice(list(known))
            status, answer = call("GET", f"{STREAM}/entries?start={start}&count={PAGE}")
            if status == REFUSED and "cannot be read" not in answer["detail"]:
                return
            journal.expect(status == 200, answer)
            found = {entry["id"]: entry["fields"]["n"] for entry in answer.get("entries", [])}
            if found:
                _compare(journal, known, found)


def _compare(journal: Journal, known: dict[str, str], found: dict[str, str]) -> None:
    """`known` were stored before the page was read."""
    first, last = (parts_of(edge) for edge in (next(iter(found)), list(found)[-1]))
    wrong = {entry_id: value for entry_id, value in found.items() if known.get(entry_id, value) != value}
    journal.expect(not wrong, f"not what was stored: {wrong}")
    missing = {
        entry_id
        for entry_id, value in known.items()
        if first <= parts_of(entry_id) <= last and entry_id not in found and value not in journal.removing
    }
    journal.expect(not missing, f"left out of a page: {missing}")


def thin_out(port: int, journal: Journal, over: threading.Event) -> None:
    """Delete most of what is old, now and then trim what is oldest: files become sparse, and needless."""
    with contextlib.suppress(OSError, http.client.HTTPException), client(port) as call:
        while not over.wait(0.02):
            known = list(journal.known().items())
            old = known[: len(known) * 2 // 3]
            if len(old) < 2 * DELETED_AT_ONCE:
                continue
            if len(known) > KEPT or random.random() < 0.1:
                bound = max(len(old) // 3, len(known) - KEPT)
                going, place = known[:bound], f"{STREAM}/trim"
                body: dict[str, object] = {"minid": known[bound][0], "approx": False}
            else:
                going, place = random.sample(old, DELETED_AT_ONCE), f"{STREAM}/entries/delete"
                body = {"ids": [entry_id for entry_id, _ in going]}
            journal.removing.update([value for _, value in going])
            status, answer = call("POST", place, body)
            if status == REFUSED:
                return
            journal.expect(status == 200, answer)
            journal.removed.update([value for _, value in going])


def back_up(port: int, journal: Journal, over: threading.Event) -> None:
    """One backup after the other, each with what it must hold."""
    with contextlib.suppress(OSError, http.client.HTTPException), client(port) as call:
        while not over.wait(0.05):
            name = f"backup-{time.monotonic_ns()}"
            known, removed = journal.known(), set(journal.removed)
            status, answer = call("POST", BACKUP, {"name": name})
            if status == REFUSED:
                return
            journal.expect(status == 202, answer)
            while answer.get("state") == "running" and not over.wait(0.02):
                status, answer = call("GET", BACKUP)
                if status == REFUSED:
                    return
            if answer.get("state") != "running":
                journal.expect(answer.get("state") == "done", answer)
                journal.backups.append((name, known, removed))


AT_THE_OLD_END: Final = (read_back, thin_out, back_up)


class StoredFigures(NamedTuple):
    """What was done while entries went to files: the most bytes in files, and entries of restored backups."""

    kills: int
    stored: int
    in_files_bytes: int
    backups: int


def stored_bytes(port: int) -> int:
    """The bytes that are in files now."""
    with client(port) as call:
        return int(call("GET", "/v1/status")[1]["log"]["stored_bytes"])


def check_backup(backups: Path, journal: Journal) -> int:
    """Restore the last backup and serve it: it has all that was answered before it began. 0 without one."""
    if not journal.backups:
        return 0
    name, known, removed = journal.backups[-1]
    place = backups / f"restored-{name}"
    restore(backups / name, place, now_ms=time.time_ns() // 1_000_000)
    with Server(place) as server:
        found = everything(server.port)
    check_found(journal, found)
    lost = {entry_id for entry_id, value in known.items() if entry_id not in found}
    lost -= {entry_id for entry_id in lost if known[entry_id] in journal.removing}
    assert not lost, f"not in a backup that began later: {lost}"
    assert not removed.intersection(found.values()), "deleted before the backup began"
    journal.backups.clear()
    return 1


def kill_while_storing(folder: Path, fsync: str, times: int) -> StoredFigures:
    """Kill and start again, with readers, deletions and backups at the old end; check everything."""
    backups, most = folder / "backups", 0
    backups.mkdir()
    with StoringServer(folder / "data", backups, "--fsync", fsync) as server:
        journal = open_journal(server.port, NODE_ENTRIES)
        for _ in range(times):
            with load(server.port, journal, *AT_THE_OLD_END):
                time.sleep(random.uniform(load_s_min, load_s_max))
                most = max(most, stored_bytes(server.port))
                server.kill()
            server.start()
            check(server.port, journal)
        restored = check_backup(backups, journal)
        assert server.stop() == 0
    return StoredFigures(times, len(journal.stored), most, restored)
