"""What jobs that write to a gateway have in common.

Knows: the sink's options, Spark's errors. Must never know: which job writes what.
"""

from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from pyspark_weir.gateway import Access
from pyspark_weir.running import query_error


def written(frame: DataFrame, target: Access, options: Mapping[str, object]) -> None:
    """Write a frame to a gateway. Raises PipelineError, with the sink's own code where it failed."""
    given = {
        **connection(target),
        **{name: _text(value) for name, value in options.items() if value is not None},
    }
    try:
        frame.write.format("weir").mode("append").options(**given).save()
    except PySparkException as error:
        raise query_error(str(error)) from None


def connection(access: Access) -> dict[str, str]:
    """The data source's options that say where a gateway is."""
    given = {
        "gateway.urls": f"{access.name}={access.url}",
        "tokenFile": access.token_file,
        "tokenEnv": access.token_env,
        "requestTimeoutMs": str(access.request_timeout_ms),
        "retryTimeoutMs": str(access.retry_timeout_ms),
    }
    return {name: value for name, value in given.items() if value is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
