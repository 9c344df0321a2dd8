"""What `weir push` is to do: the file's form, and what of it is refused.

Knows: options, their bounds and defaults. Must never know: gateways, requests.

    [[push]]
    stream = "orders"
    group = "crm"
    url = "https://example.com/hooks"
    secrets = ["file:crm.secret"]           # whsec_…; two while one replaces the other; beside this file
    order = "none"                          # or key:<field>: those of one value in order; strict: all
    format = "entry"                        # raw, cloudevents, cloudevents-binary, cloudevents-batch
    in_flight = 8
    timeout = "15s"
    backoff = {first = "1s", factor = 2, max = "1h", jitter = 0.2}
    pause_after = "1d"
    allow_http = ["10.0.0.7"]               # hosts that need no TLS
    allowed_networks = ["10.0.0.0/8"]       # networks beside those of the whole internet
"""

import base64
import binascii
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, get_args

import httpx

from weir._holdings import DELAY_S_MAX
from weir.durations import parse_ms
from weir.errors import InvalidValueError
from weir.push.addresses import Network
from weir.push.messages import Format
from weir.worker import Backoff

PUSHES_MAX: Final = 1_000
SECRETS_MAX: Final = 2
IN_FLIGHT_MAX: Final = 1_000
BATCH_MAX: Final = 1_000
SECRET_BYTES_MIN: Final = 16
_ENCODED: Final = "whsec_"
_FILE: Final = "file:"
_KEY: Final = "key:"


class ConfigError(ValueError):
    """The configuration cannot be used: where it is wrong, and what to write."""


@dataclass(frozen=True, kw_only=True)
class Push:
    """One push: which group's entries go to which endpoint, and how. Times in seconds."""

    stream: str
    group: str
    url: httpx.URL
    secrets: Sequence[bytes]
    format: Format = "entry"
    order: str = "none"
    in_flight: int = 8
    batch: int = 100
    timeout: float = 15.0
    backoff: Backoff = field(default_factory=Backoff)
    jitter: float = 0.2
    pause_after: float = 86_400.0
    start: str = "0"
    allow_http: Sequence[str] = ()
    allowed_networks: Sequence[Network] = ()
    cloudevents_source: str = ""

    def __post_init__(self) -> None:
        host = self.url.host
        if self.url.scheme not in ("http", "https") or not host:
            raise ConfigError("url: it begins with https://")
        if self.url.scheme == "http" and host not in self.allow_http:
            raise ConfigError(f"url: it begins with https://, unless allow_http names {host}")
        if self.url.userinfo or self.url.fragment:
            raise ConfigError("url: it has no user, password or fragment: the signature is the credential")
        if self.order != "none" and not self.ordered_by:
            raise ConfigError(
                "order: it is none, key:<field> (entries with one value of it), or strict (all)"
            )

    @property
    def ordered_by(self) -> str | None:
        """The field whose values order the entries, `*` for all; the group has to be made with it, or is."""
        field = self.order.removeprefix(_KEY) if self.order.startswith(_KEY) else None
        return "*" if self.order == "strict" else field

    @property
    def batch_max(self) -> int:
        """Most entries of one webhook."""
        return self.batch if self.format == "cloudevents-batch" else 1

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.stream}/{self.group} → {self.url.host}"


def read(path: Path) -> tuple[str | None, Sequence[Push]]:
    """The gateway's URL, if the file names it, and all pushes. Raises ConfigError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    tables, gateway = document.pop("push", None), document.pop("gateway", None)
    if document:
        raise ConfigError(f"{path}: {min(document)}: there is no such key; there is gateway and [[push]]")
    if not isinstance(tables, list) or not 0 < len(tables) <= PUSHES_MAX:
        raise ConfigError(f"{path}: it has 1 to {PUSHES_MAX} tables [[push]]")
    if not isinstance(gateway, str | None):
        raise ConfigError(f"{path}: gateway: it is a URL")
    found = []
    for index, table in enumerate(tables):
        try:
            found.append(of_table(table, path.parent))
        except ConfigError as error:
            raise ConfigError(f"{path}: push {index + 1}: {error}") from None
    return gateway, found


def of_table(table: Mapping[str, Any], folder: Path) -> Push:
    """One push, with the secrets that its files have. Raises ConfigError."""
    unknown = table.keys() - _READERS.keys()
    if unknown:
        raise ConfigError(f"{min(unknown)}: there is no such key; there is {', '.join(_READERS)}")
    missing = [name for name in ("stream", "group", "url", "secrets") if name not in table]
    if missing:
        raise ConfigError(f"{missing[0]}: it is needed")
    given: dict[str, Any] = {}
    for name, value in table.items():
        try:
            given[name] = _READERS[name](value)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            known = isinstance(error, ValueError | TypeError)
            reason = error if known else "it has another form, see docs/webhooks-out.md"
            raise ConfigError(f"{name}: {reason}") from None
    given["secrets"] = [_secret(folder, one) for one in given["secrets"]]
    if "backoff" in given:
        given["backoff"], given["jitter"] = given["backoff"]
    return Push(**given)


def _secret(folder: Path, where: str) -> bytes:
    file = folder / where.removeprefix(_FILE)
    try:
        text = file.read_text(encoding="ascii").strip()
        secret = base64.b64decode(text.removeprefix(_ENCODED), validate=True)
    except OSError as error:
        raise ConfigError(f"secrets: {file}: {error.strerror or error}") from None
    except (UnicodeDecodeError, binascii.Error):
        raise ConfigError(f"secrets: {file} has no {_ENCODED}<base64>") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(f"secrets: {file} has fewer than {SECRET_BYTES_MIN} bytes, which can be guessed")
    return secret


# ---- values


def _text(value: Any) -> str:  # noqa: ANN401 - any value of TOML
    if not isinstance(value, str) or not value:
        raise ValueError("it is a text")
    return value


def _url(value: Any) -> httpx.URL:  # noqa: ANN401 - as above
    try:
        return httpx.URL(_text(value))
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from None


def _texts(value: Any) -> list[str]:  # noqa: ANN401 - as above
    if not isinstance(value, list):
        raise TypeError("it is a list of texts")
    return [_text(one) for one in value]


def _secrets(value: Any) -> list[str]:  # noqa: ANN401 - as above
    found = _texts(value)
    if not 0 < len(found) <= SECRETS_MAX or not all(one.startswith(_FILE) for one in found):
        raise ValueError(f'it is one or two of "{_FILE}PATH"')
    return found


def _seconds(value: Any) -> float:  # noqa: ANN401 - as above
    seconds = parse_ms(_text(value)) / 1000
    if not 0 < seconds <= DELAY_S_MAX:
        raise ValueError("it is a duration from 1ms to 7d")
    return seconds


def _between(least: float, most: float, *, whole: bool = False) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:  # noqa: ANN401 - as above
        is_number = isinstance(value, int) or (isinstance(value, float) and not whole)
        if isinstance(value, bool) or not is_number or not least <= value <= most:
            raise ValueError(f"it is a {'whole ' if whole else ''}number from {least} to {most}")
        return value

    return check


def _backoff(value: Mapping[str, Any]) -> tuple[Backoff, float]:
    unknown = value.keys() - {"first", "factor", "max", "jitter"}
    if unknown:
        raise ValueError(f"{min(unknown)}: there is no such key; there is first, factor, max and jitter")
    usual = Backoff()
    times = {name: _seconds(value[name]) for name in ("first", "max") if name in value}
    factor = _between(1, 100)(value.get("factor", usual.factor))
    try:
        made = Backoff(**{"first": usual.first, "max": usual.max, **times}, factor=factor)
    except InvalidValueError as error:
        raise ValueError(str(error)) from None
    return made, _between(0, 1)(value.get("jitter", 0.2))


def _format(value: Any) -> str:  # noqa: ANN401 - as above
    if value not in get_args(Format):
        raise ValueError(f"it is one of {', '.join(get_args(Format))}")
    return _text(value)


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "stream": _text,
    "group": _text,
    "url": _url,
    "secrets": _secrets,
    "format": _format,
    "order": _text,
    "in_flight": _between(1, IN_FLIGHT_MAX, whole=True),
    "batch": _between(1, BATCH_MAX, whole=True),
    "timeout": _seconds,
    "backoff": _backoff,
    "pause_after": _seconds,
    "start": _text,
    "allow_http": _texts,
    "allowed_networks": lambda value: [ip_network(one) for one in _texts(value)],
    "cloudevents_source": _text,
}
assert _READERS.keys() == {one.name for one in fields(Push)} - {"jitter"}, "each option has a reader"
