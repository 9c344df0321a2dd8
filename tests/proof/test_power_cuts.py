"""What a power cut or a kill leaves at any moment opens, and every promise holds."""

import pytest

from engine import Fsync, entries
from engine.commands.types import XAdd
from engine.commands.weir_commands import Close
from engine.parts.closing import Closed
from engine.runtime import writer
from engine.storage.memory import MemoryStorage
from tests import halves
from tests.engine.running import keyspace_of
from tests.proof.campaigns import power_cuts
from tests.proof.disks import common_bytes, legal_contents, legal_disks
from tests.proof.explorer import Explorer
from tests.proof.lives import Living

# Coverage would make it three times as long, and other tests cover the same lines.
pytestmark = pytest.mark.no_cover

# Seeds of histories; `make soak` goes on from there.
short = range(1, 8)
by_threads = range(1, 3)
storing = 4, 7


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_every_legal_disk_keeps_what_was_promised(fsync: Fsync) -> None:
    """Before every operation of random histories: what was answered is there (in everysec, but for the last
    two seconds of a power cut), whole commands only, all state as it was logged, no shown ID again.
    """
    explored = power_cuts(fsync, halves.half(short))
    assert explored.disks > halves.some(2_000), "disks were explored"
    assert explored.recovered > halves.some(1_000), "they differed"


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_the_promises_hold_where_a_thread_does_all_writes(
    fsync: Fsync, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does the long ones: what is staged meanwhile, synced or asked for waits for it."""
    monkeypatch.setattr(writer, "INLINE_WRITE_BYTES_MAX", 0)
    explored = power_cuts(fsync, halves.half(by_threads))
    assert explored.disks > halves.some(300), "disks were explored"
    assert explored.recovered > halves.some(150), "they differed"


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_entries_in_files_keep_what_was_promised(fsync: Fsync) -> None:
    """The same where each full node goes to a file, in a run of its own: all entries are read back from each
    disk, once each, whether entries were stored, stored anew, forked, copied, deleted or rewritten just then.
    """
    explored = power_cuts(fsync, halves.half(storing), stores=True)
    assert explored.disks > halves.some(2_000), "disks were explored"
    assert explored.stored > halves.some(30), "entries were stored"
    assert explored.moved, "and stored anew"
    assert explored.backups, "and backed up"


def test_a_file_holds_between_nothing_and_all_of_what_was_not_synced() -> None:
    """Nothing, all, a byte, half, all but a byte, zeros in its place, or all but its first sector."""
    surely, at_most = b"s" * 100, b"s" * 100 + b"n" * 1000
    found = legal_contents(surely, at_most)
    assert {len(content) for content in found} >= {100, 1100, 1101 - 1}
    assert surely + bytes(1000) in found
    assert surely + bytes(412) + b"n" * 588 in found
    assert len(found) == 7
    assert all(content.startswith(surely) for content in found)


def test_a_cut_that_was_not_synced_may_not_have_happened() -> None:
    """A file may be as long as it was, or as short as it was made."""
    assert set(legal_contents(b"abcdef", b"abc")) == {b"abcdef", b"abc"}
    assert common_bytes(b"abcdef", b"abcxef") == 3


def test_names_reach_the_disk_in_their_order() -> None:
    """A file that was renamed is there under one of its names, with any of its contents."""
    storage = MemoryStorage({"old": b"1"})
    storage.create("new.tmp").append(b"2")
    storage.rename("new.tmp", "old")
    disks = list(legal_disks(storage))
    assert {frozenset(disk) for disk in disks} == {frozenset({"old"}), frozenset({"old", "new.tmp"})}
    assert {disk["old"] for disk in disks} == {b"1", b"", b"2", b"\0"}


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_an_end_and_its_last_entries_are_there_together_or_not_at_all(fsync: Fsync) -> None:
    """Before every operation of the disk; an end that was answered is there."""
    explorer = Explorer()
    life = Living(1, fsync, look=explorer.look)
    body = entries.body([("n", "1")])
    try:
        for stream in ("s", "t", "u"):
            life.do(XAdd(stream=stream, bodies=[body]))
            life.do(Close(stream=stream, reason="done", add=XAdd(stream=stream, bodies=[body, body])))
            life.settle()
            life.do(Close(stream=stream))
        life.settle()
        life.check()
        keys = keyspace_of(life.engine).keys
        assert all(Closed.of(keys[stream]) is not None for stream in ("s", "t", "u"))
        life.restart()
        life.check()
    finally:
        life.end()
    assert explorer.recovered > 10, "disks were explored"
