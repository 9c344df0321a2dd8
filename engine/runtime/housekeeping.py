"""The periodic work of an engine: retention, timeouts, old keys, freeing memory, rewriting, compressing;
and what is due at a time of its own: streams that expire, deferred entries that come back.

Knows: when each is due, that it takes turns with others, and that the wall clock may be set.
Must never know: what any of it means.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from engine.clock import Clock
from engine.commands.weir_commands import EnforceRetention, Maintain
from engine.keyspace import Keyspace
from engine.lifetimes import Lifetimes
from engine.protocol import Events
from engine.runtime.packing import Packer
from engine.runtime.resident import resident_bytes
from engine.runtime.rewriting import Rewriter
from engine.runtime.storing import Storer
from engine.runtime.waits import Waits

_INTERVAL_S: Final = 1.0


class Housekeeping:
    """The housekeeping of one engine, on its event loop."""

    def __init__(
        self,
        keyspace: Keyspace,
        waits: Waits,
        rewriter: Rewriter,
        packer: Packer,
        storer: Storer,
        events: Events,
    ) -> None:
        self._keyspace = keyspace
        self._waits = waits
        self._rewriter = rewriter
        self._packer = packer
        self._storer = storer
        self._events = events
        keyspace.readers = self._readers
        self._since_ms = 0
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, now_ms: int) -> None:
        """Begin; `now_ms` is when the engine was started."""
        self._since_ms = now_ms
        self._look()

    def cancel(self) -> None:
        """Stop."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        delay_s = _INTERVAL_S
        self._keyspace.memory.observe(resident_bytes())
        try:
            if (self._keyspace.maintained or self._keyspace.answers) and self._maintain():
                # A bounded turn each, with others' turns between.
                delay_s = 0.0
            elif self._keyspace.free_some():
                delay_s = 0.0
        finally:
            if not self._is_over:
                self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)
        self._rewriter.begin_if_due()
        self._packer.begin_packing()
        self._storer.begin_if_due()

    def _maintain(self) -> bool:
        """Do what is due, on a full disk what makes room there. Returns whether there is more."""
        reply = self._waits.run_unasked(Maintain(waiting=self._readers, since_ms=self._since_ms))
        return (self._waits.run_unasked(EnforceRetention()) if reply is None else reply) is True

    def _readers(self, stream: str) -> Collection[tuple[str, str]]:
        """Which (group, consumer) wait for entries of the stream, or for room for them."""
        return {*self._waits.readers(stream), *self._events.active_readers(stream)}


# The wall clock may jump, so it is read this often; and a log that has refused is tried again.
LOOK_S_MAX: Final = 1.0


class DueTimer:
    """Calls `run` when the time of a stream has come.

    While that returns True, there are more: it is called again, with others' turns between. None means that
    the log refused.
    """

    def __init__(self, times: Lifetimes, clock: Clock, run: Callable[[], bool | None]) -> None:
        self._times = times
        self._clock = clock
        self._run = run
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin. What was due before is due at once."""
        self._times.on_earlier = self._set
        self._set()

    def cancel(self) -> None:
        """Stop."""
        self._times.on_earlier = None
        if self._handle is not None:
            self._handle.cancel()

    def _set(self) -> None:
        next_ms = self._times.next_ms
        if next_ms is not None:
            self._call_in(min(LOOK_S_MAX, max(0, next_ms - self._clock.wall_ms()) / 1000))

    def _call_in(self, delay_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._pass)

    def _pass(self) -> None:
        self._handle = None
        if self._times.is_due(self._clock.wall_ms()) and self._run() is None:
            self._call_in(LOOK_S_MAX)
        else:
            self._set()
