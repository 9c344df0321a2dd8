"""The fast path answers as the ordinary way does, byte by byte, in order, and each request is served once."""

import errno
import json
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app.gateway import Phase
from app.settings import Settings
from engine.commands import TURN_LOOKUPS_MAX
from engine.storage.memory import Fault, MemoryStorage
from tests.app.pair import HOST, Pair

LIMITS = Settings(
    port=0,
    log_requests="none",
    body_bytes_max=64 << 10,
    entry_bytes_max=8 << 10,
    entry_fields_max=16,
    batch_entries_max=100,
    # Longer than any test on a slow machine takes for what it sends on lines that it has opened.
    request_s_max=30,
    keep_alive_s=30,
)
IMPATIENT = LIMITS.model_copy(update={"request_s_max": 1, "keep_alive_s": 1})
JSON = "Content-Type: application/json"
NDJSON = "Content-Type: application/x-ndjson"
ENTRIES = "/v1/streams/s/entries"
GROUP = "/v1/streams/s/groups/g"
READ = f"{GROUP}/consumers/c/read"
ENTRY = b'{"fields":{"a":"1"}}'


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(LIMITS) as pair:
        yield pair


@pytest.fixture(scope="module")
def impatient() -> Iterator[Pair]:
    with Pair(IMPATIENT) as pair:
        yield pair


def request(line: str, body: bytes | None = None, *headers: str) -> bytes:
    length = () if body is None else (f"Content-Length: {len(body)}",)
    head = "".join(f"{header}\r\n" for header in (*headers, *length))
    return line.encode() + b" HTTP/1.1\r\n" + HOST + head.encode() + b"\r\n" + (body or b"")


def post(path: str, body: bytes, *headers: str) -> bytes:
    return request(f"POST {path}", body, *(headers or (JSON,)))


def deletion(count: int) -> bytes:
    """An acknowledgement of so many IDs that deletes."""
    return json.dumps({"ids": [f"7-{number}" for number in range(count)], "delete": "keep"}).encode()


PLAIN = {
    "entry": post(ENTRIES, ENTRY),
    "entry with blanks": post(ENTRIES, b'{ "fields" : {"a":"1"} }'),
    "entry over lines": post(ENTRIES, b'{"fields":{\n"a":"1"}}'),
    "entry of numbers": post(ENTRIES, b'{"fields":{"a":1.50,"b":true}}'),
    "entry of another script": post("/v1/streams/%E6%B5%81/entries", '{"fields":{"ключ":"值"}}'.encode()),
    "batch": post(ENTRIES, b'{"entries":[{"fields":{"a":"1"}},{"fields":{"b":"2"}}]}'),
    "rows": post(ENTRIES, b'{"a":"1"}\n{"b":2}\n', NDJSON),
    "minimal": post(ENTRIES, b'{"a":"1"}\n{"b":2}\n', NDJSON, "Prefer: return=minimal"),
    "trimming": post(f"{ENTRIES}?maxlen=50&approx=false", ENTRY),
    "charset": post(ENTRIES, ENTRY, "content-type: Application/JSON; charset=utf-8"),
    "browser": post(ENTRIES, ENTRY, JSON, "Accept: */*", "Accept-Language: *", "Connection: keep-alive"),
    "form": post(ENTRIES, b"a=1&b=2", "Content-Type: application/x-www-form-urlencoded"),
    "key": post(ENTRIES, ENTRY, JSON, "Idempotency-Key: k-1"),
    "tail from the beginning": request(f"GET {ENTRIES}?after=0&count=3"),
    "tail": request(f"GET {ENTRIES}?after=1000-2&count=2", None, "Accept: application/json"),
    "tail of now": request(f"GET {ENTRIES}?after=$&wait=0"),
    "range": request(f"GET {ENTRIES}?count=2"),
    "nothing": request("GET /v1/streams/none/entries?after=0"),
    "group read": post(READ, b'{"count":2}'),
    "group read without a body": request(f"POST {READ}", b""),
    "history": post(READ, b'{"after":"0"}'),
    "ack": post(f"{GROUP}/ack", b'{"ids":["1000-0","1000-1","1-1"]}'),
    "ack and delete": post(f"{GROUP}/ack", b'{"ids":["1000-2"],"delete":"acked"}'),
    "ack and delete of as many as one turn takes": post(f"{GROUP}/ack", deletion(TURN_LOOKUPS_MAX)),
    "ack and delete of one more": post(f"{GROUP}/ack", deletion(TURN_LOOKUPS_MAX + 1)),
    "ack of nothing": post(f"{GROUP}/ack", b'{"ids":["5-5"]}'),
    "not JSON": post(ENTRIES, b"{"),
    "no entry": post(ENTRIES, b'{"a":"1"}'),
    "no fields": post(ENTRIES, b'{"fields":{}}'),
    "a name twice": post(ENTRIES, b'{"fields":{"a":"1","a":"2"}}'),
    "a member too many": post(ENTRIES, b'{"fields":{"a":"1"},"b":1}'),
    "its own ID, too small": post(ENTRIES, b'{"fields":{"a":"1"},"id":"1-1"}'),
    "many fields": post(ENTRIES, json.dumps({"fields": {str(i): "" for i in range(17)}}).encode()),
    "large entry": post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 9_000)),
    "large batch": post(ENTRIES, b'{"a":"1"}\n' * 101, NDJSON),
    "bad row": post(ENTRIES, b'{"a":"1"}\n{"a":\n', NDJSON),
    "unknown parameter": post(f"{ENTRIES}?a=1", ENTRY),
    "another charset": post(ENTRIES, ENTRY, f"{JSON}; charset=latin-1"),
    "count of nothing": request(f"GET {ENTRIES}?count=0"),
    "bad ID": request(f"GET {ENTRIES}?after=1_0"),
    "no group": post("/v1/streams/s/groups/none/consumers/c/read", b"{}"),
    "no stream": post("/v1/streams/none/groups/g/consumers/c/read", b"{}"),
    "ack without a group": post("/v1/streams/s/groups/none/ack", b'{"ids":["5-5"]}'),
    "ack without IDs": post(f"{GROUP}/ack", b"{}"),
    "bad member": post(READ, b'{"count":"2"}'),
}
UNUSUAL = {
    "HEAD": request(f"HEAD {ENTRIES}?count=2"),
    "another method": request(f"PUT {ENTRIES}", b""),
    "waiting read": request(f"GET {ENTRIES}?after=$&wait=1"),
    "waiting group read": post(READ, b'{"wait":1}'),
    "synced": post(ENTRIES, ENTRY, JSON, "Prefer: durability=fsync"),
    "own request ID": post(ENTRIES, ENTRY, JSON, "Weir-Request-Id: mine"),
    "origin": post(ENTRIES, ENTRY, JSON, "Origin: http://evil.example"),
    "own origin": post(ENTRIES, ENTRY, JSON, "Origin: http://localhost"),
    "another header": post(ENTRIES, ENTRY, JSON, "X-Forwarded-For: 10.0.0.1"),
    "a type twice": post(ENTRIES, ENTRY, JSON, NDJSON),
    "an accept of much": request(f"GET {ENTRIES}?count=1", None, "Accept: text/html, application/json;q=0.5"),
    "what nobody has": request(f"GET {ENTRIES}?count=1", None, "Accept: text/html"),
    "an export": request(f"GET {ENTRIES}?count=2", None, "Accept: application/x-ndjson"),
    "coded body": post(ENTRIES, ENTRY, JSON, "Content-Encoding: gzip"),
    "fragment": request(f"GET {ENTRIES}#a"),
    "absolute": request(f"GET http://localhost{ENTRIES}?count=1"),
    "slash at the end": request(f"GET {ENTRIES}/"),
    "empty name": request("GET /v1/streams//entries"),
    "dots": request("GET /v1/streams/../entries"),
    "slash in the name": request("GET /v1/streams/a%2Fb/entries"),
    "no UTF-8": request("GET /v1/streams/%ff/entries"),
    "half an escape": request("GET /v1/streams/%f/entries"),
    "another version": b"GET /v1/streams/s/entries HTTP/1.0\r\n" + HOST + b"\r\n",
    "no version": b"GET /v1/streams/s/entries\r\n" + HOST + b"\r\n",
    "no Host": b"GET /v1/streams/s/entries HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET /v1/streams/s/entries HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "another Host": b"GET /v1/streams/s/entries HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "blank before a colon": b"GET /v1/streams/s/entries HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "folded": b"GET /v1/streams/s/entries HTTP/1.1\r\n" + HOST + b" folded\r\n\r\n",
    "bare line ends": b"GET /v1/streams/s/entries HTTP/1.1\nHost: localhost\n\n",
    "signed length": request(f"POST {ENTRIES}", None, JSON, "Content-Length: +3") + b"abc",
    "two lengths": request(f"POST {ENTRIES}", None, JSON, "Content-Length: 3", "Content-Length: 3") + b"abc",
    "length and chunks": request(
        f"POST {ENTRIES}", None, JSON, "Content-Length: 3", "Transfer-Encoding: chunked"
    ),
    "too large": request(f"POST {ENTRIES}", None, JSON, "Content-Length: 70000"),
    "expecting": post(ENTRIES, ENTRY, JSON, "Expect: 100-continue"),
    "closing": post(ENTRIES, ENTRY, JSON, "Connection: close"),
    "upgrade": request(f"GET {ENTRIES}", None, "Connection: upgrade", "Upgrade: h2c"),
}


@pytest.fixture(scope="module", autouse=True)
def group(pair: Pair) -> None:
    """A group that starts at the beginning."""
    for line in (post(ENTRIES, ENTRY), post("/v1/streams/s/groups", b'{"name":"g","start":"0"}')):
        fast, full = pair.both(line)
        assert (fast, full.startswith(b"HTTP/1.1 201 ")) == (full, True)


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_request_is_answered_thin_as_it_would_be_otherwise(pair: Pair, name: str) -> None:
    """Answers and refusals of the four hot routes, none of which reaches the application."""
    before = pair.fast.app.full
    fast, full = pair.both(PLAIN[name])
    assert fast == full
    assert pair.fast.app.full == before


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_goes_the_full_way(pair: Pair, name: str) -> None:
    """It is refused or served as without the fast ways."""
    fast, full = pair.both(UNUSUAL[name], head_alone=name == "HEAD")
    assert fast == full
    assert full.startswith(b"HTTP/1.1 ")
    pair.hang_up()


@pytest.mark.parametrize(("path", "body"), [(ENTRIES, ENTRY), ("/v1/streams/s/trim", b'{"maxlen":100000}')])
def test_an_answer_tells_how_safe_its_change_is(pair: Pair, path: str, body: bytes) -> None:
    """The operating system has it; where the disk was asked for, the disk has it."""
    for answer in pair.both(post(path, body)):
        assert b"\r\nweir-durability: os\r\n" in answer
        assert b"preference-applied" not in answer
    for answer in pair.both(post(path, body, JSON, "Prefer: durability=fsync")):
        assert b"\r\nweir-durability: fsync\r\n" in answer
        assert b"\r\npreference-applied: durability=fsync\r\n" in answer


def test_answers_begin_with_the_date_of_their_time(pair: Pair) -> None:
    """How they begin is kept no longer than the server's headers stay the same."""
    ways = pair.fast.app.fast_path
    assert ways is not None
    for date in (b"Sun, 06 Nov 1994 08:49:37 GMT", b"Sun, 06 Nov 1994 08:49:38 GMT"):
        headers = [(b"date", date)]
        for status in (200, 201, 200):
            assert ways.start(status, headers) == b"HTTP/1.1 %d %b\r\ndate: %b\r\n" % (
                status,
                {200: b"OK", 201: b"Created"}[status],
                date,
            )


def test_both_have_stored_the_same(pair: Pair) -> None:
    """Whatever was sent before: nothing twice, nothing lost."""
    for path in (f"{ENTRIES}?count=100", "/v1/streams/s", f"{GROUP}/pending"):
        fast, full = pair.both(request(f"GET {path}"))
        assert fast == full


def test_a_body_may_come_later_than_its_head(pair: Pair) -> None:
    """As from clients that send the two apart."""
    head, end, body = PLAIN["entry"].partition(b"\r\n\r\n")
    lines = (pair.fast.connect(), pair.full.connect())
    before = pair.fast.app.full
    for piece in (head + end, body[:5], body[5:] + PLAIN["tail"]):
        for line in lines:
            line.send(piece)
        time.sleep(0.02)
    for line in lines:
        assert line.answer().startswith(b"HTTP/1.1 201 ")
        assert line.answer().startswith(b"HTTP/1.1 200 ")
        line.close()
    assert pair.fast.app.full == before


NAMES = st.sampled_from(["s", "t", "%73", "a%20b", "a%00b", "..", "%2e%2e", "a+b", "a~b", "", "x" * 520])
BODIES = st.sampled_from(
    [
        *(ENTRY, b'{"fields":{"a":"1","b":"2"}}', b'{"fields":{"a":"1","a":"1"}}', b'{"fields":{"a":1}}'),
        *(b'{"fields":{"a":"1"}', b'{"fields":{"a":"1"}}\n', b'{"fields":{"a":"1"}}{"fields":{"a":"1"}}'),
        *(b'{"fields":{"a":"1"}}\n{"fields":{"a":"1"}}', b'{"fields":{"a":"1"},"id":"*"}', b""),
        *(b'{"fields":{"a":"\\ud800"}}', b'{"fields":{"a":"\xff"}}', b'{"fields":{"a":null}}', b"[]"),
        *(b'{"a":"1"}', b'{"count":1}', b'{"ids":["1000-0"]}', b'{"fields":{"a":"%b"}}' % (b"x" * 5_000)),
    ]
)
HEADERS = st.sampled_from(
    [
        *(JSON, JSON, JSON, NDJSON, "content-type:application/json", "CONTENT-TYPE: \tapplication/json "),
        *("Accept: */*", "accept: application/json", "Accept: application/x-ndjson", "User-Agent: wrk/4"),
        *("Accept-Encoding: gzip", "Connection: Keep-Alive", "Prefer: return=minimal", "X-Other: 1"),
        *("Idempotency-Key: k", 'If-Match: "0-0"', "Cookie: a=b", "Content-Type: text/plain", "Accept:"),
    ]
)
PATHS = st.builds(
    str.format,
    st.sampled_from(
        [
            *("/v1/streams/{0}/entries", "/v1/streams/{0}/entries", "/v1/streams/{0}/groups/g/ack"),
            *("/v1/streams/{0}/groups/{0}/consumers/{0}/read", "/v1/streams/{0}/entries/1000-0"),
        ]
    ),
    NAMES,
)
QUERIES = st.sampled_from(
    [
        "",
        "",
        "",
        "?",
        "?after=0",
        "?after=0&count=2",
        "?count=-1",
        "?count=1&count=1",
        "?maxlen=3",
        "?a",
        "?%zz",
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Ordinary and odd requests, each with an end that everybody agrees on."""
    method = draw(st.sampled_from(["GET", "POST", "POST", "POST", "HEAD", "DELETE"]))
    headers = draw(st.lists(HEADERS, max_size=4, unique_by=lambda header: header.partition(":")[0].lower()))
    body = draw(BODIES) if method == "POST" else b""
    if draw(st.integers(0, 4)) == 0:
        framing, body = (
            "Transfer-Encoding: chunked",
            b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n",
        )
    else:
        framing = f"Content-Length: {len(body)}"
    lines = draw(st.permutations([*headers, "Host: localhost", framing]))
    head = f"{method} {draw(PATHS)}{draw(QUERIES)} HTTP/1.1\r\n" + "".join(f"{line}\r\n" for line in lines)
    return head.encode() + b"\r\n" + body


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=4), st.lists(st.integers(0, 1_000), max_size=3))
def test_whatever_comes_in_whatever_pieces_is_answered_in_order_and_alike(
    pair: Pair, sent: list[bytes], cuts: list[int]
) -> None:
    """Several requests on one connection without waiting for answers, cut anywhere."""
    last = request("GET /healthz/live", None, "Connection: close")
    whole = b"".join([*sent, last])
    places = sorted({cut % len(whole) for cut in cuts} - {0})
    pieces = [whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)]
    fast, full = pair.streams(*pieces)
    assert fast == full
    assert full.count(b"HTTP/1.1 ") >= 1


def test_answers_come_in_the_order_of_their_requests(pair: Pair) -> None:
    """Hundreds sent at once, fast and full ones in turn, more than one is listened to ahead."""
    mixed = [post("/v1/streams/order/entries", b'{"fields":{"n":"%d"}}' % n) for n in range(1_000)]
    mixed[500:500] = [request("GET /v1/streams/order/entries?count=1", None, "X-Other: 1")]
    fast, full = pair.streams(*mixed, request("GET /healthz/live", None, "Connection: close"))
    assert fast == full
    assert fast.count(b"HTTP/1.1 201 Created") == 1_000


def test_many_reads_in_a_row_let_others_have_their_turn(pair: Pair) -> None:
    """Thousands sent at once are answered some at a time, in order; meanwhile another client is served."""
    reads = [request(f"GET {ENTRIES}?count={1 + n % 3}") for n in range(3_000)]
    last = request("GET /healthz/live", None, "Connection: close")
    greedy, other = pair.fast.connect(), pair.fast.connect()
    greedy.send(*reads, last)
    other.send(PLAIN["tail"])
    assert other.answer().startswith(b"HTTP/1.1 200 ")
    answers = [greedy.answer() for _ in reads]
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
    assert [answer.count(b'{"id":') for answer in answers] == [1 + n % 3 for n in range(3_000)]
    assert greedy.rest().startswith(b"HTTP/1.1 200 ")
    for line in (greedy, other):
        line.close()


def test_entries_that_are_published_together_are_told_apart(pair: Pair) -> None:
    """Each publisher learns the ID of its own entry, and a bad one among them concerns itself alone."""
    lines = [pair.fast.connect() for _ in range(64)]
    bodies = [
        b'{"fields":{"n":"%d"%b}}' % (n, b',"n":"again"' if n % 16 == 7 else b"") for n in range(len(lines))
    ]
    for line, body in zip(lines, bodies, strict=True):
        line.send(post("/v1/streams/together/entries", body))
    answers = [line.answer() for line in lines]
    for n, answer in enumerate(answers):
        if n % 16 == 7:
            assert answer.startswith(b"HTTP/1.1 422 ")
            continue
        entry_id = json.loads(answer.partition(b"\r\n\r\n")[2])["id"]
        lines[n].send(request(f"GET /v1/streams/together/entries/{entry_id}"))
        assert json.loads(lines[n].answer().partition(b"\r\n\r\n")[2])["fields"] == {"n": str(n)}
    lines[0].send(request("GET /v1/streams/together"))
    assert json.loads(lines[0].answer().partition(b"\r\n\r\n")[2])["length"] == 60
    for line in lines:
        line.close()


@pytest.mark.parametrize("accepted", ["gzip", "zstd;q=0.5, gzip;q=0.4", "identity"])
def test_a_large_answer_is_coded_alike(pair: Pair, accepted: str) -> None:
    """In a thread, and what was asked for behind it on the same connection is answered behind it."""
    path = "/v1/streams/coded/entries"
    text = "all work and no play " * 50
    batch = {"entries": [{"id": f"{n}-5", "fields": {"text": text}} for n in range(1, 50)]}
    last = request("GET /healthz/live", None, "Connection: close")
    pair.streams(post(path, json.dumps(batch).encode()), last)
    read = request(f"GET {path}", None, f"Accept-Encoding: {accepted}")
    fast, full = pair.streams(read, request(f"GET {path}?count=1"), read, last)
    assert fast == full
    assert fast.count(b"HTTP/1.1 200 OK") == 4
    assert (len(fast) < 16 << 10) == (accepted != "identity")


def test_a_body_that_does_not_come_is_408(impatient: Pair) -> None:
    """The time of a request is the guard's on both ways."""
    head = PLAIN["entry"].partition(b"{")[0]
    fast, full = impatient.streams(head)
    assert fast == full
    assert fast.startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_is_closed_after_its_time(impatient: Pair) -> None:
    """Counted from the last answer, also where that was fast."""
    line = impatient.fast.connect()
    for _ in range(3):
        line.send(PLAIN["entry"])
        assert line.answer().startswith(b"HTTP/1.1 201 ")
        time.sleep(0.5)
    began = time.monotonic()
    assert line.rest() == b""
    assert 0.3 < time.monotonic() - began < 5
    line.close()


def test_a_draining_gateway_refuses_on_both_ways() -> None:
    """With 503, and the connection closed."""
    with Pair(LIMITS) as pair:
        pair.fast.drain()
        pair.full.drain()
        time.sleep(0.05)
        for line in (PLAIN["entry"], PLAIN["tail"]):
            fast, full = pair.both(line)
            assert fast == full
            assert b'"code":"draining"' in fast


@pytest.mark.parametrize(("operation", "code"), [("sync", errno.EIO), ("append", errno.ENOSPC)])
def test_a_failed_log_is_told_on_both_ways(operation: str, code: int) -> None:
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


class _Slow(MemoryStorage):
    """A disk whose syncs wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def step(self, operation: str, name: str) -> Fault | None:
        if operation == "sync":
            assert self.gate.wait(20), "somebody lets it go"
        return super().step(operation, name)


def test_an_answer_that_waits_for_the_disk_leaves_before_the_server_does() -> None:
    """Though the stop begins meanwhile; it is the connection's last."""
    storage = _Slow()
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


def test_a_stop_reaches_who_goes_the_full_way_after_all(pair: Pair) -> None:
    """An entry that was to be stored with others, a fault meanwhile, and a stop: the connection ends behind
    its answer, though the server and the gateway go on.
    """
    line, gateway = pair.fast.connect(), pair.fast.app.gateway
    line.send(PLAIN["nothing"])
    assert line.answer().startswith(b"HTTP/1.1 200 ")

    def stop() -> None:
        connection = pair.fast.connection(line)
        connection.data_received(PLAIN["entry"])
        gateway.phase = Phase.RESTARTING
        connection.shutdown()

    pair.fast.soon(stop)
    answer = line.rest()
    gateway.phase = Phase.READY
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"restarting"' in answer
    line.close()


@pytest.mark.parametrize("name", ["entry", "rows", "group read"])
def test_answers_of_a_gateway_that_drains_are_the_last_of_their_connections(name: str) -> None:
    """Those that were waited for when it began, and those of later requests: each says so, and closes."""
    storages = (_Slow(), _Slow())
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
    storage = _Slow()
    with Pair(LIMITS, always=True, storages=(storage, MemoryStorage())) as pair:
        line = pair.fast.connect()
        storage.gate.clear()
        entry = post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 5_000))
        line.send(*[entry] * 40)
        time.sleep(0.2)
        storage.gate.set()
        assert [line.answer()[:13] for _ in range(40)] == [b"HTTP/1.1 201 "] * 40
        line.close()


def test_the_log_has_the_same_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever way a request went; but for times and IDs."""
    with Pair(LIMITS.model_copy(update={"log_requests": "all"})) as pair:
        for name in ("entry", "not JSON", "tail", "group read", "entry of another script"):
            pair.both(PLAIN[name])
        pair.hang_up()
    told: dict[str, list[dict[str, object]]] = {}
    for text in capsys.readouterr().err.splitlines():
        line = json.loads(text)
        if line.get("event") == "request":
            told.setdefault(str(line.pop("request_id")).partition("-")[0], []).append(line)
            line.pop("ms")
    fast, full = told.values()
    assert fast == full
    assert len(fast) == 6
