"""A log that version 1 wrote is read for ever, and version 1 writes no other."""

from pathlib import Path

import pytest

from engine.log import Log
from engine.log.manifest import decode
from engine.storage.memory import MemoryStorage
from tests.engine.log_cases import append, files, next_segment, open_log, write_base

GOLDEN = Path(__file__).parents[1] / "golden" / "log-v1"  # from before a clean stop was recorded
STOPPED = Path(__file__).parents[1] / "golden" / "log-v1-stopped"  # what differs since


def write_golden() -> dict[str, bytes]:
    """Every kind of frame and of file, as a rewrite and a clean stop leave them. The salts are fixed."""
    storage = MemoryStorage()
    salts = iter([0x5EED0001, 0x5EED0002, 0x5EED0003, 9])
    log = Log.open(storage, reserve_bytes=4096, salt=salts.__next__)
    append(log, b"before the base", synced=True)
    next_segment(log)
    log.reserve_ids(1_700_000_000_123)
    append(log, b"one", b"", synced=True)
    next_segment(log)
    append(log, bytes(range(256)), synced=True)
    log.mark(clean=False)
    log.write(log.take_staged())
    second = decode(storage.content("manifest")).segments[1]
    write_base(log, second.position, b"all of it", reservation_ms=1_600_000_000_000)
    log.close()
    return files(storage.crash())


def golden(*folders: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for folder in folders for path in folder.iterdir()}


def test_todays_bytes_are_the_golden_ones() -> None:
    """A change of the format by accident fails here; by intent, adds files of a new version."""
    assert write_golden() == golden(GOLDEN, STOPPED)


@pytest.mark.parametrize("folders", [(GOLDEN,), (GOLDEN, STOPPED)], ids=["v1", "v1-stopped"])
def test_the_golden_log_is_read(folders: tuple[Path, ...]) -> None:
    """Base first, then the segments; with the highest reservation, and the clean stop."""
    log = open_log(MemoryStorage(golden(*folders)))
    assert list(log.replay()) == [b"all of it", b"one", b"", bytes(range(256))]
    report = log.recovery
    assert (report.frames, report.bytes, report.torn_bytes, report.sequence) == (4, 149 + 183 + 430, 0, 9)
    assert report.reservation_ms == 1_700_000_000_123
    assert report.clean_stop
