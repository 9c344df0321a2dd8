"""Random bodies of entries: mostly plain ones, some that are almost plain, some damaged.

Knows: JSON, and where readers of it differ: escapes, numbers, blanks, repeated names, cut characters.
Must never know: what is right: two readers are compared.

    python -m tests.app.random_bodies COUNT [SEED]     compares the compiled reader with the one in Python
"""

import json
import sys
from random import Random
from typing import Final

from app.errors import RefusalError
from app.http.entries import entry_bodies
from app.http.media import MediaType
from app.limits import EntryLimits
from engine import rows
from engine.rows import Form

LIMITS: Final = EntryLimits(entries_max=20, entry_bytes_max=300, fields_max=6, depth_max=8)
_NDJSON: Final = MediaType("", "application/x-ndjson")
_JSON: Final = MediaType("", "application/json")
_LETTERS: Final = "abcfields id"
_ODD: Final = [*'"\\/\b\f\n\r\t\0\x1f\x7f', "\x80", "\u07ff", "\u0800", "\uffff", "\U00010000", "\U0010ffff"]
_WORDS: Final = ("fields", "id", "entries", "encoding", "base64", "*", "")
_VALUES: Final = (
    *("0", "-0", "1", "-1", "01", "1.", "1.5", "-1.50", ".5", "1e5", "1E400", "0.1e1", "1.2.3", "-", "--1"),
    *("1.0000000000000000000000000000000000001", "123456789012345678", "1234567890123456789"),
    *("9223372036854775807", "18446744073709551615", "18446744073709551616", "-9223372036854775809"),
    *("true", "false", "null", "NaN", "Infinity", "tru", "[]", "{}", "[1]", '{"a":"b"}', '["a"]'),
)
_ESCAPES: Final = (
    "\\u0061",
    "\\u00e9",
    "\\/",
    "\\ud83d\\ude00",
    "\\ud800",
    "\\udc00",
    "\\ud83d\\u0041",
    "\\u00",
)
_DAMAGE: Final = b'"\\{}[],:\n \x00\xff\xc0\xed\xa0\x80\xf4\x90'


class RandomBodies:
    """Draws one body after another; the same seed draws the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        # How odd the body is that is drawn: of 100 choices, how many are not plain.
        self._oddity = 0

    def draw(self) -> tuple[bytes, Form]:
        """A body, and its form."""
        form = self._random.choice([Form.LINES, Form.LINES, Form.LIST, Form.BATCH, Form.ONE])
        self._oddity = self._random.choice([0, 1, 1, 2, 10, 40])
        if form is Form.LINES:
            ends = self._random.choice(["\n", "\n", "\r\n", "\n\n", " \n"])
            ends = self._random.choice(["\r", "", "\n\r"]) if self._oddly() else ends
            text = ends.join(self._entries()) + self._random.choice(["", "\n", "\n\n", "\r\n", " "])
        elif form is Form.LIST:
            text = f"{self._blank()}[{self._list(self._entries())}]{self._blank()}"
        elif form is Form.BATCH:
            listed = self._list([self._envelope() for _ in range(self._count())])
            more = ',"more":1' if self._oddly() else ""
            text = (
                f'{{{self._blank()}"entries"{self._blank()}:{self._blank()}[{listed}]{more}}}{self._blank()}'
            )
        else:
            text = self._envelope() + self._blank()
        body = text.encode("utf-8", "surrogatepass")
        return (self._damaged(body) if self._oddly() else body), form

    def _oddly(self) -> bool:
        return self._random.randrange(100) < self._oddity

    def _count(self) -> int:
        return self._random.choice([21, 0] if self._oddly() else [1, 1, 1, 2, 3, 5, 19, 20])

    def _entries(self) -> list[str]:
        # A body's entries are mostly of one kind.
        draw = self._random.choice([self._fields, self._fields, self._envelope])
        other = self._random.choice([self._fields, self._envelope])
        return [other() if self._oddly() else draw() for _ in range(self._count())]

    def _list(self, items: list[str]) -> str:
        return f"{self._blank()},{self._blank()}".join(items)

    def _blank(self) -> str:
        return self._random.choice(["\r", "\n", "\v"] if self._oddly() else ["", "", "", " ", "\t", "  "])

    def _fields(self) -> str:
        count = self._random.choice([0, 7] if self._oddly() else [1, 1, 1, 2, 2, 3, 5, 6])
        # Mostly different names.
        pairs = [self._pair("" if self._oddly() else str(place)) for place in range(count)]
        return "{" + self._blank() + self._list(pairs) + self._blank() + "}"

    def _pair(self, mark: str) -> str:
        value = self._random.choice(_VALUES) if self._oddly() else self._value()
        return f"{self._string(mark)}{self._blank()}:{self._blank()}{value}"

    def _value(self) -> str:
        numbers = ("0", "17", "-4", "2.50", "true", "false", "123456789012345678")
        return self._random.choice(numbers) if self._random.randrange(5) == 0 else self._string("")

    def _envelope(self) -> str:
        members = [f'"fields"{self._blank()}:{self._blank()}{self._fields()}']
        if self._oddly():
            members.append(f'"id":{self._random.choice(["*", "5-1", "5-*", "x"])!r}'.replace("'", '"'))
        if self._oddly():
            members.append(self._random.choice(['"encoding":"base64"', '"id":null', '"other":"1"']))
        self._random.shuffle(members)
        return "{" + self._blank() + self._list(members) + self._blank() + "}"

    def _string(self, mark: str) -> str:
        kind = self._random.randrange(12)
        if kind < 6:
            text = "".join(self._random.choices(_LETTERS, k=self._random.randrange(8)))
        elif kind < 8:
            text = "".join(self._random.choices(_ODD, k=self._random.randrange(5)))
        elif kind < 9:
            text = self._random.choice(_WORDS)
        elif kind < 10:
            text = "x" * self._random.randrange(340 if self._oddly() else 40)
        else:
            text = str(self._random.randrange(1000))
        quoted = json.dumps(text + mark, ensure_ascii=self._random.randrange(2) == 0)
        return quoted.replace("a", self._random.choice(_ESCAPES)) if self._oddly() else quoted

    def _damaged(self, body: bytes) -> bytes:
        damaged = bytearray(body)
        for _ in range(self._random.choice([1, 1, 2, 4])):
            at = self._random.randrange(len(damaged) + 1)
            kind = self._random.randrange(3)
            if kind == 0 and at < len(damaged):
                damaged[at] = self._random.choice(_DAMAGE)
            elif kind == 1:
                del damaged[at : at + self._random.randrange(1, 4)]
            else:
                damaged[at:at] = bytes([self._random.randrange(256)])
        return bytes(damaged)


def _outcome(body: bytes, form: Form) -> tuple[object, ...]:
    try:
        found = entry_bodies.read(body, _NDJSON if form is Form.LINES else _JSON, LIMITS)
    except RefusalError as refusal:
        return refusal.code, str(refusal), refusal.members, [(one.name, one.detail) for one in refusal.places]
    return list(found.bodies), list(found.ids), found.batch


def compare(bodies: RandomBodies, count: int) -> int:
    """Read bodies both ways; how many the compiled reader took. Raises AssertionError where they differ."""
    compiled, taken = rows.compiled, 0
    for _ in range(count):
        body, form = bodies.draw()
        with_compiled = _outcome(body, form)
        try:
            rows.compiled = None
            assert _outcome(body, form) == with_compiled, (form, body)
        finally:
            rows.compiled = compiled
        taken += rows.read(body, form, entries_max=20, fields_max=6, entry_bytes_max=300) is not None
    return taken


if __name__ == "__main__":
    total, seed = int(sys.argv[1]), int((*sys.argv, "1")[2])
    found = compare(RandomBodies(seed), total)
    sys.stdout.write(f"{total} bodies, {found} read in one pass: no difference\n")
