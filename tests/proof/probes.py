"""Probes before the lines where bugs can be planted, so that a run of all tests says which of them run there.

Knows: Python's statements. Must never know: tests, what a bug is.
"""

import ast
from collections.abc import Iterator, Mapping
from typing import Final

_PROBE: Final = '{indent}__import__("tests.proof.ran", fromlist=["note"]).note("{number}")\n'
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def probed(text: str, pieces: Mapping[str, str]) -> str:
    """The module with a probe before the statement of each piece of its text, by the numbers of the pieces.

    A piece outside all functions, which runs once, has one in each function of the module instead.
    """
    tree, lines = ast.parse(text), text.split("\n")
    probes: dict[int, list[str]] = {}
    for number, piece in pieces.items():
        for statement in _places(tree, lines, _line_of(text, piece)):
            indent = " " * statement.col_offset
            probes.setdefault(_first_line(statement), []).append(_PROBE.format(indent=indent, number=number))
    return "".join(
        "".join(probes.get(number, ())) + line
        for number, line in enumerate(text.splitlines(keepends=True), 1)
    )


def _line_of(text: str, piece: str) -> int:
    """The number of the first line of a piece that says something."""
    at = text.index(piece)
    return text.count("\n", 0, at + len(piece) - len(piece.lstrip())) + 1


def _places(tree: ast.Module, lines: list[str], line: int) -> list[ast.stmt]:
    """The statement before which a probe stands, or the first one of each function."""
    found: ast.stmt | None = None
    for function in _functions(tree):
        for node in ast.walk(function):
            if isinstance(node, ast.stmt) and node is not function and _may_stand_before(node, lines):
                assert node.end_lineno is not None, "it was parsed from text"
                if _first_line(node) <= line <= node.end_lineno and not _is_docstring(function, node):
                    found = node if found is None or _first_line(node) >= _first_line(found) else found
    if found is not None:
        return [found]
    firsts = (
        next((one for one in function.body if not _is_docstring(function, one)), None)
        for function in _functions(tree)
    )
    return [one for one in firsts if one is not None and _may_stand_before(one, lines)]


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS))


def _first_line(statement: ast.stmt) -> int:
    """With its decorators."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(one.lineno for one in decorators)])


def _may_stand_before(statement: ast.stmt, lines: list[str]) -> bool:
    """Whether a statement may stand on the line before: not between `if` and `elif`, or behind a colon."""
    line = lines[_first_line(statement) - 1]
    return not line[: statement.col_offset].strip() and not line.lstrip().startswith("elif ")


def _is_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef, statement: ast.stmt) -> bool:
    return statement is function.body[0] and ast.get_docstring(function, clean=False) is not None
