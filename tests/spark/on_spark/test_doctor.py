"""doctor looks at Spark's side as well."""

from pyspark.sql import SparkSession

from pyspark_weir.gateway import Access
from pyspark_weir.jobs.doctor import Examination, examine
from tests.server import Server


def test_a_machine_that_is_ready_is_found_so(spark: SparkSession, shared_server: Server) -> None:
    """Session, workers and the data source, which nobody registered."""
    source = {"gateway.urls": shared_server.url, "subscribe": "nothing-yet"}
    access = Access("g0", shared_server.url)
    found = {one.what: one for one in examine(Examination((access,), ("nothing-yet",), source))}
    assert {name for name, one in found.items() if one.fine is False} == set()
    assert found["spark"].said == f"{spark.version} on {spark.sparkContext.master}"
    assert found["data source"].said == "columns stream, id, ms, seq, ts, fields"
