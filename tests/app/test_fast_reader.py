"""The fast readers of bodies are the strict one, only faster: they agree on every body, or leave it alone."""

import json
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app.errors import RefusalError
from app.http import strict_json
from app.http.entries import entry_bodies, json_bodies, line_bodies, values
from app.http.entries.stored_entries import ParsedEntries
from app.http.media import MediaType
from app.limits import EntryLimits
from engine import EngineError, entries
from tests import halves

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

NESTED = msgspec.structs.replace(LIMITS, nested=True)
# The strict way is the reference.
strict_lines = line_bodies.strict_lines
strict_json_body = json_bodies.strict_body


def outcome(read: Any, body: bytes, limits: EntryLimits = LIMITS) -> tuple[object, ...]:
    """What a reader makes of a body: entries and IDs, or the code and the place."""
    try:
        found: ParsedEntries = read(body, limits)
    except (RefusalError, EngineError) as refusal:
        return "refused", refusal.code, refusal.members.get("index")
    return list(found.bodies), list(found.ids), found.batch


batches = st.fixed_dictionaries({"entries": st.lists(envelopes, max_size=4)})
endings = st.sampled_from(["\n", "\r\n", "\n\n"])


@given(st.lists(st.one_of(rows, envelopes, odd), max_size=6), written, endings)
def test_lines_mean_the_same_to_both_readers(
    found: list[object], separators: tuple[str, str], ending: str
) -> None:
    """With any content, in any notation."""
    in_ascii = separators == (",", ":")
    lines = [json.dumps(value, separators=separators, ensure_ascii=in_ascii) for value in found]
    body = ending.join(lines).encode(errors="surrogatepass")
    for limits in (LIMITS, NESTED):
        read = outcome(lambda raw, limits: entry_bodies.read(raw, NDJSON, limits), body, limits)
        assert read == outcome(strict_lines, body, limits)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("ending", [b"", b"\n"])
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_an_entry_is_as_long_as_is_allowed(rows: int, ending: bytes, beyond: int) -> None:
    """Its stored form counts, not its line in the body."""
    stored = LIMITS.entry_bytes_max + beyond
    line = b'{"a":"%b"}' % (b"x" * (stored - len(entries.body([("a", "")]))))
    body = b"\n".join([b'{"a":"1"}'] * (rows - 1) + [line]) + ending
    found = outcome(lambda raw, limits: entry_bodies.read(raw, NDJSON, limits), body)
    assert found == outcome(strict_lines, body)
    assert (found[0] == "refused") == (beyond > 0)


@given(st.one_of(envelopes, batches, odd, st.lists(st.one_of(rows, envelopes, odd))), written)
def test_json_means_the_same_to_both_readers(value: object, separators: tuple[str, str]) -> None:
    """One entry, a batch, a list, or neither."""
    body = json.dumps(value, separators=separators, ensure_ascii=False).encode(errors="surrogatepass")
    strictly = outcome(strict_json_body, body)
    for limits, expected in (LIMITS, strictly), (NESTED, outcome(strict_json_body, body, NESTED)):
        assert outcome(lambda raw, limits: entry_bodies.read(raw, JSON, limits), body, limits) == expected
    if isinstance(value, list):
        return
    # Large bodies are read piece by piece: what is wrong first may be another thing, if there are several.
    large = outcome(json_bodies._large_json, body)  # noqa: SLF001 - it takes small ones too
    assert large == strictly or large[0] == strictly[0] == "refused"


@given(st.lists(st.tuples(names, scalars | envelopes), max_size=5), written)
def test_members_are_found_as_they_stand(
    pieces: list[tuple[str, object]], separators: tuple[str, str]
) -> None:
    """The text of each, in order, and none that occurs twice; escapes in names and nested ones included."""
    comma, colon = separators
    texts = [(json.dumps(name), json.dumps(value, separators=separators)) for name, value in pieces]
    body = "{ %s }" % comma.join(f"{name}{colon}{value}" for name, value in texts)  # noqa: UP031 - braces
    if len({name for name, _ in pieces}) < len(pieces):
        with pytest.raises(RefusalError, match="twice"):
            strict_json.members_of(body.encode(), 9)
    else:
        found = strict_json.members_of(body.encode(), 9)
        assert found == {name: text.encode() for (name, _), (_, text) in zip(pieces, texts, strict=True)}


@pytest.mark.parametrize("first", [b"1", b"12", b"1.5", b"12 ", b'"1"', b"[1]"])
@pytest.mark.parametrize("last", [b"1", b" 1", b'"1"', b"[1]"])
def test_a_member_stands_twice_whatever_it_holds(first: bytes, last: bytes) -> None:
    """Also where the text of the last one begins that of the first one, as that of a number may."""
    for between in (b"", b'"y":2,'):
        with pytest.raises(RefusalError, match="/x: the member occurs twice"):
            strict_json.members_of(b'{"x":%b,%b"x":%b}' % (first, between, last), 9)


@hypothesis_settings(max_examples=halves.some(40))
@given(
    st.recursive(st.none() | scalars, lambda inner: st.lists(inner) | st.dictionaries(names, inner)), written
)
def test_counting_agrees_with_reading(value: object, separators: tuple[str, str]) -> None:
    """Commas and brackets outside of strings, with any strings."""
    body = json.dumps([value, '\\",[{', "\\"], separators=separators).encode()

    def count(one: object) -> tuple[int, int, int]:
        if isinstance(one, list):
            inner = [count(each) for each in one]
            marks, strings = 1 + max(0, len(one) - 1), 0
        elif isinstance(one, dict):
            inner = [count(each) for each in one.values()]
            marks, strings = 1 + max(0, len(one) - 1), len(one)
        else:
            return 0, int(isinstance(one, str)), 0
        sums = [sum(each) for each in zip(*inner, strict=True)] or [0, 0, 0]
        return marks + sums[0], strings + sums[1], int(isinstance(one, dict)) + sums[2]

    marks, strings, objects = count(json.loads(body))
    assert not strict_json.exceeds(body, max(marks, strings))
    assert strict_json.exceeds(body, marks - 1)
    assert not strict_json.has_more_objects(body, objects)
    if objects:
        assert strict_json.has_more_objects(body, objects - 1)


@given(st.binary(max_size=40), st.lists(st.sampled_from(list(range(256))), max_size=10))
def test_forms_are_decoded_as_urllib_does(value: bytes, quoted: list[int]) -> None:
    """Percent-encoding by a decoder for another encoding: every byte, escaped or not."""
    text = b"".join(b"%%%02X" % byte if byte in quoted or byte in b"%&+" else bytes([byte]) for byte in value)
    assert values.form_pair(b"a=" + text) == ("a", unquote_to_bytes(text))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """By both readers of both types, in the same way."""
    read = outcome(lambda raw, limits: entry_bodies.read(raw, NDJSON, limits), body)
    assert read == outcome(strict_lines, body)
    outcome(lambda raw, limits: entry_bodies.read(raw, JSON, limits), body)


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
    found = outcome(lambda raw, limits: entry_bodies.read(raw, NDJSON, limits), body)
    assert found[0] == "refused"
    assert found == outcome(strict_lines, body)


@pytest.mark.parametrize(
    "number",
    ["0", "-0", "1.0", "1.50", "1e5", "1E5", "1e+5", "0.1", "-1.5e-7", "18446744073709551615", "1e308"],
)
def test_numbers_keep_their_text(number: str) -> None:
    """Whether the encoder would write them so or not."""
    found = entry_bodies.read(b'{"a":%b}' % number.encode(), NDJSON, LIMITS)
    assert list(found.bodies) == [b',"fields":{"a":"%b"}}' % number.encode()]
