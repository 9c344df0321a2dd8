"""In one word, how a group and a stream are.

Knows: the words, and which of them comes first. Must never know: where what they follow from is kept.
"""

from typing import Final, NamedTuple

# A consumer that has asked for nothing for this long is away; what was delivered before that is no running.
ACTIVE_MS_MAX: Final = 60_000
# How long a dead letter, or a third delivery, is news.
FAILED_MS_MAX: Final = 300_000
# From this delivery on an entry has failed.
FAILED_DELIVERIES_MIN: Final = 3

DRAINED: Final = "drained"
PAUSED: Final = "paused"
NO_CONSUMERS: Final = "no_consumers"
FAILING: Final = "failing"
RUNNING: Final = "running"
IDLE: Final = "idle"
GROUP_STATES: Final = (DRAINED, PAUSED, NO_CONSUMERS, FAILING, RUNNING, IDLE)
CLOSED: Final = "closed"
ENDING: Final = "ending"
OPEN: Final = "open"
STREAM_STATES: Final = (CLOSED, ENDING, OPEN)


class Ages(NamedTuple):
    """How many milliseconds ago a consumer last asked, last was given something, and an entry last failed;
    None for never, or where it is unknown.
    """

    seen: int | None
    active: int | None
    failed: int | None


def group_state(ages: Ages, *, is_drained: bool, paused: bool, has_lag: bool, pending: int) -> str:
    """The first word that holds. `is_drained`: the stream is closed, and the group is done with it."""
    if is_drained:
        return DRAINED
    if paused:
        return PAUSED
    if (has_lag or pending) and not _is_below(ages.seen, ACTIVE_MS_MAX):
        return NO_CONSUMERS
    if _is_below(ages.failed, FAILED_MS_MAX):
        return FAILING
    return RUNNING if pending or _is_below(ages.active, ACTIVE_MS_MAX) else IDLE


def _is_below(age_ms: int | None, most_ms: int) -> bool:
    return age_ms is not None and age_ms < most_ms


def stream_state(*, is_closed: bool, is_drained: bool) -> str:
    """`is_drained`: all groups are."""
    if not is_closed:
        return OPEN
    return CLOSED if is_drained else ENDING
