"""The tree is no larger than its ceilings in `pyproject.toml`, which may only fall.

docs/decisions/ceilings.md says what each of them counts.
"""

import asyncio
import tomllib
from collections.abc import Mapping
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, Final

import pytest

from tests.ceilings import counting
from tests.ceilings.calls import MANY, all_calls
from tests.ceilings.tracing import Traces, all_traces

ROOT: Final = Path(__file__).parent.parent
# A ceiling of lines follows a tree that has become smaller by this much.
LINES: Final = 250
# A request in whose course the second changes goes through a file more, and a call.
TRIES: Final = 2
TRACED: Final = {"publish": "publish", "command": "XADD as a command", "blocked-read": "blocked read"}


def _ceilings(kind: str) -> dict[str, int]:
    tables: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    ceilings: dict[str, int] = tables["ceilings"][kind]
    return ceilings


def _misfits(figures: Mapping[str, int], ceilings: Mapping[str, int], slack: int) -> dict[str, str]:
    """What is above its ceiling, or so far below that the ceiling has to follow."""
    assert figures.keys() == ceilings.keys()
    return {
        name: f"{figure} is above {ceilings[name]}" if figure > ceilings[name] else f"lower it to {figure}"
        for name, figure in figures.items()
        if not ceilings[name] - slack <= figure <= ceilings[name]
    }


@cache
def _traces() -> list[Traces]:
    return [asyncio.run(all_traces()) for _ in range(TRIES)]


@pytest.mark.early
def test_the_code_is_no_longer_than_its_ceilings() -> None:
    """What is added is made room for by what goes; a ceiling follows what becomes smaller."""
    assert _misfits(counting.lines(), _ceilings("lines"), LINES) == {}, "see docs/decisions/ceilings.md"


@pytest.mark.early
def test_few_modules_have_one_importer() -> None:
    """Each is a file that a reader opens for the sake of another."""
    figures = {"with-one-importer": counting.modules_with_one_importer()}
    assert _misfits(figures, _ceilings("modules"), 5) == {}


def test_a_request_goes_through_few_files() -> None:
    """And back and forth between them not too often: this is what a reader has to follow."""
    traces = [one.kinds for one in _traces()]
    figures = {name: min(len(one[kind].files) for one in traces) for name, kind in TRACED.items()}
    assert _misfits(figures, _ceilings("files"), 0) == {}
    moves = {name: min(one[kind].moves for one in traces) for name, kind in TRACED.items()}
    assert _misfits(moves, _ceilings("moves"), 10) == {}


def test_a_request_and_a_delivery_call_few_functions() -> None:
    """Of `app` and `engine`: each of 32 connections that ask at once or follow, and one alone."""
    figures = {}
    one, other = (asyncio.run(all_calls()) for _ in range(TRIES))
    for kind in one:
        figures[f"{kind}, of {MANY}"] = ceil(min(one[kind].many, other[kind].many))
        figures[f"{kind}, alone"] = ceil(min(one[kind].one, other[kind].one))
    assert _misfits({name: figure for name, figure in figures.items() if figure}, _ceilings("calls"), 5) == {}


def test_requests_go_few_ways() -> None:
    """Requests that ask for different things are carried to the engine by the same files of their door."""
    ways = _traces()[0].ways
    assert len(ways) == _ceilings("ways")["to-the-engine"], [*map(sorted, ways)]


def test_lines_of_code_are_no_blank_lines_comments_or_docstrings() -> None:
    """A string that is no docstring counts, and so does code behind which a comment stands."""
    text = (
        '"""Of two\n\nlines."""\n\n# none\nvalue = """\ntwo"""  # counts\n\n\ndef f() -> None:\n    """No."""'
    )
    assert counting.code_lines(text) == 3
    assert counting.lua_lines("-- none\n\nlocal a = 1 -- counts\n") == 1


@pytest.mark.parametrize(("figure", "fits"), [(11, False), (10, True), (8, True), (7, False)])
def test_a_figure_fits_up_to_its_ceiling_and_not_far_below(figure: int, fits: bool) -> None:  # noqa: FBT001
    """A ceiling that is far above what is there would let everything grow again."""
    assert (_misfits({"a": figure}, {"a": 10}, 2) == {}) is fits
