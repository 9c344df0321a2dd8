"""Erasing entries: they are gone from the table and from what reads it, and everything else is as before.

Knows: archives made without Spark, a real gateway, the service of history.
Must never know: how files are laid out.
"""

from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from app.archived.asking import Asked
from engine import SystemClock
from history.service import History
from pyspark_weir import clock
from pyspark_weir.cli.main import jobs
from pyspark_weir.errors import ArchiveDamagedError, ArchiveError, OptionError
from pyspark_weir.gateway import GatewayAccess, GatewayClient
from pyspark_weir.ids import EntryId
from pyspark_weir.jobs.trim import TrimRules, plan, run
from pyspark_weir.jobs.verify import verify
from pyspark_weir.table.cleaning import clean_log
from pyspark_weir.table.compaction import CompactionRules, compact
from pyspark_weir.table.erasure import Erasure, erase, find
from pyspark_weir.table.table import ArchiveTable
from tests.server import Server
from tests.spark.table.making import GENERATION, Maker, entries_in, key_of, numbered
from tests.spark.test_foreign_changes import found_in

A, B = key_of("a"), key_of("b")
OTHER: Final = "ffffffffffffffff"


def ids(*numbers: int) -> frozenset[EntryId]:
    return frozenset(EntryId(number, 0) for number in numbers)


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    """Two streams, and another generation of the first, in three files."""
    found = Maker(tmp_path / "archive")
    found.batch({A._replace(generation=OTHER): numbered(1, 10), B: numbered(1, 10)})
    for first in (1, 11):
        found.batch({A: numbered(first, 10)})
    return found


def left(table: ArchiveTable) -> dict[tuple[str, str], list[int]]:
    """The IDs of each stream and generation."""
    found: dict[tuple[str, str], list[int]] = {}
    for stream, generation, entry_id, _ in sorted(entries_in(table), key=lambda one: int(one[2][:-2])):
        found.setdefault((stream, generation), []).append(int(entry_id[:-2]))
    return found


class TestWhatIsErased:
    def test_entries_by_id_in_all_generations(self, maker: Maker) -> None:
        """And nothing else; their ranges stay, so that a batch goes on where the last one ended."""
        before = maker.table.positions()
        done = erase(maker.table, Erasure("a", ids=ids(3, 12, 99)))
        assert {key: one.rows for key, one in done.tallies.items()} == {A: 2, A._replace(generation=OTHER): 1}
        assert left(maker.table) == {
            ("a", GENERATION): [number for number in range(1, 21) if number not in (3, 12)],
            ("a", OTHER): [1, 2, *range(4, 11)],
            ("b", GENERATION): [*range(1, 11)],
        }
        assert maker.table.positions() == before
        maker.batch({A: numbered(21, 10)})
        assert found_in(maker.table) == []

    def test_of_one_generation(self, maker: Maker) -> None:
        erase(maker.table, Erasure("a", OTHER, ids(3)))
        assert len(left(maker.table)["a", GENERATION]) == 20
        assert 3 not in left(maker.table)["a", OTHER]

    def test_entries_with_fields(self, maker: Maker) -> None:
        """With all that are named, wherever they stand: here each entry has its ID, and a 1 behind it."""
        erase(maker.table, Erasure("a", GENERATION, fields=(("n", b"7-0"), ("n", b"1"))))
        erase(maker.table, Erasure("a", GENERATION, fields=(("n", b"8-0"), ("n", b"2"))))
        erase(maker.table, Erasure("a", GENERATION, fields=(("m", b"9-0"),)))
        assert left(maker.table)["a", GENERATION] == [number for number in range(1, 21) if number != 7]
        assert found_in(maker.table) == []

    def test_all_of_a_file(self, maker: Maker) -> None:
        """It has no successor then."""
        erase(maker.table, Erasure("a", GENERATION, ids(*range(11, 21))))
        assert len(maker.table.files()) == 2
        assert found_in(maker.table) == []

    def test_nothing(self, maker: Maker) -> None:
        """Which is no commit."""
        version = maker.table.version
        assert erase(maker.table, Erasure("a", ids=ids(99))) == find(maker.table, Erasure("a", ids=ids(99)))
        assert maker.table.version == version
        with pytest.raises(OptionError, match="no entries are named"):
            Erasure("a")

    def test_of_a_file_that_another_program_has_written(self, maker: Maker) -> None:
        """Its rows are in any order."""
        DeltaTable(maker.table.root.url).optimize.compact()
        erase(maker.table, Erasure("a", GENERATION, ids(3)))
        assert 3 not in left(maker.table)["a", GENERATION]
        assert all(file.is_ours for file in maker.table.files())
        assert found_in(maker.table) == []


class TestWhatItIsPartOf:
    def test_compactions_clean_logs_and_caches_go_on(self, maker: Maker) -> None:
        """What is committed less what is erased is what the files hold, through all of these."""
        erase(maker.table, Erasure("a", ids=ids(3)))
        maker.table.checkpoint()
        assert ArchiveTable.open(maker.table.root).erased() == {A: 1, A._replace(generation=OTHER): 1}
        erase(maker.table, Erasure("b", ids=ids(4)))
        assert list(compact(maker.table, CompactionRules()))
        clean_log(maker.table, clock.wall_ms() + 1_000, age_ms=0)
        maker.batch({A: numbered(21, 1)})
        clean_log(maker.table, clock.wall_ms() + 1_000, age_ms=0)
        for table in (maker.table, ArchiveTable.open(maker.table.root)):
            assert found_in(table) == []
            assert sum(table.rows().values()) == 41 - 3

    def test_one_that_meets_a_compaction_begins_again(
        self, maker: Maker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its files have been replaced by then."""
        committed = ArchiveTable.erase

        def commit_late(*given: Any) -> int:
            monkeypatch.setattr(ArchiveTable, "erase", committed)
            list(compact(ArchiveTable.open(maker.table.root), CompactionRules()))
            return committed(*given)

        monkeypatch.setattr(ArchiveTable, "erase", commit_late)
        erase(maker.table, Erasure("a", GENERATION, ids(3, 12)))
        assert left(maker.table)["a", GENERATION] == [n for n in range(1, 21) if n not in (3, 12)]
        assert found_in(maker.table) == []

    def test_a_damaged_file_stops_it(self, maker: Maker) -> None:
        """Nothing is changed then."""
        path = Path(maker.table.root.path(maker.table.files()[-1].path))
        path.write_bytes(path.read_bytes()[:-9])
        version = maker.table.version
        with pytest.raises(ArchiveDamagedError):
            erase(maker.table, Erasure("a", ids=ids(3, 12)))
        assert ArchiveTable.open(maker.table.root).version == version

    def test_a_table_that_may_only_grow_refuses_it(self, maker: Maker) -> None:
        DeltaTable(maker.table.root.url).alter.set_table_properties({"delta.appendOnly": "true"})
        with pytest.raises(ArchiveError, match=r"delta\.appendOnly"):
            erase(maker.table, Erasure("a", ids=ids(3)))

    async def test_history_forgets_what_it_has_cached(self, maker: Maker) -> None:
        """With the next version that it sees."""
        history = History(maker.table.root, SystemClock(), lambda: "", 1 << 20)
        asked = Asked.of("a", {"generation": GENERATION, "count": "100"})
        assert b'"3-0"' in (await history.page(asked)).text
        before = history.cache.groups.bytes
        assert before
        erase(maker.table, Erasure("a", GENERATION, ids(3)))
        await history.archive.refresh()
        assert history.cache.groups.bytes < before
        page = await history.page(asked)
        assert (page.number, b'"3-0"' in page.text) == (19, False)
        history.archive.close()
        history.cache.close()


def test_what_the_gateway_still_has_is_named(tmp_path: Path, server: Server) -> None:
    """By verify, and by trim, which waits for it: nobody has it any more after that."""
    stream = tmp_path.name
    with GatewayClient(GatewayAccess("g0", server.url)) as gateway:
        entries = [{"id": one, "fields": [["n", one], ["n", "1"]]} for one in numbered(1, 5)]
        gateway.post("/v1/publish", {"streams": {stream: entries}})
        seen = gateway.update_stream(stream, archived_up_to="5-0")
        maker = Maker(tmp_path / "archive")
        maker.batch({key_of(stream, seen["generation"]): numbered(1, 5)})
        erase(maker.table, Erasure(stream, ids=ids(3)))
        gateways = {"g0": gateway}
        found = [one.what for one in verify(maker.table, gateways, deep=True).findings]
        assert found[1].startswith("3-0 is in the gateway, and not in the archive; 1 entries were erased")
        (planned,) = plan(maker.table, gateways, TrimRules(), 1_000)
        assert planned.refused is not None
        assert "delete them in the gateway too" in planned.refused
        gateway.delete_entries(stream, ["3-0"])
        assert verify(maker.table, gateways, deep=True).findings == ()
        planned = plan(maker.table, gateways, TrimRules(), 1_000)[0]
        assert [(one.deleted, one.refused) for one in run(maker.table, gateways, [planned])] == [(4, None)]


class TestCommand:
    def weir(self, maker: Maker, *words: str) -> Result:
        return CliRunner().invoke(jobs, ["erase", maker.table.root.url, *words])

    def test_it_says_what_is_erased_and_where_it_still_is(self, maker: Maker) -> None:
        """A dry run changes nothing."""
        words = ("--stream", "a", "--generation", GENERATION, "--ids", "3-0,12-0")
        shown = self.weir(maker, *words, "--dry-run")
        assert "2 entries would be erased" in shown.stderr
        old = [file.path for file in maker.table.files() if file.low.stream == "a" == file.high.stream]
        assert all(path in shown.stdout for path in old)
        assert len(left(maker.table)["a", GENERATION]) == 20
        done = self.weir(maker, *words)
        assert done.exit_code == 0
        assert "2 entries erased" in done.stderr
        assert "2 files hold them until `weir-spark vacuum` deletes these" in done.stderr
        assert all(path in done.stdout for path in old)
        assert len(left(maker.table)["a", GENERATION]) == 18

    def test_ids_may_be_in_a_file_and_fields_be_several(self, maker: Maker, tmp_path: Path) -> None:
        (tmp_path / "ids").write_text("3-0\n4-0\n\n")
        assert "4 entries erased" in self.weir(maker, "--stream", "a", "--ids", f"@{tmp_path / 'ids'}").stderr
        words = ("--stream", "b", "--where", "n=5-0", "--where", "n=1")
        assert "1 entries erased" in self.weir(maker, *words).stderr

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            ((), "no stream is named"),
            (("--stream", "a"), "--ids A,B or with --where"),
            (("--stream", "a", "--ids", "3-0", "--where", "n=1"), "not with both"),
            (("--stream", "a", "--where", "n"), "--where name=value"),
            (("--stream", "a", "--ids", ","), "no entries are named"),
            (("--stream", "a", "--accept-foreign"), "name neither stream nor entries"),
        ],
    )
    def test_what_is_not_said_is_not_guessed(self, maker: Maker, words: tuple[str, ...], why: str) -> None:
        refused = self.weir(maker, *words)
        assert (refused.exit_code, why in refused.stderr) == (2, True), refused.stderr
        assert len(left(maker.table)["a", GENERATION]) == 20
