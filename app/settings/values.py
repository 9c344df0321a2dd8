"""The kinds of values that settings have: how each is written, and what is refused.

Knows: addresses, rates, hosts, networks, origins, backends, and the unit that a name ends with.
Must never know: which setting has which kind.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

JWT_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "EdDSA", "HS256", "HS384", "HS512"),
)


def _split(value: object) -> object:
    """Split a list that the environment or a flag gives as comma-separated text."""
    return (
        tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value
    )


_UNIT: Final = re.compile(r"_(ms|s|bytes(?=_))(?:_max|_soft)?$")
_NUMBER: Final = re.compile(r"-?[0-9.]+(e[0-9]+)?")
_WITH_UNIT: Final = re.compile(r"([0-9]{1,15})(ms|[smhd]|[kmgt](?:i?b)?)", re.ASCII)
_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: Final = {f"{one}{end}": 1_024**n for n, one in enumerate("kmgt", 1) for end in ("", "b", "ib")}


def read_unit(name: str, value: object) -> object:
    """`5m` or `128MiB`, in the unit that the name of the setting ends with; a number is in it already.

    As `weir.durations` reads them, which the oldest client beside this gateway may not have.
    """
    unit = _UNIT.search(name)
    if unit is None or not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    is_size = unit[1] == "bytes"
    found, sizes = _WITH_UNIT.fullmatch(value.lower() if is_size else value), _BYTES if is_size else _MS
    if found is None or found[2] not in sizes:
        such = "size such as 64kb, 500mb or 2gb" if is_size else "duration such as 250ms, 30s, 5m, 2h or 7d"
        raise ValueError(f"{value!r} is no {such}")
    return int(found[1]) * sizes[found[2]] / (1_000 if unit[1] == "s" else 1)


_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]:@/?#*]+)(:[0-9]{1,5})?")
_ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#*]+")


def _hosts(words: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a host that no Host header can match."""
    lower = tuple(word.lower() for word in words)
    for word in lower:
        if not _HOST.fullmatch(word):
            raise ValueError(
                f"{word!r} is no host: use a name or an address, for example weir.example or [::1]:8080"
            )
    return lower


def _networks(words: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what is no network, and an address with bits beyond its network's."""
    for word in words:
        ip_network(word)
    return words


def _origins(words: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse an origin that no Origin header can match."""
    lower = tuple(word.lower() for word in words)
    for word in lower:
        if not _ORIGIN.fullmatch(word):
            raise ValueError(
                f"{word!r} is no origin: use scheme and host, for example https://app.example, or *"
            )
    return lower


def _algorithms(words: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse `none`, and what no key can sign with."""
    for word in words:
        if word not in JWT_ALGORITHMS:
            raise ValueError(f"{word!r} is no algorithm: use some of {', '.join(JWT_ALGORITHMS)}")
    return words


def _split_lines(value: object) -> object:
    """Split a list whose items hold commas."""
    return (
        tuple(word.strip() for word in value.split(";") if word.strip()) if isinstance(value, str) else value
    )


_SERVER: Final = r"(\[[0-9a-f:.]+\]|[^\s\[\]:@/?#,]+)(:[0-9]{1,5})?"
_USER: Final = r"(?:[^\s\[\]:@/?#,]+@)?"
_SERVERS: Final = rf"{_SERVER}(,{_SERVER})*"
_BACKEND: Final = re.compile(
    rf"embedded|redis\+unix://{_USER}/\S+|rediss?://{_USER}{_SERVER}(/[0-9]{{1,5}})?|"
    rf"rediss?\+cluster://{_USER}{_SERVERS}|rediss?\+sentinel://{_USER}{_SERVERS}/[^\s/?#@]+"
)
# Behind a number in a bracketed address there is a colon or the bracket.
_PORT: Final = re.compile(r":([0-9]+)(?=,|$)")
_PORT_MAX: Final = 65_535


def check_backend(url: str) -> str:
    """Refuse what names no backend."""
    if not _BACKEND.fullmatch(url):
        raise ValueError(
            "say embedded, or redis://HOST:PORT/DB, rediss://HOST:PORT/DB, redis+unix:///PATH, "
            "redis+cluster://HOST:PORT,HOST:PORT, redis+sentinel://HOST:PORT,HOST:PORT/NAME; USER@ may be "
            "before the first HOST, and the password is in a file, which backend_password_file names"
        )
    servers = url.partition("://")[2].partition("/")[0]
    if any(not 0 < int(port) <= _PORT_MAX for port in _PORT.findall(servers)):
        raise ValueError(f"a port of redis://HOST:PORT is a number from 1 to {_PORT_MAX}")
    return url


_HISTORY: Final = re.compile(rf"https?://{_SERVER}(/[^\s?#]*)?")


def check_history(url: str) -> str:
    """Refuse what names no service of history."""
    if url and not _HISTORY.fullmatch(url):
        raise ValueError("say http://HOST:PORT or https://HOST:PORT, where `weir history serve` listens")
    return url


def check_durability(text: str) -> str:
    """Refuse what is no promise."""
    if not text:
        return text
    from engine.cluster import parse_durability  # noqa: PLC0415 - nothing else needs it over Weir's own log

    return parse_durability(text).name


class HostPort(NamedTuple):
    """Where connections are taken."""

    host: str
    port: int


def _port_alone(value: object) -> object:
    """A port, which a file has as a number."""
    return str(value) if isinstance(value, int) else value


UNIX: Final = "unix:"
_ADDRESS: Final = re.compile(r"(?:(\[[0-9a-f:.]+\]|[^\s\[\]:@/?#,]+):)?([0-9]{1,5})")


@lru_cache
def parse_address(text: str) -> HostPort:
    """`HOST:PORT`, or a port on loopback. Raises ValueError."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[2]) <= _PORT_MAX:
        raise ValueError(f"{text!r} is no address: say HOST:PORT, for example 127.0.0.1:9090 or [::1]:9090")
    return HostPort((match[1] or "127.0.0.1").strip("[]"), int(match[2]))


def _address(text: str) -> str:
    """Refuse what cannot be listened to."""
    if text:
        parse_address(text)
    return text


def _addresses(words: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what cannot be listened to, and more than one address of a kind."""
    paths = [word for word in words if word.startswith(UNIX)]
    if len(paths) > 1 or len(words) - len(paths) > 1:
        raise ValueError("say one HOST:PORT, one unix:PATH, or both")
    if UNIX in paths:
        raise ValueError("say a path behind unix:")
    for word in {*words} - {*paths}:
        parse_address(word)
    return words


_RATE: Final = re.compile(r"([0-9]+)/s(?: burst ([0-9]+))?")
_RATE_MAX: Final = 1_000_000_000
_BYTE_RATE_MAX: Final = 1 << 50


def parse_rate(text: str) -> tuple[int, int]:
    """A rate per second, and what may be used at once: that of a second where nothing is said. Zeros for no
    text: no limit. Raises ValueError.
    """
    if not text:
        return 0, 0
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no rate: say for example 100/s, or 100/s burst 500")
    return int(match[1]), int(match[2] or match[1])


def _rate_below(most: int) -> Callable[[str], str]:
    """Refuse what is no rate, and numbers out of range."""

    def check(text: str) -> str:
        if text and not all(1 <= number <= most for number in parse_rate(text)):
            raise ValueError(f"the numbers of a rate are from 1 to {most}")
        return text

    return check


CountRate = Annotated[str, AfterValidator(_rate_below(_RATE_MAX))]
ByteRate = Annotated[str, AfterValidator(_rate_below(_BYTE_RATE_MAX))]
Address = Annotated[str, BeforeValidator(_port_alone), AfterValidator(_address)]
Addresses = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_addresses)]
Algorithms = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_algorithms)]
Globs = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Lines = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_lines)]
Hosts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_hosts)]
Networks = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_networks)]
Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_origins)]


def host_is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's loopback."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in ("localhost", "localhost.")
