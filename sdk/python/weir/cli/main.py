"""The command `weir`: its own commands, those that other packages add, and how a command ends.

Knows: the client's commands by name, and where installed packages register theirs.
Must never know: what any of them does.

A package adds commands with an entry point of the group `weir.commands`: a function that takes the
`typer.Typer` below, and may return a function that gives the package's line of `weir --version`. It imports
what its commands need when they run, because `weir --help` and shell completion load every package.
"""

import sys
from collections.abc import Callable
from importlib import metadata
from typing import Annotated, Final

import typer

from weir.cli import (
    apply,
    doctor,
    groups,
    lag,
    mcp,
    output,
    prompt,
    publish,
    push,
    read,
    redrive,
    schedules,
    settle,
    streams,
    tail,
)
from weir.cli.failure import Failure
from weir.cli.options import as_command, join_lines
from weir.errors import WeirError, in_words_of_commands

PLUGINS: Final = "weir.commands"
_ENTRIES: Final = "Entries"
_OPERATIONS: Final = "Streams and groups"

# What installed packages say of their versions.
_versions: Final[list[Callable[[], str]]] = []

cli = typer.Typer(
    name="weir",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@cli.callback(invoke_without_command=True)
def root(version: Annotated[bool | None, typer.Option("--version", help="print the version")] = None) -> None:
    """Weir, a stream gateway: Redis Streams semantics over HTTP.

    Commands on entries, streams and groups talk to a gateway at --url or WEIR_URL. Exit codes: 0 fine,
    1 failed, 2 usage, 3 data refused, 4 data in use elsewhere, 5 a fault inside the server.
    """
    if version:
        print(f"weir {metadata.version('weir-client')}")
        for describe in _versions:
            print(describe())
        raise typer.Exit


cli.command("publish", rich_help_panel=_ENTRIES)(publish.publish)
cli.command("tail", rich_help_panel=_ENTRIES)(tail.tail)
cli.command("read", rich_help_panel=_ENTRIES)(read.read)
for command in streams.COMMANDS:
    cli.command(command.__name__, rich_help_panel=_OPERATIONS)(command)
cli.command("schedule", rich_help_panel=_OPERATIONS)(schedules.schedule)
cli.command("schedules", rich_help_panel=_OPERATIONS)(as_command(schedules.schedules))
cli.command("delete", rich_help_panel=_OPERATIONS)(as_command(settle.delete))
cli.command("apply", rich_help_panel=_OPERATIONS)(as_command(apply.apply))
cli.command("retention", rich_help_panel=_OPERATIONS)(as_command(streams.retention))
cli.add_typer(groups.commands, name="groups", rich_help_panel=_OPERATIONS)
cli.command("why", rich_help_panel=_OPERATIONS)(as_command(groups.why))
cli.command("pending", rich_help_panel=_OPERATIONS)(groups.pending)
cli.command("ack", rich_help_panel=_OPERATIONS)(as_command(settle.ack))
cli.command("nack", rich_help_panel=_OPERATIONS)(as_command(settle.nack))
cli.command("claim", rich_help_panel=_OPERATIONS)(as_command(groups.claim))
cli.command("lag", rich_help_panel=_OPERATIONS)(as_command(lag.lag))
cli.command("push", rich_help_panel=_OPERATIONS)(as_command(push.push))
cli.command("redrive", rich_help_panel=_OPERATIONS)(as_command(redrive.redrive))
cli.command("commands", rich_help_panel=_OPERATIONS)(as_command(prompt.commands))
cli.command("mcp", rich_help_panel=_OPERATIONS)(as_command(mcp.mcp))
cli.command("doctor", rich_help_panel=_OPERATIONS)(doctor.doctor)


def add_plugins() -> None:
    """Add the commands of installed packages. One that cannot be loaded is reported, and left out."""
    for plugin in sorted(metadata.entry_points(group=PLUGINS)):
        try:
            if (describe := plugin.load()(cli)) is not None:
                _versions.append(describe)
        except Exception as error:  # noqa: BLE001 - other packages' faults; the client's commands still work
            name = plugin.dist.name if plugin.dist else plugin.value
            output.say(f"the commands of {name} cannot be loaded: {_reason(plugin, name, error)}")


def _reason(plugin: metadata.EntryPoint, name: str, error: Exception) -> str:
    package = plugin.module.partition(".")[0]
    missing = error.name or "" if isinstance(error, ImportError) else ""
    found = sys.modules.get(package)
    if found is None or missing.partition(".")[0] != package:
        return f"{type(error).__name__}: {error}"
    # There is one of its name, but not what it has.
    place = found.__file__ or ", ".join(found.__path__)
    return (
        f"{place} is another package of the name {package}; give {name} an environment of its own, as "
        f"`pipx install {name}` and `uv tool install {name}` do"
    )


def main() -> None:
    """Run the command with all that is installed."""
    add_plugins()
    run()


def run() -> None:
    """Run the command, and end the process with its exit code."""
    join_lines(cli)
    try:
        cli()
    except WeirError as error:
        output.say(in_words_of_commands(error))
        sys.exit(error.exit_code if isinstance(error, Failure) else 1)
