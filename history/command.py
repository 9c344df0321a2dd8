"""`weir history`: the service that reads an archive for gateways.

Knows: its options, and what it refuses to begin with. Must never know: how it does it.
"""

import socket
from pathlib import Path
from typing import Annotated, Final

import typer

from weir.cli import output
from weir.cli.failure import Failure

commands: Final = typer.Typer(
    name="history", help="Read what the gateway has no more out of its archive.", no_args_is_help=True
)
_USAGE: Final = 2
_REFUSED: Final = 3


def register(cli: typer.Typer) -> None:
    """Add it to the command `weir`."""
    cli.add_typer(commands, name="history", rich_help_panel="Server")


@commands.callback()
def history() -> None:
    """Read what the gateway has no more out of its archive."""


@commands.command()
def serve(
    archive: Annotated[
        str, typer.Option(metavar="ROOT", help="the archive: a folder, or s3://bucket/folder")
    ],
    *,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on, 0 for any free one")] = 8090,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="file with the token that gateways have; needed beyond loopback"),
    ] = None,
    cache_mb: Annotated[int, typer.Option(min=1, help="memory for pages and what they need, in MiB")] = 256,
    storage: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="how a bucket is reached, as AWS_REGION=…")
    ] = None,
) -> None:
    """Serve pages of an archive to gateways whose setting `history_url` names it, until SIGTERM or Ctrl-C.

    It needs no Spark and changes nothing. Exit codes: 0 stopped, 1 failed, 2 usage, 3 no archive there.
    """
    from app.settings.values import host_is_loopback

    _read_token(token_file)
    if token_file is None and not host_is_loopback(host):
        raise Failure(f"{host} can be reached by others: give --token-file", exit_code=_USAGE)
    try:
        from history import serving
        from history.service import History
    except ImportError as missing:
        raise Failure(f"{missing}: install weir-gateway[history]") from None
    from app import logs
    from engine import SystemClock
    from pyspark_weir.errors import PipelineError
    from pyspark_weir.table.log import storage_failures
    from pyspark_weir.table.root import ArchiveRoot
    from pyspark_weir.table.table import ArchiveTable

    logs.configure("info", "auto")
    options = {name: value for name, _, value in (word.partition("=") for word in storage or ())}
    try:
        root = ArchiveRoot.of(archive, options)
        with storage_failures():
            ArchiveTable.open(root)
    except PipelineError as error:
        raise Failure(error.sentence, exit_code=_REFUSED) from None
    try:
        listening = socket.create_server((host, port), family=_family(host))
    except OSError as error:
        raise Failure(f"{host}:{port}: {error.strerror or error}") from None
    where = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
    served = History(root, SystemClock(), lambda: _read_token(token_file), cache_mb << 20)
    serving.run(served, listening, lambda: output.say(f"history of {root.url} at {where}"))


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _read_token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise Failure(f"{path}: {error.strerror or error}", exit_code=_USAGE) from None
    if not token:
        raise Failure(f"{path} is empty", exit_code=_USAGE)
    return token
