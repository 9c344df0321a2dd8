"""Each operation of a disk fails once, with each error that there is: what follows, and what is said of it.

Knows: all operations of a storage, and the errors. Must never know: which step of the engine asks for which.

A log has failed only where it is unknown what the disk holds: after a failed sync, and after a write that
failed for another reason than want of room. All else goes on, or is tried again, and no answer
was given in vain.
"""

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import pytest

from engine import EngineError, LogRefusedError, RewriteFailedError
from engine.log import LogPoisonedError
from engine.remedies import explain
from engine.storage import Handle, Storage
from engine.storage.memory import Fault, MemoryStorage
from tests.engine.clocks import let_threads_run
from tests.engine.running import keyspace_of
from tests.engine.test_runs import Stored, after_restart, seen

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
CODES: Final = (
    *NO_ROOM,
    *(errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.EROFS),
    *(errno.EACCES, errno.EPERM, errno.EFBIG, errno.ENOMEM, errno.EINVAL),
)
OPERATIONS: Final = (
    *("open", "names", "size", "read", "create", "append", "sync", "preallocate", "truncate"),
    *("overwrite", "rename", "unlink", "sync_directory"),
)
_SECONDS_MAX: Final = 10


class Failing(MemoryStorage):
    """A disk that notes where it has failed, and how often it was asked for what."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        super().__init__(files)
        self.asked: Counter[str] = Counter()
        self.failed_at: tuple[str, int] | None = None

    def _due(self, operation: str) -> Fault | None:
        self.asked[operation] += 1
        return super()._due(operation)

    def step(self, operation: str, name: str) -> Fault | None:
        file = self._disk.live.get(name)
        size = 0 if file is None else len(file.live)
        fault = super().step(operation, name)
        if fault is not None:
            self.failed_at = (name, size)
        return fault


def failing(image: MemoryStorage) -> Failing:
    """The same directory, all of it synced."""
    return Failing({name: image.content(name) for name in image.names()})


async def in_time(talk: Stored, task: "asyncio.Task[object]") -> None:
    """Let seconds pass until it is done."""
    for _ in range(_SECONDS_MAX):
        for _ in range(200):
            if task.done():
                return
            await let_threads_run()
        await talk.pass_ms(1_000)
    assert task.done(), "it goes on within seconds"


async def add(talk: Stored, number: int) -> bool:
    begun = await talk.begin("XADD", "s", f"{number}-0", "n", f"value {number}")
    await in_time(talk, begun.task)
    return begun.task.result() == f"{number}-0"


async def rewrite(talk: Stored) -> None:
    task = asyncio.ensure_future(talk.engine.rewrite())
    await in_time(talk, task)
    with suppress(RewriteFailedError):
        task.result()


async def live(talk: Stored) -> list[int]:
    """Add, store, rewrite, delete, read what is cold, stand idle; which entries were answered for."""
    added = [number for number in range(31, 36) if await add(talk, number)]
    with suppress(OSError, EngineError, LogPoisonedError):
        await talk.store()
    await rewrite(talk)
    added += [number for number in range(36, 39) if await add(talk, number)]
    await talk.call("XDEL", "s", "5-0")
    await talk.call("XRANGE", "s", "-", "+")
    await rewrite(talk)
    await talk.pass_ms(3_000)
    return added


@pytest.fixture(scope="module")
def image() -> MemoryStorage:
    """Three nodes of ten entries."""

    async def fill() -> MemoryStorage:
        storage = MemoryStorage()
        async with Stored(storage, "always") as talk:
            await talk.fill(30)
        return storage

    return asyncio.run(fill())


def poisons(storage: Failing, operation: str, code: int) -> bool:
    """Whether it is unknown what the log's file has: a file without frames is one that was only prepared."""
    name, size = storage.failed_at or ("", 0)
    if not name.startswith("segment-"):
        return False
    return (operation == "sync" and size > 0) or (operation == "append" and code not in NO_ROOM)


async def asked(image: MemoryStorage) -> Counter[str]:
    """How often a life without a fault asks for each operation, once it is open."""
    storage = failing(image)
    async with Stored(storage, "always") as talk:
        storage.asked.clear()
        await live(talk)
        return Counter(storage.asked)


def test_a_disk_has_these_operations() -> None:
    """One that is new has to be put somewhere."""
    without_faults = {"lock", "unlock", "close", "descriptor", "is_in_place", "reader", "replace"}
    there = Storage.__abstractmethods__ | Handle.__abstractmethods__ | {"is_in_place"}
    assert there - without_faults == set(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_while_it_serves(operation: str, image: MemoryStorage) -> None:
    """Each error, each at another of the times at which the operation is asked for."""
    count = (await asked(image))[operation]
    for place, code in enumerate(CODES):
        storage, reasons = failing(image), list[str]()
        async with Stored(storage, "always") as talk:
            engine, remedy = talk.engine, explain(OSError(code, os.strerror(code)))
            engine.events.storing_failed = reasons.append
            engine.events.rewrite_failed = partial(_note, reasons)
            storage.fail(operation, code, nth=1 + (place * 5) % max(1, count))
            added = await live(talk)
            storage.heal()
            failure = engine.log_figures().failure
            assert (failure is not None) == poisons(storage, operation, code), (
                code,
                storage.failed_at,
                failure,
            )
            assert all(remedy in reason for reason in [*reasons, *([failure] if failure else [])]), reasons
            if failure is None:
                assert await add(talk, 50), code
                added.append(50)
                await talk.engine.rewrite()
                assert engine.figures().rewrites.failure is None
            found = {number for number, *_ in entries_in(seen(keyspace_of(engine)))}
            assert found >= {*added}
            again = await after_restart(storage.crash())
            assert {number for number, *_ in entries_in(again)} >= {*added}, code


def _note(reasons: list[str], reason: str, _: float) -> None:
    reasons.append(reason)


def entries_in(found: object) -> Iterator[tuple[int, bytes]]:
    assert isinstance(found, dict)
    yield from ((entry_id >> 64, text) for entry_id, text in found["s"][0])


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_while_it_starts_and_stops(operation: str, image: MemoryStorage) -> None:
    """A start is refused with the remedy, or succeeds; so does a stop. The next start finds all there was."""
    for place, code in enumerate(CODES):
        storage = failing(image)
        storage.fail(operation, code, nth=1 + place % 4)
        refusals = list[str]()
        try:
            async with Stored(storage, "always"):
                pass
        except (LogRefusedError, LogPoisonedError) as refused:
            refusals.append(str(refused))
        assert all(explain(OSError(code, os.strerror(code))) in one for one in refusals)
        storage.heal()
        again = await after_restart(storage.crash())
        assert {number for number, _ in entries_in(again)} == {*range(1, 31)}, code
