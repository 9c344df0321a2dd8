"""Features that another program brings into the table are refused by name, by all that opens it.

Knows: the features of Delta's protocol, all commands and readers of an archive.
Must never know: how these work.
"""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from app.archived.asking import Asked
from app.errors import RefusalError
from engine import SystemClock
from history.service import History
from pyspark_weir.cli.main import jobs
from pyspark_weir.errors import ArchiveError, UnknownFeatureError
from pyspark_weir.ids import EntryId
from pyspark_weir.jobs.archived import ArchiveReader, entries
from pyspark_weir.jobs.replay import FromArchive, Replay, plan_of
from pyspark_weir.table import deletions
from pyspark_weir.table.cleaning import open_repaired
from pyspark_weir.table.compaction import CompactionRules, compact
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable, EntryFilter
from tests.server import Server
from tests.spark.table.making import GENERATION, Maker, key_of, numbered

ROOT: Final = Path(__file__).parents[3]
A: Final = key_of("a")
# Of readers and writers, and of writers alone; the last of each is of a version to come.
OF_READERS: Final = (
    "catalogManaged", "columnMapping", "deletionVectors", "geospatial", "timestampNtz", "typeWidening",
    "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck", "variantShredding-preview", "variantType",
    "variantType-preview", "readersOfTomorrow",
)  # fmt: skip
OF_WRITERS: Final = (
    "allowColumnDefaults", "changeDataFeed", "checkConstraints", "checkpointProtection", "clustering",
    "collations-preview", "domainMetadata", "generatedColumns", "icebergCompatV1", "icebergCompatV2",
    "icebergCompatV3", "identityColumns", "inCommitTimestamp", "materializePartitionColumns", "rowTracking",
    "writersOfTomorrow",
)  # fmt: skip
Protocol = dict[str, Any]


def named(*features: str) -> Protocol:
    """A protocol with features by name: of readers too, unless all are of writers alone."""
    found: Protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [*features]}
    readers = [one for one in features if one in OF_READERS]
    return found | ({"minReaderVersion": 3, "readerFeatures": readers} if readers else {})


# Versions of the time before features had names, and what the highest of these features is.
OLD: Final = {
    "checkConstraints": (1, 3),
    "generatedColumns": (1, 4),
    "changeDataFeed": (1, 4),
    "columnMapping": (2, 5),
    "identityColumns": (1, 6),
}
PROTOCOLS: Final[list[tuple[str, Protocol]]] = [
    *((one, named(one)) for one in (*OF_READERS, *OF_WRITERS)),
    *((name, {"minReaderVersion": old[0], "minWriterVersion": old[1]}) for name, old in OLD.items()),
    ("version 4", {"minReaderVersion": 4, "minWriterVersion": 8}),
]


def upgrade(root: ArchiveRoot, protocol: Protocol) -> None:
    """Add a commit that changes the protocol of a table, as another program does."""
    log = Path(root.path("_delta_log"))
    version = len(list(log.glob("*.json")))
    actions = [{"commitInfo": {"operation": "SET TBLPROPERTIES"}}, {"protocol": protocol}]
    (log / f"{version:020d}.json").write_text("".join(f"{json.dumps(one)}\n" for one in actions))


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    """An archive with recorded deletions."""
    found = Maker(tmp_path / "archive")
    found.batch({A: numbered(1, 10)})
    found.batch({A: numbered(11, 10)})
    deletions.record(found.table.root, {A: EntryId(2, 0)}, {A: [EntryId(1, 0)]})
    return found


async def _page(root: ArchiveRoot) -> None:
    history = History(root, SystemClock(), lambda: "", 1 << 20)
    try:
        await history.page(Asked.of("a", {"generation": GENERATION}))
    except RefusalError as refusal:
        raise UnknownFeatureError(refusal.detail) from None
    finally:
        history.archive.close()
        history.cache.close()


def _commit(root: ArchiveRoot) -> None:
    Maker(root, "another").batch({key_of("b"): ["5-0"]})


# All that opens an archive, but for commands: the job on the driver and in tasks, entries(), the service.
OPENERS: Final[dict[str, Callable[[ArchiveRoot], object]]] = {
    "open": ArchiveTable.open,
    "open_repaired": open_repaired,
    "create": ArchiveTable.create,
    "commit": _commit,
    "entries": lambda root: entries(None, root),  # type: ignore[arg-type] # refused before it is used
    "source": lambda root: ArchiveReader(root, ArchiveTable.open(root).version).partitions(),
    "replay": lambda root: plan_of(FromArchive(root), Replay(job="j", source=root.url)),
    "history": lambda root: asyncio.run(_page(root)),
}


def _refusal(use: Callable[[], object]) -> str:
    with pytest.raises(UnknownFeatureError, match="DROP FEATURE") as refused:
        use()
    return refused.value.sentence


@pytest.mark.parametrize(("feature", "protocol"), PROTOCOLS, ids=lambda one: str(one)[:60])
def test_an_unknown_feature_is_refused_by_name_by_all_that_opens_an_archive(
    maker: Maker, feature: str, protocol: Protocol
) -> None:
    """Also by a handle from before, and where it is the recorded deletions that have it."""
    root = maker.table.root
    upgrade(root, protocol)
    for name, opens in OPENERS.items():
        assert feature in _refusal(lambda opens=opens: opens(root)), name  # type: ignore[misc] # mypy infers no type
    assert feature in _refusal(maker.table.refresh)
    assert feature in _refusal(lambda: maker.batch({A: numbered(21, 1)}))
    assert feature in _refusal(lambda: list(compact(maker.table, CompactionRules())))


@pytest.mark.parametrize("feature", ["deletionVectors", "rowTracking", "readersOfTomorrow"])
def test_recorded_deletions_are_a_table_too(maker: Maker, feature: str) -> None:
    """Without them deleted entries would be shown again."""
    root = maker.table.root
    upgrade(root.inside(deletions.FOLDER), named(feature))
    uses: Sequence[Callable[[], object]] = (
        lambda: deletions.read(root),
        lambda: deletions.known_upto(root),
        lambda: deletions.version(root),
        lambda: deletions.record(root, {A: EntryId(3, 0)}, {}),
        lambda: asyncio.run(_page(root)),
    )
    for use in uses:
        with pytest.raises(UnknownFeatureError, match=feature):
            use()


@pytest.mark.parametrize("feature", ["deletionVectors", "rowTracking"])
def test_every_command_of_an_archive_refuses_it(
    maker: Maker, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, feature: str
) -> None:
    """Before Spark has started, and with a failure's exit code: those that are added later too."""
    monkeypatch.setenv("WEIR_URL", server.url)
    root = maker.table.root
    upgrade(root, named(feature))
    words = {
        "archive": [root.url, "--streams", "a", "--checkpoint", str(tmp_path / "c")],
        "replay": ["--from", root.url, "--job-id", "j", "--state", str(tmp_path / "s")],
        "erase": [root.url, "--stream", "a", "--ids", "1-0"],
    }
    # A mirror reads gateways alone.
    commands = get_command(jobs).commands.keys() - {"mirror"}  # type: ignore[attr-defined] # it is a group
    assert len(commands) >= 7
    for command in sorted(commands):
        refused = CliRunner().invoke(jobs, [command, *words.get(command, [root.url])])
        assert refused.exit_code == 1, (command, refused.output)
        assert f"WEIR_ARCHIVE: {root.url} has features" in refused.stderr, (command, refused.stderr)
        assert feature in refused.stderr


def test_what_every_table_has_is_known(maker: Maker) -> None:
    """By name too, as a program writes them that upgrades the protocol for something else."""
    upgrade(maker.table.root, named("appendOnly", "invariants"))
    maker.batch({A: numbered(21, 10)})
    assert len(ArchiveTable.open(maker.table.root).files(EntryFilter(*A))) == 3
    assert list(compact(maker.table, CompactionRules()))


def test_a_table_is_loaded_in_one_place() -> None:
    """There its features are looked at."""
    sources = [*(ROOT / "spark/pyspark_weir").rglob("*.py"), *(ROOT / "app").rglob("*.py")]
    loading = {path.name for path in sources if re.search(r"DeltaTable\(|DeltaTable\.from", path.read_text())}
    assert loading == {"log.py"}


def test_a_compaction_stops_where_what_it_removes_still_counts(maker: Maker) -> None:
    """A deletion vector in a table that does not say so: each round would have doubled the rows."""
    root = maker.table.root
    (first, _) = maker.table.files()
    log = Path(root.path("_delta_log"))
    add = next(
        json.loads(line)["add"]
        for line in (log / f"{1:020d}.json").read_text().splitlines()
        if line.startswith('{"add"')
    )
    assert add["path"] == first.path
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1, "sizeInBytes": 36}
    marked = {**add, "deletionVector": {**vector, "cardinality": 1}}
    (log / f"{3:020d}.json").write_text(f"{json.dumps({'add': marked})}\n")
    with pytest.raises(ArchiveError, match="was removed, and still counts"):
        list(compact(maker.table, CompactionRules()))
    assert maker.table.version == 4
    with pytest.raises(ArchiveError):
        list(compact(maker.table, CompactionRules()))
    assert maker.table.version <= 5
