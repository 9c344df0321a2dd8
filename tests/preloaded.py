"""Processes of `weir` forked from one that has imported it: a start takes a tenth of the processor time.

Knows: the standard library's fork server. Must never know: what a process is for.

A process runs what `python -m weir` runs, in an environment and with arguments of its own.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Final

import pytest

# What `weir serve` imports on its way, with its fronts.
_MODULES: Final = (
    "tests.preloaded",
    "weir.cli.main",
    "app.cli.plugin",
    "app.server",
    "app.supervisor",
    "app.transport.systemd",
)
# Coverage would measure the fork server, and so all that it forks.
_NOT_INHERITED: Final = "COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"


@cache
def _context() -> ForkServerContext:
    """The fork server of this process of pytest; it ends with it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_MODULES))
    return context


def _run(words: tuple[str, ...], log: Path, folder: Path, environment: dict[str, str]) -> None:
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(said, sys.stdout.fileno())
    os.dup2(said, sys.stderr.fileno())
    os.close(said)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["weir", *words]
    from weir.cli.entry import main  # noqa: PLC0415 - preloaded; pytest itself does not need it

    main()


class Preloaded:
    """`weir` with these arguments, writing to `log`; used like a `subprocess.Popen`."""

    def __init__(self, *words: str, log: Path, environment: Mapping[str, str]) -> None:
        place = log.absolute(), Path.cwd(), dict(environment)
        # Whatever pytest leaves behind ends with it.
        self._process = _context().Process(target=_run, args=(words, *place), daemon=True)
        with pytest.MonkeyPatch.context() as ours:
            for name in _NOT_INHERITED:
                ours.delenv(name, raising=False)
            self._process.start()
        assert self._process.pid is not None, "it was started"
        self.pid: int = self._process.pid
        # Its end is read once, and threads may ask at the same time.
        self._asking = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, once it has ended; below zero for a signal."""
        with self._asking:
            return self._process.exitcode

    def wait(self, timeout_s: float) -> int:
        """Wait for the exit code. Raises `subprocess.TimeoutExpired`."""
        wait([self._process.sentinel], timeout_s)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("weir", timeout_s)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it is still there."""
        if self.poll() is None:
            os.kill(self.pid, signal.Signals(number))
