"""What waits for the disk, for entries or for a stop ends alike in our server and in any ASGI server."""

import errno
import json
import time

import pytest

from engine.storage.memory import MemoryStorage
from tests.app.http_requests import ENTRIES, GROUP, LIMITS, PLAIN, READ, UNUSUAL, post
from tests.app.pair import Pair, plain
from tests.app.slow_disk import SlowDisk
from tests.waiting import until


def test_a_draining_gateway_refuses_by_both() -> None:
    """With 503, and the connection closed."""
    with Pair(LIMITS) as pair:
        pair.fast.drain()
        pair.full.drain()
        time.sleep(0.05)
        for line in (PLAIN["entry"], PLAIN["tail"]):
            fast, full = pair.both(line)
            assert fast == full
            assert b'"code":"draining"' in fast


@pytest.mark.parametrize(("operation", "code"), [("sync", errno.ENOSPC), ("append", errno.EIO)])
def test_a_failed_log_is_told_by_both(operation: str, code: int) -> None:
    """To who was waiting for it, alone or together with others, and to who comes later, readers too."""
    storages = (MemoryStorage(), MemoryStorage())
    with Pair(LIMITS, always=True, storages=storages) as pair:
        for storage in storages:
            storage.fail(operation, code)
        for name in ("entry", "rows", "entry", "range", "tail", "tail from the beginning", "waiting read"):
            fast, full = pair.both({**PLAIN, **UNUSUAL}[name])
            assert fast == full, name
            assert b'"code":"storage_failed"' in fast, name
        fast, full = pair.both(PLAIN["nothing"])
        assert fast == full
        assert b'{"entries":[]' in fast, "what is safe is read"


def test_an_answer_that_waits_for_the_disk_leaves_before_the_server_does() -> None:
    """Though the stop begins meanwhile; it is the connection's last."""
    storage = SlowDisk()
    with Pair(LIMITS, always=True, storages=(storage, MemoryStorage())) as pair:
        line = pair.fast.connect()
        storage.gate.clear()
        line.send(PLAIN["entry"])
        time.sleep(0.1)
        pair.fast.leave()
        time.sleep(0.2)
        storage.gate.set()
        answer = line.rest()
        assert answer.startswith(b"HTTP/1.1 201 ")
        assert b"\r\nconnection: close\r\n" in answer
        line.close()


@pytest.mark.parametrize("name", ["entry", "rows", "group read"])
def test_answers_of_a_gateway_that_drains_are_the_last_of_their_connections(name: str) -> None:
    """Those that were waited for when it began, and those of later requests: each says so, and closes."""
    storages = (SlowDisk(), SlowDisk())
    with Pair(LIMITS, always=True, storages=storages) as pair:
        pair.both(post("/v1/streams/s/groups", b'{"name":"g","start":"0","mkstream":true}'))
        pair.both(PLAIN["entry"])
        waiting, later = [[one.connect() for one in (pair.fast, pair.full)] for _ in range(2)]
        for storage in storages:
            storage.gate.clear()
        for line in waiting:
            line.send(PLAIN[name])
        time.sleep(0.1)
        for one in (pair.fast, pair.full):
            one.drain()
        time.sleep(0.1)
        for storage in storages:
            storage.gate.set()
        for line in later:
            line.send(PLAIN["nothing"])
        for line in [*waiting, *later]:
            assert b"\r\nconnection: close\r\n" in line.rest()
            line.close()


def test_who_sends_ahead_of_a_slow_disk_is_not_listened_to_for_ever() -> None:
    """What was heard is served when the disk is back, in order."""
    storage = SlowDisk()
    with Pair(LIMITS, always=True, storages=(storage, MemoryStorage())) as pair:
        line = pair.fast.connect()
        storage.gate.clear()
        entry = post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 5_000))
        line.send(*[entry] * 40)
        time.sleep(0.2)
        storage.gate.set()
        assert [line.answer()[:13] for _ in range(40)] == [b"HTTP/1.1 201 "] * 40
        line.close()


def _leave_waiting(pair: Pair) -> None:
    """Begin a group's read that waits, at both, and hang up."""
    pair.both(post("/v1/streams/s/groups", b'{"name":"g","start":"$","mkstream":true}'))
    for served in (pair.fast, pair.full):
        line = served.connect()
        line.send(post(READ, b'{"wait":20000}'))
        until(lambda served=served: served.app.gateway.engine.figures().waiting == 1)
        line.close()
        requests = served.app.gateway.reports.counters.requests
        until(lambda requests=requests: any(499 in one for one in list(requests.values())))
        assert not served.app.gateway.engine.figures().waiting


def test_who_leaves_while_a_group_read_waits_takes_nothing() -> None:
    """By both: what comes next is for others, as if never delivered, and the counts are the same."""
    with Pair(LIMITS) as pair:
        _leave_waiting(pair)
        pair.both(PLAIN["entry"])
        fast, full = pair.both(post(f"{GROUP}/consumers/d/read", b"{}"))
        assert fast == full
        assert fast.count(b'"id":') == 1
        assert b'"delivery_count"' not in fast
        for served in (pair.fast, pair.full):
            served.settle()
        fast_counts, full_counts = (one.app.gateway.reports.counters for one in (pair.fast, pair.full))
        assert fast_counts.requests == full_counts.requests
        assert fast_counts.rejected == full_counts.rejected
        assert sum(fast_counts.times.histogram.counts) == sum(full_counts.times.histogram.counts)


_COMMAND = b'["XREADGROUP","GROUP","g","gone","COUNT","1","STREAMS","s",">"]'
_UNSENT = {
    "read": post(f"{GROUP}/consumers/gone/read", b'{"count":1}'),
    "command": post("/v1/commands", _COMMAND),
    "pipeline": post("/v1/commands/pipeline", b"[%b,%b]" % (_COMMAND, _COMMAND)),
    "multi-exec": post("/v1/commands/multi-exec", b"[%b,%b]" % (_COMMAND, _COMMAND)),
}


@pytest.mark.parametrize("name", [*_UNSENT])
def test_what_waits_for_the_disk_when_its_client_leaves_is_undone(name: str) -> None:
    """By both, whatever has read it: others get it as if nobody had."""
    storages = (SlowDisk(), SlowDisk())
    with Pair(LIMITS, always=True, storages=storages) as pair:
        pair.both(post("/v1/streams/s/groups", b'{"name":"g","start":"0","mkstream":true}'))
        for _ in range(2):
            pair.both(PLAIN["entry"])
        for served, storage in zip((pair.fast, pair.full), storages, strict=True):
            line = served.connect()
            storage.gate.clear()
            line.send(_UNSENT[name])
            time.sleep(0.1)
            line.close()
            time.sleep(0.1)
            storage.gate.set()
        time.sleep(0.1)
        fast, full = pair.both(post(f"{GROUP}/consumers/d/read", b"{}"))
        assert fast == full
        assert fast.count(b'"id":') == 2
        assert b'"delivery_count"' not in fast


def test_a_group_read_that_waits_is_given_what_comes() -> None:
    """By both, and what its client has sent ahead is answered behind that."""
    with Pair(LIMITS) as pair:
        pair.both(post("/v1/streams/s/groups", b'{"name":"g","start":"$","mkstream":true}'))
        waiting = [one.connect() for one in (pair.fast, pair.full)]
        for line in waiting:
            line.send(post(READ, b'{"wait":20000}') + PLAIN["nothing"])
        until(lambda: all(one.app.gateway.engine.figures().waiting for one in (pair.fast, pair.full)))
        pair.both(PLAIN["entry"])
        (fast, fast_next), (full, full_next) = ([line.answer(), line.answer()] for line in waiting)
        assert plain(fast) == plain(full)
        assert b'"id":"1000-0"' in fast
        assert plain(fast_next) == plain(full_next)


def test_a_drain_ends_a_group_read_that_waits() -> None:
    """By both with 503, and its connection."""
    with Pair(LIMITS) as pair:
        pair.both(post("/v1/streams/s/groups", b'{"name":"g","start":"$","mkstream":true}'))
        waiting = [one.connect() for one in (pair.fast, pair.full)]
        for line in waiting:
            line.send(post(READ, b'{"wait":20000}'))
        until(lambda: all(one.app.gateway.engine.figures().waiting for one in (pair.fast, pair.full)))
        for one in (pair.fast, pair.full):
            one.drain()
        fast, full = (line.rest() for line in waiting)
        assert plain(fast) == plain(full)
        assert b'"code":"draining"' in fast
        assert b"\r\nconnection: close\r\n" in fast


def test_the_log_has_the_same_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever way a request went; but for times and IDs."""
    with Pair(LIMITS.model_copy(update={"log_requests": "all"})) as pair:
        for name in ("entry", "not JSON", "tail", "group read", "entry of another script"):
            pair.both(PLAIN[name])
        _leave_waiting(pair)
        for one in (pair.fast, pair.full):
            one.soon(one.app.flush_logs)
        pair.hang_up()
    result: dict[str, list[dict[str, object]]] = {}
    for text in capsys.readouterr().err.splitlines():
        line = json.loads(text)
        if line.get("event") == "request":
            result.setdefault(str(line.pop("request_id")).partition("-")[0], []).append(line)
            line.pop("ms")
    fast, full = result.values()
    assert fast == full
    assert [line["status"] for line in fast[-2:]] == [201, 499]
    assert len(fast) == 8
