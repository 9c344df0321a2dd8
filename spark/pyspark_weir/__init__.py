"""The data pipeline on Spark: a data source and sink named `weir`, and jobs on top.

Knows: the gateway's public HTTP API.
Must never know: `engine`, `app` and `cli`; it is a client like any other.

Spark finds the data source by itself: it looks for a `DefaultSource` in packages named `pyspark_…`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_weir.datasource import WeirDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as every attribute
    """Import the data source at its first use, so that the command line starts without Spark."""
    if name != "DefaultSource":
        raise AttributeError(name)
    from pyspark_weir.datasource import WeirDataSource  # noqa: PLC0415

    return WeirDataSource
