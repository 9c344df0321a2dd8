"""The wheels as `--py-files`: a cluster whose machines have Spark and Arrow, and nothing of Weir's.

Knows: `spark-submit`. Must never know: this repository's folders.
"""

import shutil
from pathlib import Path
from typing import Final

import pyspark
import pytest

from pyspark_weir import java
from tests.distributions.conftest import Environment, run
from tests.server import Server
from tests.spark.cluster import JVM

pytestmark = pytest.mark.spark

_PROGRAM: Final = """
import sys
from pyspark.sql import SparkSession
from pyspark_weir.datasource import WeirDataSource
from pyspark_weir.jobs.archived import entries
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable

url, root = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(WeirDataSource)
rows = spark.createDataFrame([("orders", "pear"), ("orders", "plum")], "stream string, item string")
rows.write.format("weir").mode("append").option("url", url).save()
read = spark.read.format("weir").options(url=url, subscribe="orders").load()
print("read", sorted(row.fields["item"] for row in read.collect()))
ArchiveTable.create(ArchiveRoot.of(root))
print("archived", entries(spark, root).count())
print("from", sys.modules["pyspark_weir"].__file__)
"""


def test_the_wheels_work_as_files_of_a_program(
    environment: Environment, wheels: dict[str, Path], tmp_path: Path
) -> None:
    """Reading, writing and archives: in the driver, in its planners and in workers."""
    python = environment() / "bin/python"
    (tmp_path / "program.py").write_text(_PROGRAM)
    # Spark's planners do not find a `.whl` on its list of files.
    files = [shutil.copy(wheels[name], tmp_path / f"{name}.zip") for name in ("pyspark_weir", "weir_client")]
    variables: dict[str, str] = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    java.find().enter(variables)
    variables["SPARK_HOME"] = home = str(Path(pyspark.__file__).parent)
    with Server(tmp_path / "data") as server:
        done = run(
            *(f"{home}/bin/spark-submit", "--master", "local[2]"),
            *("--driver-java-options", JVM),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1"),
            # As sessions of the pipeline have it.
            *("--conf", "spark.python.authenticate.socketTimeout=180s"),
            *("--py-files", ",".join(map(str, files))),
            *("program.py", server.url, str(tmp_path / "archive")),
            cwd=tmp_path,
            **variables,
        )
    assert done.returncode == 0, done.stdout
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert (said["read"], said["archived"]) == ("['pear', 'plum']", "0"), done.stderr
    assert ".zip/" in said["from"]
