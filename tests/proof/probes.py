"""Probes before all statements of functions, so that a run of all tests says which of them run which lines.

Knows: Python's statements. Must never know: tests, what a bug is.

A probe sets a byte and calls nothing: what counts calls sees none more.
"""

import ast
from collections.abc import Iterator
from typing import Final

# In the environment: the bytes of all probes, shared by a process of pytest and what it starts.
FILE: Final = "WEIR_PROBES"
# More than there are statements in functions; the file is sparse.
PROBES_MAX: Final = 1 << 17

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_BYTES: Final = '_all_that_ran = __import__("tests.proof.ran", fromlist=["seen"]).seen\n'


class Probes:
    """The statements of a module that have probes, which are numbered from `number` on."""

    def __init__(self, text: str, number: int) -> None:
        self._text, self._lines = text, text.splitlines(keepends=True)
        self._tree = ast.parse(text)
        functions = [node for node in ast.walk(self._tree) if isinstance(node, _FUNCTIONS)]
        # Those of each function, of functions within it too.
        self._found = [[*self._statements(function)] for function in functions]
        self._indents = {_first_line(one): one.col_offset for found in self._found for one in found}
        self._numbers = {line: number + at for at, line in enumerate(sorted(self._indents))}
        self.end = number + len(self._numbers)

    def write(self) -> str:
        """Return the module with its probes."""
        begin = next((one.lineno for one in self._tree.body if not _stands_first(one)), None)
        pieces = list[str]()
        for at, line in enumerate(self._lines, 1):
            if at == begin:
                pieces.append(_BYTES)
            if at in self._numbers:
                pieces.append(f"{' ' * self._indents[at]}_all_that_ran[{self._numbers[at]}] = 1\n")
            pieces.append(line)
        return "".join(pieces)

    def of(self, piece: str) -> set[int]:
        """Return the numbers of the probes one of which runs if a piece of the text does.

        That is the one before its statement; for a piece outside all functions, which runs once, the first
        of each function of the module.
        """
        line = self._line_of(piece)
        around = [
            _first_line(one)
            for found in self._found
            for one in found
            if _first_line(one) <= line <= _end(one)
        ]
        if around:
            return {self._numbers[max(around)]}
        return {self._numbers[min(map(_first_line, found))] for found in self._found if found}

    def _line_of(self, piece: str) -> int:
        """The number of the first line of a piece that says something."""
        at = self._text.index(piece)
        return self._text.count("\n", 0, at + len(piece) - len(piece.lstrip())) + 1

    def _statements(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.stmt]:
        """Those of a function before which a probe may stand."""
        for node in ast.walk(function):
            if isinstance(node, ast.stmt) and node is not function and not _is_docstring(function, node):
                # Not between `if` and `elif`, or behind a colon.
                line = self._lines[_first_line(node) - 1]
                if not line[: node.col_offset].strip() and not line.lstrip().startswith("elif "):
                    yield node


def _first_line(statement: ast.stmt) -> int:
    """With its decorators."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(one.lineno for one in decorators)])


def _end(statement: ast.stmt) -> int:
    assert statement.end_lineno is not None, "it was parsed from text"
    return statement.end_lineno


def _stands_first(statement: ast.stmt) -> bool:
    """Whether a statement of a module stands before all others: its docstring, and imports of the future."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef, statement: ast.stmt) -> bool:
    return statement is function.body[0] and ast.get_docstring(function, clean=False) is not None
