"""Ctrl-C ends `weir import` in order and at once, in every state."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from app.cli import migrate
from app.cli.migration.stopping import Stop, Stopped
from tests.cli.command import begun, environment
from tests.cli.migrating import MARK, asked, assert_same, filled, imported
from tests.cluster.servers import BackendServer
from tests.server import free_port
from tests.waiting import completed, until

# Far below a minute, for which it would wait for an answer and for a server that is away.
STOP_S_MAX: Final = 20.0


def stopped(process: subprocess.Popen[str], number: int = signal.SIGINT) -> tuple[int, str]:
    """Send a signal: the exit code, and what is said on standard error from then on."""
    process.send_signal(number)
    try:
        _, err = process.communicate(timeout=STOP_S_MAX)
    finally:
        process.kill()
        process.communicate()
    return process.returncode, err


def heard(process: subprocess.Popen[str], sentence: str) -> None:
    """Wait until it is said."""
    assert process.stderr is not None
    line = process.stderr.readline()
    assert sentence in line, line


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("nth", [1, 12])
def test_a_signal_while_the_http_client_holds_a_lock(
    url: str, origin: BackendServer, stream: str, nth: int
) -> None:
    """An exception there would keep the lock, and the next request would wait for it for ever."""
    filled(origin, stream, 20)
    program = [sys.executable, "-m", "tests.cli.interrupted", str(nth)]
    done = completed(
        [*program, "import", "--redis", origin.url, "--follow", stream],
        env=environment(url),
        timeout=STOP_S_MAX,
    )
    assert (done.returncode, "copying the rest" in done.stderr) == (0, True), done.stderr
    asked(url, "XGROUP", "DESTROY", stream, MARK)
    assert_same(origin, url, stream)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_it_waits_for_entries(url: str, origin: BackendServer, stream: str, number: int) -> None:
    """What has come is copied."""
    filled(origin, stream, 1)
    process = begun(url, "import", "--redis", origin.url, "--follow", stream)
    heard(process, "caught up")
    code, err = stopped(process, number)
    assert (code, "copying the rest" in err) == (0, True), err


def test_while_there_is_no_stream_at_all(url: str, origin: BackendServer, stream: str) -> None:
    """It waits for the first one then, without a command."""
    process = begun(url, "import", "--redis", origin.url, "--follow", "--match", f"{stream}-none")
    heard(process, "caught up")
    code, err = stopped(process)
    assert (code, "copying the rest" in err) == (0, True), err


def test_in_the_midst_of_a_copy(url: str, origin: BackendServer, stream: str) -> None:
    """Running the same command again goes on."""
    filled(origin, stream, 8_000)
    process = begun(url, "import", "--redis", origin.url, stream)
    until(lambda: asked(url, "XLEN", stream) > 0)
    code, err = stopped(process)
    assert (code, "stopped before the end: run the same command again to go on" in err) == (1, True), err
    assert asked(url, "XLEN", stream) < 8_000
    assert imported(url, origin.url, stream).code == 0
    assert asked(url, "XLEN", stream) == 8_000


@pytest.mark.parametrize("is_redis", [True, False])
def test_while_a_server_does_not_answer(
    url: str, origin: BackendServer, stream: str, silent: int, *, is_redis: bool
) -> None:
    """It took the command; the wait for its answer is broken off."""
    filled(origin, stream, 1)
    redis = f"redis://127.0.0.1:{silent}" if is_redis else origin.url
    process = begun(
        url if is_redis else f"http://127.0.0.1:{silent}", "import", "--redis", redis, "--follow", stream
    )
    until(lambda: _has_connection_to(process.pid, silent))
    code, err = stopped(process)
    assert (code, "stopped before the end: run the same command again to go on" in err) == (1, True), err


@pytest.mark.parametrize("is_redis", [True, False])
def test_while_a_server_is_away(url: str, origin: BackendServer, stream: str, *, is_redis: bool) -> None:
    """It is asked once more, and not waited for."""
    filled(origin, stream, 1)
    nowhere = free_port()
    redis = f"redis://127.0.0.1:{nowhere}" if is_redis else origin.url
    process = begun(
        url if is_redis else f"http://127.0.0.1:{nowhere}", "import", "--redis", redis, "--follow", stream
    )
    heard(process, "trying again")
    code, err = stopped(process)
    assert (code, "run the same command again to go on" in err) == (1, True), err


def test_two_signals_wait_for_nothing(url: str, stream: str, silent: int) -> None:
    """The second one need not wait for a server's answer."""
    process = begun(url, "import", "--redis", f"redis://127.0.0.1:{silent}", "--follow", stream)
    until(lambda: _has_connection_to(process.pid, silent))
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    # Two of the same kind that come together are one.
    code, err = stopped(process, signal.SIGTERM)
    assert (code, "stopped before the end" in err) == (1, True), err
    assert time.monotonic() - began_s < STOP_S_MAX


def _has_connection_to(pid: int, port: int) -> bool:
    """Whether a process has an established connection to a port of 127.0.0.1."""
    place = Path(f"/proc/{pid}")
    mine = set[str]()
    for descriptor in (place / "fd").iterdir():
        with suppress(FileNotFoundError):
            mine.add(str(descriptor.readlink()))
    rows = [line.split() for line in (place / "net/tcp").read_text().splitlines()]
    return any(row[2] == f"0100007F:{port:04X}" and f"socket:[{row[9]}]" in mine for row in rows)


def test_a_signal_is_raised_between_two_commands_and_once() -> None:
    """The handler raises nothing where the program is."""
    stop = Stop()
    before = signal.getsignal(signal.SIGTERM)
    with stop.listening():
        stop.check()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped):
            stop.check()
        stop.check()
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGTERM) is before


def test_new_streams_are_looked_for_every_ten_seconds(url: str, origin: BackendServer, stream: str) -> None:
    """Not before, by the clock that is passed, and then at once."""
    filled(origin, stream, 1)
    seen = list[int]()
    stop = Stop()

    def clock() -> Iterator[float]:
        yield 0.0
        filled(origin, f"{stream}.new", 1)
        yield 10.0
        seen.append(asked(url, "EXISTS", f"{stream}.new"))
        yield 10.001
        # Asked again behind the look.
        seen.append(asked(url, "EXISTS", f"{stream}.new"))
        yield 10.001
        signal.raise_signal(signal.SIGINT)
        yield 10.001

    readings = clock()
    with stop.listening():
        options = migrate.ImportOptions(redis=origin.url, url=url, patience_ms=0)
        with migrate.Import(options, stop) as found, pytest.raises(Stopped):
            migrate.follow(found, [], f"{stream}*", lambda: next(readings))
    assert seen == [0, 1]
