"""Clients have all descriptors of the process, and take each that becomes free: the log goes on.

Knows: the limit of the process, a real directory, all that a log opens. Must never know: which are kept back.
"""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import pytest

from engine.log import Log
from engine.records.changes import Configure
from engine.records.payload import encode
from engine.storage.file import SPARE_DESCRIPTORS, FileStorage
from tests.engine.log_cases import append, next_segment, open_log, write_base

PAYLOAD: Final = encode([Configure("stream-node-max-entries", 50)])


class Clients:
    """They take all descriptors that there are."""

    def __init__(self) -> None:
        self._taken: list[int] = []

    def take_all(self) -> None:
        with suppress(OSError):
            while True:
                self._taken.append(os.open(os.devnull, os.O_RDONLY))

    def leave(self) -> None:
        while self._taken:
            os.close(self._taken.pop())


@pytest.fixture
def clients() -> Iterator[Clients]:
    """The process may have some more than it has."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 64 + max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208 - numbers, not paths
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    clients = Clients()
    yield clients
    clients.leave()
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def rewrite(log: Log) -> None:
    """With a new segment, a file of runs and a base, all read again."""
    next_segment(log)
    runs = log.create_runs()
    runs.append(b"cold entries")
    assert log.read_run(runs.number, 0, 4) == b"cold"
    write_base(log, log.manifest.segments[-1].position, PAYLOAD, reservation_ms=0)
    append(log, PAYLOAD, synced=True)
    runs.close()


def test_the_log_goes_on_without_a_free_descriptor(tmp_path: Path, clients: Clients) -> None:
    """Rewrite after rewrite, cut after cut: none is lost to a client when a file is closed."""
    with closing(FileStorage(tmp_path / "data", create=True)) as storage:
        log = open_log(storage)
        for _ in range(3 * SPARE_DESCRIPTORS):
            clients.take_all()
            rewrite(log)
            clients.take_all()
            storage.truncate(log.manifest.segments[-1].name, storage.size(log.manifest.segments[-1].name))
        assert log.poisoned is None
        clients.leave()
        log.close()


def test_beyond_those_that_are_kept_back_there_are_none(tmp_path: Path, clients: Clients) -> None:
    """The error says so; what is closed is there again for the next."""
    with closing(FileStorage(tmp_path / "data", create=True)) as storage:
        storage.replace("a", [b"1"])
        clients.take_all()
        readers = [storage.reader("a") for _ in range(SPARE_DESCRIPTORS)]
        with pytest.raises(OSError, match="Too many open files") as refused:
            storage.reader("a")
        assert refused.value.errno == errno.EMFILE
        readers.pop().close()
        clients.take_all()
        assert storage.read("a", 0, 1) == b"1"
        for reader in readers:
            reader.close()
            reader.close()


def test_a_directory_that_is_closed_keeps_none(tmp_path: Path) -> None:
    """Nor do files of it that are closed later."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - numbers, not paths
    storage = FileStorage(tmp_path / "data", create=True)
    handle = storage.create("a")
    storage.close()
    handle.close()
    storage.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above
