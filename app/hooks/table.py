"""The hooks of a gateway: found by their names, read again with SIGHUP.

Knows: that a name that is not there takes as long as one that is. Must never know: requests.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_bytes
from typing import Final

from app.hooks.file import FILE, Hook, HookTable, read, tables
from app.settings import Settings

# In the place of a name that is not there: to refuse that takes as long as a wrong signature.
_NOBODY: Final = Hook("", HookTable(stream="-", scheme="github", secrets=("file:-",)), [token_bytes(32)], b"")


class Hooks:
    """The hooks of a gateway. Raises SettingsError where the file cannot be used."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.hooks_file
        self._by_name: Mapping[str, Hook] = read(Path(self._path)) if self._path else {}

    def find(self, name: str) -> Hook:
        """The hook of this name; else one with a random secret, for which every signature is wrong."""
        return self._by_name.get(name, _NOBODY)

    @property
    def all(self) -> Sequence[Hook]:
        """All of them, by their names."""
        return [hook for _, hook in sorted(self._by_name.items())]

    def read_again(self) -> int:
        """Have what the file says now. How many those are. Raises SettingsError, and changes nothing."""
        self._by_name = read(Path(self._path)) if self._path else {}
        return len(self._by_name)


def secret_files(path: Path) -> Sequence[Path]:
    """The files of secrets that a file of hooks names. Raises SettingsError."""
    named = [(*table.secrets, table.verify_token) for table in tables(path).values()]
    return [path.parent / one.removeprefix(FILE) for some in named for one in some if one]
