"""What each job does: functions that take dataclasses and return them.

Knows: Spark, the data source, the sink. Must never know: a terminal, options of a command line.
"""
