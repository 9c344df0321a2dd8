"""Bodies of published entries → their stored forms, by Content-Type.

Knows: the four shapes that a publisher may send, their limits, and what is refused with which words.
Must never know: streams, query parameters, statuses, sockets.

Two ways in: the plain case is read by typed decoders in a few calls for the whole body; what those cannot
prove to be plain goes to the strict reader, entry by entry, which also finds the words for what is wrong.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import msgspec

from app.errors import RefusalError, invalid
from app.http.entries.json_bodies import plain_body, strict_body
from app.http.entries.line_bodies import is_row, plain_ndjson, strict_lines
from app.http.entries.stored_entries import STRICT_INLINE_BYTES_MAX, ParsedEntries, check_size, store_pairs
from app.http.entries.values import form_pair
from app.http.media import MediaType
from app.http.strict_json import NotPlainError
from app.limits import EntryLimits

# What clients call JSON without meaning to have it stored whole: browsers send strings as plain text, others
# have names of their own for it, or none.
_SAID_OF_JSON: Final = {
    "",
    "text/plain",
    "text/json",
    "application/x-json",
    "application/ndjson",
    "application/jsonl",
    "application/jsonlines",
    "application/x-jsonlines",
}
# Lines by which a text is known as NDJSON: no batch has more by default, and they take a few ms.
_JSON_LINES_MAX: Final = 10_000


def read(
    body: bytes,
    media: MediaType,
    limits: EntryLimits,
    *,
    digest: bool = False,
    quick: bool = False,
    raw: bool = False,
) -> ParsedEntries:
    """The entries of a body of any media type. All or nothing: the first bad entry refuses the whole. `raw`:
    one entry, also if it is JSON.

    `quick`: raise NotPlainError rather than read a long body strictly, which takes long.
    """
    if raw:
        published = _raw(body, media, limits)
    elif media.name in _JSON_READERS:
        published = _read_json(body, limits, *_JSON_READERS[media.name], quick=quick)
    elif media.name == _FORM:
        published = _form(body, limits)
    else:
        _check_is_no_json(body, media)
        published = _raw(body, media, limits)
    if not digest:
        return published
    return msgspec.structs.replace(published, digest=digest_of(body))


def _read_json(
    body: bytes, limits: EntryLimits, plain: "_Reader", strict: "_Reader", *, quick: bool
) -> ParsedEntries:
    try:
        return plain(body, limits)
    except NotPlainError:
        takes_long = len(body) > STRICT_INLINE_BYTES_MAX
    # Behind the exception, which holds what has been read so far.
    if quick and takes_long:
        raise NotPlainError
    return strict(body, limits)


def digest_of(body: bytes) -> bytes:
    """A digest that identifies a body, for idempotency keys."""
    return blake2b(body, digest_size=16).digest()


_skim: Final = msgspec.json.Decoder(msgspec.Raw).decode


# ---- form and raw


def _form(body: bytes, limits: EntryLimits) -> ParsedEntries:
    if body.count(b"&") > limits.fields_max:
        raise invalid("", f"an entry has at most {limits.fields_max} fields")
    # Decoded, three bytes become one; stored, none becomes less.
    check_size(len(body) - 2 * body.count(b"%"), limits)
    pairs = [form_pair(piece) for piece in body.split(b"&") if piece]
    if len(pairs) == 1 and pairs[0][0].lstrip().startswith("{"):
        hint = "this looks like JSON sent as a form: say Content-Type: application/json (curl has --json)"
        raise RefusalError("unsupported_media_type", hint)
    return ParsedEntries([store_pairs(pairs, "", limits)])


def _raw(body: bytes, media: MediaType, limits: EntryLimits) -> ParsedEntries:
    if not body and not media.text:
        raise invalid("", "there is no entry: the body is empty")
    check_size(len(body), limits)
    kind = [("content-type", media.text)] if media.text else []
    return ParsedEntries([store_pairs([("data", body), *kind], "", limits)])


def _check_is_no_json(body: bytes, media: MediaType) -> None:
    if media.name in _SAID_OF_JSON and _is_json(body):
        hint = (
            f"this is JSON sent as {media.name or 'a body without a type'}, as fetch does with a string: say "
            "Content-Type: application/json, application/x-ndjson for one entry a line, or "
            "application/octet-stream or the query raw=true to store the text as it is"
        )
        raise RefusalError("unsupported_media_type", hint)


def _is_json(body: bytes) -> bool:
    """Whether a body is a JSON object or list, or objects line by line; a long one by its first lines.

    Skimmed, not decoded: megabytes take milliseconds.
    """
    if not body.lstrip().startswith((b"{", b"[")):
        return False
    if _skims(body):
        return True
    lines = body.split(b"\n", _JSON_LINES_MAX)[:_JSON_LINES_MAX]
    rows = [line for line in lines if is_row(line)]
    return len(rows) > 1 and all(row.lstrip().startswith(b"{") and _skims(row) for row in rows)


def _skims(text: bytes) -> bool:
    try:
        _skim(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


_FORM: Final = "application/x-www-form-urlencoded"
_Reader = Callable[[bytes, EntryLimits], ParsedEntries]
# The fast reader, and the one that takes what that cannot prove to be plain.
_JSON_READERS: Final[dict[str, tuple[_Reader, _Reader]]] = {
    "application/json": (plain_body, strict_body),
    "application/x-ndjson": (plain_ndjson, strict_lines),
}
