"""`weir doctor`: what it finds at a gateway that is well, and at one that is not."""

import email.utils
from collections.abc import Callable
from importlib import metadata

import httpx
import pytest

from tests.cli.command import weir
from weir import Client
from weir.cli.doctor import Diagnosis, examine

VERSION = metadata.version("weir-client")
STATUS: dict[str, object] = {
    "status": "ready",
    "version": VERSION,
    "uptime_ms": 5_000,
    "durability": {"fsync": "everysec"},
    "log": {"bytes": 1 << 20, "failure": None},
    "memory": {"used_bytes": 90, "bytes_max": 100, "full": False},
}
# A whole second.
DATE_MS = 1_700_000_000_000


def _examined(now_ms: Callable[[], int] = lambda: DATE_MS, **status: object) -> dict[str, Diagnosis]:
    """What is found at a gateway with such a status, and without WebSockets."""

    def answer(_request: httpx.Request) -> httpx.Response:
        headers = {"date": email.utils.formatdate(DATE_MS / 1_000, usegmt=True)}
        return httpx.Response(200, json=STATUS | status, headers=headers)

    with Client("http://127.0.0.1:1", transport=httpx.MockTransport(answer), retry_s=0) as client:
        return {one.check: one for one in examine(client, now_ms)}


def test_a_gateway_that_is_well(url: str) -> None:
    """Every check, as JSON and as a table; exit code 0."""
    done = weir(url, "doctor", "--json")
    assert done.code == 0, done.out + done.err
    found = {one["check"]: one for one in done.objects}
    assert list(found) == ["gateway", "versions", "clock", "memory", "log", "websocket"]
    assert {one["state"] for one in found.values()} == {"ok"}
    assert found["gateway"]["detail"].startswith(f"{url}: ready for ")
    assert found["websocket"]["detail"] == "entries of 1.0 MiB, 10,000 a publish"
    table = weir(url, "doctor")
    assert table.lines[0].split() == ["check", "state", "detail"]


def test_a_gateway_that_is_away() -> None:
    """One finding, and exit code 1."""
    done = weir("http://127.0.0.1:1", "doctor", "--json")
    assert done.code == 1
    (found,) = done.objects
    assert (found["check"], found["state"]) == ("gateway", "wrong")


@pytest.mark.parametrize("status", ["starting", "draining", "storage_failed", "backend_unavailable"])
def test_a_gateway_that_is_not_ready_is_wrong(status: str) -> None:
    found = _examined(status=status)["gateway"]
    assert (found.state, found.detail) == ("wrong", f"http://127.0.0.1:1 is not ready: {status}")


@pytest.mark.parametrize("text", ["<html>", "{}", "[]", "7", '{"status":"ready","version":1}'])
def test_what_is_no_gateway_is_wrong(text: str) -> None:
    """One finding, and no traceback."""

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=text)

    with Client("http://127.0.0.1:1", transport=httpx.MockTransport(answer), retry_s=0) as client:
        (found,) = examine(client)
    assert (found.check, found.state) == ("gateway", "wrong")
    assert "did not answer with the JSON of a gateway" in found.detail


def test_a_ready_gateway_may_need_an_operator() -> None:
    """A full disk, for instance: reads go on."""
    found = _examined(failing=["disk_full", "backup_failed"])["gateway"]
    assert (found.state, found.detail) == (
        "wrong",
        "http://127.0.0.1:1 is ready and needs an operator: disk_full, backup_failed",
    )


def test_a_log_that_a_server_has() -> None:
    found = _examined(backend="Valkey 9.1.2", log=None, durability={"fsync": None, "answers": "memory"})[
        "log"
    ]
    assert (found.state, found.detail) == ("ok", "kept by Valkey 9.1.2, memory")


@pytest.mark.parametrize(
    ("used", "full", "state"), [(90, False, "ok"), (91, False, "warning"), (100, True, "wrong")]
)
def test_memory_that_runs_out(used: int, full: bool, state: str) -> None:  # noqa: FBT001 - a parameter
    memory = {"used_bytes": used, "bytes_max": 100, "full": full}
    assert _examined(memory=memory)["memory"].state == state


def test_memory_without_a_limit() -> None:
    assert _examined(memory={"used_bytes": 1 << 20, "bytes_max": None, "full": False})["memory"] == (
        Diagnosis("memory", "ok", "1.0 MiB used, no limit")
    )


def test_a_log_that_failed() -> None:
    found = _examined(log={"bytes": 0, "failure": "No space left"})["log"]
    assert (found.state, "No space left" in found.detail) == ("wrong", True)


def test_another_minor_version_is_a_warning() -> None:
    """Before 1.0 it may break things; another patch may not."""
    major, minor, patch = VERSION.split(".")
    assert _examined(version=f"{major}.{minor}.{int(patch) + 1}")["versions"].state == "ok"
    assert _examined(version=f"{major}.{int(minor) + 1}.0")["versions"].state == "warning"


def test_a_websocket_that_does_not_open_is_wrong() -> None:
    """Though requests work: a proxy may pass the ones and not the others."""
    assert _examined()["websocket"].state == "wrong"


@pytest.mark.parametrize(
    ("here_ms", "state"),
    [
        # The gateway's second is not over until 999 ms after what it names.
        (DATE_MS - 2_000, "ok"),
        (DATE_MS - 2_001, "wrong"),
        (DATE_MS + 999 + 2_000, "ok"),
        (DATE_MS + 999 + 2_001, "wrong"),
    ],
)
def test_clocks_may_differ_by_two_seconds(here_ms: int, state: str) -> None:
    found = _examined(lambda: here_ms)["clock"]
    assert found.state == state
    if state == "wrong":
        assert ("behind" in found.detail) == (here_ms < DATE_MS)


def test_a_slow_answer_says_less_about_the_clock() -> None:
    """The gateway's time lies anywhere between the request and the answer."""
    moments = iter([DATE_MS - 60_000, DATE_MS + 60_000])
    assert _examined(lambda: next(moments))["clock"].state == "ok"
