"""The one way in: what is returned, what comes later, what is refused, and how a wait ends."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine import Call, Engine, EngineError, Fsync, How, ReadHandle, Refused, Replies, ask, ask_one
from engine.commands import types
from engine.commands.base import Command
from engine.commands.grouping import DROPPED_MAX
from engine.commands.weir_commands import AddEach
from engine.entries import body
from engine.replies import Added, GroupRead, PendingSummary
from engine.storage.memory import MemoryStorage
from tests.engine.clocks import HandClock, settle

BODY = body([("a", b"1")])
READ = types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)], block_ms=60_000)
ADD = types.XAdd(stream="s", bodies=[BODY])


async def opened(fsync: Fsync = "everysec") -> Engine:
    engine = Engine.open(MemoryStorage(), clock=HandClock(1_000), fsync=fsync)
    await engine.start()
    await ask(engine, Call([types.XGroupCreate(stream="s", group="g", start=0, mkstream=True)], synced=True))
    return engine


class Answers(list[Replies]):
    """What `done` got. It may not be called while `send` runs."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._is_sending = False
        self._come = asyncio.Event()

    def send(self, *commands: Command, **terms: Any) -> Replies | None:
        self._is_sending = True
        replies = self._engine.send(Call(commands, **terms), self._done)
        self._is_sending = False
        return replies

    def _done(self, replies: Replies) -> None:
        assert not self._is_sending, "never before it returns"
        self.append(replies)
        self._come.set()

    async def come(self) -> None:
        """Wait for the first one."""
        await self._come.wait()


def codes(replies: Sequence[object] | None) -> list[object]:
    return [getattr(reply, "code", reply) for reply in replies or ()]


# ---- what is returned, and what comes later


@pytest.mark.parametrize("how", How)
async def test_what_may_leave_now_is_returned_and_the_rest_comes_later(how: How) -> None:
    """Each call is answered once, one way or the other."""
    engine = await opened("always")
    answers = Answers(engine)
    assert answers.send(types.XLen(stream="s"), how=how) == [0]
    assert answers.send(ADD, how=how) is None
    await answers.come()
    [[added]] = answers
    assert isinstance(added, Added)
    assert answers.send(types.XLen(stream="s"), how=how) == [1]
    await settle()
    assert len(answers) == 1
    await engine.close()


async def test_what_is_found_is_known_before_it_may_leave() -> None:
    """So that a door holds what the reply takes; not where it leaves at once."""
    engine = await opened("always")
    answers, ran = Answers(engine), list[Replies]()
    answers.send(types.XLen(stream="s"), on_run=ran.append)
    assert ran == []
    answers.send(ADD, on_run=ran.append)
    assert isinstance(ran[0][0], Added)
    assert answers == []
    await engine.close()


@pytest.mark.parametrize("how", How)
async def test_a_refusal_is_returned_and_raised_where_it_is_awaited(how: How) -> None:
    """A refusal of the whole, here at the end; under EACH in each place."""
    engine = await opened()
    await engine.close()
    call = Call([ADD], how)
    replies = engine.send(call, lambda _: None)
    assert codes(replies) == ["draining"]
    if how is How.EACH:
        assert codes(await ask(engine, Call([ADD, ADD], how))) == ["draining"] * 2
    else:
        assert isinstance(replies, Refused)
        with pytest.raises(EngineError):
            await ask(engine, call)
    with pytest.raises(EngineError):
        await ask_one(engine, call)


async def test_a_refusal_within_a_turn_is_no_refusal_of_the_whole() -> None:
    """Also where the turn has one command."""
    engine = await opened()
    missing = types.XGroupCreate(stream="missing", group="g", start=0)
    assert codes(await ask(engine, Call([missing], How.TOGETHER))) == ["no_stream"]
    await engine.close()


async def test_together_of_one_is_not_alone() -> None:
    """Alone a large consumer is removed in several turns; in one turn it is refused, with nothing done."""
    engine = await opened()
    await ask(engine, Call([AddEach(stream="s", bodies=[BODY] * (DROPPED_MAX + 1))]))
    read = types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)])
    await ask(engine, Call([read, read], How.EACH))
    remove = types.XGroupDelConsumer(stream="s", group="g", consumer="c")
    refused = await ask(engine, Call([remove], How.TOGETHER))
    assert [isinstance(reply, EngineError) for reply in refused] == [True]
    answers = Answers(engine)
    assert answers.send(remove) is None
    await answers.come()
    assert answers == [[DROPPED_MAX + 1]]
    await engine.close()


@pytest.mark.parametrize("how", [How.ALONE, How.EACH])
async def test_what_goes_on_later_is_no_task(how: How) -> None:
    """A command of several turns is answered in the cycle of the last one."""
    engine = await opened()
    await ask(engine, Call([AddEach(stream="s", bodies=[BODY] * (DROPPED_MAX + 1))]))
    read = types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)])
    await ask(engine, Call([read, read], How.EACH))
    answers, tasks = Answers(engine), asyncio.all_tasks()
    assert answers.send(types.XGroupDelConsumer(stream="s", group="g", consumer="c"), how=how) is None
    assert asyncio.all_tasks() == tasks
    await answers.come()
    assert answers == [[DROPPED_MAX + 1]]
    await engine.close()


# ---- what was not expected


@pytest.mark.parametrize("how", How)
async def test_a_fault_is_internal_and_names_its_origin(monkeypatch: pytest.MonkeyPatch, how: How) -> None:
    """Nothing is raised: the exception is in the log, with whose it is."""
    engine = await opened()
    reported = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(types.XLen, "depends_on", fail)
    answers = Answers(engine)
    assert codes(answers.send(types.XLen(stream="s"), how=how, origin="req_1")) == ["internal"]
    [fault] = reported
    assert isinstance(fault["exception"], ZeroDivisionError)
    assert fault["origin"] == "req_1"
    monkeypatch.undo()
    await engine.close()


async def test_a_fault_of_a_read_comes_as_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later, as every answer to one that may wait."""
    engine = await opened()
    reported = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(types.XReadGroup, "entry_bytes", fail)
    answers = Answers(engine)
    answers.send(READ, waits=ReadHandle(), origin="req_2")
    await settle()
    assert [codes(one) for one in answers] == [["internal"]]
    assert [fault["origin"] for fault in reported] == ["req_2"]
    monkeypatch.undo()
    await engine.close()


# ---- a call that waits


async def test_a_read_that_may_wait_is_answered_later_even_where_something_is_there() -> None:
    """What is returned would have to be taken back at once."""
    engine = await opened()
    await ask(engine, Call([ADD], synced=True))
    answers = Answers(engine)
    assert answers.send(READ, waits=ReadHandle()) is None
    await answers.come()
    [[found]] = answers
    assert isinstance(found, GroupRead)
    assert len(found.streams[0].entries) == 1
    await engine.close()


def end(handle: ReadHandle) -> None:
    handle.end()


def cancel(handle: ReadHandle) -> None:
    handle.cancel()


@pytest.mark.parametrize("leave", [end, cancel])
async def test_a_wait_ends_at_once(leave: Callable[[ReadHandle], None]) -> None:
    """What is published next, in the same cycle, goes to another reader."""
    engine = await opened()
    first, second, handle = Answers(engine), Answers(engine), ReadHandle()
    first.send(READ, waits=handle)
    second.send(READ, waits=ReadHandle())
    await settle()
    assert engine.figures().waiting == 2
    leave(handle)
    assert engine.figures().waiting == 1
    engine.send(Call([ADD]), lambda _: None)
    assert engine.figures().waiting == 0
    await second.come()
    assert [len(found.streams) for [found] in second if isinstance(found, GroupRead)] == [1]
    # Ended, it is answered with nothing; cancelled, not at all.
    assert [len(found.streams) for [found] in first if isinstance(found, GroupRead)] == (
        [0] if leave is end else []
    )
    await engine.close()


@pytest.mark.parametrize("leave", [end, cancel])
async def test_a_wait_that_was_left_before_it_was_sent_does_not_begin(
    leave: Callable[[ReadHandle], None],
) -> None:
    """A door may see its client leave before the engine has the read."""
    engine = await opened()
    answers, handle = Answers(engine), ReadHandle()
    leave(handle)
    answers.send(READ, waits=handle)
    await settle()
    assert engine.figures().waiting == 0
    assert len(answers) == (leave is end)
    await engine.close()


async def test_cancelled_behind_its_answer_it_gives_back() -> None:
    """As long as nothing of it was written: the door says so by cancelling."""
    engine = await opened()
    answers, handle = Answers(engine), ReadHandle()
    answers.send(READ, waits=handle)
    engine.send(Call([ADD]), lambda _: None)
    await answers.come()
    handle.cancel()
    pending = await ask_one(engine, Call([types.XPending(stream="s", group="g")]))
    assert isinstance(pending, PendingSummary)
    assert pending.count == 0
    await engine.close()


async def test_a_coroutine_that_is_cancelled_takes_nothing() -> None:
    """`ask` cancels the wait of its call."""
    engine = await opened()
    task = asyncio.create_task(ask(engine, Call([READ], waits=ReadHandle())))
    await settle()
    assert engine.figures().waiting == 1
    task.cancel()
    await settle()
    assert engine.figures().waiting == 0
    await engine.close()


async def test_alone_a_read_does_not_wait_unless_it_has_a_handle() -> None:
    """Nor do others."""
    engine = await opened()
    answers = Answers(engine)
    for how in How:
        replies = answers.send(types.XRead(streams=[("s", 0)], block_ms=1_000), how=how)
        assert replies is not None
    assert engine.figures().waiting == 0
    await engine.close()
