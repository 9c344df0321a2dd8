"""So many entries a second, and no more.

Knows: a rate and a clock. Must never know: what is sent, and how one waits.
"""

from collections.abc import Callable


class Pace:
    """A bucket that holds what one request takes and fills at `per_s` entries a second.

    `clock` gives seconds that never go back. What was not used is not saved up, so that a pause is followed
    by no burst.
    """

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock = clock
        self._free_at_s = clock()

    def pause_s(self, entries: int) -> float:
        """Seconds to wait before these entries may go; they count as gone then."""
        now_s = self._clock()
        start_s = max(now_s, self._free_at_s)
        self._free_at_s = start_s + entries / self._per_s
        return start_s - now_s
