"""Data of the last release, served by this version: everything answers as it did then.

`old_data.tar.xz` is what a gateway of commit 3d47809 had on its disk when it was killed: a base, and records.
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.mixed.old_data import rewrite
from tests.server import Server, call

HERE: Final = Path(__file__).parent
ANSWERS: Final = json.loads((HERE / "old_answers.json").read_text())
# What goes on with the clock, or depends on how memory is laid out.
MOVING: Final = {"idle_ms", "inactive_ms", "memory_bytes", "request_id"}


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("upgrade")
    with tarfile.open(HERE / "old_data.tar.xz") as packed:
        packed.extractall(place, filter="data")
    server = Server(place / "data")
    server.program = "tests.mixed.on_that_day"
    with server as running:
        yield running


def has_all(old: Any, new: Any) -> bool:
    """Whether the new answer says all that the old one did; it may say more."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(
            name in MOVING or (name in new and has_all(value, new[name])) for name, value in old.items()
        )
    if isinstance(old, list):
        return isinstance(new, list) and len(old) == len(new) and all(map(has_all, old, new))
    return bool(old == new)


def assert_answers_stay(server: Server) -> None:
    for method, path, body, status, answer in ANSWERS:
        found = call(server, method, path, body)
        assert (found[0], has_all(answer, found[1])) == (status, True), (path, body, answer, found)


def test_everything_is_there(upgraded: Server) -> None:
    """After the start, and after a rewrite and another start by this version."""
    assert_answers_stay(upgraded)
    rewrite(upgraded.url)
    upgraded.kill()
    upgraded.start()
    assert_answers_stay(upgraded)


def test_the_work_goes_on(upgraded: Server) -> None:
    """A worker acknowledges what the old gateway gave it, and gets what follows."""
    url = upgraded.url
    acked = call(url, "POST", "/v1/streams/orders/groups/billing/ack", {"ids": ["21-0"]})
    assert acked[1]["acknowledged"] == 1
    read = call(url, "POST", "/v1/streams/orders/groups/billing/consumers/anna/read", {"count": 1})
    assert len(read[1]["entries"]) == 1
    assert call(url, "POST", "/v1/streams/both/entries", {"fields": {"a": "3"}})[0] == 201
