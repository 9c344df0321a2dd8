"""Compaction in tasks of Spark: the same entries in fewer files, also where a task is killed."""

import os
import signal
from pathlib import Path

import orjson
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from pyspark_weir.cli.main import jobs
from pyspark_weir.errors import ArchiveDamagedError
from pyspark_weir.jobs.compact import rewrite_on
from pyspark_weir.table.compaction import CompactionRules, Merge, Rewritten, compact, try_rewrite
from pyspark_weir.table.root import ArchiveRoot
from tests.spark.table.making import Maker, entries_in, key_of, numbered

A = key_of("a")
_DAYS = 6


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    """Small files of several days, more sets than are rewritten at once."""
    made = Maker(tmp_path / "archive")
    for number in range(3 * _DAYS):
        made.batch({A: numbered(1 + 10 * number, 10, day=number // 3)})
    return made


def test_each_set_of_files_is_a_task(spark: SparkSession, maker: Maker) -> None:
    """The command reports each of them, and does nothing the second time."""
    before = entries_in(maker.table)
    command = ["compact", str(maker.table.root.url), "--spark", "--json"]
    ran = CliRunner().invoke(jobs, command)
    reports = [orjson.loads(line) for line in ran.output.splitlines()]
    assert [(one["removed"], one["added"]) for one in reports] == [(3, 1)] * _DAYS
    assert entries_in(maker.table) == before
    assert len(maker.table.files()) == _DAYS
    assert CliRunner().invoke(jobs, command).output == ""


def test_a_task_that_is_killed_is_run_again(spark: SparkSession, maker: Maker, tmp_path: Path) -> None:
    """Its files count once; what the first attempt wrote does not count."""
    before, died = entries_in(maker.table), str(tmp_path / "died")

    def die_once(root: ArchiveRoot, one: Merge, rules: CompactionRules) -> Rewritten | ArchiveDamagedError:
        added = try_rewrite(root, one, rules)
        try:
            os.close(os.open(died, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return added
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it was killed")

    rules, table = CompactionRules(), maker.table
    done = list(compact(table, rules, rewrite_on(spark, table.root, rules, die_once)))
    assert Path(died).exists()
    assert len(done) == len(table.files()) == _DAYS
    stored = list((tmp_path / "archive").glob("date=*/*.parquet"))
    assert len(stored) > 3 * _DAYS + _DAYS, "the killed attempt had written a file"
    assert entries_in(table) == before


def test_files_that_another_compaction_has_replaced_are_left_to_it(spark: SparkSession, maker: Maker) -> None:
    """It begins again with the table as it is then; a file that is damaged is named."""
    before, rules = entries_in(maker.table), CompactionRules()
    table = maker.table
    steps = compact(table, rules, rewrite_on(spark, table.root, rules))
    next(steps)
    other = Maker(table.root).table
    assert len(list(compact(other, rules))) == _DAYS - 1
    assert list(steps) == []
    assert entries_in(table) == before
    maker.batch({A: numbered(1_000, 10, day=_DAYS)})
    maker.batch({A: numbered(2_000, 10, day=_DAYS)})
    damaged = table.files()[-1].path
    Path(table.root.path(damaged)).write_bytes(b"PAR1")
    with pytest.raises(ArchiveDamagedError, match=damaged):
        list(compact(table, rules, rewrite_on(spark, table.root, rules)))
