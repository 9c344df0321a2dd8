"""The peers that a bench runs beside: a redis-server of its own on loopback, ended with it."""

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import redis

# How each server prints its version.
_VERSIONS = {"redis-server": r"v=(\S+)", "nats-server": r"v(\d\S*)"}


def server_version(program: str) -> str:
    """`redis-server 7.0.15`, as the program itself says."""
    line = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(_VERSIONS[program], line)
    assert found is not None, f"no version in: {line}"
    return f"{program} {found[1]}"


def package_versions(*names: str) -> str:
    """`redis 8.1.0, hiredis 3.5.0`."""
    return ", ".join(f"{name} {version(name)}" for name in names)


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def redis_server(*options: str, poll_s: float = 0.05) -> Iterator[tuple[int, Path]]:
    """A redis-server with its data in a fresh directory; its port and that directory."""
    port = free_port()
    data = Path(tempfile.mkdtemp(prefix="weir-bench-redis-"))
    arguments = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(data)]
    server = subprocess.Popen([*arguments, *options], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port)
        for _ in range(int(60 / poll_s)):
            with contextlib.suppress(redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
                client.ping()
                break
            time.sleep(poll_s)
        yield port, data
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(data, ignore_errors=True)
