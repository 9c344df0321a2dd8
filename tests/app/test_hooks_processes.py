"""Webhooks at a gateway of several processes, at one that is killed, and from a sender that drips."""

import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.app.senders import PLAIN, by_stripe
from tests.server import Server
from tests.waiting import until

HOOKS = """
[stripe]
stream = "in"
scheme = "stripe"
secrets = ["file:stripe"]
key = "body:/id"
"""


@pytest.fixture
def options(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "stripe").write_text(PLAIN)
    (tmp_path / "hooks.toml").write_text(HOOKS)
    return ("--set", f"hooks_file={tmp_path / 'hooks.toml'}")


def log_bytes(data: Path) -> int:
    return sum(file.stat().st_size for file in data.glob("segment-*"))


def post(server: Server, body: str, secret: str = PLAIN) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/hooks/stripe", content=body, headers=by_stripe(body, secret))


def test_fronts_have_the_hooks_and_read_them_again(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Each connection is to any of them; the list has what all of them have taken."""
    with Server(tmp_path / "data", "--fronts", "2", *options) as server:
        answers = [post(server, f'{{"id":"{n}"}}') for n in range(8)]
        assert {one.status_code for one in answers} == {200}
        (tmp_path / "stripe").write_text("new")
        server.signal(signal.SIGHUP)
        before: list[int] = []

        def refuse() -> bool:
            now = [post(server, '{"id":"0"}').status_code for _ in range(8)]
            before.extend(now)
            return now == [401] * 8

        until(refuse)
        assert post(server, '{"id":"0"}', "new").json()["duplicate"] is True
        (hook,) = httpx.get(f"{server.url}/v1/hooks").json()["hooks"]
        assert (hook["stored"], hook["duplicates"]) == (8, before.count(200) + 1)
        assert hook["refused"] >= 8


def test_a_webhook_whose_answer_was_lost_is_stored_once(tmp_path: Path, options: tuple[str, ...]) -> None:
    """The gateway is killed between the entry and its answer; the sender sends it again."""
    data = tmp_path / "data"
    with Server(data, "--fsync", "always", *options) as server:
        for n in range(5):
            body = f'{{"id":"{n}"}}'
            lines = [f"{name}: {value}" for name, value in by_stripe(body).items()]
            head = [
                "POST /v1/hooks/stripe HTTP/1.1",
                "Host: 127.0.0.1",
                f"Content-Length: {len(body)}",
                *lines,
            ]
            size = log_bytes(data)
            with socket.create_connection(("127.0.0.1", server.port)) as sender:
                sender.sendall("\r\n".join([*head, "", body]).encode())
                until(lambda before=size: log_bytes(data) != before)
                server.kill()
            server.start()
            assert post(server, body).status_code == 200
        found = httpx.get(f"{server.url}/v1/streams/in/entries").json()["entries"]
        assert [one["fields"]["data"] for one in found] == [f'{{"id":"{n}"}}' for n in range(5)]


def test_a_sender_that_drips_has_as_long_as_any_request(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Nothing is stored of what it began."""
    with Server(tmp_path / "data", *options, "--set", "request_s_max=0.5") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as sender:
            sender.sendall(
                b"POST /v1/hooks/stripe HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n{"
            )
            answer = b""
            while piece := sender.recv(4_096):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert post(server, '{"id":"1"}').json()["duplicate"] is False
