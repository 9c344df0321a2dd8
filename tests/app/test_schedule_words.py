"""WEIR.SCHEDULE and what recurs, at every way in for commands: who may replace it, what others see."""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from engine import entries
from engine.commands.schedule_commands import DescribeSchedule, NewSchedule, SetSchedule
from engine.recurrence import NEVER_MS, Rule
from engine.replies import ScheduleInfo
from tests.app.policies import principal_with
from tests.app.ten_doors import DOORS, Bench, InWords, WebSocket, opened
from tests.engine.asking import reply_to

BODY: Final = entries.body([("n", "1")])
IN_WORDS: Final = [door for door in DOORS if isinstance(door, InWords | WebSocket)]
ONCE: Final = "WEIR.SCHEDULE SET s tick IN 60000 FIELDS n 2".split()  # noqa: SIM905 - as it is typed
CANCEL: Final = "WEIR.SCHEDULE DEL s tick".split()  # noqa: SIM905 - as it is typed


async def recurs(bench: Bench) -> bool:
    found = await reply_to(bench.engine, DescribeSchedule(stream="s", name="tick"))
    assert isinstance(found, ScheduleInfo)
    return found.rule.recurs


async def set_recurring(bench: Bench) -> None:
    often = NewSchedule("tick", BODY, Rule(every_ms=60_000))
    await reply_to(bench.engine, SetSchedule(stream="s", schedule=often))


@pytest.mark.parametrize("door", IN_WORDS, ids=lambda door: door.name)
async def test_a_single_run_takes_the_place_of_what_recurs_for_those_who_manage(
    tmp_path: Path, door: InWords | WebSocket
) -> None:
    """It is in the audit log: a line like those of other changes of what recurs."""
    async with opened(tmp_path, principal=principal_with("write,manage:s")) as bench:
        await set_recurring(bench)
        answer = await door.send(bench, ONCE)
        assert "NOPERM" not in answer, answer
        assert not await recurs(bench)
        # Of what did not recur it is nothing special.
        await door.send(bench, [*ONCE, "m", "3"])
        (line,) = await bench.audited()
        assert (line["operation"], line["action"]) == ("weir.schedule|set", "manage")
        assert (line["streams"], line["outcome"]) == (["s"], "done")


@pytest.mark.parametrize("door", IN_WORDS, ids=lambda door: door.name)
async def test_it_does_not_for_those_who_may_only_write(tmp_path: Path, door: InWords | WebSocket) -> None:
    """What recurs stays as it is."""
    async with opened(tmp_path, principal=principal_with("write:s")) as bench:
        await set_recurring(bench)
        assert "NOPERM what recurs takes the right to manage the stream" in await door.send(bench, ONCE)
        assert await recurs(bench)
        (line,) = await bench.audited()
        assert (line["operation"], line["outcome"]) == ("weir.schedule|set", "forbidden")


@pytest.mark.parametrize("door", IN_WORDS, ids=lambda door: door.name)
async def test_cancelling_what_recurs_without_its_word_says_the_word(
    tmp_path: Path, door: InWords | WebSocket
) -> None:
    """Wherever a sentence is shown. With the word it goes."""
    async with opened(tmp_path, principal=principal_with("*:*")) as bench:
        await set_recurring(bench)
        answer = await door.send(bench, CANCEL)
        for shown in ('"detail":"', '"redis_error":"', '"error":"'):
            for said in answer.split(shown)[1:]:
                assert "RECURRING" in said.partition('"')[0]
        assert "RECURRING" in answer
        assert await recurs(bench)
        await door.send(bench, [*CANCEL, "RECURRING"])
        assert bench.engine.figures().schedules == 0


async def test_over_rest_it_is_audited_too(tmp_path: Path) -> None:
    """Done, and refused."""
    for grants, outcome in (("write,manage:s", "done"), ("write:s", "forbidden")):
        place = tmp_path / outcome
        await asyncio.to_thread(place.mkdir)
        async with opened(place, principal=principal_with(grants)) as bench:
            await set_recurring(bench)
            rest = next(door for door in DOORS if door.name == "asgi")
            body = {"entry": {"fields": {"n": "2"}}, "in_ms": 60_000}
            await rest.ask(bench, "PUT", "/v1/streams/s/schedules/tick", body)  # type: ignore[attr-defined]
            said = [(line["operation"], line["outcome"]) for line in await bench.audited()]
            assert said == [("putSchedule", outcome)]


@pytest.mark.parametrize("door", IN_WORDS, ids=lambda door: door.name)
async def test_it_is_paused_and_resumed_by_those_who_manage(
    tmp_path: Path, door: InWords | WebSocket
) -> None:
    """What recurs takes a word of its own. Its time is none while it waits without an end."""
    async with opened(tmp_path, principal=principal_with("write,manage,read:s")) as bench:
        await set_recurring(bench)
        pause = "WEIR.SCHEDULE PAUSE s tick".split()  # noqa: SIM905 - as it is typed
        assert "what recurs takes the right" in await door.send(bench, pause)
        assert "NOPERM" not in await door.send(bench, [*pause, "RECURRING"])
        found = await reply_to(bench.engine, DescribeSchedule(stream="s", name="tick"))
        assert isinstance(found, ScheduleInfo)
        assert (found.at_ms, found.rule.paused_until_ms) == (NEVER_MS, None)
        assert str(NEVER_MS) not in await door.send(bench, ["WEIR.SCHEDULE", "GET", "s", "tick"])
        later_ms = "2000000000000"
        assert later_ms not in await door.send(bench, [*pause, "UNTIL", later_ms, "RECURRING"])
        found = await reply_to(bench.engine, DescribeSchedule(stream="s", name="tick"))
        assert isinstance(found, ScheduleInfo)
        assert found.rule.paused_until_ms == int(later_ms)
        await door.send(bench, ["WEIR.SCHEDULE", "RESUME", "s", "tick", "RECURRING"])
        found = await reply_to(bench.engine, DescribeSchedule(stream="s", name="tick"))
        assert isinstance(found, ScheduleInfo)
        assert found.rule == Rule(every_ms=60_000)
        assert "syntax" in await door.send(bench, [*pause, "UNTIL"])
