"""How to reach a gateway: what is sent to workers, and what each of them looks up for itself.

Knows: names, URLs, where a token lies, deadlines.
Must never know: a token, beyond the moment it is handed over.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from pyspark_weir.errors import OptionError

request_timeout_ms_default: Final = 30_000
retry_timeout_ms_default: Final = 60_000
_token_bytes_max: Final = 8 << 10


@dataclass(frozen=True)
class Access:
    """The picklable part of a connection: no secret stands in it.

    `name` is the stable name under which offsets remember this gateway: it may move to another URL.
    The token is what `token_file` holds or what the environment variable `token_env` is set to, on the
    machine that connects. One request may take `request_timeout_ms`; it is tried again for
    `retry_timeout_ms`, 0 never.
    """

    name: str
    url: str
    token_file: str | None = None
    token_env: str | None = None
    request_timeout_ms: int = request_timeout_ms_default
    retry_timeout_ms: int = retry_timeout_ms_default

    def __post_init__(self) -> None:
        checked_url(self.url)
        if self.token_file is not None and self.token_env is not None:
            raise OptionError("tokenFile and tokenEnv are both given: leave one of them out")

    def token(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """The token, looked up now; None for an open gateway. Raises OptionError."""
        if self.token_file is not None:
            try:
                with Path(self.token_file).open("rb") as file:
                    found = file.read(_token_bytes_max + 1).strip()
            except OSError as error:
                raise OptionError(
                    f"tokenFile {self.token_file}: {error.strerror}; workers need the file too"
                ) from None
            return _checked_token(found, f"tokenFile {self.token_file}")
        if self.token_env is not None:
            value = environment.get(self.token_env)
            if value is None:
                raise OptionError(
                    f"tokenEnv {self.token_env}: this environment variable is not set; workers need it too"
                )
            return _checked_token(value.encode("utf-8", "surrogateescape"), f"tokenEnv {self.token_env}")
        return None


def checked_url(url: str) -> httpx.URL:
    """A gateway's URL. Raises OptionError for what is none, and for one that holds a password."""
    try:
        parsed = httpx.URL(url)
        host = parsed.host
        out_of_range = parsed.port is not None and not 0 < parsed.port < 1 << 16
    # A host's name may be none in ways of its own.
    except (httpx.InvalidURL, ValueError):
        raise _no_gateway("it is no URL, or has a port or a host's name that cannot be") from None
    wrong = {
        "it holds a user or a password; use tokenFile or tokenEnv instead": parsed.userinfo,
        "it does not begin with http:// or https://": parsed.scheme not in ("http", "https"),
        "it names no host": not host or "%" in host,
        "a port is a number up to 65535": out_of_range,
        "it has something after a ?; a token belongs into tokenFile or tokenEnv": parsed.query,
        "it has something after a #": parsed.fragment,
    }
    for why, holds in wrong.items():
        if holds:
            raise _no_gateway(why)
    return parsed


def _no_gateway(why: str) -> OptionError:
    """The URL is not shown, nor a part of it: options travel in logs, and anything may be a password."""
    return OptionError(f"gateway.urls: a URL is not like http://127.0.0.1:8080: {why}")


def _checked_token(token: bytes, where: str) -> str:
    if not token or len(token) > _token_bytes_max or not all(0x21 <= byte <= 0x7E for byte in token):
        raise OptionError(f"{where} does not hold one token: a line of printable ASCII without blanks")
    return token.decode("ascii")
