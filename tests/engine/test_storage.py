"""Both versions of the seam keep the same promises; the one in memory also keeps those about power cuts."""

import errno
import os
import resource
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from engine.storage import NotAFileError, Storage, StorageLockedError, StorageRefusedError
from engine.storage.file import FileStorage, write_all
from engine.storage.memory import MemoryStorage, StoppedError

UNAUTHENTICATED = 65534


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as each:
        each.bind(str(path))


KINDS: Final = [
    (Path.mkdir, "a directory"),
    (os.mkfifo, "a named pipe"),
    (lambda path: path.symlink_to("elsewhere"), "a symbolic link"),
    (_socket, "a socket"),
]


@pytest.fixture(params=["file", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "memory":
        yield MemoryStorage()
        return
    directory = FileStorage(tmp_path / "log", create=True)
    yield directory
    directory.close()


def rival(storage: Storage, tmp_path: Path) -> Storage:
    """The same directory as another process would open it."""
    return storage.rival() if isinstance(storage, MemoryStorage) else FileStorage(tmp_path / "log")


def content(storage: Storage, name: str) -> bytes:
    return storage.read(name, 0, storage.size(name))


class TestBothVersions:
    def test_a_file_grows_at_its_end(self, storage: Storage) -> None:
        """What is appended is there at once, behind what was there, also through a second opening."""
        handle = storage.create("a")
        handle.append(b"one ")
        handle.append(b"")
        handle.sync()
        handle.close()
        handle.close()
        again = storage.open("a")
        again.append(b"two")
        assert again.size() == storage.size("a") == 7
        assert content(storage, "a") == b"one two"
        again.close()

    def test_a_part_is_read_and_never_more_than_there_is(self, storage: Storage) -> None:
        """Reading beyond the end gives what is there."""
        storage.replace("a", [b"0123", b"456789"])
        assert storage.read("a", 3, 4) == b"3456"
        assert storage.read("a", 8, 100) == b"89"
        assert storage.read("a", 10, 1) == b""

    def test_two_may_list_at_the_same_time(self, storage: Storage) -> None:
        """Each sees every file."""
        names = [f"{number:03}" for number in range(200)]
        for name in names:
            storage.create(name).close()
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: storage.names(), range(100)))
        assert all(one == names for one in found)

    def test_a_file_that_is_held_stays(self, storage: Storage) -> None:
        """Its bytes, those appended later too, even if its name is removed or reused."""
        storage.replace("a", [b"one "])
        with pytest.raises(FileNotFoundError):
            storage.reader("b")
        held = storage.reader("a")
        handle = storage.open("a")
        handle.append(b"two")
        handle.close()
        storage.replace("a", [b"another file"])
        storage.unlink("a")
        assert (held.size(), held.read(2, 100), held.read(7, 1)) == (7, b"e two", b"")
        held.close()
        held.close()

    def test_a_new_file_is_new(self, storage: Storage) -> None:
        """`create` never opens what is there, and nothing else makes a file."""
        storage.create("a").close()
        with pytest.raises(FileExistsError):
            storage.create("a")
        for use in (
            lambda: storage.open("b"),
            lambda: storage.size("b"),
            lambda: storage.read("b", 0, 1),
            lambda: storage.truncate("b", 0),
            lambda: storage.overwrite("b", 0, b""),
            lambda: storage.unlink("b"),
            lambda: storage.rename("b", "c"),
        ):
            with pytest.raises(FileNotFoundError):
                use()
        assert storage.names() == ["a"]

    def test_replacing_leaves_one_file(self, storage: Storage) -> None:
        """The new content has the name, and the temporary file is gone, one left by a crash too."""
        storage.create("a.tmp").close()
        storage.replace("a", [b"old"])
        storage.replace("a", [b"n", b"ew"])
        assert storage.names() == ["a"]
        assert content(storage, "a") == b"new"

    def test_bytes_are_overwritten_in_their_place(self, storage: Storage) -> None:
        """Neither the length nor the neighbours change."""
        storage.replace("a", [b"0123456789"])
        storage.overwrite("a", 3, b"xyz")
        assert content(storage, "a") == b"012xyz6789"

    def test_a_cut_file_goes_on_at_its_new_end(self, storage: Storage) -> None:
        """A handle opened before the cut appends behind it."""
        handle = storage.create("a")
        handle.append(b"0123456789")
        storage.truncate("a", 4)
        handle.append(b"x")
        handle.sync()
        handle.close()
        assert content(storage, "a") == b"0123x"

    def test_names_come_and_go(self, storage: Storage) -> None:
        """A rename takes the place of what was there; an unlinked file is gone."""
        storage.replace("b", [b"b"])
        storage.replace("a", [b"a"])
        assert storage.names() == ["a", "b"]
        storage.rename("a", "b")
        storage.sync_directory()
        assert storage.names() == ["b"]
        assert content(storage, "b") == b"a"
        storage.unlink("b")
        assert storage.names() == []

    def test_room_is_taken_without_making_the_file_longer(self, storage: Storage) -> None:
        """Preallocated room is behind the end, and asking for less changes nothing."""
        handle = storage.create("a")
        handle.append(b"abc")
        handle.preallocate(1 << 20)
        handle.preallocate(2)
        assert handle.size() == storage.size("a") == 3
        assert content(storage, "a") == b"abc"
        handle.append(b"def")
        assert content(storage, "a") == b"abcdef"
        handle.close()

    def test_one_holder_at_a_time(self, storage: Storage, tmp_path: Path) -> None:
        """A rival is kept out until the holder lets go, and the holder is unharmed by the attempt."""
        other = rival(storage, tmp_path)
        storage.lock()
        for _ in range(2):
            with pytest.raises(StorageLockedError, match="is in use by"):
                other.lock()
        other.unlock()  # what it does not hold, it cannot let go
        with pytest.raises(StorageLockedError):
            other.lock()
        storage.unlock()
        storage.unlock()
        other.lock()
        other.unlock()


class TestFiles:
    def test_only_the_owner_can_read(self, tmp_path: Path) -> None:
        """Directory 0700, files 0600, with any umask."""
        before = os.umask(0)
        try:
            storage = FileStorage(tmp_path / "log", create=True)
            storage.lock()
            storage.replace("a", [b"secret"])
        finally:
            os.umask(before)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "log").iterdir()}
        assert modes == {"a": 0o600, "lock": 0o600}
        assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o700
        storage.close()

    def test_room_is_really_taken(self, tmp_path: Path) -> None:
        """The blocks are on the disk before the bytes are, and a cut gives them back."""
        storage = FileStorage(tmp_path)
        handle = storage.create("a")
        handle.append(b"x")
        handle.preallocate(1 << 20)
        if (tmp_path / "a").stat().st_blocks * 512 >= 1 << 20:  # else the file system has no fallocate
            storage.truncate("a", 1)
            assert (tmp_path / "a").stat().st_blocks * 512 < 1 << 20
        with pytest.raises(OSError, match=r"large|space"):
            handle.preallocate(1 << 62)
        handle.close()
        storage.close()

    def test_a_missing_directory_is_made_only_when_asked_and_never_its_parents(self, tmp_path: Path) -> None:
        """A mistyped path is refused by name, and nothing is made."""
        with pytest.raises(StorageRefusedError, match="gone: No such file or directory"):
            FileStorage(tmp_path / "gone")
        with pytest.raises(StorageRefusedError, match="No such file or directory"):
            FileStorage(tmp_path / "gone" / "deeper", create=True)
        assert list(tmp_path.iterdir()) == []

    def test_a_file_is_no_directory(self, tmp_path: Path) -> None:
        """Neither with `create` nor without is a file touched."""
        (tmp_path / "file").write_bytes(b"mine")
        for create in (False, True):
            with pytest.raises(StorageRefusedError, match="Not a directory"):
                FileStorage(tmp_path / "file", create=create)
        assert (tmp_path / "file").read_bytes() == b"mine"

    def test_another_users_directory_is_refused(self) -> None:
        """A directory of another user is not written, even by root, who could."""
        with tempfile.TemporaryDirectory() as theirs:
            if os.geteuid() == 0:
                os.chown(theirs, UNAUTHENTICATED, UNAUTHENTICATED)
            with pytest.raises(StorageRefusedError, match="belongs to another user"):
                FileStorage(theirs if os.geteuid() == 0 else "/")
            assert list(Path(theirs).iterdir()) == []

    def test_a_read_only_directory_is_refused(self) -> None:
        """The refusal comes with the lock, before anything is read."""
        with tempfile.TemporaryDirectory() as directory:
            if os.geteuid() == 0:
                os.chown(directory, UNAUTHENTICATED, UNAUTHENTICATED)
            Path(directory).chmod(0o500)
            with unprivileged():
                storage = FileStorage(directory)
                with pytest.raises(StorageRefusedError, match="Permission denied"):
                    storage.lock()
                storage.close()
            assert list(Path(directory).iterdir()) == []

    def test_a_link_is_no_file_of_ours(self, tmp_path: Path) -> None:
        """A planted symbolic link is not followed."""
        (tmp_path / "outside").write_bytes(b"mine")
        storage = FileStorage(tmp_path / "log", create=True)
        (tmp_path / "log" / "lock").symlink_to(tmp_path / "outside")
        with pytest.raises(StorageRefusedError):
            storage.lock()
        assert (tmp_path / "outside").read_bytes() == b"mine"
        storage.close()

    @pytest.mark.parametrize(("make", "kind"), KINDS, ids=[kind for _, kind in KINDS])
    def test_what_is_no_regular_file_is_refused_at_once(
        self, tmp_path: Path, make: Callable[[Path], object], kind: str
    ) -> None:
        """Opening a pipe blocks, a link leads elsewhere: each is named for what it is."""
        make(tmp_path / "a")
        storage = FileStorage(tmp_path)
        uses: list[Callable[[], object]] = [
            lambda: storage.size("a"),
            lambda: storage.read("a", 0, 1),
            lambda: storage.open("a"),
            lambda: storage.truncate("a", 0),
            lambda: storage.overwrite("a", 0, b"x"),
        ]
        for use in uses:
            with pytest.raises(NotAFileError, match=f"is {kind}, not a regular file"):
                use()
        (tmp_path / "a").rename(tmp_path / "lock")
        with pytest.raises(StorageRefusedError, match=f"lock is {kind}, not a regular file"):
            storage.lock()
        storage.close()

    def test_an_unreadable_holder_is_still_a_holder(self, tmp_path: Path) -> None:
        """The holder of the lock is named when it is known; that it is held does not depend on it."""
        ours, theirs = FileStorage(tmp_path), FileStorage(tmp_path)
        ours.lock()
        with pytest.raises(StorageLockedError, match=f"process {os.getpid()}") as locked:
            theirs.lock()
        assert locked.value.holder == os.getpid()
        (tmp_path / "lock").write_bytes(b"\xff")
        with pytest.raises(StorageLockedError, match="another process"):
            theirs.lock()
        ours.close()
        theirs.close()

    @pytest.mark.parametrize("taken", [1, 7, 1000])
    def test_a_short_write_is_completed(self, taken: int) -> None:
        """The system may take less than it was given, which is not yet success."""
        disk = bytearray()

        def write(rest: memoryview) -> int:
            disk.extend(rest[:taken])
            return min(taken, len(rest))

        write_all(write, bytes(range(256)) * 3)
        assert disk == bytes(range(256)) * 3

    def test_a_limit_in_the_middle_of_a_write_is_an_error(self, tmp_path: Path) -> None:
        """The kernel writes what fits and says so; only the next attempt fails, and that must be reported."""
        storage = FileStorage(tmp_path)
        handle = storage.create("a")
        with file_size_limit(1000), pytest.raises(OSError, match="File too large"):
            handle.append(bytes(2000))
        assert handle.size() == 1000
        handle.close()
        storage.close()


@contextmanager
def unprivileged() -> Iterator[None]:
    """Run as a user whom file modes bind, as they do not bind root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(UNAUTHENTICATED)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class TestPowerCuts:
    def test_only_what_was_synced_is_kept(self) -> None:
        """Content needs its file's sync, a name needs its directory's."""
        storage = MemoryStorage()
        named = storage.create("named")
        storage.sync_directory()
        named.append(b"synced")
        named.sync()
        named.append(b" not")
        storage.create("nameless").sync()
        assert storage.unsynced_name_changes() == 1
        after = storage.crash()
        assert after.names() == ["named"]
        assert after.content("named") == b"synced"
        assert storage.crash(name_changes=1).names() == ["named", "nameless"]
        assert (
            storage.crash(tail=lambda durable, live: live[: len(durable) + 2]).content("named") == b"synced n"
        )

    def test_a_replaced_file_is_the_old_or_the_new_at_every_moment(self) -> None:
        """Stopped before any step, with any of the unsynced names on the disk or not."""
        outcomes = set()
        storage = MemoryStorage({"a": b"old"})
        for moment in range(7):
            storage = MemoryStorage({"a": b"old"})
            storage.stop_before(moment)
            with suppress(StoppedError):
                storage.replace("a", [b"n", b"ew"])
            for names in range(storage.unsynced_name_changes() + 1):
                outcomes.add(storage.crash(name_changes=names).content("a"))
            outcomes.add(storage.kill().content("a"))
        assert outcomes == {b"old", b"new"}
        steps = ["create", "append", "append", "sync", "rename", "sync_directory"]
        assert [operation for operation, _ in storage.operations] == steps
        assert storage.crash().content("a") == b"new"

    def test_a_failed_sync_forgets_what_was_dirty(self) -> None:
        """As on Linux: the bytes can be read, the next sync succeeds, and the disk does not have them."""
        storage = MemoryStorage({"a": b""})
        handle = storage.open("a")
        handle.append(b"lost")
        storage.fail("sync", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            handle.sync()
        handle.append(b"kept")
        handle.sync()
        assert storage.kill().content("a") == b"lostkept"
        assert storage.crash().content("a") == b"\0\0\0\0kept"

    def test_a_kill_loses_nothing_and_saves_nothing(self) -> None:
        """The next process reads what this one wrote; a power cut after that still takes it."""
        storage = MemoryStorage({"a": b"x"})
        storage.open("a").append(b"y")
        storage.create("b")
        killed = storage.kill()
        assert killed.content("a") == b"xy"
        assert killed.names() == ["a", "b"]
        assert killed.crash().content("a") == b"x"
        assert killed.crash().names() == ["a"]

    def test_a_cut_is_durable_with_the_next_sync(self) -> None:
        """Until then a power cut brings the bytes back."""
        storage = MemoryStorage({"a": b"0123"})
        storage.truncate("a", 2)
        assert storage.crash().content("a") == b"0123"
        storage.open("a").sync()
        assert storage.crash().content("a") == b"01"

    def test_a_full_disk_takes_what_fits(self) -> None:
        """A write ends short with an error; room that was taken before is still there for its file alone."""
        storage = MemoryStorage(space_bytes=100)
        reserved, other = storage.create("reserved"), storage.create("other")
        reserved.preallocate(60)
        with pytest.raises(OSError, match="No space left"):
            other.append(bytes(50))
        assert other.size() == 40
        with pytest.raises(OSError, match="No space left"):
            reserved.preallocate(61)
        reserved.append(bytes(60))
        storage.unlink("other")
        reserved.append(bytes(40))
        assert storage.free_bytes() == 0

    def test_a_fault_strikes_once_at_the_operation_it_was_set_for(self) -> None:
        """So a test can fail each step of a procedure in turn."""
        storage = MemoryStorage({"a": b""})
        handle = storage.open("a")
        storage.fail("append", errno.EIO, nth=2, after_bytes=1)
        storage.fail("read", errno.EIO)
        handle.append(b"one")
        with pytest.raises(OSError, match="Input/output"):
            handle.append(b"two")
        handle.append(b"!")
        with pytest.raises(OSError, match="Input/output"):
            storage.read("a", 0, 1)
        assert storage.content("a") == b"onet!"
