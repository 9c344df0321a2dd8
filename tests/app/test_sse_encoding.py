"""Server-sent events as bytes: for any stored text, a parser of the standard reads back what was meant."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.doors.sse import events as sse
from tests.app.eventsource import Parser, ReceivedEvent

# What ends lines for one program or another, and what ends an ID, beside ordinary text.
AWKWARD = st.text(
    st.one_of(
        st.sampled_from("\r\n\0 :\u2028\u2029\x85\x0b\x0c\x1c\ufeffdataid"), st.characters(codec="utf-8")
    )
)
CURSORS = st.from_regex(re.compile(r"[0-9a-f.~-]{1,40}", re.ASCII), fullmatch=True)


def parsed(stream: bytes, cuts: int = 1) -> list[ReceivedEvent]:
    parser = Parser()
    return [event for at in range(0, len(stream), cuts) for event in parser.feed(stream[at : at + cuts])]


@given(AWKWARD, CURSORS, st.integers(1, 9))
def test_data_comes_back_as_it_was(data: str, cursor: str, cuts: int) -> None:
    """Up to the line ends, which the standard makes LF; no data becomes an event, an ID or a comment."""
    text = sse.event(b"entry", data.encode(), cursor.encode())
    lines = re.sub("\r\n|\r", "\n", data)
    assert parsed(text, cuts) == [ReceivedEvent("entry", lines, cursor)]


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_each_line_end_alone_keeps_what_is_behind_it(end: str) -> None:
    """A bare CR ends a line for clients too; what follows it would be a field of its own."""
    assert parsed(sse.event(b"entry", f"a{end}b".encode())) == [ReceivedEvent("entry", "a\nb", "")]


def test_a_line_separator_of_unicode_arrives_whole() -> None:
    """U+2028 ends lines in Python and in old JavaScript, but not here."""
    text = sse.event(b"entry", '{"a":"x\u2028y\x85z"}'.encode())
    assert text.count(b"data: ") == 1
    assert parsed(text)[0].data == '{"a":"x\u2028y\x85z"}'


@given(st.lists(AWKWARD, max_size=5))
def test_events_do_not_run_into_each_other(rows: list[str]) -> None:
    """Comments and positions between them are no events, and an event without an ID leaves the last one."""
    text = sse.position(b"7-0") + b"".join(sse.event(b"gap", row.encode()) + sse.COMMENT for row in rows)
    assert [event.last_id for event in parsed(text)] == ["7-0"] * len(rows)


def test_a_position_is_no_event_but_is_kept() -> None:
    """So a client that loses its connection before the first entry comes back to the same place."""
    parser = Parser()
    assert list(parser.feed(sse.position(b"5-1"))) == []
    assert parser.last_id == "5-1"


def test_a_retry_is_a_number_of_its_own() -> None:
    """It goes with the event that it is for."""
    parser = Parser()
    events = list(parser.feed(sse.event(b"end", b"{}", retry_ms=1234)))
    assert (events, parser.retry_ms) == ([ReceivedEvent("end", "{}", "")], 1234)


@pytest.mark.parametrize("cursor", [b"1-0\n", b"1\r-0", b"1-0\0"])
def test_a_cursor_that_would_break_out_is_a_bug(cursor: bytes) -> None:
    """They are ours: digits and a few signs."""
    with pytest.raises(AssertionError):
        sse.position(cursor)
