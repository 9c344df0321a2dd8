"""An engine with one stream and one group."""

from collections.abc import AsyncIterator

import pytest

from engine import Engine, SystemClock
from engine.commands.weir_commands import EnsureGroup
from tests.engine.asking import reply_to


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine.open(None, clock=SystemClock())
    await engine.start()
    await reply_to(engine, EnsureGroup(stream="s", group="g", start=0, mkstream=True))
    yield engine
    await engine.close()
