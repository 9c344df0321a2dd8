"""What the gateway adds to the command `weir`.

Knows: the commands by name, in the order in which help shows them. Must never know: what they do.
"""

from collections.abc import Callable
from typing import Final

import typer

from app import VERSION
from app.cli import backup, log, migrate, serve, token
from weir.cli.options import as_command

_SERVER: Final = "Server"
_DATA: Final = "Data on this machine"


def register(cli: typer.Typer) -> Callable[[], str]:
    """Add the gateway's commands: `serve` and what goes with it, and those on data. Returns its version."""
    cli.command("serve", rich_help_panel=_SERVER)(as_command(serve.serve))
    cli.command("config", rich_help_panel=_SERVER)(as_command(serve.show_config))
    cli.add_typer(token.commands, name="token", rich_help_panel=_SERVER)
    cli.command("import", rich_help_panel=_SERVER)(as_command(migrate.migrate))
    cli.command("backup", rich_help_panel=_DATA)(backup.backup)
    cli.command("restore", rich_help_panel=_DATA)(backup.restore)
    cli.add_typer(log.commands, name="log", rich_help_panel=_DATA)
    return _version


def _version() -> str:
    from engine import rows  # not needed by what a shell completes

    return f"weir-gateway {VERSION}, rows in {'C' if rows.way() == 'c' else 'Python'}"
