"""Roots of archives: one value for two libraries, absolute always.

Knows: the forms of a root. Must never know: what is stored there.
"""

import pickle
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from pyspark_weir.errors import OptionError
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable
from tests.serving import QuietHandler, serving
from tests.spark.table.archiving import batch, stored_ids

_KEYS = {
    "aws_access_key_id": "id",
    "AWS_SECRET_ACCESS_KEY": "hidden",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
}


def test_paths_and_file_addresses_become_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ArchiveRoot.of("a/../b").url == f"{tmp_path}/b"
    assert ArchiveRoot.of(Path("b")).url == f"{tmp_path}/b"
    assert ArchiveRoot.of("./s3:x").url == f"{tmp_path}/s3:x"
    assert ArchiveRoot.of("//b//c/").url == "/b/c"
    assert ArchiveRoot.of(f"file://{tmp_path}/a%20b/").url == f"{tmp_path}/a b"


@pytest.mark.parametrize(
    "text",
    ["", "/", "gs://b/c", "hdfs://n/c", "file:c", "file://host/c", "file://c", "s3:c", "s3://", "s3://b", "s3://b/",
     "s3://b//c", "s3://b/../c", "s3://b/c?x=1", "s3://b/a%20b", "s3://b/ä", "/a%20b", "file:///a%2520b",
     "S3x:c", "dbfs:/c"],
)  # fmt: skip
def test_what_names_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError):
        ArchiveRoot.of(text)
    assert not list(tmp_path.iterdir())


def test_a_bucket_has_one_set_of_credentials_for_both_libraries() -> None:
    root = ArchiveRoot.of("s3a://bucket/a/b/", _KEYS)
    assert root.url == "s3://bucket/a/b"
    assert root.path("c") == "bucket/a/b/c"
    assert root.storage_options == {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true",
    }
    assert root.files.type_name == "s3"
    assert "hidden" not in repr(root)
    again = pickle.loads(pickle.dumps(root))
    assert again == root
    assert again.storage_options == root.storage_options


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(OptionError, match="AWS_REGIN"):
        ArchiveRoot.of("s3://bucket/a", {"AWS_REGIN": "x"})
    with pytest.raises(OptionError, match="takes no options"):
        ArchiveRoot.of("/a", {"AWS_REGION": "x"})


@pytest.mark.parametrize("name", ["a b", "ä#?", "a:b", "date=1"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    root = ArchiveRoot.of(tmp_path / name)
    table = ArchiveTable.create(root)
    table.commit(batch(root, 0, "0-0", ["5-0"]))
    assert stored_ids(ArchiveTable.open(root)) == ["5-0"]
    assert [found.name for found in tmp_path.iterdir()] == [name]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    root = ArchiveRoot.of(tmp_path / "new")
    assert root.read("a/b") is None
    root.replace("a/b", b"1")
    root.replace("a/b", b"22")
    assert root.read("a/b") == b"22"
    assert (root.size("a/b"), root.size("a"), root.names("a"), root.names("x")) == (2, None, ["b"], [])
    root.delete("a/b")
    root.delete("a/b")
    assert root.names("a") == []


class BusyStore(ThreadingHTTPServer):
    """An object store that asks for patience a few times before it answers."""

    refusals = 3


class _Answer(QuietHandler):
    server: BusyStore
    protocol_version = "HTTP/1.1"

    def respond(self) -> None:
        busy = self.server.refusals > 0
        self.server.refusals -= busy
        content = b"" if busy else b"hello"
        self.send_response(503 if busy else 200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def busy_store() -> Iterator[BusyStore]:
    with serving(BusyStore(("127.0.0.1", 0), _Answer)) as server:
        yield server


def test_a_store_that_is_busy_is_asked_again(busy_store: BusyStore) -> None:
    """As gateways are, so that a moment of load ends no batch."""
    url = f"http://127.0.0.1:{busy_store.server_port}"
    root = ArchiveRoot.of("s3://bucket/x", {**_KEYS, "AWS_ENDPOINT_URL": url, "AWS_REGION": "eu-1"})
    assert root.read("file") == b"hello"
