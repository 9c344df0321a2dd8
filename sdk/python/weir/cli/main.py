"""`weir`: which commands there are, in which order they are shown, and how they end.

Knows: the commands by name. Must never know: what they do.

What a command needs is imported when it runs, so that `weir --help` and shell completion wait for nothing.
"""

import sys
from typing import Annotated, Final

import typer

from app.cli import backup, log, migrate, serve
from pyspark_weir.cli.main import jobs
from weir.cli import groups, publish, read, redrive, streams, tail
from weir.cli.failure import Failure
from weir.cli.output import plain

_SERVER: Final = "Server"
_DATA: Final = "Data on this machine"
_ENTRIES: Final = "Entries"
_OPERATIONS: Final = "Streams and groups"
_SPARK: Final = "On Spark"

cli = typer.Typer(
    name="weir",
    help="A stream gateway: Redis Streams semantics over HTTP, from one small service.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@cli.callback(invoke_without_command=True)
def root(version: Annotated[bool | None, typer.Option("--version", help="print the version")] = None) -> None:
    """A stream gateway: Redis Streams semantics over HTTP, from one small service.

    `serve` and `config` are about a server, `backup`, `restore` and `log` about its data; all others talk to
    one, at --url or WEIR_URL. Exit codes: 0 fine, 1 failed, 2 usage, 3 data refused, 4 data in use elsewhere,
    5 a fault inside the server.
    """
    if version:
        from app.version import VERSION

        print(f"weir {VERSION}")
        raise typer.Exit


cli.command("serve", rich_help_panel=_SERVER)(serve.serve)
cli.command("config", rich_help_panel=_SERVER)(serve.show_config)
cli.command("backup", rich_help_panel=_DATA)(backup.backup)
cli.command("restore", rich_help_panel=_DATA)(backup.restore)
cli.add_typer(log.commands, name="log", rich_help_panel=_DATA)
cli.command("publish", rich_help_panel=_ENTRIES)(publish.publish)
cli.command("tail", rich_help_panel=_ENTRIES)(tail.tail)
cli.command("read", rich_help_panel=_ENTRIES)(read.read)
cli.command("import", rich_help_panel=_OPERATIONS)(migrate.migrate)
cli.command("streams", rich_help_panel=_OPERATIONS)(streams.streams)
cli.command("info", rich_help_panel=_OPERATIONS)(streams.info)
cli.command("trim", rich_help_panel=_OPERATIONS)(streams.trim)
cli.command("groups", rich_help_panel=_OPERATIONS)(groups.groups)
cli.command("pending", rich_help_panel=_OPERATIONS)(groups.pending)
cli.command("claim", rich_help_panel=_OPERATIONS)(groups.claim)
cli.command("redrive", rich_help_panel=_OPERATIONS)(redrive.redrive)
cli.add_typer(jobs, rich_help_panel=_SPARK)


def main() -> None:
    """The console script."""
    try:
        cli()
    except Failure as failure:
        print(f"weir: {plain(str(failure))}", file=sys.stderr)
        sys.exit(failure.exit_code)


if __name__ == "__main__":
    main()
