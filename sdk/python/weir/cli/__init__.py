"""The command `weir`: what a client does, and commands that other packages add.

Knows: the API through `weir.Client`. Must never know: `app`, `engine`, Spark.

Nothing here imports HTTP before a command runs, so that help and shell completion are fast.
"""
