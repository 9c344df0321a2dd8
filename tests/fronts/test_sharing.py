"""What all fronts share: consumers, tickets, tokens and revocations, files that are read again."""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from app.auth import Grant, tokens
from tests.fronts.processes import ADMIN, CONNECTIONS, ROOT, Fronted, make_token
from tests.server import call
from tests.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    folder = tmp_path_factory.mktemp("sharing")
    (folder / "tokens.toml").write_text("")
    with Fronted(
        folder / "data",
        *("--set", f"root_token={ROOT}", "--set", f"tokens_file={folder / 'tokens.toml'}"),
        *("--set", f"audit_file={folder / 'audit'}"),
    ) as server:
        yield server
        server.kill_all()


def statuses(server: Fronted, headers: dict[str, str], path: str = "/v1/whoami") -> set[int]:
    """What this caller gets over some connections, which both fronts have some of."""
    return {call(server, "GET", path, headers=headers)[0] for _ in range(CONNECTIONS)}


def test_a_token_is_good_at_all_fronts_at_once_and_refused_by_all_once_it_is_revoked(
    server: Fronted,
) -> None:
    """What it has opened ends, wherever that is; the audit log has each action once."""
    token, headers = make_token(server)
    assert statuses(server, headers) == {200}
    with contextlib.ExitStack() as opened:
        sockets = [
            opened.enter_context(
                connect(f"ws://127.0.0.1:{server.port}/v1/ws", additional_headers=headers, open_timeout=30)
            )
            for _ in range(CONNECTIONS)
        ]
        assert call(server, "DELETE", f"/v1/admin/tokens/{token}", headers=ADMIN)[0] == 204
        assert statuses(server, headers) == {401}
        for socket in sockets:
            with pytest.raises(ConnectionClosed):
                next_frame(socket, "none that there is")
    until(lambda: len(audited(server, token)) == 2)


def audited(server: Fronted, token: str) -> list[str]:
    lines = (server.data.parent / "audit").read_text().splitlines()
    return [line for line in lines if token in line]


def test_a_token_outlives_the_engines_process(server: Fronted) -> None:
    """The fronts read it again from the new one; so does what was revoked."""
    _, kept = make_token(server)
    token, revoked = make_token(server)
    call(server, "DELETE", f"/v1/admin/tokens/{token}", headers=ADMIN)
    os.kill(server.engine_pid, signal.SIGKILL)
    until(lambda: statuses(server, kept) == {200} and "weir engine" in server.processes())
    server.wait_until_ready()
    assert statuses(server, revoked) == {401}


def test_a_revoked_token_does_not_come_back_with_an_older_log(tmp_path: Path) -> None:
    """The file beside the log knows it, and so do the fronts."""
    with Fronted(tmp_path / "data", "--set", f"root_token={ROOT}") as server:
        token, headers = make_token(server)
        server.stop()
        older = shutil.copytree(server.data, tmp_path / "older")
        server.start()
        assert call(server, "DELETE", f"/v1/admin/tokens/{token}", headers=ADMIN)[0] == 204
        server.stop()
        shutil.copy(server.data / "revoked", older)
        shutil.rmtree(server.data)
        older.rename(server.data)
        server.start()
        assert statuses(server, headers) == {401}
        server.kill_all()


def test_a_front_that_cannot_read_the_revocations_serves_nothing_and_says_so(tmp_path: Path) -> None:
    """Once every few seconds, not in a loop; it serves once the file is repaired."""
    with Fronted(tmp_path / "data", "--set", f"root_token={ROOT}") as server:
        token, _ = make_token(server)
        assert call(server, "DELETE", f"/v1/admin/tokens/{token}", headers=ADMIN)[0] == 204
        file = server.data / "revoked"
        sound = file.read_bytes()
        file.write_bytes(sound + b"x")
        os.kill(server.front_pids[0], signal.SIGKILL)

        def refusals() -> list[str]:
            events = [line["event"] for line in server.log_lines() if line["level"] == "critical"]
            return [event for event in events if event != "a process has died"]

        until(lambda: len(refusals()) == 2)
        file.write_bytes(sound)
        server.wait_until_ready()
        assert set(refusals()) == {"revocations cannot be read"}
        assert len(refusals()) <= 3
        server.kill_all()


def test_a_ticket_is_used_once_at_whichever_front(server: Fronted) -> None:
    """It may be another one than has issued it."""
    for _ in range(3):
        ticket = call(server, "POST", "/v1/tickets", headers=ADMIN)[1]["ticket"]
        url = f"ws://127.0.0.1:{server.port}/v1/ws?ticket={ticket}"
        opened = 0
        for _ in range(CONNECTIONS):
            with contextlib.suppress(Exception), connect(url, open_timeout=30) as socket:
                opened += json.loads(socket.recv(timeout=30))["op"] == "hello"
        assert opened == 1


def test_a_consumer_has_one_reader_over_all_fronts(server: Fronted) -> None:
    """Each new reader replaces the one before; each entry goes to one of them."""
    call(server, "PUT", "/v1/streams/jobs/groups/g", {"start": "0"}, ADMIN)
    consume = {"op": "consume", "sub": "c", "stream": "jobs", "group": "g", "consumer": "w"}
    with contextlib.ExitStack() as opened:
        previous = None
        for n in range(CONNECTIONS):
            socket = opened.enter_context(
                connect(f"ws://127.0.0.1:{server.port}/v1/ws", additional_headers=ADMIN, open_timeout=30)
            )
            socket.send(json.dumps(consume))
            if previous is not None:
                assert next_frame(previous, "revoked")["reason"] == "replaced"
            call(server, "POST", "/v1/streams/jobs/entries", {"fields": {"n": str(n)}}, ADMIN)
            given: list[str] = []
            while str(n) not in given:
                given += [entry["fields"]["n"] for entry in next_frame(socket, "entries")["entries"]]
            # Its history first: no consumer has acknowledged anything.
            assert given == [str(one) for one in range(n + 1)]
            previous = socket


def next_frame(socket: ClientConnection, op: str) -> dict[str, Any]:
    """The next one of this kind."""
    while True:
        frame: dict[str, Any] = json.loads(socket.recv(timeout=30))
        if frame["op"] == op:
            return frame


def test_files_are_read_again_by_all_processes(server: Fronted) -> None:
    """With one SIGHUP to the supervisor."""
    made = tokens.create((Grant.parse("read:*"),))
    text = f"""[[tokens]]
id = "{made.token.id}"
hash = "{made.token.hash}"
grants = ["read:*"]
"""
    (server.data.parent / "tokens.toml").write_text(text)
    headers = {"authorization": f"Bearer {made.text}"}
    server.signal(signal.SIGHUP)
    until(lambda: statuses(server, headers) == {200})
