"""Compares an archive with itself and with the gateway; finds what is lost, double, damaged or out of order.

Knows: what must hold between the table's ranges, its files and the streams.
Must never know: Spark, what is printed.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveError
from pyspark_weir.gateway import GatewayClient, GatewayPlan, PlannedRange, PlanQuery, of_one_call
from pyspark_weir.ids import EntryId
from pyspark_weir.jobs.comparing import compare_entries, hint_of_erased, keys_by_gateway
from pyspark_weir.table import digest
from pyspark_weir.table.cleaning import ACCEPT, foreign_changes
from pyspark_weir.table.files import DataFile, prove
from pyspark_weir.table.merging import check_sorted
from pyspark_weir.table.ranges import StreamKey, gaps
from pyspark_weir.table.reading import count, ids_of, read_whole, repeated, spans, tally
from pyspark_weir.table.schema import SORTED_BY, id_key, id_of_key
from pyspark_weir.table.table import ArchiveTable


@dataclass(frozen=True)
class Finding:
    """Something that must not be: `about` a file or a stream."""

    about: str
    what: str


@dataclass(frozen=True)
class VerifyReport:
    """What was compared, at one version of the table, and what was found.

    `deleted`: archived entries that the gateway no longer has, though it has older ones. `compared`: entries
    that the gateway has, with these. `lost`: what was gone before it was archived, which was accepted: no
    fault of the archive. `foreign`: files that another program has rewritten, which are counted like others.

    `proven`: entries whose digests are in the commits. `unproven`: entries that were read, and compared with
    nothing: only the archive has them, and the version that archived them noted no digest. `unchecked`: files
    of an older version, without checksums: a damage in these may be read as it is.
    """

    version: int
    files: int
    rows: int
    findings: tuple[Finding, ...]
    deleted: int = 0
    compared: int = 0
    lost: tuple[Finding, ...] = ()
    foreign: int = 0
    proven: int = 0
    unproven: int = 0
    unchecked: int = 0


class _FileSpan(NamedTuple):
    low: str
    high: str
    file: DataFile


def verify(table: ArchiveTable, gateways: Mapping[str, GatewayClient], *, deep: bool = False) -> VerifyReport:
    """Compare all; `deep`: every byte of the archive is read, and its entries are compared with their digests
    and with those that the gateway still has.

    Raises RefusedError, Unavailable. What is wrong with the archive is found, not raised.
    """
    files, ranges = table.files(), table.ranges()
    findings = [
        Finding(str(one.key), f"entries before {one.after} are in no batch, after which the next begins")
        for one in gaps(ranges)
    ]
    stored = _ArchivedFiles(table, deep=deep)
    for _day, own in groupby(files, key=lambda file: file.date):
        findings += stored.day_findings(list(own))
    hint = ""
    if changes := foreign_changes(table):
        findings.append(Finding(table.root.url, changes))
    elif not findings:
        hint = f"; if another program has removed them, {ACCEPT} accepts that"
    findings += _count_findings(table.rows(), stored.rows, hint)
    findings += stored.digest_findings()
    deleted = compared = undigested = 0
    for gateway, keys in keys_by_gateway(table).items():
        if gateway not in gateways:
            why = f"no gateway was named {gateway}: it was not compared"
            findings += [Finding(str(key), why) for key in keys.values()]
            continue
        for some in of_one_call(keys):
            seen = _Streams(table, some, gateways[gateway])
            findings += seen.findings(deep=deep)
            deleted += seen.deleted
            compared += seen.compared
            undigested += seen.undigested
    rows = sum(file.rows for file in files)
    lost = tuple(Finding(f"{one.key} (generation {one.generation})", one.sentence) for one in table.lost())
    foreign = sum(not file.is_ours for file in files)
    return VerifyReport(
        version=table.version,
        files=len(files),
        rows=rows,
        findings=tuple(findings),
        deleted=deleted,
        compared=compared,
        lost=lost,
        foreign=foreign,
        proven=stored.proven,
        unproven=stored.undigested - undigested,
        unchecked=stored.unchecked,
    )


def _count_findings(
    committed: Mapping[StreamKey, int], rows: Mapping[StreamKey, int], hint: str
) -> Iterator[Finding]:
    for key in sorted(committed.keys() | rows.keys()):
        found = rows.get(key, 0)
        expected = committed.get(key, 0)
        if found != expected:
            fewer = hint if found < expected else ""
            yield Finding(str(key), f"{expected} entries were committed, the files hold {found}{fewer}")


class _ArchivedFiles:
    """What is in the files; `rows` are counted by stream. `deep`: with digests, where commits have some."""

    def __init__(self, table: ArchiveTable, *, deep: bool) -> None:
        self._table = table
        self._deep = deep
        self._ends = {one.key: one for one in table.ranges()}
        self._digests = table.digests()
        self._found: dict[StreamKey, int] = defaultdict(int)
        self.rows: dict[StreamKey, int] = defaultdict(int)
        self.proven = self.undigested = self.unchecked = 0

    def day_findings(self, files: Sequence[DataFile]) -> Iterator[Finding]:
        """Whether the files of a day are as they were committed, in order, and hold each entry once."""
        held: dict[StreamKey, list[_FileSpan]] = defaultdict(list)
        for file in files:
            try:
                footer = prove(self._table.root, file)
                self.unchecked += file.is_ours and not footer.is_checked
                yield from self._file_findings(file, held)
                if self._deep:
                    self._read_whole(file)
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

    def _read_whole(self, file: DataFile) -> None:
        after = {key: one.after for key, one in self._digests.items()}
        for rows in read_whole(self._table.root, file):
            found = tally(rows, after)
            for key, one in found.items():
                self._found[key] = digest.plus(self._found[key], one.digest)
            digested = sum(one.rows for one in found.values())
            self.proven += digested
            self.undigested += rows.num_rows - digested

    def digest_findings(self) -> Iterator[Finding]:
        """Where entries are as many as were committed, and others."""
        if not self._deep:
            return
        committed = self._table.rows()
        for key, one in sorted(self._digests.items()):
            if self._found[key] != one.value and self.rows[key] == committed[key]:
                yield Finding(str(key), f"its entries after {one.after} are not those that were committed")

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


class _Streams:
    """Streams of one gateway, as many as a call may name: their entries are counted in one pass."""

    def __init__(self, table: ArchiveTable, keys: Mapping[str, StreamKey], gateway: GatewayClient) -> None:
        self._table = table
        self._keys = keys
        self._gateway = gateway
        self._uptos = {one.key: one.upto for one in table.ranges()}
        self._digests = table.digests()
        self.deleted = 0
        self.compared = 0
        # Of these the commits have no digest.
        self.undigested = 0

    def findings(self, *, deep: bool) -> Iterator[Finding]:
        """Whether all that the gateway has, up to where the archive goes, is in the archive."""
        ends = {stream: str(self._uptos[key]) for stream, key in self._keys.items()}
        beginnings = dict.fromkeys(self._keys, ids.BEGINNING)
        planned = self._gateway.plan(PlanQuery(streams=beginnings, end=ends))
        found = {key: one for stream, key in self._keys.items() if (one := planned.streams.get(stream))}
        for key in found:
            yield from self._wrong_places(key, planned)
        held = {key: seen for key, seen in found.items() if seen.generation == key.generation and seen.count}
        yield from self._counts(held)
        if deep:
            for key, seen in held.items():
                try:
                    yield from self._entries(key, *self._range(key, seen))
                except ArchiveError as error:
                    yield Finding(str(key), error.sentence)

    def _wrong_places(self, key: StreamKey, planned: GatewayPlan) -> Iterator[Finding]:
        upto, seen, previous = self._uptos[key], planned.streams[key.stream], planned.previous.get(key.stream)
        if seen.generation != key.generation:
            if previous is None or previous.generation != key.generation or ids.parse(previous.last) > upto:
                anew = f"the stream was made anew, with generation {seen.generation}"
                yield Finding(str(key), f"{anew}; the one before is not known to have ended at {upto}")
        elif ids.parse(seen.last) < upto:
            yield Finding(str(key), f"the archive goes up to {upto}, the stream only to {seen.last}")

    def _range(self, key: StreamKey, seen: PlannedRange) -> tuple[EntryId, EntryId]:
        """What both have: after the gateway's first entry's predecessor, up to the archive's last."""
        return ids.previous_id(ids.parse(seen.first or ids.BEGINNING)), self._uptos[key]

    def _counts(self, held: Mapping[StreamKey, PlannedRange]) -> Iterator[Finding]:
        wanted = {key: self._range(key, seen) for key, seen in held.items()}
        try:
            archived = count(self._table.root, self._table.files(), wanted)
        except ArchiveError as error:
            yield Finding(self._gateway.access.name, f"its streams were not counted: {error.sentence}")
            return
        for key, seen in held.items():
            if archived[key] < seen.count:
                yield Finding(
                    str(key),
                    f"the gateway holds {seen.count} entries from {seen.first} to {self._uptos[key]}, "
                    f"the archive {archived[key]}: {seen.count - archived[key]} are missing"
                    f"{hint_of_erased(self._table, key)}",
                )
            self.deleted += max(0, archived[key] - seen.count)

    def _entries(self, key: StreamKey, after: EntryId, upto: EntryId) -> Iterator[Finding]:
        known = self._digests.get(key)
        for part in compare_entries(self._table, self._gateway, key, after, upto):
            self.compared += len(part.same)
            digested = None if known is None else part.same > id_key(known.after).encode()
            self.undigested += len(part.same if digested is None else part.same[~digested])
            if part.fault is not None:
                yield Finding(str(key), f"{part.fault}{hint_of_erased(self._table, key)}")
                return
