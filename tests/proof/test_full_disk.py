"""A small disk that the gateway alone has filled: each remedy that its messages name, followed for real.

Knows: a tmpfs of a size, requests, what health and log say. Must never know: how the gateway keeps room.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import pytest

from tests.proof.clients import Call, client
from tests.proof.machine import disk_without_promises, needs, no_loop_disk, no_tmpfs, small_disk
from tests.server import Server
from tests.waiting import until

S: Final = "/v1/streams/s"
DISK: Final = "48m"
FILLS_MAX: Final = 400
WAIT_S_MAX: Final = 20.0
# A rewrite begins when it is asked for: the other test lets it begin by itself.
BY_HAND: Final = ("--set", "rewrite_growth_percent=0")

pytestmark = needs(no_tmpfs)


def fill(call: Call) -> int:
    """Publish until even little has no room; how many large entries had."""
    large = 0
    for size in (400_000, 20_000, 1_000):
        for _ in range(FILLS_MAX):
            # Random: neither memory nor a base makes less of it.
            status, answer = call("POST", f"{S}/entries", {"fields": {"v": secrets.token_hex(size // 2)}})
            if status == 507:
                assert answer["code"] == "storage_full"
                assert "trims and deletes go on" in answer["detail"]
                break
            assert status == 201, answer
            large += size == 400_000
        else:
            raise AssertionError("the disk is not small")
    return large


def failing(call: Call) -> list[str]:
    status, health = call("GET", "/healthz/ready")
    assert status == 200
    # On a loaded machine a sync may take seconds.
    return [one for one in health.get("failing", []) if one != "disk_slow"]


def rewrite(call: Call) -> dict[str, Any]:
    """Ask for a rewrite and wait for its end."""
    assert call("POST", "/v1/admin/rewrite")[0] == 202
    found: dict[str, Any] = {"state": "running"}
    while found["state"] == "running":
        time.sleep(0.02)
        _, found = call("GET", "/v1/admin/rewrite")
    return found


def remove(call: Call, how: str) -> None:
    """Trim or delete, as the messages say."""
    if how == "trim":
        assert call("POST", f"{S}/trim", {"maxlen": 3})[0] == 200
    elif how == "delete entries":
        _, page = call("GET", f"{S}/entries?count=500")
        while page["entries"]:
            assert (
                call("POST", f"{S}/entries/delete", {"ids": [one["id"] for one in page["entries"]]})[0] == 200
            )
            _, page = call("GET", f"{S}/entries?count=500")
    else:
        assert call("DELETE", S)[0] in (200, 204)


@contextmanager
def served(place: Path, *options: str) -> Iterator[tuple[Server, Callable[[str], None]]]:
    with small_disk(place / "disk", DISK) as grow:
        server = Server(place / "disk" / "data", *options)
        server.log_to(place / "log")
        with server:
            yield server, grow


@pytest.mark.parametrize("how", ["trim", "delete entries", "delete"])
def test_remove_and_rewrite(how: str, tmp_path: Path) -> None:
    """Filled, emptied and rewritten again and again; full until the reserve is whole, and said so."""
    with served(tmp_path, *BY_HAND) as (server, _), client(server.port) as call:
        filled = fill(call)
        for _ in range(2):
            assert failing(call) == ["disk_full"]
            remove(call, how)
            assert failing(call) == ["disk_full"], "what was removed is in the log until it is rewritten"
            assert rewrite(call)["state"] == "done"
            until(lambda: failing(call) == [])
            assert fill(call) > filled // 2
        lines = [line["remedy"] for line in server.log_lines() if line["level"] == "critical"]
        assert lines
        assert all("POST /v1/admin/rewrite" in remedy for remedy in lines)


def test_remove_and_wait(tmp_path: Path) -> None:
    """The log is rewritten by itself, once there is something to gain."""
    with served(tmp_path) as (server, _), client(server.port) as call:
        fill(call)
        remove(call, "trim")
        until(lambda: failing(call) == [])
        assert call("POST", f"{S}/entries", {"fields": {"v": "x" * 400_000}})[0] == 201


@pytest.mark.parametrize("stop", ["kill", "stop"])
def test_restart_in_between(stop: str, tmp_path: Path) -> None:
    """Killed or stopped while full, before and after a trim: it starts, and the way out is there."""
    with served(tmp_path, *BY_HAND) as (server, _):
        with client(server.port) as call:
            fill(call)
            length = call("GET", S)[1]["length"]
        getattr(server, stop)()
        server.start()
        with client(server.port) as call:
            assert call("GET", S)[1]["length"] == length
            assert call("POST", f"{S}/entries", {"fields": {"v": "x" * 400_000}})[0] == 507
            remove(call, "trim")
        getattr(server, stop)()
        server.start()
        with client(server.port) as call:
            assert rewrite(call)["state"] == "done"
            assert call("GET", S)[1]["length"] == 3
            assert call("POST", f"{S}/entries", {"fields": {"v": "x" * 400_000}})[0] == 201
            until(lambda: failing(call) == [])


def test_rewrites_that_fail(tmp_path: Path) -> None:
    """With too much left for a second copy: nothing stays of thirty of them, and their remedy helps."""
    with served(tmp_path, *BY_HAND) as (server, grow), client(server.port) as call:
        grow("80m")
        fill(call)
        for _ in range(30):
            assert rewrite(call)["state"] == "failed"
        # The ballast may have taken room while the disk was filled, which the first of them gave back.
        fill(call)
        assert set(failing(call)) == {"disk_full", "rewrite_failed"}
        assert all(file.stat().st_size for file in server.data.glob("segment-*"))
        assert len(list(server.data.glob("segment-*"))) == 2
        assert list(server.data.glob("base-*")) == []
        lines = [line["remedy"] for line in server.log_lines() if "rewrite has failed" in line["event"]]
        assert "trim or delete" in lines[0]
        assert "enlarge the disk" in lines[0]
        grow("256m")
        assert rewrite(call)["state"] == "done"
        until(lambda: failing(call) == [])


def test_make_room_beside_it(tmp_path: Path) -> None:
    """What fills the disk may be another program's: without a request it is seen that it went."""
    with served(tmp_path, *BY_HAND) as (server, grow), client(server.port) as call:
        fill(call)
        assert failing(call) == ["disk_full"]
        grow("80m")
        until(lambda: failing(call) == [])
        assert call("POST", f"{S}/entries", {"fields": {"v": "x" * 400_000}})[0] == 201


def stored_bytes(call: Call) -> int:
    return int(call("GET", "/v1/status")[1]["log"]["stored_bytes"])


def not_stored(server: Server) -> list[str]:
    """Why cold entries could not be stored, and what to do about it."""
    lines = server.log_lines()
    return [line["reason"] for line in lines if line["event"] == "cold entries could not be stored"]


def test_cold_entries_stay_in_memory_until_there_is_room(tmp_path: Path) -> None:
    """Publishing goes on in the room that the log has, and each entry is there once, also after a kill. With
    room again they go to files, and what is left of sparse files is stored anew.
    """
    with small_disk(tmp_path / "disk", DISK):
        server = Server(tmp_path / "disk" / "data", "--set", "memory_bytes_soft=1", *BY_HAND)
        server.program = "tests.proof.storing_early"
        server.log_to(tmp_path / "log")
        with server, client(server.port) as call:
            kept = publish_some(call, 200)
            until(lambda: stored_bytes(call) > 1 << 20)
            fill_up(tmp_path / "disk" / "other")
            kept |= publish_some(call, 60)
            until(lambda: not_stored(server))
            gone = [entry_id for place, entry_id in enumerate(kept) if place < 150 and place % 5]
            assert call("POST", f"{S}/entries/delete", {"ids": gone})[0] == 200
            kept = {entry_id: value for entry_id, value in kept.items() if entry_id not in set(gone)}
            assert all_entries(call) == kept
            assert set(not_stored(server)) == {not_stored(server)[0]}
            assert "make room on that disk" in not_stored(server)[0]
            server.kill()
        server.start()
        try:
            with client(server.port) as call:
                assert all_entries(call) == kept
                before = stored_bytes(call)
                (tmp_path / "disk" / "other").unlink()
                until(lambda: stored_bytes(call) > before + 200_000)
                until(
                    lambda: (
                        rewrite(call)["state"] == "done" and bytes_of_runs(server) < 2 * stored_bytes(call)
                    )
                )
                assert all_entries(call) == kept
        finally:
            server.kill()


def publish_some(call: Call, count: int) -> dict[str, str]:
    """Large entries, of which nothing makes less: ID → value."""
    given: dict[str, str] = {}
    for _ in range(count):
        value = secrets.token_hex(10_000)
        status, answer = call("POST", f"{S}/entries", {"fields": {"v": value}})
        assert status == 201, answer
        given[answer["id"]] = value
    return given


def bytes_of_runs(server: Server) -> int:
    return sum(file.stat().st_size for file in server.data.glob("run-*.weir"))


def all_entries(call: Call) -> dict[str, str]:
    found, after, more = dict[str, str](), "0-0", True
    while more:
        _, page = call("GET", f"{S}/entries?after={after}&count=200")
        found |= {entry["id"]: entry["fields"]["v"] for entry in page["entries"]}
        after, more = page["next"], page["more"]
    return found


def fill_up(file: Path) -> None:
    """Take all that is left, as another program does."""
    with file.open("wb", buffering=0) as other:
        for size in (1 << 20, 1 << 10):
            with suppress(OSError):
                while other.write(bytes(size)) == size:
                    pass


@needs(no_loop_disk)
@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_a_disk_that_kept_no_room(fsync: str, tmp_path: Path) -> None:
    """Its room goes to another program after it was asked for: the answer waits until the room is back,
    without a restart. What was answered is there after a kill, also while another one waits.
    """
    with disk_without_promises(tmp_path, 96 << 20) as place:
        server = Server(place / "data", *BY_HAND, "--fsync", fsync)
        server.log_to(tmp_path / "log")
        with server, client(server.port) as call, ThreadPoolExecutor() as threads:
            assert call("POST", f"{S}/entries", {"fields": {"v": "1"}})[0] == 201

            def publish() -> int:
                with client(server.port) as publishing:
                    body = {"fields": {"v": secrets.token_hex(100_000)}}
                    return publishing("POST", f"{S}/entries", body)[0]

            for length in (2, 3):
                fill_up(place / "other")

                waiting = threads.submit(publish)
                until(lambda: failing(call) == ["disk_full"])
                assert call("POST", "/v1/streams/t/entries", {"fields": {"v": "1"}})[0] == 507
                assert not waiting.done()
                (place / "other").unlink()
                assert waiting.result(WAIT_S_MAX) == 201
                until(lambda: failing(call) == [])
                assert call("GET", S)[1]["length"] == length
            fill_up(place / "other")
            waiting = threads.submit(publish)
            until(lambda: failing(call) == ["disk_full"])
            server.kill()
            assert isinstance(waiting.exception(WAIT_S_MAX), OSError | HTTPException)
            (place / "other").unlink()
            server.start()
            with client(server.port) as again:
                assert again("GET", S)[1]["length"] == 3
