"""What holds for the lane of any operation, asked of two gateways, of which one has lanes.

Knows: requests that take the lane one after the other, what comes between them, and what is counted.
Must never know: an operation.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final

import pytest

from engine import Call, EngineError, errors
from engine.read_handle import Replies
from tests.app.lane_sides import LINE_ID, Sides
from tests.engine.clocks import settle

# Refusals of what may have been done: a fault, or a backend that has not answered; and their statuses.
OF_WHAT_MAY_BE_DONE: Final = pytest.mark.parametrize(
    ("refusal", "status"),
    [(errors.internal(), b"500"), (errors.restarting(is_unknown=True), b"503")],
)


async def check_change(
    sides: Sides, asked: Iterator[bytes], change: Callable[[Sides], None], statuses: Sequence[int]
) -> None:
    """The first request behind a change is asked anew; it and those after it are answered alike, with these
    statuses.
    """
    change(sides)
    await settle()
    assert [int((await sides.both(next(asked)))[9:12]) for _ in statuses] == statuses


async def check_any_order(sides: Sides, random: Random, choose: Callable[[], bytes]) -> None:
    """Requests in any pieces, and a stamp that advances between them, are answered alike."""
    for _ in range(60):
        asked = choose()
        cut = random.randrange(len(asked)) if random.random() < 0.2 else 0
        if random.random() < 0.1:
            sides.fast.gateway.stamp.advance()
        pieces = [piece for piece in (asked[:cut], asked[cut:]) if piece]
        fast, full = await sides.fast.ask(*pieces), await sides.full.ask(*pieces)
        assert fast == full
        assert fast.startswith(b"HTTP/1.1 ")


async def check_counts_and_log(sides: Sides, asked: Iterator[bytes]) -> None:
    """Requests are counted by route and status, timed, and logged alike; each with its line."""
    before = [[*side.lines] for side in (sides.fast, sides.full)]
    for _ in range(3):
        await sides.both(next(asked))
    fast, full = [
        [LINE_ID.sub(b"?", line) for line in side.lines[len(old) :]]
        for side, old in zip((sides.fast, sides.full), before, strict=True)
    ]
    assert len(fast) == 3
    assert fast == full
    of_fast, of_full = (side.gateway.reports.counters for side in (sides.fast, sides.full))
    assert of_fast.requests == of_full.requests
    assert of_fast.times.histogram.counts == of_full.times.histogram.counts


async def check_tried_once(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, asked: bytes, refusal: EngineError, status: bytes
) -> None:
    """A request that the engine refuses so is refused, and not tried again."""
    tried: list[Call] = []

    def fail(call: Call, _: object) -> Replies:
        tried.append(call)
        return call.refused(refusal)

    monkeypatch.setattr(sides.fast.engine, "send", fail)
    assert (await sides.fast.ask(asked))[9:12] == status
    assert len(tried) == 1
    assert sides.fast.gateway.reports.counters.rejected[refusal.code] == 1
