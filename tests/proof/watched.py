"""A modelled disk that is looked at before every operation, and an event loop whose threads are a matter of
chance.

Knows: which operation of the disk comes next; that what the engine gives to a thread may take as long as it
likes, but one seed always gives the same.
Must never know: what the engine promises.
"""

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple

from engine.storage.memory import Disk, Fault, MemoryHandle, MemoryStorage, _DiskFile
from tests.engine.clocks import HandClock

# The number of turns of the loop that a thread's work takes at most, when it is quick.
TURNS_MAX: Final = 4

Look = Callable[[str, str], None]  # operation, name of the file
Appended = Callable[[str, int, bytes], None]  # name of the file, offset, content


class Failed(NamedTuple):
    """An operation that has failed: what, of which file, the how-manieth of all, when, and how
    long the file was.
    """

    operation: str
    name: str
    number: int
    at_s: float
    size: int


def _ignore(*_: object) -> None:
    """Watch nothing."""


class WatchedStorage(MemoryStorage):
    """`look` is called before each change, `appended` with everything that is about to be appended.

    `faults` fail operations by their number, counted from 0 over the life of this object.
    """

    def __init__(self, disk: Disk | None = None, *, space_bytes: int | None = None) -> None:
        super().__init__(disk=disk, space_bytes=space_bytes)
        self.look: Look = _ignore
        self.appended: Appended = _ignore
        self.faults: dict[int, Fault] = {}
        self.failed: list[Failed] = []
        self.now_s: Callable[[], float] = lambda: 0.0

    @classmethod
    def taking_over(cls, storage: MemoryStorage) -> "WatchedStorage":
        """The same directory, watched from now on."""
        return cls(storage._disk, space_bytes=storage.space_bytes)  # noqa: SLF001 - of its own kind

    def step(self, operation: str, name: str) -> Fault | None:
        """Let them look, then do as a disk does; or fail where that is due."""
        self.look(operation, name)
        fault = super().step(operation, name) or self.faults.get(len(self.operations) - 1)
        if fault is not None:
            size = self.size(name) if name in self.names() else 0
            self.failed.append(Failed(operation, name, len(self.operations) - 1, self.now_s(), size))
        return fault

    def open(self, name: str) -> "WatchedHandle":
        """Open a file that exists."""
        return WatchedHandle(self, name, self._file(name))


class WatchedHandle(MemoryHandle):
    """A handle that reports what it gets."""

    def __init__(self, storage: WatchedStorage, name: str, file: _DiskFile) -> None:
        super().__init__(storage, name, file)
        self._tell = storage
        self._called = name

    def append(self, content: bytes) -> None:
        """Tell, then write."""
        self._tell.appended(self._called, self.size(), content)
        super().append(content)


class ChanceLoop(asyncio.SelectorEventLoop):
    """An event loop under a clock moved by hand. What goes to a thread is done by the loop itself, some turns
    later, or some seconds on a disk that is `slow_s`; in order for each executor, as one thread would.
    """

    def __init__(self, clock: HandClock, chance: random.Random) -> None:
        super().__init__()
        self._clock = clock
        self._chance = chance
        self.slow_s = 0.0
        self._last: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def time(self) -> float:
        """The clock's."""
        return self._clock.monotonic()

    def run_in_executor(  # type: ignore[override] # the same call, the signature of the base is generic
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Do it later."""
        future: asyncio.Future[Any] = self.create_future()
        before = self._last.get(id(executor))
        self._last[id(executor)] = future
        task = self.create_task(self._work(before, future, func, args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return future

    async def _work(
        self,
        before: asyncio.Future[Any] | None,
        future: asyncio.Future[Any],
        func: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        if self.slow_s:
            await asyncio.sleep(self._chance.uniform(0, self.slow_s))
        for _ in range(self._chance.randint(0, TURNS_MAX)):
            await asyncio.sleep(0)
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - the one that waits for the thread gets it
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)
