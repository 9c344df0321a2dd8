"""Compares an archive with itself and with the gateway; finds what is lost, double, damaged or out of order.

Knows: what must hold between manifests, files and streams.
Must never know: Spark, what is printed.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa

from pyspark_weir import gateway as calls
from pyspark_weir import ids
from pyspark_weir.gateway import ColumnsPage, Gateway, PlanQuery, StreamPlan
from pyspark_weir.ids import EntryId
from pyspark_weir.manifest import Archive, File, Manifest, ManifestError, Progress, StreamKey
from pyspark_weir.parquet import IdRun, first_disorder, id_runs, opened, rows_within
from pyspark_weir.place import Place

_page_entries: Final = 10_000
_row_batch: Final = 10_000

# Names and values of one entry, in their order.
Pairs = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Finding:
    """Something that must not be: `about` a manifest, a file or a stream."""

    about: str
    what: str


@dataclass(frozen=True)
class Report:
    """What was compared, and what was found. `deleted`: archived entries that the gateway no longer has,
    though it has older ones: somebody deleted them. `compared`: entries, byte by byte.
    `unknown`: files that no manifest names.
    """

    batches: int
    files: int
    rows: int
    findings: tuple[Finding, ...]
    deleted: int = 0
    compared: int = 0
    unknown: int = 0


def verify(place: Place, archive: Archive, gateways: Mapping[str, Gateway], *, deep: bool = False) -> Report:
    """Compare all; `deep`: also every entry that the gateway still has, byte by byte.

    Raises Refused, Unavailable. What is wrong with the archive is found, not raised.
    """
    findings = [*manifest_findings(archive)]
    for file in archive.files():
        findings += file_findings(place, file)
    findings += overlap_findings(place, archive.files())
    deleted = compared = 0
    for key in archive.keys:
        if key.shard not in gateways:
            findings.append(Finding(str(key), f"no gateway was named {key.shard}: it was not compared"))
            continue
        seen = _Stream(place, archive, key, gateways[key.shard])
        findings += seen.findings(deep=deep)
        deleted += seen.deleted
        compared += seen.compared
    known = set(archive.live) | {path for step in archive.compactions for path in step.remove}
    unknown = sum(1 for path, _size in place.below("data") if path.endswith(".parquet") and path not in known)
    rows = sum(file.rows for file in archive.live.values())
    return Report(len(archive.batches), len(archive.live), rows, tuple(findings), deleted, compared, unknown)


def manifest_findings(archive: Archive) -> Iterator[Finding]:
    """Whether batches follow each other without a gap, as a whole and in each stream."""
    for before, batch in pairwise(archive.batches):
        if batch.number != before.number + 1:
            yield Finding(before.name, f"the next manifest is {batch.name}: batches between them are missing")
    if archive.batches and archive.batches[0].number:
        yield Finding(archive.batches[0].name, "the first manifest is not that of batch 0")
    ends: dict[StreamKey, Progress] = {}
    for batch in archive.batches:
        for moved in batch.streams:
            yield from _joint(batch, ends.get(moved.key), moved)
            ends[moved.key] = moved


def _joint(batch: Manifest, before: Progress | None, moved: Progress) -> Iterator[Finding]:
    """How a batch joins on to the one before it, in one stream."""
    # A stream that was made anew is read from its beginning.
    anew = before is None or before.generation != moved.generation
    expected = ids.BEGINNING if before is None or anew else before.upto
    # One that was put back to before is read again from there. What is double then, its files show.
    if ids.parse(moved.after) > ids.parse(expected):
        yield Finding(batch.name, f"{moved.key}: entries in ({expected}, {moved.after}] are in no batch")
    elif ids.parse(moved.after) < ids.parse(expected) <= ids.parse(moved.upto):
        yield Finding(batch.name, f"{moved.key}: entries in ({moved.after}, {expected}] are in two batches")


def file_findings(place: Place, file: File) -> Iterator[Finding]:
    """Whether a file is what its manifest says, and in order."""
    size = place.size(file.path)
    if size is None:
        yield Finding(file.path, "the file is missing")
        return
    if size != file.bytes:
        yield Finding(file.path, f"the file has {size} bytes, its manifest says {file.bytes}")
    try:
        with opened(place, file.path) as parquet:
            rows = parquet.metadata.num_rows
        if rows != file.rows:
            yield Finding(file.path, f"its footer counts {rows} rows, its manifest {file.rows}")
        yield from _order(file, list(id_runs(place, file.path)))
    except ManifestError as error:
        yield Finding(file.path, error.sentence)


def _order(file: File, runs: Sequence[IdRun]) -> Iterator[Finding]:
    filled = [run for run in runs if len(run)]
    wrong = first_disorder(filled)
    if wrong is not None:
        yield Finding(file.path, f"{wrong} does not come after the entry before it")
    if not filled:
        yield Finding(file.path, "it holds no entry")
    elif (str(filled[0][0]), str(filled[-1][-1])) != (file.min, file.max):
        edges = f"{filled[0][0]} to {filled[-1][-1]}"
        yield Finding(file.path, f"it holds {edges}, its manifest says {file.min} to {file.max}")


def overlap_findings(place: Place, files: Sequence[File]) -> Iterator[Finding]:
    """Entries that lie in two files of one stream."""
    open_files: dict[tuple[StreamKey, str], list[File]] = {}
    for file in files:
        # Files come by their first ID: what ends before this one cannot share with any that follows.
        before = open_files.get((file.key, file.generation), [])
        before = [one for one in before if ids.parse(one.max) >= ids.parse(file.min)]
        for one in before:
            try:
                twice = _shared(place, one, file)
            except ManifestError:
                continue  # the file itself is a finding already
            if twice:
                yield Finding(file.path, f"{twice} of its entries are in {one.path} too")
        open_files[file.key, file.generation] = [*before, file]


def _shared(place: Place, one: File, other: File) -> int:
    found: set[tuple[int, int]] = set()
    for run in id_runs(place, one.path):
        found.update(zip(run.ms.tolist(), run.seq.tolist(), strict=True))
    return sum(
        len(found.intersection(zip(run.ms.tolist(), run.seq.tolist(), strict=True)))
        for run in id_runs(place, other.path)
    )


class _Stream:
    """One stream, in the archive and in the gateway."""

    def __init__(self, place: Place, archive: Archive, key: StreamKey, gateway: Gateway) -> None:
        self._place = place
        self._archive = archive
        self._key = key
        self._gateway = gateway
        self._state = archive.states[key]
        self.deleted = 0
        self.compared = 0

    def findings(self, *, deep: bool) -> Iterator[Finding]:
        """Whether all that the gateway has up to where the archive says it has read is in the archive."""
        query = PlanQuery(streams={self._key.stream: ids.BEGINNING}, end={self._key.stream: self._state.upto})
        found = calls.plan(self._gateway, query).streams.get(self._key.stream)
        if found is None:
            return
        if found.generation != self._state.generation:
            yield Finding(
                str(self._key),
                f"the stream was made anew: the archive holds generation {self._state.generation}, "
                f"the gateway {found.generation}",
            )
            return
        if ids.parse(found.last) < ids.parse(self._state.upto):
            yield Finding(
                str(self._key), f"the archive goes up to {self._state.upto}, the stream only to {found.last}"
            )
        try:
            yield from self._counts(found)
            if deep:
                yield from self._entries(found)
        except ManifestError as error:
            yield Finding(str(self._key), error.sentence)

    def _files(self, after: EntryId) -> list[File]:
        return self._archive.files(
            [self._key], after=str(after), end=self._state.upto, generation=self._state.generation
        )

    def _counts(self, found: StreamPlan) -> Iterator[Finding]:
        if found.first is None or not found.count:
            return
        after, end = ids.previous_id(ids.parse(found.first)), ids.parse(self._state.upto)
        archived = sum(rows_within(self._place, file, after, end) for file in self._files(after))
        if archived < found.count:
            yield Finding(
                str(self._key),
                f"the gateway holds {found.count} entries from {found.first} to {self._state.upto}, "
                f"the archive {archived}: {found.count - archived} are missing",
            )
        self.deleted = max(0, archived - found.count)

    def _entries(self, found: StreamPlan) -> Iterator[Finding]:
        if found.first is None or not found.count:
            return
        after = ids.previous_id(ids.parse(found.first))
        archived = self._archived(after)
        one = next(archived, None)
        for entry_id, pairs in _gateway_entries(self._gateway, self._key.stream, after, self._state.upto):
            while one is not None and one[0] < entry_id:
                one = next(archived, None)  # deleted since it was archived
            if one is None or one[0] != entry_id:
                yield Finding(str(self._key), f"{entry_id} is in the gateway, and not in the archive")
                return
            if one[1] != pairs:
                yield Finding(
                    str(self._key), f"{entry_id} has other fields in the archive than in the gateway"
                )
                return
            self.compared += 1
            one = next(archived, None)

    def _archived(self, after: EntryId) -> Iterator[tuple[EntryId, Pairs]]:
        for file in self._files(after):
            with opened(self._place, file.path) as parquet:
                for batch in parquet.iter_batches(_row_batch, columns=["id", "fields"]):
                    yield from (one for one in _rows(batch) if one[0] > after)


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[EntryId, Pairs]]:
    texts, fields = batch.column("id").to_pylist(), batch.column("fields").to_pylist()
    for text, pairs in zip(texts, fields, strict=True):
        yield ids.parse(text), [(pair["name"].encode(), pair["value"]) for pair in pairs]


def _gateway_entries(
    gateway: Gateway, stream: str, after: EntryId, end: str
) -> Iterator[tuple[EntryId, Pairs]]:
    cursor = str(after)
    while True:
        page = calls.page(gateway, stream, after=cursor, end=end, count=_page_entries)
        yield from page_entries(page)
        if not page.more:
            return
        cursor = page.next_id


def page_entries(page: ColumnsPage) -> Iterator[tuple[EntryId, Pairs]]:
    """The entries of a page, with bytes as names and values."""
    to_bytes = base64.b64decode if page.base64 else str.encode
    names = [to_bytes(name) for name in page.names]
    start = 0
    for ms, seq, count in zip(page.ms, page.seq, page.n, strict=True):
        own = range(start, start + count)
        yield EntryId(ms, seq), [(names[page.name_index[at]], to_bytes(page.values[at])) for at in own]
        start += count
