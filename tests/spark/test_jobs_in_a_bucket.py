"""The commands of archives on an archive in a bucket, whose credentials the environment has.

Knows: the commands as they are typed, an S3-compatible server, a real gateway.
Must never know: how a table is stored.
"""

import pytest
from typer.testing import CliRunner, Result

from pyspark_weir import ids
from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.cli.main import jobs
from pyspark_weir.gateway import GatewayAccess, GatewayClient, PlanQuery
from pyspark_weir.table.deletions import known_upto
from pyspark_weir.table.root import ArchiveRoot
from tests.server import Server
from tests.spark.table.making import Maker, entries_in, key_of
from tests.spark.table.object_store import BUCKET, ObjectStore

STREAM = "orders"
NUMBERS = range(1, 41)


@pytest.fixture(autouse=True)
def environment(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user of another store than Amazon's has it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)


def weir(*words: str) -> Result:
    found = CliRunner().invoke(jobs, words)
    assert found.exit_code == 0, found.output
    return found


def archive(gateway: GatewayClient, url: str) -> Maker:
    """A stream of forty entries, one of which was deleted since it was archived, in ten batches."""
    gateway.post(
        "/v1/publish",
        {
            "streams": {
                STREAM: [{"id": f"{one}-0", "fields": [["n", f"{one}-0"], ["n", "1"]]} for one in NUMBERS]
            }
        },
    )
    seen = gateway.update_stream(STREAM, archived_up_to="40-0")
    maker = Maker(ArchiveRoot.of(url))
    for first in NUMBERS[::4]:
        maker.batch({key_of(STREAM, seen["generation"]): [f"{first + one}-0" for one in range(4)]})
    gateway.post(f"/v1/streams/{STREAM}/entries/delete", {"ids": ["3-0"]})
    return maker


def test_upkeep_of_an_archive_in_a_bucket(server: Server) -> None:
    """Merged, compared, trimmed: every entry is there once all the while."""
    url = f"s3://{BUCKET}/kept"
    with GatewayClient(GatewayAccess("g0", server.url)) as gateway:
        maker = archive(gateway, url)
        before = entries_in(maker.table)
        assert set(before.values()) == {1}
        assert len(before) == len(NUMBERS)
        assert "10 files merged into 1" in weir("compact", url).stderr
        assert entries_in(maker.table) == before
        words = ("--gateway", server.url)
        assert "40 entries in 1 files" in weir("verify", url, "--deep", *words).stderr
        assert "removed 39" in weir("trim", url, "--yes", *words).stdout
        assert gateway.plan(PlanQuery(streams={STREAM: "0-0"})).streams[STREAM].count == 0
    (upto,) = known_upto(maker.table.root).values()
    assert upto == ids.parse("40-0")
    assert "0 files deleted" in weir("vacuum", url).stderr
    assert entries_in(maker.table) == before
    assert "1 entries erased" in weir("erase", url, "--stream", STREAM, "--ids", "3-0").stderr
    assert len(entries_in(maker.table)) == len(NUMBERS) - 1


def test_an_option_wins_over_the_environment(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the environment are in no option: these travel with plans."""
    url = f"s3://{BUCKET}/chosen"
    Maker(ArchiveRoot.of(url)).batch({key_of("a"): ["1-0"]})
    assert ArchiveRoot.of(url).options == {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": store.url}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    weir("compact", url, "--dry-run", "--storage", f"AWS_ENDPOINT_URL={store.url}")


def test_a_checkpoint_of_a_replay_may_be_there_too() -> None:
    place = StateFolder.of(f"s3a://{BUCKET}/state")
    place.replace("done.json", b"{}")
    assert place.read("done.json") == b"{}"
    assert place.address == f"s3a://{BUCKET}/state"
