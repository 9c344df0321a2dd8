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
from tests.proof.planting import FOUND, NOT_PLANTED, NOTHING_FOUND, ROOT
from tests.waiting import completed

CHILD_S_MAX: Final = 120.0
TIMED_OUT: Final = -1
_WORDS: Final = {
    FOUND: "found",
    NOTHING_FOUND: "NOT FOUND",
    NOT_PLANTED: "NOT PLANTED",
    TIMED_OUT: "TIMED OUT",
}


class Trial(NamedTuple):
    """The outcome of a bug: `code` of the child, seconds, and its last words."""

    name: str
    code: int
    seconds: float
    words: str


def trial(name: str, s_max: float = CHILD_S_MAX) -> Trial:
    """Run one child, for `seconds` at most."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "tests.proof.planting", name]
    try:
        child = completed(command, cwd=ROOT, timeout=s_max)
    except subprocess.TimeoutExpired:
        return Trial(name, TIMED_OUT, time.monotonic() - begun, f"it took longer than {s_max:g} s")
    lines = child.stderr.strip().splitlines()
    return Trial(name, child.returncode, time.monotonic() - begun, lines[-1] if lines else "")


def word(code: int) -> str:
    """What the code of a child means; that of one that was killed or crashed has no word of its own."""
    return _WORDS.get(code, f"ENDED {code}")


def main(names: Sequence[str]) -> int:
    """All bugs, or those named; the controls in the first case."""
    tell = sys.stdout.write
    found = 0
    for name in names or BUGS:
        one = trial(name)
        found += one.code == FOUND
        tell(f"{word(one.code):<12}{one.seconds:6.1f} s  {name}\n")
        tell(f"                      {one.words[:150]}\n")
        sys.stdout.flush()
    wrong = [] if names else [one for one in map(trial, controls()) if one.code != NOTHING_FOUND]
    for one in wrong:
        tell(f"without any bug {one.name}: {word(one.code)}, {one.words}\n")
    wanted = len(names or BUGS)
    tell(f"the proof found {found} of {wanted} planted bugs")
    passed = len(controls()) - len(wrong)
    tell("\n" if names else f"; without them {passed} of {len(controls())} tests pass\n")
    return 0 if found == wanted and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
