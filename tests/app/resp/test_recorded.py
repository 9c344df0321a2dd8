"""What a real Redis of the 8.8 level answered is what the port and the command API answer.

The sequences are those of `tests/engine/test_vectors.py`; a clock that stands still stands in for theirs.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis
import pytest

from app.main import App
from tests.app.conftest import calling
from tests.app.resp.conftest import LATE_S, TestedPort, Wire
from tests.engine.clocks import HandClock
from tests.engine.test_vectors import PARTS, agrees, count, sequences

pytestmark = [pytest.mark.no_cover, pytest.mark.halved]

SETUP: Final = [["FLUSHALL"], ["CONFIG", "SET", "stream-node-max-entries", "100"]]
READ_BYTES: Final = 1 << 16


def flat(reply: object) -> object:
    """A reply of either protocol in the shape of RESP2, words as text."""
    if isinstance(reply, bytes):
        return reply.decode(errors="replace")
    if isinstance(reply, hiredis.ReplyError):
        return f"-{reply}"
    if isinstance(reply, dict):
        return [flat(part) for pair in reply.items() for part in pair]
    return [flat(part) for part in reply] if isinstance(reply, list) else reply


async def replies(wire: Wire, parser: hiredis.Reader, commands: Sequence[Sequence[object]]) -> list[object]:
    """The replies to commands that are sent together."""
    # The stub wants a tuple of one word.
    pack: Callable[[Any], bytes] = hiredis.pack_command
    wire.writer.write(b"".join([pack(tuple(map(str, words))) for words in commands]))
    found: list[object] = []
    async with asyncio.timeout(LATE_S):
        while len(found) < len(commands):
            reply = parser.gets()
            if reply is False:
                parser.feed(await wire.reader.read(READ_BYTES))
            else:
                found.append(flat(reply))
    return found


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(("name", "part"), PARTS)
async def test_every_recorded_reply_is_given_over_the_wire(
    open_port: Callable[..., Any], name: str, part: int, protocol: int
) -> None:
    """Reply for reply, and error for error."""
    port: TestedPort = await open_port(clock=HandClock(1_700_000_000_000))
    wire = await port.connect()
    await wire.call("HELLO", protocol)
    parser, differences = hiredis.Reader(notEnoughData=False), dict[int, str]()
    for number, steps in enumerate(sequences(name, part)):
        answered = (await replies(wire, parser, [*SETUP, *(step["cmd"] for step in steps)]))[len(SETUP) :]
        for place, (step, answer) in enumerate(zip(steps, answered, strict=True)):
            recorded = f"-{step['error']}" if "error" in step else step["reply"]
            if not agrees(flat(_as_resp3(recorded, answer)), answer):
                differences[number] = f"{place}, {step['cmd']}: recorded {recorded!r}, answered {answer!r}"
    assert (differences, number) == ({}, count(name) - 1)


@pytest.mark.parametrize(("name", "part"), PARTS)
async def test_every_recorded_reply_is_given_by_the_command_api(
    open_port: Callable[..., Any], name: str, part: int
) -> None:
    """The same sequences as pipelines over HTTP."""
    port: TestedPort = await open_port(clock=HandClock(1_700_000_000_000))
    app = App(port.gateway)
    async with calling(app) as http:
        for steps in sequences(name, part):
            commands = [*SETUP, *([str(word) for word in step["cmd"]] for step in steps)]
            answered = (await http.post("/v1/commands/pipeline", json=commands)).json()[len(SETUP) :]
            for step, answer in zip(steps, answered, strict=True):
                assert answer.get("error") == step.get("error"), step
                assert "error" in step or agrees(step["reply"], answer["result"]), step


def _as_resp3(recorded: object, answer: object) -> object:
    """XREAD's lists of a name and its entries are one flat map in RESP3."""
    pairs = isinstance(recorded, list) and all(isinstance(one, list) and len(one) == 2 for one in recorded)
    if pairs and isinstance(recorded, list) and isinstance(answer, list) and len(answer) == 2 * len(recorded):
        return [part for pair in recorded for part in pair]
    return recorded
