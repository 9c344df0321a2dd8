"""Publishing, reading and managing through the Python client, beside a real gateway."""

import asyncio
import enum
import multiprocessing
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path

import httpx
import pytest

import weir
from tests.cli.link import BAD_GATEWAY, BUSY, LOSE, PASS, link
from tests.server import Server, free_port
from weir import AsyncClient, Client
from weir.paths import stream_path


def test_what_is_published_is_read_as_it_was(url: str, stream: str) -> None:
    fields: dict[str, weir.Value] = {"text": "ü\u2028", "number": 19.5, "flag": True, "empty": ""}
    with Client(url) as client:
        published = client.publish(stream, fields)
        entry = client.get_entry(stream, published.id)
    assert entry is not None
    assert entry.fields == {"text": "ü\u2028", "number": "19.5", "flag": "true", "empty": ""}
    assert (entry.id, entry.stream, entry.deleted) == (published.id, stream, False)


def test_a_program_that_starts_before_its_gateway_waits_for_it(tmp_path: Path) -> None:
    later = Server(tmp_path / "data")

    async def wait() -> None:
        async with AsyncClient(later.url) as client:
            await client.wait_until_ready()

    with pytest.raises(weir.NoAnswerError), Client(later.url, retry_s=0.1) as client:
        client.wait_until_ready()
    starting = threading.Timer(0.3, later.start)
    starting.start()
    try:
        with Client(later.url) as client:
            client.wait_until_ready()
        asyncio.run(wait())
    finally:
        starting.join()
        later.stop()


def test_bytes_and_repeated_names_survive(url: str, stream: str) -> None:
    with Client(url) as client:
        client.publish(stream, [("a", b"\xff\x00"), ("a", "ü"), ("n", 1)])
        client.publish(stream, [("a", "1"), ("a", "2")])
        binary, pairs = client.read(stream).entries
    assert [(name, value.encode("utf-8", "surrogateescape")) for name, value in binary.pairs] == [
        ("a", b"\xff\x00"),
        ("a", "ü".encode()),
        ("n", b"1"),
    ]
    assert binary.raw["n"] == b"1"
    assert pairs.pairs == (("a", "1"), ("a", "2"))
    assert pairs.fields == {"a": "2"}


class Priority(enum.IntEnum):
    HIGH = 1


def test_a_value_is_stored_the_same_beside_bytes(url: str, stream: str) -> None:
    fields: dict[str, weir.Value] = {
        "text": "ü",
        "flag": True,
        "whole": 7,
        "real": 1e22,
        "enum": Priority.HIGH,
    }
    with Client(url) as client:
        client.publish(stream, fields)
        client.publish(stream, {**fields, "bytes": b"\xff"})
        alone, beside = client.read(stream).entries
    assert beside.pairs == (*alone.pairs, ("bytes", "\udcff"))


@pytest.mark.parametrize("value", [None, [1], {"n": 1}, Decimal(1), bytearray(b"1")])
def test_what_is_no_value_is_refused_beside_bytes_too(stream: str, value: object) -> None:
    """Python's own text of it would be stored otherwise."""
    with Client(f"http://127.0.0.1:{free_port()}", retry_s=0) as client, pytest.raises(TypeError):
        client.publish(stream, {"n": value, "bytes": b"\xff"})  # type: ignore[dict-item]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_refused(stream: str, value: float) -> None:
    with Client(f"http://127.0.0.1:{free_port()}", retry_s=0) as client:
        with pytest.raises(weir.InvalidValueError, match="JSON"):
            client.publish(stream, {"n": value})
        with pytest.raises(weir.InvalidValueError, match="JSON"):
            client.publish(stream, {"n": value, "bytes": b"\xff"})


def test_what_was_read_can_be_published_again(url: str, stream: str) -> None:
    with Client(url) as client:
        client.publish(stream, {"a": b"\xff", "b": "text"})
        first = client.read(stream).entries[0]
        client.publish(stream, first.pairs)
        assert client.read(stream).entries[1].raw == {"a": b"\xff", "b": b"text"}


def test_a_batch_is_stored_whole_with_neighbouring_ids(url: str, stream: str) -> None:
    with Client(url) as client:
        client.publish(stream, {"n": 0}, id="5-0")
        client.publish(stream, {"n": 1}, id="5-1")
        client.publish(stream, {"n": 2}, id="5-2")
        assert [entry.id for entry in client.entries(stream, after="5-0")] == ["5-1", "5-2"]
        assert [entry.id for entry in client.read(stream, start="(5-0", end="5-1").entries] == ["5-1"]
        batch = client.publish_batch(stream, [{"n": 3}, {"n": 4}], if_last_id="5-2")
        assert batch.count == len(batch.ids) == 2
        with pytest.raises(weir.ConflictError) as refused:
            client.publish(stream, {"n": 5}, if_last_id="5-2")
        assert refused.value.code == "last_id_mismatch"


def test_a_batch_for_several_streams_is_stored_whole(url: str, stream: str) -> None:
    with Client(url) as client:
        stored = client.publish_many({f"{stream}1": [{"n": 1}], f"{stream}2": [{"n": 1}, {"n": 2}]})
        assert {name: one.count for name, one in stored.items()} == {f"{stream}1": 1, f"{stream}2": 2}


def test_all_entries_come_page_by_page(url: str, stream: str) -> None:
    with Client(url) as client:
        client.publish_batch(stream, [{"n": number} for number in range(25)])
        found = [entry.fields["n"] for entry in client.entries(stream, page_count=10)]
        newest = client.read(stream, reverse=True, count=1)
    assert found == [str(number) for number in range(25)]
    assert newest.entries[0].fields == {"n": "24"}


def test_a_read_waits_for_the_first_entry(url: str, stream: str) -> None:
    with Client(url) as client, Client(url) as publisher:
        cursor = client.read_after(stream, "$").next
        assert cursor is not None
        later = threading.Timer(0.1, publisher.publish, (stream, {"n": 1}))
        later.start()
        page = client.read_after(stream, cursor, wait_ms=20_000)
        later.join()
    assert [entry.fields for entry in page.entries] == [{"n": "1"}]


def test_a_consumer_waits_for_the_first_entry(url: str, stream: str) -> None:
    with Client(url) as client, Client(url) as publisher:
        group = client.group(stream, "g")
        group.ensure(start="0")
        later = threading.Timer(0.3, publisher.publish, (stream, {"n": 1}))
        later.start()
        page = group.read("c", wait_ms=20_000)
        later.join()
    assert [entry.fields for entry in page.entries] == [{"n": "1"}]


def test_a_call_waits_longer_for_its_answer_by_what_it_asks_for(url: str, stream: str) -> None:
    """With a timeout of two seconds a wait of three still ends with the gateway's answer."""
    with Client(url, timeout_s=2, retry_s=0) as client:
        assert client.read_after(stream, "0", wait_ms=3_000).entries == ()


def test_a_publish_whose_answer_is_lost_is_stored_once(server: Server, stream: str) -> None:
    with link(server.port, LOSE, BUSY, PASS) as lossy, Client(lossy.url) as client:
        published = client.publish(stream, {"n": 1})
        assert published.duplicate, "the second request found what the first had stored"
        assert len(set(lossy.seen)) == 1, "each request carried the same key"
        assert client.get_stream(stream)["length"] == 1  # type: ignore[index]


def test_a_change_that_may_have_happened_is_not_repeated(server: Server, stream: str) -> None:
    with link(server.port, LOSE) as lossy, Client(lossy.url) as client:
        with pytest.raises(weir.NoAnswerError) as lost:
            client.command("XADD", stream, "*", "n", 1)
        assert lost.value.outcome_unknown
        assert client.command("XLEN", stream) == 1


def test_what_a_proxy_says_for_a_gateway_that_is_away_is_no_answer(server: Server, stream: str) -> None:
    """A change that is safe to repeat is repeated. Of any other the outcome is unknown."""
    with link(server.port, BAD_GATEWAY, BAD_GATEWAY) as proxy, Client(proxy.url) as client:
        client.publish(stream, {"n": 1})
        proxy.plan.append(BAD_GATEWAY)
        with pytest.raises(weir.NoAnswerError, match="502") as lost:
            client.command("XADD", stream, "*", "n", 1)
        assert lost.value.outcome_unknown


def test_a_refused_command_says_what_redis_would(url: str) -> None:
    with Client(url) as client, pytest.raises(weir.InvalidRequestError, match="ERR unknown command"):
        client.command("NOPE")


def _publish_and_read_back(client: Client, stream: str) -> None:
    for number in range(50):
        stored = client.publish(stream, {"n": number})
        entry = client.get_entry(stream, stored.id)
        assert entry is not None
        assert entry.fields == {"n": str(number)}


def test_a_forked_process_has_connections_of_its_own(url: str, stream: str) -> None:
    """Parent and child would read each other's answers on a connection that both have."""
    fork = multiprocessing.get_context("fork")
    with Client(url, retry_s=0) as client:
        client.publish(stream, {"n": 0})
        names = [f"{stream}-{number}" for number in range(3)]
        children = [fork.Process(target=_publish_and_read_back, args=(client, name)) for name in names]
        for child in children:
            child.start()
        _publish_and_read_back(client, f"{stream}-parent")
        for child in children:
            child.join(30)
    assert [child.exitcode for child in children] == [0, 0, 0]


def test_a_gateway_that_is_not_there_is_no_unknown_outcome(stream: str) -> None:
    with Client(f"http://127.0.0.1:{free_port()}", retry_s=0.1) as client:
        with pytest.raises(weir.NoAnswerError) as refused:
            client.publish(stream, {"n": 1})
        assert not refused.value.outcome_unknown


def test_without_time_for_retries_a_call_is_sent_once() -> None:
    """The gateway takes the third connection: a call that is repeated for ever gets there."""
    came: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        came.append(request)
        if len(came) < 3:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json={"result": "PONG"})

    transport = httpx.MockTransport(answer)
    with Client("http://gateway", retry_s=0, transport=transport) as client:
        with pytest.raises(weir.NoAnswerError):
            client.command("PING")
        assert len(came) == 1
    with Client("http://gateway", retry_s=None, transport=transport) as client:
        assert client.command("PING") == "PONG"
        assert len(came) == 3


def test_calls_outlast_a_restart(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server, Client(server.url) as client:
        client.publish("s", {"n": 1})
        server.kill()
        restart = threading.Timer(0.3, server.launch)
        restart.start()
        client.publish("s", {"n": 2})
        restart.join()
        assert [entry.fields["n"] for entry in client.entries("s")] == ["1", "2"]


def test_refusals_are_typed_by_what_went_wrong(url: str, stream: str) -> None:
    with Client(url) as client:
        assert client.get_stream(stream) is None
        assert client.get_entry(stream, "1-0") is None
        with pytest.raises(weir.NotFoundError) as missing:
            client.delete_stream(stream)
        assert (missing.value.code, missing.value.status, missing.value.retryable) == (
            "no_stream",
            404,
            False,
        )
        assert missing.value.request_id
        with pytest.raises(weir.InvalidRequestError):
            client.read(stream, start="no ID")
        for name in ("", ".", "..", "a//b", "/a", "a/..", "a/", "\ud800"):
            with pytest.raises(ValueError, match="name"):
                client.publish(name, {"n": 1})


@pytest.mark.parametrize("half", ["\ud800", "\udc80 \ud800", "\udcff\ud83d"])
def test_a_value_that_cannot_be_sent_is_refused_before_it_is_sent(stream: str, half: str) -> None:
    """Half a surrogate pair has no UTF-8, except where it stands for a byte (surrogateescape)."""
    with Client(f"http://127.0.0.1:{free_port()}", retry_s=0) as client:
        group = client.group(stream, "g")
        for call in (
            lambda: client.publish(stream, {"n": half}),
            lambda: client.publish(stream, {half: b"bytes"}),
            lambda: client.publish_batch(stream, [{"n": 1}, {"n": half}]),
            lambda: client.publish_many({stream: [{half: 1}]}),
            lambda: client.publish(stream, {"n": 1}, key=half),
            lambda: client.publish(stream, {"n": 1}, if_last_id=half),
            lambda: client.command("XADD", stream, "*", "n", half),
            lambda: list(client.list_streams(prefix=half)),
            lambda: next(client.tail(stream, half)),
            lambda: next(client.tail(stream, after=half)),
            lambda: group.dead_letter("5-1", reason=half),
            lambda: list(group.pending(consumer=half)),
        ):
            with pytest.raises(weir.InvalidValueError) as refused:
                call()
            assert isinstance(refused.value, weir.WeirError)
            assert isinstance(refused.value, ValueError)
            assert str(refused.value).isprintable()


def test_what_is_no_entry_key_or_tail_is_refused_before_it_is_sent(stream: str) -> None:
    with Client(f"http://127.0.0.1:{free_port()}", retry_s=None) as client:
        with pytest.raises(weir.InvalidValueError, match="at least one field"):
            client.publish(stream, {})
        with pytest.raises(weir.InvalidValueError, match="at least one field"):
            client.publish(stream, [])
        for key in ("", "ü", "a\nb", "\0"):
            with pytest.raises(weir.InvalidValueError, match="idempotency-key"):
                client.publish(stream, {"n": 1}, key=key)
        with pytest.raises(weir.InvalidValueError, match="at least one stream"):
            next(client.tail())
    for url in ("localhost:8080", "http://127.0.0.1/v1", "http://user@127.0.0.1"):
        with pytest.raises(weir.InvalidValueError, match="URL"):
            Client(url)
    with pytest.raises(weir.InvalidValueError, match="authorization") as secret:
        Client("http://127.0.0.1:9", token="secret\n").get_stream(stream)
    assert "secret" not in str(secret.value)


def test_a_url_with_a_secret_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match="token") as refused:
        Client("http://user:secret@127.0.0.1")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/behind/a/proxy/v1"])
def test_a_url_with_the_version_is_refused_at_once(path: str) -> None:
    """The client adds it to the URL of the gateway."""
    with pytest.raises(ValueError, match="ends before /v1"):
        Client(f"http://127.0.0.1:1{path}")


def test_streams_and_groups_are_managed(url: str, stream: str) -> None:
    with Client(url) as client:
        client.ensure_stream(stream, retention={"max_len": 10})
        assert client.update_stream(stream, retention={"max_len": 20})["retention"]["max_len"] == 20
        ids = client.publish_batch(stream, [{"n": 1}, {"n": 2}, {"n": 3}]).ids
        assert [one["name"] for one in client.list_streams(prefix=stream)] == [stream]
        assert client.delete_entries(stream, ids[:1]) == {ids[0]: "deleted"}
        assert client.trim(stream, maxlen=1, dry_run=True) == 1
        group = client.group(stream, "g")
        with pytest.raises(weir.NotFoundError) as missing:
            group.info()
        assert missing.value.code == "no_group"
        group.ensure(start="0", ack_timeout_ms=60_000)
        assert [one["name"] for one in client.list_groups(stream)] == ["g"]
        delivered = group.read("c1", count=10).entries
        assert [one.fields["n"] for one in delivered] == ["2", "3"]
        assert [one["id"] for one in group.pending(consumer="c1", page_count=1)] == list(ids[1:])
        assert [one.delivery_count for one in group.history("c1").entries] == [2, 2]
        assert group.ack(ids[1]) == 1
        assert group.extend("c1", ids[2]) == [ids[2]]
        assert [one.id for one in group.claim("c2", ids[2])] == [ids[2]]
        group.nack(ids[2])
        assert sorted(one["name"] for one in group.consumers()) == ["c1", "c2"]
        with pytest.raises(weir.ConflictError):
            group.delete()
        group.delete(drop_pending=True)
        client.delete_stream(stream)


def test_what_cannot_be_done_dies_and_goes_back(url: str, stream: str) -> None:
    with Client(url) as client:
        ids = client.publish_batch(stream, [{"n": 0}, {"n": 1}, {"n": 2}]).ids
        group = client.group(stream, "g")
        group.ensure(start="0", dead_letter={"stream": f"{stream} dead"})
        group.read("c", count=3)
        assert group.dead_letter(ids[0], ids[1], reason="no such customer") == {
            "stream": f"{stream} dead",
            "ids": list(ids[:2]),
        }
        assert group.dead_letter(ids[1], ids[2])["ids"] == [ids[2]]
        letters = [letter.id for letter in client.entries(f"{stream} dead")]
        assert list(group.pending()) == []

        shown = group.redrive(reason="no such customer", consumer="c", count=1, dry_run=True)
        assert (shown["stream"], shown["redriven"], shown["duplicate"]) == (f"{stream} dead", 1, False)
        assert shown["entries"] == [{"dead_letter_id": letters[0], "id": None}]
        assert shown["next"] == letters[0]
        once = group.redrive(start=f"({letters[0]}", end=letters[2], key="k")
        assert [one["dead_letter_id"] for one in once["entries"]] == letters[1:]
        again = group.redrive(start=f"({letters[0]}", end=letters[2], key="k")
        assert again == {**once, "duplicate": True}
        assert group.redrive(letters[:1])["next"] is None
        copies = client.read(stream, start=f"({ids[2]}").entries
        assert [copy.fields["n"] for copy in copies] == ["1", "2", "0"]
        with pytest.raises(weir.InvalidRequestError):
            group.redrive(ids=[])


def test_a_redrive_whose_answer_is_lost_happens_once(server: Server, stream: str) -> None:
    with link(server.port, LOSE, BUSY, PASS) as lossy, Client(lossy.url) as flaky, Client(server.url) as own:
        entry = own.publish(stream, {"n": 1})
        group = own.group(stream, "g")
        group.ensure(start="0", dead_letter={"stream": f"{stream} dead"})
        group.read("c")
        group.dead_letter(entry.id)
        done = flaky.group(stream, "g").redrive()
        assert (done["redriven"], done["duplicate"]) == (1, True)
        assert own.get_stream(stream)["length"] == 2  # type: ignore[index]


def test_a_token_is_sent_and_looked_up_each_time() -> None:
    seen, tokens = [], iter(["one", "two"])

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(200, json={"result": "PONG"})

    transport = httpx.MockTransport(answer)
    with Client("http://gateway", token=lambda: next(tokens), transport=transport) as client:
        client.command("PING")
        client.command("PING")
    assert seen == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("text", ["<html>", "{}", "[]", "null", '"ok"', "7"])
def test_an_answer_that_is_no_gateways_is_named(text: str) -> None:
    def page(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=text)

    with Client("http://gateway", transport=httpx.MockTransport(page)) as client:
        for call in (
            lambda: client.command("PING"),
            lambda: client.publish("s", {"n": 1}),
            lambda: client.read("s"),
            lambda: list(client.list_streams()),
        ):
            with pytest.raises(weir.NotAGatewayError):
                call()


def test_an_answer_that_cannot_be_decoded_is_no_answer() -> None:
    """A proxy may say gzip of what is not."""

    def broken(_: httpx.Request) -> httpx.Response:
        return httpx.Response(400, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"{}"))

    transport = httpx.MockTransport(broken)
    with Client("http://gateway", retry_s=0, transport=transport) as client:
        with pytest.raises(weir.NoAnswerError) as lost:
            client.command("PING")
        assert lost.value.outcome_unknown
        with pytest.raises(weir.NoAnswerError):
            next(client.tail("s"))


async def test_a_closed_client_says_so() -> None:
    """In a sentence and with an error of its own; closing twice is no mistake."""
    nowhere = "http://127.0.0.1:9"
    client, twin = Client(nowhere), AsyncClient(nowhere)
    for _ in range(2):
        client.close()
        await twin.close()
    for call in (lambda: client.publish("s", {"n": 1}), lambda: next(client.tail("s"))):
        with pytest.raises(weir.ClientClosedError, match="this client is closed: make another one"):
            call()
    with pytest.raises(weir.ClientClosedError):
        await twin.group("s", "g").read("c")
    with pytest.raises(weir.ClientClosedError):
        await anext(twin.tail("s"))


def test_all_names_can_be_imported_at_once() -> None:
    everything: dict[str, object] = {}
    exec("from weir import *", everything)
    assert everything.keys() >= {"Client", "AsyncClient", "Worker", "WeirError"}


def test_the_synchronous_client_is_what_the_generator_makes() -> None:
    """`make client` writes it."""
    program = "import sync_client; assert all(a.read_text() == b for a, b in sync_client.generate().items())"
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2] / ".ci", check=True)


async def test_any_operation_can_be_called(url: str, stream: str) -> None:
    """By method and path: the answer's JSON, or the whole answer; refusals are the errors of all calls."""
    path = f"{stream_path(stream)}/entries"
    headers = {"content-type": "application/x-ndjson"}
    with Client(url) as client:
        stored = client.call("POST", path, body=b'{"n": 1}\n{"n": 2}\n', headers=headers)
        assert stored["count"] == 2
        page = client.call("GET", path, query={"count": 1, "reverse": True, "after": None})
        assert [entry["fields"]["n"] for entry in page["entries"]] == ["2"]
        assert client.send("GET", stream_path(stream)).headers["etag"]
        assert client.call("DELETE", stream_path(stream)) is None
        with pytest.raises(weir.NotFoundError):
            client.call("GET", stream_path(stream))
        with pytest.raises(weir.InvalidValueError, match="begins with /"):
            client.call("GET", "v1/streams")
    async with AsyncClient(url) as twin:
        assert (await twin.call("GET", "/v1/status"))["status"] == "ready"


async def test_the_asynchronous_client_does_the_same(url: str, stream: str) -> None:
    async with AsyncClient(url) as client:
        await client.publish_batch(stream, [{"n": number} for number in range(5)])
        assert [entry.fields["n"] async for entry in client.entries(stream, page_count=2)] == list("01234")
        group = client.group(stream, "g")
        await group.ensure(start="0")
        both = await asyncio.gather(group.read("a", count=2), group.read("b", count=3))
        assert sum(len(page.entries) for page in both) == 5
        assert len([one async for one in group.pending()]) == 5
