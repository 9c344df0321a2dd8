"""What a gateway asks of the service, and how it is answered: the words that both sides use.

Knows: parameters, headers, the form of a page. Must never know: archives, engines, sockets.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from app.errors import RefusalError, invalid
from engine import ids

SOURCE: Final = "weir-source"
HISTORY: Final = "history"
# How many milliseconds the gateway waits for the answer.
DEADLINE: Final = "weir-deadline-ms"
# How long a read waits for its turn before it is refused, at the gateway and at the service.
BUSY_WAIT_S_MAX: Final = 1.0
COUNT: Final = "weir-count"
NEXT: Final = "weir-next-id"
MORE: Final = "weir-more"
# The entries are all that there is from the cursor to this ID, or to the last one where there are more.
COVERED: Final = "weir-covered-up-to"
# What is between the cursor and this ID is not in the archive.
MISSING: Final = "weir-missing-up-to"

COUNT_MAX: Final = 100_000
BYTES_MAX: Final = 8 << 20
_KNOWN: Final = frozenset(("gateway", "generation", "after", "start", "end", "reverse", "count", "max_bytes"))
_BEFORE: Final = b'{"entries":['
_BEHIND: Final = b'],"next":'


class Asked(NamedTuple):
    """Entries of one generation of a stream with IDs from `low` to `high`. `after`: the cursor, where the
    reader has one, and learns of what is missing after it.
    """

    gateway: str
    stream: str
    generation: str
    low: int
    high: int
    number: int
    bytes_max: int
    reverse: bool = False
    after: int | None = None

    def parameters(self) -> dict[str, str]:
        """As a query."""
        begin = {"start": ids.format(self.low)} if self.after is None else {"after": ids.format(self.after)}
        return {
            "gateway": self.gateway,
            "generation": self.generation,
            **begin,
            "end": ids.format(self.high),
            "count": str(self.number),
            "max_bytes": str(self.bytes_max),
            **({"reverse": "true"} if self.reverse else {}),
        }

    @classmethod
    def of(cls, stream: str, query: Mapping[str, str]) -> "Asked":
        """What a query means. Raises RefusalError."""
        for name in query:
            if name not in _KNOWN:
                raise RefusalError("unknown_parameter", f"there is no parameter {name!r}")
        if "generation" not in query:
            raise invalid("generation", "it is needed: a stream that was made anew has another")
        if "after" in query and ("start" in query or "reverse" in query):
            raise invalid("after", "it goes with neither start nor reverse")
        after = _id(query, "after", 0) if "after" in query else None
        return cls(
            query.get("gateway", "g0"),
            stream,
            query["generation"],
            _id(query, "start", 0) if after is None else min(after + 1, ids.ID_MAX),
            _id(query, "end", ids.ID_MAX),
            _number(query, "count", 100, COUNT_MAX),
            _number(query, "max_bytes", BYTES_MAX, BYTES_MAX),
            query.get("reverse", "false") == "true",
            after,
        )


class Answered(NamedTuple):
    """A page. `text`: its entries, joined by commas. `covered`: up to where it says all that there is."""

    text: bytes
    number: int
    first: int
    last: int
    more: bool
    covered: int
    missing_upto: int | None = None

    def body(self, asked: Asked) -> bytes:
        """The page as the gateway writes it too."""
        following = self.last if self.number else None if asked.reverse else max(asked.low - 1, 0)
        after = b"null" if following is None else b'"%b"' % ids.format(following).encode()
        more = b"true" if self.more else b"false"
        gap = b""
        # As of a stream: from its beginning nothing is missing.
        if self.missing_upto is not None and asked.after:
            members = {
                "requested": ids.format(asked.after),
                "first_available": ids.format(self.first if self.number else self.covered),
                "lost": None,
            }
            gap = b',"gap":' + msgspec.json.encode(members)
        return b'%b%b%b%b,"more":%b%b}' % (_BEFORE, self.text, _BEHIND, after, more, gap)

    def headers(self) -> dict[str, str]:
        """What programs need of it."""
        missing = {} if self.missing_upto is None else {MISSING: ids.format(self.missing_upto)}
        following = {NEXT: ids.format(self.last)} if self.number else {}
        return {
            SOURCE: HISTORY,
            COUNT: str(self.number),
            MORE: "true" if self.more else "false",
            COVERED: ids.format(self.covered),
            **following,
            **missing,
        }

    def checked(self, asked: Asked) -> "Answered":
        """This page. Raises ValueError where it is none of what was asked for."""
        low, high = (self.last, self.first) if asked.reverse else (self.first, self.last)
        if self.number > asked.number or (
            self.number and not (asked.low <= low <= high <= asked.high and self.text.endswith(b"}"))
        ):
            raise ValueError("its page has entries that were not asked for")
        return self

    @classmethod
    def of(cls, body: bytes, headers: Mapping[str, str]) -> "Answered":
        """What `body` and `headers` say. Raises ValueError, KeyError for another answer."""
        if headers[SOURCE] != HISTORY or not body.startswith(_BEFORE):
            raise ValueError("this is no page of history")
        # A text in it holds no quotation mark without a backslash before it: the last such words end it.
        text, count = body[len(_BEFORE) : body.rindex(_BEHIND)], int(headers[COUNT])
        last = ids.parse_canonical(headers[NEXT].encode()) if count else 0
        first = ids.parse_canonical(text[7 : text.index(b'"', 7)]) if count else 0
        missing = headers.get(MISSING)
        return cls(
            text,
            count,
            first,
            last,
            headers[MORE] == "true",
            ids.parse_canonical(headers[COVERED].encode()),
            None if missing is None else ids.parse_canonical(missing.encode()),
        )


def _id(query: Mapping[str, str], name: str, default: int) -> int:
    if name not in query:
        return default
    found = ids.parse(query[name])
    if found is None:
        raise RefusalError("malformed_id", f"{name}: {query[name]!r} is no ID: write '<ms>-<seq>'")
    return found


def _number(query: Mapping[str, str], name: str, default: int, highest: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= highest):
        raise invalid(name, f"a number from 1 to {highest}")
    return int(text)
