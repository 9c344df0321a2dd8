"""What commands print: an entry as one line, rows as a table, and nothing that a terminal would obey.

Knows: how values look to people and to programs; that stored text is hostile.
Must never know: HTTP, which command prints.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import typer

from weir.errors import describe_gap

# Wide enough for any row: what a pipe reads is never folded.
_PIPE_COLUMNS: Final = 10_000
_ABSENT: Final = "-"
# Of a table on a terminal: a longer name would fold all rows. A pipe, and --json, have it whole.
_CELL_CHARS_MAX: Final = 41


def plain(text: str) -> str:
    r"""Text that a terminal shows and does not obey: what is not printable becomes `\u001b` and the like."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x1_0000 else f"\\U{number:08x}"


def word(text: str) -> str:
    """A name or value within a line; quoted as in JSON where it would run into its neighbours."""
    if text and text.isprintable() and not any(one in ' "=' for one in text):
        return text
    return quoted(text)


def quoted(text: str) -> str:
    """A value in quotation marks, as in JSON."""
    return plain(json.dumps(text, ensure_ascii=False))


def entry_line(entry: Mapping[str, Any]) -> str:
    """`1526919030474-55 sensor=1234 note="two words"`; bytes as `base64:…`; a deleted entry says so."""
    words = [str(entry["id"])]
    if entry.get("fields") is None:
        words.append("(deleted)")
    else:
        is_base64 = entry.get("encoding") == "base64"
        pairs = entry.get("pairs") or entry["fields"].items()
        words += (f"{word(name)}={f'base64:{value}' if is_base64 else word(value)}" for name, value in pairs)
    if "delivery_count" in entry:
        words.append(f"(delivery {entry['delivery_count']})")
    return " ".join(words)


def gap_line(stream: str, gap: Mapping[str, Any]) -> str:
    """What a reader missed, for people."""
    sentence = describe_gap(stream, gap["requested"], gap.get("lost"), gap.get("reason"))
    first = gap["first_available"]
    return f"gap: {sentence}" if first == "0-0" else f"gap: {sentence}; the first left is {first}"


def say(line: str) -> None:
    """A line beside the output, on standard error."""
    print(f"weir: {plain(line)}", file=sys.stderr, flush=True)


def lines(texts: Iterable[str]) -> None:
    """Print at once; a reader that has seen enough, as `head` does, ends the command in peace."""
    try:
        for text in texts:
            sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer goes nowhere, so that the interpreter's last flush finds no pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def json_line(value: object) -> str:
    """One object on one line. ASCII, so that no character of it means anything to a terminal."""
    return json.dumps(value, separators=(",", ":"))


def entries(found: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print entries, one a line."""
    lines(map(json_line if as_json else entry_line, found))


def rows(found: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    """Print objects: the named members as a table, or all of them as JSON, one object a line."""
    if as_json:
        lines(map(json_line, found))
        return
    table([heading(name) for name in columns], [[cell(row.get(name)) for name in columns] for row in found])


def members(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one object: a line for each member, or JSON."""
    if as_json:
        lines([json_line(found)])
        return
    table(["", ""], [[heading(name), cell(value)] for name, value in found.items()], headed=False)


def heading(name: str) -> str:
    """A member's name for people."""
    return plain(name.replace("_", " "))


def cell(value: object) -> str:
    """A member's value for people."""
    if value is None:
        return _ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        if "id" in value and "fields" in value:
            return entry_line(value)
        return " ".join(f"{plain(str(name))}={cell(one)}" for name, one in value.items()) or _ABSENT
    if isinstance(value, list):
        return "; ".join(map(cell, value)) or _ABSENT
    return plain(str(value))


def table(headings: Sequence[str], body: Sequence[Sequence[str]], *, headed: bool = True) -> None:
    """Print a table; columns of numbers stand on the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, show_header=headed, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(headings):
        numbers = headed and bool(body) and all(_is_number(row[index]) for row in body)
        shown.add_column(Text(name), justify="right" if numbers else "left", overflow="fold")
    is_terminal = sys.stdout.isatty()
    for row in body:
        shown.add_row(*map(Text, map(shortened, row) if headed and is_terminal else row))
    console = Console(width=None if is_terminal else _PIPE_COLUMNS, highlight=False)
    with console.capture() as capture:
        console.print(shown)
    lines(line.rstrip() for line in capture.get().splitlines())


def shortened(text: str) -> str:
    """A long name as its beginning and its end, which is where names differ."""
    if len(text) <= _CELL_CHARS_MAX:
        return text
    half = (_CELL_CHARS_MAX - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def _is_number(shown: str) -> bool:
    return shown.replace(",", "").isdigit() or shown == _ABSENT


def counted(number: int, one: str, many: str) -> str:
    """`1 entry`, `12,000 entries`."""
    return f"{number:,} {one if number == 1 else many}"
