"""When a position has lost something, and what is said about it."""

import dataclasses

import pytest

from pyspark_weir.gateway import PlannedRange
from pyspark_weir.offsets import Position
from pyspark_weir.source.batch import Loss, loss_of, loss_sentence

# Entries 5-0 to 9-0 are there, everything up to 4-0 was trimmed.
PLAN = PlannedRange(
    after="4-0", end="9-0", count=5, bytes=50, first="5-0", last="9-0", removed_upto="4-0", generation="new",
    durable="9-0", lag=5,
)  # fmt: skip


@pytest.mark.parametrize(
    ("place", "generation", "loss"),
    [
        ("4-0", "new", None),
        ("9-0", "new", None),
        ("3-9", "new", Loss.TRIMMED),
        ("0-0", "new", Loss.TRIMMED),
        ("9-1", "new", Loss.AHEAD),
        ("7-0", "old", Loss.RECREATED),
        ("10-0", "old", Loss.RECREATED),
        ("0-0", "", None),
        ("99-0", "", None),
    ],
)
def test_a_position_is_judged_by_generation_head_and_what_was_removed(
    place: str, generation: str, loss: Loss | None
) -> None:
    assert loss_of(Position(place, generation), PLAN) is loss


def test_a_stream_that_was_never_trimmed_loses_nothing_from_its_beginning() -> None:
    assert loss_of(Position("0-0", "new"), dataclasses.replace(PLAN, removed_upto="0-0")) is None


def test_a_stream_that_is_gone_is_a_loss_only_if_it_was_there() -> None:
    assert loss_of(Position("4-0", "new"), None) is Loss.GONE
    assert loss_of(Position("0-0", ""), None) is None


@pytest.mark.parametrize(
    ("loss", "remedy"),
    [
        (Loss.TRIMMED, "failOnDataLoss=false"),
        (Loss.GONE, "failOnDataLoss=false"),
        (Loss.RECREATED, "onReset=earliest"),
        (Loss.AHEAD, "onReset=earliest"),
    ],
)
def test_a_loss_names_stream_gateway_place_and_remedy(loss: Loss, remedy: str) -> None:
    text = loss_sentence("g0/orders", Position("3-0", "old"), None if loss is Loss.GONE else PLAN, loss)
    assert all(word in text for word in ("stream orders of g0 after 3-0", remedy))
