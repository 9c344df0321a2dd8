"""The guard of the event loop: what it refuses, and what it lets pass.

Knows: that code counts as ours by the folder of its file. Must never know: what is tested under the guard.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from blockbuster import BlockingError
from coverage import Coverage

import app

OURS: Final = Path(app.__file__).parent
# Longer than coverage needs to come to its lock, on any machine.
HELD_S: Final = 0.05


def our_code() -> Callable[[Callable[[], object]], Coroutine[Any, Any, None]]:
    """A coroutine function that calls what it is given, as if it stood in a module of `app`."""
    names: dict[str, Any] = {}
    exec(compile("async def call(function): function()", OURS / "made_up.py", "exec"), names)
    call: Callable[[Callable[[], object]], Coroutine[Any, Any, None]] = names["call"]
    return call


@pytest.fixture
def measured() -> Iterator[threading.Lock]:
    """Coverage of `app`, beside the one that may be running; the lock over its data."""
    coverage = Coverage(data_file=None, source=[str(OURS)])
    coverage.start()
    collector = coverage._collector  # noqa: SLF001  # nothing public leads to its lock
    assert collector is not None, "it was started"
    assert collector.data_lock is not None, "threads are measured"
    yield collector.data_lock
    coverage.stop()


def test_waiting_for_another_thread_is_refused() -> None:
    """Such a turn takes as long as the other thread holds the lock."""
    lock = threading.Lock()
    with lock, pytest.raises(BlockingError, match=r"lock\.acquire"):
        asyncio.run(our_code()(lock.acquire))


def test_coverage_may_wait_for_its_own_lock(measured: threading.Lock) -> None:
    """It takes the lock at calls of measured functions, and another busy thread may hold it just then.

    Refused, the error came out of the function that was called, and a gateway answered 500 until its end.
    """
    call = our_code()
    measured.acquire()
    release = threading.Timer(HELD_S, measured.release)
    release.start()
    try:
        asyncio.run(call(list))
    finally:
        release.join()
