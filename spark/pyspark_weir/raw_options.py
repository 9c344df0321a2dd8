"""Options as Spark hands them over: texts, and how a member of a dataclass says which option it is.

Knows: names, aliases, forms of values; that names are compared without regard to case.
Must never know: gateways, what an option does.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

from pyspark_weir.errors import OptionError
from weir.durations import parse_ms

INTEGER_MAX: Final = (1 << 53) - 1
_NEARNESS: Final = 0.6
_OPTION: Final = "option"
_READ: Final = "read"
# What people write from habit, and what they mean.
_HABITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "token": "a token in an option ends in pickles and logs; use tokenFile or tokenEnv",
        "path": "a stream is no path; use the option subscribe",
        "host": "use gateway.urls=http://host:port",
        "port": "use gateway.urls=http://host:port",
        "kafka.bootstrap.servers": "use gateway.urls",
    }
)


@dataclass(frozen=True)
class Option:
    """The name of an option, and what else it may be called."""

    name: str
    aliases: tuple[str, ...] = ()


class RawOptions:
    """The options that were given, by their names in a table. `also`: tables of the other side, to say so of
    a name that only it knows; `ignored`: names that are Spark's own.

    Raises OptionError for a name that no table has, and for one given under two of its names.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        table: Sequence[Option],
        *,
        also: Mapping[str, Sequence[Option]] = MappingProxyType({}),
        ignored: Sequence[str] = (),
    ) -> None:
        known = {name.lower(): one.name for one in table for name in (one.name, *one.aliases)}
        self._values: dict[str, str] = {}
        spellings: dict[str, str] = {}
        skipped = {name.lower() for name in ignored}
        for name, value in options.items():
            canonical = known.get(name.lower())
            if canonical is None:
                if name.lower() in skipped:
                    continue
                raise OptionError(_unknown(name, known, also))
            if spellings.setdefault(canonical, name) != name:
                raise OptionError(
                    f"{spellings[canonical]} and {name} are the same option: leave one of them out"
                )
            self._values[canonical] = value

    def text(self, name: str) -> str | None:
        """The text, None where it was not given or is blank."""
        value = self._values.get(name, "").strip()
        return value or None

    def members(self, kind: type) -> dict[str, Any]:
        """The members of a dataclass that were given, of those that say how they are read."""
        readable = ((one.name, one.metadata) for one in fields(kind) if one.metadata.get(_READ))
        given = ((name, about[_READ], self.text(about[_OPTION].name)) for name, about in readable)
        return {name: read(value) for name, read, value in given if value is not None}


def names(text: str | None) -> tuple[str, ...]:
    """`a, b` → its parts, without empty ones."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def json_object(name: str, value: str | None, *, example: str) -> dict[str, Any]:
    """An object, empty where there is no text. Raises OptionError."""
    if value is None:
        return {}
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found:
        raise OptionError(f"{name}={value}: it is a JSON object like {example}")
    return found


# ---- members of dataclasses


def declare(
    name: str,
    *aliases: str,
    default: Any = None,  # noqa: ANN401 - as the member is
    read: Callable[[str], Any] | None = None,
) -> Any:  # noqa: ANN401 - dataclasses keep the type of `field` to themselves
    """A member that is an option; without `read` another function sees to it."""
    return field(default=default, metadata={_OPTION: Option(name, aliases), _READ: read})


def text(name: str, *aliases: str) -> Any:  # noqa: ANN401 - the same
    """A text, None where it is not given."""
    return declare(name, *aliases, read=str)


def word(name: str, words: Sequence[str], *aliases: str) -> Any:  # noqa: ANN401 - the same
    """One of some words, the first by default."""
    return declare(name, *aliases, default=words[0], read=lambda value: _one_of(name, value, words))


def flag(name: str, *aliases: str, default: bool = False) -> Any:  # noqa: ANN401 - the same
    """`true` or `false`."""
    words = ("true", "false")
    return declare(
        name, *aliases, default=default, read=lambda value: _one_of(name, value, words) == words[0]
    )


def integer(
    name: str, *aliases: str, default: int | None = None, least: int = 1, most: int = INTEGER_MAX
) -> Any:  # noqa: ANN401 - the same
    """A whole number."""

    def read(value: str) -> int:
        if not re.fullmatch(r"[0-9]{1,16}", value, re.ASCII) or not least <= int(value) <= most:
            raise OptionError(f"{name}={value}: it is a whole number from {least} to {most}")
        return int(value)

    return declare(name, *aliases, default=default, read=read)


def duration(name: str, default_ms: int) -> Any:  # noqa: ANN401 - the same
    """Milliseconds, written like `500ms`, `10s`, `15m`, `2h`, or as a number alone."""

    def read(value: str) -> int:
        written = re.sub(r"(?<=[0-9])\s+(?=[a-z])", "", value.lower())
        try:
            return parse_ms(f"{written}ms" if written.isdecimal() else written)
        except ValueError:
            raise OptionError(f"{name}={value}: write it like 500ms, 10s, 15m or 2h") from None

    return declare(name, default=default_ms, read=read)


def _one_of(name: str, value: str, words: Sequence[str]) -> str:
    if value.lower() not in words:
        raise OptionError(f"{name}={value}: it is one of {', '.join(words)}")
    return value.lower()


def table_of(*kinds: type) -> tuple[Option, ...]:
    """The options that the members of dataclasses are."""
    members = (one.metadata for kind in kinds for one in fields(kind))
    return tuple(metadata[_OPTION] for metadata in members if _OPTION in metadata)


def options_of(given: Any) -> dict[str, str]:  # noqa: ANN401 - a dataclass
    """The members of a dataclass that are options, as they are written; without those that are None."""
    members = (
        (one.metadata[_OPTION].name, getattr(given, one.name)) for one in fields(given) if one.metadata
    )
    return {name: str(value) for name, value in members if value is not None}


def _unknown(name: str, known: Mapping[str, str], also: Mapping[str, Sequence[Option]]) -> str:
    lowered = name.lower()
    if lowered in _HABITS:
        return f"{name} is no option: {_HABITS[lowered]}"
    for side, table in also.items():
        if any(lowered in (one.name.lower(), *map(str.lower, one.aliases)) for one in table):
            return f"{name} is an option for {side} only: leave it out here"
    near = difflib.get_close_matches(lowered, known, n=1, cutoff=_NEARNESS)
    return f"{name} is no option" + (f": did you mean {known[near[0]]}?" if near else "")
