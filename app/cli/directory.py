"""A log's directory on this machine: which one is meant, and how a command ends that may not use it.

Knows: the setting `data`, the exit codes 3 and 4. Must never know: what is in the files.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from weir.cli.failure import Failure

if TYPE_CHECKING:
    from engine.storage.file import FileStorage

USAGE: Final = 2
REFUSED: Final = 3
LOCKED: Final = 4

Data = Annotated[
    Path | None,
    typer.Option(help="directory of the log [as `weir serve` has it: ./weir-data]", metavar="DIR"),
]


Place = Annotated[Path | None, typer.Argument(help="the same as --data", metavar="[DIR]", show_default=False)]


def chosen(data: Path | None, place: Path | None = None) -> Path:
    """The directory of the option or the argument, else that of the settings, as `weir serve` has them."""
    from app.settings import SettingsError, load

    if data is not None and place is not None:
        raise typer.BadParameter("the directory is named twice: as an argument, and with --data")
    data = data or place
    try:
        settings, _ = load({"data": data})
    except SettingsError as error:
        raise Failure(str(error), exit_code=USAGE) from None
    return settings.data


def holder_of(path: Path) -> str | None:
    """Which process uses this directory, as a sentence; None for none."""
    from engine import StorageLockedError, StorageRefusedError
    from engine.storage.file import FileStorage

    if path.is_dir():
        try:
            with closing(FileStorage(path)) as storage:
                storage.lock()
        except StorageLockedError as locked:
            return str(locked)
        except (StorageRefusedError, OSError):
            return None
    return None


@contextmanager
def opened(path: Path) -> Iterator["FileStorage"]:
    """The directory, which must be there; what refuses it or its files ends the command."""
    from engine.storage.file import FileStorage

    with ending(path):
        storage = FileStorage(path)
        try:
            yield storage
        finally:
            storage.close()


@contextmanager
def ending(path: Path) -> Iterator[None]:
    """Turn what an engine says about a directory into the end of a command."""
    from engine import LogRefusedError, StorageLockedError, StorageRefusedError, TargetRefusedError

    try:
        yield
    except StorageLockedError as locked:
        raise Failure(str(locked), exit_code=LOCKED) from None
    except TargetRefusedError as refused:
        raise Failure(str(refused), exit_code=USAGE) from None
    except (LogRefusedError, StorageRefusedError) as refused:
        raise Failure(str(refused), exit_code=REFUSED) from None
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else path
        raise Failure(f"{place}: {error.strerror or error}") from None
