"""The command line of the jobs: options in, lines out.

Knows: names, help texts, how results look. Must never know: how a job does its work.

Nothing here imports Spark before a job runs, so that help and completion wait for nothing.
"""
