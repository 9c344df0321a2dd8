"""A reply that cannot be written is an error by itself: the other commands have run too, and have theirs."""

import re
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.limits import entries_in
from app.main import App
from app.redis import is_laborious
from app.redis.replies import SHAPES
from engine import replies
from engine.replies import Reply, by_type

INTERNAL: Final = "ERR internal error: the gateway's log has more"
ROWS: Final = [["XADD", "s", "1-0", "a", "b"], ["XINFO", "STREAM", "s"], ["XLEN", "s"]]
EXPECTED: Final = [{"result": "1-0"}, {"error": INTERNAL}, {"result": 1}]

# Tables by the types of what no class derives from: commands, records and frames.
OTHER_TABLES: Final = {
    "app/fronts/codec.py",
    "app/redis/bounds.py",
    "app/tenants/walking.py",
    "app/doors/websocket",
}


def test_no_table_of_replies_asks_for_the_very_type() -> None:
    """Tenants see replies of types that derive from the engine's."""
    found = {
        str(path)
        for path in Path("app").rglob("*.py")
        if re.search(r"\.get\(type\(|\[type\(| in [A-Z_]*SHAPES", path.read_text())
    }
    assert {path for path in found if not path.startswith(tuple(OTHER_TABLES))} == set()


def test_a_derived_type_has_what_the_table_has_for_the_nearest_above_it() -> None:
    assert by_type({int: 1}, True) == 1  # noqa: FBT003 - as a value
    assert by_type({bool: 2, int: 1}, True) == 2  # noqa: FBT003 - as a value
    assert by_type({int: 1}, "1") is None


def test_what_a_derived_reply_brings_is_counted() -> None:
    class Shown(replies.Entries, frozen=True):
        """Entries that a caller sees in another way."""

    long = Shown(parts=[b"x" * (1 << 20)], count=3)
    assert (entries_in(long), is_laborious([long])) == (3, True)


def fail(_: Reply) -> Any:
    """In the place of what shapes a reply."""
    raise ValueError("this reply is not like any other")


@pytest.mark.parametrize("path", ["pipeline", "multi-exec"])
async def test_other_commands_of_a_request_have_their_replies(
    http: httpx.AsyncClient, app: App, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, replies.StreamInfo, fail)
    found = await http.post(f"/v1/commands/{path}", json=ROWS)
    assert (found.status_code, found.json()) == (200, EXPECTED)
    assert app.gateway.reports.counters.rejected["internal"] == 1
