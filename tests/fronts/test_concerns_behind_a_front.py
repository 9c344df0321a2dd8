"""The concerns of tests/app/test_concerns.py at a front, whose engine is in another process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine import entries
from engine.commands.types import XAdd, XGroupCreate
from tests.app.ten_doors import LONG, Bench, opened
from tests.app.test_concerns import test_a_concern_holds_at_each_door
from tests.engine.asking import reply_to

__all__ = ["test_a_concern_holds_at_each_door"]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """A front."""
    async with opened(tmp_path, is_front=True) as bench:
        await reply_to(bench.engine, XAdd(stream="orders", bodies=[entries.body([("f", LONG)])]))
        await reply_to(bench.engine, XGroupCreate(stream="orders", group="g", start=0))
        yield bench
