"""Damaged requests have the answers that they had under uvicorn's own parser of HTTP, whose place ours has.

Knows: six hundred cases, recorded with version 0.54 of uvicorn. Must never know: how requests are parsed.

More of them, and byte by byte: see tests/app/damaged.py.
"""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.app.damaged import CASES_OF_A_GATEWAY, damaged, outcomes_of, summary
from tests.app.http_requests import request

RECORDED: Final = Path(__file__).parent.parent / "golden" / "damaged-requests.txt"
# What came along with a handshake was lost: now a close frame behind it is read. What comes along with the
# request for a protocol that nothing speaks here is not read, and now ends the connection. The answer to a
# handshake waits for those to earlier requests. One that is no GET, or has a body, is refused: its connection
# stayed open, without an answer and a limit of time.
OTHERWISE: Final = {
    5: "400 400 <closed> <closed>",
    # The head before what cannot be read was not seen before: one refusal is of both.
    **dict.fromkeys((65, 477), "400 <closed> <closed>"),
    29: "422 <closed> <closed>",
    62: "200 201 101 <open> <open>",
    200: "400 <closed> <closed>",
    225: "400 <closed> <closed>",
    229: "200 400 <closed> <closed>",
    277: "101 <closed> <closed>",
    306: "426 <closed> <closed>",
    319: "400 <closed> <closed>",
    # A refusal that did not wait for the body is its only answer.
    463: "404 <open> <closed>",
    527: "403 <open> <closed>",
    # A name may hold a slash.
    420: "404 <open> <open>",
    495: "200 400 <closed> <closed>",
}


# What cannot be read behind a request gets its 400 once that is answered: the connection just ended.
ANSWERED: Final = frozenset(
    {
        *(6, 10, 35, 42, 53, 58, 84, 94, 110, 134, 147, 153, 195, 240, 241, 261, 325, 330, 331, 370, 423),
        498,
    }
)


def expected(number: int, recorded: str) -> str:
    """The outcome of a case, which was recorded."""
    outcome = OTHERWISE.get(number, recorded)
    return outcome.replace("<closed>", "400 <closed>", 1) if number in ANSWERED else outcome


def test_damaged_requests_have_the_answers_that_they_had() -> None:
    """The same statuses, in the same order, and the connection closes when it did."""
    recorded = dict(line.split(" ", 1) for line in RECORDED.read_text().splitlines())
    assert len(recorded) == 3 * CASES_OF_A_GATEWAY
    found = [
        summary(outcome)
        for outcome in asyncio.run(outcomes_of([damaged(int(number)) for number in recorded]))
    ]
    different = {
        int(number): (damaged(int(number)), now)
        for (number, before), now in zip(recorded.items(), found, strict=True)
        if now != expected(int(number), before)
    }
    assert different == {}


UPGRADE: Final = request(
    "GET /v1/ws",
    None,
    *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Protocol: weir.v1"),
    *("Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
)
# Of another protocol than WebSocket, which nothing speaks here.
OTHER: Final = request("GET /healthz/live", None, "Connection: Upgrade", "Upgrade: h2c")
CLOSE: Final = b"\x88\x82\x00\x00\x00\x00\x03\xe8"


@pytest.mark.parametrize("pieces", [[UPGRADE + CLOSE], [UPGRADE, CLOSE]], ids=["one piece", "two"])
def test_what_comes_along_with_a_handshake_is_read(pieces: list[bytes]) -> None:
    """A client need not wait: how TCP cuts what it sends makes no difference."""
    (outcome,) = asyncio.run(outcomes_of([pieces]))
    assert summary(outcome) == "101 <closed> <closed>"


@pytest.mark.parametrize("cut", [None, -40], ids=["whole", "cut"])
def test_what_comes_behind_an_upgrade_that_is_not_taken_is_not_read(cut: int | None) -> None:
    """Nor is its second half taken for a request: the answer to the upgrade is the connection's last one."""
    sent = OTHER * 3 + request("GET /v1/none")
    (outcome,) = asyncio.run(outcomes_of([[sent] if cut is None else [sent[:cut], sent[cut:]]]))
    assert summary(outcome) == "200 <closed> <closed>"
    assert b"\r\nconnection: close\r\n" in outcome


def test_a_client_does_not_fill_the_memory_behind_a_handshake_that_waits() -> None:
    """It waits for the answer to the request before it; until then nothing more is read."""
    poll = request("GET /v1/streams/s/entries?after=$&wait=1000")
    (outcome,) = asyncio.run(outcomes_of([[poll, UPGRADE, CLOSE]]))
    assert summary(outcome) == "<held> 200 101 <open>"
