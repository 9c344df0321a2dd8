"""Files that decide who gets in, and what other users of the machine may do to them.

Knows: which settings name such files, which of them are secret.
Must never know: what is in them.

    secret      the root token, private keys     no other user reads or writes it; its group may read
    deciding    tokens, keys, authorities        no other user writes it, nor its group
    data        the log, which has tokens too    no other user writes in it
"""

import stat
from pathlib import Path
from typing import Final, NamedTuple

from app import logs
from app.hooks.table import secret_files
from app.settings import Settings, SettingsError


class _Kind(NamedTuple):
    """Bits of the mode that must not be set, and what `chmod` takes to clear them."""

    closed: int
    remedy: str


_SECRET: Final = _Kind(0o026, "600")
_DECIDING: Final = _Kind(0o022, "go-w")
_DATA: Final = _Kind(0o002, "o-w")
_WRITING: Final = 0o022


def check(settings: Settings) -> None:
    """Warn of such files. Raises SettingsError instead with `strict_files`."""
    for sentence in loose_files(settings):
        if settings.strict_files:
            raise SettingsError(f"{sentence} (--strict-files)")
        logs.get().warning("a file is open to other users", reason=sentence)


def loose_files(settings: Settings) -> list[str]:
    """A sentence for each of these files that other users may read or change, with what to do about it."""
    has_secrets = any(algorithm.startswith("HS") for algorithm in settings.jwt_algorithms)
    kinds = {
        "root_token_file": _SECRET,
        "backend_password_file": _SECRET,
        "history_token_file": _SECRET,
        "tls_key": _SECRET,
        # It holds the key where there is no other file for that.
        "tls_certificate": _DECIDING if settings.tls_key else _SECRET,
        "tls_client_ca": _DECIDING,
        "jwt_keys": _SECRET if has_secrets else _DECIDING,
        "tokens_file": _DECIDING,
        "hooks_file": _DECIDING,
    }
    named = [(name, getattr(settings, name), kind) for name, kind in kinds.items()]
    if settings.hooks_file:
        named += [("hooks_file", str(path), _SECRET) for path in secret_files(Path(settings.hooks_file))]
    named.append(("config", type(settings).model_config.get("toml_file"), _DECIDING))
    named.append(("data", settings.data if settings.is_embedded else None, _DATA))
    return [found for name, path, kind in named if path and (found := _sentence(name, Path(path), kind))]


def _sentence(name: str, path: Path, kind: _Kind) -> str | None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        # What needs it says so.
        return None
    if not mode & kind.closed:
        return None
    deed = "change" if mode & kind.closed & _WRITING else "read"
    return f"{name}: other users may {deed} {path}, its mode is {mode:04o}: chmod {kind.remedy} {path}"
