"""SCAN: pages through the stream names.

Knows: that a scan returns names in order, and that a number stands for a position in that order.
Must never know: streams, the caller.

**The cursor.** Redis's cursors are numbers, and clients make numbers of them, also in JavaScript. A name
doesn't fit in one, and a count of names would skip one whenever an earlier one is deleted. So a cursor is the
number of a bookmark, and a bookmark is the last name of the page before. A page is the names after it: a name
that stays is returned exactly once, even if others are created and deleted meanwhile. Bookmarks can be used
again, so a step can be repeated. The oldest are dropped beyond a limit, and all of them by a restart: a scan
that comes back with a dropped one begins again. It returns some names twice, as Redis may too, but none is
lost.
"""

import secrets
import threading
from collections import OrderedDict
from typing import Final

# 4 MiB of the longest names; each is one page of one scan under way.
_BOOKMARKS_MAX: Final = 8_192
# Half of the integers that JavaScript represents exactly; the other half is enough for counting.
_FIRST_MAX: Final = 1 << 52


class Bookmarks:
    """Numbers for names. Two gateways have two of these: a scan stays with one."""

    __slots__ = ("_last", "_lock", "_names")

    def __init__(self) -> None:
        # Not from 0: a cursor from before a restart must not match a new bookmark, which would skip names.
        self._last = secrets.randbelow(_FIRST_MAX)
        self._names: OrderedDict[int, str] = OrderedDict()
        # Threads write long replies, and each page needs a number of its own.
        self._lock = threading.Lock()

    def put(self, name: str) -> int:
        """The number, above 0, that stands for `name` from now on."""
        with self._lock:
            self._last += 1
            self._names[self._last] = name
            if len(self._names) > _BOOKMARKS_MAX:
                self._names.popitem(last=False)
            return self._last

    def find(self, number: int) -> str | None:
        """The name of that number; None for 0, where every scan begins, and for an unknown number."""
        return self._names.get(number)
