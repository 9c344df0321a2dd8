"""What a real Redis answered is what this engine answers where every entry is in a file, each in a run of one
node, and one run is cached.

Nodes are sealed after each command, so what Redis says of nodes, and trims by whole nodes, are left out.
"""

from itertools import takewhile
from typing import Any

import pytest

from tests.engine.shelf import StoredWorld
from tests.engine.test_vectors import PARTS, first_difference, sequences

pytestmark = [pytest.mark.no_cover, pytest.mark.halved]


def until_nodes(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps before the first one that is about nodes."""

    def is_about_nodes(step: dict[str, Any]) -> bool:
        return "~" in step["cmd"] or "radix-tree-nodes" in str(step.get("reply"))

    return list(takewhile(lambda step: not is_about_nodes(step), steps))


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_replies_are_those_of_redis_with_everything_in_files(name: str, part: int) -> None:
    """And what a turn looks at it looks at before it changes anything."""
    compared = 0
    for number, recorded in enumerate(sequences(name, part)):
        world, steps = StoredWorld(seals=True), until_nodes(recorded)
        difference = first_difference(world, steps)
        assert difference is None, f"sequence {number} of {name}, part {part}: {difference}"
        world.keyspace.check()
        compared += len(steps)
    assert compared, "most sequences have steps that are not about nodes"
