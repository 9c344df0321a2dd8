"""A plugin of pytest that notes of each test whether it passed, how long it took, and what it ran.

Knows: where probes note what runs. Must never know: which bugs there are.

    -p tests.proof.probing, with WEIR_OUTCOMES=FILE in the environment: a line of JSON for each test
"""

import json
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from tests.proof import ran

OUTCOMES: Final = "WEIR_OUTCOMES"


class Probing:
    """What one process of pytest notes."""

    def __init__(self, outcomes: Path, folder: Path) -> None:
        self._outcomes = outcomes
        self._folder = folder
        self._seconds = 0.0
        self._failed = self._skipped = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Begin anew for each test, and write what came of it."""
        self._taken()
        self._seconds, self._failed, self._skipped = 0.0, False, False
        outcome = yield
        word = "failed" if self._failed else "skipped" if self._skipped else "passed"
        line = {
            "test": item.nodeid,
            "outcome": word,
            "s": round(self._seconds, 3),
            "ran": sorted(self._taken()),
        }
        # One write: several processes add to one file.
        with self._outcomes.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return outcome

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a part of a test."""
        self._seconds += report.duration
        self._failed |= report.failed
        self._skipped |= report.skipped

    def _taken(self) -> set[str]:
        """What has run since the last look, in this process and in those that it started."""
        taken, ran.here = ran.here or set(), set()
        for file in self._folder.iterdir():
            taken.add(file.name)
            file.unlink(missing_ok=True)
        return taken


def pytest_configure(config: pytest.Config) -> None:
    """Note what runs in this process, unless others run the tests."""
    if OUTCOMES in os.environ and (
        hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    ):
        folder = os.environ[ran.FOLDER] = tempfile.mkdtemp()
        ran.here = set()
        config.pluginmanager.register(Probing(Path(os.environ[OUTCOMES]), Path(folder)))
