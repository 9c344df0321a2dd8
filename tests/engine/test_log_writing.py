"""What was synced is safe, what was not is said to be so, and a doubtful disk is not written again."""

import errno
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from engine.codec import FILE_FRAME_BYTES, HEADER_BYTES, Kind
from engine.log import Log, LogPoisonedError, LogRefusedError, StorageFullError
from engine.log.leftovers import remove_leftovers
from engine.log.manifest import decode
from engine.storage.file import FileStorage
from engine.storage.memory import Fault, MemoryStorage, StoppedError
from tests.engine.log_cases import (
    SEGMENT,
    append,
    begun,
    counting_salt,
    files,
    frames_of,
    next_segment,
    open_log,
    payload,
    recovered,
    torn_files,
    write_base,
)


class TestStagingAndWriting:
    def test_positions_follow_the_bytes(self) -> None:
        """A frame's position is known when it is staged; written and durable come after it."""
        storage, log = begun()
        first = log.stage(b"12345")
        second = log.stage(b"")
        assert (first, second) == (FILE_FRAME_BYTES + 45, FILE_FRAME_BYTES + 85)
        assert (log.staged_upto, log.written_upto) == (second, FILE_FRAME_BYTES)
        batch = log.take_staged()
        later = log.stage(b"next batch")
        log.write(batch)
        assert (log.written_upto, log.durable_upto) == (second, FILE_FRAME_BYTES)
        assert log.sync() == log.durable_upto == second
        log.write(log.take_staged())
        assert (log.written_upto, log.staged_upto) == (later, later)
        assert storage.size(SEGMENT) == later

    def test_a_batch_is_one_write_and_nothing_is_none(self) -> None:
        """However many frames; and syncing twice what is durable costs one sync."""
        storage, log = begun()
        before = len(storage.operations)
        append(log, *(payload(number) for number in range(100)), synced=True)
        log.write(log.take_staged())
        log.sync()
        assert storage.operations[before:] == [("append", SEGMENT), ("sync", SEGMENT)]

    def test_each_frame_says_what_was_durable_when_it_was_staged(self) -> None:
        """Neither more, which would turn a torn tail into corruption, nor less than is known."""
        storage, log = begun(b"one", synced=False)
        log.stage(b"two")
        log.sync()
        one = log.written_upto
        log.stage(b"three")
        log.mark(clean=False)
        log.reserve_ids(9)
        log.write(log.take_staged())
        frames = frames_of(storage.content(SEGMENT))[1:]
        start = FILE_FRAME_BYTES
        assert [frame.durable_upto for frame in frames] == [start, start, one, one, one]
        assert [frame.kind for frame in frames[2:]] == [Kind.RECORDS, Kind.MARK, Kind.RESERVE]

    def test_batches_out_of_order_are_a_bug(self) -> None:
        """The chain is made when frames are staged."""
        log = open_log(MemoryStorage())
        log.stage(b"one")
        first = log.take_staged()
        log.stage(b"two")
        with pytest.raises(AssertionError):
            log.write(log.take_staged())
        log.write(first)

    def test_payloads_come_back_as_they_were_after_a_power_cut(self) -> None:
        """Synced ones all; the others not at all, in the image that loses everything else."""
        storage, log = begun(*(payload(number) for number in range(9)))
        append(log, b"not synced", synced=False)
        assert recovered(storage.crash()) == [payload(number) for number in range(9)]
        assert recovered(storage.kill())[-1] == b"not synced"

    def test_closing_writes_what_was_staged(self) -> None:
        """The end of the process is no reason to lose what was already in order."""
        storage, log = begun()
        log.stage(b"staged only")
        log.close()
        again = open_log(storage.crash())
        assert list(again.replay()) == [b"staged only"]
        assert again.recovery.clean_stop

    def test_closing_lets_the_next_one_in(self) -> None:
        """Cleanly or not, poisoned or not."""
        for spoil in (lambda _: None, lambda storage: storage.fail("append", errno.EIO)):
            storage, log = begun()
            spoil(storage)
            try:
                log.close()
            except LogPoisonedError:
                assert log.poisoned
            open_log(storage.rival()).close(clean=False)


class TestAFailingDisk:
    def poisoned_everywhere(self, log: Log) -> None:
        batch = log.take_staged()
        for use in (
            lambda: log.stage(b"x"),
            lambda: log.mark(clean=True),
            lambda: log.write(batch),
            log.sync,
            log.ensure_reserve,
        ):
            with pytest.raises(LogPoisonedError):
                use()

    def test_a_failed_sync_poisons_and_is_never_tried_again(self) -> None:
        """A second sync might succeed without the bytes (fsyncgate), so there is none, in closing neither."""
        storage, log = begun(b"safe")
        safe = log.durable_upto
        append(log, b"in doubt", synced=False)
        storage.fail("sync", errno.EIO)
        with pytest.raises(LogPoisonedError, match=r"sync of segment-1\.weir failed: .*Input/output error"):
            log.sync()
        syncs = storage.operations.count(("sync", SEGMENT))
        self.poisoned_everywhere(log)
        log.close()
        assert log.durable_upto == safe
        assert storage.operations.count(("sync", SEGMENT)) == syncs
        assert recovered(storage.crash()) == [b"safe"]

    @pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EFBIG])
    @pytest.mark.parametrize("after_bytes", [0, 1, 45])
    def test_a_failed_write_is_cut_back_and_poisons(self, code: int, after_bytes: int) -> None:
        """Any part of it that was written is taken back; nothing of the batch was promised."""
        storage, log = begun(b"safe")
        before = storage.content(SEGMENT)
        storage.fail("append", code, after_bytes=after_bytes)
        log.stage(b"lost")
        log.stage(b"as well")
        with pytest.raises(LogPoisonedError, match=r"write of segment-1\.weir failed"):
            log.write(log.take_staged())
        assert storage.content(SEGMENT) == before
        assert log.written_upto == len(before)
        self.poisoned_everywhere(log)
        log.close()
        assert recovered(storage.kill()) == [b"safe"]

    def test_a_failed_write_that_cannot_be_cut_back_is_a_torn_tail(self) -> None:
        """Then the next start cuts it."""
        storage, log = begun(b"safe")
        storage.fail("append", errno.EIO, after_bytes=30)
        storage.fail("truncate", errno.EIO)
        log.stage(b"torn")
        with pytest.raises(LogPoisonedError):
            log.write(log.take_staged())
        image = storage.kill()
        assert recovered(image) == [b"safe"]
        assert [len(content) for content in torn_files(files(image)).values()] == [30]

    def test_a_write_during_a_failing_sync_promises_nothing(self) -> None:
        """The write itself succeeds, but what it stands on is in doubt."""

        class SyncFailsMeanwhile(MemoryStorage):
            fails: Callable[[], None] | None = None

            def step(self, operation: str, name: str) -> Fault | None:
                if operation == "append" and self.fails:
                    self.fails()
                return super().step(operation, name)

        storage = SyncFailsMeanwhile()
        log = open_log(storage)
        append(log, b"first", synced=False)
        written = log.written_upto
        storage.fail("sync", errno.EIO)

        def sync_now() -> None:
            storage.fails = None
            with pytest.raises(LogPoisonedError):
                log.sync()

        storage.fails = sync_now
        log.stage(b"second")
        with pytest.raises(LogPoisonedError):
            log.write(log.take_staged())
        assert log.written_upto == written

    def test_a_limit_of_the_system_is_survived_on_real_files(self, tmp_path: Path) -> None:
        """A short write, then an error: the file is as before, and the next start finds all that was safe."""
        directory = FileStorage(tmp_path)
        log = Log.open(directory)
        append(log, b"safe", synced=True)
        before = (tmp_path / SEGMENT).read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
        try:
            log.stage(bytes(500))
            with pytest.raises(LogPoisonedError, match="File too large"):
                log.write(log.take_staged())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (tmp_path / SEGMENT).read_bytes() == before
        log.close()
        log = Log.open(directory)
        assert list(log.replay()) == [b"safe"]
        log.close()
        directory.close()


class TestTheReserve:
    def test_what_makes_room_may_use_the_first_half_of_it(self) -> None:
        """Not a byte more: the other half is for what is logged without being asked for."""
        storage = MemoryStorage()
        log = open_log(storage, reserve_bytes=4096)
        log.ensure_reserve()
        storage.space_bytes = 0
        left = log._reserved_upto - 2048 - log.staged_upto  # noqa: SLF001 - how far the file has room
        append(log, bytes(left - HEADER_BYTES), synced=True)
        log.ensure_reserve(makes_room=True)
        for wanted, makes_room in ((1, True), (0, False)):
            with pytest.raises(StorageFullError):
                log.ensure_reserve(wanted, makes_room=makes_room)

    def test_a_full_disk_is_found_before_anything_changes(self) -> None:
        """The refusal costs nothing, what was reserved can still be used, and space that returns is found."""
        storage = MemoryStorage({"another program's": bytes(6000)}, space_bytes=16_000)
        log = open_log(storage, reserve_bytes=4096)
        log.ensure_reserve(1000)
        append(log, bytes(3000), synced=True)
        with pytest.raises(StorageFullError, match="No space left"):
            log.ensure_reserve(3000)
        with pytest.raises(StorageFullError):
            log.ensure_reserve(3000)
        assert log.poisoned is None
        append(log, bytes(3000), synced=True)
        storage.unlink("another program's")
        log.ensure_reserve(3000)
        append(log, bytes(3000), synced=True)
        log.close()
        assert recovered(storage.crash()) == [bytes(3000)] * 3

    def test_nothing_to_do_is_nothing_done(self) -> None:
        """One call takes room for many commands."""
        storage = MemoryStorage()
        log = open_log(storage, reserve_bytes=4096)
        before = len(storage.operations)
        for _ in range(40):
            log.ensure_reserve(60)
            log.stage(bytes(60))
        assert storage.operations[before:] == [("preallocate", SEGMENT)]

    def test_the_reserve_stands_behind_whatever_was_asked_for(self) -> None:
        """A payload larger than the reserve gets its own room, and the reserve is still whole behind it."""
        log = open_log(MemoryStorage(space_bytes=20_000), reserve_bytes=4096)
        log.ensure_reserve(10_000)
        with pytest.raises(StorageFullError):
            log.ensure_reserve(18_000)

    def test_the_last_room_is_used(self) -> None:
        """Where a reserve ahead does not fit any more, the bare need is taken."""
        storage = MemoryStorage(space_bytes=5000)
        log = open_log(storage, reserve_bytes=4096)
        log.ensure_reserve(100)
        with pytest.raises(StorageFullError):
            log.ensure_reserve(1000)

    def test_a_log_opens_and_closes_on_a_full_disk(self) -> None:
        """Reading goes on; there is no clean mark, and no error either."""
        storage = MemoryStorage(space_bytes=1000)
        log = open_log(storage, reserve_bytes=4096)
        with pytest.raises(StorageFullError):
            log.ensure_reserve()
        log.close()
        again = open_log(storage)
        assert not again.recovery.clean_stop


class TestANewSegment:
    def test_continues_positions_sequence_and_chain(self) -> None:
        """Readers cannot see where one file ends and the next begins."""
        storage, log = begun(b"one", b"two", synced=False)
        end = log.written_upto
        next_segment(log)
        assert log.durable_upto == log.staged_upto == end + FILE_FRAME_BYTES
        append(log, b"three", synced=True)
        next_segment(log)
        log.close()
        again = open_log(storage.crash())
        assert list(again.replay()) == [b"one", b"two", b"three"]
        assert again.recovery.clean_stop
        assert again.recovery.sequence == 6
        manifest = decode(storage.content("manifest"))
        assert [segment.seal is None for segment in manifest.segments] == [False, False, True]
        assert again.durable_upto == sum(storage.size(segment.name) for segment in manifest.segments)

    def test_comes_with_its_room_and_the_old_one_gives_its_own_back(self) -> None:
        """The reserve is whole from the first frame on."""
        storage = MemoryStorage(space_bytes=20_000)
        log = open_log(storage, reserve_bytes=4096)
        log.ensure_reserve()
        next_segment(log)
        before = len(storage.operations)
        log.ensure_reserve(3000)
        assert storage.operations[before:] == []
        append(log, bytes(3000), synced=True)
        log.ensure_reserve(3000)

    def test_what_was_staged_before_goes_to_the_old_one(self) -> None:
        """Taken or not; a sync between its writes covers what is written, and leaves the old file open."""
        storage, log = begun()
        log.stage(b"taken")
        taken = log.take_staged()
        log.stage(b"left")
        log.start_segment(log.prepare_segment())
        log.stage(b"new")
        log.write(taken)
        assert log.sync() == log.durable_upto == taken.upto
        assert recovered(storage.crash()) == [b"taken"]
        left, new = log.take_staged(), log.take_staged()
        assert (left.start, left.upto, new.upto) == (taken.upto, new.start, log.staged_upto)
        assert log.take_staged().buffers == []
        log.write(left)
        before = len(storage.operations)
        assert log.sync() == left.upto
        assert ("sync", SEGMENT) in storage.operations[before:]
        log.write(new)
        before = len(storage.operations)
        assert log.sync() == new.upto
        assert ("sync", SEGMENT) not in storage.operations[before:], "it was whole, and is closed"
        assert recovered(storage.crash()) == [b"taken", b"left", b"new"]

    def test_closing_writes_what_was_staged_for_both(self) -> None:
        storage, log = begun()
        log.stage(b"old")
        log.start_segment(log.prepare_segment())
        log.stage(b"new")
        log.close()
        again = open_log(storage.crash())
        assert list(again.replay()) == [b"old", b"new"]
        assert again.recovery.clean_stop

    def test_a_failed_write_to_the_old_one_is_cut_back_there(self) -> None:
        storage, log = begun(b"safe")
        before = storage.content(SEGMENT)
        log.stage(b"old")
        log.start_segment(log.prepare_segment())
        storage.fail("append", errno.EIO, after_bytes=3)
        with pytest.raises(LogPoisonedError, match=r"write of segment-1\.weir failed"):
            log.write(log.take_staged())
        assert storage.content(SEGMENT) == before
        assert recovered(storage.kill()) == [b"safe"]

    def test_is_found_before_any_manifest_names_it(self) -> None:
        """Between its first frame and its name a crash loses nothing, and the next start names it."""
        storage, log = begun(b"one")
        for number in range(3):
            log.start_segment(log.prepare_segment())
            append(log, b"in %d" % number, synced=True)
        for image in (storage.crash(), storage.kill()):
            assert recovered(image) == [b"one", b"in 0", b"in 1", b"in 2"]
            assert len(decode(image.content("manifest")).segments) == 4
            assert recovered(image.crash()) == [b"one", b"in 0", b"in 1", b"in 2"]

    def test_is_synced_after_what_is_before_it(self) -> None:
        """What is safe in the new file is worth nothing without the end of the old one."""
        storage, log = begun(b"one", synced=False)
        log.start_segment(log.prepare_segment())
        append(log, b"two", synced=False)
        before = len(storage.operations)
        log.sync()
        done = [step for step in storage.operations[before:] if step[0] == "sync"]
        assert done == [("sync", SEGMENT), ("sync", "segment-2.weir")]
        log.sync()
        append(log, b"three", synced=True)
        assert storage.operations[-1] == ("sync", "segment-2.weir")

    def test_may_begin_while_another_thread_syncs(self) -> None:
        """A file is closed only by who syncs it, and only once no frame can come to it."""
        storage = SwappingStorage()
        log = open_log(storage)
        append(log, b"one", synced=False)
        prepared = log.prepare_segment()
        storage.during_sync = lambda: log.start_segment(prepared)
        log.sync()
        append(log, b"two", synced=False)
        assert log.durable_upto < log.written_upto
        log.sync()
        assert log.durable_upto == log.written_upto
        log.name_segments()
        assert recovered(storage.crash()) == [b"one", b"two"]

    def test_must_be_synced_before_it_is_named(self) -> None:
        """A named segment has its first frame, or is damage."""
        log = open_log(MemoryStorage())
        log.start_segment(log.prepare_segment())
        log.write(log.take_staged())
        with pytest.raises(AssertionError):
            log.name_segments()

    @pytest.mark.parametrize(
        "operation", ["create", "append", "sync", "rename", "sync_directory", "truncate"]
    )
    @pytest.mark.parametrize("nth", [1, 2, 3, 4])
    def test_fails_into_the_old_or_the_new_one(self, operation: str, nth: int) -> None:
        """An error at each step: the log goes on or is poisoned, and a restart loads all that it kept."""
        storage, log = begun(b"one", b"two")
        storage.fail(operation, errno.EIO, nth=nth)
        expected = [b"one", b"two"]
        try:
            next_segment(log)
        except LogPoisonedError:
            assert operation in {"append", "sync"}
        except OSError:
            assert log.poisoned is None
        with suppress(LogPoisonedError):
            append(log, b"three", synced=True)
            expected.append(b"three")
        for names in range(storage.unsynced_name_changes() + 1):
            assert recovered(storage.crash(name_changes=names)) == expected
        assert recovered(storage.kill()) == expected


class SwappingStorage(MemoryStorage):
    """Does something else in the midst of a sync, once, as another thread would."""

    during_sync: Callable[[], object] | None = None

    def step(self, operation: str, name: str) -> Fault | None:
        if operation == "sync" and self.during_sync is not None:
            then, self.during_sync = self.during_sync, None
            then()
        return super().step(operation, name)


class TestABase:
    def test_takes_the_place_of_what_was_before(self) -> None:
        """The old files go, with everything that was in them."""
        storage, log = begun(b"old")
        next_segment(log)
        append(log, b"new", synced=True)
        position = decode(storage.content("manifest")).segments[1].position
        write_base(log, position, b"a base", reservation_ms=5)
        assert storage.names() == ["base-3.weir", "manifest", "segment-2.weir"]
        append(log, b"newer", synced=True)
        again = open_log(storage.crash())
        assert list(again.replay()) == [b"a base", b"new", b"newer"]
        assert again.recovery.reservation_ms == 5
        assert again.base_bytes == storage.size("base-3.weir")
        assert again.total_bytes == again.base_bytes + storage.size("segment-2.weir")

    def test_given_up_leaves_nothing_behind(self) -> None:
        """A base without a name in the manifest is no part of the log, and goes."""
        storage, log = begun(b"old")
        next_segment(log)
        base = log.create_base(log.staged_upto)
        base.append([b"half"])
        base.discard()
        assert not [name for name in storage.names() if name.startswith("base")]
        assert recovered(storage.crash()) == [b"old"]

    def test_that_a_crash_left_goes_after_the_next_load(self) -> None:
        """As do segments that it replaced; but not before everything was read."""
        storage, log = begun(b"old")
        next_segment(log)
        log.create_base(decode(storage.content("manifest")).segments[1].position).append([b"half"])
        image = storage.kill()
        beside = MemoryStorage({**files(image), "segment-0.weir": b"", "base-x.weir": b"mine"})
        again = open_log(beside)
        assert "base-3.weir" in beside.names()
        assert remove_leftovers(beside, again.manifest) == []
        assert {"base-3.weir", "segment-0.weir"}.isdisjoint(beside.names())
        assert "base-x.weir" in beside.names()


def live_through(storage: MemoryStorage, staged: list[bytes], synced: list[int]) -> None:
    """A short life of a log; fills `staged` with payloads and `synced` with how many of them were safe."""
    log = Log.open(storage, reserve_bytes=256, salt=counting_salt())
    for turn in range(3):
        log.ensure_reserve(100)
        for number in range(3):
            staged.append(b"%d.%d " % (turn, number) * (4 * number))
            log.stage(staged[-1])
        log.write(log.take_staged())
        log.sync()
        synced.append(len(staged))
        staged.append(b"unsynced %d" % turn)
        log.stage(staged[-1])
        log.write(log.take_staged())
        if turn != 2:
            position = log.start_segment(log.prepare_segment())
            staged.append(b"after %d" % turn)
            log.stage(staged[-1])
            log.write(log.take_staged())
            log.sync()
            synced.append(len(staged))
            log.name_segments()
            base = log.create_base(position)
            # A base holds what it replaces: here, the payloads themselves.
            base.append(staged[:-1])
            log.install_base(base.finish(reservation_ms=turn))
    log.close()
    synced.append(len(staged))


TAILS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "nothing": lambda durable, _: durable,
    "everything": lambda _, live: live,
    "a byte": lambda durable, live: durable + live[len(durable) : len(durable) + 1],
    "half": lambda durable, live: durable + live[len(durable) : (len(durable) + len(live)) // 2],
    "all but a byte": lambda durable, live: durable + live[len(durable) :][:-1],
    "zeros": lambda durable, live: durable + bytes(len(live) - len(durable)),
    "no first page": lambda durable, live: (durable + bytes(60) + live[len(durable) + 60 :])[: len(live)],
}


@pytest.mark.parametrize("tail", TAILS)
def test_a_power_cut_at_any_step_loses_nothing_that_was_synced(tail: str) -> None:
    """Stopped before each operation of a log's life, with each image that the disk may have then."""
    for moment in range(1000):
        storage = MemoryStorage()
        staged: list[bytes] = []
        synced = [0]
        storage.stop_before(moment)
        try:
            live_through(storage, staged, synced)
        except StoppedError:
            pass
        else:
            assert moment > 50
            return
        for names in range(storage.unsynced_name_changes() + 1):
            for image in (storage.crash(name_changes=names, tail=TAILS[tail]), storage.kill()):
                found = recovered(image)
                assert synced[-1] <= len(found) <= len(staged)
                assert found == staged[: len(found)]
                assert recovered(image.crash()) == found


@pytest.mark.parametrize("operation", ["create", "append", "sync", "rename", "sync_directory", "truncate"])
def test_an_error_at_any_step_loses_nothing_that_was_synced(operation: str) -> None:
    """Each operation of each kind fails once: with any outcome, what the log said before holds."""
    for nth in range(1, 100):
        storage = MemoryStorage()
        staged: list[bytes] = []
        synced = [0]
        storage.fail(operation, errno.EIO, nth=nth)
        with suppress(LogPoisonedError, LogRefusedError, OSError):
            live_through(storage, staged, synced)
        last_names = storage.crash(name_changes=storage.unsynced_name_changes())
        for image in (storage.kill(), storage.crash(), last_names):
            found = recovered(image)
            assert found == staged[: len(found)]
            assert len(found) >= synced[-1]
        if [known for known, _ in storage.operations].count(operation) < nth:
            return
