"""A plugin of pytest that notes of each test whether it passed, how long it took, and what it ran.

Knows: where probes mark what runs. Must never know: which bugs there are.

    -p tests.proof.probing, with WEIR_OUTCOMES=FILE in the environment: a line of JSON for each test that has
    none there
"""

import importlib
import json
import os
import tempfile
from base64 import b64encode
from collections.abc import Generator
from pathlib import Path
from typing import Final
from zlib import compress

import pytest

from tests.proof.probes import FILE, PROBES_MAX

OUTCOMES: Final = "WEIR_OUTCOMES"

if OUTCOMES in os.environ:
    # Before anything is imported that has probes.
    _descriptor, os.environ[FILE] = tempfile.mkstemp(dir=Path(os.environ[OUTCOMES]).parent)
    os.truncate(_descriptor, PROBES_MAX)
    os.close(_descriptor)


class Probing:
    """What one process of pytest notes."""

    def __init__(self, outcomes: Path) -> None:
        self._outcomes = outcomes
        self._seconds = 0.0
        self._failed = self._skipped = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what is noted already."""
        if self._outcomes.exists():
            lines = self._outcomes.read_text(encoding="utf-8").splitlines()
            noted = {json.loads(line)["test"] for line in lines}
            items[:] = [item for item in items if item.nodeid not in noted]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Begin anew for each test, and write what came of it."""
        self._taken()
        self._seconds, self._failed, self._skipped = 0.0, False, False
        outcome = yield
        word = "failed" if self._failed else "skipped" if self._skipped else "passed"
        ran = b64encode(compress(self._taken())).decode()
        line = {"test": item.nodeid, "outcome": word, "s": round(self._seconds, 3), "ran": ran}
        # One write: several processes add to one file.
        with self._outcomes.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return outcome

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a part of a test."""
        self._seconds += report.duration
        self._failed |= report.failed
        self._skipped |= report.skipped

    def _taken(self) -> bytes:
        """What has run since the last look, in this process and in those that it started."""
        seen = importlib.import_module("tests.proof.ran").seen
        taken = bytes(seen)
        seen[:] = bytes(PROBES_MAX)
        return taken


def pytest_configure(config: pytest.Config) -> None:
    """Note what runs in this process, unless others run the tests."""
    if OUTCOMES in os.environ and (
        hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    ):
        config.pluginmanager.register(Probing(Path(os.environ[OUTCOMES])))


def pytest_unconfigure() -> None:
    """Remove what this process shared."""
    if OUTCOMES in os.environ:
        Path(os.environ[FILE]).unlink(missing_ok=True)
