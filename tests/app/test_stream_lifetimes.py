"""The lifetime of a stream over REST: set with PUT and PATCH, shown, ended by null, over at its time."""

import httpx

from tests.app.conftest import call

STREAM = "/v1/streams/s"
LATE = "2099-12-31T12:00:00Z"


async def test_a_lifetime_is_set_shown_and_ended(http: httpx.AsyncClient) -> None:
    """What does not name it leaves it as it is."""
    made = await http.put(STREAM, json={"expires_at": LATE})
    assert (made.status_code, made.json()["expires_at"]) == (201, "2099-12-31T12:00:00.000Z")
    for change in (
        await http.put(STREAM),
        await http.patch(STREAM, json={"retention": {"max_len": 3}}),
        await http.get(STREAM),
    ):
        assert change.json()["expires_at"] == "2099-12-31T12:00:00.000Z"
    assert await call(http, "PEXPIRETIME", "s") == 4_102_401_600_000
    for method in ("PATCH", "PUT"):
        assert (await http.request(method, STREAM, json={"expires_at": None})).json()["expires_at"] is None
        assert await call(http, "TTL", "s") == -1
        await http.patch(STREAM, json={"expires_at": LATE})


async def test_a_lifetime_counts_from_now(http: httpx.AsyncClient) -> None:
    """By the gateway's clock; kept as a time."""
    await http.put(STREAM, json={"expires_in_ms": 3_600_000})
    assert 3_590_000 < await call(http, "PTTL", "s") <= 3_600_000
    shown = (await http.get(STREAM)).json()["expires_at"]
    assert (await http.get(STREAM)).json()["expires_at"] == shown


async def test_a_stream_is_gone_at_its_time(http: httpx.AsyncClient) -> None:
    """404, and a new one has another generation and no lifetime."""
    generation = (await http.put(STREAM, json={"expires_in_ms": 3_600_000})).json()["generation"]
    assert await call(http, "PEXPIREAT", "s", "1") == 1
    assert (await http.get(STREAM)).status_code == 404
    again = (await http.put(STREAM)).json()
    assert again["generation"] != generation
    assert again["expires_at"] is None


async def test_fractions_are_rounded_up_to_milliseconds(http: httpx.AsyncClient) -> None:
    """A stream lives no shorter than asked."""
    for asked, kept in (("00.123Z", "00.123Z"), ("00.1230001Z", "00.124Z"), ("00.9999Z", "01.000Z")):
        answer = await http.put(STREAM, json={"expires_at": f"2099-12-31T12:00:{asked}"})
        assert answer.json()["expires_at"] == f"2099-12-31T12:00:{kept}"


async def test_a_time_beyond_the_calendar_is_shown_as_its_last(http: httpx.AsyncClient) -> None:
    """EXPIREAT takes later ones than RFC 3339 has."""
    await http.put(STREAM)
    for at_ms, shown in ((253_402_300_799_998, "998"), ((1 << 63) - 1, "999")):
        assert await call(http, "PEXPIREAT", "s", str(at_ms)) == 1
        assert (await http.get(STREAM)).json()["expires_at"] == f"9999-12-31T23:59:59.{shown}Z"
