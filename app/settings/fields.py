"""The settings: each with its unit, range and purpose, in one frozen object.

Knows: the order of flags, environment and file. Must never know: the internals of the engine, routes.
"""

import re
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from app.settings.environment import PREFIX, is_of_service
from app.settings.values import (
    UNIX,
    Address,
    Addresses,
    Algorithms,
    ByteRate,
    CountRate,
    Globs,
    HostPort,
    Hosts,
    Lines,
    Networks,
    Origins,
    check_backend,
    check_durability,
    check_history,
    host_is_loopback,
    parse_address,
    read_unit,
)
from engine.commands.turn import TURN_COMMANDS_MAX, TURN_LOOKUPS_MAX

# uvloop would give it a minute.
_HANDSHAKE_S_MAX: Final = 10

Fsync = Literal["always", "everysec", "no"]


class SettingsError(Exception):
    """The settings are invalid. The text has one line for each error: the setting and the reason."""


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
    # Commands of a pipeline.
    pipeline_commands_max: ClassVar[int] = 10_000
    # IDs in one request.
    ids_max: ClassVar[int] = 10_000
    # Entries of a response, in bytes.
    answer_bytes_max: ClassVar[int] = 8 << 20
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
    backend: Annotated[str, AfterValidator(check_backend)] = Field(
        "embedded",
        description="where the streams are: in this process (embedded), or in Redis or Valkey: one server, "
        "as redis://HOST:PORT/0 or redis+unix:///PATH, a cluster, as "
        "redis+cluster://HOST:PORT,HOST:PORT, or the primary that Sentinel names, as "
        "redis+sentinel://HOST:PORT,HOST:PORT/NAME; USER@ before the first HOST unless it is `default`, "
        "rediss in the place of redis for TLS",
    )
    backend_password_file: str = Field("", description="file with the password at the backend")
    backend_ca: str = Field(
        "", description="PEM file with the authorities of a rediss backend; empty: the system's"
    )
    backend_durability: Annotated[str, AfterValidator(check_durability)] = Field(
        "",
        description="what an answer to a write promises: the backend's server has it (memory), N replicas "
        "too (replicated:N), or it is on the disks of N servers (fsync:N); empty: replicated:1 over a "
        "cluster or Sentinel, else memory",
    )
    backend_timeout_ms: int = Field(5_000, ge=50, le=60_000, description="time for the backend to answer")
    history_url: Annotated[str, AfterValidator(check_history)] = Field(
        "",
        description="URL of the service of history (`weir history serve`), which reads that begin before the "
        "stream does go to; empty: none",
    )
    history_token_file: str = Field("", description="file with the token of the service of history")
    history_gateway: str = Field("g0", description="name of this gateway in its archive")
    insecure: bool = Field(default=False, description="listen on more than loopback without authentication")
    strict_files: bool = Field(
        default=False,
        description="refuse to start where other users may read a secret, or change a file that decides who "
        "gets in; they are warned of otherwise",
    )
    allowed_hosts: Hosts = Field(
        (), description="allowed Host headers besides loopback; required by `insecure` on other addresses"
    )
    allowed_origins: Origins = Field(
        (), description="origins whose web pages may call the API, or *; the gateway's own pages always may"
    )

    hooks_file: str = Field("", description="TOML file of webhooks that come in, see docs/webhooks-in.md")
    cloudevents_source: str = Field(
        "", max_length=256, description="URL that begins the `source` of entries that are no CloudEvents"
    )

    durable_streams: bool = Field(
        default=True, description="serve Durable Streams at /v1/stream/, see docs/durable-streams.md"
    )
    durable_long_poll_s: float = Field(
        20, ge=0.1, le=3_600, description="time that a long-poll of Durable Streams waits"
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

    root_token: SecretStr = Field(
        SecretStr(""), description="a token that may do everything; callers without a token are refused then"
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

    body_bytes_max: int = Field(8 << 20, ge=1 << 10, le=1 << 30, description="maximum size of a request body")
    entry_bytes_max: int = Field(1 << 20, ge=64, le=1 << 26, description="maximum size of a stored entry")
    batch_entries_max: int = Field(10_000, ge=1, le=1_000_000, description="maximum entries of a batch")
    streams_max: int = Field(
        100_000, ge=1, le=10_000_000, description="maximum number of streams; further ones are not created"
    )
    groups_max: int = Field(1_000, ge=1, le=1_000_000, description="maximum groups of a stream")
    consumers_max: int = Field(10_000, ge=1, le=1_000_000, description="maximum consumers of a group")
    memory_bytes_max: int = Field(
        0,
        ge=0,
        le=1 << 50,
        description="memory use at which writes are refused; 0: 3/4 of the container's or machine's",
    )
    memory_bytes_soft: int = Field(
        0,
        ge=0,
        le=1 << 50,
        description="memory use above which cold entries leave memory for files in the data "
        "directory, from which reads bring them back; 0 means three fifths of the memory limit, and a value "
        "at or above that limit means never",
    )
    buffer_bytes_max: int = Field(
        0,
        ge=0,
        le=1 << 50,
        description="bytes of answers that may wait to be sent, of all connections together beyond 64 KiB "
        "each, and as many of bodies under way, each of which counts three times; 0: an eighth of the memory "
        "limit, at least 32 MiB",
    )
    count_max: int = Field(10_000, ge=1, le=1_000_000, description="maximum entries of a response")

    rate_requests: CountRate = Field(
        "", description="requests of one caller, for example 100/s burst 500; empty: no limit"
    )
    rate_bytes: ByteRate = Field(
        "", description="bytes of requests and answers of one caller, for example 10000000/s; empty: no limit"
    )
    rate_failures: CountRate = Field(
        "50/s burst 500",
        description="wrong tokens, and commands before AUTH, from one address; further tokens are refused "
        "unseen; empty: no limit",
    )

    rewrite_growth_percent: int = Field(
        100, ge=0, le=100_000, description="growth of the log that triggers a rewrite; 0 disables rewrites"
    )
    wait_ms_max: int = Field(60_000, ge=0, le=3_600_000, description="maximum time that a read may block")
    waiters_max: int = Field(20_000, ge=1, le=1_000_000, description="maximum number of blocked reads")
    sockets_max: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="maximum number of open WebSockets, and as many connections of Redis clients",
    )
    per_principal_max: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="maximum number of blocked reads of one caller, and as many WebSockets, event streams "
        "and connections of Redis clients; 0: half of `waiters_max` and of `sockets_max` where tokens are "
        "configured, otherwise no limit",
    )
    request_s_max: float = Field(
        30,
        ge=0.1,
        le=3_600,
        description="maximum time for a request, a message of a socket or a Redis command",
    )
    stall_s_max: float = Field(
        30, ge=0.1, le=3_600, description="time after which a reader that accepts no data is disconnected"
    )
    keep_alive_s: float = Field(75, ge=0.1, le=3_600, description="time that an idle connection is kept open")
    drain_s_max: float = Field(
        10, ge=0, le=3_600, description="maximum time that a shutdown waits for responses in progress"
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

    @field_validator("*", mode="before")
    @classmethod
    def _read_unit(cls, value: object, info: ValidationInfo) -> object:
        return read_unit(str(info.field_name), value)

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

    def each_max(self, all_max: int) -> int | None:
        """The limit of one caller: as set, or half of the gateway's, so that no token takes all of it."""
        return self.per_principal_max or (max(1, all_max // 2) if self.has_tokens else None)

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
        return next((parse_address(word) for word in self.resp_listen if not word.startswith(UNIX)), None)

    @property
    def resp_path(self) -> Path | None:
        """The Unix socket for Redis clients."""
        found = (word.removeprefix(UNIX) for word in self.resp_listen if word.startswith(UNIX))
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
            name: value for name, value in env_settings.env_vars.items() if not is_of_service(name, value)
        }
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls))
