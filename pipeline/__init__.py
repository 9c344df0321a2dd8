"""The data pipeline on Spark: a data source and sink named `weir`, and jobs on top.

Knows: the gateway's public HTTP API.
Must never know: `engine`, `app` and `cli`; it is a client like any other.
"""
