"""What jobs that write to a gateway have in common.

Knows: the sink's options, Spark's errors. Must never know: which job writes what.
"""

import json
from collections.abc import Iterable, Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from pyspark_weir.gateway import Access
from pyspark_weir.running import told_by_spark


def written(frame: DataFrame, target: Access, options: Mapping[str, object]) -> None:
    """Write a frame to a gateway. Raises PipelineError, with the sink's own code where it failed."""
    given = {
        **connection(target),
        **{name: _text(value) for name, value in options.items() if value is not None},
    }
    try:
        frame.write.format("weir").mode("append").options(**given).save()
    except PySparkException as error:
        raise told_by_spark(str(error)) from None


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


def assigned(access: Access, streams: Iterable[str]) -> str:
    """Streams of a gateway, as the option `assign`; a name may hold a comma."""
    return json.dumps({access.name: sorted(streams)}, ensure_ascii=False)


def told(offsets: Mapping[str, str]) -> str:
    """IDs by stream, as an option."""
    return json.dumps(dict(offsets), ensure_ascii=False)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
