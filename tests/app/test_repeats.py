"""A read that was answered before is answered again as by its route, after anything in between."""

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from app.auth import Grant, TokenPolicy, tokens
from app.auth.certificates import ClientCertificate
from app.auth.revocations import Revocation
from app.auth.tokens import CreatedToken, Token
from app.doors.http.plain_requests import REMEMBERED_MAX
from app.gateway import Phase
from app.live.budgets import Pool, Reservation
from app.metrics.counters import Counters
from engine import SystemClock
from tests.app.fast_requests import COMMANDS, ENTRIES, ENTRY, GROUP, LIMITS, NDJSON, READ, post, request
from tests.app.pair import Pair, Served, Standstill, plain
from tests.app.slow_disk import SlowDisk
from tests.waiting import until

READS = {
    "range": f"{ENTRIES}?count=3",
    "range to its end": ENTRIES,
    "part": f"{ENTRIES}?start=1000-1&end=(1000-3",
    "in reverse": f"{ENTRIES}?reverse=true&count=2",
    "times": f"{ENTRIES}?since=1970-01-01T00:00:00Z",
    "tail": f"{ENTRIES}?after=1000-1",
    "tail of now": f"{ENTRIES}?after=$",
    "tail with a gap": f"{ENTRIES}?after=1",
    "tail that fails on a gap": f"{ENTRIES}?after=1&on_gap=fail",
    "tail to an end": f"{ENTRIES}?after=1&end=1000-3",
    "newest": f"{ENTRIES}?last=2",
    "generations": f"{ENTRIES}?cursor=generation&count=2",
    "some fields": f"{ENTRIES}?fields=a",
    "an entry": f"{ENTRIES}/1000-1",
    "stream": "/v1/streams/s",
    "stream in full": "/v1/streams/s?full=true",
    "a group": GROUP,
    "pending": f"{GROUP}/pending",
    "pending, one by one": f"{GROUP}/pending?count=2",
    "groups": "/v1/streams/s/groups",
    "consumers": f"{GROUP}/consumers",
    "ready": "/healthz/ready",
}
CHANGES = {
    "more entries": post(ENTRIES, b'{"entries":[{"fields":{"a":"1","b":"2"}},{"fields":{"b":"3"}}]}'),
    "a group": post("/v1/streams/s/groups", b'{"name":"g","start":"0"}'),
    "a group's read": post(READ, b'{"count":2}'),
    "entries deleted": post(f"{ENTRIES}/delete", b'{"ids":["1000-1"]}'),
    "entries trimmed": post("/v1/streams/s/trim", b'{"maxlen":2,"approx":false}'),
    "all trimmed": post("/v1/streams/s/trim", b'{"maxlen":0,"approx":false}'),
    "the group gone": request(f"DELETE {GROUP}?force=true"),
    "another last ID": post("/v1/streams/s/last-id", b'{"last_id":"2000-0"}'),
    "closed": post("/v1/streams/s/close", b"{}"),
    "the stream gone": request("DELETE /v1/streams/s"),
    "a stream again": post(ENTRIES, b'{"entries":[{"fields":{"a":"9"}},{"fields":{"b":"9"}}]}'),
}
GENERATION = re.compile(rb"\.[0-9a-f]{16}")
LAST = request("GET /healthz/live", None, "Connection: close")


def get(path: str, *headers: str) -> bytes:
    return request(f"GET {path}", None, *headers)


def is_remembered(pair: Pair, read: bytes) -> bool:
    ways = pair.fast.app.fast_path
    assert ways is not None
    found = ways.requests.read(read, 0)
    return found is not None and found.repeat is not None


def counted(served: Served) -> tuple[object, ...]:
    """What is counted of requests, refusals and entries."""
    counters: Counters = served.app.gateway.reports.counters
    requests = {label: dict(found) for label, found in counters.requests.items()}
    return requests, dict(counters.rejected), dict(counters.delivered)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(LIMITS) as pair:
        yield pair


def test_an_equal_read_finds_what_changed_meanwhile(pair: Pair) -> None:
    """Of a stream that is missing, grows, shrinks, goes, comes again: each read twice after each change."""
    seen: set[str] = set()
    for change in ("nothing", "more entries", *CHANGES):
        if change in CHANGES:
            fast, full = pair.both(CHANGES[change])
            assert fast == full, change
        for name, path in READS.items():
            for _ in range(2):
                fast, full = [GENERATION.sub(b".?", one) for one in pair.both(get(path))]
                assert fast == full, (change, name)
            seen |= {name} if is_remembered(pair, get(path)) else set()
    assert seen == {*READS}
    assert counted(pair.fast) == counted(pair.full)


def test_several_sent_at_once_are_answered_in_order(pair: Pair) -> None:
    """With others between them."""
    lines = [get(READS[name]) for name in ("range", "stream", "range", "an entry")] * 30
    lines[7:7] = [CHANGES["more entries"]]
    fast, full = pair.streams(*lines, LAST)
    assert fast == full
    assert fast.count(b"HTTP/1.1 ") == len(lines) + 1


def test_bodies_behind_one_head_are_stored_alike(pair: Pair) -> None:
    """Batches of several lengths, one of them refused; acks; and a command that its caller may run."""
    batches = [b'{"a":"%d"}\n' % n * (1 + n % 5) for n in range(20)]
    batches[7] = b'{"a":'
    lines = [post("/v1/streams/rows/entries", batch, NDJSON, "Prefer: return=minimal") for batch in batches]
    lines += [post("/v1/streams/rows/groups", b'{"name":"g","start":"0"}')]
    lines += [post("/v1/streams/rows/groups/g/consumers/c/read", b'{"count":%d}' % n) for n in (1, 10, 2)]
    lines += [post("/v1/streams/rows/groups/g/ack", b'{"ids":["1000-%d"]}' % n) for n in range(9, 12)]
    lines += [post(COMMANDS, b'["XLEN","%b"]' % name) for name in (b"rows", b"s", b"none", b"rows")]
    for line in (*lines, get("/v1/streams/rows"), get("/v1/streams/rows/entries")):
        fast, full = pair.both(line)
        assert fast == full
    assert is_remembered(pair, lines[0].replace(b"Content-Length: ", b"Content-Length: 1"))


@pytest.mark.parametrize("accepted", ["gzip", "identity"])
def test_a_large_one_is_coded_alike(pair: Pair, accepted: str) -> None:
    path, text = f"/v1/streams/coded-{accepted}/entries", "all work and no play " * 50
    batch = {"entries": [{"id": f"{n}-5", "fields": {"text": text}} for n in range(1, 50)]}
    pair.streams(post(path, json.dumps(batch).encode()), LAST)
    read = get(path, f"Accept-Encoding: {accepted}")
    fast, full = pair.streams(read, read, read, LAST)
    assert fast == full
    assert is_remembered(pair, read)
    assert (len(fast) < 16 << 10) == (accepted == "gzip")


def test_no_more_are_remembered_than_there_is_room_for(pair: Pair) -> None:
    reads = [get(f"{ENTRIES}?start={n}") for n in range(REMEMBERED_MAX + 100)]
    line = pair.fast.connect()
    line.send(*reads, LAST)
    assert line.rest().count(b"HTTP/1.1 200 ") == len(reads) + 1
    assert 0 < sum(is_remembered(pair, read) for read in reads) <= REMEMBERED_MAX


@pytest.mark.parametrize("header", ["Traceparent: 00-1-2-01", "Idempotency-Key: k"])
def test_what_comes_once_is_not_remembered(pair: Pair, header: str) -> None:
    fast, full = pair.both(get(ENTRIES, header))
    assert fast == full
    assert not is_remembered(pair, get(ENTRIES, header))


def test_nothing_is_remembered_for_a_connection_with_a_certificate(pair: Pair) -> None:
    """Who its caller is, its bytes do not say."""
    read, line = get(f"{ENTRIES}?count=77"), pair.fast.connect()
    line.send(LAST.replace(b"close", b"keep-alive"))
    line.answer()
    pair.fast.connection(line).client_certificate = ClientCertificate(("dns:a",), 9e9)
    line.send(read)
    assert line.answer().startswith(b"HTTP/1.1 200 ")
    assert not is_remembered(pair, read)
    line.close()


# ---- who asks


@pytest.fixture
def token() -> CreatedToken:
    return tokens.create((Grant.parse("read,write:s"),), expires_at=datetime.now(UTC) + timedelta(seconds=3))


@pytest.fixture
def known(token: CreatedToken) -> Iterator[Pair]:
    policies = [TokenPolicy([token.token], time.time) for _ in range(2)]
    with Pair(LIMITS, SystemClock(), policies=policies) as pair:
        yield pair


ENDS: dict[str, Callable[[TokenPolicy, Token], None]] = {
    "it is known no more": lambda policy, _: policy.replace_tokens([]),
    "it is revoked": lambda policy, token: policy.revoke([_revocation(token)]),
    "it has expired": lambda _, token: until(lambda: token.is_expired(time.time())),
}


def _revocation(token: Token) -> Revocation:
    return Revocation(kind="token", value=token.id, revoked_at=datetime.now(UTC))


@pytest.mark.parametrize("end", ENDS)
def test_a_caller_whose_token_has_ended_is_refused(known: Pair, token: CreatedToken, end: str) -> None:
    allowed = f"Authorization: Bearer {token.text}"
    read, other = get(ENTRIES, allowed), get("/v1/streams/t/entries", allowed)
    batch = post(ENTRIES, b'{"id":"5","fields":{"a":"1"}}', NDJSON, allowed)
    # The first request with a token is looked at in a thread.
    for line in (read, read, batch, read, batch, batch, read):
        fast, full = known.both(line)
        assert fast == full
        assert b" 401 " not in fast
    assert is_remembered(known, read)
    assert is_remembered(known, batch)
    stamp = known.fast.app.gateway.stamp
    before = stamp.value
    for served in (known.fast, known.full):
        policy = served.app.gateway.access.policy
        assert isinstance(policy, TokenPolicy)
        served.soon(partial(ENDS[end], policy, token.token))
    # The ordinary way remembers nothing, so nothing ends with the token there.
    until(lambda: stamp.value > before)
    until(lambda: not _knows(known.full, allowed))
    for line in (read, batch, read, batch, other):
        fast, full = known.both(line)
        assert fast == full
        assert fast.startswith(b"HTTP/1.1 401 ")


def _knows(served: Served, allowed: str) -> bool:
    credentials = allowed.partition(": ")[2].encode()
    return served.app.gateway.access.policy.recognise({b"authorization": credentials}) is not None


def test_another_caller_is_asked_for_with_other_bytes(known: Pair, token: CreatedToken) -> None:
    read = get(ENTRIES, f"Authorization: Bearer {token.text}")
    for line, status in ((read, b"200"), (read, b"200"), (get(ENTRIES), b"401"), (read, b"200")):
        fast, full = known.both(line)
        assert fast == full
        assert fast.startswith(b"HTTP/1.1 " + status)


def test_each_counts_for_the_rate_of_its_caller() -> None:
    """Entries, requests and bytes; beyond the rate it is refused, and counted once."""
    limits = LIMITS.model_copy(update={"rate_requests": "1/s burst 5", "rate_bytes": "1000/s burst 1000000"})
    with Pair(limits, Standstill()) as pair:
        pair.hang_up()
        read = get(ENTRIES)
        answers = [pair.both(read) for _ in range(8)]
        assert all(fast == full for fast, full in answers)
        assert [b" 429 " in fast for fast, _ in answers] == [False] * 5 + [True] * 3
        assert is_remembered(pair, read)
        assert counted(pair.fast) == counted(pair.full)


# ---- the gateway's state


def test_a_restart_and_a_drain_are_noticed() -> None:
    with Pair(LIMITS) as pair:
        read = get(ENTRIES)
        for phase, status in (
            *((Phase.READY, b"200"), (Phase.RESTARTING, b"503"), (Phase.READY, b"200")),
            *((Phase.READY, b"200"), (Phase.DRAINING, b"503")),
        ):
            for served in (pair.fast, pair.full):
                served.app.gateway.enter(phase)
            fast, full = pair.both(read)
            assert fast == full
            assert fast.startswith(b"HTTP/1.1 " + status)


def _hold_all(pool: Pool, held: list[Reservation]) -> None:
    held.append(pool.hold("others", pool.bytes_max))


def test_the_bound_of_its_reply_is_held_as_by_its_route() -> None:
    """Where others hold all of the pool it is refused, and served when they have let go."""
    with Pair(LIMITS) as pair:
        pair.both(CHANGES["more entries"])
        read = get(ENTRIES)
        for _ in range(2):
            fast, full = pair.both(read)
            assert fast == full
        assert is_remembered(pair, read)
        pools = [served.app.gateway.limits.budgets.output for served in (pair.fast, pair.full)]
        held: list[Reservation] = []
        for served, pool in zip((pair.fast, pair.full), pools, strict=True):
            served.soon(partial(_hold_all, pool, held))
        until(lambda: len(held) == 2)
        for _ in range(2):
            fast, full = pair.both(read)
            assert fast == full
            assert b'"code":"overloaded"' in fast
        for one in held:
            one.release()
        fast, full = pair.both(read)
        assert fast == full
        assert fast.startswith(b"HTTP/1.1 200 ")
        assert [pool.held_bytes for pool in pools] == [0, 0]


def _holds(pool: Pool, size: int) -> bool:
    return pool.held_bytes > size


def test_what_it_shows_is_as_safe_as_promised() -> None:
    """An answer with an entry that is not on disk waits for the disk, holding what it takes meanwhile."""
    disks = (SlowDisk(), SlowDisk())
    with Pair(LIMITS, always=True, storages=disks) as pair:
        for _ in range(16):
            pair.both(post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 7_000)))
        read = get(f"{ENTRIES}?reverse=true&count=15")
        for _ in range(2):
            pair.both(read)
        assert is_remembered(pair, read)
        publishers, readers = [[one.connect() for one in (pair.fast, pair.full)] for _ in range(2)]
        for disk in disks:
            disk.gate.clear()
        pools = [served.app.gateway.limits.budgets.output for served in (pair.fast, pair.full)]
        for publisher, reader, pool in zip(publishers, readers, pools, strict=True):
            publisher.send(post(ENTRIES, ENTRY))
            time.sleep(0.1)
            reader.send(read)
            until(partial(_holds, pool, 90_000))
        for disk in disks:
            disk.gate.set()
        fast, full = [plain(line.answer()) for line in readers]
        assert fast == full
        assert fast.count(b'{"id":') == 15
        assert b'"fields":{"a":"1"}' in fast
        until(lambda: not any(pool.held_bytes for pool in pools))
        for line in (*publishers, *readers):
            line.close()
