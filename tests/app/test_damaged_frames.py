"""Damaged WebSocket frames have the answers that they had under uvicorn's WebSocket, whose place ours has.

Knows: four hundred cases, recorded with version 0.54 of uvicorn. Must never know: how frames are parsed.

More of them, and byte by byte: see tests/app/damaged_frames.py.
"""

import asyncio
from pathlib import Path
from typing import Final

from tests.app.damaged import outcomes_of
from tests.app.damaged_frames import damaged, summary

RECORDED: Final = Path(__file__).parent.parent / "golden" / "damaged-frames.txt"
# Behind bytes that are no text, or a message that ends the conversation, came a close frame in the same read:
# an exception ended the connection, where the close frame is answered now.
OTHERWISE: Final = {161: "text text close:3971 <closed> <closed>", 227: "text text close:0 <closed> <closed>"}


def test_damaged_frames_have_the_answers_that_they_had() -> None:
    """The same frames in the same order, the same codes, and the connection closes when it did."""
    recorded = dict(line.split(" ", 1) for line in RECORDED.read_text().splitlines())
    assert len(recorded) == 400
    found = asyncio.run(outcomes_of([damaged(int(number)) for number in recorded]))
    different = {
        int(number): (damaged(int(number)), before, now)
        for (number, before), now in zip(recorded.items(), map(summary, found), strict=True)
        if now != OTHERWISE.get(int(number), before)
    }
    assert different == {}
