"""What an engine says of its log.

Knows: the policies of syncs, sizes and states. Must never know: how a log is written or rewritten.
"""

from typing import Literal, NamedTuple

Fsync = Literal["always", "everysec", "no"]


class LogFigures(NamedTuple):
    """A log's state: its length and that of its base, unsynced bytes, waiting answers, the failure or
    None, and what does its syncs. `stored_bytes` are of cold entries in files of runs, beside the log;
    `stored_damaged` of these runs cannot be read. `stored_reads_in_turns` is how often a turn had all others
    wait for the disk, since the start. `storing_failure` is why storing has failed the last time.
    """

    bytes: int
    base_bytes: int
    unsynced_bytes: int
    answers_waiting: int
    failure: str | None
    syncs: Literal["kernel", "thread"]
    stored_bytes: int = 0
    stored_damaged: int = 0
    stored_reads_in_turns: int = 0
    storing_failure: str | None = None


class Rewritten(NamedTuple):
    """What a rewrite did, and how long it took."""

    bytes_before: int
    bytes_after: int
    duration_ms: int


class Rewrites(NamedTuple):
    """Whether a rewrite of the log is under way, what the last one did, and why it failed if it did."""

    running: bool = False
    last: Rewritten | None = None
    failure: str | None = None
