"""What an archive holds: manifests, written once and whole, from which alone readers learn of files.

Knows: the form of a manifest, how one is checked, which files count after compactions.
Must never know: Spark, gateways, why a file was written.

```
ROOT/_manifest/archive.json              whose archive this is, and how it is laid out
ROOT/_manifest/0000000007.json           batch 7 of the query: its files, and per stream how far it went
ROOT/_manifest/compact-0000000002.json   files that replace others: add, remove
ROOT/data/batch=0000000007/stream=a/date=2026-11-21/part-….parquet
ROOT/data/compact=0000000002/stream=a/date=2026-11-21/part-….parquet
```
Each manifest is `{"checksum": "sha256:…", "content": {…}}`; the checksum is that of the content's bytes. What
counts is what all manifests add, less what they remove, so their order does not matter; no path comes twice.
A file that no manifest names does not exist: it may be half of a batch whose driver died.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from pyspark_weir import ids
from pyspark_weir.errors import PipelineError
from pyspark_weir.place import Place

VERSION: Final = 1
FOLDER: Final = "_manifest"
DATA: Final = "data"
ABOUT: Final = f"{FOLDER}/archive.json"
_COMPACTION: Final = "compact-"
_SUFFIX: Final = ".json"
# More digits than a query has batches; names of equal length sort as numbers.
_digits: Final = 10
_HASH: Final = "sha256:"

Kind = Literal["batch", "compaction"]
Format = Literal["parquet", "delta"]


class ManifestError(PipelineError):
    """An archive that cannot be trusted as it is; nothing was changed."""

    def __init__(self, sentence: str, /) -> None:
        super().__init__("WEIR_ARCHIVE", sentence)


class StreamKey(NamedTuple):
    """A stream of a gateway, both by name."""

    shard: str
    stream: str

    def __str__(self) -> str:
        return f"{self.shard}/{self.stream}"


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all members of a manifest have in common: unknown ones are refused."""


class File(_Document, frozen=True):
    """A Parquet file: entries of one stream and one day (UTC) in order; `min` and `max` are IDs of entries.

    `date` is None where the milliseconds of the IDs are beyond the year 9999. `bytes` is the file's size.
    """

    path: str
    shard: str
    stream: str
    generation: str
    date: str | None
    rows: int
    bytes: int
    min: str
    max: str

    @property
    def key(self) -> StreamKey:
        """The stream that its entries are of."""
        return StreamKey(self.shard, self.stream)


class Progress(_Document, frozen=True):
    """How far a batch went in one stream: it holds the entries in `(after, upto]`, `rows` of them.

    `min` and `max` are the IDs of the first and the last; None where all of the range had been deleted.
    `bytes` is the size of its files.
    """

    shard: str
    stream: str
    generation: str
    after: str
    upto: str
    rows: int
    bytes: int
    min: str | None
    max: str | None

    @property
    def key(self) -> StreamKey:
        """The stream that it is about."""
        return StreamKey(self.shard, self.stream)


class Manifest(_Document, frozen=True):
    """One step of an archive: `number` counts batches and compactions apart. `at_ms` is the wall clock."""

    v: int
    kind: Kind
    number: int
    archive: str
    at_ms: int
    streams: tuple[Progress, ...]
    add: tuple[File, ...]
    remove: tuple[str, ...]

    @property
    def name(self) -> str:
        """Where it lies."""
        return manifest_name(self.kind, self.number)


class About(_Document, frozen=True):
    """Whose archive it is: `archive` is the ID of the Spark query, which its checkpoint keeps.

    `columns` are the columns by which files lie in folders, `gateways` their names in the query.
    """

    v: int
    archive: str
    format: Format
    columns: tuple[str, ...]
    gateways: tuple[str, ...]


class _Envelope(_Document, frozen=True):
    checksum: str
    content: msgspec.Raw


class _Versioned(msgspec.Struct):
    v: int


_D = TypeVar("_D", bound=_Document)


def manifest_name(kind: Kind, number: int) -> str:
    """Where a manifest lies."""
    return f"{FOLDER}/{_COMPACTION if kind == 'compaction' else ''}{number:0{_digits}d}{_SUFFIX}"


def batch_folder(number: int) -> str:
    """Where a batch's files lie."""
    return f"{DATA}/batch={number:0{_digits}d}"


def compaction_folder(number: int) -> str:
    """Where a compaction's files lie."""
    return f"{DATA}/compact={number:0{_digits}d}"


def encode(document: Manifest | About) -> bytes:
    """A manifest as it is stored."""
    content = msgspec.json.encode(document)
    return msgspec.json.encode(_Envelope(checksum=_checksum(content), content=msgspec.Raw(content))) + b"\n"


def decode(name: str, stored: bytes) -> Manifest:
    """A manifest that was read under `name`. Raises ManifestError for anything that is not wholly as it was
    written, or contradicts itself.
    """
    found = _opened(name, stored, Manifest)
    if found.name != name:
        raise ManifestError(f"{name} holds {found.name}: somebody has moved it")
    _check(found)
    return found


def read_about(place: Place) -> About | None:
    """Whose archive lies there; None where there is none. Raises ManifestError."""
    stored = place.read(ABOUT)
    return None if stored is None else _opened(ABOUT, stored, About)


def read_manifest(place: Place, kind: Kind, number: int) -> Manifest | None:
    """One manifest; None where there is none. Raises ManifestError."""
    name = manifest_name(kind, number)
    stored = place.read(name)
    return None if stored is None else decode(name, stored)


def write_about(place: Place, about: About) -> None:
    """Found an archive."""
    place.write(ABOUT, encode(about))


def write_manifest(place: Place, manifest: Manifest) -> None:
    """Make a step count, now and after a power cut; its files must be secure. Raises ManifestError for what
    `decode` would refuse, and where another manifest has that number.
    """
    _check(manifest)
    stored = encode(manifest)
    before = place.read(manifest.name)
    if before is not None and before != stored:
        raise ManifestError(
            f"{manifest.name} is there and says something else: two writers share this archive"
        )
    place.write(manifest.name, stored)


class State(NamedTuple):
    """A stream as its last batch left it."""

    generation: str
    upto: str


class Archive:
    """All that an archive's manifests say, read once."""

    def __init__(self, about: About, manifests: Iterable[Manifest]) -> None:
        self.about = about
        numbered = sorted(manifests, key=lambda one: (one.kind, one.number))
        self.batches = tuple(one for one in numbered if one.kind == "batch")
        self.compactions = tuple(one for one in numbered if one.kind == "compaction")
        self.live = _live(numbered)
        self.states = {
            moved.key: State(moved.generation, moved.upto)
            for batch in self.batches
            for moved in batch.streams
        }

    @classmethod
    def read(cls, place: Place) -> "Archive":
        """Read the manifests. Raises ManifestError where there is no archive, or a manifest is damaged."""
        about = read_about(place)
        if about is None:
            raise ManifestError(f"{place.address} holds no archive: there is no {ABOUT}")
        names = (f"{FOLDER}/{name}" for name in place.names(FOLDER) if name.endswith(_SUFFIX))
        found = [_read(place, name) for name in names if name != ABOUT]
        for manifest in found:
            if manifest.archive != about.archive:
                raise ManifestError(
                    f"{manifest.name} belongs to the archive {manifest.archive}, {ABOUT} to {about.archive}: "
                    "two archives were mixed; restore one of them"
                )
        return cls(about, found)

    @property
    def keys(self) -> list[StreamKey]:
        """The streams that it has read of, in order."""
        return sorted(self.states)

    def files(
        self,
        streams: Iterable[StreamKey] | None = None,
        *,
        after: str = ids.BEGINNING,
        end: str | None = None,
        generation: str | None = None,
    ) -> list[File]:
        """The files that count and may hold entries in `(after, end]`, by stream and ID."""
        wanted = None if streams is None else set(streams)
        low, high = ids.parse(after), ids.LAST if end is None else ids.parse(end)
        found = [
            file
            for file in self.live.values()
            if (wanted is None or file.key in wanted)
            and (generation is None or file.generation == generation)
            and ids.parse(file.max) > low
            and ids.parse(file.min) <= high
        ]
        return sorted(found, key=lambda file: (*file.key, ids.parse(file.min), file.path))

    def next_compaction(self) -> int:
        """The number of the next compaction."""
        return self.compactions[-1].number + 1 if self.compactions else 0


def totals(files: Iterable[File]) -> Mapping[StreamKey, tuple[int, int]]:
    """Rows and bytes per stream."""
    found: dict[StreamKey, tuple[int, int]] = {}
    for file in files:
        rows, size = found.get(file.key, (0, 0))
        found[file.key] = rows + file.rows, size + file.bytes
    return found


def _live(manifests: Iterable[Manifest]) -> Mapping[str, File]:
    added: dict[str, File] = {}
    removed: dict[str, str] = {}
    for manifest in manifests:
        for file in manifest.add:
            if file.path in added:
                raise ManifestError(f"{manifest.name} adds {file.path}, which another manifest has added")
            added[file.path] = file
        for path in manifest.remove:
            if path in removed:
                raise ManifestError(f"{manifest.name} removes {path}, which {removed[path]} has removed")
            removed[path] = manifest.name
    for path, name in removed.items():
        if added.pop(path, None) is None:
            raise ManifestError(f"{name} removes {path}, which no manifest has added: one is missing")
    return added


def _read(place: Place, name: str) -> Manifest:
    stored = place.read(name)
    if stored is None:
        raise ManifestError(f"{name} went away while it was read")
    return decode(name, stored)


def _checksum(content: bytes) -> str:
    return _HASH + hashlib.sha256(content).hexdigest()


def _opened(name: str, stored: bytes, kind: type[_D]) -> _D:
    try:
        envelope = msgspec.json.decode(stored, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"{name} is damaged: {error}; restore it from a copy") from None
    content = bytes(envelope.content)
    if envelope.checksum != _checksum(content):
        raise ManifestError(f"{name} is damaged: its checksum is another; restore it from a copy")
    try:
        version = msgspec.json.decode(content, type=_Versioned).v
        if version != VERSION:
            raise ManifestError(f"{name} has version {version}, known here is {VERSION}: use a newer weir")
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"{name} is no manifest of version {VERSION}: {error}") from None


def _check(manifest: Manifest) -> None:
    """Refuse what contradicts itself: a wrong `upto` would let a trim remove what is nowhere else."""
    wrongs = list(_wrong_files(manifest))
    if manifest.kind == "batch":
        wrongs += _wrong_progress(manifest)
    if wrongs:
        raise ManifestError(f"{manifest.name} contradicts itself: {wrongs[0]}")


def _wrong_files(manifest: Manifest) -> Iterator[str]:
    for file in manifest.add:
        if not file.path.startswith(f"{DATA}/") or ".." in file.path.split("/"):
            yield f"{file.path!r} lies outside of {DATA}/"
        if file.rows < 1 or file.bytes < 1:
            yield f"{file.path} has {file.rows} rows in {file.bytes} bytes"
        if _id(file.min) > _id(file.max):
            yield f"{file.path} goes from {file.min} back to {file.max}"


def _wrong_progress(batch: Manifest) -> Iterator[str]:
    if batch.remove:
        yield "a batch removes nothing"
    ranges = {moved.key: moved for moved in batch.streams}
    if len(ranges) < len(batch.streams):
        yield "a stream comes twice"
    for file in batch.add:
        yield from _outside(file, ranges.get(file.key))
    found = totals(batch.add)
    for key, moved in ranges.items():
        if _id(moved.after) > _id(moved.upto):
            yield f"{key} went back, from {moved.after} to {moved.upto}"
        if (moved.rows, moved.bytes) != found.get(key, (0, 0)):
            yield f"{key} has {moved.rows} rows, its files {found.get(key, (0, 0))[0]}"


def _outside(file: File, moved: Progress | None) -> Iterator[str]:
    if moved is None:
        yield f"{file.path} is of {file.key}, of which it says nothing else"
    elif moved.generation != file.generation:
        yield f"{file.path} is of generation {file.generation}, its stream of {moved.generation}"
    elif _id(file.min) <= _id(moved.after) or _id(file.max) > _id(moved.upto):
        yield f"{file.path} holds {file.min} to {file.max}, beyond ({moved.after}, {moved.upto}]"


def _id(text: str) -> ids.EntryId:
    try:
        return ids.parse(text)
    except PipelineError as error:
        raise ManifestError(error.sentence) from None
