"""What is killed in a proof: one driver of Spark that archives streams and mirrors some of them.

Knows: the jobs as a program runs them. Must never know: what is published, who kills it.

    python -m tests.spark.prove_driver '{"url": …, "folder": …, "conf": {…}, "every_ms": null}'
"""

import json
import os
import sys
import traceback
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_weir.errors import DATA_LOSS, PipelineError, Unavailable
from pyspark_weir.gateway import GatewayAccess
from pyspark_weir.jobs import mirror
from pyspark_weir.jobs.archive import Archiver
from pyspark_weir.jobs.mirror import Targets
from pyspark_weir.progress import BatchProgress
from pyspark_weir.running import QueryRun, run
from pyspark_weir.session import SessionOptions, open_session
from pyspark_weir.table.root import ArchiveRoot

ARCHIVED = "web:.*"
# A part of them: the copies stay in the gateway's memory.
MIRRORED = "web:site0[5-7]%"
COPY = "copy.{stream}"
# The field in which a copy has the entry's ID.
ORIG = "_orig"
# The mirror moves it along, so that nothing is trimmed that it has not read.
GROUP = "mirror"


def _archive(asked: dict[str, Any], session: SessionOptions) -> None:
    folder, source = Path(asked["folder"]), _source(asked, ARCHIVED)
    checkpoint = str(folder / "archive-checkpoint")
    archiver = Archiver(ArchiveRoot.of(folder / "archive"), checkpoint, source)

    def tell(_progress: BatchProgress) -> None:
        with suppress(Unavailable):
            archiver.settle()

    run(QueryRun(checkpoint, asked["every_ms"], session), archiver.query, tell)
    archiver.settle()


def _mirror(asked: dict[str, Any], session: SessionOptions) -> None:
    checkpoint = str(Path(asked["folder"]) / "mirror-checkpoint")
    target = GatewayAccess("g0", asked["url"])
    wanted = mirror.Mirror(
        checkpoint,
        {**_source(asked, MIRRORED), "startingOffsets": "earliest"},
        target,
        Targets.parse([COPY]),
        orig_field=ORIG,
    )
    what = QueryRun(checkpoint, asked["every_ms"], session, (target,), GROUP)
    run(what, lambda spark: mirror.query(spark, wanted), lambda _progress: None)


def _source(asked: dict[str, Any], pattern: str) -> dict[str, str]:
    return {
        "gateway.urls": asked["url"],
        "subscribePattern": pattern,
        "maxEntriesPerTrigger": str(asked["batch_entries"]),
        # Several tasks a batch, however small it is.
        "maxEntriesPerPartition": str(max(1, asked["batch_entries"] // 4)),
        "discoveryIntervalMs": "500",
        "retryTimeoutMs": "120000",
    }


def main() -> None:
    """Run both until they end, or one fails."""
    asked = json.loads(sys.argv[1])
    session = SessionOptions(app="proof", conf=asked["conf"])
    spark: SparkSession = open_session(session)
    threads = ThreadPoolExecutor(2)
    jobs = [threads.submit(one, asked, session) for one in (_archive, _mirror)]
    ended, _others = wait(jobs, return_when=FIRST_EXCEPTION)
    for failed in (one.exception() for one in ended):
        if failed is not None:
            traceback.print_exception(failed)
            sys.stderr.flush()
            # The other job goes on for ever.
            os._exit(3 if isinstance(failed, PipelineError) and failed.code == DATA_LOSS else 1)
    spark.stop()


if __name__ == "__main__":
    main()
