"""The settings: one frozen object from flags, environment, file and defaults, in this order.

Knows: every setting with its unit, its range and what it is for; the environment's home.
Must never know: the engine's inside, routes.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
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

# How alike two names are, from 0 to 1, for one to be meant by the other.
_NEARNESS_MIN: Final = 0.6
# Variables that are no settings of a server: which gateway and which Java the other commands use.
_OTHER_VARIABLES: Final = ("CONFIG", "URL", "JAVA")
# Kubernetes gives every container these for a service that is called `weir`.
_SERVICE_VARIABLE: Final = re.compile(r"SERVICE_.*|PORT_\d+_.*")
# Among them one that is named like a setting; it holds a URL, as in tcp://10.0.0.1:8080.
_SERVICE_PORT: Final = f"{PREFIX}PORT"
_SERVICE_SCHEMES: Final = ("tcp://", "udp://", "sctp://")

Fsync = Literal["always", "everysec", "no"]


class SettingsError(Exception):
    """The settings cannot be used; the text says which one and why, one line each."""


def _split(value: object) -> object:
    """Lists come from the environment and from flags as words between commas."""
    return (
        tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value
    )


_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]:@/?#*]+)(:[0-9]{1,5})?")
_ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#*]+")


def _hosts(words: tuple[str, ...]) -> tuple[str, ...]:
    """Hosts as a header has them: what could never match is refused."""
    lower = tuple(word.lower() for word in words)
    for word in lower:
        if not _HOST.fullmatch(word):
            raise ValueError(
                f"{word!r} is no host: give names or addresses, as in weir.example or [::1]:8080"
            )
    return lower


def _origins(words: tuple[str, ...]) -> tuple[str, ...]:
    """The same of origins."""
    lower = tuple(word.lower() for word in words)
    for word in lower:
        if not _ORIGIN.fullmatch(word):
            raise ValueError(f"{word!r} is no origin: give scheme and host, as in https://app.example, or *")
    return lower


Hosts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_hosts)]
Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_origins)]


class Settings(BaseSettings):
    """Each field is also `WEIR_<NAME>` in the environment, a key of the TOML file, and, the common ones, a
    flag.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", validate_default=True)

    host: str = Field("127.0.0.1", description="address to listen on; beyond loopback needs `insecure`")
    port: int = Field(8080, ge=0, le=65_535, description="port to listen on; 0 takes any free one")
    data: Path = Field(Path("weir-data"), description="directory of the log; made where it is missing")
    backup_dir: str = Field(
        "", description="directory for the backups of POST /v1/admin/backup; empty: none are made"
    )
    fsync: Fsync = Field("everysec", description="when the log is synced")
    insecure: bool = Field(
        default=False, description="listen beyond loopback though nobody has to authenticate"
    )
    allowed_hosts: Hosts = Field(
        (), description="names, besides loopback, that Host may have; `insecure` beyond loopback needs them"
    )
    allowed_origins: Origins = Field(
        (), description="origins of web pages that may call, or *; own pages always may"
    )

    body_bytes_max: int = Field(8 << 20, ge=1 << 10, le=1 << 30, description="bytes of a request's body")
    entry_bytes_max: int = Field(1 << 20, ge=64, le=1 << 26, description="bytes of an entry as it is stored")
    entry_fields_max: int = Field(1_024, ge=1, le=1 << 20, description="fields of an entry")
    batch_entries_max: int = Field(10_000, ge=1, le=1_000_000, description="entries of a batch")
    pipeline_commands_max: int = Field(10_000, ge=1, le=1_000_000, description="commands of a pipeline")
    streams_max: int = Field(
        100_000, ge=1, le=10_000_000, description="streams there may be; what is beyond is not created"
    )
    groups_max: int = Field(1_000, ge=1, le=1_000_000, description="groups that a stream may have")
    consumers_max: int = Field(10_000, ge=1, le=1_000_000, description="consumers that a group may have")
    memory_bytes_max: int = Field(
        0,
        ge=0,
        le=1 << 50,
        description="bytes of memory from which on writes are refused; 0: three quarters of what the "
        "container, or the machine, has",
    )
    pipeline_bytes_max: int = Field(
        64 << 20, ge=1 << 10, le=1 << 32, description="bytes that several commands are answered together"
    )
    request_streams_max: int = Field(
        1_000, ge=1, le=100_000, description="streams that one request reads from or publishes into"
    )
    ids_max: int = Field(10_000, ge=1, le=1_000_000, description="IDs named in one request")
    json_depth_max: int = Field(32, ge=4, le=512, description="levels of nested JSON")
    answer_bytes_max: int = Field(8 << 20, ge=1 << 10, le=1 << 30, description="bytes of an answer's entries")
    count_default: int = Field(
        100, ge=1, le=1_000_000, description="entries of an answer that names no count"
    )
    count_max: int = Field(10_000, ge=1, le=1_000_000, description="entries of any answer")
    columns_count_max: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description="entries of a page of columns, where `count_max` is not meant",
    )

    rewrite_growth_percent: int = Field(
        100,
        ge=0,
        le=100_000,
        description="growth of the log that brings a rewrite; 0 never",
    )
    rewrite_bytes_min: int = Field(
        64 << 20, ge=1 << 10, le=1 << 50, description="bytes that the log has at least before it is rewritten"
    )
    wait_ms_max: int = Field(60_000, ge=0, le=3_600_000, description="milliseconds that a read may wait")
    waiters_max: int = Field(20_000, ge=1, le=1_000_000, description="reads that wait at the same time")
    sockets_max: int = Field(10_000, ge=1, le=1_000_000, description="WebSockets open at the same time")
    heartbeat_ms: int = Field(
        15_000, ge=100, le=600_000, description="milliseconds between a WebSocket's heartbeats"
    )
    head_bytes_max: int = Field(
        32 << 10, ge=1 << 10, le=1 << 20, description="bytes of a request's line and headers"
    )
    request_s_max: int = Field(30, ge=1, le=3_600, description="seconds in which a request must have arrived")
    stall_s_max: int = Field(
        30, ge=1, le=3_600, description="seconds that a reader may take nothing before it is cut"
    )
    keep_alive_s: int = Field(75, ge=1, le=3_600, description="seconds that an idle connection is kept")
    drain_s_max: int = Field(
        10, ge=0, le=3_600, description="seconds that a stop waits for answers under way"
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level that is logged"
    )
    log_format: Literal["json", "console"] = Field(
        "json", description="form of the log; json for programs, console for people"
    )
    log_requests: Literal["all", "failed", "none"] = Field(
        "all", description="requests that get a line in the log"
    )

    @property
    def lookups_max(self) -> int:
        """IDs named in one request whose entries are looked up: to delete, claim or release them. `ids_max`,
        as far as one turn of the engine has time for them.
        """
        return min(self.ids_max, TURN_LOOKUPS_MAX)

    @property
    def transaction_commands_max(self) -> int:
        """Commands of a transaction: `pipeline_commands_max`, as far as one turn of the engine has time for
        them.
        """
        return min(self.pipeline_commands_max, TURN_COMMANDS_MAX)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return host_is_loopback(self.host)

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

    Raises SettingsError for unknown keys of the file and for every value that is out of its range.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    path = config or _path(os.environ.get(CONFIG_VARIABLE))
    sources = dict.fromkeys(Settings.model_fields, "default")
    for source, values in (("file", _file(path)), ("environment", _environment()), ("flag", given)):
        sources.update(dict.fromkeys(values, source))
    unknown = given.keys() - Settings.model_fields.keys()
    if unknown:
        raise SettingsError(f"unknown setting {min(unknown)}")
    with_file = type("Settings", (Settings,), {"model_config": SettingsConfigDict(toml_file=path)})
    try:
        return with_file(**given), sources
    except ValidationError as error:
        raise SettingsError("\n".join(_sentence(line, sources) for line in error.errors())) from None


def unknown_variables(environment: Iterable[str]) -> list[tuple[str, str | None]]:
    """The variables that are named like a setting and are none, each with the nearest right name, None where
    nothing is near. A typing error would otherwise leave a default in force without a word.
    """
    known = [name.upper() for name in Settings.model_fields] + [*_OTHER_VARIABLES]
    found: list[tuple[str, str | None]] = []
    for variable in sorted(environment):
        name = variable.upper().removeprefix(PREFIX)
        if name == variable.upper() or name in known or _SERVICE_VARIABLE.fullmatch(name):
            continue
        nearest = get_close_matches(name, known, n=1, cutoff=_NEARNESS_MIN)
        found.append((variable, PREFIX + nearest[0] if nearest else None))
    return found


def describe(name: str) -> str:
    """What a setting is for, with the words that it may be where it is one of a few."""
    field = Settings.model_fields[name]
    words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return f"{field.description}: {' | '.join(words)}" if words else str(field.description)


def toml_line(name: str, value: object) -> str:
    """A setting as a line of the file."""
    if isinstance(value, tuple):
        return f"{name} = [{', '.join(json.dumps(word) for word in value)}]"
    return f"{name} = {json.dumps(str(value) if isinstance(value, Path) else value)}"


def _environment() -> list[str]:
    """The settings that the environment has."""
    variables = {name.upper() for name, value in os.environ.items() if not _is_of_service(name, value)}
    return [name for name in Settings.model_fields if PREFIX + name.upper() in variables]


def _is_of_service(variable: str, value: str | None) -> bool:
    """Whether Kubernetes has set a variable, and no operator."""
    return variable.upper() == _SERVICE_PORT and value is not None and value.startswith(_SERVICE_SCHEMES)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _file(path: Path | None) -> list[str]:
    """The settings that the file has. What pydantic would pass over, a missing file for one, is refused."""
    if path is None:
        return []
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None
    unknown = values.keys() - Settings.model_fields.keys()
    if unknown:
        raise SettingsError(f"{path}: unknown setting {min(unknown)}")
    return list(values)


def _sentence(error: Any, sources: Mapping[str, str]) -> str:  # noqa: ANN401 - pydantic's own TypedDict is private
    name = str(error["loc"][0]) if error["loc"] else "settings"
    return f"{name} ({sources.get(name, 'unknown')}): {error['msg']}"
