"""`make prove MATRIX=1`: which tests find which planted bug, as a table that is kept.

Knows: a copy of the tree for each bug that is tried at a time, which tests run its lines, how many are asked.
Must never know: what a bug is.

    1. all tests run once in a copy with a probe at each statement: `.matrix/ran.jsonl`
    2. each bug is planted into a copy, and of the tests that run its lines at most `ASKED_MAX` are asked, for
       `ASKED_S_MAX` at most, and as many as take half of that without it, since one that finds it may wait;
       which of them fail is a line of `tests/proof/matrix.jsonl`

Either can be interrupted, and run in slices: what is in the files is not done again, until `--anew`. Bugs may
be added and changed meanwhile; for lines that the copy with probes does not have, no test is known. Where
there are no probes (Lua, TypeScript) a bug names the tests that may find it.

    python -m tests.proof.matrix [--beside 2] [--anew] [--tests "tests/app tests/client"] [--ask] [--enough 3]
                                 [--among "tests/app/resp"] [NAME ...]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any, Final
from zlib import decompress

from tests.proof.bugs import MATRIX
from tests.proof.planting import ROOT, edited
from tests.proof.probes import PROBES_MAX, Probes
from tests.proof.probing import OUTCOMES

TABLE: Final = ROOT / "tests/proof/matrix.jsonl"
ASKED_MAX: Final = 150
ASKED_S_MAX: Final = 90.0
QUICK_S: Final = 0.5
_FOLDER: Final = ROOT / ".matrix"
_RAN: Final = _FOLDER / "ran.jsonl"
_SOURCES: Final = _FOLDER / "sources.json"
_PROBED: Final = "app", "engine", "history", "sdk/python", "spark"
_COPIED: Final = (*("app", "engine", "history", "sdk", "spark", "tests", "bench", "deploy", "docs", ".ci"),)
_FILES: Final = (
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
    "Dockerfile",
    "LICENSE",
)
_LEFT_OUT: Final = shutil.ignore_patterns("node_modules", "__pycache__", "dist")
# What reads the tree itself would find any change of it, and what measures time would find neither.
_MARKS: Final = "not (early or paired or alone)"


class Copy:
    """A copy of the tree, in which programs find their own modules, not what is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        for name in _COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=_LEFT_OUT, symlinks=True)
        for name in (*_FILES, *(file.name for file in ROOT.glob("requirements*"))):
            shutil.copy(ROOT / name, folder)
        (folder / ".venv").symlink_to(ROOT / ".venv")
        (folder / "tests/sdk/node_modules").symlink_to(ROOT / "tests/sdk/node_modules")
        self._edition = 0

    def write(self, file: str, text: str) -> None:
        """Exchange a file's text. It gets a time of its own, or what is compiled would stay."""
        path = self.folder / file
        path.write_text(text, encoding="utf-8")
        self._edition += 2
        os.utime(path, (path.stat().st_mtime + self._edition,) * 2)

    def run(self, outcomes: Path, arguments: Sequence[str], s_max: float | None) -> None:
        """Run pytest, which writes what comes of each test."""
        paths = [str(self.folder), str(self.folder / "sdk/python"), str(self.folder / "spark")]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.proof.probing",
            "-p",
            "no:cacheprovider",
        ]
        with subprocess.Popen(
            [*command, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), OUTCOMES: str(outcomes)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as running:
            try:
                running.wait(s_max)
            except subprocess.TimeoutExpired:
                # With what its tests have started.
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, 9)


def record(tests: Sequence[str], beside: int) -> None:
    """Run all tests, or these, with probes at all statements; none that is noted already."""
    copy = Copy(_FOLDER / "probed")
    number = 0
    for file, text in _sources().items():
        probes = Probes(text, number)
        number = probes.end
        copy.write(file, probes.write())
    assert number <= PROBES_MAX, number
    copy.run(_RAN, ["-m", _MARKS, f"--numprocesses={beside}", *tests], None)


def _sources() -> dict[str, str]:
    """The text of all modules that have probes, as they were when the first test was noted."""
    if not _SOURCES.exists():
        files = sorted(one for name in _PROBED for one in (ROOT / name).rglob("*.py"))
        now = {str(one.relative_to(ROOT)): one.read_text(encoding="utf-8") for one in files}
        _SOURCES.write_text(json.dumps(now), encoding="utf-8")
    texts: dict[str, str] = json.loads(_SOURCES.read_text(encoding="utf-8"))
    return texts


def _ran() -> list[dict[str, Any]]:
    """The tests that passed, with the bugs whose lines they run."""
    probes, wanted = 0, defaultdict[int, set[str]](set)
    for file, text in _sources().items():
        of_file = Probes(text, probes)
        probes = of_file.end
        for name, bug in MATRIX.items():
            for edit in bug.edits:
                if edit.file == file and edit.old in text:
                    for number in of_file.of(edit.old):
                        wanted[number].add(name)
    runs = [line for line in _lines(_RAN) if line["outcome"] == "passed"]
    for run in runs:
        ran = decompress(b64decode(run["ran"]))
        run["ran"] = {name for number, names in wanted.items() if ran[number] for name in names}
    return runs


def _lines(file: Path) -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    )


def chosen(candidates: Iterable[Mapping[str, Any]], s_max: float) -> list[str]:
    """The tests that are asked, of those that pass without a bug: the quickest of each file first, and what
    takes longer behind all that does not.
    """
    quick, long = (
        defaultdict[str, list[Mapping[str, Any]]](list),
        defaultdict[str, list[Mapping[str, Any]]](list),
    )
    for one in sorted(candidates, key=lambda one: (one["s"], one["test"])):
        (quick if one["s"] <= QUICK_S else long)[one["test"].partition("::")[0]].append(one)
    asked, seconds = list[str](), 0.0
    for by_file in (quick, long):
        while by_file and len(asked) < ASKED_MAX:
            for file in [*by_file]:
                one = by_file[file].pop(0)
                if not by_file[file]:
                    del by_file[file]
                if len(asked) < ASKED_MAX and seconds + one["s"] <= s_max:
                    asked.append(one["test"])
                    seconds += one["s"]
    return asked


def ask(copy: Copy, name: str, asked: Sequence[str], enough: int, s_max: float) -> dict[str, Any]:
    """Plant a bug, and ask these tests until `enough` (0: all) find it. Returns a line of the table."""
    bug = MATRIX[name]
    texts = {edit.file: (ROOT / edit.file).read_text(encoding="utf-8") for edit in bug.edits}
    outcomes = copy.folder / "outcomes.jsonl"
    outcomes.unlink(missing_ok=True)
    try:
        for file, text in texts.items():
            copy.write(file, edited(bug.edits, file, text))
        if asked:
            copy.run(outcomes, [f"--maxfail={enough}", *asked], s_max)
    finally:
        for file, text in texts.items():
            copy.write(file, text)
    ended = _lines(outcomes)
    found = sorted(one["test"] for one in ended if one["outcome"] == "failed")
    return {"bug": name, "asked": len(asked), "ended": len(ended), "found_by": found}


def main(given: argparse.Namespace) -> int:
    """Fill the table."""
    if given.anew:
        shutil.rmtree(_FOLDER, ignore_errors=True)
        TABLE.unlink(missing_ok=True)
    _FOLDER.mkdir(exist_ok=True)
    if not given.ask:
        record(given.tests.split(), given.beside)
    runs = [run for run in _ran() if run["test"].startswith(tuple(given.among.split()) or "")]
    known = {line["bug"]: line for line in _lines(TABLE) if line["bug"] in MATRIX}
    wanted = [name for name in MATRIX if (name in given.names if given.names else name not in known)]
    copies: Queue[Copy] = Queue()
    for number in range(min(given.beside, len(wanted))):
        copies.put(Copy(_FOLDER / f"planted-{number}"))

    def one(name: str) -> dict[str, Any]:
        hinted = MATRIX[name].asked
        candidates = (run for run in runs if name in run["ran"] or run["test"].startswith(hinted or "-"))
        copy = copies.get()
        try:
            return ask(copy, name, chosen(candidates, given.seconds / 2), given.enough, given.seconds)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(max(1, given.beside)) as pool:
        for line in pool.map(one, wanted):
            known[line["bug"]] = line
            kept = [known[name] for name in MATRIX if name in known]
            TABLE.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
            in_time = line["ended"] == line["asked"]
            word = "found" if line["found_by"] else "NOT FOUND" if in_time else "TIMED OUT"
            sys.stdout.write(
                f"{word:<10}{len(line['found_by']):4} of {line['asked']:4} tests  {line['bug']}\n"
            )
            sys.stdout.flush()
    found = sum(bool(row["found_by"]) for row in known.values())
    sys.stdout.write(f"the tests find {found} of {len(known)} planted bugs\n")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="bugs; without any, all that the table does not have")
    parser.add_argument("--beside", type=int, default=2, help="how many are tried at a time")
    parser.add_argument("--anew", action="store_true", help="begin with an empty table")
    parser.add_argument(
        "--tests", default="", help="the tests that are run with probes, as pytest takes them"
    )
    parser.add_argument("--ask", action="store_true", help="run no more tests with probes")
    parser.add_argument(
        "--among", default="", help="ask tests alone whose names begin so, of many that run a line"
    )
    parser.add_argument("--enough", type=int, default=0, help="ask no more tests when so many found a bug")
    parser.add_argument("--seconds", type=float, default=ASKED_S_MAX, help="how long a bug is asked for")
    sys.exit(main(parser.parse_args()))
