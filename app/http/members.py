"""Small JSON objects as bodies: each member known, given once, of its type and range.

Knows: how a member is read and where it stood. Must never know: which members a call has, statuses, sockets.

An integer or an object that is null is one that was not given, except where a call says what null means.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from app.errors import RefusalError, invalid, step
from app.http import strict_json
from app.http.media import JSON, MERGE_PATCH
from app.http.query import malformed_id
from app.http.strict_json import Json, Number, Object
from engine import ids

Members = Mapping[str, Json]

# JavaScript's Number.MAX_SAFE_INTEGER: above it neighbouring integers become one.
INTEGER_MAX: Final = (1 << 53) - 1

_DIGITS_MAX: Final = 20


def check_is_json(media_name: str, method: str = "") -> None:
    """These bodies are JSON; without a Content-Type they are taken for it. PATCH takes merge patches too,
    which is what its bodies are (RFC 7396).
    """
    is_patch = method == "PATCH" and media_name == MERGE_PATCH
    if media_name not in ("", JSON) and not is_patch:
        raise RefusalError(
            "unsupported_media_type", "the body is JSON: say Content-Type: application/json (curl --json)"
        )


def parse(body: bytes, known: Sequence[str], *, depth_max: int, values_max: int) -> Members:
    """The members of a body; an empty body has none. Unknown and repeated ones are 422, and `body_too_large`
    what has more values than any call takes.
    """
    if not body:
        return {}
    if strict_json.exceeds(body, values_max):
        raise RefusalError("body_too_large", f"the body has more than {values_max} values")
    value = strict_json.parse(body, depth_max=depth_max)
    if not isinstance(value, Object):
        raise invalid("", "the body is a JSON object")
    return _checked(value, known, "")


def inner(given: Members, name: str, known: Sequence[str]) -> Members | None:
    """The members of an object within a body, None where it is null or not given."""
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, Object):
        raise invalid(f"/{name}", "it is a JSON object")
    return _checked(value, known, f"/{name}")


def _checked(value: Object, known: Sequence[str], where: str) -> Members:
    twice = strict_json.repeated_name(value)
    if twice is not None:
        raise invalid(f"{where}/{step(twice)}", "the member stands twice")
    for name, _ in value:
        if name not in known:
            raise invalid(f"{where}/{step(name)}", f"unknown member; known: {', '.join(known)}")
    return dict(value)


def text(given: Members, name: str, hint: str, *, where: str = "") -> str:
    """A string that has to be there."""
    value = given.get(name)
    if not isinstance(value, str) or isinstance(value, Number):
        raise invalid(f"{where}/{name}", hint)
    return value


def entry_id(value: Json, pointer: str, hint: str = "it is an ID, '<ms>-<seq>' or '<ms>'") -> int:
    """An ID; a missing sequence is 0."""
    if not isinstance(value, str) or isinstance(value, Number):
        raise invalid(pointer, hint)
    parsed = ids.parse(value)
    if parsed is None:
        raise malformed_id(pointer, hint)
    return parsed


def entry_ids(given: Members, ids_max: int) -> list[int]:
    """`ids`: at least one, each once in the order of their first standing."""
    value = given.get("ids")
    if not isinstance(value, list) or isinstance(value, Object) or not value:
        raise invalid("/ids", "it is a list of at least one ID")
    if len(value) > ids_max:
        raise invalid("/ids", f"one request names at most {ids_max} IDs: send several")
    return list(dict.fromkeys(entry_id(one, f"/ids/{place}") for place, one in enumerate(value)))


def integer(
    given: Members,
    name: str,
    *,
    least: int,
    most: int = INTEGER_MAX,
    where: str = "",
    nullable: bool = True,
) -> int | None:
    """A whole number in [least, most], None where it is not given."""
    value = given.get(name)
    if value is None and (nullable or name not in given):
        return None
    # `5.0` is a whole number in JSON Schema, and what languages without integers may write.
    written = str(value).removesuffix(".0") if isinstance(value, Number) else ""
    if (
        not written.removeprefix("-").isdigit()
        or len(written) > _DIGITS_MAX
        or not least <= int(written) <= most
    ):
        raise invalid(f"{where}/{name}", f"it is a whole number between {least} and {most}")
    return int(written)


def boolean(given: Members, name: str, *, default: bool = False) -> bool:
    """`true` or `false`, or the default."""
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise invalid(f"/{name}", "it is true or false")
    return value


def word(given: Members, name: str, words: Sequence[str]) -> str:
    """One of some words; it has to be there."""
    value = given.get(name)
    if not isinstance(value, str) or isinstance(value, Number) or value not in words:
        raise invalid(f"/{name}", f"it is one of {', '.join(words)}")
    return value


def capped(value: int | None) -> int | None:
    """A number as JSON shows it."""
    return None if value is None else min(value, INTEGER_MAX)
