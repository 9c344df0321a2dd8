"""Answers written from the stored text are those that would be shaped first, byte by byte."""

import base64 as base64_codec

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.limits import text_bytes
from app.redis import parse, to_json
from engine import entries, ids
from engine.replies import (
    AutoClaimed,
    Claimed,
    Delivered,
    Entries,
    GroupRead,
    Reply,
    StreamDeliveries,
    StreamEntries,
    StreamsRead,
)

TRICKY = st.sampled_from([":", '"', "\\", '":"', '":', ":{", "}}", '"}}', ",", "", "\0", "\u2028", "é", "id"])
NAME = st.text(st.characters(exclude_categories=["Cs"])) | TRICKY
VALUE = st.binary() | NAME.map(str.encode)
PAIRS = st.lists(st.tuples(NAME, VALUE), min_size=1, max_size=4)
ID = st.builds(ids.make, st.integers(0, ids.MS_MAX), st.integers(0, 9))


@st.composite
def texts(draw: st.DrawFn) -> list[bytes]:
    return [entries.encode(draw(ID), entries.body(draw(PAIRS))) for _ in range(draw(st.integers(1, 3)))]


def run(found: list[bytes]) -> Entries:
    parts = [b",".join(found[:2]), *found[2:]]
    return Entries(parts, len(found))


def deliveries(found: list[bytes]) -> list[Delivered]:
    return [Delivered(entries.id_of(text), text, 1) for text in found]


def group_read(found: list[Delivered]) -> GroupRead:
    return GroupRead([StreamDeliveries("s\u00e9", found, history=True, after=0, last_delivered_id=0)])


def both(line: str, reply: Reply, *, base64: bool) -> tuple[bytes, bytes]:
    """The two ways to the same text."""
    request = parse([word.encode() for word in line.split()])
    shaped = msgspec.json.encode(to_json(request.answer(reply), base64=base64))
    return request.written(reply, base64=base64), shaped


@given(texts(), st.booleans())
def test_whatever_is_stored(found: list[bytes], base64: bool) -> None:  # noqa: FBT001 - hypothesis
    """Quotation marks, backslashes, colons, bytes that are no text, names that stand twice."""
    claimed = deliveries(found)
    past = [Delivered(5, found[0], 2, 7, 1), Delivered(6, None, 1)]
    for line, reply in (
        ("XRANGE s - +", run(found)),
        ("XREAD STREAMS s 0", StreamsRead([StreamEntries("s\u00e9", run(found), 0)], [])),
        ("XREADGROUP GROUP g c STREAMS s 0", group_read(claimed + past)),
        ("XCLAIM s g c 0 1", Claimed(claimed)),
        ("XCLAIM s g c 0 1 JUSTID", Claimed([msgspec.structs.replace(one, text=None) for one in claimed])),
        ("XAUTOCLAIM s g c 0 1", AutoClaimed(9, claimed, [1, 2])),
        (
            "XAUTOCLAIM s g c 0 1 JUSTID",
            AutoClaimed(0, [msgspec.structs.replace(one, text=None) for one in claimed], []),
        ),
    ):
        written, shaped = both(line, reply, base64=base64)
        assert written == shaped


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("XRANGE s - +", Entries()),
        ("XRANGE s - + COUNT 0", None),
        ("XREAD STREAMS s 0", StreamsRead([], [("s", 0)])),
        ("XREADGROUP GROUP g c STREAMS s >", GroupRead([])),
        ("XREADGROUP GROUP g c STREAMS s 0", group_read([])),
        ("XCLAIM s g c 0 1", Claimed([])),
        ("XAUTOCLAIM s g c 0 1", AutoClaimed(0, [], [])),
        ("XLEN s", 5),
    ],
)
@pytest.mark.parametrize("base64", [True, False])
def test_what_is_empty(line: str, reply: Reply, *, base64: bool) -> None:
    """Null, empty and absent are the same three things."""
    written, shaped = both(line, reply, base64=base64)
    assert written == shaped


def test_what_is_written_is_counted() -> None:
    """The bytes of stored text, which tell how long it will take."""
    text = entries.encode(1, entries.body([("f", "v")]))
    found = deliveries([text])
    for reply in (Entries([text], 1), group_read(found), Claimed(found), AutoClaimed(0, found, [])):
        assert text_bytes(reply) == len(text)
    assert text_bytes(StreamsRead([StreamEntries("s", Entries([text], 1), 0)], [])) == len(text)
    assert text_bytes(group_read([Delivered(1, None, 1)])) == text_bytes(5) == 0
    in_base64 = parse([b"XRANGE", b"s", b"-", b"+"]).written(Entries([text], 1), base64=True)
    assert base64_codec.b64encode(b"0-1") in in_base64
