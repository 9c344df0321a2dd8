"""Damaged cold entries that were given up hold up no backup, no check and no restore."""

import asyncio
from pathlib import Path

import pytest

from engine import Engine
from engine.backup import back_up, inspect, restore
from engine.log import LogRefusedError
from engine.storage.file import FileStorage
from engine.storage.memory import MemoryStorage
from tests.engine.clocks import HandClock
from tests.engine.running import keyspace_of
from tests.engine.test_runs import Stored, run_files, seen

NODE_BYTE = 300


async def filled(storage: MemoryStorage, runs: int = 3) -> None:
    """Runs of a hundred entries each, in one file."""
    async with Stored(storage) as talk:
        for number in range(runs):
            await talk.fill(100, 1 + 100 * number)
            await talk.store()


async def give_up(storage: MemoryStorage, minid: str) -> None:
    """What the refusal of a read says."""
    async with Stored(storage) as talk:
        assert await talk.call("XTRIM", "s", "MINID", minid, synced=True)


def damaged(storage: MemoryStorage, *places: int) -> MemoryStorage:
    """With other bytes at these places of the file of runs."""
    (name,) = run_files(storage)
    content = bytearray(storage.content(name))
    for place in places:
        content[place] ^= 1
    files = {each: storage.content(each) for each in storage.names() if each != "lock"}
    return MemoryStorage(files | {name: bytes(content)})


def on_disk(storage: MemoryStorage, path: Path) -> Path:
    path.mkdir()
    for name in storage.names():
        (path / name).write_bytes(storage.content(name))
    return path


def opened(path: Path) -> object:
    """What a start sees of it."""
    engine = Engine.open(path, clock=HandClock())
    engine.check()
    return seen(keyspace_of(engine))


@pytest.mark.parametrize("place", [NODE_BYTE, 0], ids=["a node", "the header"])
def test_what_was_given_up_is_not_missed(place: int, tmp_path: Path) -> None:
    """Its bytes stay in the file, where all behind them has its place; a backup is as good as the log."""
    storage = MemoryStorage()
    asyncio.run(filled(storage))
    broken = damaged(storage, place)
    assert inspect(broken).stored[0].damage is not None
    data = on_disk(broken, tmp_path / "data")
    with pytest.raises(LogRefusedError, match="restore a backup, or give them up"):
        back_up(data, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    asyncio.run(give_up(broken, "91-0"))
    data = on_disk(broken, tmp_path / "given up")
    found = inspect(FileStorage(data))
    assert (found.stored[0].damage, found.stored[0].runs) == (None, 2)
    with pytest.raises(LogRefusedError):
        back_up(data, tmp_path / "without loading", loads=False)
    back_up(data, tmp_path / "backup")
    assert opened(tmp_path / "backup") == opened(data)
    restore(tmp_path / "backup", tmp_path / "restored", now_ms=0)
    assert inspect(FileStorage(tmp_path / "restored")).stored[0].damage is None


def test_a_damage_behind_one_that_was_given_up_is_still_found() -> None:
    """Until that is given up too."""
    storage = MemoryStorage()
    asyncio.run(filled(storage))
    (name,) = run_files(storage)
    last = len(storage.content(name)) - 1
    broken = damaged(storage, NODE_BYTE)
    asyncio.run(give_up(broken, "91-0"))
    broken = damaged(broken, last)
    found = inspect(broken).stored[0]
    assert (found.damage is not None, found.runs) == (True, 1)
    asyncio.run(give_up(broken, "291-0"))
    assert inspect(broken).stored[0].damage is None
