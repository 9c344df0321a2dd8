"""A document's programs: found by their names, written out, and run as the reader would run them.

Knows: fenced `python`, `toml`, `js`, `go` and `html` blocks whose first line is a comment that names the
file.
Must never know: what the programs do.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BLOCK = re.compile(
    r"^```(?:(?:python|toml)\n#|(?:js|go)\n//|html\n<!--) (\S+\.(?:py|mjs|go|html|toml))(?: -->)?\n(.*?)^```",
    re.MULTILINE | re.DOTALL,
)


def programs(document: str) -> dict[str, str]:
    """The programs by file name."""
    return dict(_BLOCK.findall(document))


def start(directory: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Run a program with Python or Node in the directory; what it prints goes to a file beside it."""
    program = "node" if name.endswith(".mjs") else sys.executable
    with (directory / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [program, name, *arguments], cwd=directory, stdout=log, stderr=subprocess.STDOUT
        )


@contextmanager
def started(directory: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The same, and kill it at the end."""
    with start(directory, name, *arguments) as program:
        try:
            yield program
        finally:
            program.kill()
