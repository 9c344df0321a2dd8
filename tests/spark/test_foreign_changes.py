"""Another program changes the table, in each way that it can: all readers go on, and the remedy is named.

Knows: what delta-rs can do to a table, all readers of an archive. Must never know: how these read.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from typer.testing import CliRunner, Result

from pyspark_weir.cli.main import jobs
from pyspark_weir.errors import ArchiveError
from pyspark_weir.ids import EntryId, parse
from pyspark_weir.jobs.verify import verify
from pyspark_weir.table import log
from pyspark_weir.table.compaction import CompactionRules, compact
from pyspark_weir.table.erasure import Erasure, accept_foreign, erase
from pyspark_weir.table.ranges import StreamKey
from pyspark_weir.table.table import ArchiveTable
from tests.spark.archive_tables import GATEWAY, GENERATION, Maker
from tests.spark.table.making import commit_unchecked, rows_of
from tests.spark.test_damaged_bytes import IDS, READERS

KEY: Final = StreamKey(GATEWAY, "orders", GENERATION)
ONE: Final = f"id = '{IDS[3]}'"
OTHER_FIELDS: Final = "make_array(named_struct('name', 'n', 'value', arrow_cast('x', 'Binary')))"


def _merge(table: DeltaTable) -> None:
    source = pa.table({"id": [IDS[3]]})
    merging = table.merge(source, "s.id = t.id", source_alias="s", target_alias="t")
    merging.when_matched_delete().execute()


def _add_a_column(table: DeltaTable) -> None:
    table.alter.add_columns([Field("note", PrimitiveType("string"))])
    DeltaTable(table.table_uri).update(predicate=ONE, updates={"note": "'mine'"})


# What another program may do, and how many entries are there after it.
CHANGES: Final[dict[str, tuple[Callable[[DeltaTable], object], int]]] = {
    "DELETE": (lambda table: table.delete(ONE), 39),
    "UPDATE": (lambda table: table.update(predicate=ONE, updates={"fields": OTHER_FIELDS}), 40),
    "MERGE": (_merge, 39),
    "UPDATE of a column of its own": (_add_a_column, 40),
}


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    """An archive of one file."""
    found = Maker(tmp_path / "archive")
    found.batch({"orders": IDS})
    return found


def weir(*words: str) -> Result:
    return CliRunner().invoke(jobs, words)


def found_in(table: ArchiveTable) -> list[str]:
    """What verify finds, deeply, but that no gateway was there."""
    table.refresh()
    findings = verify(table, {}, deep=True).findings
    return [one.what for one in findings if not one.what.startswith("no gateway was named")]


def ids_of(found: list[Any]) -> list[str]:
    """Of what a reader finds: rows, or a page."""
    if found and isinstance(found[0], dict):
        return sorted(row["id"] for row in found)
    return sorted(part.partition('"')[0] for part in found[0].decode().split('{"id":"')[1:])


@pytest.mark.parametrize("change", CHANGES)
def test_all_readers_read_what_another_program_has_written(maker: Maker, change: str) -> None:
    """Its types are others, and its rows are in no order: it was a 500 to each page of the file."""
    operation, count = CHANGES[change]
    operation(DeltaTable(maker.root.url))
    table = ArchiveTable.open(maker.root)
    (file,) = table.files()
    assert not file.is_ours
    expected = [one for one in IDS if count == len(IDS) or one != IDS[3]]
    for name, reader in READERS.items():
        if name == "by_verify":
            continue
        found = reader(table, file)
        if name in ("by_a_count", "by_an_acceptance", "by_an_erasure"):
            assert found, name
        else:
            assert ids_of(found) == expected, name


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_named_with_its_remedy_and_accepted_once(maker: Maker, change: str) -> None:
    """By verify, and by compact, which fails no more then; and named again where it is done again."""
    root, (operation, count) = maker.root, CHANGES[change]
    operation(DeltaTable(root.url))
    table = ArchiveTable.open(root)
    name = change.partition(" ")[0]
    assert f"({name}): restore an earlier version, or accept that" in found_in(table)[0]
    # Ranges that are cached know it too.
    table.checkpoint()
    table = ArchiveTable.open(root)
    assert name in table.foreign().values()
    if count < len(IDS):
        # The second of two caches that must agree.
        maker.batch({"orders": ["9999999999999-0"]})
        table.refresh()
        failed = weir("compact", root.url)
        assert (failed.exit_code, "--accept-foreign" in failed.stderr) == (1, True), failed.stderr
    shown = weir("erase", root.url, "--accept-foreign", "--dry-run")
    assert (shown.exit_code, "would be accepted" in shown.stderr) == (0, True)
    assert found_in(table)
    accepted = weir("erase", root.url, "--accept-foreign")
    said = f"{len(IDS) - count} entries accepted as erased"
    assert (accepted.exit_code, said in accepted.stderr) == (0, True)
    assert found_in(table) == []
    assert table.foreign() == {}
    assert weir("compact", root.url).exit_code == 0
    assert found_in(table) == []
    version = table.version
    assert accept_foreign(table) == {}
    assert table.version == version
    DeltaTable(root.url).delete(f"id = '{IDS[5]}'")
    assert "(DELETE)" in found_in(table)[0]


def test_a_whole_file_that_is_deleted_is_accepted(maker: Maker) -> None:
    maker.batch({"orders": ["9999999999999-0"]})
    DeltaTable(maker.root.url).delete(f"stream = 'orders' AND id_key < '{'0' * 31}f' OR id = '{IDS[0]}'")
    DeltaTable(maker.root.url).delete(f"id <> '{IDS[0]}' AND id <> '9999999999999-0'")
    table = ArchiveTable.open(maker.root)
    assert sum(one.rows for one in accept_foreign(table).values()) == len(IDS)
    assert found_in(table) == []
    assert table.rows() == {KEY: 1}


def test_rows_that_are_in_no_batch_are_not_accepted(maker: Maker) -> None:
    """Nor is a file that cannot be read: only what is missing, or another, is accepted."""
    table = maker.table
    commit_unchecked(table, rows_of(KEY, ["9999999999999-0"]), [])
    with pytest.raises(ArchiveError, match="in no batch: run verify"):
        accept_foreign(table)
    (file,) = [file for file in table.files() if file.high.id == EntryId(9_999_999_999_999, 0)]
    table.root.delete(file.path)
    with pytest.raises(ArchiveError, match="is missing"):
        accept_foreign(table)


def test_a_foreign_optimize_is_no_change(maker: Maker) -> None:
    maker.batch({"orders": ["9999999999999-0"]})
    DeltaTable(maker.root.url).optimize.compact()
    assert found_in(maker.table) == []
    assert maker.table.foreign() == {}


def test_a_change_that_an_older_version_has_seen_first_is_accepted_too(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cache of ranges does not say what was foreign: what is missing has the remedy for a hint."""
    DeltaTable(maker.root.url).delete(ONE)
    monkeypatch.setattr(log, "FOREIGN", "unknown")
    ArchiveTable.open(maker.root).checkpoint()
    monkeypatch.undo()
    table = ArchiveTable.open(maker.root)
    assert table.foreign() == {}
    (finding,) = found_in(table)
    assert finding.startswith("40 entries were committed, the files hold 39; if another program")
    assert "--accept-foreign" in finding
    accept_foreign(table)
    assert found_in(table) == []


class TestForeignColumns:
    """One that may be null is ignored by readers, and kept by what writes rows anew."""

    @pytest.fixture
    def noted(self, maker: Maker) -> ArchiveTable:
        """An archive whose fourth entry has a note."""
        maker.batch({"orders": ["9999999999999-0"]})
        _add_a_column(DeltaTable(maker.root.url))
        table = ArchiveTable.open(maker.root)
        accept_foreign(table)
        return table

    def notes(self, table: ArchiveTable) -> list[tuple[str, str]]:
        rows = DeltaTable(table.root.url).to_pyarrow_table(columns=["id", "note"]).to_pylist()
        return [(row["id"], row["note"]) for row in rows if row["note"] is not None]

    def test_batches_go_on(self, maker: Maker, noted: ArchiveTable) -> None:
        maker.batch({"orders": ["9999999999999-1"]})
        assert found_in(noted) == []

    def test_a_compaction_keeps_it(self, noted: ArchiveTable) -> None:
        assert list(compact(noted, CompactionRules()))
        assert all(file.is_ours for file in noted.files())
        assert self.notes(noted) == [(IDS[3], "mine")]
        assert found_in(noted) == []

    def test_an_erasure_keeps_it(self, noted: ArchiveTable) -> None:
        gone = frozenset([parse("9999999999999-0"), parse(IDS[0])])
        erase(noted, Erasure("orders", ids=gone))
        assert self.notes(noted) == [(IDS[3], "mine")]
        assert found_in(noted) == []
