"""Delta's log: how a table is created, loaded and a commit added, which commits are whole, and what ours say.

Knows: names of the log, the form of a commit, which features of Delta's protocol Weir has.
Must never know: ranges, what is committed.

Delta's writer does not sync. A writer of ours makes sure that the disk holds all commits before it adds
another one, so a power cut can leave only the last one empty or cut short, on which nothing relies yet.
A commit of ours has MEMBER in its `commitInfo` and ends with its transaction: one that was cut between two
lines shows it too.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import ProtocolVersions
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from pyspark_weir.errors import ArchiveDamagedError, UnknownFeatureError, storage_error
from pyspark_weir.table.root import ArchiveRoot

FOLDER: Final = "_delta_log"
# The member of a commit's `commitInfo` that is ours.
MEMBER: Final = "weir"
FOREIGN: Final = "foreign"
LAST_CHECKPOINT: Final = f"{FOLDER}/_last_checkpoint"
_CHECKPOINT: Final = ".checkpoint.parquet"
_DIGITS: Final = 20
_SUFFIX: Final = ".json"
# Vacuum adds two commits, and syncs neither.
_UNSYNCED_MAX: Final = 3
_CREATION: Final = "CREATE TABLE"

# What both libraries raise that store an archive.
STORAGE_ERRORS: Final = (OSError, DeltaError)

Action = dict[str, Any]


@contextmanager
def storage_failures() -> Iterator[None]:
    """Raises PipelineError, one line, for what a disk or an object store refuses: of several lines Spark's
    reader would be shown the first.
    """
    try:
        yield
    except STORAGE_ERRORS as error:
        raise storage_error(error) from None


def commit_name(version: int) -> str:
    """Where a commit is stored."""
    return f"{FOLDER}/{version:0{_DIGITS}d}{_SUFFIX}"


def checkpoint_name(version: int) -> str:
    """Where a checkpoint is stored."""
    return f"{FOLDER}/{version:0{_DIGITS}d}{_CHECKPOINT}"


def has_table(root: ArchiveRoot) -> bool:
    """Whether a root holds a Delta table."""
    return DeltaTable.is_deltatable(root.url, storage_options=root.storage_options)


# Features of a table that Weir does right. Another one may mean that rows of a file do not count
# (`deletionVectors`), or that columns have other names there (`columnMapping`).
_KNOWN: Final = frozenset(("appendOnly", "invariants"))
# Before they had names, features came with a version of the protocol, each with all of the earlier ones.
_OF_READER_VERSIONS: Final = {2: ("columnMapping",)}
_OF_WRITER_VERSIONS: Final = {
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
# Since such a commit Weir has added none.
_LATE_COMMITS: Final = 100
# Of readers and of writers: the last version that there is, in which features have names.
_VERSIONS_MAX: Final = (3, 7)


def load(root: ArchiveRoot, version: int | None = None) -> DeltaTable:
    """The latest version of a table, or that one. Raises UnknownFeatureError, and what deltalake raises."""
    try:
        found = DeltaTable(root.url, version=version, storage_options=root.storage_options)
    except DeltaError:
        # It may be one that deltalake does not know either.
        _check_features(root, _protocol_of_log(root))
        raise
    _check_features(root, found.protocol())
    return found


def _protocol_of_log(root: ArchiveRoot) -> ProtocolVersions:
    """The last one that a late commit brought in; the least, where none did."""
    names = [name for name in root.names(FOLDER) if name.endswith(_SUFFIX)][-_LATE_COMMITS:]
    commits = (_actions(root.read(f"{FOLDER}/{name}") or b"") or [] for name in reversed(names))
    brought = (one["protocol"] for actions in commits for one in actions if "protocol" in one)
    found: dict[str, Any] = next(brought, {})
    return ProtocolVersions(
        found.get("minReaderVersion", 1),
        found.get("minWriterVersion", 1),
        found.get("writerFeatures"),
        found.get("readerFeatures"),
    )


def _check_features(root: ArchiveRoot, protocol: ProtocolVersions) -> None:
    versions = protocol.min_reader_version, protocol.min_writer_version
    found = {
        *(protocol.reader_features or ()),
        *(protocol.writer_features or ()),
        *_of_version(_OF_READER_VERSIONS, versions[0]),
        *_of_version(_OF_WRITER_VERSIONS, versions[1]),
    }
    unknown = sorted(found - _KNOWN)
    for who, version, most in zip(("readers", "writers"), versions, _VERSIONS_MAX, strict=True):
        unknown += [f"version {version} for {who}"] if version > most else []
    if unknown:
        raise UnknownFeatureError(
            f"{root.url} has features of Delta's that this version of Weir would read or write wrongly: "
            f"{', '.join(unknown)}. Take them out with the program that brought them in: REORG TABLE … "
            "APPLY (PURGE), then ALTER TABLE … DROP FEATURE"
        )


def _of_version(features: Mapping[int, tuple[str, ...]], version: int) -> Iterator[str]:
    if version <= max(features):
        yield from (name for since, names in features.items() if since <= version for name in names)


def create(
    root: ArchiveRoot,
    schema: Schema,
    configuration: Mapping[str, str],
    partition_by: Sequence[str] = (),
    name: str | None = None,
) -> None:
    """Create a Delta table, unless there is one. The disk holds the first commit of a new one; of another
    it may be gone, and writers sync what is left.
    """
    if has_table(root):
        return
    try:
        create_table_with_add_actions(
            root.url,
            schema,
            [],
            partition_by=list(partition_by),
            name=name,
            configuration=dict(configuration),
            storage_options=root.storage_options,
            # Else two that create it at once both do, the second as version 1.
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    except DeltaError:
        # Another writer was faster.
        if not has_table(root):
            raise
    root.sync([commit_name(0)])


def commit(
    delta: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    transaction: Transaction,
    ours: Mapping[str, Any],
    partition_by: Sequence[str] = (),
) -> bool:
    """Commit as the very next version of a table; False where another commit is that version."""
    properties = CommitProperties(
        custom_metadata={MEMBER: dict(ours)}, max_commit_retries=0, app_transactions=[transaction]
    )
    try:
        delta.create_write_transaction(
            list(actions),
            "append",
            delta.schema(),
            partition_by=list(partition_by),
            commit_properties=properties,
        )
    except CommitFailedError:
        return False
    return True


def metadata_of(root: ArchiveRoot, version: int) -> dict[str, Any]:
    """What a commit of ours says beside Delta's actions. Of another program's that has changed rows, and has
    not only put them into other files, its operation as FOREIGN.

    Raises ArchiveDamagedError where the commit is missing or cut short.
    """
    return metadata_in(version, root.read(commit_name(version)))


def metadata_in(version: int, stored: bytes | None) -> dict[str, Any]:
    """The same of what was read of a commit, None where it is missing. Raises ArchiveDamagedError."""
    if stored is None:
        raise ArchiveDamagedError(f"{commit_name(version)} is missing, and nothing else has its ranges")
    found = _actions(stored)
    if found is None:
        raise cut_short(commit_name(version))
    ours = _ours(found)
    if ours is not None or not any(_changes_rows(action) for action in found):
        return ours or {}
    return {
        FOREIGN: str(
            next((info["operation"] for info in map(_info, found) if "operation" in info), "a change")
        )
    }


# What a commit of ours has, and what one has that changes no files, as vacuum adds it.
_OURS: Final = frozenset(("commitInfo", "add", "remove", "txn"))
_QUIET: Final = frozenset(("commitInfo", "txn"))


def files_in(stored: bytes) -> dict[str, Action | None] | None:
    """The files that a commit of ours adds, by path, and None where it removes one. None at all for what
    deltalake has to read: another program's, and what is cut short.
    """
    found = _actions(stored)
    known = _QUIET if found is None or _ours(found) is None else _OURS
    if found is None or not all(action.keys() <= known for action in found):
        return None
    changed: dict[str, Action | None] = {
        action["remove"]["path"]: None for action in found if "remove" in action
    }
    changed |= {action["add"]["path"]: action["add"] for action in found if "add" in action}
    # It has another form where it is removed.
    return None if any("%" in path for path in changed) else changed


def _changes_rows(action: Action) -> bool:
    return any((action.get(kind) or {}).get("dataChange") for kind in ("add", "remove"))


def cut_short(name: str) -> ArchiveDamagedError:
    """The error for a file of the log that a power cut left unfinished."""
    return ArchiveDamagedError(
        f"{name} was cut short by a power cut: run `weir-spark archive` or `weir-spark compact`, which "
        "remove what was never finished"
    )


def unfinished(root: ArchiveRoot) -> list[str]:
    """The files at the end of the log that a power cut left unfinished, the last one first: nothing counts on
    them. Raises ArchiveDamagedError where later commits do: then it was no power cut.
    """
    names = root.names(FOLDER)
    found: list[str] = []
    for version in _last_versions(names):
        stored = root.read(commit_name(version))
        actions = None if stored is None else _actions(stored)
        if found and any(action.keys() != {"commitInfo"} for action in actions or ()):
            raise ArchiveDamagedError(
                f"{found[0]} is cut short, and {commit_name(version)} stands on it: restore it from a copy"
            )
        if found or actions is None:
            found.append(commit_name(version))
    last = max((f"{FOLDER}/{name}" for name in names if name.endswith(_CHECKPOINT)), default=None)
    if last is not None and not _is_parquet(root, last):
        found += [last, LAST_CHECKPOINT]
    return [name for name in reversed(found) if root.size(name) is not None]


def _last_versions(names: list[str]) -> range:
    """The commits of which a power cut may have left something unfinished."""
    texts = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    there = [int(text) for text in texts if len(text) == _DIGITS and text.isdecimal()]
    return range(max(min(there), max(there) - _UNSYNCED_MAX + 1), max(there) + 1) if there else range(0)


def _actions(stored: bytes) -> list[Action] | None:
    """The actions of a commit; None where it is cut short."""
    try:
        found = [json.loads(line) for line in stored.splitlines() if line]
    except ValueError:
        return None
    if not found or not all(isinstance(action, dict) and action for action in found):
        return None
    kinds = [next(iter(action)) for action in found]
    if _ours(found) is not None and kinds[-1] != "txn":
        return None
    creates = any(_info(action).get("operation") == _CREATION for action in found)
    return None if creates and kinds[-1] != "metaData" else found


def _ours(actions: list[Action]) -> dict[str, Any] | None:
    return next((info[MEMBER] or {} for action in actions if MEMBER in (info := _info(action))), None)


def _info(action: Action) -> dict[str, Any]:
    return action.get("commitInfo") or {}


def _is_parquet(root: ArchiveRoot, name: str) -> bool:
    try:
        with root.files.open_input_file(root.path(name)) as file:
            pq.read_table(file)
    except (OSError, pa.ArrowException):
        return False
    return True
