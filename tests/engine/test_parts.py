"""A consumer that holds more than one turn takes is removed in several, by every way into the engine."""

import asyncio

import pytest

from engine import (
    Cursor,
    Engine,
    EngineError,
    RemoveConsumer,
    XAdd,
    XGroupCreate,
    XGroupDelConsumer,
    XReadGroup,
)
from engine.commands.parting import DROPPED_MAX
from engine.commands.types import Command
from tests.engine.clocks import HandClock


@pytest.mark.parametrize("callback", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        XGroupDelConsumer(stream="s", group="g", consumer="c"),
        RemoveConsumer(stream="s", group="g", consumer="c", drop=True),
    ],
    ids=["XGROUP", "drop"],
)
async def test_the_reply_counts_all_that_it_held(command: Command, *, callback: bool) -> None:
    """A transaction, which is one turn, refuses it, and nothing is changed."""
    engine = Engine.open(None, clock=HandClock(1_000), fsync="always")
    await engine.start()
    await engine.execute(XAdd(stream="s", bodies=[b',"fields":{"a":"1"}}'] * (DROPPED_MAX + 1)))
    await engine.execute(XGroupCreate(stream="s", group="g", start=0))
    await engine.execute(XReadGroup(group="g", consumer="c", streams=[("s", Cursor.NEW)]))
    (refusal,) = await engine.transaction([command])
    assert isinstance(refusal, EngineError)
    assert refusal.members == {"pending": DROPPED_MAX + 1}
    if callback:
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        engine.submit([command], answered.set_result)
        assert await answered == [DROPPED_MAX + 1]
    else:
        assert await engine.execute(command) == DROPPED_MAX + 1
    engine.check()
    await engine.close()
