"""`weir mcp`: a server of the Model Context Protocol for the gateway.

Knows: the two transports, and who may reach them. Must never know: which tools there are.
"""

import ipaddress
from dataclasses import dataclass
from typing import Annotated

import typer

from weir.cli import options
from weir.cli.failure import Failure


def _address(text: str) -> tuple[str, int]:
    """Raises BadParameter."""
    host, _, port = text.rpartition(":")
    try:
        is_own = ipaddress.ip_address(host.strip("[]")).is_loopback
        number = int(port)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no address such as 127.0.0.1:8765") from None
    if not is_own or not 0 < number < 65_536:
        raise typer.BadParameter(
            "it listens on this machine alone, such as 127.0.0.1:8765, since it checks no token: put "
            "a proxy that does in front of it"
        )
    return host.strip("[]"), number


@dataclass(frozen=True, kw_only=True)
class McpOptions(options.ConnectionOptions):
    """How it is reached, and what it may do."""

    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="serve http://HOST:PORT/mcp, without sessions, instead of standard input and output",
        ),
    ] = None
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="also publish, give entries back, redrive dead letters")
    ] = False


def mcp(given: McpOptions) -> None:
    """Let a model list, read and follow streams: a server of the Model Context Protocol (extra `mcp`)."""
    try:
        import anyio

        from weir import AsyncClient
        from weir import mcp as tools
        from weir.cli.gateway import opened
    except ModuleNotFoundError as error:
        raise Failure(f"{error.name} is not installed: it is in the extra `mcp` of weir-client") from None

    async def run() -> None:
        async with opened(AsyncClient, given.url, given.token_file, given.ca, tools.RETRY_S) as client:
            server = tools.serve(client, allow_write=given.allow_write)
            if address is None:
                await server.run_stdio_async()
                return
            host, port = address
            await server.run_streamable_http_async(
                host=host, port=port, stateless_http=True, json_response=True
            )

    address = None if given.http is None else _address(given.http)
    anyio.run(run)
