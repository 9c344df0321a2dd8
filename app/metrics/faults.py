"""Errors of the gateway that are met where bytes are read, below all operations: each is counted, and one of
a kind is logged in a minute, since anybody who can connect may repeat it.

Knows: what makes two of them one kind. Must never know: who was connected, how the client is answered.
"""

from collections.abc import Callable
from math import inf
from typing import Final, Literal, get_args

from app import logs

# What is spoken at a connection.
Spoken = Literal["http", "websocket", "resp"]
_QUIET_S: Final = 60.0


class Faults:
    """Those of one process."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.counts: Final[dict[Spoken, int]] = dict.fromkeys(get_args(Spoken), 0)
        self._monotonic = monotonic
        # By where each kind was raised, which is somewhere in the code: there are not many.
        self._quiet_until_s: dict[tuple[Spoken, type[BaseException], str], float] = {}

    def note(self, spoken: Spoken, error: BaseException) -> None:
        """Count an error, and log it unless one of its kind was just logged."""
        self.counts[spoken] += 1
        places, now_s = logs.trace(error), self._monotonic()
        kind = spoken, type(error), places[-1] if places else ""
        if now_s < self._quiet_until_s.get(kind, -inf):
            return
        self._quiet_until_s[kind] = now_s + _QUIET_S
        logs.get().error(
            "a connection has met an error of the gateway",
            door=spoken,
            error=repr(error),
            trace=places,
            count=self.counts[spoken],
            remedy="report this line, which comes once a minute: weir_faults_total counts each of them",
        )
