"""Damaged requests have the answers that they had under uvicorn's own parser of HTTP, whose place ours has.

Knows: six hundred cases, recorded with version 0.54 of uvicorn. Must never know: how requests are parsed.

More of them, and byte by byte: see tests/app/damaged.py.
"""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.app.damaged import CASES_OF_A_GATEWAY, damaged, outcomes_of, summary
from tests.app.fast_requests import request

RECORDED: Final = Path(__file__).parent.parent / "golden" / "damaged-requests.txt"
# What a client sends behind its handshake was thrown away, if it came along with that; the close frame in it
# is read now. The answer to a handshake waits for those to earlier requests. One that is no GET, or has a
# body, is refused: its connection stayed open, without an answer and a limit of time.
OTHERWISE: Final = {
    5: "400 400 <closed> <closed>",
    62: "200 201 101 <open> <open>",
    200: "400 <closed> <closed>",
    225: "400 <closed> <closed>",
    229: "200 400 <closed> <closed>",
    277: "101 <closed> <closed>",
    319: "400 <closed> <closed>",
    495: "200 400 <closed> <closed>",
}


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
        if now != OTHERWISE.get(int(number), before)
    }
    assert different == {}


UPGRADE: Final = request(
    "GET /v1/ws",
    None,
    *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Protocol: weir.v1"),
    *("Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
)
CLOSE: Final = b"\x88\x82\x00\x00\x00\x00\x03\xe8"


@pytest.mark.parametrize("pieces", [[UPGRADE + CLOSE], [UPGRADE, CLOSE]], ids=["one piece", "two"])
def test_what_comes_along_with_a_handshake_is_read(pieces: list[bytes]) -> None:
    """A client need not wait: how TCP cuts what it sends makes no difference."""
    (outcome,) = asyncio.run(outcomes_of([pieces]))
    assert summary(outcome) == "101 <closed> <closed>"
