"""After any damage to the files, what was safe is served whole, or the log is refused."""

import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from engine.codec import FILE_FRAME_BYTES, Kind, encode_header, file_salt
from engine.log import Log, LogPoisonedError, LogRefusedError
from engine.storage import StorageLockedError
from engine.storage.file import FileStorage
from engine.storage.memory import MemoryStorage, StoppedError
from tests.engine.log_cases import (
    SEGMENT,
    append,
    begun,
    changed,
    closed,
    files,
    frames_of,
    open_log,
    payload,
    reader,
    recovered,
    synced_then_not,
    torn_files,
)


def payloads_of(storage: MemoryStorage, *, before: int | None = None) -> list[bytes]:
    """The payloads whose frames end at or before an offset of the segment."""
    frames = frames_of(storage.content(SEGMENT))
    return [
        frame.payload
        for frame in frames
        if frame.kind == Kind.RECORDS and (before is None or frame.end <= before)
    ]


def durable_length(storage: MemoryStorage) -> int:
    return max(frame.durable_upto for frame in frames_of(storage.content(SEGMENT)))


class TestAFreshDirectory:
    def test_begins_an_empty_log(self) -> None:
        """Nothing to replay, nothing torn, and the files are the manifest and one segment."""
        storage, log = begun()
        assert list(log.replay()) == []
        assert (log.recovery.frames, log.recovery.torn_bytes, log.recovery.sequence) == (0, 0, 0)
        assert log.durable_upto == log.written_upto == log.staged_upto == FILE_FRAME_BYTES
        log.close()
        assert storage.names() == ["manifest", SEGMENT]

    def test_can_be_begun_after_a_crash_at_any_step(self) -> None:
        """However far the first start came, killed or without power, the second one begins an empty log."""
        steps = 0
        for steps in range(100):
            storage = MemoryStorage()
            storage.stop_before(steps)
            try:
                open_log(storage)
            except StoppedError:
                pass
            else:
                break
            images = [storage.crash(name_changes=n) for n in range(storage.unsynced_name_changes() + 1)]
            for image in (storage.kill(), *images):
                assert recovered(image) == []
                assert recovered(image.crash()) == []
        assert steps > 10

    def test_keeps_what_is_acknowledged_after_a_start_that_was_killed(self) -> None:
        """Killed at any step, the first one may leave names that are not synced. The second one syncs them
        before it promises anything, or a power cut would take the files that its frames are in.
        """
        steps = 0
        for steps in range(100):
            storage = MemoryStorage()
            storage.stop_before(steps)
            with suppress(StoppedError):
                open_log(storage)
            second = storage.kill()
            log = open_log(second)
            append(log, b"acknowledged", synced=True)
            for names in range(second.unsynced_name_changes() + 1):
                assert recovered(second.crash(name_changes=names)) == [b"acknowledged"]
            if not storage.stopped:
                break
        assert 10 < steps < 99


class TestACutLog:
    def test_gives_every_whole_frame_and_keeps_the_torn_bytes(self) -> None:
        """Cut at every byte behind the first frame: a prefix of whole frames, and not a byte is lost."""
        storage = synced_then_not()
        content = storage.content(SEGMENT)
        ends = [frame.end for frame in frames_of(content)]
        for cut in range(FILE_FRAME_BYTES, len(content)):
            image = changed(storage, SEGMENT, content[:cut])
            sound = max(end for end in ends if end <= cut)
            log = open_log(image)
            assert list(log.replay()) == payloads_of(storage, before=cut)
            assert log.recovery.torn_bytes == cut - sound
            assert image.content(SEGMENT) == content[:sound]
            kept = {f"{SEGMENT}.torn-{sound}": content[sound:cut]} if cut > sound else {}
            assert torn_files(files(image)) == kept
            assert log.recovery.torn_file == next(iter(kept), None)
            log.close(clean=False)

    def test_goes_on_where_it_was_cut(self) -> None:
        """New frames follow the last whole one, and the next start finds an unbroken log."""
        storage = synced_then_not()
        content = storage.content(SEGMENT)
        image = changed(storage, SEGMENT, content[:-1])
        log = open_log(image)
        expected = [*log.replay(), b"after"]
        append(log, b"after", synced=True)
        log.close()
        again = open_log(image.crash())
        assert list(again.replay()) == expected
        assert again.recovery.torn_bytes == 0
        assert again.recovery.clean_stop

    @pytest.mark.parametrize("again", [b"torn", b"other", b"another"])
    def test_never_writes_over_what_an_earlier_cut_kept(self, again: bytes) -> None:
        """The same bytes are kept once, other bytes from the same place in a file of their own."""
        storage = closed()
        content = storage.content(SEGMENT)
        first = changed(storage, SEGMENT, content + b"torn")
        recovered(first)
        second = changed(first, SEGMENT, content + again)
        recovered(second)
        expected = {f"{SEGMENT}.torn-{len(content)}": b"torn"}
        if again != b"torn":
            expected[f"{SEGMENT}.torn-{len(content)}.2"] = again
        assert torn_files(files(second)) == expected


class TestAFlippedBit:
    def test_below_what_was_synced_is_refused_and_named(self) -> None:
        """Every bit of the synced part: file and offset are named, nothing is served, nothing is touched."""
        storage = closed()
        content = storage.content(SEGMENT)
        frames = frames_of(content)
        for bit in range(durable_length(storage) * 8):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            image = changed(storage, SEGMENT, bytes(flipped))
            place = next(frame.offset for frame in frames if frame.end > bit // 8)
            with pytest.raises(LogRefusedError, match="`weir log repair`") as refused:
                open_log(image)
            assert (refused.value.file, refused.value.offset) == (SEGMENT, place)
            assert image.content(SEGMENT) == flipped
            assert not torn_files(files(image))

    def test_above_what_was_synced_is_a_torn_tail(self) -> None:
        """Every bit of the part that no frame says was synced: cut at its frame, and kept."""
        storage = synced_then_not()
        content = storage.content(SEGMENT)
        frames = frames_of(content)
        durable = durable_length(storage)
        assert sum(frame.offset >= durable for frame in frames) == 5
        for bit in range(durable * 8, len(content) * 8):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            image = changed(storage, SEGMENT, bytes(flipped))
            place = next(frame.offset for frame in frames if frame.end > bit // 8)
            assert recovered(image) == payloads_of(storage, before=place)
            assert torn_files(files(image)) == {f"{SEGMENT}.torn-{place}": bytes(flipped[place:])}


class TestZerosAndHoles:
    def test_frames_behind_the_damage_tell_that_it_was_synced(self) -> None:
        """The only witness may stand behind the damage; without it the same damage is a torn tail."""
        storage, log = begun(b"one", b"two", synced=False)
        log.sync()
        log.mark(clean=False)
        log.write(log.take_staged())
        content = bytearray(storage.content(SEGMENT))
        mark = frames_of(bytes(content))[-1]
        content[FILE_FRAME_BYTES + 41] ^= 1
        with pytest.raises(LogRefusedError, match=f"offset {FILE_FRAME_BYTES}"):
            recovered(changed(storage, SEGMENT, bytes(content)))
        assert recovered(changed(storage, SEGMENT, bytes(content[: mark.offset]))) == []


class TestHostileBytes:
    def forged(self, salt: int) -> bytes:
        header, _ = encode_header(Kind.MARK, 3, 1 << 40, 0, salt, b"\0")
        return header + b"\0"

    def test_a_payload_cannot_make_a_torn_tail_look_like_corruption(self) -> None:
        """Frames inside payloads are not believed, since their author does not know the salt."""
        storage, log = begun(b"safe")
        append(log, self.forged(0) * 20, synced=False)
        content = storage.content(SEGMENT)
        assert recovered(changed(storage, SEGMENT, content[:-1])) == [b"safe"]
        salt = file_salt(reader(content))
        with pytest.raises(LogRefusedError):  # and this is what would happen, did he know it
            recovered(changed(storage, SEGMENT, content[:-1] + self.forged(salt)))


class TestRecoveryItself:
    def torn(self) -> MemoryStorage:
        storage = synced_then_not()
        content = storage.content(SEGMENT)
        files_before = {**files(storage), SEGMENT: content[:-2], "manifest.tmp": b"half"}
        return MemoryStorage(files_before)

    def test_can_be_stopped_at_any_step_and_done_again(self) -> None:
        """Killed or without power between any two operations: the same payloads, the same kept bytes."""
        storage = self.torn()
        expected = recovered(storage.kill())
        steps = 0
        for steps in range(100):
            image = self.torn()
            image.stop_before(steps)
            try:
                open_log(image)
            except StoppedError:
                pass
            else:
                break
            names = image.unsynced_name_changes()
            crashes = [image.crash(name_changes=n) for n in range(names + 1)]
            crashes += [image.crash(name_changes=n, tail=lambda _, live: live) for n in range(names + 1)]
            for after in (image.kill(), image.kill().kill(), *crashes):
                assert recovered(after) == expected
                assert len(torn_files(files(after))) == 1
                assert recovered(after.crash()) == expected
        assert steps > 8

    @pytest.mark.parametrize(
        "operation", ["create", "append", "sync", "rename", "sync_directory", "truncate"]
    )
    def test_refuses_when_the_disk_fails_and_succeeds_later(self, operation: str) -> None:
        """An error of the disk is a refusal with the system's words, and costs nothing."""
        image = self.torn()
        expected = recovered(image.kill())
        image.fail(operation, errno.EIO)
        with pytest.raises(LogRefusedError, match="Input/output error"):
            open_log(image)
        assert recovered(image) == expected

    def test_an_unreadable_file_is_a_refusal(self) -> None:
        """EIO on reading neither ends the process nor passes for an empty file."""
        for nth in range(1, 5):
            image = closed()
            image.fail("read", errno.EIO, nth=nth)
            with pytest.raises(LogRefusedError, match="Input/output error"):
                open_log(image)

    def test_a_disk_that_changes_its_mind_is_caught_when_replaying(self) -> None:
        """Every payload is verified when it is handed out, not only when the log was opened."""
        storage = closed()
        log = open_log(storage)
        storage.overwrite(SEGMENT, FILE_FRAME_BYTES + 60, b"\xff")
        with pytest.raises(LogRefusedError, match=f"{SEGMENT}, offset"):
            list(log.replay())

    def test_what_a_failed_sync_left_behind_is_made_safe(self) -> None:
        """After a failed sync the pages can be read but are no longer dirty.

        New frames behind them would stand behind a hole, so recovery writes them once more.
        """
        storage, log = begun(b"safe")
        storage.fail("sync", errno.EIO)
        log.stage(b"readable, not on the disk")
        log.write(log.take_staged())
        with pytest.raises(LogPoisonedError, match="sync"):
            log.sync()
        log.close()
        next_process = storage.kill()
        log = open_log(next_process)
        append(log, b"acknowledged", synced=True)
        assert recovered(next_process.crash()) == [b"safe", b"readable, not on the disk", b"acknowledged"]


class TestTheReport:
    def test_counts_what_is_there(self) -> None:
        """Frames with payloads, all bytes, the last sequence, the highest reservation."""
        storage, log = begun()
        log.reserve_ids(5_000)
        append(log, b"one", b"two", synced=True)
        log.reserve_ids(4_000)
        log.write(log.take_staged())
        report = open_log(storage.kill()).recovery
        assert (report.frames, report.sequence, report.reservation_ms) == (2, 4, 5_000)
        assert report.bytes == len(storage.content(SEGMENT))
        assert (report.torn_bytes, report.torn_file, report.clean_stop) == (0, None, False)

    def test_a_clean_stop_is_the_last_word(self) -> None:
        """Clean after `close`, also when opened and killed without a write; not after any other frame."""
        storage = closed()
        assert open_log(storage.kill()).recovery.clean_stop
        log = open_log(storage.kill())
        assert log.recovery.clean_stop
        killed = storage.kill()
        log = open_log(killed)
        log.mark(clean=False)
        log.write(log.take_staged())
        assert not open_log(killed.kill()).recovery.clean_stop

    def test_a_position_means_the_same_after_a_restart(self) -> None:
        """Positions go on where they were."""
        storage = closed()
        before = len(storage.content(SEGMENT))
        log = open_log(storage)
        assert log.durable_upto == before
        assert log.stage(b"x") == before + 41


class TestRealFiles:
    def test_a_log_survives_on_a_real_directory(self, tmp_path: Path) -> None:
        """The same as in memory, through the system: torn bytes kept, the log goes on."""
        directory = FileStorage(tmp_path)
        log = Log.open(directory)
        append(log, b"one", b"two", synced=True)
        log.close(clean=False)
        segment = tmp_path / SEGMENT
        segment.write_bytes(segment.read_bytes() + bytes(512))
        log = Log.open(directory)
        assert list(log.replay()) == [b"one", b"two"]
        assert log.recovery.torn_file is not None
        assert (tmp_path / log.recovery.torn_file).read_bytes() == bytes(512)
        append(log, b"three", synced=True)
        log.close()
        log = Log.open(directory)
        assert list(log.replay()) == [b"one", b"two", b"three"]
        assert log.recovery.clean_stop
        log.close()
        directory.close()

    def test_a_second_process_is_told_who_is_there(self, tmp_path: Path) -> None:
        """It is refused at once, and gets in as soon as the first is gone, however that went."""
        program = (
            "import sys; from engine.log import Log; from engine.storage.file import FileStorage\n"
            "log = Log.open(FileStorage(sys.argv[1]))\n"
            "log.stage(b'from the first'); log.write(log.take_staged())\n"
            "print('open', flush=True); sys.stdin.read()"
        )
        root = Path(__file__).parents[2]
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        ) as first:
            try:
                assert first.stdout is not None
                assert first.stdout.readline() == b"open\n"
                directory = FileStorage(tmp_path)
                with pytest.raises(StorageLockedError, match=f"process {first.pid}") as locked:
                    Log.open(directory)
                assert locked.value.holder == first.pid
            finally:
                first.kill()
        log = Log.open(directory)
        assert list(log.replay()) == [b"from the first"]
        log.close()
        directory.close()

    def test_a_refused_log_is_unlocked(self, tmp_path: Path) -> None:
        """`weir log repair` must be able to get in without waiting for anybody to exit."""
        (tmp_path / SEGMENT).write_bytes(b"no manifest")
        first, second = FileStorage(tmp_path), FileStorage(tmp_path)
        with pytest.raises(LogRefusedError):
            Log.open(first)
        with pytest.raises(LogRefusedError):
            Log.open(second)
        first.close()
        second.close()


def test_payloads_tell_themselves_apart() -> None:
    """Else a test here could pass with frames exchanged."""
    assert len({payload(number) for number in range(30)}) == 30
