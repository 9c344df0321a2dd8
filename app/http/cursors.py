"""Cursors as clients write and read them: an ID, alone or with the generation of the stream that it is of.

Knows: both forms, who gets the long one. Must never know: where cursors stand, what is read behind them.

    1526919030474-55                       as ever
    1526919030474-55.9f86d081884c7d65      for who asks with `cursor=generation`, or gives such a cursor

Where there is no stream there is no generation: a cursor there is an ID for everybody.
"""

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from engine import ids
from engine.commands.types import Cursor

CursorForm = Literal["generation"]
"""What asks for the long form."""
GENERATION_PATTERN: Final = "[0-9a-f]{16}"
HINT: Final = "it is an ID, '<ms>-<seq>' or '<ms>', or a cursor that was given, '<ms>-<seq>.<generation>'"
_GENERATION: Final = re.compile(GENERATION_PATTERN)


class Place(NamedTuple):
    """A cursor: an ID or `$`, and the generation of its stream, empty where that is not known."""

    id: int | Cursor
    generation: str = ""


class Position(NamedTuple):
    """Where a reader stands: the generation is empty where there is no stream."""

    id: int
    generation: str

    def text(self, *, in_full: bool) -> str:
        """As a cursor, with the generation or without."""
        return written(self.id, self.generation if in_full else "")


def parse(text: str) -> Place | None:
    """The place of either form, None where it is neither."""
    words, point, generation = text.partition(".")
    entry_id = ids.parse(words)
    if entry_id is None or (point and _GENERATION.fullmatch(generation) is None):
        return None
    return Place(entry_id, generation)


def written(entry_id: int, generation: str) -> str:
    """The form with the generation, where there is one."""
    return f"{ids.format(entry_id)}.{generation}" if generation else ids.format(entry_id)


def asks(form: CursorForm | None, places: Iterable[Place]) -> bool:
    """Whether the long form is asked for."""
    return form is not None or any(place.generation for place in places)
