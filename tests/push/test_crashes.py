"""At least once, through kills of pushers and of the gateway."""

from pathlib import Path

import pytest

from tests.push import crashes


@pytest.mark.parametrize(("order", "entries"), [("none", 1_000), ("strict", 200)])
async def test_each_entry_arrives_through_kills(tmp_path: Path, order: str, entries: int) -> None:
    """An endpoint that fails one time in five has each, and again what was in flight at a kill; in order."""
    found = await crashes.run(tmp_path, entries, 3, order)
    assert found.is_right, found
