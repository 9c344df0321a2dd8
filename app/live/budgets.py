"""Budgets: the bytes that wait to be sent, and those that are being received, of all connections together.

Knows: two pools, who holds how much of them, which holders are too slow to stay.
Must never know: what is sent or received, HTTP, Redis's protocol.

    reserve the bound ─► run the command ─► keep what its reply takes ─► write ─► release when it was taken
          │ no room
          └► refused with `overloaded`: nothing was run

What one connection may always have (`FREE_BYTES`) is not counted, so acks, publishes, probes and refusals
never ask. A reservation is all or nothing and never waited for, so that no holder waits for another.

An asyncio transport has no limit of its own: what a client does not take stays in the process. A limit for
each connection bounds nothing, because there may be any number of connections.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from app import logs
from app.live.stalls import taken_bytes
from app.settings import Settings
from engine import EngineError

# What each connection has without asking: some hundred acks, or the usual page of small entries.
FREE_BYTES: Final = 64 << 10
# A pool's part of the memory limit, and the least that it has: four of the largest answers by default.
_PART: Final = 8
_BYTES_MIN: Final = 32 << 20
# The part of a pool that one caller may have, so that three others have room.
_CALLER_PART: Final = 4
# From this part on, holders that take less than `FREE_BYTES` in this time are closed.
_CROWDED_PART: Final = 0.75
_SLOW_S: Final = 5.0
# How often holders are looked at while a pool is crowded.
_LOOK_S: Final = 1.0
# How often what was taken meanwhile is looked at before a reservation is refused: there may be thousands.
_SHRINK_S: Final = 0.01
# What a reply usually takes at most: held for one that another process makes, while there is room.
_USUAL_BYTES: Final = 128 << 10
# Parsing a body takes its text, the values, and the entries that are made of them.
BODY_COPIES: Final = 3


class Holder:
    """Where reserved bytes are: at a peer that takes (or sends) them, or does not."""

    def waiting(self) -> int:
        """The bytes that still wait for the peer."""
        raise NotImplementedError

    def moved(self) -> int:
        """A number that grows while the peer takes or sends."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection at once."""
        raise NotImplementedError


class Reader(Holder):
    """A peer that takes an answer from this transport, in which not all of it needs to be: of what is written
    in slices all is in memory until the last one.
    """

    __slots__ = ("_transport", "sliced_bytes")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self.sliced_bytes = 0

    def waiting(self) -> int:
        return self.sliced_bytes + self._transport.get_write_buffer_size()

    def moved(self) -> int:
        return taken_bytes(self._transport)

    def close(self) -> None:
        self._transport.abort()


class Sender(Holder):
    """A peer that sends a body, of which this many bytes have arrived: all of it is held until it is read."""

    def __init__(self, transport: asyncio.WriteTransport | None) -> None:
        self._transport = transport
        self.received_bytes = 0

    def waiting(self) -> int:
        return sys.maxsize

    def moved(self) -> int:
        return self.received_bytes

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class PoolFigures(msgspec.Struct, frozen=True):
    """A pool at one moment: bytes held, its limit, and what was refused and closed since the start."""

    held_bytes: int
    bytes_max: int
    refused: int
    closed: int

    def plus(self, other: "PoolFigures") -> "PoolFigures":
        """Both together."""
        return PoolFigures(
            self.held_bytes + other.held_bytes,
            self.bytes_max + other.bytes_max,
            self.refused + other.refused,
            self.closed + other.closed,
        )

    @property
    def counts(self) -> "PoolFigures":
        """What stays of them once their process has ended."""
        return PoolFigures(0, 0, self.refused, self.closed)


class Reservation:
    """Bytes of a pool that one connection holds. `release` it; may be called again."""

    __slots__ = ("_caller", "_holder", "_is_waiting", "_pool", "is_unasked", "moved_bytes", "since_s", "size")

    def __init__(self, pool: "Pool", caller: str, size: int, holder: Holder | None) -> None:
        self._pool = pool
        self._caller = caller
        self._holder = holder
        # Whether it is the peer's turn: until then it is not slow.
        self._is_waiting = False
        # Whether some of it was written without a reservation.
        self.is_unasked = False
        self.size = size
        self.since_s = 0.0
        self.moved_bytes = 0

    def grow(self, size: int) -> None:
        """Hold at least this many bytes. Raises EngineError `overloaded`, and stays as it was."""
        self._is_waiting = False
        if size > self.size:
            self._pool.add(self._caller, size - self.size, self.size)
            self.size = size

    def shrink(self, size: int) -> None:
        """Hold no more than this, which is made and not written yet."""
        self._shrink(size if size > FREE_BYTES else 0)

    def extend(self, size: int) -> None:
        """Hold at least this many bytes, which are there already, also beyond the limit."""
        if size > max(self.size, FREE_BYTES):
            self.is_unasked = True
            self._pool.note(self._caller, size - self.size)
            self.size = size
            self._pool.relieve()

    def keep(self, size: int) -> None:
        """Hold this many bytes, which are written."""
        size = size if size > FREE_BYTES else 0
        begins = not (self._is_waiting and self.size)
        self.extend(size)
        self._shrink(size)
        self._is_waiting = True
        # Where more follows what the peer has not taken, its time goes on.
        if begins and size:
            self.since_s = self._pool.now_s()
            self.moved_bytes = 0 if self._holder is None else self._holder.moved()
        self._pool.relieve()

    def keep_waiting(self) -> None:
        """Hold as much, while it is the peer's turn."""
        if not self._is_waiting:
            self.keep(self.size)

    def end_waiting(self) -> None:
        """Hold as much, while it is not the peer's turn."""
        self._is_waiting = False

    def received(self, size: int) -> None:
        """Note how much of a body has arrived."""
        if isinstance(self._holder, Sender):
            self._holder.received_bytes = size

    def note_sliced(self, size: int) -> None:
        """Note that this much is being written in slices, or, with 0, that the last one is written."""
        if isinstance(self._holder, Reader):
            self._holder.sliced_bytes = size

    def release(self) -> None:
        """Hold nothing."""
        self._shrink(0)
        self._pool.drop(self)

    def _shrink(self, size: int) -> None:
        if size < self.size:
            self._pool.subtract(self._caller, self.size - size)
            self.size = size

    def shrink_to_waiting(self) -> None:
        """Hold what the peer has not taken yet."""
        if self._is_waiting and self._holder is not None:
            self._shrink(self._holder.waiting())

    def slowness(self, now_s: float) -> float | None:
        """The bytes a second that the peer has moved since it was looked at, if that is too slow."""
        if not self._is_waiting or self._holder is None or now_s - self.since_s < _SLOW_S:
            return None
        moved, took_s = self._holder.moved(), now_s - self.since_s
        rate = (moved - self.moved_bytes) / took_s
        self.moved_bytes, self.since_s = moved, now_s
        return rate if rate * _SLOW_S < FREE_BYTES else None

    def close(self) -> None:
        """Close its connection."""
        logs.get().info(
            "a connection was closed: it moves nothing, and others need its memory",
            pool=self._pool.setting,
            bytes=self.size,
            caller=self._caller,
        )
        self.release()
        if self._holder is not None:
            self._holder.close()


class Pool:
    """What all connections of this process hold of one kind. `setting` names its limit."""

    def __init__(self, setting: str, bytes_max: int, monotonic: Callable[[], float]) -> None:
        self.setting: Final = setting
        self.bytes_max = bytes_max
        self.held_bytes = 0
        # The most that was held: the allocator keeps what was freed.
        self.peak_bytes = 0
        self.refused = 0
        self.closed = 0
        self.now_s = monotonic
        self._shrunk_s = 0.0
        self._by_caller: dict[str, int] = {}
        # A dict keeps the order.
        self._all: dict[Reservation, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def caller_bytes_max(self) -> int:
        """What one caller may hold in several reservations; a single one may be larger."""
        return self.bytes_max // _CALLER_PART

    def piece_bytes(self, most: int) -> int:
        """The size of a piece of what is sent piece by piece without a reservation."""
        return min(most, FREE_BYTES) if self._is_crowded else most

    @property
    def figures(self) -> PoolFigures:
        """As it is now."""
        self._shrink()
        return PoolFigures(self.held_bytes, self.bytes_max, self.refused, self.closed)

    def reserve(self, caller: str, size: int, holder: Holder | None = None) -> Reservation:
        """Hold this many bytes for the caller. Raises EngineError `overloaded`."""
        self.add(caller, size, 0)
        return self._made(caller, size, holder)

    def has_room(self, size: int) -> bool:
        """Whether this fits, for any caller."""
        held = self.held_bytes
        return size <= self.bytes_max if not held else held + size <= self.bytes_max // _CALLER_PART

    def room(self, caller: str, own: int) -> int:
        """How many bytes a reservation of this caller may have that has `own` already."""
        self._shrink()
        held = self._by_caller.get(caller, 0)
        room = self.bytes_max - self.held_bytes
        # With any settings, as below.
        return own + max(0, room if held == own else min(room, self.caller_bytes_max - held))

    def hold(self, caller: str, size: int, holder: Holder | None = None) -> Reservation:
        """Count bytes that are written already."""
        made = self._made(caller, 0, holder)
        made.keep(size)
        return made

    def _made(self, caller: str, size: int, holder: Holder | None) -> Reservation:
        made = Reservation(self, caller, size, holder)
        self._all[made] = None
        return made

    def add(self, caller: str, size: int, own: int) -> None:
        """Count bytes of a caller; `own` are those of the same reservation. Raises `overloaded`."""
        if not self._has_room(caller, size, own) and not (
            self._shrink() and self._has_room(caller, size, own)
        ):
            self.refused += 1
            raise self._overloaded(caller, size)
        self.note(caller, size)

    def note(self, caller: str, size: int) -> None:
        """Count bytes that already exist."""
        self.held_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        self._by_caller[caller] = self._by_caller.get(caller, 0) + size
        if self._timer is None and self._is_crowded:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self.look)

    def relieve(self) -> None:
        """Close the holders that have most of what was not reserved, until all fits again."""
        while self.held_bytes > self.bytes_max:
            self._shrink()
            unasked = [
                reservation for reservation in self._all if reservation.is_unasked and reservation.size
            ]
            if not unasked or self.held_bytes <= self.bytes_max:
                break
            self.closed += 1
            max(unasked, key=lambda reservation: reservation.size).close()

    def subtract(self, caller: str, size: int) -> None:
        """Count bytes no longer."""
        self.held_bytes -= size
        self._by_caller[caller] -= size
        if not self._by_caller[caller]:
            del self._by_caller[caller]

    def drop(self, reservation: Reservation) -> None:
        """Forget a reservation that holds nothing."""
        self._all.pop(reservation, None)

    def _has_room(self, caller: str, size: int, own: int) -> bool:
        held = self._by_caller.get(caller, 0)
        # With any settings, a caller who has nothing else may have its answer.
        is_within = held == own or held + size <= self.caller_bytes_max
        return is_within and self.held_bytes + size <= self.bytes_max

    def _shrink(self) -> bool:
        """Look at what was taken meanwhile. Returns whether it was time to look."""
        now_s = self.now_s()
        if now_s - self._shrunk_s < _SHRINK_S:
            return False
        self._shrunk_s = now_s
        for reservation in self._all:
            reservation.shrink_to_waiting()
        return True

    def _overloaded(self, caller: str, size: int) -> EngineError:
        whose, held = "this caller holds", self._by_caller.get(caller, 0)
        if self.held_bytes + size > self.bytes_max:
            whose, held = "all callers hold", self.held_bytes
        detail = (
            f"not run: {size} bytes are needed, and {whose} {held} already ({self.setting}): take the "
            "answers that are on their way, ask for less at once, or try again in a moment"
        )
        return EngineError("overloaded", f"OVERLOADED {detail}", detail, limit=self.setting)

    @property
    def _is_crowded(self) -> bool:
        return self.held_bytes > _CROWDED_PART * self.bytes_max

    def look(self) -> None:
        """Close the slowest holders until the pool is crowded no more."""
        self._timer = None
        self._shrink()
        now_s = self.now_s()
        rated = [
            (rate, reservation)
            for reservation in self._all
            if (rate := reservation.slowness(now_s)) is not None
        ]
        for _, reservation in sorted(rated, key=lambda pair: pair[0]):
            if not self._is_crowded:
                break
            self.closed += 1
            reservation.close()
        if self._is_crowded:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self.look)


class Budgets:
    """Both pools of this process. Where there are fronts, each process has its part."""

    def __init__(self, settings: Settings, monotonic: Callable[[], float]) -> None:
        self._settings = settings
        self.output = Pool("buffer_bytes_max", 0, monotonic)
        self.bodies = Pool("buffer_bytes_max", 0, monotonic)
        self._is_engine_here = settings.is_embedded and not settings.fronts
        self.size(None)

    def before_run(self, bound: int) -> int:
        """How much to hold while a command runs that answers at most `bound` bytes.

        Many replies that another process makes are waited for in the same moment. While there is room, each
        holds what a usual reply takes, and what it got when that is there.
        """
        is_ample = self.output.held_bytes + bound <= self.output.bytes_max // 2
        return min(bound, _USUAL_BYTES) if is_ample and not self._is_engine_here else bound

    def size(self, memory_bytes_max: int | None) -> None:
        """Set both limits, by this limit of memory where the settings leave them open."""
        kept = self._settings
        processes = kept.fronts + 1 if kept.fronts else 1
        part = max(_BYTES_MIN, (memory_bytes_max or 0) // _PART // processes)
        # A limit below one whole answer, or one whole body, would refuse it for ever.
        most = kept.buffer_bytes_max // processes or part
        self.output.bytes_max = max(kept.answer_bytes_max, most)
        self.bodies.bytes_max = max(BODY_COPIES * kept.body_bytes_max, most)

    def resident_bytes(self) -> int:
        """What the pools have had of the process's memory."""
        return self.output.peak_bytes + self.bodies.peak_bytes

    @property
    def figures(self) -> dict[str, PoolFigures]:
        """Both, by what the metrics call them."""
        return {"output": self.output.figures, "bodies": self.bodies.figures}
