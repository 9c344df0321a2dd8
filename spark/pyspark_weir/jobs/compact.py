"""Compacts an archive on Spark: tasks rewrite sets of small files, the driver commits each set.

Knows: how sets are given to tasks. Must never know: how files are merged, what a commit is.

A task that is killed, or runs twice, leaves files that no commit names; vacuum deletes them.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_weir.errors import ArchiveDamagedError
from pyspark_weir.running import query_error
from pyspark_weir.session import slots
from pyspark_weir.table.compaction import CompactionRules, Merge, Rewrite, Rewritten, try_rewrite
from pyspark_weir.table.root import ArchiveRoot

# For each task that runs at once; then they are committed, so that a killed compaction loses no more.
_SETS_A_SLOT: Final = 2

TryRewrite = Callable[[ArchiveRoot, Merge, CompactionRules], Rewritten | ArchiveDamagedError]


def rewrite_on(
    spark: SparkSession, root: ArchiveRoot, rules: CompactionRules, rewrite_one: TryRewrite = try_rewrite
) -> Rewrite:
    """For `compaction.compact`: a task runs `rewrite_one` for each set. Raises PipelineError."""

    def rewrite(chosen: Sequence[Merge]) -> Iterator[tuple[Merge, Rewritten | ArchiveDamagedError]]:
        step = _SETS_A_SLOT * slots(spark)
        for start in range(0, len(chosen), step):
            some = chosen[start : start + step]

            def run(
                batches: Iterator[pa.RecordBatch], some: Sequence[Merge] = some
            ) -> Iterator[pa.RecordBatch]:
                for number in (number for batch in batches for number in batch["id"].to_pylist()):
                    added = pickle.dumps(rewrite_one(root, some[number], rules))
                    yield pa.RecordBatch.from_pydict({"number": [number], "added": [added]})

            rows = spark.range(0, len(some), 1, len(some)).mapInArrow(run, "number long, added binary")
            try:
                found = rows.collect()
            except PySparkException as error:
                raise query_error(str(error)) from None
            for row in found:
                yield some[row["number"]], pickle.loads(row["added"])  # noqa: S301 - its own task's

    return rewrite
