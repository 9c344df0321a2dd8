"""What JSON can't carry gets through the command API in the form that the SDKs expect."""

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.redis import Resp, arguments, load, to_json
from engine import EngineError

resps: st.SearchStrategy[Resp] = st.recursive(
    st.none() | st.integers(-(1 << 64), 1 << 64) | st.binary(), st.lists
)


def test_strings_numbers_and_booleans_are_words() -> None:
    """Decision 25: arguments may be JSON numbers and booleans, taken as text."""
    assert arguments(["XADD", 1, -2, True, False, "ä", ""], base64=False) == [
        b"XADD",
        b"1",
        b"-2",
        b"true",
        b"false",
        "ä".encode(),
        b"",
    ]


def test_numbers_keep_their_text() -> None:
    """A price of 1.50 and a number of 30 digits arrive as they were typed."""
    values = load(b'["X", 1.50, 1e5, 123456789012345678901234567890, 7, "1.50"]')
    assert isinstance(values, list)
    expected = [b"X", b"1.50", b"1e5", b"123456789012345678901234567890", b"7", b"1.50"]
    assert arguments(values, base64=False) == expected


def test_base64_is_for_strings_alone() -> None:
    """Weir-Encoding: base64 carries any bytes; numbers beside them stay numbers."""
    values = [base64.b64encode(b"\x00\xff").decode(), 5, load(b"1.50"), 2.5]
    assert arguments(values, base64=True) == [b"\x00\xff", b"5", b"1.50", b"2.5"]


@pytest.mark.parametrize("wrong", [None, {}, [], {"a": 1}, ["a"]])
def test_nothing_else_is_an_argument(wrong: object) -> None:
    """Null, objects and lists are refused with the place that they stand in."""
    with pytest.raises(EngineError, match="argument 1 is") as caught:
        arguments(["PING", wrong], base64=False)
    assert caught.value.code == "invalid"


@pytest.mark.parametrize(("value", "encoded"), [("\ud800", False), ("%", True), ("YQ", True), ("ä", True)])
def test_malformed_strings_are_refused(value: str, *, encoded: bool) -> None:
    """Lone surrogates and what is not base64 never reach a stream."""
    with pytest.raises(EngineError):
        arguments([value], base64=encoded)


def test_large_integers_are_strings() -> None:
    """JavaScript would round them; those at the edge are still numbers."""
    edge = (1 << 53) - 1
    assert to_json([edge, -edge, edge + 1, -edge - 1], base64=False) == [
        edge,
        -edge,
        "9007199254740992",
        "-9007199254740992",
    ]


def test_only_a_lone_ok_stays_as_it_is_in_base64() -> None:
    """The SDKs decode every string but a result that is OK; a value of OK inside a list they decode."""
    assert to_json("OK", base64=True) == "OK"
    assert to_json(["OK"], base64=True) == ["T0s="]
    assert to_json("PONG", base64=True) == "UE9ORw=="
    assert to_json(b"OK", base64=True) == "T0s="


def test_bytes_that_are_no_text_are_replaced() -> None:
    """Without base64 they can't be shown; the rest of the answer can."""
    assert to_json([b"a\xff", None], base64=False) == ["a�", None]


def decoded(value: object) -> object:
    """What @upstash/redis makes of a result."""
    if isinstance(value, list):
        return [decoded(element) for element in value]
    return base64.b64decode(value, validate=True) if isinstance(value, str) else value


def plain(resp: Resp) -> object:
    if isinstance(resp, list):
        return [plain(element) for element in resp]
    if isinstance(resp, int) and abs(resp) >= 1 << 53:
        return str(resp).encode()
    return resp


@pytest.mark.no_cover
@given(resps)
def test_base64_loses_nothing(resp: Resp) -> None:
    """Any reply comes out of an SDK's decoder as it went in, large integers as their text."""
    assert decoded(msgspec.json.decode(msgspec.json.encode(to_json(resp, base64=True)))) == plain(resp)
