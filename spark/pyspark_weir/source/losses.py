"""When entries that were to be read are gone, and how that is told.

Knows: the gateway's own rule of a gap, generations, heads. Pure: positions and plans in, sentences out.
Must never know: what is done about a loss, Spark.
"""

from enum import Enum

from pyspark_weir import ids, offsets
from pyspark_weir.gateway import StreamPlan
from pyspark_weir.offsets import Position


class Loss(Enum):
    """What has become of a position."""

    TRIMMED = "trimmed"
    RECREATED = "recreated"
    AHEAD = "ahead"
    GONE = "gone"

    @property
    def is_reset(self) -> bool:
        """Whether the position means nothing any more, so that reading has to begin somewhere else."""
        return self in (Loss.RECREATED, Loss.AHEAD)


def loss_of(at: Position, plan: StreamPlan | None) -> Loss | None:
    """What was lost behind a position; `plan` is None where the stream is missing.

    A position without generation was written before the stream was seen: it cannot have lost anything.
    """
    if not at.generation:
        return None
    if plan is None:
        return Loss.GONE
    if plan.generation != at.generation:
        return Loss.RECREATED
    if ids.is_after(at.id, plan.last):
        return Loss.AHEAD
    # Also from 0-0: a stream that had lost its first entries by then was begun behind them.
    return Loss.TRIMMED if ids.is_after(plan.removed_upto, at.id) else None


def sentence(key: str, at: Position, plan: StreamPlan | None, loss: Loss) -> str:
    """What happened to a stream, where, and what to do."""
    gateway, stream = offsets.parts(key)
    where = f"stream {stream} of {gateway} after {at.id}"
    if loss is Loss.TRIMMED:
        assert plan is not None, "a stream that was trimmed is there"
        return (
            f"{where}: entries up to {plan.removed_upto} were trimmed or deleted before they were read, the "
            f"first one left is {plan.first or 'none'}; trim later, or go on without them with "
            "failOnDataLoss=false"
        )
    if loss is Loss.RECREATED:
        assert plan is not None, "a stream that was made anew is there"
        return (
            f"{where}: the stream was deleted and made anew (generation {at.generation} is now "
            f"{plan.generation}); what was unread of the old one is lost; go on in the new one with "
            "onReset=earliest or onReset=latest"
        )
    if loss is Loss.AHEAD:
        assert plan is not None, "a stream with a head is there"
        return (
            f"{where}: the stream ends at {plan.last}, before what was read of it; older data was restored, "
            "or a crash took entries back; go on with onReset=earliest or onReset=latest"
        )
    return (
        f"{where}: the stream was deleted; what was unread of it is lost; go on without it with "
        "failOnDataLoss=false"
    )
