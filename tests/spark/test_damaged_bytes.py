"""A bit of a file that has changed is found by everything that reads the file: none of it becomes an entry.

Knows: all readers of an archive's files, how files are laid out. Must never know: what a gateway is.
"""

import ast
import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.archived.asking import Asked
from app.errors import RefusalError
from engine import SystemClock
from history.service import History
from pyspark_weir.errors import ArchiveDamagedError, ArchiveError
from pyspark_weir.ids import ZERO, EntryId
from pyspark_weir.jobs.archived import ArchiveReader
from pyspark_weir.jobs.replay import FromArchive, ReplayRange
from pyspark_weir.jobs.verify import verify
from pyspark_weir.table import deletions
from pyspark_weir.table.compaction import CompactionRules, Merge, compact, rewrite, unchecked
from pyspark_weir.table.erasure import Erasure, accept_foreign, find
from pyspark_weir.table.files import DataFile, prove
from pyspark_weir.table.log import commit_name
from pyspark_weir.table.parquet import read_footer
from pyspark_weir.table.ranges import StreamKey, cache_name, read_cache
from pyspark_weir.table.reading import count, entries_of, scan
from pyspark_weir.table.schema import GIVEN, IN_FILES
from pyspark_weir.table.table import ArchiveTable
from tests.spark.archive_tables import GATEWAY, GENERATION, Maker

KEY: Final = StreamKey(GATEWAY, "orders", GENERATION)
IDS: Final = [f"1795252515{number:03d}-0" for number in range(40)]
# Each is read by all readers: about a tenth of a second.
FLIPS: Final = 50
ROOT: Final = Path(__file__).parents[2]

# What a reader makes of a file's entries.
Found = list[Any]


class Refused(Exception):  # noqa: N818 - it is an answer
    """A reader has found that something is wrong."""


# Each reads all entries of the only file, and gives what it reads of them.
def _by_the_source(table: ArchiveTable, _file: DataFile) -> Found:
    reader = ArchiveReader(table.root, table.version)
    return [one for part in reader.partitions() for rows in reader.read(part) for one in rows.to_pylist()]


def _by_a_replay(table: ArchiveTable, file: DataFile) -> Found:
    one = ReplayRange(*KEY, after="0-0", end=str(file.high.id), rows=file.rows, target="orders")
    return [row for rows in FromArchive(table.root).batches(one, (file,)) for row in rows.to_pylist()]


def _by_verify(table: ArchiveTable, file: DataFile) -> Found:
    found = [
        one.what for one in verify(table, {}, deep=True).findings if not one.what.startswith("no gateway")
    ]
    if found:
        raise Refused(found[0])
    return _by_a_scan(table, file)


def _by_a_compaction(table: ArchiveTable, file: DataFile) -> Found:
    added = rewrite(table.root, Merge(file.date, (file,)), CompactionRules())
    return [one for written in added for one in _by_a_scan(table, written)]


def _by_a_comparison(table: ArchiveTable, file: DataFile) -> Found:
    """As a trim and a deep look at the gateway do."""
    read = entries_of(table.root, [file], KEY, ZERO, file.high.id, ("id", "fields"))
    return [one for rows in read for one in rows.to_pylist()]


def _by_an_erasure(table: ArchiveTable, _file: DataFile) -> Found:
    return [one.rows for one in find(table, Erasure("orders", fields=(("n", b"1"),))).tallies.values()]


def _by_an_acceptance(table: ArchiveTable, _file: DataFile) -> Found:
    """It lacks nothing."""
    return [str(accept_foreign(table, dry_run=True))]


def _by_a_count(table: ArchiveTable, file: DataFile) -> Found:
    """Of a part of the file, so that its statistics do not answer."""
    prove(table.root, file)
    found = count(table.root, [file], {KEY: (ZERO, EntryId(file.high.id.ms - 1, 0))})
    return [found[KEY]]


def _by_a_scan(table: ArchiveTable, file: DataFile) -> Found:
    prove(table.root, file)
    return [one for rows in scan(table.root, file) for one in rows.to_pylist()]


def _by_history(table: ArchiveTable, _file: DataFile) -> Found:
    return asyncio.run(_page(table, reverse=False))


def _by_history_backwards(table: ArchiveTable, _file: DataFile) -> Found:
    return asyncio.run(_page(table, reverse=True))


async def _page(table: ArchiveTable, *, reverse: bool) -> Found:
    history = History(table.root, SystemClock(), lambda: "", 1 << 20)
    try:
        asked = {"generation": GENERATION, "count": "1000"} | ({"reverse": "true"} if reverse else {})
        found = await history.page(Asked.of("orders", asked))
    except RefusalError as refusal:
        raise Refused(refusal.code) from None
    finally:
        history.archive.close()
        history.cache.close()
    return [found.text]


READERS: Final[dict[str, Callable[[ArchiveTable, DataFile], Found]]] = {
    reader.__name__.removeprefix("_"): reader
    for reader in (
        _by_the_source,
        _by_a_replay,
        _by_verify,
        _by_a_compaction,
        _by_a_comparison,
        _by_a_count,
        _by_an_acceptance,
        _by_an_erasure,
        _by_a_scan,
        _by_history,
        _by_history_backwards,
    )
}


class Room:
    """An archive of one file."""

    def __init__(self, root: Path) -> None:
        self.maker = Maker(root)
        (self.path,) = self.maker.batch({"orders": IDS})
        (self.file,) = self.maker.table.files()
        self.whole = self.path.read_bytes()
        self.right: dict[str, Found | None] = {}

    @contextmanager
    def flipped(self, bit: int) -> Iterator[None]:
        """With one bit of the file changed."""
        changed = bytearray(self.whole)
        changed[bit // 8] ^= 1 << bit % 8
        self.path.write_bytes(changed)
        yield
        self.path.write_bytes(self.whole)

    def outcomes(self) -> dict[str, Found | None]:
        """What each reader finds; None where it refuses."""
        found: dict[str, Found | None] = {}
        for name, reader in READERS.items():
            try:
                found[name] = reader(self.maker.table, self.file)
            except (ArchiveError, Refused):
                found[name] = None
        return found


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path / "archive")


NOTHING: Final[dict[str, Found | None]] = dict.fromkeys(READERS)


def _pages_of(footer: object) -> range:
    """Where a file's pages are."""
    columns = [
        group.column(place)
        for group in (footer.row_group(0),)  # type: ignore[attr-defined] # pyarrow has no types
        for place in range(group.num_columns)
    ]
    ends = [
        (one.dictionary_page_offset or one.data_page_offset) + one.total_compressed_size for one in columns
    ]
    return range(4, max(ends))


def test_a_changed_bit_is_refused_by_every_reader_or_changes_nothing(room: Room) -> None:
    """In pages most are refused by each: some of what their headers say is of no matter. A footer that has
    changed is never read.
    """
    right = room.outcomes()
    assert None not in right.values()
    footer = read_footer(room.maker.root, room.file.path)
    pages = _pages_of(footer.metadata)
    start_of_footer = len(room.whole) - len(footer.raw) + 4
    bits = random.Random(len(room.whole))
    refused = 0
    for bit in bits.sample(range(8 * pages.start, 8 * pages.stop), FLIPS):
        with room.flipped(bit):
            found = room.outcomes()
        wrong = [name for name, one in found.items() if one not in (None, right[name])]
        assert not wrong, f"bit {bit} is read as if it were true"
        refused += found["by_a_scan"] is None
    assert refused > FLIPS * 3 // 4
    for bit in bits.sample(range(8 * start_of_footer, 8 * len(room.whole)), FLIPS // 2):
        with room.flipped(bit):
            assert room.outcomes() == NOTHING, f"bit {bit} of the footer is not found by all"


def test_a_file_is_read_through_one_module() -> None:
    """Nothing that reads an archive does so without checksums: no other imports what reads Parquet."""
    readers: dict[str, list[str]] = {}
    for path in [*(ROOT / "spark/pyspark_weir").rglob("*.py"), *(ROOT / "app").rglob("*.py")]:
        text = path.read_text()
        assert "to_pyarrow" not in text, "deltalake reads without checksums"
        names = [
            f"{node.module}.{one.name}" if isinstance(node, ast.ImportFrom) else one.name
            for node in (ast.walk(ast.parse(text)) if "pyarrow" in text else ())
            if isinstance(node, ast.Import | ast.ImportFrom)
            for one in node.names
        ]
        used = [name for name in names if name.startswith(("pyarrow.parquet", "pyarrow.dataset"))]
        if used:
            readers[str(path.relative_to(ROOT))] = used
    assert readers == {
        "spark/pyspark_weir/table/parquet.py": ["pyarrow.parquet", "pyarrow.dataset"],
        # Whether a checkpoint of Delta's, which deltalake has written and reads, is whole.
        "spark/pyspark_weir/table/log.py": ["pyarrow.parquet"],
    }


def test_recorded_deletions_and_cached_ranges_are_checked_too(room: Room) -> None:
    """Where a deletion cannot be read, an entry would come back; a cache is passed over."""
    root = room.maker.root
    deletions.record(root, {KEY: EntryId(1, 0)}, {KEY: [EntryId(1, 0)]})
    room.maker.table.checkpoint()
    (recorded,) = Path(root.path(deletions.FOLDER)).glob("*.parquet")
    cached = Path(root.path(cache_name(room.maker.table.version)))
    table_id = room.maker.table.table_id
    for path, reads in (
        (recorded, lambda: deletions.read(root).num_rows),
        (cached, lambda: read_cache(root, room.maker.table.version, table_id)),
    ):
        whole = path.read_bytes()
        right = reads()
        assert right
        for bit in random.Random(1).sample(range(32, 8 * len(whole)), FLIPS):
            changed = bytearray(whole)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            try:
                assert reads() in (right, None), f"bit {bit} of {path.name} is read as if it were true"
            except ArchiveDamagedError:
                continue
        path.write_bytes(whole)


def _write_as_before(path: Path) -> None:
    """The same rows as an older version wrote them."""
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(rows, path, compression="zstd", write_page_index=True, store_schema=False)


class TestOfBefore:
    @pytest.fixture
    def old(self, room: Room) -> Room:
        """An archive whose only file has no checksums."""
        right, root = room.outcomes(), room.maker.root
        _write_as_before(room.path)
        commit = Path(root.path(commit_name(1)))
        size = f'"size":{room.file.size}'
        commit.write_text(commit.read_text().replace(size, f'"size":{room.path.stat().st_size}'))
        room.right = right
        room.maker.table = ArchiveTable.open(root)
        (room.file,) = room.maker.table.files()
        room.whole = room.path.read_bytes()
        return room

    def test_it_stays_readable_and_says_that_it_has_no_checksums(self, old: Room) -> None:
        assert old.outcomes() == old.right
        assert verify(old.maker.table, {}).unchecked == 1

    def test_checksums_can_be_added(self, old: Room) -> None:
        """By writing its files anew, each once."""
        table = old.maker.table
        rules = CompactionRules(anew=unchecked(table))
        (done,) = compact(table, rules)
        assert [file.path for file in done.removed] == [old.file.path]
        assert verify(table, {}).unchecked == 0
        assert not list(compact(table, CompactionRules(anew=unchecked(table))))
        (old.file,) = table.files()
        assert old.outcomes() == old.right

    def test_what_cannot_be_read_is_refused_and_no_fault_of_the_reader(self, old: Room) -> None:
        """Whatever a page says that nothing checks."""
        pages = _pages_of(read_footer(old.maker.root, old.file.path).metadata)
        bits = random.Random(2).sample(range(8 * pages.start, 8 * pages.stop), FLIPS)
        for bit in bits:
            with old.flipped(bit):
                old.outcomes()


def test_files_of_another_program_have_the_archives_types(room: Room) -> None:
    """Views of texts, or without a column that may be null: they are cast by what reads all files."""
    rows = pq.read_table(room.path, partitioning=None)
    views = pa.schema(
        [pa.field(one.name, pa.string_view() if one.type == pa.string() else one.type) for one in rows.schema]
    )
    pq.write_table(rows.cast(views).drop_columns(["seq"]), room.path)
    assert room.file.is_ours
    (found,) = scan(room.maker.root, room.file)
    assert found.select(IN_FILES.names).schema == IN_FILES
    assert found["seq"].null_count == len(IDS)
    assert found.select(GIVEN.names).num_rows == len(IDS)
    pq.write_table(rows.drop_columns(["id"]), room.path)
    with pytest.raises(ArchiveDamagedError, match="it has no column id"):
        list(scan(room.maker.root, room.file))
