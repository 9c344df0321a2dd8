"""A broker and a schedule source for taskiq: tasks are entries of a stream, its workers one group of it.

Knows: which fields a task's entry has, and that the gateway itself keeps what is for later.
Must never know: how a task is run, retried or answered; taskiq does that.

    broker = WeirBroker("http://127.0.0.1:8080")
    scheduler = TaskiqScheduler(broker, [WeirScheduleSource(broker)])
"""

import os
import socket
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import uuid4

from taskiq import AckableMessage, AsyncBroker, BrokerMessage, ScheduledTask, ScheduleSource
from taskiq.labels import prepare_label
from taskiq.message import TaskiqMessage

from weir._async_client import AsyncClient
from weir._calls import ScheduleRule
from weir._http import Token, Verify
from weir.errors import InvalidValueError
from weir.paths import group_path
from weir.worker import CREDIT_DEFAULT, Worker

ACK_TIMEOUT_MS_DEFAULT: Final = 60_000
# Each worker process has a name of its own, which would stay for ever after a kill.
CONSUMER_TIMEOUT_MS: Final = 3_600_000
RETRY_S: Final = 60.0
# Of the entries that the labels of tasks have scheduled; taskiq's own names have none.
LABEL_PREFIX: Final = "label:"
# The fields of an entry: what is sent, the task's name, and that each run is a task of its own.
MESSAGE, NAME, RECURS = "message", "task", "recurs"
_RULES: Final = frozenset(("cron", "interval", "time"))


class WeirBroker(AsyncBroker):
    """Sends tasks to a stream, and hands those of a group to a worker: each at least once, and again only
    where its worker is gone.

    `url`, `token` and `verify` as for `AsyncClient`; stream and group are made where they are missing. A task
    whose worker has sent nothing for `ack_timeout_ms` goes to another one; a long task is no reason, as its
    worker says every few seconds that it goes on. With `dead_letter` a task that has ended `max_deliveries`
    workers goes to the stream of that name. `credit` is how many tasks a process holds, at least
    `--max-async-tasks` and `--max-prefetch` together. What is done leaves the stream.

    The label `delay` (seconds) sends a task later; the gateway keeps it until then.
    """

    def __init__(  # noqa: PLR0913 - a broker's options
        self,
        url: str | None = None,
        *,
        stream: str = "taskiq",
        group: str = "taskiq",
        token: Token = None,
        verify: Verify = None,
        credit: int = CREDIT_DEFAULT,
        ack_timeout_ms: int = ACK_TIMEOUT_MS_DEFAULT,
        dead_letter: str | None = None,
        max_deliveries: int | None = None,
    ) -> None:
        super().__init__()
        if max_deliveries is not None and dead_letter is None:
            raise InvalidValueError(
                "max_deliveries needs dead_letter, the stream for what was delivered so often"
            )
        self.stream = stream
        self._group = group
        self._credit = credit
        self._connection: dict[str, Any] = {"token": token, "verify": verify}
        self._url = url
        self._policy: dict[str, Any] = {
            "ack_timeout_ms": ack_timeout_ms,
            "consumer_timeout_ms": CONSUMER_TIMEOUT_MS,
            "dead_letter": dead_letter and {"stream": dead_letter, "max_deliveries": max_deliveries},
        }
        self._workers: list[Worker] = []
        self._client = self._open()

    @property
    def client(self) -> AsyncClient:
        """A client of the gateway, until `shutdown`; another one after that."""
        if self._client.is_closed:
            self._client = self._open()
        return self._client

    def _open(self) -> AsyncClient:
        return AsyncClient(self._url, retry_s=RETRY_S, **self._connection)

    async def startup(self) -> None:
        """See taskiq. A worker sets the group's policy."""
        if self.is_worker_process:
            found = await self.client.group(self.stream, self._group).ensure(start="0", **self._policy)
            if any(found.get(name) != value for name, value in self._policy.items()):
                # It was there, with another policy.
                path = group_path(self.stream, self._group)
                await self.client.call("PATCH", path, body=self._policy, repeatable=True)
        await super().startup()

    async def shutdown(self) -> None:
        """See taskiq. Waits until the gateway has what was acknowledged."""
        await super().shutdown()
        for worker in self._workers:
            await worker.close()
        self._workers.clear()
        await self._client.close()

    async def kick(self, message: BrokerMessage) -> None:
        """See taskiq. Raises ApiError for what the gateway refuses, and NoAnswerError."""
        fields = entry_of(message)
        delay = message.labels.get("delay")
        if delay is None:
            await self.client.publish(self.stream, fields)
            return
        delay_s = float(delay)
        # Under a name it replaces itself, so that it may be sent again; not once it may have run.
        name = uuid4().hex if delay_s > RETRY_S else None
        await self.client.publish_later(self.stream, fields, delay_ms=round(delay_s * 1000), name=name)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """See taskiq. Raises what ends a worker: taskiq starts its process again."""
        worker = Worker(
            self._url,
            self.stream,
            group=self._group,
            consumer=f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}",
            credit=self._credit,
            **self._connection,
        )
        self._workers.append(worker)
        # It is closed by `shutdown`: tasks that run when taskiq stops listening are acknowledged after that.
        await worker.__aenter__()
        try:
            async for delivery in worker:
                entry = delivery.entry
                data = entry.raw.get(MESSAGE, b"")
                if RECURS in entry.fields:
                    data = self._with_own_id(data, entry.id)
                yield AckableMessage(data=data, ack=partial(delivery.ack, delete="acked"))
        finally:
            worker.stop()

    def _with_own_id(self, data: bytes, entry_id: str) -> bytes:
        """A task of a schedule that recurs: each run is a task of its own, the same one when it is delivered
        again.
        """
        try:
            message = self.formatter.loads(data)
        except Exception:  # noqa: BLE001 - a serializer's; taskiq says so, and passes it over
            return data
        message.task_id = f"{message.task_id}:{entry_id}"
        return self.formatter.dumps(message).message


def entry_of(message: BrokerMessage) -> dict[str, str]:
    """The fields of a task's entry: text where it is text, for those who look at the stream."""
    return {NAME: message.task_name, MESSAGE: message.message.decode("utf-8", "surrogateescape")}


class WeirScheduleSource(ScheduleSource):
    """Puts schedules into the gateway, which sends each run once, whether any scheduler runs or not, and
    however many do.

    At `startup` the `schedule` labels of the broker's tasks become the stream's schedules: the same ones keep
    their next time, others are set anew, and those that have no label any more are cancelled; so the tasks of
    a stream belong to one program. A label's `time` that is over is passed over: it has run.
    """

    def __init__(self, broker: WeirBroker) -> None:
        self._broker = broker

    async def startup(self) -> None:
        """See taskiq. Raises ApiError for a rule that the gateway refuses."""
        client, stream = self._broker.client, self._broker.stream
        labelled = {one.schedule_id: one for one in self._labelled()}
        for one in labelled.values():
            if one.time is None or _aware(one.time) > datetime.now(UTC):
                await self.add_schedule(one)
        async for there in client.list_schedules(stream, by="name"):
            if there["name"].startswith(LABEL_PREFIX) and there["name"] not in labelled:
                await client.cancel_schedule(stream, there["name"])

    def _labelled(self) -> Iterator[ScheduledTask]:
        """What the labels of tasks schedule, under names that are the same at the next start."""
        for name, task in self._broker.get_all_tasks().items():
            if task.broker is not self._broker:
                continue
            own = {label: value for label, value in task.labels.items() if label != "schedule"}
            for number, given in enumerate(task.labels.get("schedule", ())):
                if _RULES.isdisjoint(given):
                    continue
                yield ScheduledTask(
                    task_name=name,
                    labels={**given.get("labels", {}), **own},
                    args=given.get("args", []),
                    kwargs=given.get("kwargs", {}),
                    schedule_id=LABEL_PREFIX + given.get("schedule_id", f"{name}:{number}"),
                    cron_offset=given.get("cron_offset"),
                    **{rule: given[rule] for rule in _RULES & given.keys()},
                )

    async def get_schedules(self) -> list[ScheduledTask]:
        """None: the gateway sends them, and a scheduler would send them once more."""
        return []

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """See taskiq. The same schedule again changes nothing. Raises InvalidValueError, ApiError."""
        rule = rule_of(schedule)
        prepared = {name: prepare_label(value) for name, value in schedule.labels.items()}
        prepared["schedule_id"] = prepare_label(schedule.schedule_id)
        message = TaskiqMessage(
            task_id=schedule.task_id or schedule.schedule_id,
            task_name=schedule.task_name,
            labels={name: text for name, (text, _) in prepared.items()},
            labels_types={name: kind for name, (_, kind) in prepared.items()},
            args=schedule.args,
            kwargs=schedule.kwargs,
        )
        fields = entry_of(self._broker.formatter.dumps(message))
        if "at" not in rule:
            fields[RECURS] = "yes"
        await self._broker.client.schedule(self._broker.stream, schedule.schedule_id, fields, **rule)

    async def delete_schedule(self, schedule_id: str) -> None:
        """See taskiq. One that has run, or never was, is none."""
        await self._broker.client.cancel_schedule(self._broker.stream, schedule_id)


def rule_of(schedule: ScheduledTask) -> ScheduleRule:
    """The gateway's rule for a schedule of taskiq, of which `cron` comes first, then `interval`, `time`.

    Raises InvalidValueError for an offset of cron that is no time zone.
    """
    if schedule.cron is not None:
        offset = schedule.cron_offset
        if isinstance(offset, timedelta):
            raise InvalidValueError("cron_offset is the name of a time zone, such as Europe/Berlin")
        return {"cron": schedule.cron, "tz": offset or "UTC"}
    if schedule.interval is not None:
        every = schedule.interval
        seconds = every.total_seconds() if isinstance(every, timedelta) else every
        return {"every_ms": round(seconds * 1000)}
    assert schedule.time is not None, "taskiq checks that there is one"
    return {"at": _aware(schedule.time).isoformat()}


def _aware(time: datetime) -> datetime:
    """A time without a zone is UTC, as taskiq has it."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
