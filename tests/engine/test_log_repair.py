"""A repair keeps what the files prove, says what it gives up before it does, and deletes nothing."""

from collections.abc import Callable, Sequence
from zlib import crc32

import pytest

from engine.log import LogRefusedError
from engine.log.inspection import inspect
from engine.log.manifest import MANIFEST, decode
from engine.log.repair import IrreparableError, carry_out, plan
from engine.log.steps import CutExtra, CutTail, GiveUp, NewManifest, RepairStep, TakeBack
from engine.storage import StorageLockedError
from engine.storage.memory import MemoryStorage, StoppedError
from tests.engine.log_cases import (
    SEGMENT,
    append,
    begun,
    changed,
    closed,
    files,
    open_log,
    payload,
    recovered,
    unstopped,
)
from tests.engine.test_log_golden import write_golden
from tests.engine.test_log_inspection import damaged, rewritten, sealed

LIFE = b"another life"
NOW_MS = 1_800_000_000_000
ALL = [payload(number) for number in range(9)]


def mend(storage: MemoryStorage) -> list[RepairStep]:
    """All planned steps; each says something."""
    steps: list[RepairStep] = []
    while (step := plan(storage)) is not None:
        assert all(step.sentences())
        assert len(steps) < 5, "each step is for good"
        carry_out(storage, step, [LIFE], NOW_MS)
        steps.append(step)
    return steps


def check_kept(before: dict[str, bytes], storage: MemoryStorage) -> None:
    """Every byte that was there is still there, in a file of the same beginning or beside it."""
    after = files(storage)
    for name, content in before.items():
        places = [other for other in after if other.startswith(name)]
        whole = any(after[place] == content for place in places)
        parts = name in after and any(after[name] + after[place] == content for place in places)
        assert whole or parts, name


def test_a_sound_log_needs_none() -> None:
    """Nothing is planned, nothing touched."""
    for storage in (closed(), sealed(), rewritten(), MemoryStorage(write_golden())):
        assert plan(storage) is None
        assert not storage.operations


@pytest.mark.parametrize("lost", [None, MANIFEST])
def test_every_damage_is_mended_or_a_backup_is_the_way(lost: str | None) -> None:
    """After a repair the log starts with a prefix of what it held. Where the damage is in front of all that,
    it says that a backup is the way, and nothing is touched. The manifest may be gone with it.
    """
    for what, found_so in damaged():
        before = files(found_so)
        whole = None if SEGMENT in before and "segment-2.weir" not in before else ALL[:9]
        if lost in before and not what.startswith(MANIFEST):
            del before[MANIFEST]
        storage = MemoryStorage(before)
        try:
            steps = mend(storage)
        except IrreparableError as verdict:
            said = str(verdict)
            assert "restore a backup" in said or not before, what
            # Nothing stands before the first frame of the first file, or of the one behind a base.
            assert inspect(storage).refusal is not None
            assert what.startswith((SEGMENT, "base-")) or (lost and "base-3.weir" in before), what
            assert files(storage) == before
            continue
        if all(isinstance(step, CutTail) for step in steps):
            del before[MANIFEST]  # a start names what it finds
        check_kept(before, storage)
        found = recovered(storage)
        lossy = any(isinstance(step, GiveUp) for step in steps)
        kept = found[:-1] if lossy else found
        assert not lossy or found[-1] == LIFE, what
        assert whole is None or kept == whole[: len(kept)], what
        assert plan(storage) is None


def test_a_torn_tail_is_cut_and_kept() -> None:
    """As a start does it."""
    storage = changed(closed(), SEGMENT, closed().content(SEGMENT) + bytes(512))
    assert [type(step) for step in mend(storage)] == [CutTail]
    assert storage.content(f"{SEGMENT}.torn-449") == bytes(512)


def test_what_is_behind_a_damage_is_given_up_and_told() -> None:
    """To the byte and to the frame; what is before it is kept, with another life behind it."""
    storage = sealed()
    second = storage.content("segment-2.weir")
    runs = inspect(storage).runs
    flip_at = 60  # in its first frame with a payload
    damaged_one = changed(storage, "segment-2.weir", second[:60] + bytes([second[flip_at] ^ 1]) + second[61:])
    (step,) = mend(damaged_one)
    assert isinstance(step, GiveUp)
    assert step.lost_bytes == len(second) - 52 + runs[2].length
    assert step.lost_frames == (runs[1].frames - 2) + runs[2].frames
    assert step.aside == ("segment-2.weir", "segment-3.weir")
    assert recovered(damaged_one) == [*ALL[:3], LIFE]
    assert damaged_one.content("segment-3.weir.set-aside") == storage.content("segment-3.weir")
    manifest = decode(damaged_one.content(MANIFEST))
    assert [segment.name for segment in manifest.segments] == ["segment-1.weir", "segment-4.weir"]


def test_no_id_of_what_is_given_up_is_given_again() -> None:
    """Reservations behind the damage count, and so does the clock."""
    for reserved_ms in (NOW_MS - 1, NOW_MS + 77):
        storage, log = begun(b"one", b"two")
        log.reserve_ids(reserved_ms)
        append(log, b"three", synced=True)
        log.close()
        content = storage.content(SEGMENT)
        broken = changed(storage, SEGMENT, content.replace(b"two", b"2wo"))
        mend(broken)
        log = open_log(broken)
        assert list(log.replay()) == [b"one", LIFE]
        assert log.recovery.reservation_ms == max(reserved_ms, NOW_MS)
        assert not log.recovery.clean_stop
        log.close()


def test_bytes_too_many_are_cut_off_and_nothing_is_lost() -> None:
    """A sealed file that grew is what it was."""
    storage = sealed()
    grown = changed(storage, "segment-1.weir", storage.content("segment-1.weir") + b"who wrote this")
    assert [type(step) for step in mend(grown)] == [CutExtra]
    assert recovered(grown) == ALL
    length = storage.size("segment-1.weir")
    assert grown.content(f"segment-1.weir.extra-{length}") == b"who wrote this"


@pytest.mark.parametrize("make", [closed, sealed, lambda: MemoryStorage(write_golden())])
@pytest.mark.parametrize("text", [None, b"", b"weir log 1\r\n", b"cut"])
def test_a_lost_manifest_is_written_anew(make: Callable[[], MemoryStorage], text: bytes | None) -> None:
    """The files prove each other: nothing is lost, and the manifest is the same as before, but for the record
    of the last clean stop, which no file proves.
    """
    storage = make()
    content = files(storage)
    del content[MANIFEST]
    lost = MemoryStorage(content if text is None else {**content, MANIFEST: text})
    assert [type(step) for step in mend(lost)] == [NewManifest]
    assert lost.content(MANIFEST) == unstopped(storage.content(MANIFEST))
    assert text is None or lost.content(f"{MANIFEST}.set-aside") == text


def test_without_a_manifest_what_is_before_a_gap_is_kept() -> None:
    """First it is named, with what does not go on from there; then that is given up."""
    content = files(sealed())
    del content[MANIFEST], content["segment-2.weir"]
    storage = MemoryStorage(content)
    first = plan(storage)
    assert isinstance(first, NewManifest)
    assert "segment-3.weir will be given up next" in " ".join(first.sentences())
    assert [type(step) for step in mend(storage)] == [NewManifest, GiveUp]
    assert recovered(storage) == [*ALL[:3], LIFE]
    assert storage.content("segment-3.weir.set-aside") == content["segment-3.weir"]


def test_without_a_manifest_and_a_beginning_a_backup_is_the_way() -> None:
    """What is missing is named, and nothing is touched."""
    content = files(sealed())
    del content[MANIFEST], content["segment-1.weir"]
    storage = MemoryStorage(content)
    with pytest.raises(IrreparableError, match=r"segment-2\.weir, begins at position 183.*restore a backup"):
        plan(storage)
    assert not storage.operations


def test_a_base_is_kept_whole_or_not_at_all() -> None:
    """A part of it would be a part of every stream: the verdict names it and what it held."""
    content = write_golden()
    base = content["base-4.weir"]
    for spoilt in (base[:70] + bytes([base[70] ^ 1]) + base[71:], base[:-1], b"", None):
        left = dict(content)
        if spoilt is None:
            del left["base-4.weir"]
        else:
            left["base-4.weir"] = spoilt
        with pytest.raises(IrreparableError, match=r"base-4\.weir.*before position \d+ is in no other file"):
            plan(MemoryStorage(left))


def test_the_files_from_before_a_base_stand_in_for_it() -> None:
    """A rewrite that removed nothing yet has lost nothing yet."""
    storage = sealed()
    content = files(storage)
    content["base-9.weir"] = b"never finished"
    del content[MANIFEST]
    left = MemoryStorage(content)
    mend(left)
    assert recovered(left) == ALL


def test_a_newer_format_is_left_alone() -> None:
    """It is not broken."""
    manifest = closed().content(MANIFEST)
    text = manifest.replace(b"weir log 1", b"weir log 2").rpartition(b"checksum=")[0]
    newer = text + b"checksum=%08x\n" % crc32(text)
    storage = changed(closed(), MANIFEST, newer)
    with pytest.raises(IrreparableError, match="newer version"):
        plan(storage)
    assert not storage.operations


def test_a_directory_in_use_is_not_repaired() -> None:
    """And one that changed since it was looked at neither."""
    storage = changed(closed(), SEGMENT, closed().content(SEGMENT).replace(b"1:", b"1;"))
    step = plan(storage)
    assert step is not None
    rival = storage.rival()
    rival.lock()
    with pytest.raises(StorageLockedError):
        carry_out(storage, step, [LIFE], NOW_MS)
    rival.unlock()
    storage.truncate(SEGMENT, 200)
    with pytest.raises(LogRefusedError, match="changed meanwhile"):
        carry_out(storage, step, [LIFE], NOW_MS)


def spoilt() -> list[tuple[str, dict[str, bytes], Sequence[type[RepairStep]]]]:
    whole = files(sealed())
    flipped = {**whole, "segment-2.weir": whole["segment-2.weir"].replace(b":", b";")}
    grown = {**whole, "segment-1.weir": whole["segment-1.weir"] + b"!"}
    no_manifest = {name: content for name, content in whole.items() if name != MANIFEST}
    missing = {name: content for name, content in whole.items() if name != "segment-2.weir"}
    torn = {**whole, "segment-3.weir": whole["segment-3.weir"] + b"torn"}
    return [
        ("flipped", flipped, [GiveUp]),
        ("grown", grown, [CutExtra]),
        ("no manifest", no_manifest, [NewManifest]),
        ("bad manifest", {**whole, MANIFEST: b"x"}, [NewManifest]),
        ("missing", missing, [GiveUp]),
        ("missing, and no manifest", {**missing, MANIFEST: b""}, [NewManifest, GiveUp]),
        ("torn", torn, [CutTail]),
    ]


CASES = spoilt()


@pytest.mark.parametrize(("content", "kinds"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_repair_may_be_stopped_anywhere_and_begun_anew(
    content: dict[str, bytes], kinds: Sequence[type[RepairStep]]
) -> None:
    """By a kill or a power cut before each of its writes: the next repair ends where this one would have."""
    whole = MemoryStorage(content)
    assert [type(step) for step in mend(whole)] == kinds
    wanted, steps = recovered(MemoryStorage(files(whole))), len(whole.operations)
    for nth in range(steps):
        storage = MemoryStorage(content)
        storage.stop_before(nth)
        with pytest.raises(StoppedError):
            mend(storage)
        cuts = [storage.crash(name_changes=changes) for changes in range(storage.unsynced_name_changes() + 1)]
        for left in (storage.kill(), *cuts):
            fresh = MemoryStorage(files(left))
            found = mend(fresh)
            assert set(map(type, found)) <= {*kinds, TakeBack}, nth
            assert recovered(fresh) == wanted, nth
            check_kept(content, fresh)
