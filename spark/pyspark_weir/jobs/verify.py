"""Compares an archive with itself and with the gateway; finds what is lost, double, damaged or out of order.

Knows: what must hold between the table's ranges, its files and the streams.
Must never know: Spark, what is printed.
"""

import base64
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveError
from pyspark_weir.gateway import ColumnsPage, GatewayClient, PlannedRange, PlanQuery
from pyspark_weir.ids import EntryId
from pyspark_weir.table.files import DataFile, prove
from pyspark_weir.table.merging import check_sorted
from pyspark_weir.table.ranges import Range, StreamKey, gaps
from pyspark_weir.table.reading import count, entries_of, ids_of, repeated, spans
from pyspark_weir.table.schema import SORTED_BY, id_key, id_of_key
from pyspark_weir.table.table import ArchiveTable, EntryFilter

# Names and values of one entry, in their order.
Pairs = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Finding:
    """Something that must not be: `about` a file or a stream."""

    about: str
    what: str


@dataclass(frozen=True)
class VerifyReport:
    """What was compared, at one version of the table, and what was found.

    `deleted`: archived entries that the gateway no longer has, though it has older ones. `compared`: entries,
    byte by byte.
    """

    version: int
    files: int
    rows: int
    findings: tuple[Finding, ...]
    deleted: int = 0
    compared: int = 0


class _FileSpan(NamedTuple):
    low: str
    high: str
    file: DataFile


def verify(table: ArchiveTable, gateways: Mapping[str, GatewayClient], *, deep: bool = False) -> VerifyReport:
    """Compare all; `deep`: also every entry that the gateway still has, byte by byte.

    Raises Refused, Unavailable. What is wrong with the archive is found, not raised.
    """
    files, ranges = table.files(), table.ranges()
    findings = [
        Finding(str(one.key), f"entries before {one.after} are in no batch, after which the next begins")
        for one in gaps(ranges)
    ]
    stored = _ArchivedFiles(table)
    for _day, own in groupby(files, key=lambda file: file.date):
        findings += stored.day_findings(list(own))
    findings += _count_findings(ranges, stored.rows)
    deleted = compared = 0
    for (gateway, stream), position in sorted(table.positions().items()):
        key = StreamKey(gateway, stream, position.generation)
        if gateway not in gateways:
            findings.append(Finding(str(key), f"no gateway was named {gateway}: it was not compared"))
            continue
        seen = _Stream(table, key, position.upto, gateways[gateway])
        findings += seen.findings(deep=deep)
        deleted += seen.deleted
        compared += seen.compared
    rows = sum(file.rows for file in files)
    return VerifyReport(table.version, len(files), rows, tuple(findings), deleted, compared)


def _count_findings(ranges: Sequence[Range], rows: Mapping[StreamKey, int]) -> Iterator[Finding]:
    committed: dict[StreamKey, int] = defaultdict(int)
    for one in ranges:
        committed[one.key] += one.rows
    for key in sorted(committed.keys() | rows.keys()):
        found = rows.get(key, 0)
        if found != committed[key]:
            yield Finding(str(key), f"{committed[key]} entries were committed, the files hold {found}")


class _ArchivedFiles:
    """What is in the files; `rows` are counted by stream."""

    def __init__(self, table: ArchiveTable) -> None:
        self._table = table
        self._ends = {one.key: one for one in table.ranges()}
        self.rows: dict[StreamKey, int] = defaultdict(int)

    def day_findings(self, files: Sequence[DataFile]) -> Iterator[Finding]:
        """Whether the files of a day are as they were committed, in order, and hold each entry once."""
        held: dict[StreamKey, list[_FileSpan]] = defaultdict(list)
        for file in files:
            try:
                prove(self._table.root, file)
                yield from self._file_findings(file, held)
            except ArchiveError as error:
                yield Finding(file.path, error.sentence)
        for key, own in sorted(held.items()):
            yield from self._overlaps(key, sorted(own, key=lambda one: one[:2]))

    def _file_findings(self, file: DataFile, held: dict[StreamKey, list[_FileSpan]]) -> Iterator[Finding]:
        for piece, here in spans(self._table.root, file):
            check_sorted(piece, SORTED_BY)
            twice = repeated(piece)
            if twice:
                yield Finding(file.path, f"{twice} of its entries are stored twice")
            for span in here:
                self.rows[span.key] += span.rows
                held[span.key].append(_FileSpan(span.low, span.high, file))
                end = self._ends.get(span.key)
                if end is None or span.high > id_key(end.upto):
                    yield Finding(file.path, f"it holds {id_of_key(span.high)} of {span.key}, of no batch")
                if not file.low.id_key <= span.low <= span.high <= file.high.id_key:
                    yield Finding(file.path, f"its statistics leave out entries of {span.key}")

    def _overlaps(self, key: StreamKey, own: Sequence[_FileSpan]) -> Iterator[Finding]:
        """Entries that are stored twice: only where two ranges of IDs meet."""
        highest = own[0]
        for one in own[1:]:
            if one.low <= highest.high:
                twice = self._twice(key, one, highest)
                if twice:
                    yield Finding(one.file.path, f"{twice} of its entries are in {highest.file.path} too")
            highest = max(highest, one, key=lambda held: held.high)

    def _twice(self, key: StreamKey, one: _FileSpan, other: _FileSpan) -> int:
        after = ids.previous_id(id_of_key(one.low))
        files = {file.path: file for file in (one.file, other.file)}.values()
        found = 0
        last = ""
        for piece in ids_of(self._table.root, files, key, after, id_of_key(min(one.high, other.high))):
            texts = [last, *piece.column("id_key").to_pylist()]
            found += sum(before == after for before, after in pairwise(texts))
            last = texts[-1]
        return found


class _Stream:
    def __init__(self, table: ArchiveTable, key: StreamKey, upto: EntryId, gateway: GatewayClient) -> None:
        self._table = table
        self._key = key
        self._upto = upto
        self._gateway = gateway
        self.deleted = 0
        self.compared = 0

    def findings(self, *, deep: bool) -> Iterator[Finding]:
        """Whether all that the gateway has, up to where the archive goes, is in the archive."""
        stream = self._key.stream
        query = PlanQuery(streams={stream: ids.BEGINNING}, end={stream: str(self._upto)})
        found = self._gateway.plan(query).streams.get(stream)
        if found is None:
            return
        if found.generation != self._key.generation:
            yield Finding(str(self._key), f"the stream was made anew, with generation {found.generation}")
            return
        if ids.parse(found.last) < self._upto:
            yield Finding(
                str(self._key), f"the archive goes up to {self._upto}, the stream only to {found.last}"
            )
        if found.first is None or not found.count:
            return
        after = ids.previous_id(ids.parse(found.first))
        files = self._table.files(
            EntryFilter(self._key.gateway, stream, self._key.generation, after=after, upto=self._upto)
        )
        try:
            yield from self._counts(found, files, after)
            if deep:
                yield from self._entries(files, after)
        except ArchiveError as error:
            yield Finding(str(self._key), error.sentence)

    def _counts(self, found: PlannedRange, files: Sequence[DataFile], after: EntryId) -> Iterator[Finding]:
        archived = count(self._table.root, files, {self._key: (after, self._upto)})[self._key]
        if archived < found.count:
            yield Finding(
                str(self._key),
                f"the gateway holds {found.count} entries from {found.first} to {self._upto}, "
                f"the archive {archived}: {found.count - archived} are missing",
            )
        self.deleted = max(0, archived - found.count)

    def _entries(self, files: Sequence[DataFile], after: EntryId) -> Iterator[Finding]:
        archived = self._read_archived(files, after)
        one = next(archived, None)
        pages = self._gateway.pages(self._key.stream, after=str(after), end=str(self._upto))
        for entry_id, pairs in (found for page in pages for found in page_entries(page)):
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

    def _read_archived(self, files: Sequence[DataFile], after: EntryId) -> Iterator[tuple[EntryId, Pairs]]:
        pieces = entries_of(self._table.root, files, self._key, after, self._upto, ("id", "fields"))
        for piece in pieces:
            texts, fields = piece.column("id").to_pylist(), piece.column("fields").to_pylist()
            for text, pairs in zip(texts, fields, strict=True):
                yield ids.parse(text), [(pair["name"].encode(), pair["value"]) for pair in pairs]


def page_entries(page: ColumnsPage) -> Iterator[tuple[EntryId, Pairs]]:
    """The entries of a page, with bytes as names and values."""
    to_bytes = base64.b64decode if page.base64 else str.encode
    names = [to_bytes(name) for name in page.names]
    start = 0
    for ms, seq, count_ in zip(page.ms, page.seq, page.n, strict=True):
        own = range(start, start + count_)
        yield EntryId(ms, seq), [(names[page.name_index[at]], to_bytes(page.values[at])) for at in own]
        start += count_
