"""A document's programs: found by their names, written out, and run as the reader would run them.

Knows: fenced `python` blocks whose first line is a comment with the file's name.
Must never know: what the programs do.
"""

import re
import subprocess
import sys
from pathlib import Path

_BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def programs(document: str) -> dict[str, str]:
    """The programs by file name."""
    return dict(_BLOCK.findall(document))


def start(directory: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Run `python <name> <arguments>` in the directory; what it prints goes to a file beside it."""
    with (directory / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, name, *arguments], cwd=directory, stdout=log, stderr=subprocess.STDOUT
        )
