"""The client of one command: where the gateway is, its token, and what is said when a call is repeated.

Knows: the options that all commands have. Must never know: what a command asks for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import typer

from weir._async_client import AsyncClient
from weir._client import Client
from weir._http import parse_url
from weir._retrying import Outage
from weir.cli import output
from weir.cli.failure import Failure
from weir.errors import AuthenticationError, InvalidNameError

AnyClient = TypeVar("AnyClient", Client, AsyncClient)
_TOKEN_BYTES_MAX: Final = 8 << 10


def opened(
    kind: type[AnyClient],
    url: str,
    token_file: Path | None,
    ca: Path | None,
    retry_s: float,
    say: Callable[[str], None] = output.say,
) -> AnyClient:
    """A client that repeats a call for `retry_s`, 0 for never, and says so once for each outage.

    Raises BadParameter for what is no URL and no token.
    """
    token = None if token_file is None else read_token(token_file)
    try:
        client = kind(str(parse_url(url)), token=token, retry_s=retry_s, verify=ca)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    except OSError as error:
        raise typer.BadParameter(f"{ca}: {error.strerror or error}", param_hint="--ca") from None
    client.outage = Outage(client.url, say)
    return client


@contextmanager
def connect(
    url: str,
    token_file: Path | None,
    ca: Path | None = None,
    *,
    patience_ms: int = 0,
    say: Callable[[str], None] = output.say,
) -> Iterator[Client]:
    """The same, while a command runs, for `patience_ms`.

    Raises BadParameter also for what is no name of a stream, group or consumer.
    """
    with opened(Client, url, token_file, ca, patience_ms / 1000, say) as client:
        try:
            yield client
        except InvalidNameError as error:
            raise typer.BadParameter(str(error)) from None
        except AuthenticationError as error:
            if token_file is None:
                sentence = "the gateway asks for a token: name the file that holds it with --token-file"
                raise Failure(sentence, code=error.code) from None
            raise


def read_token(path: Path) -> str:
    """The token that a file holds. Raises BadParameter."""
    try:
        with path.open("rb") as file:
            token = file.read(_TOKEN_BYTES_MAX + 1).strip()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--token-file") from None
    if not token or len(token) > _TOKEN_BYTES_MAX or not all(0x21 <= byte <= 0x7E for byte in token):
        raise typer.BadParameter(f"{path} does not hold one token", param_hint="--token-file")
    return token.decode("ascii")
