"""Runs pytest, and then once more the few tests that failed, by themselves.

Thousands of tests share two cores with servers, browsers and Spark, so a wait may time out. A test that fails
twice fails the gate. The last lines of the gate name each test that failed once: look into it.

Knows: pytest's exit codes and its cache. Must never know: why a test failed.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

# More failures than this have a common cause. A busy machine has some: a Spark whose Python came too late.
FAILED_MAX: Final = 12
# In these, one failure in a thousand runs is the finding: a lost entry, or damage that was not detected.
ONE_LOOK: Final = "tests/crash/", "tests/engine/", "tests/proof/", "tests/spark/table/"
TESTS_FAILED: Final = 1
LAST_FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")


def deserves_another(failed: list[str]) -> bool:
    """Whether these tests, given by name, run once more."""
    return 0 < len(failed) <= FAILED_MAX and not any(name.startswith(ONE_LOOK) for name in failed)


def main(notes: str, pytest: str, *arguments: str) -> int:
    """Pytest's exit code; tests that passed at the second look are named in the file `notes`."""
    code = subprocess.run([pytest, "--cache-clear", *arguments], check=False).returncode
    if code != TESTS_FAILED or not LAST_FAILED.exists():
        return code
    failed: list[str] = sorted(json.loads(LAST_FAILED.read_text(encoding="utf-8")))
    if not deserves_another(failed):
        return code
    print(f"\nonce more, by themselves: {', '.join(failed)}", flush=True)
    code = subprocess.run([pytest, *failed], check=False).returncode
    if code == 0:
        with Path(notes).open("a", encoding="utf-8") as file:
            file.writelines(f"unsteady: failed once, then passed by itself: {name}\n" for name in failed)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
