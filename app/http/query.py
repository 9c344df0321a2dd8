"""Query strings, read strictly: each parameter known, given once, percent-encoded UTF-8, of its type and
range.

Knows: the grammar of parameters, ID bounds and times. Must never know: routes, what a parameter is for.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, cast
from urllib.parse import unquote_to_bytes

from app.errors import ErrorLocation, RefusalError, invalid, locate
from engine import ids

_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9a-fA-F]{2})")
# Without fractions beyond nanoseconds and leap seconds; RFC 3339 allows `t` and `z`.
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-]\d\d:\d\d))", re.ASCII
)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
# Fewer IDs gain nothing by being read together.
_TOGETHER_MIN: Final = 3
_NANOSECONDS_A_MS: Final = 1_000_000

Parameters = Mapping[str, str]


def parse(query: bytes, known: Sequence[str]) -> Parameters:
    """The parameters by name. Raises `unknown_parameter`; 422 for one given twice."""
    return parse_repeated(query, known)[0]


def parse_repeated(
    query: bytes, known: Sequence[str], repeated: str | None = None
) -> tuple[Parameters, Sequence[str]]:
    """The same, and beside it all values of the one parameter that may be given more than once."""
    if _BAD_ESCAPE.search(query):
        raise RefusalError("unknown_parameter", "the query is not percent-encoded")
    values: dict[str, str] = {}
    many: list[str] = []
    for piece in query.split(b"&"):
        name, _, value = map(_decode, piece.partition(b"="))
        if not piece:
            continue
        if name not in known:
            raise _unknown(name[:64], known)
        if name == repeated:
            many.append(value)
        elif name in values:
            raise invalid(name, "the parameter is given twice")
        else:
            values[name] = value
    return values, many


def _unknown(name: str, known: Sequence[str]) -> RefusalError:
    others = f"known: {', '.join(known)}" if known else "there are none here"
    hint = f"unknown parameter {name!r}; {others}"
    return RefusalError(
        "unknown_parameter", hint, places=[ErrorLocation("parameter", name, "it is unknown here")]
    )


def _decode(text: bytes) -> str:
    try:
        return unquote_to_bytes(text.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise RefusalError("unknown_parameter", "the query is not UTF-8") from None


def entry_id(text: str, name: str) -> int:
    """A plain ID; a missing sequence is 0."""
    parsed = ids.parse(text)
    if parsed is None:
        raise malformed_id(name)
    return parsed


def entry_ids(texts: Sequence[object]) -> list[int] | None:
    """The IDs of several texts, each written as usual, in half of the time that each takes by itself.

    None for two or fewer, or if one is anything else.
    """
    if len(texts) < _TOGETHER_MIN:
        return None
    try:
        return ids.parse_each([*map(str.encode, cast("Sequence[str]", texts))])
    except (TypeError, UnicodeEncodeError):
        return None


def malformed_id(name: str, hint: str = "it is an ID, '<ms>-<seq>' or '<ms>'") -> RefusalError:
    """400 for what stands in the place of an ID."""
    return RefusalError("malformed_id", f"{name}: {hint}", places=[locate(name, hint)])


def bound(text: str, *, upper: bool) -> int:
    """A range's inclusive bound: `-`, `+` (which a query turns into a blank), an ID or, exclusive, `(` and
    an ID.
    """
    if text == "-":
        return ids.ID_MIN
    if text in ("+", " "):
        return ids.ID_MAX
    exclusive = text.startswith("(")
    parsed = ids.parse(text[exclusive:], missing_sequence=ids.SEQUENCE_MAX if upper else 0)
    if parsed is None:
        raise malformed_id("", "it is '-', '+', an ID, or '(' and an ID")
    if not exclusive:
        return parsed
    parsed += -1 if upper else 1
    if not ids.ID_MIN <= parsed <= ids.ID_MAX:
        raise malformed_id("", "there is no ID beyond this exclusive bound")
    return parsed


def time_ms(text: str) -> int:
    """A time in milliseconds since 1970, rounded up; 0 for one before."""
    return ids.ms_of(time_bound(text, upper=False))


def day_bound(text: str, *, upper: bool) -> int:
    """The same as `time_bound`; a date alone is the whole day in UTC."""
    if _DATE.fullmatch(text):
        text += "T23:59:59.999Z" if upper else "T00:00:00Z"
    return time_bound(text, upper=upper)


def time_bound(text: str, *, upper: bool) -> int:
    """The first ID at or after a time, or the last one at or before it. IDs have milliseconds, times may
    have more.
    """
    match = _TIME.fullmatch(
        text.replace(" ", "+") if text[10:11] != " " else text[:10] + "T" + text[11:].replace(" ", "+")
    )
    if match is None:
        raise invalid("", "it is a time of RFC 3339, for example 2026-01-31T12:00:00Z")
    day, clock, fraction, offset = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{offset or '+00:00'}")
        seconds = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    except (ValueError, OverflowError):
        raise invalid("", "there is no such time") from None
    nanoseconds = int((fraction or "").ljust(9, "0"))
    ms, beyond = divmod(nanoseconds, _NANOSECONDS_A_MS)
    ms += seconds * 1000 + (1 if beyond and not upper else 0)
    if ms < 0:
        return ids.ID_MIN
    return ids.make(ms, ids.SEQUENCE_MAX if upper else 0)
