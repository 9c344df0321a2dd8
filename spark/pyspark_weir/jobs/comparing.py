"""Compares entries of a stream in an archive with those in the gateway, by their digests.

Knows: how both are read, and how two sorted sequences are compared. Must never know: what follows from it.

Every entry of both is read, whole: the archive's with the checksums of its files. What comes out is of both
sides up to one ID at a time, so that little of either is in memory.
"""

from base64 import b64decode
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_weir.errors import ArchiveDamagedError
from pyspark_weir.gateway import ColumnsPage, GatewayClient
from pyspark_weir.ids import EntryId
from pyspark_weir.table import digest
from pyspark_weir.table.ranges import StreamKey
from pyspark_weir.table.reading import entries_of
from pyspark_weir.table.schema import Keys, id_keys, id_of_key, keys_of
from pyspark_weir.table.table import ArchiveTable, EntryFilter

_IN_GATEWAY_ALONE: Final = "is in the gateway, and not in the archive"
_OTHER: Final = "has other fields in the archive than in the gateway"


def keys_by_gateway(table: ArchiveTable) -> dict[str, dict[str, StreamKey]]:
    """The streams of an archive, in their latest generations, by gateway and name; sorted."""
    found: dict[str, dict[str, StreamKey]] = {}
    for (gateway, stream), position in sorted(table.positions().items()):
        found.setdefault(gateway, {})[stream] = StreamKey(gateway, stream, position.generation)
    return found


class Entries(NamedTuple):
    """Entries of one stream by their `id_key`s, ascending."""

    keys: Keys
    digests: digest.Digests

    def upto(self, cut: np.bytes_) -> "tuple[Entries, Entries]":
        """Those up to a key, and the others."""
        place = int(np.searchsorted(self.keys, cut, "right"))
        before = Entries(self.keys[:place], self.digests[:place])
        return before, Entries(self.keys[place:], self.digests[place:])


class Compared(NamedTuple):
    """What both sides have up to one ID: the `id_key`s of entries that are the `same`, of those that only the
    `archived` side has, and of those that prevent a trim: `missing` there, or with `other` fields.
    """

    same: Keys
    archived: Keys
    missing: Keys
    other: Keys

    @property
    def fault(self) -> str | None:
        """The first entry that the archive does not hold as the gateway does, in a sentence."""
        kinds = ((self.missing, _IN_GATEWAY_ALONE), (self.other, _OTHER))
        key, why = min(((keys[0], why) for keys, why in kinds if len(keys)), default=(None, ""))
        return None if key is None else f"{id_of_key(key.decode())} {why}"


def hint_of_erased(table: ArchiveTable, key: StreamKey) -> str:
    """Why an archive may lack what the gateway has, and the remedy; empty where nothing was erased."""
    count = table.erased().get(key, 0)
    what = (
        f"; {count} entries were erased from the archive: delete them in the gateway too, with `weir delete`"
    )
    return what if count else ""


def compare_entries(
    table: ArchiveTable, gateway: GatewayClient, key: StreamKey, after: EntryId, upto: EntryId
) -> Iterator[Compared]:
    """All entries of `(after, upto]` of a stream. Raises ArchiveError, RefusedError, Unavailable."""
    files = table.files(EntryFilter(*key, after=after, upto=upto))
    stored = entries_of(table.root, files, key, after, upto, ("fields",))
    archived = (Entries(keys_of(rows), digest.of_rows(rows)) for rows in stored)
    pages = gateway.pages(key.stream, after=str(after), end=str(upto))
    return compare(archived, _living(key, pages))


def compare(archived: Iterator[Entries], living: Iterator[Entries]) -> Iterator[Compared]:
    """What two sequences have, each of them ascending."""
    one, other = _next(archived), _next(living)
    while one is not None or other is not None:
        cut = min(entries.keys[-1] for entries in (one, other) if entries is not None)
        mine, one = _take(one, cut, archived)
        yours, other = _take(other, cut, living)
        yield _compare(mine, yours)


_NONE: Final = Entries(np.empty(0, "S32"), np.empty((0, 2), np.uint64))


def _next(parts: Iterator[Entries]) -> Entries | None:
    return next((part for part in parts if len(part.keys)), None)


def _take(entries: Entries | None, cut: np.bytes_, more: Iterator[Entries]) -> tuple[Entries, Entries | None]:
    if entries is None:
        return _NONE, None
    taken, left = entries.upto(cut)
    return taken, left if len(left.keys) else _next(more)


def _compare(archived: Entries, living: Entries) -> Compared:
    places = np.searchsorted(archived.keys, living.keys)
    found = np.zeros(len(living.keys), np.bool_)
    inside = places < len(archived.keys)
    found[inside] = archived.keys[places[inside]] == living.keys[inside]
    same = found.copy()
    same[found] = (archived.digests[places[found]] == living.digests[found]).all(axis=1)
    alone = archived.keys[~np.isin(archived.keys, living.keys)]
    return Compared(living.keys[same], alone, living.keys[~found], living.keys[found & ~same])


def _living(key: StreamKey, pages: Iterator[ColumnsPage]) -> Iterator[Entries]:
    for page in pages:
        if page.generation not in ("", key.generation):
            raise ArchiveDamagedError(f"{key} was made anew while it was compared: run this again")
        yield entries_of_page(page)


def entries_of_page(page: ColumnsPage) -> Entries:
    """The entries of a page."""
    keys = id_keys(np.asarray(page.ms, np.uint64), np.asarray(page.seq, np.uint64))
    offsets = np.zeros(len(page) + 1, np.int32)
    np.cumsum(np.asarray(page.n, np.int32), out=offsets[1:])
    to_bytes = b64decode if page.base64 else str.encode
    names = pa.array([to_bytes(name) for name in page.names], pa.binary())
    values = [b64decode(value) for value in page.values] if page.base64 else page.values
    found = digest.of_fields(
        keys,
        offsets,
        names.take(pa.array(np.asarray(page.name_index, np.int32))),
        pa.array(values, pa.binary() if page.base64 else pa.string()),
    )
    return Entries(keys_of(pa.table({"id_key": keys})), found)
