"""The settings: one frozen object from flags, environment, file and defaults, in this order.

Knows: each setting's unit, range and purpose. The only module that reads the environment.
Must never know: the internals of the engine, routes.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from engine.commands import TURN_COMMANDS_MAX, TURN_LOOKUPS_MAX

PREFIX: Final = "WEIR_"
CONFIG_VARIABLE: Final = "WEIR_CONFIG"

# uvloop would give it a minute.
_HANDSHAKE_S_MAX: Final = 10
# Similarity, from 0 to 1, from which an unknown name is taken for a misspelt one.
_NEARNESS_MIN: Final = 0.6
# Settings of the last release that are refused in this one, and what does their work now.
_REPLACED: Final[Mapping[str, str]] = {
    "pipeline_bytes_max": "it is output_bytes_max now",
    **dict.fromkeys(("admin_host", "admin_port"), "say both in admin_listen, for example 127.0.0.1:9090"),
    **dict.fromkeys(("resp_host", "resp_port"), "say both in resp_listen, for example 127.0.0.1:6380"),
    **{
        f"rate_{what}_{part}": f"say both in rate_{what}, for example 100/s burst 500"
        for what in ("requests", "bytes", "failures")
        for part in ("per_s", "burst")
    },
    "jwt_jwks_url": "jwt_keys takes the URL, for example https://id.example/jwks.json",
    **dict.fromkeys(
        (
            *("backend_poll_s", "columns_count_max", "count_default", "entry_fields_max", "head_bytes_max"),
            *("heartbeat_ms", "json_depth_max", "request_streams_max", "rewrite_bytes_min"),
        ),
        "it has one value now, see docs/limits.md",
    ),
    "resp_socket": "say it in resp_listen, for example unix:/run/weir/redis.sock",
}
# Variables that other commands read: the file of settings, the gateway's URL and CA, the path of Java.
_OTHER_VARIABLES: Final = ("CONFIG", "URL", "CA", "JAVA")
# Kubernetes sets these in every container if a service is called `weir`.
_SERVICE_VARIABLE: Final = re.compile(r"SERVICE_.*|PORT_\d+_.*")
# Some of them have names of settings, but hold a URL such as tcp://10.0.0.1:8080.
_SERVICE_PORTS: Final = tuple(f"{PREFIX}{name}" for name in ("PORT", "ADMIN_PORT", "RESP_PORT"))
_SERVICE_SCHEMES: Final = ("tcp://", "udp://", "sctp://")

JWT_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "EdDSA", "HS256", "HS384", "HS512"),
)

Fsync = Literal["always", "everysec", "no"]


class SettingsError(Exception):
    """The settings are invalid. The text has one line for each error: the setting and the reason."""


def _split(value: object) -> object:
    """Split a list that the environment or a flag gives as comma-separated text."""
    return (
        tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value
    )


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
_SERVERS: Final = rf"{_SERVER}(,{_SERVER})*"
_BACKEND: Final = re.compile(
    rf"embedded|redis\+unix:///\S+|rediss?://{_SERVER}(/[0-9]{{1,5}})?|"
    rf"rediss?\+cluster://{_SERVERS}|rediss?\+sentinel://{_SERVERS}/[^\s/?#@]+"
)
# Behind a number in a bracketed address there is a colon or the bracket.
_PORT: Final = re.compile(r":([0-9]+)(?=,|$)")
_PORT_MAX: Final = 65_535


def _backend(url: str) -> str:
    """Refuse what names no backend."""
    if not _BACKEND.fullmatch(url):
        raise ValueError(
            "say embedded, or redis://HOST:PORT/DB, rediss://HOST:PORT/DB, redis+unix:///PATH, "
            "redis+cluster://HOST:PORT,HOST:PORT, redis+sentinel://HOST:PORT,HOST:PORT/NAME; user and "
            "password have settings of their own"
        )
    servers = url.partition("://")[2].partition("/")[0]
    if any(not 0 < int(port) <= _PORT_MAX for port in _PORT.findall(servers)):
        raise ValueError(f"a port of redis://HOST:PORT is a number from 1 to {_PORT_MAX}")
    return url


def _durability(text: str) -> str:
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


_UNIX: Final = "unix:"
_ADDRESS: Final = re.compile(r"(?:(\[[0-9a-f:.]+\]|[^\s\[\]:@/?#,]+):)?([0-9]{1,5})")


@lru_cache
def parse_address(text: str) -> HostPort:
    """`HOST:PORT`, or a port on loopback. Raises ValueError."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found[2]) <= _PORT_MAX:
        raise ValueError(f"{text!r} is no address: say HOST:PORT, for example 127.0.0.1:9090 or [::1]:9090")
    return HostPort((found[1] or "127.0.0.1").strip("[]"), int(found[2]))


def _address(text: str) -> str:
    """Refuse what cannot be listened to."""
    if text:
        parse_address(text)
    return text


def _addresses(words: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what cannot be listened to, and more than one address of a kind."""
    paths = [word for word in words if word.startswith(_UNIX)]
    if len(paths) > 1 or len(words) - len(paths) > 1:
        raise ValueError("say one HOST:PORT, one unix:PATH, or both")
    if _UNIX in paths:
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
    found = _RATE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no rate: say for example 100/s, or 100/s burst 500")
    return int(found[1]), int(found[2] or found[1])


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


class Bounds:
    """Limits that no installation had a reason to change. They are read as settings are; a subclass of
    `Settings` may have others, and tests do.
    """

    # About how often a waiting read looks again, whether the backend notified it or not.
    backend_poll_s: ClassVar[int] = 5
    # The request line and headers.
    head_bytes_max: ClassVar[int] = 32 << 10
    # Fields of an entry.
    entry_fields_max: ClassVar[int] = 1_024
    # Streams that one request reads or publishes to.
    request_streams_max: ClassVar[int] = 1_000
    # Levels of nested JSON.
    json_depth_max: ClassVar[int] = 32
    # Entries of a response if the request sets no count.
    count_default: ClassVar[int] = 100
    # Entries of a page of columns, in the place of `count_max`.
    columns_count_max: ClassVar[int] = 100_000
    # A smaller log is not rewritten.
    rewrite_bytes_min: ClassVar[int] = 64 << 20
    # Between WebSocket heartbeats.
    heartbeat_ms: ClassVar[int] = 15_000


class Settings(BaseSettings, Bounds):
    """All settings. Each can be set as `WEIR_<NAME>` in the environment or as a key of the TOML file; the
    common ones have a flag too.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", validate_default=True)

    host: str = Field("127.0.0.1", description="address to listen on; any but loopback needs `insecure`")
    port: int = Field(8080, ge=0, le=65_535, description="port to listen on; 0 takes any free one")
    admin_listen: Address = Field(
        "",
        description="address of its own for /metrics and /v1/admin, HOST:PORT, which `port` does not serve "
        "then; empty: none",
    )
    fronts: int = Field(
        0,
        ge=0,
        le=64,
        description="processes that speak HTTP, in front of one that has the engine; 0: one process for all",
    )
    data: Path = Field(Path("weir-data"), description="directory of the log; created if it is missing")
    backup_dir: str = Field(
        "", description="directory for backups made by POST /v1/admin/backup; empty disables them"
    )
    fsync: Fsync = Field("everysec", description="when the log is synced to disk")
    backend: Annotated[str, AfterValidator(_backend)] = Field(
        "embedded",
        description="where the streams are: in this process (embedded), or in Redis or Valkey: one server, "
        "as redis://HOST:PORT/0 or redis+unix:///PATH, a cluster, as "
        "redis+cluster://HOST:PORT,HOST:PORT, or the primary that Sentinel names, as "
        "redis+sentinel://HOST:PORT,HOST:PORT/NAME; rediss in the place of redis for TLS",
    )
    backend_user: str = Field("", description="user at the backend; empty: the default one")
    backend_password_file: str = Field("", description="file with the password at the backend")
    backend_ca: str = Field(
        "", description="PEM file with the authorities of a rediss backend; empty: the system's"
    )
    backend_durability: Annotated[str, AfterValidator(_durability)] = Field(
        "",
        description="what an answer to a write promises: the backend's server has it (memory), N replicas "
        "too (replicated:N), or it is on the disks of N servers (fsync:N); empty: replicated:1 over a "
        "cluster or Sentinel, else memory",
    )
    backend_timeout_ms: int = Field(
        5_000, ge=50, le=60_000, description="time in which the backend must answer, in milliseconds"
    )
    insecure: bool = Field(default=False, description="listen on more than loopback without authentication")
    strict_files: bool = Field(
        default=False,
        description="refuse to start where other users may read a secret, or change a file that decides who "
        "gets in; they are warned of otherwise",
    )
    allowed_hosts: Hosts = Field(
        (),
        description="allowed Host headers besides loopback; required by `insecure` on other addresses",
    )
    allowed_origins: Origins = Field(
        (), description="origins whose web pages may call the API, or *; the gateway's own pages always may"
    )

    trusted_proxies: Networks = Field(
        (),
        description="addresses or networks of proxies whose X-Forwarded-For names the client, for example "
        "10.0.0.0/8",
    )
    tls_certificate: str = Field(
        "", description="PEM file with the certificate and its chain; empty: plain http"
    )
    tls_key: str = Field("", description="PEM file with the private key; empty: it is in `tls_certificate`")
    tls_client_ca: str = Field(
        "", description="PEM file with the authorities of client certificates; empty: none are asked for"
    )
    resp_listen: Addresses = Field(
        (),
        description="address for Redis clients, HOST:PORT, of which any but loopback needs tokens; "
        "unix:PATH, a Unix socket for clients of the same user; or both",
    )
    resp_connections_max: int = Field(
        10_000, ge=1, le=1_000_000, description="maximum connections of Redis clients"
    )

    root_token: SecretStr = Field(
        SecretStr(""),
        description="a token that may do everything; callers without a token are refused then",
    )
    root_token_file: str = Field("", description="file with the root token, instead of `root_token`")
    audit_file: str = Field(
        "", description="file for a JSON line of each action on tokens, streams, groups and the gateway"
    )
    tokens_file: str = Field("", description="TOML file of tokens by their hashes, see `weir token`")
    jwt_algorithms: Algorithms = Field(
        (), description="algorithms that may sign JWTs, for example RS256,ES256; empty: JWTs are refused"
    )
    jwt_keys: str = Field("", description="JWK set to verify JWTs with: a file, or its https URL")
    jwt_issuer: str = Field("", description="the only accepted issuer (iss); empty: any")
    jwt_audience: str = Field("", description="the audience (aud) that a JWT must name; empty: any")
    jwt_typ: str = Field(
        "", description="the type (typ) that a JWT must name, for example at+jwt; empty: JWT, at+jwt or none"
    )
    jwt_grants_claim: str = Field("grants", description="the claim that lists grants")
    jwt_scopes: Lines = Field(
        (), description="grants of words of the claim `scope`, SCOPE=GRANT; separated by semicolons"
    )

    body_bytes_max: int = Field(
        8 << 20, ge=1 << 10, le=1 << 30, description="maximum size of a request body, in bytes"
    )
    entry_bytes_max: int = Field(
        1 << 20, ge=64, le=1 << 26, description="maximum size of a stored entry, in bytes"
    )
    batch_entries_max: int = Field(10_000, ge=1, le=1_000_000, description="maximum entries of a batch")
    pipeline_commands_max: int = Field(
        10_000, ge=1, le=1_000_000, description="maximum commands of a pipeline"
    )
    streams_max: int = Field(
        100_000, ge=1, le=10_000_000, description="maximum number of streams; further ones are not created"
    )
    groups_max: int = Field(1_000, ge=1, le=1_000_000, description="maximum groups of a stream")
    consumers_max: int = Field(10_000, ge=1, le=1_000_000, description="maximum consumers of a group")
    memory_bytes_max: int = Field(
        0,
        ge=0,
        le=1 << 50,
        description="memory use, in bytes, at which writes are refused; 0 means three quarters of the memory "
        "of the container or machine",
    )
    output_bytes_max: int = Field(
        0,
        ge=0,
        le=1 << 50,
        description="bytes of answers that may wait to be sent, of all connections together beyond 64 KiB "
        "each; 0: an eighth of the memory limit, at least 32 MiB",
    )
    body_bytes_total_max: int = Field(
        0,
        ge=0,
        le=1 << 50,
        description="bytes of bodies that may be under way, of all connections together beyond 64 KiB each: "
        "a body counts three times; 0: an eighth of the memory limit, at least 32 MiB",
    )
    ids_max: int = Field(10_000, ge=1, le=1_000_000, description="maximum IDs in one request")
    answer_bytes_max: int = Field(
        8 << 20, ge=1 << 10, le=1 << 30, description="maximum size of the entries in a response, in bytes"
    )
    count_max: int = Field(10_000, ge=1, le=1_000_000, description="maximum entries of a response")

    rate_requests: CountRate = Field(
        "", description="requests of one caller, for example 100/s burst 500; empty: no limit"
    )
    rate_bytes: ByteRate = Field(
        "",
        description="bytes of requests and answers of one caller, for example 10000000/s; empty: no limit",
    )
    rate_failures: CountRate = Field(
        "50/s burst 500",
        description="wrong tokens from one address; further ones are refused unseen; empty: no limit",
    )

    rewrite_growth_percent: int = Field(
        100,
        ge=0,
        le=100_000,
        description="growth of the log, in percent, that triggers a rewrite; 0 disables rewrites",
    )
    wait_ms_max: int = Field(
        60_000, ge=0, le=3_600_000, description="maximum time that a read may block, in milliseconds"
    )
    waiters_max: int = Field(20_000, ge=1, le=1_000_000, description="maximum number of blocked reads")
    sockets_max: int = Field(10_000, ge=1, le=1_000_000, description="maximum number of open WebSockets")
    waits_per_principal_max: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="maximum number of blocked reads of one caller; 0: half of `waiters_max` where "
        "tokens are configured, otherwise no limit",
    )
    connections_per_principal_max: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="maximum number of WebSockets, event streams and connections of Redis clients of one "
        "caller; 0: half of `sockets_max` where tokens are configured, otherwise no limit",
    )
    request_s_max: float = Field(
        30,
        ge=0.1,
        le=3_600,
        description="maximum time for a request, or for a message of a socket, in seconds",
    )
    stall_s_max: float = Field(
        30,
        ge=0.1,
        le=3_600,
        description="time after which a reader that accepts no data is disconnected, in seconds",
    )
    keep_alive_s: float = Field(
        75, ge=0.1, le=3_600, description="time that an idle connection is kept open, in seconds"
    )
    drain_s_max: float = Field(
        10,
        ge=0,
        le=3_600,
        description="maximum time that a shutdown waits for responses in progress, in seconds",
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="minimum level that is logged"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto",
        description="format of the log: json for programs, console for people; auto is console on a terminal",
    )
    log_requests: Literal["all", "failed", "none"] = Field("failed", description="which requests are logged")

    tracing: bool = Field(
        default=False,
        description="follow traces: entries keep the traceparent of their request, and spans if sampled; "
        "OTEL_EXPORTER_OTLP_ENDPOINT says where to send them",
    )
    metrics_streams: Globs = Field(
        (),
        description="glob patterns of streams that /metrics shows with their groups, in at most 1,000 series",
    )

    @property
    def lookups_max(self) -> int:
        """Maximum IDs in one request that deletes, claims or releases entries: `ids_max`, but at most what
        one turn of the engine has time to look up.
        """
        return min(self.ids_max, TURN_LOOKUPS_MAX)

    @property
    def transaction_commands_max(self) -> int:
        """Maximum commands of a transaction: `pipeline_commands_max`, but at most what one turn of the engine
        has time for.
        """
        return min(self.pipeline_commands_max, TURN_COMMANDS_MAX)

    @property
    def handshake_s_max(self) -> float:
        """The time of a TLS handshake, which takes milliseconds, in seconds."""
        return min(self.request_s_max, _HANDSHAKE_S_MAX)

    def each_max(self, per_principal: int, all_max: int) -> int | None:
        """The limit of one caller: as set, or half of the gateway's, so that no token takes all of it."""
        return per_principal or (max(1, all_max // 2) if self.has_tokens else None)

    @property
    def has_tokens(self) -> bool:
        """Whether callers need a token."""
        return bool(
            self.root_token.get_secret_value()
            or self.root_token_file
            or self.tokens_file
            or self.jwt_algorithms
        )

    @property
    def jwt_keys_url(self) -> str | None:
        """Where the JWK set is fetched from, unless it is a file."""
        return self.jwt_keys if re.match("https?://", self.jwt_keys) else None

    @property
    def is_embedded(self) -> bool:
        """Whether the engine is this process's own, not a backend."""
        return self.backend == "embedded"

    @property
    def is_loopback(self) -> bool:
        """Whether the gateway listens on loopback alone."""
        return host_is_loopback(self.host) and (self.admin is None or host_is_loopback(self.admin.host))

    @property
    def admin(self) -> HostPort | None:
        """Where operators are served, if that is an address of its own."""
        return parse_address(self.admin_listen) if self.admin_listen else None

    @property
    def resp(self) -> HostPort | None:
        """Where Redis clients are listened to over TCP."""
        return next((parse_address(word) for word in self.resp_listen if not word.startswith(_UNIX)), None)

    @property
    def resp_path(self) -> Path | None:
        """The Unix socket for Redis clients."""
        found = (word.removeprefix(_UNIX) for word in self.resp_listen if word.startswith(_UNIX))
        return next(map(Path, found), None)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic passes it by name
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then the file."""
        assert isinstance(env_settings, EnvSettingsSource), "the base class has made it"
        env_settings.env_vars = {
            name: value for name, value in env_settings.env_vars.items() if not _is_of_service(name, value)
        }
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls))


def host_is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's loopback."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in ("localhost", "localhost.")


def load(flags: Mapping[str, object], config: Path | None = None) -> tuple[Settings, dict[str, str]]:
    """The effective settings, and for each its source: `flag`, `environment`, `file` or `default`.

    Raises SettingsError for unknown keys of the file, for every value that is out of its range, and for
    `backend_durability` without a backend.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    _check_replaced(given)
    _check_replaced(_variables(), lambda name: PREFIX + name.upper())
    path = config or _path(os.environ.get(CONFIG_VARIABLE))
    sources = dict.fromkeys(Settings.model_fields, "default")
    for source, values in (("file", _file(path)), ("environment", _environment()), ("flag", given)):
        sources.update(dict.fromkeys(values, source))
    unknown = given.keys() - Settings.model_fields.keys()
    if unknown:
        raise SettingsError(_unknown(min(unknown)))
    with_file = type("Settings", (Settings,), {"model_config": SettingsConfigDict(toml_file=path)})
    try:
        settings = with_file(**given)
    except ValidationError as error:
        raise SettingsError("\n".join(_sentence(line, sources) for line in error.errors())) from None
    if settings.backend_durability and settings.is_embedded:
        raise SettingsError(
            "backend_durability: it is about another engine, which `backend` names; "
            "what the embedded one promises is the setting `fsync`"
        )
    return settings, sources


def read_named_file(settings: Settings, name: str) -> str:
    """The text of the file that the setting `name` names, without blanks around it. Raises SettingsError."""
    path = Path(getattr(settings, name))
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"{name}: {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{name}: {path}: {error}") from None


def unknown_variables(environment: Iterable[str]) -> list[tuple[str, str | None]]:
    """Variables that begin with `WEIR_` but match no setting, each with the most similar setting or None.
    Without this check a misspelt variable would leave the default in force silently.
    """
    known = [*map(str.upper, Settings.model_fields), *_OTHER_VARIABLES]
    found: list[tuple[str, str | None]] = []
    for variable in sorted(environment):
        name = variable.upper().removeprefix(PREFIX)
        if name == variable.upper() or name in known or _SERVICE_VARIABLE.fullmatch(name):
            continue
        nearest = _nearest(name, known)
        found.append((variable, nearest and PREFIX + nearest))
    return found


def describe(name: str) -> str:
    """The description of a setting, with its allowed values if it is an enumeration."""
    field = Settings.model_fields[name]
    words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return f"{field.description}: {' | '.join(words)}" if words else str(field.description)


def toml_line(name: str, value: object) -> str:
    """A setting as a line of the file."""
    if isinstance(value, tuple):
        return f"{name} = [{', '.join(json.dumps(word) for word in value)}]"
    return f"{name} = {json.dumps(str(value) if isinstance(value, Path | SecretStr) else value)}"


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The name that is most similar; None if none is similar enough."""
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=_NEARNESS_MIN)), None)


def _unknown(name: str) -> str:
    nearest = _nearest(name, Settings.model_fields)
    return f"unknown setting {name}: do you mean {nearest}?" if nearest else f"unknown setting {name}"


def _check_replaced(names: Iterable[str], written: Callable[[str], str] = str) -> None:
    """Refuse a setting of the last release, as it is `written`, with what does its work now."""
    for name in sorted(_REPLACED.keys() & {*names}):
        raise SettingsError(f"{written(name)} is no setting any more: {_REPLACED[name]}")


def _variables() -> set[str]:
    """The names of the variables that an operator has set, without their prefix."""
    return {
        name.lower().removeprefix(PREFIX.lower())
        for name, value in os.environ.items()
        if name.upper().startswith(PREFIX) and not _is_of_service(name, value)
    }


def _environment() -> list[str]:
    """The settings that the environment sets."""
    variables = _variables()
    return [name for name in Settings.model_fields if name in variables]


def _is_of_service(variable: str, value: str | None) -> bool:
    """Whether Kubernetes has set this variable, not an operator."""
    return variable.upper() in _SERVICE_PORTS and value is not None and value.startswith(_SERVICE_SCHEMES)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _file(path: Path | None) -> list[str]:
    """The settings that the file sets. Refuses what pydantic ignores, for example a missing file."""
    if path is None:
        return []
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None
    _check_replaced(values, lambda name: f"{path}: {name}")
    unknown = values.keys() - Settings.model_fields.keys()
    if unknown:
        raise SettingsError(f"{path}: {_unknown(min(unknown))}")
    return list(values)


def _sentence(error: Any, sources: Mapping[str, str]) -> str:  # noqa: ANN401 - pydantic's own TypedDict is private
    name = str(error["loc"][0]) if error["loc"] else "settings"
    # Before the text of a ValueError pydantic puts words of its own.
    reason = error["ctx"]["error"] if error["type"] == "value_error" else error["msg"]
    return f"{name} ({sources.get(name, 'unknown')}): {reason}"
