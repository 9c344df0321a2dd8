"""After a clean stop nothing can be torn: a file that is shorter than it was then is refused."""

import errno

import pytest

from engine.codec import FILE_FRAME_BYTES
from engine.log import LogPoisonedError, LogRefusedError
from engine.log.backup import back_up
from engine.log.inspection import inspect
from engine.log.manifest import MANIFEST, Seal, decode
from engine.log.repair import carry_out, plan
from engine.log.steps import GiveUp
from engine.storage.memory import MemoryStorage, StoppedError
from tests.engine.log_cases import (
    SEGMENT,
    append,
    begun,
    changed,
    closed,
    files,
    frames_of,
    next_segment,
    open_log,
    recovered,
    stop_of,
    torn_files,
    unstopped,
)

NOW_MS = 1_800_000_000_000


def last_file(storage: MemoryStorage) -> str:
    return decode(storage.content(MANIFEST)).segments[-1].name


def test_the_last_file_is_recorded() -> None:
    """Its length, and the checksum of its last frame, which covers all of it."""
    storage = closed()
    content = storage.content(SEGMENT)
    assert stop_of(storage) == Seal(len(content), frames_of(content)[-1].checksum)
    assert stop_of(storage.crash()) == stop_of(storage), "a power cut does not lose it"


def chain(storage: MemoryStorage) -> dict[str, int]:
    last = decode(storage.content(MANIFEST)).segments[-1]
    return {"sequence": last.sequence, "previous": last.previous}


def test_the_refusal_says_how_much_there_was() -> None:
    """Of a cut between two frames nothing else can be known."""
    storage = closed()
    content = storage.content(SEGMENT)
    at = frames_of(content)[-2].offset
    reason = f"{SEGMENT}, offset {at}: the file ends here, yet the last clean stop left {len(content)} bytes"
    with pytest.raises(LogRefusedError, match=reason):
        open_log(changed(storage, SEGMENT, content[:at]))


def test_bytes_behind_the_end_are_a_torn_tail() -> None:
    """They are no part of the log, and nothing that was is missing."""
    storage = closed()
    content = storage.content(SEGMENT)
    for tail in (b"x", bytes(512)):
        longer = changed(storage, SEGMENT, content + tail)
        assert recovered(longer) == recovered(storage)
        assert torn_files(files(longer)) == {f"{SEGMENT}.torn-{len(content)}": tail}


def test_a_sound_file_of_another_history_is_refused() -> None:
    """A copy of the segment that went on elsewhere: sound, and long enough."""
    storage, log = begun(b"one")
    elsewhere = storage.kill()
    append(log, b"two", synced=True)
    log.close()
    fork = open_log(elsewhere)
    append(fork, b"2", b"3", b"4", b"5", synced=True)
    fork.close()
    image = changed(storage, SEGMENT, elsewhere.content(SEGMENT))
    with pytest.raises(
        LogRefusedError, match="sound, but not the file that was there at the last clean stop"
    ):
        open_log(image)
    step = plan(image)
    assert isinstance(step, GiveUp)
    carry_out(image, step, [b"another life"], NOW_MS)
    assert recovered(image) == [b"one", b"2", b"3", b"4", b"5", b"another life"]


def test_a_log_without_the_record_opens() -> None:
    """As an earlier version left it, and as a kill does: what is whole is served."""
    storage = closed()
    older = changed(storage, MANIFEST, unstopped(storage.content(MANIFEST)))
    assert recovered(older) == recovered(storage)
    content = older.content(SEGMENT)
    assert (
        recovered(changed(older, SEGMENT, content[: frames_of(content)[-3].end])) == recovered(storage)[:-1]
    )


def test_the_record_stays_true_while_the_log_goes_on() -> None:
    """After a kill: shorter than at the last clean stop is refused, beyond it is a torn tail as ever."""
    storage = closed()
    stop = stop_of(storage)
    assert stop is not None
    before = recovered(storage)
    log = open_log(storage)
    append(log, b"after the start", synced=False)
    killed = storage.kill()
    assert stop_of(killed) == stop
    content = killed.content(SEGMENT)
    for length in range(FILE_FRAME_BYTES, len(content)):
        image = changed(killed, SEGMENT, content[:length])
        if length < stop.length:
            with pytest.raises(LogRefusedError):
                open_log(image)
        else:
            assert recovered(image) == before
    assert recovered(killed) == [*before, b"after the start"]


def test_another_segment_ends_the_record() -> None:
    """The file that it spoke of is sealed then, and the next clean stop speaks of the last one."""
    storage = closed()
    log = open_log(storage)
    next_segment(log)
    assert stop_of(storage) is None
    append(log, b"more", synced=True)
    log.close()
    assert last_file(storage) == "segment-2.weir"
    assert stop_of(storage) == Seal(storage.size("segment-2.weir"), log_checksum(storage))
    assert recovered(storage)[-1] == b"more"


def log_checksum(storage: MemoryStorage) -> int:
    return frames_of(storage.content(last_file(storage)), **chain(storage))[-1].checksum


def test_a_kill_at_any_step_of_a_stop_a_start_and_the_first_frame_loses_nothing() -> None:
    """Nor does a power cut: any state of the disk by then opens, with all that was synced."""
    steps = 0
    for steps in range(100):
        storage = closed()
        before = recovered(storage.kill())
        storage.stop_before(steps)
        synced = before
        ended = False
        try:
            log = open_log(storage)
            append(log, b"the first frame", synced=True)
            synced = [*before, b"the first frame"]
            log.close()
            ended = True
        except StoppedError:
            pass
        names = range(storage.unsynced_name_changes() + 1)
        crashes = [storage.crash(name_changes=n) for n in names]
        crashes += [storage.crash(name_changes=n, tail=lambda _, live: live) for n in names]
        for image in (storage.kill(), *crashes):
            assert recovered(image)[: len(synced)] == synced
        if ended:
            break
    assert 8 < steps < 99


@pytest.mark.parametrize("operation", ["create", "append", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_record_that_cannot_be_written_costs_no_frame(operation: str, code: int) -> None:
    """A full disk leaves the log as a version without the record would; any other failure is logged."""
    storage, log = begun(b"one")
    # The mark is appended and synced first.
    storage.fail(operation, code, nth=2 if operation in {"append", "sync"} else 1)
    if code == errno.ENOSPC:
        log.close()
    else:
        with pytest.raises(LogPoisonedError, match="clean stop"):
            log.close()
    for image in (storage.kill(), storage.crash()):
        log = open_log(image)
        assert list(log.replay()) == [b"one"]
        assert log.recovery.clean_stop
        log.close()


def test_a_part_of_a_backup_is_refused() -> None:
    """As after a clean stop, though the server went on: a copy that broke off is not taken for the whole."""
    storage, log = begun(b"one", b"two")
    target = MemoryStorage()
    back_up(storage, target)
    content = target.content(SEGMENT)
    for frame in frames_of(content):
        with pytest.raises(LogRefusedError):
            open_log(changed(target, SEGMENT, content[: frame.offset]))
    log.close()


def test_a_log_that_lacks_its_end_is_not_backed_up() -> None:
    """On the day it is needed, it would be unknown that something is missing."""
    storage = closed()
    content = storage.content(SEGMENT)
    short = changed(storage, SEGMENT, content[: frames_of(content)[-2].offset])
    target = MemoryStorage()
    with pytest.raises(LogRefusedError, match="the last clean stop left"):
        back_up(short, target)
    assert MANIFEST not in target.names()


def test_a_repair_keeps_what_is_left() -> None:
    """After it the log starts without its end, and its readers learn that it is another one."""
    storage = closed()
    content = storage.content(SEGMENT)
    for frame in frames_of(content)[1:]:
        short = changed(storage, SEGMENT, content[: frame.offset])
        assert inspect(short).refusal is not None
        step = plan(short)
        assert isinstance(step, GiveUp)
        assert any("the last clean stop left" in sentence for sentence in step.sentences())
        carry_out(short, step, [b"another life"], NOW_MS)
        assert plan(short) is None
        *kept, life = recovered(short)
        assert life == b"another life"
        assert kept == recovered(storage)[: len(kept)]
