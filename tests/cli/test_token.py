"""`weir token` as a process, and a gateway that is started with what it makes."""

import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from app.auth import Action, Grant, token_file, tokens
from tests.cli.command import weir
from tests.server import Server, free_port
from tests.waiting import until

NOWHERE = "http://127.0.0.1:1"


def make(*words: str) -> str:
    ended = weir(NOWHERE, "token", "create", *words)
    assert ended.code == 0, ended.err
    return ended.out.strip()


def test_a_token_goes_to_standard_output_and_its_table_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    first = make("--grant", "read:a", "--label", "one", "--expires", "1h", "--file", str(path))
    second = make("--grant", "*:*", "--file", str(path))
    kept = token_file.read(path)
    assert [token.id for token in kept] == [tokens.id_of(first), tokens.id_of(second)]
    assert [token.hash for token in kept] == [tokens.hash_of(first), tokens.hash_of(second)]
    assert first not in path.read_text()
    assert (kept[0].label, kept[1].expires_at) == ("one", None)
    assert kept[0].expires_at is not None
    assert timedelta(minutes=58) < kept[0].expires_at - datetime.now(UTC) <= timedelta(hours=1)


def test_a_token_goes_to_a_new_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    """Whatever the umask; nothing is on standard output, and no file is written over."""
    path, table = tmp_path / "shop.token", tmp_path / "tokens.toml"
    words = ("token", "create", "--grant", "read:a", "--file", str(table), "--out")
    ended = weir(NOWHERE, *words, str(path))
    assert (ended.code, ended.out) == (0, "")
    assert [token.id for token in token_file.read(table)] == [tokens.id_of(path.read_text().strip())]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for taken in (path, tmp_path / "missing" / "x.token"):
        assert weir(NOWHERE, *words, str(taken)).code == 2
    assert len(token_file.read(table)) == 1
    # No gateway is there: no token, and no file.
    asking = ("--token-file", str(path), "--out", str(tmp_path / "none.token"))
    assert weir(NOWHERE, "token", "create", "--grant", "read:a", *asking).code == 1
    assert not (tmp_path / "none.token").exists()


def test_help_names_every_action() -> None:
    """In the order in which a grant is shown."""
    words = " ".join(weir(NOWHERE, "token", "create", "--help").out.replace("│", " ").split())
    assert f"Actions: {', '.join(Action)};" in words


def test_a_token_of_elsewhere_is_hashed() -> None:
    text = tokens.create((Grant.parse("read:a"),)).text
    ended = weir(NOWHERE, "token", "hash", "--grant", "read:a", given=text.encode())
    assert tokens.hash_of(text) in ended.out
    ended = weir(NOWHERE, "token", "hash", "--grant", "read:a", given=b"secret")
    assert (ended.code, ended.out) == (2, "")


@pytest.mark.parametrize("grant", ["read", "fly:a", "read:"])
def test_a_malformed_grant_is_a_usage_error(grant: str) -> None:
    ended = weir(NOWHERE, "token", "create", "--grant", grant)
    assert (ended.code, ended.out) == (2, "")
    assert "no grant" in " ".join(ended.err.split())


def test_a_gateway_serves_who_has_a_token(tmp_path: Path) -> None:
    """Over HTTP on both ways, over a WebSocket, and by the command line."""
    path, secret = tmp_path / "tokens.toml", tmp_path / "shop.token"
    secret.write_text(make("--grant", "read,write:orders.*", "--file", str(path)))
    with Server(tmp_path / "data", "--set", f"tokens_file={path}") as server:
        entries = "/v1/streams/orders.eu/entries"
        with httpx.Client(base_url=server.url) as http:
            assert http.post(entries, json={"fields": {"a": "1"}}).status_code == 401
            assert http.get("/healthz/ready").status_code == 200
            http.headers["authorization"] = f"Bearer {secret.read_text().strip()}"
            for _ in range(3):
                # The second time the caller is known at once.
                assert http.post(entries, json={"fields": {"a": "1"}}).status_code == 201
                assert http.post("/v1/streams/other/entries", json={"fields": {"a": "1"}}).status_code == 403
            assert len(http.get(entries).json()["entries"]) == 3
            http.headers["authorization"] = "Bearer wrong"
            assert http.post(entries, json={"fields": {"a": "1"}}).status_code == 401
        ended = weir(server.url, "read", "orders.eu", "--token-file", str(secret))
        assert (ended.code, ended.out.count("a=1")) == (0, 3)
        ended = weir(server.url, "read", "orders.eu")
        asked = "weir: the gateway asks for a token: name the file that holds it with --token-file"
        assert (ended.code, ended.err) == (1, f"{asked} (unauthenticated)\n")
        _converse(server, secret.read_text().strip())


def _converse(server: Server, token: str) -> None:
    url = server.url.replace("http", "ws") + "/v1/ws"
    frame = '{"op":"publish","stream":"orders.eu","fields":{"a":"1"},"ref":1}'
    with connect(url) as socket:
        assert '"hello"' in str(socket.recv())
        socket.send(frame)
        assert '"unauthenticated"' in str(socket.recv())
        socket.send(f'{{"op":"auth","token":"{token}"}}')
        assert '"ok"' in str(socket.recv())
        socket.send(frame)
        assert '"ok"' in str(socket.recv())
    with connect(url, additional_headers={"authorization": f"Bearer {token}"}) as socket:
        socket.recv()
        socket.send(frame)
        assert '"ok"' in str(socket.recv())
    ticket = httpx.post(f"{server.url}/v1/tickets", headers={"authorization": f"Bearer {token}"}).json()
    subprotocols = [Subprotocol("weir.v1"), Subprotocol(f"weir.ticket.{ticket['ticket']}")]
    with connect(url, subprotocols=subprotocols) as socket:
        assert socket.subprotocol == "weir.v1"
        socket.recv()
        socket.send(frame)
        assert '"ok"' in str(socket.recv())
    with connect(url) as socket:
        socket.recv()
        socket.send('{"op":"auth","token":"wrong"}')
        assert '"unauthenticated"' in str(socket.recv())
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4500


def test_a_token_that_is_taken_out_of_the_file_ends_what_is_open(tmp_path: Path) -> None:
    """After SIGHUP: a socket closes, a read that waits is answered 401, other tokens go on; a file that
    cannot be read changes nothing.
    """
    path = tmp_path / "tokens.toml"
    gone = make("--grant", "*:*", "--file", str(path))
    path.rename(tmp_path / "old.toml")
    kept = make("--grant", "*:*", "--file", str(path))
    table = path.read_text()
    path.write_text((tmp_path / "old.toml").read_text() + table)
    headers = {"authorization": f"Bearer {gone}"}
    with (
        Server(tmp_path / "data", "--set", f"tokens_file={path}") as server,
        httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {kept}"}) as http,
        connect(server.url.replace("http", "ws") + "/v1/ws", additional_headers=headers) as socket,
        ThreadPoolExecutor() as threads,
    ):
        socket.recv()
        url = f"{server.url}/v1/streams/s/entries?after=$&wait=30000"
        waiting = threads.submit(httpx.get, url, headers=headers, timeout=40)
        while http.get("/v1/status").json()["connections"]["following"] < 1:
            pass
        path.write_text("[[tokens")
        server.signal(signal.SIGHUP)
        # A file is read once it is whole: what is written in place is empty for a moment.
        until(lambda: "tokens were not read again" in [line["event"] for line in server.log_lines()])
        path.write_text(table)
        server.signal(signal.SIGHUP)
        assert waiting.result(timeout=10).status_code == 401
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4500, "token_revoked")
        assert httpx.get(f"{server.url}/v1/status", headers=headers).status_code == 401
        assert http.get("/v1/status").status_code == 200


def test_a_token_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    """Exit code 2, before anything is opened."""
    ended = weir(
        NOWHERE,
        "serve",
        "--port",
        "0",
        "--data",
        str(tmp_path / "data"),
        "--set",
        f"tokens_file={tmp_path / 'none.toml'}",
    )
    assert ended.code == 2
    assert "tokens_file" in ended.err
    assert not (tmp_path / "data").exists()


def test_a_running_gateway_makes_lists_and_revokes_tokens(tmp_path: Path) -> None:
    """They survive a restart; a revoked one does not come back with an older backup."""
    root, data, copy = tmp_path / "root.token", tmp_path / "data", tmp_path / "copy"
    root.write_text("root-token-of-at-least-24-characters")
    options = ("--set", f"root_token_file={root}")
    with Server(data, *options) as server:
        known = ("--token-file", str(root))
        words = ("--grant", "read,write:orders", "--label", "shop", "--expires", "1h", *known)
        first, second = (weir(server.url, "token", "create", *words).out.strip() for _ in range(2))
        assert tokens.id_of(first)
        assert status(server, first) == 200
        assert weir(server.url, "backup", str(copy), "--data", str(data)).code == 0
        ended = weir(server.url, "token", "revoke", str(tokens.id_of(first)), *known)
        assert ended.code == 0, ended.err
        assert status(server, first) == 401
        listed = weir(server.url, "token", "list", "--json", *known).objects
        assert {one["id"] for one in listed} == {tokens.id_of(second), "root00000000"}
        lines = weir(server.url, "token", "list", *known).out
        assert "read,write:orders" in lines
        ended = weir(server.url, "token", "revoke", "000000000000", *known)
        assert (ended.code, "no token" in ended.err) == (1, True)
        assert server.stop() == 0
    _restore(copy, data)
    with Server(data, *options) as server:
        assert (status(server, first), status(server, second)) == (401, 200)
        assert server.stop() == 0
    # Elsewhere nothing is known of the revocation; with the option no token is accepted.
    for option, expected in (("--json", 200), ("--drop-tokens", 401)):
        again = tmp_path / f"again{option}"
        assert weir(NOWHERE, "restore", str(copy), "--data", str(again), option).code == 0
        with Server(again, *options) as server:
            assert status(server, first) == expected
            assert status(server, root.read_text()) == 200


def test_what_is_no_id_of_a_token_is_a_usage_error() -> None:
    """Said in a sentence, without a gateway."""
    done = weir(NOWHERE, "token", "revoke", "x")
    assert done.code == 2
    assert "12 letters and digits" in done.err


def test_a_gateway_that_is_named_wants_a_token() -> None:
    """Otherwise the token would be made here, and the gateway would not know it."""
    ended = weir(NOWHERE, "token", "create", "--grant", "*:*", "--url", NOWHERE)
    assert (ended.code, ended.out) == (2, "")
    assert "--token-file" in ended.err


def test_the_port_that_has_the_tokens_is_to_be_named(tmp_path: Path) -> None:
    """With a port for administration, the other one does not serve them."""
    root, port = tmp_path / "root.token", free_port()
    root.write_text("root-token-of-at-least-24-characters")
    options = ("--set", f"root_token_file={root}", "--admin-listen", str(port))
    with Server(tmp_path / "data", *options) as server:
        refused = weir(server.url, "token", "list", "--token-file", str(root))
        assert refused.code == 1
        assert "see the setting admin_listen, and name that address in --url" in refused.err
        assert weir(f"http://127.0.0.1:{port}", "token", "list", "--token-file", str(root)).code == 0
        assert server.stop() == 0


def _restore(copy: Path, data: Path) -> None:
    """Put a backup in the place of the log, as an operator does."""
    refused = weir(NOWHERE, "restore", str(copy), "--data", str(data))
    assert refused.code == 2
    for file in data.iterdir():
        if file.name != "revoked":
            file.unlink()
    restored = weir(NOWHERE, "restore", str(copy), "--data", str(data))
    assert restored.code == 0, restored.err


def status(server: Server, token: str) -> int:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.get(f"{server.url}/v1/streams/orders/entries", headers=headers).status_code
