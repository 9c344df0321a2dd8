"""The commands: Redis's by their names (`types`), and Weir's own.

`execution` knows all of them, and runs them.
"""
