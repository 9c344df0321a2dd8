"""Where Spark finds the data source by itself: it looks for a `DefaultSource` in packages named `pyspark_…`.

Knows: which class it is. Must never know: what it does.
"""

from pipeline.datasource import WeirDataSource as DefaultSource

__all__ = ["DefaultSource"]
