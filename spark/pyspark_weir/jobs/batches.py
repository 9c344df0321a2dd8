"""What wraps the function of each batch: its range is on disk before it runs, and its failure is reported.

Knows: when Spark's checkpoint must be on disk, how Spark looks at what a Python function raised.
Must never know: what is done with a batch.

A write that failed inside `foreachBatch` was seen to take the query's thread with it: the text of such an
error is the whole trace of Java, an expression that is searched for in it overflowed the thread's stack, and
the query neither ended nor said why. So what leaves here is one line.
"""

from collections.abc import Callable

from pyspark.sql import DataFrame

from pyspark_weir import checkpoint
from pyspark_weir.errors import PipelineError
from pyspark_weir.place import Place
from pyspark_weir.running import query_error

EachBatch = Callable[[DataFrame, int], None]


def reported(each: EachBatch, place: Place) -> EachBatch:
    """The same for `foreachBatch` of the query whose checkpoint lies at `place`. It begins when the disk
    holds which range the batch has; what fails in it is told in a line, as the pipeline's own error.
    """

    def run(batch: DataFrame, number: int) -> None:
        try:
            checkpoint.secure_plan(place, number)
            each(batch, number)
        except PipelineError as error:
            # Alone, without the trace of what it came from.
            raise error from None
        except Exception as error:  # noqa: BLE001 - any failure is reported
            raise query_error(f"{type(error).__name__}: {error}") from None

    return run
