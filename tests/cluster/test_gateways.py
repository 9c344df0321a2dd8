"""Two gateways over one server: what one of them does holds at the other."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.cluster.clusters import BACKENDS, opened_backend
from tests.fronts.processes import ADMIN, ROOT, make_token
from tests.server import Server, call
from tests.waiting import until

ENTRIES = "/v1/streams/jobs/entries"
GROUP = "/v1/streams/jobs/groups/g"

Pair = tuple[Server, Server]


@pytest.fixture(scope="module", params=BACKENDS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two gateways over a server of each kind."""
    folder = tmp_path_factory.mktemp("gateways")
    with opened_backend(folder, request.param) as backend:
        # The cluster of the tests has no replicas.
        settings = (f"root_token={ROOT}", "log_requests=none", "backend_durability=memory")
        words = ["--backend", backend.url, *(word for one in settings for word in ("--set", one))]
        with Server(folder / "one", *words) as one, Server(folder / "other", *words) as other:
            yield one, other


@pytest.fixture
def pair(running: Pair) -> Pair:
    """The two, with an empty stream that has a group."""
    call(running[0], "DELETE", "/v1/streams/jobs", headers=ADMIN)
    assert call(running[0], "PUT", GROUP, {"start": "0", "mkstream": True}, ADMIN)[0] == 201
    return running


def status_of(server: Server, headers: dict[str, str]) -> int:
    return call(server, "GET", "/v1/whoami", headers=headers)[0]


def socket_to(server: Server, headers: dict[str, str] = ADMIN, query: str = "") -> ClientConnection:
    return connect(f"ws://127.0.0.1:{server.port}/v1/ws{query}", additional_headers=headers, open_timeout=30)


def next_frame(socket: ClientConnection, op: str) -> dict[str, Any]:
    """The next one of this kind."""
    while True:
        frame: dict[str, Any] = json.loads(socket.recv(timeout=10))
        if frame["op"] == op:
            return frame


def test_a_token_is_good_at_both_and_what_it_opened_ends_where_it_is(pair: Pair) -> None:
    """Made at one, used at the other, revoked at the first, before the next look at the backend."""
    one, other = pair
    token, headers = make_token(one)
    until(lambda: status_of(other, headers) == 200)
    with socket_to(other, headers) as socket:
        next_frame(socket, "hello")
        assert call(one, "DELETE", f"/v1/admin/tokens/{token}", headers=ADMIN)[0] == 204
        assert status_of(one, headers) == 401
        with pytest.raises(ConnectionClosed):
            next_frame(socket, "none that there is")
    assert status_of(other, headers) == 401


def test_a_revocation_is_known_at_both(pair: Pair) -> None:
    """Also of what neither has seen."""
    one, other = pair
    assert call(other, "POST", "/v1/admin/revocations", {"jti": "j1"}, ADMIN)[0] == 201
    until(lambda: "j1" in str(call(one, "GET", "/v1/admin/revocations", headers=ADMIN)[1]))


def test_a_ticket_is_redeemed_once_at_either(pair: Pair) -> None:
    """And not for pages of another origin."""
    one, other = pair
    for issuer, redeemer in ((one, other), (other, one), (one, one)):
        ticket = call(issuer, "POST", "/v1/tickets", headers=ADMIN)[1]["ticket"]
        with socket_to(redeemer, {}, f"?ticket={ticket}") as socket:
            next_frame(socket, "hello")
        for server in (one, other):
            with pytest.raises(InvalidStatus) as refused:
                socket_to(server, {}, f"?ticket={ticket}")
            assert refused.value.response.status_code == 401


def test_a_consumer_has_one_reader_at_both(pair: Pair) -> None:
    """The later one replaces the earlier one; each has its history, and no entry is lost."""
    consume = {"op": "consume", "sub": "c", "stream": "jobs", "group": "g", "consumer": "w"}
    with contextlib.ExitStack() as opened:
        previous = None
        for n in range(6):
            socket = opened.enter_context(socket_to(pair[n % 2]))
            socket.send(json.dumps(consume))
            if previous is not None:
                assert next_frame(previous, "revoked")["reason"] == "replaced"
            call(pair[(n + 1) % 2], "POST", ENTRIES, {"fields": {"n": str(n)}}, ADMIN)
            given: list[str] = []
            while str(n) not in given:
                given += [entry["fields"]["n"] for entry in next_frame(socket, "entries")["entries"]]
            assert given == [str(one) for one in range(n + 1)]
            previous = socket


def test_of_two_readers_at_once_one_remains(pair: Pair) -> None:
    """Whichever comes later, at both gateways the same."""
    consume = {"op": "consume", "sub": "c", "stream": "jobs", "group": "g", "consumer": "w"}
    for n in range(10):
        with socket_to(pair[0]) as one, socket_to(pair[1]) as other:
            one.send(json.dumps(consume))
            other.send(json.dumps(consume))
            call(pair[0], "POST", ENTRIES, {"fields": {"n": str(n)}}, ADMIN)
            remaining = other if _is_revoked_first(one, other) else one
            # What comes for the consumer from now on comes to it.
            call(pair[1], "POST", ENTRIES, {"fields": {"n": f"{n} later"}}, ADMIN)
            given: list[str] = []
            while f"{n} later" not in given:
                frame = json.loads(remaining.recv(timeout=10))
                assert frame["op"] != "revoked"
                given += [entry["fields"]["n"] for entry in frame.get("entries", [])]


def _is_revoked_first(one: ClientConnection, other: ClientConnection) -> bool:
    """Wait until one of two is revoked; whether it is the first."""
    for _ in range(1_000):
        for socket in (one, other):
            with contextlib.suppress(TimeoutError):
                if json.loads(socket.recv(timeout=0.01))["op"] == "revoked":
                    return socket is one
    raise AssertionError("both remain")


def test_each_entry_of_a_group_goes_to_one_of_both(pair: Pair) -> None:
    """Workers at both gateways, publishers at both."""
    count = 2_000

    def publish(server: Server) -> list[str]:
        batch = [{"fields": {"n": str(n)}} for n in range(100)]
        ids: list[str] = []
        for _ in range(count // 200):
            ids += call(server, "POST", ENTRIES, {"entries": batch}, ADMIN)[1]["ids"]
        return ids

    def work(server: Server, name: str) -> list[str]:
        got: list[str] = []
        while True:
            path = f"{GROUP}/consumers/{name}/read"
            entries = call(server, "POST", path, {"count": 50, "wait": 2_000}, ADMIN)[1]["entries"]
            if not entries:
                return got
            ids = [entry["id"] for entry in entries]
            assert call(server, "POST", f"{GROUP}/ack", {"ids": ids}, ADMIN)[0] == 200
            got += ids

    with ThreadPoolExecutor() as pool:
        workers = [pool.submit(work, server, f"{n}-{server.port}") for server in pair for n in (1, 2)]
        published = [one for found in pool.map(publish, pair) for one in found]
        read = Counter(one for worker in workers for one in worker.result())
    assert len(published) == count
    assert read == Counter(published)
