"""The data directory goes away below a running engine: from the next second on nothing is acknowledged.

Knows: real directories, and what can be done to them by a path; each policy of syncs.
Must never know: which call the engine makes to find out.
"""

import asyncio
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self, get_args

import pytest

from engine import Engine, Fsync
from engine.log import Log, LogPoisonedError, OpenFile
from engine.storage.file import FileStorage
from engine.storage.memory import MemoryStorage
from tests.engine.clocks import let_threads_run
from tests.engine.conversation import Conversation
from tests.engine.test_after_failure import FAILED

Way = Callable[[Path], None]


def _segment(data: Path) -> Path:
    (segment,) = data.glob("segment-*")
    return segment


def delete(data: Path) -> None:
    shutil.rmtree(data)


def delete_the_segment(data: Path) -> None:
    _segment(data).unlink()


def move(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def move_a_parent(data: Path) -> None:
    data.parent.rename(data.parent.with_name("elsewhere"))


def put_a_file_in_the_place_of_a_parent(data: Path) -> None:
    move_a_parent(data)
    data.parent.touch()


def put_a_copy_in_its_place(data: Path) -> None:
    """As a restore of a backup does."""
    move(data)
    shutil.copytree(data.with_name("elsewhere"), data)


def mount_over(data: Path) -> None:
    _mount("-t", "tmpfs", "none", data)


def bind_another_over(data: Path) -> None:
    other = data.with_name("other")
    other.mkdir()
    _mount("--bind", other, data)


def bind_a_parent_over(data: Path) -> None:
    other = data.parent.with_name("other")
    other.mkdir()
    _mount("--bind", other, data.parent)


def _mount(*words: str | Path) -> None:
    if subprocess.run(["mount", *map(str, words)], check=False, capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")


AWAY: Final[tuple[Way, ...]] = (
    *(delete, delete_the_segment, move, move_a_parent, put_a_file_in_the_place_of_a_parent),
    *(put_a_copy_in_its_place, mount_over, bind_another_over, bind_a_parent_over),
)


def move_and_link(data: Path) -> None:
    """It is found there."""
    move(data)
    data.symlink_to(data.with_name("elsewhere"))


def move_and_back(data: Path) -> None:
    move(data)
    data.with_name("elsewhere").rename(data)


def bind_it_to_itself(data: Path) -> None:
    _mount("--bind", data, data)


STAYS: Final[tuple[Way, ...]] = (move_and_link, move_and_back, bind_it_to_itself)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory; what was mounted over it goes at the end."""
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "data").mkdir(0o700)
    yield parent / "data"
    for mounted in (parent / "data", parent):
        subprocess.run(["umount", "-l", str(mounted)], check=False, capture_output=True)


class OnDisk(Conversation):
    """A real directory is opened in a thread."""

    async def __aenter__(self) -> Self:
        self._ready = await asyncio.to_thread(super().opened)
        return await super().__aenter__()

    def opened(self) -> Engine:
        return self._ready


async def a_second(talk: Conversation) -> None:
    """Let a second pass, and its look end."""
    await talk.pass_ms(1_000)
    while talk.engine._writer._looking is not None:  # noqa: SLF001 - nothing else says when it has ended
        await let_threads_run()


@pytest.fixture
def storage(data: Path) -> Iterator[FileStorage]:
    storage = FileStorage(data)
    yield storage
    storage.close()


@pytest.mark.parametrize("fsync", get_args(Fsync))
@pytest.mark.parametrize("way", AWAY)
async def test_without_its_file_it_is_read_only_within_a_second(
    data: Path, storage: FileStorage, way: Way, fsync: Fsync
) -> None:
    """Writes are refused, the reason is there for health and log, reads go on."""
    reasons = list[str]()
    async with OnDisk(storage, fsync) as talk:
        talk.engine.events.log_failed = reasons.append
        await talk.add("s", "1-0")
        await a_second(talk)
        assert reasons == []
        await asyncio.to_thread(way, data)
        await a_second(talk)
        assert await talk.call("XADD", "s", "2-0", "a", "1") == FAILED
        assert await talk.call("XRANGE", "s", "-", "+") == [["1-0", ["a", "1"]]]
        (reason,) = reasons
        assert reason == talk.engine.log_figures().failure
        assert "segment-1.weir is not in the data directory any more" in reason
        assert "put the directory back" in reason


@pytest.mark.parametrize("way", STAYS)
async def test_where_the_path_still_leads_to_it_all_goes_on(
    data: Path, storage: FileStorage, way: Way
) -> None:
    """Links and mounts that show the same file."""
    async with OnDisk(storage) as talk:
        await asyncio.to_thread(way, data)
        await a_second(talk)
        await talk.add("s", "1-0")
        assert talk.engine.log_figures().failure is None


async def test_a_path_that_cannot_be_looked_at_says_nothing(
    storage: FileStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a server of files does not answer, or a parent may not be searched any more."""
    looked = list[int]()

    def fail(*_: object) -> bool:
        looked.append(threading.get_ident())
        raise PermissionError

    async with OnDisk(storage) as talk:
        monkeypatch.setattr(storage, "is_in_place", fail)
        for _ in range(3):
            await a_second(talk)
        await talk.add("s", "1-0")
    assert len(looked) >= 2
    assert threading.get_ident() not in looked, "the event loop waits for no disk"


def test_the_look_at_a_file_in_which_the_log_does_not_grow_any_more_changes_nothing() -> None:
    """Whatever it found; that at the one in which it does is the end of the log."""
    storage = MemoryStorage()
    log = Log.open(storage)
    old = log.open_file
    log.start_segment(log.prepare_segment())
    log.end_look(old, is_in_place=False)
    log.end_look(log.open_file, is_in_place=True)
    assert log.poisoned is None
    with pytest.raises(LogPoisonedError):
        log.end_look(OpenFile(*log.open_file), is_in_place=False)
    assert log.poisoned is not None
