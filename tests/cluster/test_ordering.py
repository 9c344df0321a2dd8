"""An order by key over a backend is refused in words, and nothing else of a group is."""

import pytest

from engine import EngineError
from engine.cluster import ClusterEngine
from engine.commands.weir_commands import DescribeGroup, EnsureGroup, UpdateGroup
from engine.replies import GroupInfo
from tests.engine.asking import reply_of, reply_to

S = "{t}s"


async def test_an_order_by_key_is_refused_and_nothing_was_made(engine: ClusterEngine) -> None:
    """Taking it back is none: a client may say so of any group."""
    ordered = {"ordered_by": "user", "max_age_ms": 1_000}
    with pytest.raises(EngineError, match="ordered_by is not supported by this backend") as refused:
        await reply_to(engine, EnsureGroup(stream=S, group="g", start=0, mkstream=True, policy=ordered))
    assert refused.value.code == "not_supported_by_backend"
    described = DescribeGroup(stream=S, group="g")
    with pytest.raises(EngineError, match="No such key"):
        await reply_to(engine, described)
    made = {"ordered_by": None, "in_flight_per_key": 1, "max_age_ms": 1_000}
    await reply_to(engine, EnsureGroup(stream=S, group="g", start=0, mkstream=True, policy=made))
    with pytest.raises(EngineError, match="not supported by this backend"):
        await reply_to(engine, UpdateGroup(stream=S, group="g", policy={"ordered_by": "user"}))
    found = await reply_of(engine, GroupInfo, described)
    assert (found.ordered_by, found.passed_over, found.max_age_ms) == (None, 0, 1_000)
