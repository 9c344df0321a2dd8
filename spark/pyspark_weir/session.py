"""How a Spark session of the pipeline is opened: its defaults, its Java, and what its worker processes find.

Knows: Spark's settings, and why each of them is as it is. Must never know: queries, jobs, gateways.
"""

import os
import re
import sys
import sysconfig
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import weir
from pyspark_weir import java
from pyspark_weir.errors import OptionError

# Two cores; a task that fails is tried four times, which `local[2]` alone would not do.
MASTER_DEFAULT: Final = "local[2,4]"
_LOCAL: Final = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?")
_CONNECT: Final = "sc://"
_CONNECT_ONLY: Final = ("SPARK_REMOTE", "--conf spark.remote")
_CONF_NAME: Final = re.compile(r"spark\.[A-Za-z0-9_.-]+")

# Half of what a small batch costs: the default forks three programs for each file of the checkpoint. It does
# not notice a second query on the same checkpoint; `pyspark_weir.running` locks it for that.
CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
CHECKPOINT_FILES_LOCAL: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

_EVERYWHERE: Final = {
    # IDs are times in UTC; days of an archive are days in UTC.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Without it Spark does not show sources its filters.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Batches whose offsets are kept; Spark's 100 are a megabyte each with thousands of streams.
    "spark.sql.streaming.minBatchesToRetain": "20",
    # Spark asks a source that has nothing a hundred times a second.
    "spark.sql.streaming.pollingDelay": "100ms",
    "spark.sql.streaming.stopTimeout": "30s",
    # How long Spark and its Python wait for each other's first byte. With Spark's 15 s a query fails on a
    # machine that is busy with other things. A streaming source's process has 10 s to start, which Spark 4.3
    # has no setting for: a supervisor starts a job again that failed so.
    "spark.python.authenticate.socketTimeout": "180s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOGGING: Final = Path(__file__).with_name("log4j2.properties").absolute().as_uri()
_LOCAL_ONLY: Final = {
    CHECKPOINT_FILES: CHECKPOINT_FILES_LOCAL,
    # Only this machine reaches it, and it works where the machine's own name does not resolve.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    # One thread that collects beats several that share two cores with the work. Spark's own warnings, of
    # which a batch has some, hide the lines of a job.
    "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -Dlog4j2.configurationFile={_LOGGING}",
}


@dataclass(frozen=True)
class SessionOptions:
    """What a session may be given. `master` None: the default, or under spark-submit what that was given.
    `conf` wins over every default. Raises OptionError for a name that is none of Spark's.
    """

    app: str = "weir"
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.conf:
            if _CONF_NAME.fullmatch(name) is None:
                raise OptionError(
                    f"--conf {name}: Spark's settings are named spark.…, as in spark.driver.memory"
                )


def settings(options: SessionOptions, *, submitted: bool = False) -> dict[str, str]:
    """All settings of a session. `submitted`: spark-submit started this program, and chose where it runs."""
    master = options.master or options.conf.get("spark.master") or (None if submitted else MASTER_DEFAULT)
    found = dict(_EVERYWHERE)
    if master is not None:
        found["spark.master"] = master
        cores = _local_cores(master)
        if cores is not None:
            found |= _LOCAL_ONLY
            # Shuffling into more parts than can be worked on costs a tenth of a second for each.
            found["spark.sql.shuffle.partitions"] = str(max(2, cores))
    return found | {"spark.app.name": options.app} | dict(options.conf) | _chosen_master(options)


def prepare(environment: MutableMapping[str, str], conf: Mapping[str, str]) -> None:
    """See to it that worker processes are this Python, and find the pipeline where this process found it.

    They inherit neither sys.path nor a virtual environment, and take the first `python3` on PATH.
    """
    if "spark.driver.bindAddress" in conf:
        # Else Spark warns of a name that resolves to loopback, which is what is wanted.
        environment.setdefault("SPARK_LOCAL_IP", conf["spark.driver.bindAddress"])
    chosen = conf.get("spark.pyspark.python") or environment.get("PYSPARK_PYTHON") or sys.executable
    environment["PYSPARK_PYTHON"] = chosen
    environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    # What is installed is found anyway; its folder before the standard library would hide that one's.
    known = {*paths, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    homes = dict.fromkeys(str(Path(file).resolve().parents[1]) for file in (__file__, weir.__file__))
    missing = [home for home in homes if home not in known]
    if missing:
        environment["PYTHONPATH"] = os.pathsep.join([*missing, *paths])


def open_session(options: SessionOptions = SessionOptions()) -> SparkSession:
    """A session, or the one there is already. Raises PipelineError where no Java is new enough, OptionError
    where Spark Connect is asked for.
    """
    _refuse_connect(options, os.environ)
    # Set by spark-submit, which has a Java that runs.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        java.find().enter(os.environ)
    chosen = settings(options, submitted=submitted)
    prepare(os.environ, chosen)
    builder = SparkSession.builder
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def slots(spark: SparkSession) -> int:
    """How many tasks the session's executors run at once: those that have registered by now."""
    return int(spark.sparkContext.defaultParallelism)


def with_slots(spark: SparkSession, source: Mapping[str, str]) -> dict[str, str]:
    """Options of the data source, which ask for as many tasks as the session runs at once unless they say."""
    given = any(name.lower() == "minpartitions" for name in source)
    return dict(source) if given else {**source, "minPartitions": str(slots(spark))}


def _refuse_connect(options: SessionOptions, environment: Mapping[str, str]) -> None:
    """A job reads Spark's checkpoint and settings in the driver, which is elsewhere with Spark Connect."""
    asked = {"--master": options.master, "SPARK_REMOTE": environment.get("SPARK_REMOTE")}
    asked |= {f"--conf {name}": options.conf.get(name) for name in ("spark.remote", "spark.master")}
    for name, value in asked.items():
        if value is not None and (value.startswith(_CONNECT) or name in _CONNECT_ONLY):
            raise OptionError(
                f"{name} asks for Spark Connect ({value}), and jobs run where the driver is: "
                "give --master the cluster's own address, or submit the job there"
            )


def _chosen_master(options: SessionOptions) -> dict[str, str]:
    return {} if options.master is None else {"spark.master": options.master}


def _local_cores(master: str) -> int | None:
    """How many cores a master on this machine has; None for a cluster."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return None
    if found[1] == "*":
        return os.cpu_count() or 1
    return int(found[1] or 1)
