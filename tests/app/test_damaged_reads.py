"""A damaged part in the way of a reader: over every door it gets what is before, then a refusal that says how
to go on, and with that it goes on.

Knows: each way to read a stream or for a group, of a real gateway. Must never know: how damages are found.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
import redis

from engine.runs import HEAD_BYTES, length_at, read_run
from tests.app.sockets import talking
from tests.app.test_cold_entries import ENTRIES, fill
from tests.server import Server, free_port

BEFORE: Final = 30
_CODE: Final = "entries_damaged"


class Gateway(NamedTuple):
    """One that cannot read entries `first` to `last` of its stream `s`."""

    server: Server
    http: httpx.Client
    redis: redis.Redis
    first: int
    last: int

    def post(self, path: str, body: object) -> Any:
        return self.http.post(f"/v1/streams/s/{path}", json=body)

    def command(self, *words: str) -> Any:
        return self.http.post("/v1/commands", json=words).json()

    def make_group(self, name: str, after: int) -> None:
        assert self.http.put(f"/v1/streams/s/groups/{name}", json={"start": f"{after}-0"}).is_success


class Found(NamedTuple):
    """The numbers of entries that came, and the words of the refusal behind them."""

    numbers: list[int]
    refusal: str


# Reads on from behind a number, or for a group that has come so far, until it is refused.
Reader = Callable[[Gateway, int], Found]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """With a group whose consumer holds entries before the damage, in it and behind."""
    data = tmp_path_factory.mktemp("damaged") / "data"
    with Server(data, "--set", "memory_bytes_soft=1") as server, httpx.Client(base_url=server.url) as http:
        fill(http)
        fill(http, ENTRIES + 1)
        deadline = time.monotonic() + 60
        while not (there := [file for file in data.glob("run-*.weir") if len(runs_in(file)) > 1]):
            assert time.monotonic() < deadline, "two runs are stored"
            time.sleep(0.1)
        first, last = edges_of(there[0])
        http.put("/v1/streams/s/groups/held", json={"start": f"{first - 4}-0"}).raise_for_status()
        for count, position in ((5, last), (2, last)):
            http.post("/v1/streams/s/groups/held/consumers/c/read", json={"count": count}).raise_for_status()
            words = ["XGROUP", "SETID", "s", "held", f"{position}-0"]
            http.post("/v1/commands", json=words).raise_for_status()
    content = bytearray(there[0].read_bytes())
    content[runs_in(there[0])[1][1] - 1] ^= 1
    there[0].write_bytes(content)
    port = free_port()
    with (
        Server(data, "--set", f"resp_listen=127.0.0.1:{port}") as server,
        httpx.Client(base_url=server.url, timeout=30) as http,
        redis.Redis(port=port, protocol=2, decode_responses=True) as client,
    ):
        yield Gateway(server, http, client, first, last)


def runs_in(file: Path) -> list[tuple[int, int]]:
    """Where runs begin and end that are whole."""
    content, found, at = file.read_bytes(), list[tuple[int, int]](), 0
    while (length := length_at(content[at : at + HEAD_BYTES])) and at + length <= len(content):
        found.append((at, at + length))
        at += length
    return found


def edges_of(file: Path) -> tuple[int, int]:
    """The numbers of the first and the last entry of the second run."""
    start, end = runs_in(file)[1]
    nodes = read_run(file.read_bytes()[start:end])
    return nodes[0].first >> 64, nodes[-1].last >> 64


# --- the doors ----------------------------------------------------------------------------------------------


def numbers_of(entries: list[Any]) -> list[int]:
    return [int(entry["fields"]["n"]) for entry in entries]


def by_pages(read: Callable[[Gateway, int], httpx.Response]) -> Reader:
    """Pages of JSON, each from behind the one before."""

    def walk(gateway: Gateway, after: int) -> Found:
        found: list[int] = []
        while (answer := read(gateway, found[-1] if found else after)).is_success:
            page = answer.json()
            page = page["streams"]["s"] if "streams" in page else page
            assert page["more"] is True
            found += numbers_of(page["entries"])
        assert (answer.status_code, answer.json()["code"]) == (500, _CODE)
        assert answer.json()["retryable"] is False
        return Found(found, answer.json()["detail"])

    return walk


def by_lines(gateway: Gateway, after: int) -> Found:
    """An export is broken off; the next one from there is refused in words."""
    found: list[int] = []
    place = {"after": f"{after}-0"}
    try:
        # What a client has unpacked of an answer that is broken off is its own affair.
        plain = {"accept-encoding": "identity"}
        with gateway.http.stream("GET", "/v1/streams/s/export", params=place, headers=plain) as answer:
            for line in answer.iter_lines() if answer.is_success else ():
                found += numbers_of([json.loads(line)])
    except httpx.RemoteProtocolError:
        place = {"after": f"{found[-1]}-0"}
    refused = gateway.http.get("/v1/streams/s/export", params=place)
    assert (refused.status_code, refused.json()["code"]) == (500, _CODE)
    return Found(found, refused.json()["detail"])


def by_columns(gateway: Gateway, after: int) -> Found:
    """Rows of columns, whose pages say where to go on."""
    found: list[int] = []
    while True:
        place = {"after": f"{found[-1] if found else after}-0"}
        answer = gateway.http.get("/v1/streams/s/columns", params=place)
        if not answer.is_success:
            return Found(found, answer.json()["detail"])
        found += answer.json()["ms"]
        assert answer.headers["weir-more"] == "true"


def by_events(path: str) -> Reader:
    """Server-sent events, up to the one that ends them."""

    def walk(gateway: Gateway, after: int) -> Found:
        found: list[int] = []
        url = path.format(after=f"{after}-0", group=f"events-{after}")
        gateway.make_group(f"events-{after}", after)
        with gateway.http.stream("GET", url, headers={"accept": "text/event-stream"}) as answer:
            assert answer.status_code == 200
            name = ""
            for line in answer.iter_lines():
                word, _, value = line.partition(": ")
                name = value if word == "event" else name
                if word == "data" and name == "entry":
                    found += numbers_of([json.loads(value)])
                elif word == "data" and name == "error":
                    refusal = json.loads(value)
                    assert refusal["code"] == _CODE
                    return Found(found, refusal["detail"])
        raise AssertionError("it ended without a word")

    return walk


def by_frames(gateway: Gateway, after: int, op: str, **members: Any) -> Found:
    """A subscription ends, with the reason; others of the socket go on."""
    with talking(gateway.server) as client:
        client.send(op, ref=1, sub="x", **members)
        *frames, error = client.until("error")
        assert error["problem"]["code"] == _CODE
        assert client.next() == {"op": "revoked", "sub": "x", "reason": _CODE}
        assert client.ask("command", command=["PING"])["result"] == "PONG"
        found = [entry for frame in frames if frame["op"] == "entries" for entry in frame["entries"]]
        return Found(numbers_of(found), error["problem"]["detail"])


def by_subscription(gateway: Gateway, after: int) -> Found:
    return by_frames(gateway, after, "subscribe", streams={"s": f"{after}-0"})


def by_consume(gateway: Gateway, after: int) -> Found:
    gateway.make_group(f"frames-{after}", after)
    return by_frames(gateway, after, "consume", stream="s", group=f"frames-{after}", consumer="c")


def by_words(ask: Callable[[Gateway, tuple[str, ...]], Any], *words: str) -> Reader:
    """Commands of Redis: XREAD from the last ID on, XREADGROUP for a group."""

    def walk(gateway: Gateway, after: int) -> Found:
        found: list[int] = []
        group = f"{'-'.join(words[:5])}-{ask.__name__}-{after}"
        gateway.make_group(group, after)
        while True:
            last = f"{found[-1] if found else after}-0"
            reply = ask(gateway, tuple(word.format(last=last, group=group) for word in words))
            if isinstance(reply, str):
                return Found(found, reply)
            ((_, rows),) = reply
            found += [int(fields[1]) for _, fields in rows]

    return walk


def over_http(gateway: Gateway, words: tuple[str, ...]) -> Any:
    answer = gateway.command(*words)
    return answer.get("error") or answer["result"]


def over_resp(gateway: Gateway, words: tuple[str, ...]) -> Any:
    gateway.redis.response_callbacks.clear()
    try:
        return gateway.redis.execute_command(*words)  # type: ignore[no-untyped-call]
    except redis.ResponseError as error:
        return str(error)


def page(**more: int | str) -> Reader:
    return by_pages(
        lambda gateway, after: gateway.http.get(
            "/v1/streams/s/entries", params={"after": f"{after}-0", "count": 1_000, **more}
        )
    )


def group_page(**more: object) -> Reader:
    """For a group: each read goes on by itself."""

    def walk(gateway: Gateway, after: int) -> Found:
        group = f"pages-{'-'.join(more)}-{after}"
        gateway.make_group(group, after)
        read = f"groups/{group}/consumers/c/read"
        return by_pages(lambda gateway, _: gateway.post(read, {"count": 1_000, **more}))(gateway, after)

    return walk


TAILS: Final[dict[str, Reader]] = {
    "page": page(),
    "page with an end": page(end="+"),
    "long-poll": page(wait=5_000),
    "read of several": by_pages(
        lambda gateway, after: gateway.http.post(
            "/v1/read", json={"streams": {"s": f"{after}-0"}, "count": 1_000}
        )
    ),
    "export": by_lines,
    "columns": by_columns,
    "tail": by_events("/v1/streams/s/tail?after={after}"),
    "tail of several": by_events("/v1/tail?stream=s&after={after}"),
    "subscribe": by_subscription,
    "XREAD over HTTP": by_words(over_http, "XREAD", "COUNT", "1000", "STREAMS", "s", "{last}"),
    "XREAD": by_words(over_resp, "XREAD", "COUNT", "1000", "STREAMS", "s", "{last}"),
    "XREAD BLOCK": by_words(over_resp, "XREAD", "BLOCK", "5000", "STREAMS", "s", "{last}"),
}
_GROUP: Final = ("XREADGROUP", "GROUP", "{group}", "c")
GROUPS: Final[dict[str, Reader]] = {
    "read": group_page(),
    "read that waits": group_page(wait=5_000),
    "read that claims": group_page(claim_min_idle_ms=60_000),
    "events": by_events("/v1/streams/s/groups/{group}/consumers/c/stream"),
    "consume": by_consume,
    "XREADGROUP over HTTP": by_words(over_http, *_GROUP, "COUNT", "1000", "STREAMS", "s", ">"),
    "XREADGROUP": by_words(over_resp, *_GROUP, "COUNT", "1000", "STREAMS", "s", ">"),
    "XREADGROUP BLOCK": by_words(over_resp, *_GROUP, "BLOCK", "5000", "STREAMS", "s", ">"),
}


# --- what each of them does ---------------------------------------------------------------------------------


@pytest.mark.parametrize("door", [*TAILS, *GROUPS])
def test_a_reader_gets_what_is_before_the_damage_then_the_reason(gateway: Gateway, door: str) -> None:
    """And where it begins there, the reason alone."""
    read = TAILS.get(door) or GROUPS[door]
    found = read(gateway, gateway.first - 1 - BEFORE)
    assert found.numbers == list(range(gateway.first - BEFORE, gateway.first))
    assert f"cannot be read from the disk, {gateway.first}-0 to {gateway.last}-0" in found.refusal
    assert read(gateway, gateway.first - 1) == Found([], found.refusal)


@pytest.mark.parametrize("door", TAILS)
def test_a_reader_goes_on_behind_as_the_refusal_says(gateway: Gateway, door: str) -> None:
    """`A read after ID goes on behind it`: by each door the same ID."""
    refusal = TAILS[door](gateway, gateway.first - 1).refusal
    entry_id = refusal.partition("A read after ")[2].split()[0]
    answer = gateway.http.get("/v1/streams/s/entries", params={"after": entry_id, "count": 2})
    assert numbers_of(answer.json()["entries"]) == [gateway.last + 1, gateway.last + 2]


def test_a_group_goes_on_behind_as_the_refusal_says(gateway: Gateway) -> None:
    """By its position; what it has read before stays pending."""
    gateway.make_group("going-on", gateway.first - 3)
    read = {"count": 10}
    path = "groups/going-on/consumers/c/read"
    assert numbers_of(gateway.post(path, read).json()["entries"]) == [gateway.first - 2, gateway.first - 1]
    refusal = gateway.post(path, read).json()["detail"]
    entry_id = refusal.partition("last_delivered_id ")[2].split()[0]
    assert gateway.command("XGROUP", "SETID", "s", "going-on", entry_id) == {"result": "OK"}
    assert numbers_of(gateway.post(path, read).json()["entries"])[0] == gateway.last + 1
    assert gateway.http.get("/v1/streams/s/groups/going-on").json()["pending"] == 12


def test_a_browser_that_comes_back_to_the_damage_is_refused_for_good(gateway: Gateway) -> None:
    """An EventSource gives up at any status but 200, and does not come again and again."""
    headers = {"accept": "text/event-stream", "last-event-id": f"{gateway.first - 1}-0"}
    refused = gateway.http.get("/v1/streams/s/tail", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (500, _CODE)


def test_a_whole_range_over_the_damage_is_refused_and_says_what_to_read(gateway: Gateway) -> None:
    """Redis's replies cannot say that something is missing; nor can pages downwards."""
    words = ("XRANGE", "s", f"{gateway.first - 2}-0", "+", "COUNT", "1000")
    refusal = over_resp(gateway, words)
    assert refusal == over_http(gateway, words)
    assert refusal.startswith("MISCONF a part of this stream cannot be read")
    end = refusal.partition("a range that ends at ")[2].split()[0]
    assert [row[0] for row in over_resp(gateway, ("XRANGE", "s", f"{gateway.first - 2}-0", end))] == [
        f"{gateway.first - 2}-0",
        f"{gateway.first - 1}-0",
    ]
    params: dict[str, str | int] = {"reverse": "true", "end": f"{gateway.last + 2}-0", "count": 10}
    assert gateway.http.get("/v1/streams/s/entries", params=params).json()["code"] == _CODE


@pytest.mark.parametrize("ask", [over_http, over_resp])
def test_what_a_consumer_holds_before_the_damage_is_its_history(
    gateway: Gateway, ask: Callable[[Gateway, tuple[str, ...]], Any]
) -> None:
    """Then it is refused, and goes on behind; XACK drops what it holds there, as the refusal says."""
    read = ("XREADGROUP", "GROUP", "held", "c", "STREAMS", "s")

    def held(after: int) -> list[int]:
        ((_, rows),) = ask(gateway, (*read, f"{after}-0"))
        return [int(row[0].removesuffix("-0")) for row in rows]

    first, last = gateway.first, gateway.last
    assert held(0) == [first - 3, first - 2, first - 1]
    assert "XACK drops what is pending of them" in ask(gateway, (*read, f"{first - 1}-0"))
    assert held(last) == [last + 1, last + 2]


def test_what_a_consumer_holds_in_the_damage_goes_by_xack(gateway: Gateway) -> None:
    """The last test of this gateway: then its history is whole."""
    ids = [f"{gateway.first}-0", f"{gateway.first + 1}-0"]
    assert gateway.post("groups/held/ack", {"ids": ids}).json()["acknowledged"] == 2
    with talking(gateway.server) as client:
        client.send("consume", ref=1, sub="x", stream="s", group="held", consumer="c", credit=5)
        assert numbers_of(client.entries(5)) == [
            *range(gateway.first - 3, gateway.first), *range(gateway.last + 1, gateway.last + 3)
        ]  # fmt: skip
