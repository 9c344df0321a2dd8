"""The peers that a bench runs beside, each of its own on loopback, ended with it; what a process uses."""

import contextlib
import os
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
# Debian's package for each program that is needed.
_PROGRAMS = {
    "redis-server": "redis-server",
    "redis-benchmark": "redis-tools",
    "nats-server": "nats-server",
    "webdis": "webdis",
    "wrk": "wrk",
}


def missing_packages() -> list[str]:
    """The packages to install first."""
    return [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]


def server_version(program: str) -> str:
    """`redis-server 7.0.15`, as the program itself says."""
    line = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(_VERSIONS[program], line)
    assert found is not None, f"no version in: {line}"
    return f"{program} {found[1]}"


def debian_version(package: str) -> str:
    """The same of a program that does not say, as Debian's package has it."""
    asking = ["dpkg-query", "-W", "-f", "${Version}", package]
    found = subprocess.run(asking, check=False, capture_output=True, text=True).stdout
    return f"{package} {found or 'of unknown version'}"


def package_versions(*names: str) -> str:
    """`redis 8.1.0, hiredis 3.5.0`."""
    return ", ".join(f"{name} {version(name)}" for name in names)


def free_port() -> int:
    """A port with no listener right now."""
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


def cpu_s_of(pid: int) -> float:
    """The processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes_of(pid: int) -> int:
    """What a process holds in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
