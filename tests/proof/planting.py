"""Bugs planted into the engine's source as it is imported, in a process of its own.

Knows: how to exchange pieces of a module's text, each of which must be there exactly once; how to run a test
by its name.
Must never know: which bug it is, or what finds it.

    python -m tests.proof.planting NAME     exit code 0: the test passed, nothing was found
                                            1: found; the last line says how
                                            2: the bug could not be planted, or the test could not be run
"""

import asyncio
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]
NOTHING_FOUND, FOUND, NOT_PLANTED = 0, 1, 2
# What a test says that has found something; anything else is a fault of the planting.
_FINDINGS: Final = (
    "AssertionError",
    "BrokenPromiseError",
    "LogRefusedError",
    "BlockingIOError",
    "TimeoutError",
    "Failed",
    "OverflowError",
    "PlantedError",  # of the tests' own fault, where the engine let it through
)


class Edit(NamedTuple):
    """A piece of a file's text, and what stands in its place."""

    file: str
    old: str
    new: str


class Planted(NamedTuple):
    """A bug that any test may find; where no probe says which, those whose names begin with `asked`."""

    edits: tuple[Edit, ...]
    asked: tuple[str, ...] = ()


class Bug(NamedTuple):
    """`finder` is a test as `module:function`, called with `arguments`, or `tests/file.py::test`."""

    edits: tuple[Edit, ...]
    finder: str
    arguments: dict[str, Any]


def bug(file: str, old: str, new: str, finder: str, **arguments: object) -> Bug:
    """One edit, and what finds it."""
    return Bug((Edit(file, old, new),), finder, arguments)


class NotPlanted(Exception):  # noqa: N818 - a verdict
    """The text to be exchanged is not there, or more than once: the code has moved on."""


def edited(edits: Sequence[Edit], file: str, text: str) -> str:
    """The text with all edits of this file."""
    for edit in edits:
        if edit.file == file:
            if text.count(edit.old) != 1:
                raise NotPlanted(f"{file} has this {text.count(edit.old)} times: {edit.old!r}")
            text = text.replace(edit.old, edit.new)
    return text


class _Loader(SourceFileLoader):
    """Compiles the edited text; what is cached on disk is neither read nor written."""

    edits: Sequence[Edit] = ()

    def get_code(self, fullname: str) -> CodeType:
        """The module's code, with the bug in it."""
        path = self.get_filename(fullname)
        text = Path(path).read_text(encoding="utf-8")
        return compile(edited(self.edits, str(Path(path).relative_to(ROOT)), text), path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are to be edited, and no others."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self._edits = edits
        self._files = {edit.file for edit in edits}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's place, with our loader."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None or not spec.origin.startswith(str(ROOT)):
            return None
        if str(Path(spec.origin).relative_to(ROOT)) not in self._files:
            return None
        loader = _Loader(fullname, spec.origin)
        loader.edits = self._edits
        packages = spec.submodule_search_locations
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=loader, submodule_search_locations=packages
        )


def plant(edits: Sequence[Edit]) -> None:
    """Let everything that is imported from now on have the bug."""
    for edit in edits:
        edited(edits, edit.file, (ROOT / edit.file).read_text(encoding="utf-8"))
        module = edit.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        assert module not in sys.modules, f"{module} is imported already"
    sys.meta_path.insert(0, _Finder(edits))


class FailedTestError(AssertionError):
    """What a test of pytest's raised: of any kind, it is a finding."""


class _Raised:
    """A plugin of pytest's that keeps what was raised first, by a test or around it."""

    error: BaseException | None = None

    def pytest_configure(self) -> None:
        """One example is enough: looking for the smallest may take longer than a child has."""
        # Imported before pytest it could not be rewritten by it, which is an error.
        hypothesis = importlib.import_module("hypothesis")
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("planted", deadline=None, phases=phases)
        hypothesis.settings.load_profile("planted")

    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        if self.error is None and call.excinfo is not None:
            error = call.excinfo.value
            found = FailedTestError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
            self.error = found if call.when == "call" else error


def run_item(name: str) -> None:
    """Let pytest run a file or one test of it, with its fixtures, and raise what it raised."""
    raised = _Raised()
    ended = pytest.main(["-q", "-x", "-p", "no:cacheprovider", str(ROOT / name)], [raised])
    if raised.error is not None:
        raise raised.error
    if ended != pytest.ExitCode.OK:
        raise NotPlanted(f"pytest ended with {ended!r}, and no test has failed")


def run_test(name: str, arguments: dict[str, Any]) -> None:
    """Call a test (`module:function` or `module:Class.method`) as pytest would, with `whole` or `tmp_path` if
    it wants them; `tests/file.py::test` is left to pytest.
    """
    if name.startswith("tests/"):
        run_item(name)
        return
    module, function = name.split(":")
    *classes, method = function.split(".")
    home = importlib.import_module(module)
    test = getattr(getattr(home, classes[0])() if classes else home, method)
    wanted = inspect.signature(test).parameters
    with tempfile.TemporaryDirectory() as folder:
        if "tmp_path" in wanted:
            arguments = {**arguments, "tmp_path": Path(folder)}
        if "whole" in wanted:
            arguments = {**arguments, "whole": importlib.import_module("tests.proof.damage").directory()}
        outcome = test(**arguments)
        if inspect.iscoroutine(outcome):
            asyncio.run(outcome)


def main(name: str) -> int:
    """Plant a bug, or none for the name of a test; run its test."""
    # Not imported above: that must not import the engine before the bug is planted, and does not.
    bugs = importlib.import_module("tests.proof.bugs")
    edits, finder, arguments = bugs.case(name)
    try:
        plant(edits)
    except NotPlanted as fault:
        sys.stderr.write(f"{fault}\n")
        return NOT_PLANTED
    try:
        run_test(finder, arguments)
    except BaseException as error:  # noqa: BLE001 - any outcome of the test
        traceback.print_exc()
        kinds = {kind.__name__ for kind in type(error).__mro__}
        sys.stderr.write(f"\n{type(error).__name__}: {' '.join(str(error).split())[:200]}\n")
        return FOUND if kinds & set(_FINDINGS) else NOT_PLANTED
    return NOTHING_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
