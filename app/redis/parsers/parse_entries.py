"""Parses the commands on entries and streams: XADD, XTRIM, XRANGE, XDEL and others.

Knows: each command's words, their order of checks, and its error texts (docs/semantics.md, "IDs and XADD",
"Deletion").
Must never know: what is in a stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.redis import replies
from app.redis.parsers.words import (
    INTEGER_MAX,
    Words,
    entry_id,
    entry_ids,
    integer,
    integer_from,
    range_end,
    range_start,
    stream_name,
    wrong_arity,
)
from app.redis.request import CommandRequest, for_engine, refused_behind_key
from engine import EngineError, entries, errors, ids
from engine.commands import types

REFS: Final = {b"KEEPREF": types.Refs.KEEP, b"DELREF": types.Refs.DELETE, b"ACKED": types.Refs.ACKED}


@dataclass(slots=True)
class _Trimming:
    """The options that XADD and XTRIM share, read so far."""

    maxlen: int | None = None
    minid: int | None = None
    approx: bool = False
    limit: int | None = None
    refs: types.Refs | None = None

    @property
    def _has_strategy(self) -> bool:
        return self.maxlen is not None or self.minid is not None

    def took(self, words: Words) -> bool:
        """Whether the next words were such an option."""
        if words.took(b"MAXLEN", values=1):
            self.maxlen = integer(self._threshold(words))
            if self.maxlen < 0:
                raise errors.invalid("ERR The MAXLEN argument must be >= 0.")
            return True
        if words.took(b"MINID", values=1):
            self.minid = entry_id(self._threshold(words))
            return True
        if words.took(b"LIMIT", values=1):
            self.limit = integer(words.take())
            if self.limit < 0:
                raise errors.invalid("ERR The LIMIT argument must be >= 0.")
            return True
        if self.refs is None and words.peek().upper() in REFS:
            self.refs = REFS[words.option()]
            return True
        return False

    def _threshold(self, words: Words) -> bytes:
        if self._has_strategy:
            raise errors.invalid(
                "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
            )
        self.approx = False
        # A mark without a following word is the threshold itself, which is not a number.
        if words.left >= 2 and words.peek() in {b"~", b"="}:
            self.approx = words.take() == b"~"
        return words.take()

    def checked(self, *, required: bool) -> types.Trim | None:
        """The complete trim, after all options were read."""
        if self.limit and not self._has_strategy:
            raise errors.invalid(
                "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
            )
        if required and not self._has_strategy:
            raise errors.invalid("ERR syntax error, XTRIM must be called with a trimming strategy")
        if self.limit is not None and not self.approx:
            raise errors.invalid("ERR syntax error, LIMIT cannot be used without the special ~ option")
        if not self._has_strategy:
            return None
        refs = self.refs or types.Refs.KEEP
        return types.Trim(
            maxlen=self.maxlen, minid=self.minid, approx=self.approx, limit=self.limit, refs=refs
        )


@dataclass(slots=True)
class _Producing:
    """IDMP and IDMPAUTO. `key` None is IDMPAUTO's: made of the fields."""

    producer: bytes | None = None
    key: bytes | None = None

    def took(self, words: Words) -> bool:
        """Whether the next words were one of the two."""
        if words.took(b"IDMPAUTO", values=1):
            self._once()
            self.producer = words.take()
            if not self.producer:
                raise errors.invalid("ERR syntax error, IDMPAUTO requires a non-empty producer ID")
            return True
        if words.took(b"IDMP", values=2):
            self._once()
            self.producer, self.key = words.take(), words.take()
            if not self.producer:
                raise errors.invalid("ERR syntax error, IDMP requires a non-empty producer ID")
            if not self.key:
                raise errors.invalid("ERR syntax error, IDMP requires a non-empty idempotent ID")
            return True
        return False

    def _once(self) -> None:
        if self.producer is not None:
            raise errors.invalid("ERR syntax error, IDMP/IDMPAUTO specified multiple times")

    def producer_key(self, pairs: entries.Pairs) -> types.ProducerKey | None:
        """The producer and its key, None if not given."""
        if self.producer is None:
            return None
        return types.ProducerKey(self.producer, entries.fingerprint(pairs) if self.key is None else self.key)


def xadd(words: Words) -> CommandRequest:
    """XADD key [options] <*|id|ms-*> field value [field value …]."""
    key = words.take()
    trimming, producing, mkstream = _Trimming(), _Producing(), True
    new_id: types.NewId = None
    while words.left:
        if words.peek() == b"*":
            words.take()
            break
        if trimming.took(words) or producing.took(words):
            continue
        if words.took(b"NOMKSTREAM"):
            mkstream = False
            continue
        new_id = _new_id(words.take())
        break
    trim = trimming.checked(required=False)
    if producing.producer is not None and new_id is not None:
        raise errors.invalid("ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")
    if words.left < 2 or words.left % 2:
        raise wrong_arity("xadd")
    if new_id == ids.ID_MIN:
        raise errors.id_is_zero()
    stream = stream_name(key)
    pairs = _pairs(words.rest())
    return for_engine(
        types.XAdd(
            stream=stream,
            bodies=(entries.body(pairs),),
            ids=() if new_id is None else (new_id,),
            mkstream=mkstream,
            trim=trim,
            producer_key=producing.producer_key(pairs),
        )
    )


def _new_id(word: bytes) -> int | types.AutoSequence:
    """An explicit ID, or `ms-*`."""
    if word.endswith(b"-*"):
        # The part before `-*` is only a number: another dash would begin a second sequence.
        ms = b"" if b"-" in word[:-2] else word[:-2]
        return types.AutoSequence(ids.ms_of(entry_id(ms)))
    return entry_id(word)


def _pairs(words: Sequence[bytes]) -> list[tuple[str, bytes]]:
    try:
        names = [name.decode() for name in words[::2]]
    except UnicodeDecodeError:
        raise errors.invalid(
            "ERR invalid field name", "field names are UTF-8; values may be any bytes"
        ) from None
    return list(zip(names, words[1::2], strict=True))


def xtrim(words: Words) -> CommandRequest:
    """XTRIM key <MAXLEN|MINID> [=|~] threshold [LIMIT n] [KEEPREF|DELREF|ACKED]."""
    key = words.take()
    trimming = _Trimming()
    while words.left:
        if not trimming.took(words):
            raise errors.syntax_error()
    trim = trimming.checked(required=True)
    assert trim is not None, "a strategy was required"
    return for_engine(types.XTrim(stream=stream_name(key), trim=trim))


def xlen(words: Words) -> CommandRequest:
    """XLEN key."""
    return for_engine(types.XLen(stream=stream_name(words.take())), replies.count)


def xrange(words: Words) -> CommandRequest:
    """XRANGE key start end [COUNT n]."""
    key, start, end = words.take_many(3)
    return _range(key, range_start(start), range_end(end), words, reverse=False)


def xrevrange(words: Words) -> CommandRequest:
    """XREVRANGE key end start [COUNT n]."""
    key, end, start = words.take_many(3)
    return _range(key, range_start(start), range_end(end), words, reverse=True)


def _range(key: bytes, start: int, end: int, words: Words, *, reverse: bool) -> CommandRequest:
    count = None
    while words.left:
        if not words.took(b"COUNT", values=1):
            raise errors.syntax_error()
        count = max(0, integer(words.take()))
    return for_engine(
        types.XRange(stream=stream_name(key), start=start, end=end, count=count, reverse=reverse)
    )


def xdel(words: Words) -> CommandRequest:
    """XDEL key id [id …]; the IDs are looked at after the key."""
    stream = stream_name(words.take())
    try:
        return for_engine(types.XDel(stream=stream, ids=entry_ids(words.rest())), replies.count)
    except EngineError as refusal:
        return refused_behind_key(stream, refusal, missing=0)


def xdelex(words: Words) -> CommandRequest:
    """XDELEX key [KEEPREF|DELREF|ACKED] IDS numids id …; the IDs are looked at after the key."""
    key = words.take()
    found, refs = ids_block(words)
    stream = stream_name(key)
    try:
        return for_engine(types.XDelEx(stream=stream, ids=entry_ids(found), refs=refs))
    except EngineError as refusal:
        return refused_behind_key(stream, refusal, missing=[-1] * len(found))


def ids_block(words: Words) -> tuple[Sequence[bytes], types.Refs]:
    """`[KEEPREF|DELREF|ACKED] IDS numids id …` of XDELEX and XACKDEL, in any order; the IDs as written."""
    refs: types.Refs | None = None
    found: Sequence[bytes] = ()
    while words.left:
        if refs is None and words.peek().upper() in REFS:
            refs = REFS[words.option()]
        elif words.took(b"IDS", values=1):
            numids = integer_from(
                words.take(), 1, INTEGER_MAX, "ERR Number of IDs must be a positive integer"
            )
            if numids > words.left:
                raise errors.invalid("ERR The `numids` parameter must match the number of arguments")
            found = words.take_many(numids)
        else:
            raise errors.syntax_error()
    if not found:
        raise errors.invalid("ERR IDS option is required")
    return found, refs or types.Refs.KEEP


def xsetid(words: Words) -> CommandRequest:
    """XSETID key last-id [ENTRIESADDED n] [MAXDELETEDID id]."""
    key, last_id = words.take(), entry_id(words.take())
    entries_added: int | None = None
    max_deleted_id = 0
    while words.left:
        if words.took(b"ENTRIESADDED", values=1):
            entries_added = integer(words.take())
            if entries_added < 0:
                raise errors.invalid("ERR entries_added must be positive")
        elif words.took(b"MAXDELETEDID", values=1):
            max_deleted_id = entry_id(words.take())
            if last_id < max_deleted_id:
                raise errors.invalid(
                    "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id"
                )
        else:
            raise errors.syntax_error()
    return for_engine(
        types.XSetId(
            stream=stream_name(key),
            last_id=last_id,
            entries_added=entries_added,
            # 0-0 was never deleted: it changes nothing.
            max_deleted_id=max_deleted_id or None,
        )
    )


def xcfgset(words: Words) -> CommandRequest:
    """XCFGSET key [IDMP-DURATION s] [IDMP-MAXSIZE n]; the options are looked at after the key."""
    stream = stream_name(words.take())
    try:
        return for_engine(types.XCfgSet(stream=stream, settings=_idmp_settings(words)))
    except EngineError as refusal:
        return refused_behind_key(stream, refusal, missing=errors.no_such_key(stream))


def _idmp_settings(words: Words) -> types.IdmpSettings:
    duration_s: int | None = None
    maxsize: int | None = None
    while words.left:
        if words.took(b"IDMP-DURATION", values=1):
            if duration_s is not None:
                raise errors.invalid("ERR IDMP-DURATION specified multiple times")
            refusal = "ERR IDMP-DURATION must be between 1 and 86400 seconds"
            duration_s = integer_from(words.take(), 1, 86_400, refusal)
        elif words.took(b"IDMP-MAXSIZE", values=1):
            if maxsize is not None:
                raise errors.invalid("ERR IDMP-MAXSIZE specified multiple times")
            maxsize = integer_from(
                words.take(), 1, 10_000, "ERR IDMP-MAXSIZE must be between 1 and 10000 entries"
            )
        else:
            raise errors.syntax_error()
    if duration_s is None and maxsize is None:
        raise errors.invalid("ERR At least one parameter must be specified")
    return types.IdmpSettings(duration_s=duration_s, maxsize=maxsize)


def xidmprecord(words: Words) -> CommandRequest:
    """XIDMPRECORD key pid iid id."""
    key, producer, iid, added_id = words.take_many(4)
    if not producer:
        raise errors.invalid("ERR producer ID must be non-empty")
    if not iid:
        raise errors.invalid("ERR idempotent ID must be non-empty")
    produced = types.ProducerKey(producer, iid)
    found_id = entry_id(added_id)
    return for_engine(types.XIdmpRecord(stream=stream_name(key), producer_key=produced, id=found_id))
