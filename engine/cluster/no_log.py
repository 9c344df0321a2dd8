"""What an engine over a server says of a log and a disk: it has none here.

Knows: what `EngineProtocol` asks of them. Must never know: servers, commands.
"""

from collections.abc import Callable
from typing import Final

from engine.cluster.refusals import not_supported
from engine.histogram import Histogram
from engine.log_figures import Fsync, Rewritten


class NoRewriter:
    """The rewrite of a log that the backend does not have here."""

    def __init__(self) -> None:
        self.last: Rewritten | None = None
        self.failure: str | None = None
        self.running = False
        self.on_failed: Callable[[str, float], None] | None = None

    def begin(self) -> bool:
        """Refused: the log is the server's. Raises EngineError."""
        raise not_supported("rewriting the log", "the log is the server's")


class NoLog:
    """The part of `EngineProtocol` that is about them."""

    def __init__(self) -> None:
        self.fsync: Fsync = "no"
        self.rewriting: Final = NoRewriter()
        self.sync_seconds: Final = Histogram((1.0,))

    def log_figures(self) -> None:
        """See `EngineProtocol`: the log is the server's."""

    def when_log_fails(self, callback: Callable[[str], None]) -> None:
        """See `EngineProtocol`: the log is the server's."""

    def when_full(self, callback: Callable[[str | None], None]) -> None:
        """See `EngineProtocol`: the disk is the server's."""

    def when_slow(self, callback: Callable[[float | None], None]) -> None:
        """See `EngineProtocol`: the disk is the server's."""

    def when_damaged(self, callback: Callable[[str], None]) -> None:
        """See `EngineProtocol`: the disk is the server's."""

    def when_storing_fails(self, callback: Callable[[str], None]) -> None:
        """See `EngineProtocol`: nothing is stored here."""

    def when_faulty(self, callback: Callable[[BaseException], None]) -> None:
        """See `EngineProtocol`: no turn runs here."""
