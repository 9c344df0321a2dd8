"""Processes of `weir` forked from one that has imported it: a start takes a tenth of the processor time.

Knows: the standard library's fork server, how coverage measures a process.
Must never know: what a process is for.

A process runs what `python -m weir` runs, with an environment, arguments and standard streams of its own.
"""

import io
import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing import reduction
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, ClassVar, Final

import coverage
import pytest

# What `weir serve` imports on its way, with its fronts; and what workers do.
_MODULES: Final = (
    "tests.preloaded",
    "weir.cli.main",
    "weir.worker",
    "app.cli.plugin",
    "app.server",
    "app.supervisor",
    "app.transport.systemd",
)
# Coverage would measure the fork server, and so all that it forks, from their first import on.
_COVERAGE: Final = "COVERAGE_PROCESS_CONFIG"
_STREAMS: Final = (
    ("stdin", 0, "rb", "surrogateescape"),
    ("stdout", 1, "wb", "surrogateescape"),
    ("stderr", 2, "wb", "backslashreplace"),
)


@cache
def _context() -> ForkServerContext:
    """The fork server of this process of pytest; it ends with it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_MODULES))
    return context


class _Sent:
    """An open file among the arguments of a process, where it is a number again."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _receive, (reduction.DupFd(self._number),)


def _receive(sent: Any) -> int:
    number: int = sent.detach()
    return number


def _run(
    words: Sequence[str],
    streams: Sequence[int],
    folder: Path,
    environment: Mapping[str, str],
    program: str | None,
) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # As Python makes them where the locale is C.UTF-8.
    for name, number, mode, errors in _STREAMS:
        plain = os.fdopen(number, mode, closefd=False)
        setattr(sys, name, io.TextIOWrapper(plain, "utf-8", errors, line_buffering=name == "stderr"))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["weir", *words]
    from weir.cli.entry import main  # noqa: PLC0415 - preloaded; pytest itself does not need it

    measured = coverage.process_startup() if _COVERAGE in environment else None
    try:
        if program is None:
            main()
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    finally:
        if measured is not None:
            # The fork server's processes end without what `atexit` has collected.
            measured.stop()
            measured.save()


class Preloaded:
    """`weir` with these arguments; used like a `subprocess.Popen`. `streams` are the open files that become
    its standard input, output and error. `program` is a module that plants something before it runs `weir`.
    """

    # An exit code can be read once from the fork server, and threads may read at the same time.
    _asking: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        words: Sequence[str],
        streams: Sequence[int],
        environment: Mapping[str, str],
        program: str | None = None,
    ) -> None:
        sent = [_Sent(number) for number in streams]
        # Processes that tests leave running end with pytest.
        self._process = _context().Process(
            target=_run, args=(words, sent, Path.cwd(), dict(environment), program), daemon=True
        )
        with self._asking, pytest.MonkeyPatch.context() as ours:
            ours.delenv(_COVERAGE, raising=False)
            self._process.start()
        assert self._process.pid is not None, "it was started"
        self.pid: int = self._process.pid

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
            os.kill(self.pid, number)
