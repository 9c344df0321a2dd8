"""A log that a later version has written: nothing is wrong with it, and whatever looks at it says so.

Knows: all that a later version may write anew, and where; what opens, looks at, copies or mends a log.
Must never know: how any of it finds out.
"""

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec
import pytest

import engine.codec
from engine import Caps, LogRefusedError
from engine.backup import back_up, inspect, plan, referred_runs, restore
from engine.codec import LAST_KIND, Kind
from engine.log import Log
from engine.log.manifest import MANIFEST
from engine.log.repair import IrreparableError
from engine.log.view import LogView
from engine.records.changes import Configure
from engine.records.payload import KINDS, encode
from engine.runtime.loading import no_progress, recover
from engine.storage.file import FileStorage
from tests.engine.log_cases import append, next_segment, open_log

NOW_MS: Final = 1_800_000_000_000
KNOWN: Final = encode([Configure("stream-node-max-entries", 50)])
_pack: Final = msgspec.msgpack.encode
_LAST_RECORD: Final = max(KINDS)
_LATER_RECORD: Final = (_LAST_RECORD + 1, "s", b"")

# A payload and the kind of its frame, and the version of the frame's format.
Later = tuple[bytes, int, int]
LATER: Final[dict[str, Later]] = {
    f"record {_LAST_RECORD + 1}": (_pack([_LATER_RECORD]), Kind.RECORDS, 1),
    "record 23 with 3 fields": (
        _pack([[Configure.number, "stream-node-max-entries", 50, 1]]),
        Kind.RECORDS,
        1,
    ),
    f"1, kind {LAST_KIND + 1}": (KNOWN, LAST_KIND + 1, 1),
    "2, kind 2": (KNOWN, Kind.RECORDS, 2),
}


def _in_base(log: Log, write: Callable[[Any], None]) -> None:
    next_segment(log)
    base = log.create_base(log.manifest.segments[-1].position)
    write(lambda payload, kind: base.append([payload], kind))
    log.install_base(base.finish(reservation_ms=0))


def _in_a_sealed_segment(log: Log, write: Callable[[Any], None]) -> None:
    write(log.stage)
    append(log, KNOWN, synced=True)
    next_segment(log)


def _in_the_last_segment(log: Log, write: Callable[[Any], None]) -> None:
    write(log.stage)
    append(log, KNOWN, KNOWN, synced=True)


def _at_the_end(log: Log, write: Callable[[Any], None]) -> None:
    append(log, KNOWN, synced=True)
    write(log.stage)
    log.write(log.take_staged())


PLACES: Final = (_in_base, _in_a_sealed_segment, _in_the_last_segment, _at_the_end)


def start(data: Path) -> None:
    with closing(FileStorage(data)) as storage:
        recover(storage, Caps(), no_progress)


def check(data: Path) -> None:
    with closing(FileStorage(data)) as storage:
        refusal = inspect(storage).refusal
    if refusal is not None:
        raise refusal


def mend(data: Path) -> None:
    with closing(FileStorage(data)) as storage:
        plan(storage)


def look_for_runs(data: Path) -> None:
    with closing(FileStorage(data)) as storage, LogView.of(storage) as view:
        referred_runs(view)


def copy_back(data: Path) -> None:
    restore(data, data.with_name("restored"), now_ms=NOW_MS)


WAYS: Final = (start, check, mend, look_for_runs, copy_back)


def contents(data: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in data.iterdir() if file.name != "lock"}


def check_refused(way: Callable[[Path], None], data: Path, says: str) -> None:
    """It names the version as the remedy, no repair, and changes nothing."""
    before = contents(data)
    with pytest.raises((LogRefusedError, IrreparableError)) as refused:
        way(data)
    assert re.search(says, str(refused.value)), refused.value
    assert "run that version" in str(refused.value)
    assert "repair" not in str(refused.value)
    assert contents(data) == before
    assert not data.with_name("restored").exists()


@pytest.mark.early
def test_the_guide_says_what_this_version_reads() -> None:
    """Whoever adds a record names the version that begins to write it."""
    text = (Path(engine.codec.__file__).parent.parent / "docs" / "operations.md").read_text()
    (*_, row) = re.findall(r"^\| [\d.]+ \| (\d+) \| (\d+) \| ([\d–, ]+) \|$", text, re.MULTILINE)
    assert (row[0], row[1]) == ("1", str(engine.codec.VERSION))
    spans = [span.split("–") for span in row[2].split(", ")]
    records = [number for span in spans for number in range(int(span[0]), int(span[-1]) + 1)]
    assert records == sorted(KINDS), "docs/operations.md, Upgrade, names the records that a version reads"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", LATER)
def test_what_a_later_version_wrote_is_refused_as_that(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    place: Callable[[Log, Callable[[Any], None]], None],
    way: Callable[[Path], None],
) -> None:
    """With file and offset, wherever in the log it is."""
    payload, kind, version = LATER[what]

    def write(stage: Callable[[bytes, int], object]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(engine.codec, "VERSION", version)
            stage(payload, kind)

    data = tmp_path / "data"
    with closing(FileStorage(data, create=True)) as storage:
        log = open_log(storage)
        append(log, KNOWN, synced=True)
        place(log, write)
        log.close(clean=False)
    check_refused(way, data, rf"^(base|segment)-\d+\.weir, offset \d+: .*newer version \({what}\)")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda text: text.replace(b"weir log 1", b"weir log 2"), r"^manifest: .*newer version \(2\)"),
        (lambda text: text + b"shard-7.weir position=3\n", r"^manifest: .*newer version \(line 'shard-7"),
    ],
)
def test_a_later_manifest_is_refused_as_that(
    tmp_path: Path, edit: Callable[[bytes], bytes], says: str, way: Callable[[Path], None]
) -> None:
    data = tmp_path / "data"
    with closing(FileStorage(data, create=True)) as storage:
        log = open_log(storage)
        append(log, KNOWN, synced=True)
        log.close()
    text = edit((data / MANIFEST).read_bytes().rpartition(b"checksum=")[0])
    (data / MANIFEST).write_bytes(text + b"checksum=%08x\n" % crc32(text))
    check_refused(way, data, says)


@pytest.mark.parametrize("way", [start, check, mend])
def test_a_damage_before_it_does_not_hide_it(tmp_path: Path, way: Callable[[Path], None]) -> None:
    """A repair would give up what only the later version can read, and go on as this one."""
    data = tmp_path / "data"
    with closing(FileStorage(data, create=True)) as storage:
        log = open_log(storage)
        append(log, KNOWN, synced=True)
        next_segment(log)
        append(log, _pack([_LATER_RECORD]), synced=True)
        log.close()
    segment = data / "segment-1.weir"
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    if way is start:
        with pytest.raises(LogRefusedError, match=r"segment-1\.weir"):
            way(data)
    else:
        check_refused(way, data, r"^segment-2\.weir, offset \d+: ")


def test_a_copy_of_a_later_log_is_one(tmp_path: Path) -> None:
    """A backup copies what it cannot read, byte for byte."""
    data = tmp_path / "data"
    with closing(FileStorage(data, create=True)) as storage:
        log = open_log(storage)
        append(log, _pack([_LATER_RECORD]), synced=True)
        log.close()
    back_up(data, tmp_path / "copy")
    check_refused(start, tmp_path / "copy", "record")
