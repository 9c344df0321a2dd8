"""One queue of commands behind two codecs: what holds of commands as JSON, and of a Redis client's."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.doors.resp.listening import RespServer
from app.settings import Settings
from engine import Call, Done, EngineProtocol, Replies
from tests.app.conftest import app_on, calling
from tests.app.resp.conftest import Wire, connected
from tests.engine.clocks import HandClock

ABORTED: Final = "-EXECABORT Transaction discarded because of previous errors."
SMALLER: Final = "-ERR The ID specified in XADD is equal or smaller than the target stream top item"
TOO_FEW: Final = "-ERR wrong number of arguments for 'xadd' command"
LAST: Final = 2**64 - 1
ADD: Final = ["XADD", "s", "*", "f", "v"]


class Json:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def pipeline(self, *rows: Sequence[Any]) -> list[Any]:
        found = (await self._http.post("/v1/commands/pipeline", json=rows)).json()
        return [self._shown(one) for one in found]

    async def transaction(self, *rows: Sequence[Any]) -> Any:
        return self._shown((await self._http.post("/v1/commands/multi-exec", json=rows)).json())

    def _shown(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self._shown(one) for one in found]
        return f"-{found['error']}" if "error" in found else found["result"]


class Resp:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def pipeline(self, *rows: Sequence[Any]) -> list[Any]:
        for row in rows:
            self._wire.send(*row)
        return [self._shown(await self._wire.reply()) for _ in rows]

    async def transaction(self, *rows: Sequence[Any]) -> Any:
        return (await self.pipeline(["MULTI"], *rows, ["EXEC"]))[-1]

    def _shown(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self._shown(one) for one in found]
        return found.decode() if isinstance(found, bytes) else found


# Sends commands in one form. Replies are text, numbers and lists; errors as `-…`.
Codec = Json | Resp


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=["JSON", "RESP"])
async def codec(
    request: pytest.FixtureRequest, engine: EngineProtocol, clock: HandClock, tmp_path: Path
) -> AsyncIterator[Codec]:
    path = tmp_path / "socket"
    settings = Settings(log_requests="none", resp_listen=(f"unix:{path}",), drain_s_max=1)
    app = app_on(engine, settings, clock)
    server = await RespServer(app.gateway).start()
    async with calling(app) as http:
        wire = await connected(path)
        yield Json(http) if request.param == "JSON" else Resp(wire)
        wire.close()
    await server.close()


async def test_commands_are_answered_in_order_each_seeing_what_came_before_it(codec: Codec) -> None:
    """A failure stops no other. A command that repeats the one before it is read once, and run again."""
    trimmed, length, missing = ["XADD", "s", "MAXLEN", "5", "*", "f", "v"], ["XLEN", "s"], ["XLEN", "t"]
    found = await codec.pipeline(
        *(length, length, trimmed, trimmed, length, length, missing, ["XADD", "s"], ["XADD", "s"]),
        *(["XADD", "u", "1-0", "f", "v"], ["XADD", "u", "1-0", "f", "v"], ["FOO"], ["WAITAOF", 1, 0, 0]),
        *(["XREAD", "BLOCK", 5, "STREAMS", "u", "$"], ["XRANGE", "u", "-", "+"], ["PING"]),
    )
    assert [*found[:2], *found[4:11]] == [0, 0, 2, 2, 0, TOO_FEW, TOO_FEW, "1-0", SMALLER]
    assert found[2] != found[3]
    assert found[11].startswith("-ERR unknown command 'FOO'")
    assert found[12:] == [[1, 0], None, [["1-0", ["f", "v"]]], "PONG"]
    assert await codec.pipeline() == []


async def test_a_run_of_plain_entries_is_answered_entry_by_entry(codec: Codec) -> None:
    """Among others, to two streams, and with one that is refused."""
    values = ["1", '"\\', "\r\n", "é"]
    rows = [["XADD", "s", "*", "v", value] for value in values]
    rows += [["XADD", "t", "*", "v", "1", "v", "2"], ["xadd", "s", "*", "v"], ["XADD", "a//b", "*", "v", "1"]]
    found = await codec.pipeline(*rows, ["XRANGE", "s", "-", "+"], ["XRANGE", "t", "-", "+"])
    assert found[5] == TOO_FEW
    assert found[6].startswith("-ERR invalid name: a stream name has 1 to 512 bytes")
    assert found[7] == [[one, ["v", value]] for one, value in zip(found[:4], values, strict=True)]
    assert found[8] == [[found[4], ["v", "1", "v", "2"]]]


async def test_a_transaction_is_one_turn(codec: Codec) -> None:
    """One reading of the clock: automatic IDs share their milliseconds. A failing one stops no other, and
    nothing waits.
    """
    found = await codec.transaction(
        *([ADD] * 3), ["XADD", "s", "0-1", "f", "v"], ["TIME"], ["XLEN", "s"], ["WAITAOF", 1, 0, 0],
        ["XREAD", "BLOCK", "0", "STREAMS", "s", "$"],
    )  # fmt: skip
    assert len({entry_id.partition("-")[0] for entry_id in found[:3]}) == 1
    assert (found[3], len(found[4]), found[5:]) == (SMALLER, 2, [3, [1, 0], None])
    assert await codec.transaction() == []


async def test_a_transaction_tells_between_which_times_it_ran(
    codec: Codec, engine: EngineProtocol, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for TIME on both sides of a command learns when the clock has gone on meanwhile."""
    await codec.pipeline(ADD)
    send = engine.send

    def slowly(call: Call, done: Done) -> Replies | None:
        clock.pass_ms(70)
        return send(call, done)

    monkeypatch.setattr(engine, "send", slowly)
    before, first, between, _, after = await codec.transaction(
        ["TIME"], ["TIME"], ["XLEN", "s"], ADD, ["TIME"]
    )
    assert before == first
    assert (between, int(after[1]) - int(before[1])) == (1, 70_000)


async def test_plain_entries_of_a_transaction_are_answered_one_by_one(codec: Codec) -> None:
    """Those of several streams, with other commands between, and where the last ID is used up."""
    other, length = ["XADD", "t", "*", "f", "v"], ["XLEN", "s"]
    found = await codec.transaction(ADD, ADD, length, other, ADD, other, length)
    ms = found[0].partition("-")[0]
    assert found == [f"{ms}-0", f"{ms}-1", 2, f"{ms}-0", f"{ms}-2", f"{ms}-1", 3]
    await codec.pipeline(["XADD", "u", f"{LAST}-{LAST - 1}", "f", "v"])
    add = ["XADD", "u", "*", "f", "v"]
    last, refused, number, again = await codec.transaction(add, add, ["XLEN", "u"], add)
    assert (last, number, refused) == (f"{LAST}-{LAST}", 2, again)
    assert "exhausted" in refused


@pytest.mark.parametrize("wrong", [["FOO"], ["XADD", "s"]])
async def test_an_impossible_command_discards_the_transaction(codec: Codec, wrong: list[str]) -> None:
    """Nothing has run."""
    assert await codec.transaction(ADD, wrong) == ABORTED
    assert await codec.pipeline(["EXISTS", "s"]) == [0]
