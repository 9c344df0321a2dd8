"""XADD's options as query parameters, and what publishing answers.

Knows: `nomkstream`, trimming, and the two shapes of the answer. Must never know: bodies, statuses, sockets.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from app.errors import invalid
from app.http import query
from app.http.entry_bodies import Published
from app.http.query import Parameters
from engine import ids
from engine.commands import IdempotencyKey, Refs, Trim, XAdd
from engine.replies import Added

PARAMETERS: Final = ("nomkstream", "maxlen", "minid", "approx", "limit", "refs")
_REFS: Final = tuple(refs.value for refs in Refs)
_INTEGER_MAX: Final = (1 << 63) - 1


class XAddOptions(msgspec.Struct, frozen=True):
    """What the query says of a publish."""

    mkstream: bool = True
    trim: Trim | None = None

    def removes(self, entry_id: int) -> bool:
        """Whether the trim takes what was just published away again."""
        trim = self.trim
        return trim is not None and (
            trim.maxlen == 0 or (isinstance(trim.minid, int) and trim.minid > entry_id)
        )

    def command(self, stream: str, published: Published, demands: "Demands") -> XAdd:
        """The whole command."""
        key = demands.key
        return XAdd(
            stream=stream,
            bodies=published.bodies,
            ids=published.ids,
            mkstream=self.mkstream,
            trim=self.trim,
            idempotency=IdempotencyKey(key, published.digest) if key is not None else None,
            expected_last_id=demands.last_id,
        )


class Demands(msgspec.Struct, frozen=True):
    """What the headers If-Match and Idempotency-Key ask for."""

    last_id: int | None = None
    key: str | None = None


_PLAIN: Final = XAddOptions()


def parse(query_string: bytes) -> XAddOptions:
    """The options of POST …/entries."""
    if not query_string:
        return _PLAIN
    return of(query.parse(query_string, PARAMETERS))


def of(given: Parameters) -> XAddOptions:
    """The same of options that were written elsewhere: in a frame."""
    return XAddOptions(mkstream=not query.boolean(given, "nomkstream", default=False), trim=_trim(given))


def _trim(given: Parameters) -> Trim | None:
    if "maxlen" in given and "minid" in given:
        raise invalid("maxlen", "it does not go with minid")
    maxlen = query.integer(given, "maxlen", least=0, most=_INTEGER_MAX)
    minid = query.entry_id(given["minid"], "minid") if "minid" in given else None
    if maxlen is None and minid is None:
        for name in ("approx", "limit", "refs"):
            if name in given:
                raise invalid(name, "it goes with maxlen or minid")
        return None
    approx = query.boolean(given, "approx", default=True)
    limit = query.integer(given, "limit", least=0, most=_INTEGER_MAX)
    if limit is not None and not approx:
        raise invalid("limit", "it goes with approximate trimming")
    refs = Refs(query.word(given, "refs", _REFS, Refs.KEEP.value))
    return Trim(maxlen=maxlen, minid=minid, approx=approx, limit=limit, refs=refs, count_pending=True)


def added(reply: Added, wanted: XAddOptions, published: Published, *, ids_wanted: bool) -> bytes:
    """`{"id", "duplicate"}` for one entry, `{"first_id", "last_id", "count", "ids", "duplicate"}` for a
    batch.
    """
    if published.batch:
        shown = b',"ids":[%b]' % _ids(reply.ids) if ids_wanted else b""
        first, last, count = reply.ids[0], reply.ids[-1], len(reply.ids)
        what = b'"first_id":%b,"last_id":%b,"count":%d%b' % (_id(first), _id(last), count, shown)
    else:
        what = b'"id":%b' % _id(reply.ids[0])
    trimmed = b""
    if wanted.trim is not None:
        trimmed = b',"trimmed":%d,"pending_affected":%d' % (reply.trimmed, reply.pending_affected)
    return b'{%b,"duplicate":%b%b}' % (what, b"true" if reply.duplicate else b"false", trimmed)


def _id(entry_id: int) -> bytes:
    return b'"%d-%d"' % (ids.ms_of(entry_id), ids.sequence_of(entry_id))


def _ids(entry_ids: Sequence[int]) -> bytes:
    if isinstance(entry_ids, range) and ids.ms_of(entry_ids[0]) == ids.ms_of(entry_ids[-1]):
        # A batch within one millisecond, as nearly all are: only the sequence differs.
        between = f'","{ids.ms_of(entry_ids[0])}-'
        sequences = range(ids.sequence_of(entry_ids[0]), ids.sequence_of(entry_ids[-1]) + 1)
        return (between[2:] + between.join(map(str, sequences)) + '"').encode()
    return b",".join(map(_id, entry_ids))
