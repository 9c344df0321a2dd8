"""What the jobs that count have in common: all there is at once, or kept up with in a checkpoint.

Knows: when findings are shown. Must never know: what is counted, how findings look.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pyspark_weir.cli import output
from pyspark_weir.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from pyspark_weir.gateway import Access
    from pyspark_weir.running import Pace
    from pyspark_weir.session import SessionOptions

Found = TypeVar("Found")


@dataclass(frozen=True)
class Counting(Generic[Found]):
    """A job that counts: `once` all that is there; `query` goes on in a checkpoint, and hands over what is
    known after each batch; `kept` is what a checkpoint knows; `show` is for people and programs.
    """

    once: "Callable[[SparkSession], list[Found]]"
    query: "Callable[[SparkSession, str, Callable[[list[Found]], None]], DataStreamWriter]"
    kept: Callable[[str], list[Found]]
    show: Callable[[list[Found]], None]


def run(
    counting: Counting[Found],
    checkpoint: str | None,
    pace: "Pace",
    session: "SessionOptions",
    gateways: "tuple[Access, ...]",
    *,
    as_json: bool,
) -> None:
    """Count, and show what was found. Raises OptionError, PipelineError."""
    if checkpoint is None:
        from pyspark_weir.session import open_session

        if not pace.is_once:
            raise OptionError("--every goes on from somewhere: give --checkpoint")
        counting.show(counting.once(open_session(session)))
        return

    from pyspark_weir import running

    def show(found: list[Found]) -> None:
        # The end is told once; on the way there only of a run that goes on.
        if not pace.is_once:
            counting.show(found)

    summary = running.run(
        running.Run(checkpoint, pace, session, gateways),
        lambda spark: counting.query(spark, checkpoint, show),
        output.teller(as_json=as_json),
        output.say,
    )
    if pace.is_once:
        counting.show(counting.kept(checkpoint))
    output.ended(summary, as_json=as_json)
