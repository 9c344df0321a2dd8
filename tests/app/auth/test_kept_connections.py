"""Connections that stay open while tokens come and go: what one has been allowed is asked again in time.

Each sends the same head again and again, whose plan is kept.
"""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from tests.server import Server

ROOT: Final = "root-token-of-at-least-24-characters"
# Without blanks, as it is stored together with those of other connections.
ENTRY: Final = '{"fields":{"a":"1"}}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("kept")
    (folder / "root").write_text(ROOT)
    with Server(folder / "data", "--set", f"root_token_file={folder / 'root'}") as server:
        yield server


def ask(
    line: http.client.HTTPConnection, token: str, path: str, body: str = ENTRY, method: str = "POST"
) -> tuple[int, Any]:
    """The status and the answer, on this connection."""
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    line.request(method, path, body, headers)
    answer = line.getresponse()
    text = answer.read()
    return answer.status, json.loads(text) if text else None


def publish(line: http.client.HTTPConnection, token: str, stream: str = "orders") -> int:
    return ask(line, token, f"/v1/streams/{stream}/entries")[0]


def make(line: http.client.HTTPConnection, **members: Any) -> tuple[str, str]:
    """A token for one stream: its ID, and its text."""
    body = json.dumps({"grants": [{"actions": ["write"], "streams": "orders", **members}]})
    status, made = ask(line, ROOT, "/v1/admin/tokens", body)
    assert status == 201
    return made["id"], made["token"]


def test_a_revoked_token_is_refused_at_once_and_others_are_not(server: Server) -> None:
    """On the connection that it was used on, and by all of the others."""
    with (
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=15)) as operator,
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=15)) as one,
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=15)) as other,
    ):
        (revoked, text), (_, kept) = make(operator), make(operator)
        for _ in range(4):
            assert [publish(one, text), publish(other, kept)] == [201, 201]
        assert ask(operator, ROOT, f"/v1/admin/tokens/{revoked}", "", "DELETE")[0] in (200, 204)
        for _ in range(2):
            assert [publish(one, text), publish(other, kept)] == [401, 201]
        # The next request on the same connection may have another principal.
        assert [publish(one, kept), publish(one, text), publish(one, kept)] == [201, 401, 201]


def test_what_was_allowed_for_one_stream_is_for_no_other(server: Server) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=15)) as line:
        _, text = make(line)
        for _ in range(3):
            assert [publish(line, text), publish(line, text, "others")] == [201, 403]


def test_a_rate_holds_from_the_first_request_on(server: Server) -> None:
    """It is counted for each of them, however often the same head has come."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=15)) as line:
        _, text = make(line, rate={"requests_per_s": 1, "requests_burst": 5})
        found = [publish(line, text) for _ in range(12)]
        assert 5 <= found.count(201) <= 8
        assert set(found) == {201, 429}
