"""What waits for the disk, for entries or for a stop ends alike in our server and in any ASGI server."""

import errno
import json
import time

import pytest

from engine.storage.memory import MemoryStorage
from tests.app.http_requests import ENTRIES, LIMITS, PLAIN, READ, UNUSUAL, post
from tests.app.pair import Pair
from tests.engine.conversation import SlowDisk
from tests.waiting import until


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


def test_who_sends_ahead_of_a_slow_disk_is_not_listened_to_for_ever() -> None:
    """What was heard is served when the disk is back, in order."""
    storage = SlowDisk()
    with Pair(LIMITS, always=True, storages=(storage, MemoryStorage())) as pair:
        line = pair.fast.connect()
        storage.hold()
        entry = post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 5_000))
        line.send(*[entry] * 40)
        time.sleep(0.2)
        storage.let_go()
        assert [line.answer()[:13] for _ in range(40)] == [b"HTTP/1.1 201 "] * 40
        line.close()


def test_who_leaves_a_read_that_waits_is_counted_and_logged_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """With 499, which no client gets; its read waits no more."""
    with Pair(LIMITS.model_copy(update={"log_requests": "all"})) as pair:
        pair.both(post("/v1/streams/s/groups", b'{"name":"g","start":"$","mkstream":true}'))
        for served in (pair.fast, pair.full):
            line, gateway = served.connect(), served.app.gateway
            line.send(post(READ, b'{"wait":20000}'))
            until(lambda gateway=gateway: gateway.engine.figures().waiting == 1)
            line.close()
            counts = gateway.reports.counters.requests
            until(lambda counts=counts: any(499 in one for one in list(counts.values())))
            assert not gateway.engine.figures().waiting
            served.soon(served.app.flush_logs)
            served.settle()
    lines = [json.loads(text) for text in capsys.readouterr().err.splitlines()]
    assert [line.get("status") for line in lines].count(499) == 2
