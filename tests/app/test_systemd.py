"""A gateway under systemd: what it is notified of, on a real socket, by a real process."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.transport.systemd import Systemd
from tests.server import Server

_WAIT_S_MAX = 30.0
_WATCHDOG_S = 0.2


@pytest.fixture
def notified(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The other end of the socket that NOTIFY_SOCKET names."""
    name = (
        str(tmp_path / "notify")
        if getattr(request, "param", "a path") == "a path"
        else f"@weir-test-{tmp_path}"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name.replace("@", "\0", 1))
        listener.settimeout(_WAIT_S_MAX)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listener


def _next(listener: socket.socket) -> str:
    return listener.recv(4_096).decode()


def test_systemd_hears_of_the_start_reloads_and_the_stop(notified: socket.socket, tmp_path: Path) -> None:
    """A reload has a begin and an end, also where there are no files to read again."""
    with Server(tmp_path / "data") as server:
        assert _next(notified) == "READY=1"
        for _ in range(2):
            server.signal(signal.SIGHUP)
            assert [_next(notified), _next(notified)] == ["RELOADING=1", "READY=1"]
        assert server.stop() == 0
        assert _next(notified) == "STOPPING=1"


def test_a_gateway_that_is_refused_is_never_ready(notified: socket.socket, tmp_path: Path) -> None:
    """Its data belong to another process."""
    with Server(tmp_path / "data"):
        assert _next(notified) == "READY=1"
        second = Server(tmp_path / "data")
        second.launch()
        assert second.exit_code() == 4
        assert _next(notified) == "STOPPING=1"


def test_the_watchdog_hears_from_the_process(
    notified: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its start on, while it serves, and while it stops."""
    monkeypatch.setenv("WATCHDOG_USEC", f"{_WATCHDOG_S * 1e6:.0f}")
    with Server(tmp_path / "data") as server:
        assert _next(notified) == "WATCHDOG=1"
        while (heard := _next(notified)) != "READY=1":
            assert heard == "WATCHDOG=1"
        notified.settimeout(10 * _WATCHDOG_S)
        assert [_next(notified) for _ in range(5)] == ["WATCHDOG=1"] * 5
        server.stop()


@pytest.mark.parametrize("notified", ["a path", "an abstract name"], indirect=True)
def test_a_loop_that_hangs_misses_the_watchdog(notified: socket.socket) -> None:
    """It is heard from the loop alone, twice in the time, and again once the loop runs."""
    systemd = Systemd(os.environ | {"WATCHDOG_USEC": f"{_WATCHDOG_S * 1e6:.0f}"})

    async def hear() -> str:
        return await asyncio.to_thread(_next, notified)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        systemd.start()
        assert await hear() == "WATCHDOG=1"
        began_s = loop.time()
        assert await hear() == "WATCHDOG=1"
        assert loop.time() - began_s > _WATCHDOG_S / 4
        notified.settimeout(3 * _WATCHDOG_S)
        with pytest.raises(TimeoutError):
            # Here, in the loop.
            _next(notified)
        assert await hear() == "WATCHDOG=1"
        systemd.close()

    asyncio.run(run())
    with pytest.raises(TimeoutError):
        _next(notified)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "200000"},
        {"NOTIFY_SOCKET": "/nowhere/notify"},
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "200000"},
    ],
)
def test_a_gateway_serves_where_nothing_listens(environment: dict[str, str]) -> None:
    """Without systemd nothing is sent; a socket that is gone stops nothing."""

    async def run() -> None:
        systemd = Systemd(environment)
        systemd.start()
        systemd.ready()
        with systemd.reloading():
            assert systemd.is_there == bool(environment.get("NOTIFY_SOCKET"))
        systemd.stopping()
        systemd.close()

    asyncio.run(run())


def test_the_watchdog_of_another_process_is_not_ours(notified: socket.socket) -> None:
    """WATCHDOG_PID names whom it is for; a reload before the start's end, or the stop's begin, is silent."""

    async def run() -> None:
        systemd = Systemd(os.environ | {"WATCHDOG_USEC": "200000", "WATCHDOG_PID": str(os.getpid() + 1)})
        systemd.start()
        with systemd.reloading():
            systemd.ready()
        systemd.stopping()
        with systemd.reloading():
            pass

    asyncio.run(run())
    notified.settimeout(0)
    # The reload's end is the second.
    assert [_next(notified) for _ in range(3)] == ["READY=1", "READY=1", "STOPPING=1"]
    with pytest.raises(BlockingIOError):
        _next(notified)
