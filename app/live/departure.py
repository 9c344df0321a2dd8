"""The end of a client's connection, passed on to the work that is under way for it.

Knows: who wants to know of it. Must never know: sockets, what is done about it.
"""

from collections.abc import Callable


class Departure:
    """Whether a client has left. Who follows is called in the same step of the loop in which that is seen, so
    that what another client publishes next is not taken for one that has gone.
    """

    __slots__ = ("_callbacks", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self._callbacks: dict[object, Callable[[], None]] = {}

    def follow(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once when the client leaves, at once if it has. Returns what stops that."""
        if self.is_over:
            callback()
            return _nothing
        key = object()
        self._callbacks[key] = callback

        def stop() -> None:
            self._callbacks.pop(key, None)

        return stop

    def note(self) -> None:
        """The client has left."""
        self.is_over = True
        callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            callback()


def _nothing() -> None:
    """It was called already."""
