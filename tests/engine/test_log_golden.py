"""A log that version 1 wrote is read for ever, and version 1 writes no other."""

from pathlib import Path

from engine.log.files import create_base, next_number
from engine.log.manifest import Manifest, decode
from engine.storage.memory import MemoryStorage
from tests.engine.log_cases import append, files, open_log

GOLDEN = Path(__file__).parents[1] / "golden" / "log-v1"


def write_golden() -> dict[str, bytes]:
    """Every kind of frame and of file, as a rewrite and a clean stop leave them. The salts are fixed."""
    storage = MemoryStorage()
    log = open_log(storage)
    append(log, b"before the base", synced=True)
    log.seal_and_start_segment()
    log.reserve_ids(1_700_000_000_123)
    append(log, b"one", b"", synced=True)
    log.seal_and_start_segment()
    append(log, bytes(range(256)), synced=True)
    log.mark(clean=False)
    log.close()
    first, *rest = decode(storage.content("manifest")).segments
    position = rest[0].position
    number = next_number(storage, Manifest(segments=(first, *rest)))
    base = create_base(storage, number, position, [b"all of it"], reservation_ms=1_600_000_000_000, salt=9)
    storage.replace("manifest", [Manifest(base, tuple(rest)).encode()])
    storage.unlink(first.name)
    storage.sync_directory()
    return files(storage.crash())


def test_todays_bytes_are_the_golden_ones() -> None:
    """Whoever changes the format by accident learns it here; by intent, adds files of a new version."""
    golden = {path.name: path.read_bytes() for path in GOLDEN.iterdir()}
    assert write_golden() == golden


def test_the_golden_log_is_read() -> None:
    """Base first, then the segments; with the highest reservation, and the clean stop."""
    log = open_log(MemoryStorage({path.name: path.read_bytes() for path in GOLDEN.iterdir()}))
    assert list(log.replay()) == [b"all of it", b"one", b"", bytes(range(256))]
    report = log.recovery
    assert (report.frames, report.bytes, report.torn_bytes, report.sequence) == (4, 149 + 183 + 430, 0, 9)
    assert report.reservation_ms == 1_700_000_000_123
    assert report.clean_stop
