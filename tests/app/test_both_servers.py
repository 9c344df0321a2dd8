"""Our server answers as any ASGI server would, byte by byte, in order, and each request is served once."""

import json
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app.operating import Phase
from tests import halves
from tests.app.http_requests import (
    ASKING,
    ENTRIES,
    ENTRY,
    GROUP,
    JSON,
    LIMITS,
    NDJSON,
    PLAIN,
    UNUSUAL,
    post,
    request,
)
from tests.app.pair import Pair

IMPATIENT = LIMITS.model_copy(update={"request_s_max": 1})


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(LIMITS) as pair:
        yield pair


@pytest.fixture(scope="module")
def impatient() -> Iterator[Pair]:
    with Pair(IMPATIENT) as pair:
        yield pair


@pytest.fixture(scope="module", autouse=True)
def group(pair: Pair) -> None:
    """A group that starts at the beginning; and a stream that takes a thread to write."""
    big = b'{"fields":{"a":"%b"}}' % (b"x" * 8_000)
    lines = (post(ENTRIES, ENTRY), post("/v1/streams/s/groups", b'{"name":"g","start":"0"}'))
    for line in (*lines, *[post("/v1/streams/big/entries", big)] * 40):
        fast, full = pair.both(line)
        assert (fast, full.startswith(b"HTTP/1.1 201 ")) == (full, True)


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_request_is_answered_by_both_alike(pair: Pair, name: str) -> None:
    """Answers and refusals: the first one, and those with a head that was seen before."""
    for _ in range(3):
        fast, full = pair.both(PLAIN[name])
        assert fast == full


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_answered_by_both_alike(pair: Pair, name: str) -> None:
    """It is refused or served."""
    fast, full = pair.both(UNUSUAL[name], head_alone=name == "HEAD")
    assert fast == full
    assert full.startswith(b"HTTP/1.1 ")
    pair.hang_up()


@pytest.mark.parametrize("name", ASKING)
def test_what_asks_for_more_is_asked_each_time(pair: Pair, name: str) -> None:
    """A head that was seen before says it again."""
    for _ in range(3):
        fast, full = pair.both(ASKING[name])
        assert fast == full
        assert full.startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize(("path", "body"), [(ENTRIES, ENTRY), ("/v1/streams/s/trim", b'{"maxlen":100000}')])
def test_an_answer_tells_how_safe_its_change_is(pair: Pair, path: str, body: bytes) -> None:
    """The operating system has it; where the disk was asked for, the disk has it."""
    for answer in pair.both(post(path, body)):
        assert b"\r\nweir-durability: os\r\n" in answer
        assert b"preference-applied" not in answer
    for answer in pair.both(post(path, body, JSON, "Prefer: durability=fsync")):
        assert b"\r\nweir-durability: fsync\r\n" in answer
        assert b"\r\npreference-applied: durability=fsync\r\n" in answer


def test_both_have_stored_the_same(pair: Pair) -> None:
    """After any requests before it: nothing twice, nothing lost."""
    for path in (f"{ENTRIES}?count=100", "/v1/streams/s", f"{GROUP}/pending"):
        fast, full = pair.both(request(f"GET {path}"))
        assert fast == full


def test_a_body_may_come_later_than_its_head(pair: Pair) -> None:
    """As from clients that send the two apart."""
    head, end, body = PLAIN["entry"].partition(b"\r\n\r\n")
    lines = (pair.fast.connect(), pair.full.connect())
    for piece in (head + end, body[:5], body[5:] + PLAIN["tail"]):
        for line in lines:
            line.send(piece)
        time.sleep(0.02)
    for line in lines:
        assert line.answer().startswith(b"HTTP/1.1 201 ")
        assert line.answer().startswith(b"HTTP/1.1 200 ")
        line.close()


NAMES = st.sampled_from(["s", "t", "%73", "a%20b", "a%00b", "..", "%2e%2e", "a+b", "a~b", "", "x" * 520])
BODIES = st.sampled_from(
    [
        *(ENTRY, b'{"fields":{"a":"1","b":"2"}}', b'{"fields":{"a":"1","a":"1"}}', b'{"fields":{"a":1}}'),
        *(b'{"fields":{"a":"1"}', b'{"fields":{"a":"1"}}\n', b'{"fields":{"a":"1"}}{"fields":{"a":"1"}}'),
        *(b'{"fields":{"a":"1"}}\n{"fields":{"a":"1"}}', b'{"fields":{"a":"1"},"id":"*"}', b""),
        *(b'{"fields":{"a":"\\ud800"}}', b'{"fields":{"a":"\xff"}}', b'{"fields":{"a":null}}', b"[]"),
        *(b'{"a":"1"}', b'{"count":1}', b'{"ids":["1000-0"]}', b'{"fields":{"a":"%b"}}' % (b"x" * 5_000)),
        *(b'{"fields": {"a": "1", "b" :"2"}}', b'{"fields": {"a": 1}}', b'{"fields": {"a": "1"}, "id": "*"}'),
        *(b'{"fields":  {"a":"1"}}', b'{"fields": {"a": "\\u00e9", "a": "2"}}'),
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


@hypothesis_settings(max_examples=halves.some(300), deadline=None)
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


# None of them can be read, nor hides what can be.
UNREADABLE = [
    b"x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    post(ENTRIES, b"", JSON, "Transfer-Encoding: x"),
]


@pytest.mark.parametrize(
    "unreadable", UNREADABLE, ids=["no request", "a malformed head", "an unknown coding"]
)
@pytest.mark.parametrize("name", [*PLAIN, *UNUSUAL])
def test_what_cannot_be_read_behind_a_request_gets_its_own_answer(
    pair: Pair, name: str, unreadable: bytes
) -> None:
    """But behind a request that is refused, whose body it may be, or that ends its connection."""
    sent = (PLAIN | UNUSUAL)[name]
    alone, _ = pair.streams(sent + request("GET /healthz/live", None, "Connection: close"))
    (fast, full) = pair.streams(sent + unreadable)
    if alone.startswith(b"HTTP/1.1 2") and alone.count(b"HTTP/1.1 ") == 2:
        assert fast == full
        assert [int(one[:3]) for one in full.split(b"HTTP/1.1 ")[1:]][1:] == [400]
    assert b"\r\nconnection: close\r\n" in full.rpartition(b"HTTP/1.1 ")[2]


def test_answers_come_in_the_order_of_their_requests(pair: Pair) -> None:
    """Hundreds sent at once, more than one is listened to ahead."""
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


def test_a_lone_request_uses_no_time_of_its_cycle(pair: Pair) -> None:
    """It has nothing behind it that could wait for the next cycle."""
    line, cycle = pair.fast.connect(), pair.fast.app.gateway.limits.cycle
    before = cycle.number
    for _ in range(3):
        line.send(PLAIN["range"])
        assert line.answer().startswith(b"HTTP/1.1 200 ")
    assert cycle.number == before
    line.close()


def test_entries_that_are_published_together_are_told_apart(pair: Pair) -> None:
    """Each publisher learns the ID of its own entry, and a bad one among them concerns itself alone."""
    lines = [pair.fast.connect() for _ in range(64)]
    bodies = [
        b'{"fields":%b{"n":"%d"%b}}' % (b" " * (n % 3), n, b',"n":"again"' if n % 16 == 7 else b"")
        for n in range(len(lines))
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
    """The time of a request is the guard's in both."""
    head = PLAIN["entry"].partition(b"{")[0]
    fast, full = impatient.streams(head)
    assert fast == full
    assert fast.startswith(b"HTTP/1.1 408 ")


def test_a_stop_reaches_an_entry_that_goes_alone_after_all(pair: Pair) -> None:
    """An entry that was to be stored with others, a fault meanwhile, and a stop: the connection ends behind
    its answer, though the server and the gateway go on.
    """
    line, gateway = pair.fast.connect(), pair.fast.app.gateway
    line.send(PLAIN["nothing"])
    assert line.answer().startswith(b"HTTP/1.1 200 ")

    def stop() -> None:
        connection = pair.fast.connection(line)
        connection.data_received(PLAIN["entry"])
        gateway.enter(Phase.RESTARTING)
        connection.shutdown()

    pair.fast.soon(stop)
    answer = line.rest()
    gateway.enter(Phase.READY)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"restarting"' in answer
    line.close()
