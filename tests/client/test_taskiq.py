"""The broker and the schedule source for taskiq, with taskiq's own receiver."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from taskiq import Context, SendTaskError, TaskiqDepends
from taskiq.receiver import Receiver
from taskiq.scheduler.scheduled_task import CronSpec
from taskiq.serializers import PickleSerializer

from tests.waiting import until_async
from weir import AsyncClient, InvalidValueError, StreamDeletedError
from weir.taskiq import WeirBroker, WeirScheduleSource

GROUP = "taskiq"
NOW = Annotated[Context, TaskiqDepends()]


class Tasks:
    """A broker with tasks that note what they do."""

    def __init__(self, url: str, stream: str, *schedules: dict[str, Any], **options: Any) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.ids: list[str] = []
        self.go_on = asyncio.Event()
        self.broker = WeirBroker(url, stream=stream, **options)

        async def note(word: str, context: NOW) -> None:
            self.ended.append(word)
            self.ids.append(context.message.task_id)

        async def wait(word: str) -> None:
            self.begun.append(word)
            await self.go_on.wait()
            self.ended.append(word)

        # Typed by their functions, without what taskiq adds.
        self.note: Any = self.broker.task(task_name="note", schedule=list(schedules))(note)
        self.wait: Any = self.broker.task(task_name="wait")(wait)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator["asyncio.Task[None]"]:
        """A worker of them, beside the block; it ends as `taskiq worker` does."""
        self.broker.is_worker_process = True
        finish = asyncio.Event()
        receiver = Receiver(self.broker, max_async_tasks=10)
        listening = asyncio.create_task(receiver.listen(finish))
        try:
            yield listening
        finally:
            finish.set()
            await asyncio.wait([listening])
            await self.broker.shutdown()


async def left(client: AsyncClient, stream: str) -> tuple[int, int]:
    """How many entries the stream has, and how many of them are pending."""
    found = await client.get_stream(stream)
    assert found is not None
    return found["length"], (await client.group(stream, GROUP).info())["pending"]


async def start(tasks: Tasks) -> None:
    """As a scheduler does, which is to send nothing by itself."""
    source = WeirScheduleSource(tasks.broker)
    await source.startup()
    assert await source.get_schedules() == []
    await tasks.broker.shutdown()


async def test_a_task_that_is_done_leaves_the_stream(url: str, stream: str) -> None:
    """Also what was sent before there was a worker; the broker may be started again."""
    tasks = Tasks(url, stream)
    await tasks.note.kiq("one")
    async with tasks.working():
        await tasks.note.kiq("two")
        await until_async(lambda: tasks.ended == ["one", "two"])
    async with tasks.working():
        await tasks.note.kiq("three")
        await until_async(lambda: len(tasks.ended) == 3)
    async with AsyncClient(url) as client:
        assert await left(client, stream) == (0, 0)


async def test_a_task_longer_than_the_time_out_runs_once(url: str, stream: str) -> None:
    """With another worker that waits for work."""
    long, idle = (Tasks(url, stream, ack_timeout_ms=1_000) for _ in range(2))
    async with long.working():
        await long.wait.kiq("long")
        await until_async(lambda: long.begun == ["long"])
        async with idle.working():
            await asyncio.sleep(2.5)
            long.go_on.set()
            await until_async(lambda: long.ended == ["long"])
    assert (long.begun, idle.begun) == (["long"], [])
    async with AsyncClient(url) as client:
        assert await left(client, stream) == (0, 0)


async def test_a_worker_that_stops_ends_its_task_and_takes_no_other(url: str, stream: str) -> None:
    tasks = Tasks(url, stream, credit=1)
    async with tasks.working():
        await tasks.wait.kiq("running")
        await until_async(lambda: tasks.begun == ["running"])
        await tasks.note.kiq("next")
        asyncio.get_running_loop().call_later(0.3, tasks.go_on.set)
    assert tasks.ended == ["running"]
    async with AsyncClient(url) as client:
        assert await left(client, stream) == (1, 0)
        (page,) = [one.fields["task"] async for one in client.entries(stream)]
        assert page == "note"


async def test_a_task_that_ends_its_workers_becomes_a_dead_letter(url: str, stream: str) -> None:
    """A worker that is gone gives back what it had; the last of `max_deliveries` gives it to no other one."""
    dead = f"{stream}:dead"
    tasks = Tasks(url, stream, ack_timeout_ms=200, dead_letter=dead, max_deliveries=1)
    async with AsyncClient(url) as client:
        async with tasks.working():
            pass
        await tasks.note.kiq("fatal")
        # As a worker does that is killed.
        assert len((await client.group(stream, GROUP).read("gone")).entries) == 1
        async with tasks.working():
            page = await client.read_after(dead, "0", wait_ms=20_000)
            assert [one.fields["task"] for one in page.entries] == ["note"]
    assert tasks.ended == []
    with pytest.raises(InvalidValueError, match="dead_letter"):
        WeirBroker(url, max_deliveries=1)


async def test_a_worker_sets_the_policy_of_a_group_that_is_there(url: str, stream: str) -> None:
    """The next version of a program may have another one; the position stays."""
    async with AsyncClient(url) as client:
        for ack_timeout_ms, dead in (5_000, f"{stream}:dead"), (6_000, None):
            tasks = Tasks(url, stream, ack_timeout_ms=ack_timeout_ms, dead_letter=dead)
            async with tasks.working():
                await tasks.note.kiq("one")
                await until_async(lambda tasks=tasks: tasks.ended == ["one"])
            found = await client.group(stream, GROUP).info()
            assert found.get("ack_timeout_ms") == ack_timeout_ms
            assert (found.get("dead_letter") or {}).get("stream") == dead


async def test_what_is_no_task_is_passed_over(url: str, stream: str) -> None:
    tasks = Tasks(url, stream)
    async with AsyncClient(url) as client, tasks.working():
        await client.publish_batch(stream, [{"n": 1}, {"recurs": "yes", "message": "{"}])
        await tasks.note.kiq("after it")
        await until_async(lambda: tasks.ended == ["after it"])
    async with AsyncClient(url) as client:
        assert await left(client, stream) == (0, 0)


async def test_a_serializer_may_write_any_bytes(url: str, stream: str) -> None:
    tasks = Tasks(url, stream)
    tasks.broker.serializer = PickleSerializer()
    async with tasks.working():
        await tasks.note.kiq("ü")
        await until_async(lambda: tasks.ended == ["ü"])


async def test_a_worker_ends_where_its_stream_is_deleted(url: str, stream: str) -> None:
    """Taskiq starts the process again, which makes stream and group with their policy."""
    tasks = Tasks(url, stream)
    async with AsyncClient(url) as client:
        async with tasks.working() as listening:
            await tasks.note.kiq("one")
            await until_async(lambda: tasks.ended == ["one"])
            await client.delete_stream(stream)
            await asyncio.wait([listening], timeout=20)
            error = listening.exception()
        assert isinstance(error, BaseExceptionGroup)
        assert error.subgroup(StreamDeletedError) is not None
        async with tasks.working():
            await tasks.note.kiq("two")
            await until_async(lambda: tasks.ended == ["one", "two"])
            assert (await client.group(stream, GROUP).info()).get("ack_timeout_ms") == 60_000


async def test_the_label_delay_sends_a_task_later_and_once(url: str, stream: str) -> None:
    tasks = Tasks(url, stream)
    loop = asyncio.get_running_loop()
    async with tasks.working():
        began_s = loop.time()
        await tasks.note.kicker().with_labels(delay=0.3).kiq("later")
        await tasks.note.kicker().with_labels(delay=3_600).kiq("much later")
        await tasks.note.kiq("now")
        await until_async(lambda: len(tasks.ended) == 2)
        assert loop.time() - began_s >= 0.3
        assert {*tasks.ended} == {"now", "later"}
        async with AsyncClient(url) as client:
            assert len([one async for one in client.list_schedules(stream)]) == 1
        with pytest.raises(SendTaskError):
            await tasks.note.kicker().with_labels(delay=-1).kiq("never")
    assert len(tasks.ended) == 2


async def test_labels_schedule_a_task_once_however_many_start(url: str, stream: str) -> None:
    """The next time stays as it is; each run is a task of its own."""
    rules = {"cron": "30 2 * * *", "cron_offset": "Europe/Berlin", "args": ["nightly"]}, {"interval": 3_600}
    tasks = Tasks(url, stream, *rules)
    async with AsyncClient(url) as client:
        seen = []
        for _ in range(3):
            await start(Tasks(url, stream, *rules))
            seen.append([one async for one in client.list_schedules(stream, by="name")])
        assert seen[0] == seen[1] == seen[2]
        assert [(one["name"], one.get("cron"), one.get("tz"), one.get("every_ms")) for one in seen[0]] == [
            ("label:note:0", "30 2 * * *", "Europe/Berlin", None),
            ("label:note:1", None, None, 3_600_000),
        ]
        async with tasks.working():
            await client.fire_schedule(stream, "label:note:0")
            await client.fire_schedule(stream, "label:note:0")
            await until_async(lambda: len(tasks.ended) == 2)
    assert tasks.ended == ["nightly", "nightly"]
    assert len(set(tasks.ids)) == 2
    assert all(one.startswith("label:note:0:") for one in tasks.ids)


async def test_an_interval_runs_each_time_once_beside_many_schedulers(url: str, stream: str) -> None:
    rule = {"interval": timedelta(seconds=1), "args": ["tick"], "schedule_id": "tick"}
    tasks = Tasks(url, stream, rule)
    async with tasks.working():
        sources = [WeirScheduleSource(tasks.broker) for _ in range(4)]
        await asyncio.gather(*(source.startup() for source in sources))
        await until_async(lambda: len(tasks.ended) == 3)
        await sources[0].delete_schedule("label:tick")
        await sources[0].delete_schedule("label:tick")
        runs = [int(one.rpartition(":")[2].partition("-")[0]) for one in tasks.ids]
    assert all(later - earlier >= 950 for earlier, later in itertools.pairwise(runs)), runs


async def test_labels_that_are_gone_are_cancelled_and_others_stay(url: str, stream: str) -> None:
    """A time that is over has run: it is passed over, also at the first start."""
    over, ahead = datetime.now(UTC) - timedelta(seconds=5), datetime.now(UTC) + timedelta(hours=1)
    async with AsyncClient(url) as client:
        await client.schedule(stream, "another program's", {"n": 1}, in_ms=3_600_000)
        await start(Tasks(url, stream, {"cron": "* * * * *"}, {"time": over}, {"time": ahead}, {"what": 1}))
        named = [one["name"] async for one in client.list_schedules(stream, by="name")]
        assert named == ["another program's", "label:note:0", "label:note:2"]
        await start(Tasks(url, stream, {"cron": "5 * * * *"}))
        found = [(one["name"], one.get("cron")) async for one in client.list_schedules(stream, by="name")]
        assert found == [("another program's", None), ("label:note:0", "5 * * * *")]


async def test_tasks_are_scheduled_and_unscheduled_by_hand(url: str, stream: str) -> None:
    tasks = Tasks(url, stream)
    source = WeirScheduleSource(tasks.broker)
    async with AsyncClient(url) as client, tasks.working():
        # Without a zone it is UTC, as of taskiq.
        soon = (datetime.now(UTC) + timedelta(seconds=0.2)).replace(tzinfo=None)
        given = await tasks.note.schedule_by_time(source, soon, "at a time")
        await until_async(lambda: tasks.ended == ["at a time"])
        assert tasks.ids == [given.schedule_id]
        spec = CronSpec(minutes=30, hours=2, offset="Asia/Tokyo")
        cron = await tasks.note.kicker().with_schedule_id("mine").schedule_by_cron(source, spec, "cron")
        found = await client.get_schedule(stream, "mine")
        assert found is not None
        assert (found.get("cron"), found.get("tz")) == ("30 2 * * *", "Asia/Tokyo")
        await cron.unschedule()
        assert await client.get_schedule(stream, "mine") is None
        with pytest.raises(InvalidValueError, match="time zone"):
            await tasks.note.schedule_by_cron(source, CronSpec(offset=timedelta(hours=1)), "cron")
        assert [one async for one in client.list_schedules(stream)] == []
