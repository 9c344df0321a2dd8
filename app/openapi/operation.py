"""What there is to say of one operation beside its sentence: the words that the API's description is made of.

Knows: parameters, bodies, answers and refusals as data. Must never know: how anything is served.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

Json = dict[str, Any]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """`query` are schemas, each with a description, by parameter name; `headers` their descriptions.

    `also` are further statuses of success with the same answer; `media` further media types of the answer.
    `writes` adds what every call that changes something may be refused with and answers with.
    """

    tag: str
    status: int = 200
    also: Mapping[int, str] = {}
    answer: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    body_required: bool = True
    query: Mapping[str, Json] = {}
    headers: Mapping[str, str] = {}
    answer_headers: Mapping[str, str] = {}
    media: Mapping[str, Json] = {}
    refusals: Sequence[str] = ()
    writes: bool = False
    description: str = ""


_ID = "[0-9]{1,20}(-[0-9]{1,20})?"


def text(description: str, **more: object) -> Json:
    """The schema of a string."""
    return {"type": "string", "description": description, **more}


def number(description: str, *, least: int = 0, **more: object) -> Json:
    """The schema of a whole number."""
    return {"type": "integer", "minimum": least, "description": description, **more}


def switch(description: str, *, default: bool | None = None) -> Json:
    """The schema of a boolean."""
    kept = {} if default is None else {"default": default}
    return {"type": "boolean", "description": description, **kept}


def word(description: str, words: Sequence[str], default: str | None = None) -> Json:
    """The schema of one of some words."""
    kept = {} if default is None else {"default": default}
    return {"type": "string", "enum": list(words), "description": description, **kept}


def entry_id(description: str) -> Json:
    """The schema of an ID."""
    return text(description, format="entry-id", pattern=f"^{_ID}$")


def bound(description: str) -> Json:
    """The schema of a range's bound."""
    return text(description, format="entry-bound", pattern=rf"^([-+]|\(?{_ID})$")


def cursor(description: str) -> Json:
    """The schema of what a read goes on after."""
    return text(description, format="entry-cursor", pattern=rf"^(\$|{_ID})$")


DURABILITY = "`durability=fsync`: the answer leaves when the change is on disk"
WRITES = {"Prefer": DURABILITY}
"""The headers of calls that change something."""


# The answer of what is followed live.
EVENTS: Final = {
    "text/event-stream": {
        "schema": {
            "type": "string",
            "description": (
                "events: `entry` (the data is the entry, the `id` a cursor), and without an `id` "
                "`caught_up`, `gap`, `end` and `error`; a comment when nothing else came for 15 seconds"
            ),
        }
    }
}
