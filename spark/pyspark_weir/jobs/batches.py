"""What jobs have in common: the wrapper of the function of each batch, and the write to a gateway.

Knows: when Spark's checkpoint must be on disk, how Spark looks at what a Python function raised.
Must never know: what is done with a batch.

A write that failed inside `foreachBatch` was seen to take the query's thread with it: the text of such an
error is the whole trace of Java, an expression that is searched for in it overflowed the thread's stack, and
the query neither ended nor said why. So what leaves here is one line.
"""

from collections.abc import Callable, Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from pyspark_weir import checkpoint
from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.errors import PipelineError
from pyspark_weir.gateway import GatewayAccess
from pyspark_weir.raw_options import options_of
from pyspark_weir.running import query_error
from pyspark_weir.table.log import storage_failures

EachBatch = Callable[[DataFrame, int], None]


def report_failures(each: EachBatch, place: StateFolder) -> EachBatch:
    """The same for `foreachBatch` of the query whose checkpoint lies at `place`. It begins when the disk
    holds which range the batch has; a failure in it becomes one line, as the pipeline's own error.
    """

    def run(batch: DataFrame, number: int) -> None:
        try:
            with storage_failures():
                checkpoint.secure_plan(place, number)
                each(batch, number)
        except PipelineError as error:
            # Alone, without the trace of what it came from.
            raise error from None
        except Exception as error:  # noqa: BLE001 - any failure is reported
            raise query_error(f"{type(error).__name__}: {error}") from None

    return run


def write(frame: DataFrame, target: GatewayAccess, options: Mapping[str, object]) -> None:
    """Write a frame to a gateway. Raises PipelineError, with the sink's own code where it failed."""
    given = {
        **connection(target),
        **{name: _text(value) for name, value in options.items() if value is not None},
    }
    try:
        frame.write.format("weir").mode("append").options(**given).save()
    except PySparkException as error:
        raise query_error(str(error)) from None


def connection(access: GatewayAccess) -> dict[str, str]:
    """The data source's options that say where a gateway is."""
    return {"gateway.urls": f"{access.name}={access.url}", **options_of(access)}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
