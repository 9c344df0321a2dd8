"""When an entry is due that was scheduled: once, at regular intervals, or by a cron expression.

Knows: rules and their texts. Must never know: streams, what time it is, what happens when a time has come.

    {"every_ms":60000}    {"cron":"30 2 * * *","tz":"Europe/Berlin"}    {"in_ms":5000}    nothing: a time

The text of a rule is its definition, and its pause: so a pause goes wherever its schedule goes.
"""

from functools import lru_cache
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from engine import errors
from engine.cron import check_zone, cron_after, no_expression

# How far ahead one may be: ten years. And the shortest time between two runs.
AHEAD_MS_MAX: Final = 10 * 366 * 24 * 3600 * 1000
EVERY_MS_MIN: Final = 1_000
# When a schedule is due whose pause has no end: behind every time that there may be. A server keeps it
# exactly, and the number behind it.
NEVER_MS: Final = (1 << 53) - 1
# A run that comes later than this has been missed, for rules that skip those.
MISSED_AFTER_MS: Final = 10_000
CRON_BYTES_MAX: Final = 256
_TIMES: Final = ("at_ms", "in_ms", "every_ms", "cron")
_COUNT_MAX: Final = 1 << 53


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a schedule is due: exactly one of `at_ms`, `in_ms`, `every_ms` and `cron`.

    What recurs ends behind `until_ms`, and after `count` runs. A run that comes later than `expires_in_ms`
    is left out; with `missed` "skip", one later than 10 seconds.

    `held_ms` is that of a pause: when it was due as the pause began. One until `paused_until_ms` ends by
    itself.
    """

    at_ms: int | None = None
    in_ms: int | None = None
    every_ms: int | None = None
    cron: str | None = None
    tz: str = "UTC"
    until_ms: int | None = None
    count: int | None = None
    missed: Literal["once", "skip"] = "once"
    expires_in_ms: int | None = None
    held_ms: int | None = None
    paused_until_ms: int | None = None

    @property
    def definition(self) -> "Rule":
        """The rule without a pause: what is compared when it is set again."""
        return self if self.held_ms is None else replace(self, held_ms=None, paused_until_ms=None)

    def is_paused(self, now_ms: int) -> bool:
        """Whether a pause goes on."""
        return self.held_ms is not None and (self.paused_until_ms is None or self.paused_until_ms > now_ms)

    @property
    def recurs(self) -> bool:
        """Whether there is more than one time."""
        return self.every_ms is not None or self.cron is not None

    @property
    def text(self) -> str:
        """What is kept of it; nothing of a time alone, which is kept anyway."""
        return "" if self == Rule(at_ms=self.at_ms) else _encode(self).decode()

    def check(self) -> None:
        """Raise `invalid` for what contradicts itself or is out of range."""
        given = [name for name in _TIMES if getattr(self, name) is not None]
        if len(given) != 1:
            raise errors.invalid_schedule("at: give one of at, in_ms, every_ms and cron")
        if not self.recurs and (self.until_ms is not None or self.count is not None):
            raise errors.invalid_schedule(
                "until: until and count are for what recurs: give every_ms or cron with them"
            )
        if self.every_ms is not None and self.every_ms < EVERY_MS_MIN:
            raise errors.invalid_schedule(f"every_ms: at least {EVERY_MS_MIN}")
        if self.count is not None and not 1 <= self.count <= _COUNT_MAX:
            raise errors.invalid_schedule(f"count: between 1 and {_COUNT_MAX}")
        if self.expires_in_ms is not None and not 1 <= self.expires_in_ms <= AHEAD_MS_MAX:
            raise errors.invalid_schedule(f"expires_in_ms: between 1 and {AHEAD_MS_MAX}")
        if self.cron is not None and len(self.cron.encode()) > CRON_BYTES_MAX:
            raise no_expression()
        if self.tz != "UTC" and self.cron is None:
            raise errors.invalid_schedule("tz: it is for cron alone")
        # Of a rule that is stored already nothing is refused any more.
        check_zone(self.tz)

    def first_ms(self, now_ms: int) -> int:
        """When it is due first, seen from now. Raises `invalid` if that is never, or too far ahead."""
        self.check()
        at_ms = self.at_ms if self.at_ms is not None else self._after(now_ms, now_ms)
        if at_ms is None or (self.until_ms is not None and at_ms > self.until_ms):
            raise errors.invalid_schedule("until: it would never be due: give a later time, or another cron")
        if not 0 <= at_ms <= now_ms + AHEAD_MS_MAX:
            raise errors.invalid_schedule("the time is at most ten years from now, and not before 1970")
        return at_ms

    def next_ms(self, at_ms: int, now_ms: int) -> int | None:
        """When it is due again after a run that was due at `at_ms`; None for never. Times that have passed
        until now are one run together.
        """
        if not self.recurs:
            return None
        next_ms = self._after(at_ms, max(at_ms, now_ms))
        return None if next_ms is None or (self.until_ms is not None and next_ms > self.until_ms) else next_ms

    def pause(self, at_ms: int, until_ms: int | None, now_ms: int) -> tuple["Rule", int]:
        """The rule of a schedule due at `at_ms`, paused until a time or without an end, and its next time.
        What recurs makes up for no run; a single one comes with the end. Raises `invalid`.
        """
        held_ms = at_ms if self.held_ms is None else self.held_ms
        paused = replace(self, held_ms=held_ms, paused_until_ms=until_ms)
        if until_ms is None:
            return paused, NEVER_MS
        if not now_ms < until_ms <= now_ms + AHEAD_MS_MAX:
            raise errors.invalid_schedule("paused_until: give a time to come, at most ten years from now")
        return paused, self._behind(held_ms, until_ms)

    def resume(self, at_ms: int, now_ms: int) -> tuple["Rule", int]:
        """The same without its pause. Raises `invalid` where it has ended meanwhile."""
        return self.definition, at_ms if self.held_ms is None else self._behind(self.held_ms, now_ms)

    def _behind(self, held_ms: int, end_ms: int) -> int:
        """When it is due behind a pause that ends then."""
        if not self.recurs:
            return max(held_ms, end_ms)
        next_ms = held_ms if held_ms > end_ms else self.next_ms(held_ms, end_ms)
        if next_ms is None:
            raise errors.invalid_schedule("until: no run is left behind the pause: cancel it instead")
        return next_ms

    def is_missed(self, at_ms: int, now_ms: int) -> bool:
        """Whether a run that was due at `at_ms` comes too late now."""
        late_ms_max = self.expires_in_ms
        if late_ms_max is None and self.missed == "skip":
            late_ms_max = MISSED_AFTER_MS
        return late_ms_max is not None and now_ms - at_ms > late_ms_max

    def _after(self, at_ms: int, now_ms: int) -> int | None:
        if self.in_ms is not None:
            return now_ms + self.in_ms
        if self.every_ms is not None:
            return at_ms + ((now_ms - at_ms) // self.every_ms + 1) * self.every_ms
        assert self.cron is not None, "one of them is given"
        return cron_after(self.cron, self.tz, now_ms)


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Rule).decode


@lru_cache(maxsize=1_000)
def _read(text: str) -> Rule:
    return _decode(text)


def rule_of(text: str, at_ms: int) -> Rule:
    """The rule of a schedule that is due at `at_ms`."""
    return _read(text) if text else Rule(at_ms=at_ms)
