"""Syncs by the kernel, on real files; and by a thread wherever the kernel does not do it.

Knows: which threads, descriptors and contexts of the kernel the process has.
Must never know: how the kernel is asked.
"""

import asyncio
import errno
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from engine import Engine, EngineError, SystemClock, entries
from engine.commands.types import XAdd, XLen
from engine.runtime.kernel_syncs import KernelSyncs
from engine.storage import Handle
from engine.storage.file import FileHandle, FileStorage
from tests.engine.asking import reply_to
from tests.proof.machine import CutDisk, needs, no_loop_disk

BODY = entries.body([("n", "1")])


async def opened(storage: Callable[[], FileStorage]) -> Engine:
    return await asyncio.to_thread(lambda: Engine.open(storage(), clock=SystemClock(), fsync="always"))


async def add(engine: Engine, times: int = 1) -> None:
    for _ in range(times):
        await reply_to(engine, XAdd(stream="s", bodies=(BODY,)))


def kept() -> Counter[str]:
    """What of the kernel the process keeps: descriptors by kind, and contexts of asynchronous operations."""
    found = Counter[str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        # The one of this list is gone.
        with suppress(FileNotFoundError):
            found[str(descriptor.readlink()).split(":")[0]] += 1
    maps = Path("/proc/self/maps").read_text()
    return found + Counter(contexts=maps.count("/[aio]"))


async def test_the_kernel_syncs_without_a_thread(tmp_path: Path) -> None:
    """Each answer waits for its sync, and the next start finds what was answered."""
    before = set(threading.enumerate())
    async with await opened(lambda: FileStorage(tmp_path / "d", create=True)) as engine:
        assert engine.log_figures().syncs == "kernel"
        await add(engine, 20)
        assert engine.log_figures().unsynced_bytes == 0
        assert sum(engine.figures().sync_seconds.counts) >= 20
        assert not [thread for thread in set(threading.enumerate()) - before if "weir-sync" in thread.name]
    async with await opened(lambda: FileStorage(tmp_path / "d")) as engine:
        assert await reply_to(engine, XLen(stream="s")) == 20


async def test_publishing_goes_on_through_rewrites(tmp_path: Path) -> None:
    """The file that ends is synced with the next one: by the thread, and then by the kernel again."""
    async with await opened(lambda: FileStorage(tmp_path / "d", create=True)) as engine:
        adding = asyncio.gather(*(add(engine, 30) for _ in range(4)))
        for _ in range(3):
            await engine.rewrite()
        await adding
        assert engine.log_figures().syncs == "kernel"
    async with await opened(lambda: FileStorage(tmp_path / "d")) as engine:
        assert await reply_to(engine, XLen(stream="s")) == 120


async def test_an_engine_that_ends_leaves_nothing_open(tmp_path: Path) -> None:
    """After a clean stop, and after one that only lets go, as behind a fault."""
    before = kept()
    storage = await asyncio.to_thread(FileStorage, tmp_path / "d", create=True)
    for _ in range(3):
        engine = await opened(lambda: storage)
        await engine.start()
        await add(engine)
        assert kept()["contexts"] == before["contexts"] + 1
        await engine._writer.finish_turns()  # noqa: SLF001 - as the engine does behind a fault
        await engine.abandon()
    async with await opened(lambda: storage) as engine:
        await add(engine)
    for _ in range(200):
        # A thread gives the kernel's part back.
        if kept() == before:
            break
        await asyncio.sleep(0.05)
    assert kept() == before


class OtherHandle(FileHandle):
    """A file in whose place the kernel is asked for another one."""

    other: int

    @property
    def descriptor(self) -> int:
        return self.other


class OtherStorage(FileStorage):
    """A directory of such files."""

    def __init__(self, path: Path, other: int) -> None:
        super().__init__(path, create=True)
        self._other = other

    def create(self, name: str) -> FileHandle:
        return self._changed(super().create(name))

    def open(self, name: str) -> FileHandle:
        return self._changed(super().open(name))

    def _changed(self, handle: Handle) -> FileHandle:
        handle.__class__ = OtherHandle
        assert isinstance(handle, OtherHandle)
        handle.other = self._other
        return handle


async def test_a_thread_syncs_what_the_kernel_refuses(tmp_path: Path) -> None:
    """A pipe, as an old kernel refuses files: a thread does it, and all that follow; the status says so."""
    reading, writing = os.pipe()
    async with await opened(lambda: OtherStorage(tmp_path / "d", reading)) as engine:
        await add(engine, 3)
        figures = engine.log_figures()
        assert (figures.syncs, figures.unsynced_bytes, figures.failure) == ("thread", 0, None)
    os.close(reading)
    os.close(writing)


@needs(no_loop_disk)
async def test_a_sync_that_fails_in_the_kernel_ends_the_log(tmp_path: Path) -> None:
    """No answer leaves, and nothing is tried again: neither by the kernel nor by a thread."""
    with CutDisk(tmp_path) as disk:
        file = os.open(disk.place / "f", os.O_WRONLY | os.O_CREAT)
        try:
            async with await opened(lambda: OtherStorage(tmp_path / "d", file)) as engine:
                await add(engine)
                disk.cut()
                with pytest.raises(EngineError) as refused:
                    await add(engine)
                figures = engine.log_figures()
                assert (refused.value.code, figures.syncs) == ("storage_failed", "kernel")
                assert "Input/output error" in (figures.failure or "")
                assert figures.unsynced_bytes > 0
        finally:
            os.close(file)


@needs(no_loop_disk)
async def test_a_failed_sync_says_why(tmp_path: Path) -> None:
    """As fdatasync does; a descriptor that is none is refused before anything begins."""
    with CutDisk(tmp_path) as disk, ThreadPoolExecutor(1) as thread:
        syncs = KernelSyncs()
        file = os.open(disk.place / "f", os.O_WRONLY | os.O_CREAT)
        os.write(file, b"x")
        assert await syncs.sync(file) is None
        os.write(file, b"y")
        disk.cut()
        error = await syncs.sync(file)
        assert error is not None
        assert error.errno == errno.EIO
        os.close(file)
        with pytest.raises(OSError, match="Bad file descriptor"):
            syncs.sync(file)
        syncs.close(thread)
