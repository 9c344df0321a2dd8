"""The concerns of tests/app/test_concerns.py at a front, whose engine is in another process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.app.ten_doors import Bench, filled
from tests.app.test_concerns import Concern, test_a_concern_holds_at_each_door

__all__ = ["test_a_concern_holds_at_each_door"]


@pytest.fixture
async def bench(tmp_path: Path, concern: Concern) -> AsyncIterator[Bench]:
    """A front."""
    async with filled(tmp_path, is_front=True, **concern.limits) as bench:
        yield bench
