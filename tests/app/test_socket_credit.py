"""Credit over a real socket: with grants, entries and trims in any order, nothing is lost in silence."""

from collections.abc import Iterator
from itertools import count
from typing import Final

import httpx
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tests import halves
from tests.app.sockets import SocketClient, talking
from tests.server import Server

_serials: Final = count()
ACTS: Final = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.just("batch"), st.integers(2, 4)),
    st.tuples(st.just("credit"), st.integers(1, 5)),
    st.tuples(st.just("trim"), st.integers(0, 3)),
)
_ENOUGH: Final = 1_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("credit") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as http:
        yield http


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[SocketClient]:
    with talking(server) as client:
        yield client


class Account:
    """A stream of entries 5-1, 5-2, 5-3 … by number, and what a follower of it receives."""

    def __init__(self, http: httpx.Client, client: SocketClient) -> None:
        self._http = http
        self._client = client
        self.name = f"s{next(_serials)}"
        self.published = 0

    def publish(self, entries: int) -> None:
        """In one turn."""
        first = self.published + 1
        self.published += entries
        rows = [{"id": f"5-{at}", "fields": {"n": at}} for at in range(first, self.published + 1)]
        answer = self._http.post(f"/v1/streams/{self.name}/entries", json={"entries": rows})
        assert answer.status_code == 201

    def act(self, word: str, number: int) -> None:
        if word == "publish":
            for _ in range(number):
                self.publish(1)
        elif word == "batch":
            self.publish(number)
        elif word == "credit":
            self._client.send("credit", sub=self.name, n=number)
        else:
            self._http.post(f"/v1/streams/{self.name}/trim", json={"maxlen": number, "approx": False})

    def follow(self) -> None:
        """Read up to the last entry: each is the next one, or what is missing stands in a gap."""
        at = 0
        while at < self.published:
            frame = self._client.next()
            assert frame["op"] in ("entries", "gap", "paused", "caught_up"), frame
            assert frame["sub"] == self.name
            if frame["op"] == "gap" and frame["requested"] != "0-0":
                assert frame["requested"] == f"5-{at}"
                at = int(frame["first_available"].partition("-")[2]) - 1
            for entry in frame.get("entries", ()):
                assert entry["id"] == f"5-{at + 1}" or at == 0
                at = int(entry["id"].partition("-")[2])


@settings(max_examples=halves.some(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.integers(0, 3), credit=st.integers(0, 3), acts=st.lists(ACTS, max_size=12))
def test_nothing_is_lost_in_silence(
    http: httpx.Client, client: SocketClient, before: int, credit: int, acts: list[tuple[str, int]]
) -> None:
    """Entries come one at a time and together, while there is credit and while there is none."""
    account = Account(http, client)
    if before:
        account.publish(before)
    client.send("subscribe", ref=1, sub=account.name, streams={account.name: "0"}, credit=credit)
    assert client.next()["op"] == "ok"
    for word, number in acts:
        account.act(word, number)
    client.send("credit", sub=account.name, n=_ENOUGH)
    account.publish(1)
    account.follow()
    client.send("unsubscribe", ref=2, sub=account.name)
    client.until("ok")


def test_what_comes_one_at_a_time_without_credit_waits_for_some(
    http: httpx.Client, client: SocketClient
) -> None:
    """Ten entries, credit for two: the other eight come when there is more, and what is new behind them."""
    account = Account(http, client)
    client.send("subscribe", sub=account.name, streams={account.name: "0"}, credit=2)
    assert [client.next()["op"] for _ in range(2)] == ["ok", "caught_up"]
    for _ in range(10):
        account.publish(1)
    assert [entry["id"] for entry in client.entries(2)] == ["5-1", "5-2"]
    assert client.next() == {"op": "paused", "sub": account.name, "reason": "credit"}
    client.send("credit", sub=account.name, n=100)
    found: list[str] = []
    is_behind = True
    # The last ones may be new for a reader that has caught up with the others.
    while is_behind or len(found) < 8:
        frame = client.next()
        is_behind = is_behind and frame["op"] != "caught_up"
        found += [entry["id"] for entry in frame.get("entries", ())]
    assert found == [f"5-{at}" for at in range(3, 11)]
    account.publish(1)
    assert [entry["id"] for entry in client.entries(1)] == ["5-11"]
    client.send("unsubscribe", sub=account.name)
    client.until("ok")
