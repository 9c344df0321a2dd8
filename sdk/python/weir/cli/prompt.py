"""`weir commands`: Redis's commands, one from the command line or many at a prompt.

Knows: how a line becomes words, how a reply looks. Must never know: HTTP, what a command does.
"""

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli import options, output
from weir.errors import WeirError

if TYPE_CHECKING:
    from weir import Client

_PROMPT: Final = "weir> "
_ENDS: Final = ("exit", "quit")


@dataclass(frozen=True, kw_only=True)
class PromptOptions(options.GatewayOptions):
    """A command, or none for lines of standard input."""

    words: Annotated[
        list[str] | None,
        typer.Argument(help="a command, such as XLEN orders; without: lines of commands, until `quit`"),
    ] = None


def commands(given: PromptOptions) -> None:
    """Run Redis's commands, with the names and words that Redis has. Exit code 1: one of them failed."""
    lines = [given.words] if given.words else _lines()
    failed = False
    with given.connect() as client:
        for words in lines:
            failed = not (words and _run(client, words, as_json=given.as_json)) or failed
    # At a prompt its errors were seen.
    if failed and (given.words or not sys.stdin.isatty()):
        raise typer.Exit(1)


def _lines() -> Iterator[list[str]]:
    """The words of each line; none for one that is not whole."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        # What gives `input` a history.
        import readline  # noqa: F401
    while True:
        try:
            line = input(_PROMPT if is_terminal else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            print()
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            output.say(str(error))
            yield []
            continue
        if words and words[0].lower() in _ENDS:
            return
        if words:
            yield words


def _run(client: "Client", words: list[str], *, as_json: bool) -> bool:
    """Whether the command was run."""
    try:
        reply = client.command(*words)
    except WeirError as error:
        output.say(str(error))
        return False
    output.lines([output.json_line(reply)] if as_json else shown(reply))
    return True


def shown(reply: Any, indent: str = "") -> Iterator[str]:  # noqa: ANN401 - as Redis shapes it
    """A reply as redis-cli shows it: `(integer) 3`, `"text"`, `(nil)`, and lists with numbers before."""
    if isinstance(reply, dict):
        reply = [one for pair in reply.items() for one in pair]
    if reply is None:
        yield "(nil)"
    elif isinstance(reply, bool):
        yield f"({str(reply).lower()})"
    elif isinstance(reply, int):
        yield f"(integer) {reply}"
    elif isinstance(reply, float):
        yield f"(double) {reply}"
    elif isinstance(reply, str):
        yield output.quoted(reply)
    elif not reply:
        yield "(empty array)"
    else:
        width = len(str(len(reply)))
        inner = f"{indent}{' ' * (width + 2)}"
        for number, one in enumerate(reply, 1):
            begin = f"{number:>{width}}) "
            for index, line in enumerate(shown(one, inner)):
                before = indent if number > 1 and index == 0 else ""
                yield f"{before}{begin if index == 0 else ''}{line}"
