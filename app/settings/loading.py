"""Where the settings come from: flags, environment, file and defaults, in this order.

Knows: what is said of a wrong one, and how they are shown. Must never know: what a setting is for.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from pydantic import SecretStr, ValidationError
from pydantic_settings import SettingsConfigDict

from app.settings.environment import OTHER_VARIABLES, PREFIX, SERVICE_VARIABLE, config_path, variables
from app.settings.fields import Settings, SettingsError

T = TypeVar("T")
# Similarity, from 0 to 1, from which an unknown name is taken for a misspelt one.
_NEARNESS_MIN: Final = 0.6
# Settings of earlier releases, and what does the work of each now.
_REPLACED: Final[Mapping[str, str]] = {
    "pipeline_bytes_max": "it is buffer_bytes_max now",
    **dict.fromkeys(("admin_host", "admin_port"), "say both in admin_listen, for example 127.0.0.1:9090"),
    **dict.fromkeys(("resp_host", "resp_port"), "say both in resp_listen, for example 127.0.0.1:6380"),
    **{
        f"rate_{what}_{part}": f"say both in rate_{what}, for example 100/s burst 500"
        for what in ("requests", "bytes", "failures")
        for part in ("per_s", "burst")
    },
    "backend_user": "say the user in backend, for example redis://weir@127.0.0.1:6379/0",
    **dict.fromkeys(("output_bytes_max", "body_bytes_total_max"), "say it in buffer_bytes_max, for both"),
    **dict.fromkeys(
        ("connections_per_principal_max", "waits_per_principal_max"), "say it in per_principal_max, for both"
    ),
    "resp_connections_max": "sockets_max holds for Redis clients, too",
    "jwt_jwks_url": "jwt_keys takes the URL, for example https://id.example/jwks.json",
    **dict.fromkeys(
        (
            *("answer_bytes_max", "ids_max", "pipeline_commands_max"),
            *("backend_poll_s", "columns_count_max", "count_default", "entry_fields_max", "head_bytes_max"),
            *("heartbeat_ms", "json_depth_max", "request_streams_max", "rewrite_bytes_min"),
        ),
        "it has one value now, see docs/limits.md",
    ),
    "resp_socket": "say it in resp_listen, for example unix:/run/weir/redis.sock",
}


def load(flags: Mapping[str, object], config: Path | None = None) -> tuple[Settings, dict[str, str]]:
    """The effective settings, and for each its source: `flag`, `environment`, `file` or `default`.

    Raises SettingsError for unknown keys of the file, for every value that is out of its range, and for
    what belongs to a backend or a service of history that is not named.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    _check_replaced(given)
    _check_replaced(variables(), lambda name: PREFIX + name.upper())
    path = config or config_path()
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
    if settings.history_token_file and not settings.history_url:
        raise SettingsError(
            "history_token_file: it is for a service of history, and `history_url` names none"
        )
    return settings, sources


def _check_replaced(names: Iterable[str], written: Callable[[str], str] = str) -> None:
    """Refuse a setting of the last release, as it is `written`, with what does its work now."""
    for name in sorted(_REPLACED.keys() & {*names}):
        raise SettingsError(f"{written(name)} is no setting any more: {_REPLACED[name]}")


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
    known = [*map(str.upper, Settings.model_fields), *OTHER_VARIABLES]
    found: list[tuple[str, str | None]] = []
    for variable in sorted(environment):
        name = variable.upper().removeprefix(PREFIX)
        if name == variable.upper() or name in known or SERVICE_VARIABLE.fullmatch(name):
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


def _environment() -> list[str]:
    """The settings that the environment sets."""
    return [*(Settings.model_fields.keys() & variables())]


def _file(path: Path | None) -> list[str]:
    """The settings that the file sets. Refuses what pydantic ignores, for example a missing file."""
    if path is None:
        return []
    values = toml_of(path, dict)
    _check_replaced(values, lambda name: f"{path}: {name}")
    unknown = values.keys() - Settings.model_fields.keys()
    if unknown:
        raise SettingsError(f"{path}: {_unknown(min(unknown))}")
    return list(values)


def toml_of(path: Path, validate: Callable[[dict[str, Any]], T]) -> T:
    """What a TOML file says, as `validate` of pydantic has it. Raises SettingsError, which names the file and
    the first mistake.
    """
    try:
        return validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SettingsError(f"{path}: {where}: {first['msg']}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None


def _sentence(error: Any, sources: Mapping[str, str]) -> str:  # noqa: ANN401 - pydantic's own TypedDict is private
    name = str(error["loc"][0]) if error["loc"] else "settings"
    # Before the text of a ValueError pydantic puts words of its own.
    reason = error["ctx"]["error"] if error["type"] == "value_error" else error["msg"]
    return f"{name} ({sources.get(name, 'unknown')}): {reason}"
