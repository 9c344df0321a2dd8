"""`python -m tests.proof.prove`: plant every bug, and show that the proof finds it.

Knows: one child process for each bug, and how long it may take. Exit code 0 if all were found and every test
that found one passes without.
Must never know: what a bug is.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from tests.proof.bugs import BUGS, controls
from tests.proof.planting import FOUND, NOTHING_FOUND, ROOT

child_s_max: Final = 120.0
_WORDS: Final = {FOUND: "found", NOTHING_FOUND: "NOT FOUND"}


class Trial(NamedTuple):
    """What became of a bug: `code` of the child, seconds, and its last words."""

    name: str
    code: int
    seconds: float
    words: str


def trial(name: str) -> Trial:
    """Run one child."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "tests.proof.planting", name]
    try:
        child = subprocess.run(
            command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=child_s_max
        )
    except subprocess.TimeoutExpired:
        return Trial(name, -1, time.monotonic() - begun, f"it took longer than {child_s_max:.0f} s")
    lines = child.stderr.strip().splitlines()
    return Trial(name, child.returncode, time.monotonic() - begun, lines[-1] if lines else "")


def main(names: Sequence[str]) -> int:
    """All bugs, or those named; the controls in the first case."""
    tell = sys.stdout.write
    found = 0
    for name in names or BUGS:
        one = trial(name)
        found += one.code == FOUND
        tell(f"{_WORDS.get(one.code, 'NOT PLANTED'):<12}{one.seconds:6.1f} s  {name}\n")
        tell(f"                      {one.words[:150]}\n")
        sys.stdout.flush()
    wrong = [] if names else [one for one in map(trial, controls()) if one.code != NOTHING_FOUND]
    for one in wrong:
        tell(f"without any bug {one.name} fails: {one.words}\n")
    wanted = len(names or BUGS)
    tell(f"the proof found {found} of {wanted} planted bugs")
    passed = len(controls()) - len(wrong)
    tell("\n" if names else f"; without them {passed} of {len(controls())} tests pass\n")
    return 0 if found == wanted and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
