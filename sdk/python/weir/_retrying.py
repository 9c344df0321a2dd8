"""Whether and when a call is sent again, and what is logged of a gateway that is away.

Knows: errors, pauses between attempts. Must never know: how a call is sent, how to sleep.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Final

from weir.errors import ApiError, NoAnswerError, WeirError

log: Final = logging.getLogger("weir")

PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 5.0
_TOO_MANY: Final = 429
# Too many requests at the moment; starting, draining or restarting.
_BUSY: Final = frozenset((_TOO_MANY, 503))
# What a proxy says when the gateway behind it does not answer: the outcome is unknown.
BROKEN: Final = frozenset((502, 504))


class Outage:
    """Says once that a gateway cannot be used, with its URL and the reason, and once that it can be again.

    Threads may share it. Both lines are warnings: a program that logs the first has use for the second.
    """

    def __init__(self, url: str, say: Callable[[str], None] = log.warning) -> None:
        self._url = url
        self._say = say
        self._is_on = False
        # How many have ended. A request that was sent before the end of one says nothing of the time after.
        self.ended = 0
        self._lock = threading.Lock()

    def begin(self, reason: str, ended: int) -> None:
        """The gateway could not be used by a request that was sent when `ended` outages had ended."""
        with self._lock:
            is_new = not self._is_on and ended == self.ended
            self._is_on |= is_new
        if is_new:
            where = "" if self._url in reason else f"the gateway at {self._url} is away: "
            self._say(f"{where}{reason}; trying again")

    def end(self) -> None:
        """It was used just now."""
        if self._is_on:
            with self._lock:
                is_over, self._is_on = self._is_on, False
                self.ended += is_over
            if is_over:
                self._say(f"the gateway at {self._url} is back")


class Retries:
    """The attempts of one call, for `retry_s` seconds: 0 makes one attempt, None goes on for ever.

    `repeatable` where doing it twice is the same as doing it once; with `repeat_faults` after a fault inside
    the gateway (500) as well.
    """

    def __init__(
        self, retry_s: float | None, outage: Outage, *, repeatable: bool, repeat_faults: bool = False
    ) -> None:
        self._outage = outage
        self._outages_ended = outage.ended
        passing = _BUSY | BROKEN if repeatable else _BUSY
        self._passing = passing | {500} if repeatable and repeat_faults else passing
        self._repeatable = repeatable
        self._deadline_s = None if retry_s is None else time.monotonic() + retry_s
        self._next_s = PAUSE_S_MIN

    def pause_s(self, error: WeirError) -> float:
        """How long to wait after an attempt that failed. Raises `error` if it was the last."""
        if isinstance(error, ApiError):
            may_pass, asked_s = self._may_pass(error), error.retry_after_s or 0.0
        else:
            may_pass, asked_s = isinstance(error, NoAnswerError) and not error.outcome_unknown, 0.0
        left_s = None if self._deadline_s is None else self._deadline_s - time.monotonic()
        if not may_pass or (left_s is not None and left_s <= asked_s):
            raise error
        if not isinstance(error, ApiError) or error.status != _TOO_MANY:
            self._outage.begin(str(error), self._outages_ended)
        self._outages_ended = self._outage.ended
        pause_s = asked_s or self._next_s * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
        self._next_s = min(self._next_s * 2, PAUSE_S_MAX)
        return pause_s if left_s is None else min(pause_s, left_s)

    def _may_pass(self, error: ApiError) -> bool:
        # What a gateway says of its backend: it would say the same again, or the change was made, maybe.
        if error.code == "backend_error" or (error.outcome_unknown and not self._repeatable):
            return False
        return error.status in self._passing
