"""`weir backup` and `weir restore`: everything acknowledged, whole or not at all, and never over anything."""

import threading
from pathlib import Path

import pytest

from tests.cli.command import Ended, fill, post, redis, weir, work
from tests.server import Server, call

NOWHERE = "http://127.0.0.1:9"


def run(command: str, place: Path, data: Path, *words: str) -> Ended:
    return weir(NOWHERE, command, str(place), "--data", str(data), *words)


def seen(url: str) -> list[object]:
    """All that a client sees of a stream with a group, but for its generation and for times."""
    return [
        redis(url, "XRANGE", "orders", "-", "+"),
        redis(url, "XPENDING", "orders", "g"),
        redis(url, "XINFO", "GROUPS", "orders"),
    ]


def generation(url: str) -> str:
    return str(call(url, "GET", "/v1/streams/orders")[1]["generation"])


def test_a_backup_comes_back(tmp_path: Path) -> None:
    """Entries, groups and pending entries as they were; another generation, so that readers notice."""
    with Server(tmp_path / "data") as server:
        work(server.url, "orders")
        before, was = seen(server.url), generation(server.url)
        done = run("backup", tmp_path / "copy", tmp_path / "data", "--json")
        assert done.code == 0
        (copied,) = done.objects
        assert (copied["files"], copied["left_bytes"]) == (1, 0)
        redis(server.url, "XADD", "orders", "99-0", "n", "after the backup")
    assert "restored" in run("restore", tmp_path / "copy", tmp_path / "again").out
    with Server(tmp_path / "again") as server:
        assert seen(server.url) == before
        assert generation(server.url) != was
        assert server.stop() == 0
    # A start changes the copy no more than a restore does.
    assert run("restore", tmp_path / "copy", tmp_path / "third").code == 0


def test_no_id_is_given_again_after_a_restore(tmp_path: Path) -> None:
    """What was published after the backup is gone, its IDs are not."""
    with Server(tmp_path / "data") as server:
        redis(server.url, "XADD", "orders", "*", "n", "1")
        assert run("backup", tmp_path / "copy", tmp_path / "data").code == 0
        later = redis(server.url, "XADD", "orders", "*", "n", "2")
    assert run("restore", tmp_path / "copy", tmp_path / "again").code == 0
    with Server(tmp_path / "again") as server:
        fresh = redis(server.url, "XADD", "orders", "*", "n", "3")
    assert int(fresh.split("-")[0]) > int(later.split("-")[0])


def test_a_backup_under_load_has_everything_acknowledged_before_it(tmp_path: Path) -> None:
    """A client publishes and the log is rewritten all the while; what had an answer is in it."""
    ended, acknowledged = threading.Event(), [0]
    with Server(tmp_path / "data", "--fsync", "no") as server:

        def publish() -> None:
            while not ended.is_set():
                number = acknowledged[0] + 1
                redis(server.url, "XADD", "orders", f"{number}-0", "n", number)
                acknowledged[0] = number

        def rewrite() -> None:
            while not ended.is_set():
                post(server.url, "/v1/admin/rewrite", {})

        clients = [threading.Thread(target=work) for work in (publish, rewrite)]
        for client in clients:
            client.start()
        try:
            copies = []
            for number in range(2):
                before = acknowledged[0]
                copies.append((before, tmp_path / f"copy{number}"))
                assert run("backup", copies[-1][1], tmp_path / "data").code == 0
        finally:
            ended.set()
            for client in clients:
                client.join()
    for before, copy in copies:
        assert weir(NOWHERE, "log", "check", "--data", str(copy)).code == 0
        with Server(copy) as server:
            entries = redis(server.url, "XRANGE", "orders", "-", "+")
        assert len(entries) >= before > 0 or before == 0
        assert [fields[1] for _, fields in entries] == [str(n + 1) for n in range(len(entries))]


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_nothing_is_overwritten(tmp_path: Path, command: str) -> None:
    """A target that holds anything, is no directory, or has no parent is refused as a wrong
    argument; an empty one is filled.
    """
    with Server(tmp_path / "data") as server:
        fill(server.url, "orders", 3)
        server.stop()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.jpeg").write_bytes(b"x")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    source = tmp_path / "data"

    def to(target: Path) -> Ended:
        return run(command, target, source) if command == "backup" else run(command, source, target)

    for name, what in (
        ("full", "is not empty"),
        ("file", "no directory"),
        ("link", "no directory"),
        ("no/where", f"{tmp_path / 'no'} is no directory"),
    ):
        done = to(tmp_path / name)
        assert (done.code, done.out) == (2, ""), name
        assert what in done.err
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["photo.jpeg"]
    assert to(tmp_path / "empty").code == 0
    assert not [file.name for file in tmp_path.iterdir() if file.name.endswith(".partial")]


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_damaged_log_is_not_copied(tmp_path: Path, command: str) -> None:
    """It is refused as a start refuses it, and nothing is left of the attempt."""
    with Server(tmp_path / "data") as server:
        fill(server.url, "orders", 3)
        server.stop()
    file = tmp_path / "data" / "segment-1.weir"
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"2-0"', b'"7-0"'))
    pair = (
        (tmp_path / "to", tmp_path / "data") if command == "backup" else (tmp_path / "data", tmp_path / "to")
    )
    done = run(command, *pair)
    assert done.code == 3
    assert "segment-1.weir, offset" in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.log"]


def test_what_an_interrupted_backup_left_is_taken_over(tmp_path: Path) -> None:
    """Half a backup has another name; what no backup makes is left alone."""
    with Server(tmp_path / "data") as server:
        fill(server.url, "orders", 3)
        half = tmp_path / ".copy.partial"
        half.mkdir()
        (half / "segment-1.weir").write_bytes(b"half")
        assert run("backup", tmp_path / "copy", tmp_path / "data").code == 0
        assert not half.exists()
        half = tmp_path / ".other.partial"
        half.mkdir()
        (half / "photo.jpeg").write_bytes(b"x")
        done = run("backup", tmp_path / "other", tmp_path / "data")
        assert (done.code, "photo.jpeg" in done.err) == (3, True)
        assert (half / "photo.jpeg").exists()
        assert post(server.url, "/v1/commands", ["XLEN", "orders"])["result"] == 3
