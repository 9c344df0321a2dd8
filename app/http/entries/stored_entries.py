"""What all shapes of bodies share: entries as they are stored, their limits, and the words of refusals.

Knows: envelopes, rows and stored forms. Must never know: media types, streams, query parameters, sockets.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from app import names
from app.errors import RefusalError, invalid, locate, step
from app.http import query, strict_json
from app.http.entries.values import Value, from_base64
from app.http.entries.values import fields as fields_of
from app.http.strict_json import Json, NotPlainError, Number, Object
from app.limits import EntryLimits
from engine import entries, ids
from engine.commands.types import AutoSequence, NewId
from engine.recurrence import AHEAD_MS_MAX
from engine.rows import Form
from engine.rows import read as read_rows

_LATER_MEMBERS: Final = {"deliver_at", "delay_ms", "schedule"}
_ENVELOPE_MEMBERS: Final = {"id", "fields", "encoding"} | _LATER_MEMBERS
# If they are null they were not given.
_OPTIONAL_MEMBERS: Final = {"id", "encoding", "entries"} | _LATER_MEMBERS
BLANKS: Final = b" \t\r\n"
# Beyond this a single entry's names are counted before it is read; its own members are no fields.
CROWDED_BYTES_MIN: Final = 64 << 10
MEMBERS_MAX: Final = 8
# A decoder lets no other thread go on, and its values take much memory: this much is decoded and encoded in
# one call, up to 5 ms.
PIECE_BYTES: Final = 256 << 10
# What the strict reader takes in the loop: some ms.
STRICT_INLINE_BYTES_MAX: Final = 16 << 10
# What an entry may have beside what is stored of it: members of its own, and brackets of pairs.
_AROUND_BYTES_MAX: Final = 8 << 10
# Of an entry beyond `CROWDED_BYTES_MIN` whose values may be nested: a few ms for the strict reader.
_NESTED_VALUES_MAX: Final = 20_000


class Later(msgspec.Struct, frozen=True):
    """When an entry is appended, and under which name, as far as it says that itself. `place` is the entry's
    pointer.
    """

    at_ms: int | None
    in_ms: int | None
    name: str | None
    place: str

    @property
    def has_time(self) -> bool:
        """Whether it is more than a name."""
        return self.at_ms is not None or self.in_ms is not None


class ParsedEntry(msgspec.Struct, frozen=True):
    """One entry, whether it says its ID, and when it is appended."""

    body: bytes
    new_id: NewId = None
    has_id: bool = False
    later: Later | None = None


class ParsedEntries(msgspec.Struct, frozen=True):
    """Stored forms without IDs. `ids` is empty where all are the engine's, `later` where no entry says when
    it is appended; `batch` decides the form of the response.

    `digest` identifies the body, if requested; `key` is an idempotency key that stands in it, if requested.
    """

    bodies: Sequence[bytes]
    ids: Sequence[NewId] = ()
    batch: bool = False
    digest: bytes = b""
    later: Sequence[Later | None] = ()
    key: str | None = None


class Envelope(msgspec.Struct, forbid_unknown_fields=True):
    """An entry with its ID, as publishers write it."""

    fields: dict[str, str]
    id: str = ""


encode_json: Final = msgspec.json.Encoder().encode
encode_lines: Final = msgspec.json.Encoder().encode_lines

# What stands around the fields in a stored form; many bodies are made with one `replace`.
_BEFORE, _, _BEHIND = entries.body_of_fields(b"\n").partition(b"\n")
_BETWEEN: Final = _BEHIND + b"\n" + _BEFORE

Fields = dict[str, str]


def in_one_pass(body: bytes, form: Form, limits: EntryLimits) -> Sequence[bytes] | None:
    """The stored forms of a body, by the compiled reader; None where it cannot tell."""
    if limits.nested:
        return None
    return read_rows(
        body,
        form,
        entries_max=limits.entries_max,
        fields_max=limits.fields_max,
        entry_bytes_max=limits.entry_bytes_max,
    )


def join_parts(parts: Iterable[ParsedEntries], limits: EntryLimits) -> ParsedEntries:
    """Entries that were read in pieces, as one. Each part is let go before the next is read."""
    bodies, new_ids, has_ids = list[bytes](), list[NewId](), False
    for part in parts:
        bodies += part.bodies
        new_ids += part.ids or [None] * len(part.bodies)
        has_ids = has_ids or bool(part.ids)
    check_count(len(bodies), limits)
    return ParsedEntries(bodies, new_ids if has_ids else (), batch=True)


def check_values(text: bytes, place: str, limits: EntryLimits) -> None:
    """Refuse an entry of far too many values by counting values of any type: a pair is three."""
    if len(text) <= CROWDED_BYTES_MIN:
        return
    check_least(text, limits)
    if limits.nested:
        if strict_json.exceeds(text, _NESTED_VALUES_MAX):
            raise invalid(place, f"an entry has at most {_NESTED_VALUES_MAX} values, nested ones included")
    elif strict_json.exceeds(text, 3 * limits.fields_max + 2 * MEMBERS_MAX):
        raise invalid(place, f"an entry has at most {limits.fields_max} fields")


# ---- entries


class Indexed:
    """Names the entry's place in a refusal that leaves the block, and its line where it has one."""

    def __init__(self, index: int, line: int | None = None) -> None:
        self._index = index
        self._line = line

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RefusalError):
            error.members["index"] = self._index
            if error.code == "malformed_json" and self._line is None:
                error.detail = f"entry {self._index}: {error.detail}"
            if self._line is not None:
                error.members["line"] = self._line
                error.detail = f"line {self._line}: {error.detail}"


def make_batch(rows: Iterable[ParsedEntry], count: int, limits: EntryLimits) -> ParsedEntries:
    """Entries that were read one by one."""
    check_count(count, limits)
    return _joined(list(rows), batch=True)


def make_one(row: ParsedEntry) -> ParsedEntries:
    """One entry alone."""
    return _joined([row], batch=False)


def _joined(rows: Sequence[ParsedEntry], *, batch: bool) -> ParsedEntries:
    return ParsedEntries(
        [row.body for row in rows],
        [row.new_id for row in rows] if any(row.has_id for row in rows) else (),
        batch=batch,
        later=[row.later for row in rows] if any(row.later for row in rows) else (),
    )


def read_envelope(members: dict[str, Json], pointer: str, limits: EntryLimits) -> ParsedEntry:
    """`{"id"?, "fields", "encoding"?, "deliver_at"?, "delay_ms"?, "schedule"?}` → an entry."""
    unknown = members.keys() - _ENVELOPE_MEMBERS
    if unknown or "fields" not in members:
        name = min(unknown, default="fields")
        hint = 'an entry is {"fields": {…}}, beside it only "id", "encoding", and when it is appended'
        raise invalid(f"{pointer}/{step(name)}", f"{'unknown member' if unknown else 'missing'}; {hint}")
    if isinstance(members["fields"], list):
        # Before each of them is looked at.
        check_fields(len(members["fields"]), f"{pointer}/fields", limits)
    pairs = fields_of(members["fields"], f"{pointer}/fields", nested=limits.nested)
    encoding = members.get("encoding")
    if "encoding" in members:
        if encoding != "base64" or isinstance(encoding, Number):
            raise invalid(f"{pointer}/encoding", 'the only encoding is "base64"')
        pairs = [(name, from_base64(value, f"{pointer}/fields/{step(name)}")) for name, value in pairs]
    new_id = _new_id(members["id"], f"{pointer}/id") if "id" in members else None
    later = _later(members, pointer, limits)
    return ParsedEntry(store_pairs(pairs, f"{pointer}/fields", limits), new_id, "id" in members, later)


def _later(members: dict[str, Json], pointer: str, limits: EntryLimits) -> Later | None:
    given = _LATER_MEMBERS & members.keys()
    if not given:
        return None
    if not limits.later:
        hint = "entries for later are published to one stream alone: POST /v1/streams/{stream}/entries"
        raise invalid(f"{pointer}/{min(given)}", hint)
    if {"delay_ms", "deliver_at"} <= given:
        raise invalid(f"{pointer}/delay_ms", "it does not go with deliver_at")
    at_ms = in_ms = name = None
    if "deliver_at" in given:
        at_ms = _time_ms(members["deliver_at"], f"{pointer}/deliver_at")
    if "delay_ms" in given:
        in_ms = _delay_ms(members["delay_ms"], f"{pointer}/delay_ms")
    if "schedule" in given:
        name = names.check_text(_string(members["schedule"], f"{pointer}/schedule"), "schedule name")
    return Later(at_ms, in_ms, name, pointer)


def _string(value: Json, pointer: str) -> str:
    if not isinstance(value, str) or isinstance(value, Number):
        raise invalid(pointer, "it is a string")
    return value


def _time_ms(value: Json, pointer: str) -> int:
    text = _string(value, pointer)
    try:
        return query.time_ms(text)
    except RefusalError as refusal:
        raise invalid(pointer, refusal.places[0].detail) from None


def _delay_ms(value: Json, pointer: str) -> int:
    delay_ms = float(value) if isinstance(value, Number) else -1.0
    if not (0 <= delay_ms <= AHEAD_MS_MAX and delay_ms.is_integer()):
        raise invalid(pointer, f"it is a whole number between 0 and {AHEAD_MS_MAX}")
    return int(delay_ms)


def _new_id(value: Json, pointer: str) -> NewId:
    if not isinstance(value, str) or isinstance(value, Number):
        raise invalid(pointer, "an ID is a string")
    if value == "*":
        return None
    ms, auto, rest = value.rpartition("-*")
    parsed = ids.parse(ms if auto and "-" not in ms else value)
    if parsed is None or (rest and auto):
        hint = "an ID is '<ms>-<seq>', '<ms>-*' or '*'"
        raise RefusalError("malformed_id", f"{pointer}: {hint}", places=[locate(pointer, hint)])
    return AutoSequence(ids.ms_of(parsed)) if auto else parsed


def members_of(value: Object, pointer: str) -> dict[str, Json]:
    """The members of an object. Raises RefusalError for a name that is there twice."""
    twice = strict_json.repeated_name(value)
    if twice is not None:
        raise invalid(f"{pointer}/{step(twice)}", "the member occurs twice")
    return {name: member for name, member in value if member is not None or name not in _OPTIONAL_MEMBERS}


def store_pairs(pairs: Sequence[tuple[str, Value]], pointer: str, limits: EntryLimits) -> bytes:
    """The stored form of fields, within the limits."""
    check_fields(len(pairs), pointer, limits)
    entry_body = entries.body(pairs)
    check_size(len(entry_body), limits)
    return entry_body


# ---- the fast way's parts


def of_envelopes(envelopes: Sequence[Envelope], limits: EntryLimits) -> ParsedEntries:
    """Entries of envelopes."""
    bodies = of_rows([envelope.fields for envelope in envelopes], limits)
    given = [envelope.id for envelope in envelopes]
    return ParsedEntries(bodies, list(map(plain_id, given)) if any(given) else (), batch=True)


def plain_id(text: str) -> NewId:
    """An ID as it is written. Raises NotPlainError for what is none."""
    try:
        return _new_id(text, "") if text else None
    except RefusalError:
        raise NotPlainError from None


def of_rows(rows: Sequence[Fields], limits: EntryLimits, text: bytes | None = None) -> list[bytes]:
    """The stored forms of rows of text values; `text` is their encoding, one a line, where it is known.

    What is beyond a limit is left to the strict reader, which knows what is wrong first, and the words for
    it.
    """
    sizes = set(map(len, rows))
    if not 0 < len(rows) <= limits.entries_max or 0 in sizes or max(sizes) > limits.fields_max:
        raise NotPlainError
    lines = encode_lines(rows) if text is None else text
    bodies = (_BEFORE + lines[:-1].replace(b"\n", _BETWEEN) + _BEHIND).split(b"\n")
    # If the whole batch fits the limit of one entry, each entry does.
    is_large = len(lines) + len(_BETWEEN) > limits.entry_bytes_max
    if is_large and len(max(bodies, key=len)) > limits.entry_bytes_max:
        raise NotPlainError
    return bodies


def check_names_kept(body: bytes, envelopes: Sequence[Envelope], *, names_besides: int) -> None:
    """Raises NotPlainError if a name was there twice."""
    pairs = sum([len(envelope.fields) + (envelope.id != "") for envelope in envelopes])
    check_strings(body, names_besides + len(envelopes) + 2 * pairs)


def check_strings(body: bytes, strings: int) -> None:
    """A decoder keeps the last of two equal names: then the text has more strings than what came out of
    it.
    """
    if strict_json.quotes_of(body) != 2 * strings:
        raise NotPlainError


def check_lines(body: bytes, count: int) -> None:
    """The decoder takes objects side by side or over several lines; a batch has one a line."""
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n")
    body = body.strip()
    if not body.count(b"\n") == body.count(b"}\n{") == count - 1:
        raise NotPlainError


def check_count(count: int, limits: EntryLimits) -> None:
    """Refuse no entries, and too many."""
    if count == 0:
        raise invalid("", "there is no entry: a batch has at least one")
    if count > limits.entries_max:
        raise RefusalError("too_many_entries", f"a batch has at most {limits.entries_max} entries")


def check_fields(count: int, pointer: str, limits: EntryLimits) -> None:
    """Refuse no fields, and too many."""
    if count == 0:
        raise invalid(pointer, "an entry has at least one field")
    if count > limits.fields_max:
        raise invalid(pointer, f"an entry has at most {limits.fields_max} fields")


def check_least(text: bytes, limits: EntryLimits) -> None:
    """Refuse a long entry that is too large however it is stored, before it is read."""
    most = max(CROWDED_BYTES_MIN, limits.entry_bytes_max + _AROUND_BYTES_MAX)
    if len(text) > most and (least := strict_json.least_bytes(text)) > most:
        check_size(least, limits)


def check_size(size: int, limits: EntryLimits) -> None:
    """Refuse an entry that is too large."""
    if size > limits.entry_bytes_max:
        raise RefusalError(
            "entry_too_large", f"an entry has at most {limits.entry_bytes_max} bytes as stored JSON"
        )
