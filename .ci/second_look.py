"""Runs pytest, and tests that failed beside others once more by themselves.

Thousands of tests share two cores with servers, browsers and Spark, and one that waits for them may lose
patience. What fails twice fails the gate; what failed once is named in its last lines, for somebody to look
into.

Knows: pytest's exit codes and its cache. Must never know: why a test failed.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

# More than this is no bad luck.
FAILED_MAX: Final = 5
# Here one failure among thousands is the finding: an entry that was lost, or damage that was not seen.
ONE_LOOK: Final = "tests/crash/", "tests/engine/", "tests/proof/", "tests/spark/table/"
TESTS_FAILED: Final = 1
LAST_FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")


def deserves_another(failed: list[str]) -> bool:
    """Whether these tests, by their names, may have failed because others ran beside them."""
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
            file.writelines(f"unsteady: failed beside others, passed by itself: {name}\n" for name in failed)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
