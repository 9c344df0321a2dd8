"""What one request, and what one caller may have of a gateway.

Knows: which limits there are, and that they are made from the settings.
Must never know: who enforces them, what is refused.
"""

from msgspec.structs import replace

from app.auth.rate_limiter import RateLimiter
from app.limits import CommandLimits, EntryLimits, ReadLimits
from app.live.budgets import Budgets
from app.live.fair_queue import REQUESTS_A_CYCLE_MAX, FairQueue
from app.live.shares import Shares
from app.live.turns import CallerTurns, CycleBudget
from app.settings import Settings
from engine import Clock


class Limits:
    """Those of one process."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.entries = EntryLimits.of(settings)
        # Of publications into one stream.
        self.publications = replace(self.entries, later=True)
        self.reads = ReadLimits.of(settings)
        self.commands = CommandLimits.of(settings)
        # None where no caller can have a limit.
        self.rates = RateLimiter.of(settings, clock.monotonic)
        # Memory of what waits to be sent, and of what is being read.
        self.budgets = Budgets(settings, clock.monotonic)
        # Long work of one caller takes turns.
        self.turns = CallerTurns()
        self.cycle = CycleBudget(clock.monotonic)
        # And so do the connections of callers that have many.
        self.requests = FairQueue(CycleBudget(clock.monotonic), REQUESTS_A_CYCLE_MAX)
        each_max = settings.each_max(settings.sockets_max)
        self.connections = Shares("too_many_sockets", "per_principal_max", each_max)
