"""The file of revocations in the data directory, beside the log: a backup does not have it, and a restore
leaves it, so that no older backup revives a token that was revoked.

Knows: its form, one JSON object a line, and that it is replaced as a whole. Must never know: the log.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from app.auth.revocations import Revocation

NAME: Final = "revoked"


class RevocationFileError(Exception):
    """The file cannot be used. The text names it and what is wrong."""


class RevocationFile:
    """The file of one data directory. `kept` is what it held when it was read."""

    def __init__(self, data: Path) -> None:
        self._path = data / NAME
        self.kept = self._read()

    def _read(self) -> list[Revocation]:
        """What the file holds. Raises RevocationFileError: to pass over a line would revive a token."""
        try:
            lines = self._path.read_bytes().splitlines()
            return [Revocation.model_validate_json(line) for line in lines]
        except (FileNotFoundError, NotADirectoryError):
            # The engine makes the directory, or refuses what stands in its place.
            return []
        except OSError as error:
            raise RevocationFileError(f"{self._path}: {error.strerror or error}") from None
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise RevocationFileError(f"{self._path} holds a line that is no revocation: {reason}") from None

    def write(self, revocations: Iterable[Revocation]) -> None:
        """Replace the file, safe from a power cut. Raises OSError."""
        text = b"".join(
            revocation.model_dump_json(exclude_none=True).encode() + b"\n" for revocation in revocations
        )
        new = self._path.with_name(f"{NAME}.tmp")
        with new.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
