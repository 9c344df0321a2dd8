"""The programs of docs/sdk-python.md pass a strict type checker, as their readers' will."""

import sys
from pathlib import Path

from tests.documents.programs import programs
from tests.waiting import completed

ROOT = Path(__file__).parents[2]
CHECK_S_MAX = 300
# Without this one, a package that does not say that it is typed would let everything pass.
WRONG = "import weir\n\nweir.Client().publish(4711, {})\n"


def test_the_samples_are_typed(tmp_path: Path) -> None:
    samples = {**programs((ROOT / "docs" / "sdk-python.md").read_text()), "wrong.py": WRONG}
    for name, program in samples.items():
        (tmp_path / name).write_text(program)
    words = ("-m", "mypy", "--strict", "--config-file=", f"--cache-dir={ROOT / '.mypy_cache' / 'samples'}")
    checked = completed([sys.executable, *words, *samples], cwd=tmp_path, timeout=CHECK_S_MAX)
    wrong, end = checked.stdout.splitlines()
    assert wrong.startswith('wrong.py:3: error: Argument 1 to "publish" of "Client" has incompatible type')
    assert end == f"Found 1 error in 1 file (checked {len(samples)} source files)"
