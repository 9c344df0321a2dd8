"""Our server answers as any ASGI server would, byte by byte, in order, and each request is served once."""

import json
from collections.abc import Iterator

import pytest

from app.operating import Phase
from tests.app.http_requests import (
    ASKING,
    ENTRIES,
    ENTRY,
    GROUP,
    JSON,
    LIMITS,
    PLAIN,
    UNUSUAL,
    post,
    request,
)
from tests.app.pair import Pair
from tests.caching import is_asked_about


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(LIMITS) as pair:
        yield pair


@pytest.fixture(scope="module", autouse=True)
def group(pair: Pair) -> None:
    """A group that starts at the beginning; and a stream that takes a thread to write."""
    big = b'{"fields":{"a":"%b"}}' % (b"x" * 8_000)
    lines = (post(ENTRIES, ENTRY), post("/v1/streams/s/groups", b'{"name":"g","start":"0"}'))
    for line in (*lines, *[post("/v1/streams/big/entries", big)] * 40):
        fast, full = pair.both(line)
        assert (fast, full.startswith(b"HTTP/1.1 201 ")) == (full, True)


def assert_asked_about(answer: bytes) -> None:
    """Nothing is shown again unasked, also of what is no request."""
    head = answer.partition(b"\r\n\r\n")[0].decode("latin-1")
    lines = [line.partition(": ") for line in head.split("\r\n")[1:]]
    assert head == "HTTP/1.1 100 Continue" or is_asked_about({key.lower(): value for key, _, value in lines})


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_request_is_answered_by_both_alike(pair: Pair, name: str) -> None:
    """Answers and refusals: the first one, and those with a head that was seen before."""
    for _ in range(3):
        fast, full = pair.both(PLAIN[name])
        assert fast == full
        assert_asked_about(full)


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_answered_by_both_alike(pair: Pair, name: str) -> None:
    """It is refused or served."""
    fast, full = pair.both(UNUSUAL[name], head_alone=name == "HEAD")
    assert fast == full
    assert full.startswith(b"HTTP/1.1 ")
    assert_asked_about(full)
    pair.hang_up()


@pytest.mark.parametrize("name", ASKING)
def test_what_asks_for_more_is_asked_each_time(pair: Pair, name: str) -> None:
    """A head that was seen before says it again."""
    for _ in range(3):
        fast, full = pair.both(ASKING[name])
        assert fast == full
        assert full.startswith(b"HTTP/1.1 ")


def test_both_have_stored_the_same(pair: Pair) -> None:
    """After any requests before it: nothing twice, nothing lost."""
    for path in (f"{ENTRIES}?count=100", "/v1/streams/s", f"{GROUP}/pending"):
        fast, full = pair.both(request(f"GET {path}"))
        assert fast == full


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


def test_a_lone_request_uses_no_time_of_its_cycle(pair: Pair) -> None:
    """It has nothing behind it that could wait for the next cycle."""
    line, cycle = pair.fast.connect(), pair.fast.app.gateway.limits.cycle
    before = cycle.number
    for _ in range(3):
        line.send(PLAIN["range"])
        assert line.answer().startswith(b"HTTP/1.1 200 ")
    assert cycle.number == before
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


def test_a_stop_reaches_an_entry_that_goes_alone_after_all(pair: Pair) -> None:
    """An entry that was to be stored with others, a fault meanwhile, and a stop: the connection ends behind
    its answer, though the server and the gateway go on.
    """
    line, life = pair.fast.connect(), pair.fast.app.life
    line.send(PLAIN["nothing"])
    assert line.answer().startswith(b"HTTP/1.1 200 ")

    def stop() -> None:
        connection = pair.fast.connection(line)
        connection.data_received(PLAIN["entry"])
        life.enter(Phase.RESTARTING)
        connection.shutdown()

    pair.fast.soon(stop)
    answer = line.rest()
    life.enter(Phase.READY)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"restarting"' in answer
    line.close()
