"""The fast readers of bodies are the strict one, only faster: they agree on every body, or leave it alone."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import Refusal
from app.wire import publish
from app.wire.media import MediaType
from app.wire.publish import EntryLimits, Published
from engine import EngineError

LIMITS = EntryLimits(entries_max=20, entry_bytes_max=200, fields_max=4, depth_max=8)
NDJSON = MediaType("", "application/x-ndjson")
JSON = MediaType("", "application/json")

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
scalars = st.one_of(
    names,
    st.integers(-(1 << 65), 1 << 65),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)
rows = st.dictionaries(names, scalars, max_size=5)
nested = st.recursive(st.none() | scalars, lambda inner: st.lists(inner) | st.dictionaries(names, inner))
odd = st.one_of(rows, nested)
envelopes = st.fixed_dictionaries(
    {"fields": rows}, optional={"id": st.sampled_from(["*", "1-1", "5-*", "x"])}
)
written = st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :  ")])


def outcome(read: Any, body: bytes) -> tuple[object, ...]:
    """What a reader makes of a body: entries and IDs, or the code and the place."""
    try:
        found: Published = read(body, LIMITS)
    except (Refusal, EngineError) as refusal:
        return "refused", refusal.code, refusal.members.get("index")
    return list(found.bodies), list(found.ids), found.batch


def strictly(body: bytes, limits: EntryLimits) -> Published:
    """NDJSON by the strict reader alone."""
    lines = list(publish._lines(body))  # noqa: SLF001 - the strict way is the reference
    done = (publish._line(line, index, limits) for index, line in enumerate(lines))  # noqa: SLF001
    return publish._batch(done, len(lines), limits)  # noqa: SLF001


batches = st.fixed_dictionaries({"entries": st.lists(envelopes, max_size=4)})
endings = st.sampled_from(["\n", "\r\n", "\n\n"])


@given(st.lists(st.one_of(rows, envelopes, odd), max_size=6), written, endings)
def test_lines_mean_the_same_to_both_readers(
    values: list[object], separators: tuple[str, str], ending: str
) -> None:
    """Whatever is in them, however it is written."""
    in_ascii = separators == (",", ":")
    lines = [json.dumps(value, separators=separators, ensure_ascii=in_ascii) for value in values]
    body = ending.join(lines).encode(errors="surrogatepass")
    assert outcome(lambda raw, limits: publish.read(raw, NDJSON, limits), body) == outcome(strictly, body)


@given(st.one_of(envelopes, batches, odd), written)
def test_json_means_the_same_to_both_readers(value: object, separators: tuple[str, str]) -> None:
    """One entry, a batch, or neither."""
    body = json.dumps(value, separators=separators, ensure_ascii=False).encode(errors="surrogatepass")
    strict = outcome(publish._strict_json, body)  # noqa: SLF001 - the strict way is the reference
    assert outcome(lambda raw, limits: publish.read(raw, JSON, limits), body) == strict


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """By both readers of both types, in the same way."""
    read = outcome(lambda raw, limits: publish.read(raw, NDJSON, limits), body)
    assert read == outcome(strictly, body)
    outcome(lambda raw, limits: publish.read(raw, JSON, limits), body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"1"}{"b":"2"}',
        b'{"a":\n"1"}',
        b'{"a":"1"}{"b":"2"}\n{"c":\n"3"}',
        b'{"a":"1"}\r{"b":"2"}',
        b'{"a":"1"},\n{"b":"2"}',
        b'[{"a":"1"}]',
        b'{"a":"1","a":"2"}',
        b'{"a":"1","\\u0061":"2"}',
        b'{"a":"\\"","a":"\\\\"}',
        b'{"fields":{"a":"1"},"fields":{"a":"2"}}',
        b'{"fields":{"a":"1"},"id":"1-1","id":"1-2"}',
        b'{"a":1,"a":2}',
        b'{"a":1 ,"a" : 1}',
    ],
)
def test_what_a_lenient_decoder_takes_is_refused(body: bytes) -> None:
    """Objects side by side or over several lines, names that stand twice."""
    found = outcome(lambda raw, limits: publish.read(raw, NDJSON, limits), body)
    assert found[0] == "refused"
    assert found == outcome(strictly, body)


@pytest.mark.parametrize(
    "number",
    ["0", "-0", "1.0", "1.50", "1e5", "1E5", "1e+5", "0.1", "-1.5e-7", "18446744073709551615", "1e308"],
)
def test_numbers_keep_their_text(number: str) -> None:
    """Whether the encoder would write them so or not."""
    found = publish.read(b'{"a":%b}' % number.encode(), NDJSON, LIMITS)
    assert found.bodies == [b',"fields":{"a":"%b"}}' % number.encode()]
