"""A directory appears under its name whole or not at all; nothing is overwritten, nothing foreign removed."""

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from engine.storage import Storage, StorageLockedError, StorageRefusedError
from engine.storage.whole import filled_in_place, new_directory


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def spoil(filling: AbstractContextManager[Storage]) -> None:
    """Fill a directory, and fail at the end."""
    with filling as storage:
        storage.replace("manifest", [b"m"])
        raise ZeroDivisionError


def fill_twice(path: Path) -> None:
    """Fill the directory while it is being made."""
    with new_directory(path):
        path.mkdir()
        (path / "photo.jpeg").touch()


def test_it_is_there_when_it_is_whole(tmp_path: Path) -> None:
    """Until then there is a sibling; an empty directory of the name makes room."""
    (tmp_path / "b").mkdir()
    for name in ("a", "b"):
        with new_directory(tmp_path / name) as storage:
            storage.replace("manifest", [b"m"])
            assert f".{name}.partial" in names(tmp_path)
            assert not (tmp_path / name / "manifest").exists()
        assert names(tmp_path / name) == ["manifest"]
    assert names(tmp_path) == ["a", "b"]


def test_after_an_error_nothing_is_left(tmp_path: Path) -> None:
    """The room is given back."""
    with pytest.raises(ZeroDivisionError):
        spoil(new_directory(tmp_path / "a"))
    assert names(tmp_path) == []


def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    """The second hears of the first, and does it no harm."""
    with new_directory(tmp_path / "a") as storage:
        storage.replace("manifest", [b"m"])
        with pytest.raises(StorageLockedError), new_directory(tmp_path / "a"):
            pass
    assert names(tmp_path / "a") == ["manifest"]


def test_what_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    """A directory of that name that was filled meanwhile is not replaced."""
    with pytest.raises(StorageRefusedError, match="not empty"):
        fill_twice(tmp_path / "a")
    assert names(tmp_path) == ["a"]


def test_a_directory_without_a_sibling_is_filled_as_it_is(tmp_path: Path) -> None:
    """A mount point; what a file system puts there by itself is not in the way, and stays after an error."""
    (tmp_path / "lost+found").mkdir()
    with pytest.raises(ZeroDivisionError):
        spoil(filled_in_place(tmp_path))
    assert names(tmp_path) == ["lost+found"]
    with filled_in_place(tmp_path) as storage:
        storage.replace("manifest", [b"m"])
    assert names(tmp_path) == ["lost+found", "manifest"]
