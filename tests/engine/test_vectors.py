"""What a real Redis of the 8.8 level answered is what this engine answers, reply for reply.

The sequences were recorded; each starts from an empty server. `"<ms>"` stands for any integer, `"<any>"` for
anything, and integers beyond 2^53 may arrive as text.
"""

import json
import lzma
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

import pytest

from tests.engine.world import World

# Coverage would make it three times as long, and other tests cover the same lines.
pytestmark = [pytest.mark.no_cover, pytest.mark.halved]

VECTORS: Final = Path(__file__).parents[1] / "vectors"
COUNTS: Final = {"introduction": 1, "family-7": 1500, "family-8": 1000}
# Each fourth sequence, from the first, the second and so on.
PARTS: Final = [("introduction", 0), *product(("family-7", "family-8"), range(4))]
INTEGER_SAFE_MAX: Final = 1 << 53


def sequences(name: str, part: int) -> Iterator[list[dict[str, Any]]]:
    with lzma.open(VECTORS / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
        for line in islice(lines, part, None, 4):
            yield json.loads(line)


def count(name: str) -> int:
    """How many sequences there are in each part."""
    return -(-COUNTS[name] // 4)


def agrees(recorded: object, answered: object) -> bool:
    if recorded == "<any>":
        return True
    if recorded == "<ms>":
        return type(answered) is int
    if isinstance(recorded, list):
        return (
            isinstance(answered, list)
            and len(recorded) == len(answered)
            and all(map(agrees, recorded, answered))
        )
    if isinstance(recorded, int) and abs(recorded) > INTEGER_SAFE_MAX:
        return str(recorded) == str(answered)
    return type(recorded) is type(answered) and recorded == answered


def first_difference(world: World, steps: list[dict[str, Any]]) -> str | None:
    for place, step in enumerate(steps):
        recorded = f"-{step['error']}" if "error" in step else step["reply"]
        answered = world.call(*step["cmd"])
        if not agrees(recorded, answered):
            return f"step {place}, {step['cmd']}: recorded {recorded!r}, answered {answered!r}"
    return None


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_every_recorded_reply_is_given_again(name: str, part: int) -> None:
    """Reply for reply and error for error; afterwards log and snapshot give the state that answered."""
    differences: dict[int, str] = {}
    number = -1
    for number, steps in enumerate(sequences(name, part)):
        world = World()
        difference = first_difference(world, steps)
        if difference is not None:
            differences[number] = difference
        world.check()
    assert number + 1 == count(name)
    assert differences == {}


@pytest.mark.parametrize(
    ("recorded", "answered"),
    [
        ("<ms>", "5"),
        ("<ms>", None),
        (1, True),
        (1, "1"),
        ([1, 2], [1]),
        (None, []),
        ("OK", "ok"),
        (2**60, 2**60 - 1),
    ],
)
def test_the_comparison_tells_replies_apart(recorded: object, answered: object) -> None:
    """A comparison that forgives too much would prove nothing."""
    assert not agrees(recorded, answered)
