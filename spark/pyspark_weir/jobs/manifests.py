"""Reads the manifests of archives that were made before the table, so that `adopt` can convert them.

Knows: the form of a manifest, which files count after compactions.
Must never know: how entries are read, what the table is.

```
ROOT/_manifest/archive.json              whose archive this is
ROOT/_manifest/0000000007.json           batch 7 of the query: its files, and per stream how far it went
ROOT/_manifest/compact-0000000002.json   files that replace others: add, remove
ROOT/data/batch=0000000007/stream=a/date=2026-11-21/part-….parquet
```
Each manifest is `{"checksum": "sha256:…", "content": {…}}`; the checksum is that of the content's bytes. What
counts is what all manifests add, less what they remove. A file that no manifest names does not count.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from pyspark_weir import ids
from pyspark_weir.errors import PipelineError
from pyspark_weir.table.errors import ArchiveDamagedError, ArchiveError
from pyspark_weir.table.ranges import Range, StreamKey
from pyspark_weir.table.root import ArchiveRoot

FOLDER: Final = "_manifest"
DATA: Final = "data"
_ABOUT: Final = "archive.json"
_COMPACTION: Final = "compact-"
_SUFFIX: Final = ".json"
_VERSION: Final = 1


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file: entries of one stream and one day in order; `min` and `max` are IDs of entries."""

    path: str
    shard: str
    stream: str
    generation: str
    rows: int
    min: str
    max: str

    @property
    def key(self) -> StreamKey:
        """The stream that its entries are of."""
        return StreamKey(self.shard, self.stream, self.generation)


class _Progress(msgspec.Struct, frozen=True, kw_only=True):
    shard: str
    stream: str
    generation: str
    after: str
    upto: str
    rows: int

    def range(self) -> Range:
        key = StreamKey(self.shard, self.stream, self.generation)
        return Range(key, ids.parse(self.after), ids.parse(self.upto), self.rows)


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    v: int
    kind: str
    number: int
    archive: str
    streams: tuple[_Progress, ...]
    add: tuple[File, ...]
    remove: tuple[str, ...]


class _About(msgspec.Struct, frozen=True, kw_only=True):
    v: int
    archive: str


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    checksum: str
    content: msgspec.Raw


_D = TypeVar("_D", _Manifest, _About)


@dataclass(frozen=True)
class OldArchive:
    """What the manifests say: `archive` is the ID of the Spark query that wrote it, `batches` the ranges of
    each of its batches, `files` the files that count, by stream and first ID.
    """

    archive: str
    batches: tuple[tuple[Range, ...], ...]
    files: Mapping[StreamKey, tuple[File, ...]]


def is_old_archive(root: ArchiveRoot) -> bool:
    """Whether an archive of that form is stored there."""
    return root.size(f"{FOLDER}/{_ABOUT}") is not None


def read(root: ArchiveRoot) -> OldArchive:
    """Read all manifests. Raises ArchiveError where there are none, ArchiveDamagedError."""
    about = _decoded(root, _ABOUT, _About)
    names = [name for name in root.names(FOLDER) if name.endswith(_SUFFIX) and name != _ABOUT]
    found = [_named(root, name) for name in names]
    for name, manifest in zip(names, found, strict=True):
        if manifest.archive != about.archive:
            raise ArchiveDamagedError(f"{FOLDER}/{name} belongs to another archive: restore one of them")
    batches = sorted((one for one in found if one.kind == "batch"), key=lambda one: one.number)
    for number, batch in enumerate(batches):
        if batch.number != number:
            raise ArchiveDamagedError(f"the manifest of batch {number} is missing: restore it from a copy")
    try:
        ranges = tuple(tuple(moved.range() for moved in batch.streams) for batch in batches)
        return OldArchive(about.archive, ranges, _by_stream(_counting(found)))
    except PipelineError as error:
        raise ArchiveDamagedError(f"a manifest names what is no ID: {error.sentence}") from None


def _named(root: ArchiveRoot, name: str) -> _Manifest:
    found = _decoded(root, name, _Manifest)
    prefix = _COMPACTION if found.kind == "compaction" else ""
    if name != f"{prefix}{found.number:010d}{_SUFFIX}":
        raise ArchiveDamagedError(f"{FOLDER}/{name} holds another manifest: restore it from a copy")
    return found


def _decoded(root: ArchiveRoot, name: str, kind: type[_D]) -> _D:
    stored = root.read(f"{FOLDER}/{name}")
    if stored is None:
        raise ArchiveError(f"{root.url} holds no archive of the old form: there is no {FOLDER}/{name}")
    try:
        envelope = msgspec.json.decode(stored, type=_Envelope)
        content = bytes(envelope.content)
        if envelope.checksum != f"sha256:{hashlib.sha256(content).hexdigest()}":
            raise ArchiveDamagedError(f"{FOLDER}/{name} is damaged: restore it from a copy")
        found = msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArchiveDamagedError(f"{FOLDER}/{name} is damaged: {error}; restore it from a copy") from None
    if found.v != _VERSION:
        raise ArchiveError(f"{FOLDER}/{name} has version {found.v}, known here is {_VERSION}")
    return found


def _counting(manifests: Iterable[_Manifest]) -> list[File]:
    """What is added and not removed."""
    added: dict[str, File] = {}
    removed: list[str] = []
    for manifest in manifests:
        for file in manifest.add:
            if file.path in added or not file.path.startswith(f"{DATA}/") or ".." in file.path.split("/"):
                raise ArchiveDamagedError(f"two manifests add {file.path}, or it is outside of {DATA}/")
            added[file.path] = file
        removed += manifest.remove
    for path in removed:
        if added.pop(path, None) is None:
            raise ArchiveDamagedError(f"{path} was replaced, and no manifest has added it: one is missing")
    return list(added.values())


def _by_stream(files: Iterable[File]) -> dict[StreamKey, tuple[File, ...]]:
    found: dict[StreamKey, list[File]] = {}
    for file in sorted(files, key=lambda one: (ids.parse(one.min), one.path)):
        found.setdefault(file.key, []).append(file)
    return {key: tuple(own) for key, own in found.items()}
