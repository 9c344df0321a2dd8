"""Entries that are deleted from a stream with an archive are remembered, so that the archive shows none."""

import pytest

from engine import ids
from engine.commands.types import Rename, Trim, XDel, XTrim
from engine.commands.weir_commands import DescribeArchived, UpdateStream
from engine.keyspace import Key
from engine.memory import DELETED_BYTES
from engine.parts.keeping import DELETED_MAX, Kept
from engine.replies import Archived
from tests.engine.house import House, id_of


def deleted(house: House, low: int = 0, high: int = ids.ID_MAX, stream: str = "s") -> list[int]:
    """What is remembered."""
    return list(house.of(Archived, DescribeArchived(stream=stream, low=low, high=high)).deleted)


def archive(house: House, upto: str) -> None:
    """As the archive job reports it."""
    house.run(UpdateStream(stream="s", archived_up_to=id_of(upto)))


def test_nothing_is_remembered_without_an_archive(house: House) -> None:
    """Then it would be of no use."""
    house.fill("s", 3)
    house.run(XDel(stream="s", ids=[id_of("1")]))
    assert deleted(house) == []


def test_deletions_are_remembered_and_trims_are_not(house: House) -> None:
    """In the order of IDs, those beyond what is reported too: the archive may have them already."""
    house.fill("s", 6)
    archive(house, "3")
    house.run(XDel(stream="s", ids=[id_of("5"), id_of("2")]))
    house.run(XDel(stream="s", ids=[id_of("3"), id_of("9")]))
    house.run(XTrim(stream="s", trim=Trim(minid=id_of("5"))))
    assert deleted(house) == [id_of("2"), id_of("3"), id_of("5")]
    assert deleted(house, low=id_of("3"), high=id_of("4")) == [id_of("3")]
    house.check()


@pytest.mark.parametrize("how", ["restart", "rewrite"])
def test_they_survive(house: House, how: str) -> None:
    """A restart from the log, and one from its rewritten form."""
    house.fill("s", 4)
    archive(house, "4")
    house.run(XDel(stream="s", ids=[id_of("1"), id_of("4")]))
    house.restart() if how == "restart" else house.rewrite()
    assert deleted(house) == [id_of("1"), id_of("4")]
    house.check()


def test_a_renamed_stream_has_no_archive_and_so_none(house: House) -> None:
    """The archive has nothing of the new name."""
    house.fill("s", 2)
    archive(house, "2")
    house.run(XDel(stream="s", ids=[id_of("1")]))
    house.run(Rename(stream="s", target="t"))
    assert deleted(house, stream="t") == []
    house.check()


@pytest.mark.parametrize("at_once", [1, 100])
def test_the_highest_are_kept(at_once: int) -> None:
    """Of as many as there is room for; they count as memory."""
    key = Key("0" * 16)
    kept = Kept(archived_up_to=1)
    before = key.footprint.bytes
    for first in range(1, DELETED_MAX + 101, at_once):
        kept.note_deleted(key, range(first, first + at_once))
    assert kept.deleted == list(range(101, DELETED_MAX + 101))
    assert key.footprint.bytes - before == DELETED_MAX * DELETED_BYTES
