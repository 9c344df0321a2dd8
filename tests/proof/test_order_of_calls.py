"""From outside, as the kernel saw it: no answer before its sync, no removal before a safe manifest."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from engine.codec import HEADER_BYTES, MARK_PAYLOAD, VERSION, Kind
from tests.proof.clients import STREAM, client, open_journal
from tests.proof.machine import needs, no_strace
from tests.proof.tracing import BY_THREAD, TracedCall, calls, recording
from tests.server import Server

ROUNDS: Final = 12
# Asked for, it goes on by itself.
REWRITE_S: Final = 0.3
MARK_S_MAX: Final = 20.0


def is_manifest(call: TracedCall) -> bool:
    """Whether a manifest takes the place of another one."""
    return call.name.startswith("rename") and call.on("manifest")


def is_mark(call: TracedCall) -> bool:
    """Whether a write to a segment is one frame of the kind MARK, and nothing else."""
    start = rf'"\365Wr\372\{VERSION}\{Kind.MARK:d}\0\0\{MARK_PAYLOAD.size}'
    return call.result == HEADER_BYTES + MARK_PAYLOAD.size and start in call.arguments


def unsynced(
    trace: list[TracedCall], what: Callable[[TracedCall], bool], *, marks: bool = True
) -> list[TracedCall]:
    """The calls of a kind that were made while a write to a segment had not been synced since.

    Without `marks`, writes of a mark alone do not count: no answer depends on one, and the second's timer may
    write it between the end of a sync, in its thread, and the answers that waited for that.
    """
    found: list[TracedCall] = []
    writes: list[int] = []
    for call in trace:
        if call.name == "write" and call.on("segment-") and call.result > 0:
            if marks or not is_mark(call):
                writes.append(call.ended)
        elif call.name == "fdatasync" and call.on("segment-") and call.result == 0:
            writes = [at for at in writes if at > call.begun]
        elif what(call) and any(at < call.begun for at in writes):
            found.append(call)
    return found


def early_removals(trace: list[TracedCall]) -> list[TracedCall]:
    """The files of the log that were removed while a manifest's rename was not synced."""
    found: list[TracedCall] = []
    renamed = False
    for call in trace:
        if is_manifest(call):
            renamed = True
        elif call.name == "fsync" and call.on("/data>") and call.result == 0:
            renamed = False
        elif call.name.startswith("unlink") and renamed and (call.on("segment-") or call.on("base-")):
            found.append(call)
    return found


@needs(no_strace)
@pytest.mark.parametrize("syncs", ["kernel", "thread"])
def test_no_answer_leaves_before_its_sync(syncs: str, tmp_path: Path) -> None:
    """F3 by order (B5, B9): under `always`, for publishing, batches, group reads and acknowledgements."""
    server = Server(tmp_path / "data", "--fsync", "always")
    server.wrapper = (*recording(tmp_path / "trace"), *(BY_THREAD if syncs == "thread" else ()))
    with server:
        open_journal(server.port)
        with client(server.port) as call:
            for number in range(ROUNDS):
                answered(call("POST", f"{STREAM}/entries", {"fields": {"n": str(number)}}))
                answered(call("POST", f"{STREAM}/entries", {"entries": [{"fields": {"n": "b"}}] * 3}))
                path = f"{STREAM}/groups/g/consumers/c/read"
                given = answered(call("POST", path, {"count": 4}))
                ids = [entry["id"] for entry in given["entries"]]
                answered(call("POST", f"{STREAM}/groups/g/ack", {"ids": ids}))
            assert answered(call("GET", "/v1/status"))["log"]["syncs"] == syncs
        assert server.stop() == 0
    trace = list(calls(tmp_path / "trace"))
    assert sum(call.is_answer for call in trace) > 4 * ROUNDS, "answers were seen"
    assert sum(call.name == "fdatasync" for call in trace) >= 4 * ROUNDS, "each of them was synced"
    assert not unsynced(trace, lambda call: call.is_answer, marks=False)
    # What a clean stop records of the segment is on disk by then.
    recorded = trace[max(at for at, call in enumerate(trace) if call.is_answer) :]
    assert any(map(is_manifest, recorded))
    assert not unsynced(trace, is_manifest)


@needs(no_strace)
def test_no_file_goes_before_the_manifest_is_safe(tmp_path: Path) -> None:
    """F20: in a rewrite the directory is synced between the manifest's rename and the first unlink."""
    server = Server(tmp_path / "data", "--fsync", "always")
    server.wrapper = recording(tmp_path / "trace")
    with server:
        open_journal(server.port)
        with client(server.port) as call:
            for _ in range(3):
                answered(call("POST", f"{STREAM}/entries", {"fields": {"n": "1"}}))
                answered(call("POST", "/v1/admin/rewrite"))
                time.sleep(REWRITE_S)
        server.stop()
    trace = list(calls(tmp_path / "trace"))
    assert sum(map(is_manifest, trace)) >= 4
    assert sum(call.name.startswith("unlink") and call.on("segment-") for call in trace) >= 1
    assert not early_removals(trace)


def answered(answer: tuple[int, Any]) -> Any:
    """The body of an answer that is no refusal."""
    status, body = answer
    assert status < 300, body
    return body


@needs(no_strace)
def test_a_mark_is_known_by_its_bytes(tmp_path: Path) -> None:
    """A second of idling writes one; what is published is none."""
    server = Server(tmp_path / "data", "--fsync", "always")
    server.wrapper = recording(tmp_path / "trace")
    writes: list[TracedCall] = []
    with server:
        open_journal(server.port)
        with client(server.port) as call:
            answered(call("POST", f"{STREAM}/entries", {"fields": {"n": "1"}}))
        ends = time.monotonic() + MARK_S_MAX
        while not any(map(is_mark, writes)):
            assert time.monotonic() < ends, "it was idle for long enough"
            time.sleep(0.1)
            writes = [
                call for call in calls(tmp_path / "trace") if call.name == "write" and call.on("segment-")
            ]
        assert server.stop() == 0
    assert not all(map(is_mark, writes))
    assert all(is_mark(call) == (call.result == HEADER_BYTES + MARK_PAYLOAD.size) for call in writes)


def _call(name: str, arguments: str, at: int, result: int = 1) -> TracedCall:
    return TracedCall(name, arguments, result, at, at)


@pytest.mark.parametrize("synced", [True, False])
def test_an_answer_before_its_sync_would_be_seen(synced: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Or the tests above would prove nothing."""
    trace = [
        _call("write", "5</x/data/segment-1.weir>", 1),
        *([_call("fdatasync", "5</x/data/segment-1.weir>", 2, 0)] if synced else []),
        _call("sendto", '9<TCP:[1]>, "HTTP/1.1 201 Created', 3),
    ]
    assert bool(unsynced(trace, lambda call: call.is_answer)) != synced


MARK: Final = r'5</x/data/segment-1.weir>, "\365Wr\372\1\4\0\0\1\0\0\0\t"..., 41'
RECORDS: Final = r'5</x/data/segment-1.weir>, "\365Wr\372\1\2\0\0\1\0\0\0\t"..., 41'


@pytest.mark.parametrize(
    ("late", "is_seen"), [((MARK, 41), False), ((MARK, 82), True), ((RECORDS, 41), True)]
)
def test_a_mark_alone_may_come_between_a_sync_and_its_answer(late: tuple[str, int], *, is_seen: bool) -> None:
    """Not before a manifest; and no other frame, nor one behind the mark in the same write."""
    trace = [
        _call("write", "5</x/data/segment-1.weir>", 1, 100),
        _call("fdatasync", "5</x/data/segment-1.weir>", 2, 0),
        _call("write", late[0], 3, late[1]),
        _call("sendto", '9<TCP:[1]>, "HTTP/1.1 201 Created', 4),
        _call("renameat", '3</x/data>, "manifest.tmp", 3</x/data>, "manifest"', 5, 0),
    ]
    assert bool(unsynced(trace, lambda call: call.is_answer, marks=False)) == is_seen
    assert unsynced(trace, is_manifest)


@pytest.mark.parametrize("synced", [True, False])
def test_a_removal_before_the_manifest_is_safe_would_be_seen(synced: bool) -> None:  # noqa: FBT001 - the same
    """The check of the other rule."""
    trace = [
        _call("renameat", '3</x/data>, "manifest.tmp", 3</x/data>, "manifest"', 1, 0),
        *([_call("fsync", "3</x/data>", 2, 0)] if synced else []),
        _call("unlinkat", '3</x/data>, "segment-1.weir", 0', 3, 0),
    ]
    assert bool(early_removals(trace)) != synced
