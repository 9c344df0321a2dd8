"""The same over a bucket of an S3-compatible server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.history.room import STREAM, Room
from tests.spark.table.object_store import ObjectStore


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    """The server."""
    with ObjectStore() as found:
        yield found


def test_one_cursor_goes_over_a_bucket(store: ObjectStore, tmp_path: Path) -> None:
    """Archived, trimmed and compacted there."""
    room = Room(tmp_path, store.root("archives/history"))
    try:
        all_ids: list[str] = []
        for batch in ("abc", "def", "ghi"):
            all_ids += room.publish(*batch)
            room.archiver.run(STREAM)
        assert room.archiver.trim() == 9
        room.served.start()
        all_ids += room.publish("live")
        assert room.ids(after="0") == all_ids[:9]
        assert room.archiver.compact() == 3
        assert room.ids(after=all_ids[1], count=3) == all_ids[2:5]
        assert room.ids(after=all_ids[8]) == all_ids[9:]
    finally:
        room.close()
