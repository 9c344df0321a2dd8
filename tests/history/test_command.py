"""`weir history serve` says what is wrong, in one line, and with which exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.archive_tables import Maker
from tests.waiting import completed


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The command, which ends by itself."""
    command = [sys.executable, "-m", "weir", "history", "serve", *words]
    return completed(command, timeout=60)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--archive", "nothing-here"], 3, "holds no archive"),
        (["--archive", "ftp://host/x"], 3, "an archive is a folder"),
        (["--archive", "x", "--host", "0.0.0.0"], 2, "give --token-file"),
        (["--archive", "x", "--token-file", "missing"], 2, "missing: No such file"),
        ([], 2, "--archive"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], code: int, said: str) -> None:
    """Nothing is served then."""
    done = run(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_it_says_once_what_it_serves_and_where(maker: Maker) -> None:
    """As every other line of the command begins."""
    maker.batch({"orders": ["1-0"]})
    command = [sys.executable, "-m", "weir", "history", "serve", "--archive", maker.root.url, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as served:
        assert served.stderr is not None, "it is a pipe"
        line = served.stderr.readline()
        served.terminate()
        assert served.wait(30) == 0
    assert line.startswith("weir: history of ")
    assert "http://127.0.0.1:" in line


def test_an_empty_token_is_none(tmp_path: Path) -> None:
    """It would open the service to everybody."""
    token = tmp_path / "token"
    token.write_text("\n")
    assert (run("--archive", "x", "--token-file", str(token)).returncode) == 2
