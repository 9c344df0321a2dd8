"""What a probe calls that stands before a line where a bug can be planted: this line runs.

Knows: where a process notes it. Must never know: tests, bugs.

The process of pytest has `here`; any other that a test starts makes an empty file in a folder.
"""

import os
from contextlib import suppress
from typing import Final

FOLDER: Final = "WEIR_PROBES"
here: set[str] | None = None


def note(number: str) -> None:
    """The line of this bug runs."""
    if here is not None:
        here.add(number)
    elif FOLDER in os.environ:
        with suppress(OSError):
            os.close(os.open(os.path.join(os.environ[FOLDER], number), os.O_CREAT))  # noqa: PTH118 - runs often
