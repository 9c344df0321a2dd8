"""kill -9 among entries that are due: each is appended once, whatever falls between.

By hand with more of both, from the repository's folder, 300 kills among 100,000 entries:

    WEIR_KILLS=300 WEIR_SCHEDULED=100000 .venv/bin/pytest -p no:faulthandler tests/crash/test_schedules.py
"""

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.crash.harness import MODES, call, kill
from tests.server import Server

KILLS: Final = int(os.environ.get("WEIR_KILLS", "4"))
SCHEDULED: Final = int(os.environ.get("WEIR_SCHEDULED", "1500"))
# What one request schedules.
BATCH: Final = 500
# How long a gateway lives between two kills, and about how long that takes with its start.
LIFE_S: Final = (0.05, 0.25)
CYCLE_MS: Final = 600
STREAM: Final = "/v1/streams/s"


def schedule(port: int, window_ms: int) -> list[str]:
    """Entries that are due one after the other, some time from now; and two schedules that recur."""
    for name in ("a", "b"):
        body = {"entry": {"fields": {"n": name}}, "every_ms": 1_000, "count": 5}
        call(port, "PUT", f"{STREAM}/schedules/{name}", body)
    numbers = [str(number) for number in range(SCHEDULED)]
    for start in range(0, SCHEDULED, BATCH):
        part = numbers[start : start + BATCH]
        delay_ms = 1_000 + start * window_ms // SCHEDULED
        rows = [{"fields": {"n": number}} for number in part]
        given = call(port, "POST", f"{STREAM}/entries?delay_ms={delay_ms}", {"entries": rows})
        assert given["count"] == len(part)
    return numbers


def appended(port: int) -> Counter[str]:
    """How often each value is in the stream."""
    found: Counter[str] = Counter()
    after = "0"
    while True:
        page: Any = call(port, "GET", f"{STREAM}/entries?after={after}&count=10000")
        found.update(one["fields"]["n"] for one in page["entries"])
        if not page["entries"]:
            return found
        after = page["next"]


@pytest.mark.halved
@pytest.mark.parametrize("options", MODES[::2])
def test_entries_for_later_come_once_through_kills(options: tuple[str, ...], tmp_path: Path) -> None:
    """Those that are due while nothing runs too; and what recurs has as many runs as it was given."""
    with Server(tmp_path / "data", *options) as server:
        numbers = schedule(server.port, window_ms=KILLS * CYCLE_MS)
        if "everysec" in options:
            # A second that a power cut may lose, a kill does not.
            time.sleep(0.2)
        kill(server, KILLS, LIFE_S)
        deadline = time.monotonic() + 60
        while call(server.port, "GET", f"{STREAM}/schedules")["schedules"]:
            assert time.monotonic() < deadline, "something is never due"
            time.sleep(0.1)
        found = appended(server.port)
        assert server.stop() == 0
    runs = {name: found.pop(name) for name in ("a", "b")}
    assert runs == {"a": 5, "b": 5}
    assert [number for number in numbers if found[number] != 1] == [], "each once"
    assert len(found) == SCHEDULED
