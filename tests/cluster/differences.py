"""The table in docs/scale.md of what is otherwise over a backend, as the tests read it.

Knows: the form of the table. Must never know: what the tests check.
"""

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "scale.md"
_ROW: Final = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_TEST: Final = re.compile(r"`(test_\w+\.py::\w+)`")


def differences(kind: str) -> dict[str, str]:
    """What is otherwise over a server of this kind, by the test (file and function) that fails for it. A row
    about Redis 7.0 alone begins so.
    """
    rows = _ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {
        test: what.strip()
        for what, how, tests in rows
        for test in _TEST.findall(tests)
        if kind == "redis" or not how.startswith("Redis 7.0")
    }
