"""Slots move under publishes and group reads: nothing is refused for it that would not be elsewhere."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx
import pytest

from engine import entries
from engine.cluster import ClusterEngine
from engine.cluster.keys import auxiliary_key, slot_of
from engine.commands import schedule_commands
from engine.commands.base import Command
from engine.commands.types import Copy, Cursor, Delete, IdempotencyKey, Rename, Trim, XAdd, XReadGroup, XTrim
from engine.commands.weir_commands import AddEach, Close, EnsureGroup, EnsureStream, Publish, UpdateGroup
from engine.parts.keeping import Retention
from engine.recurrence import Rule
from engine.replies import Added
from tests.app.conftest import app_on, calling
from tests.cluster.clusters import BackendCluster, move_slot, primaries
from tests.cluster.engines import opened
from tests.cluster.servers import BackendServer
from tests.engine.asking import reply_to
from tests.engine.real_redis import PROGRAMS
from tests.waiting import until_async

MOVES: Final = 20
# Between two moves, in the slot that has just come.
PUBLISHED_BETWEEN: Final = 20
# One slot, so that one publish may name both.
STREAMS: Final = ("{m}a", "{m}b")
SLOT: Final = slot_of(b"m")
BODY: Final = entries.body([("n", "1")])
LATER: Final = schedule_commands.NewSchedule("later", BODY, Rule(in_ms=60_000))


@pytest.fixture(scope="module", params=sorted(PROGRAMS))
def shared_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BackendCluster]:
    """A cluster whose slots a test may move, and moves back."""
    with primaries(tmp_path_factory.mktemp("cluster"), request.param, 2) as found:
        yield found


def ends(cluster: BackendCluster) -> list[Any]:
    """The server that has the slot, and the other one."""
    return sorted(cluster.servers, key=lambda server: server is not cluster.owner(STREAMS[0]))


# --- one script, while its slot is between two servers


@contextmanager
def moving(cluster: BackendCluster) -> Iterator[None]:
    """The slot is about to leave, and none of its keys has gone yet."""
    source, target = ends(cluster)
    target.call("CLUSTER", "SETSLOT", SLOT, "IMPORTING", source.call("CLUSTER", "MYID"))
    source.call("CLUSTER", "SETSLOT", SLOT, "MIGRATING", target.call("CLUSTER", "MYID"))
    try:
        yield
    finally:
        for server in (source, target):
            server.call("CLUSTER", "SETSLOT", SLOT, "STABLE")


async def make_all_keys(cluster: BackendCluster, engine: ClusterEngine) -> None:
    """All keys that a script may name: a server refuses those that name one of them that is missing."""
    for stream in STREAMS:
        await reply_to(engine, XAdd(stream=stream, bodies=[BODY], idempotency=key("first")))
        policy = {"max_deliveries": 3, "ack_timeout_ms": 1_000}
        await reply_to(engine, EnsureGroup(stream=stream, group="g", start=0, policy=policy))
        await reply_to(engine, EnsureStream(stream=stream, retention=Retention(max_bytes=10_000)))
        await reply_to(
            engine,
            schedule_commands.SetSchedule(
                stream=stream, schedule=schedule_commands.NewSchedule("a", BODY, LATER.rule)
            ),
        )
    parts = [XAdd(stream=stream, bodies=[BODY]) for stream in STREAMS]
    await reply_to(engine, Publish(parts=parts, idempotency=key("first")))


def key(name: str) -> IdempotencyKey:
    return IdempotencyKey(name, b"d")


@pytest.mark.parametrize(
    "command",
    [
        XAdd(stream=STREAMS[0], bodies=[BODY]),
        XAdd(stream=STREAMS[0], bodies=[BODY], idempotency=key("second"), trim=Trim(maxlen=1)),
        AddEach(stream=STREAMS[0], bodies=[BODY, BODY]),
        schedule_commands.AddScheduled(
            stream=STREAMS[0], add=XAdd(stream=STREAMS[0], bodies=[BODY]), later=[LATER], cancel="a"
        ),
        schedule_commands.CancelSchedule(stream=STREAMS[0], name="a"),
        schedule_commands.FireSchedule(stream=STREAMS[0], name="a"),
        schedule_commands.SetSchedule(stream=STREAMS[0], schedule=LATER),
        Close(stream=STREAMS[0], drops_schedules=True),
        XTrim(stream=STREAMS[0], trim=Trim(maxlen=0)),
        EnsureStream(stream=STREAMS[0]),
        EnsureGroup(stream=STREAMS[0], group="h", start=0),
        UpdateGroup(stream=STREAMS[0], group="g", policy={"ack_timeout_ms": None, "max_deliveries": 4}),
        XReadGroup(group="g", consumer="c", streams=[(STREAMS[0], Cursor.NEW)]),
        Rename(stream=STREAMS[0], target=STREAMS[1], replace=True),
        Copy(stream=STREAMS[0], target=STREAMS[1], replace=True),
        Delete(streams=[STREAMS[0]]),
    ],
    ids=lambda command: type(command).__name__,
)
async def test_a_script_that_begins_while_its_slot_moves_ends_there(
    cluster: BackendCluster, command: Command
) -> None:
    """A server refuses a command within, on a key that is not there: which one before it has removed, too."""
    async with opened(cluster) as engine:
        await make_all_keys(cluster, engine)
        with moving(cluster):
            for _ in range(3 if isinstance(command, XAdd | AddEach) else 1):
                await reply_to(engine, command)


async def test_a_policy_is_set_while_the_slot_of_its_stream_moves(cluster: BackendCluster) -> None:
    """Also where nothing else is kept beside the stream, which another program has made."""
    stream = STREAMS[0]
    cluster.call("XADD", stream, "*", "a", "1")
    async with opened(cluster) as engine:
        await reply_to(engine, EnsureGroup(stream=stream, group="g", start=0, policy={"max_deliveries": 3}))
        with moving(cluster):
            changes = {"max_deliveries": None, "ack_timeout_ms": 5}
            await reply_to(engine, UpdateGroup(stream=stream, group="g", policy=changes))
            cluster.call("XGROUP", "DESTROY", stream, "g")
            made = EnsureGroup(stream=stream, group="g", start=0, policy={"max_deliveries": 4})
            await reply_to(engine, made)
    kept = cluster.owner(stream).call("HGETALL", auxiliary_key(stream, "m"))
    assert dict(zip(kept[::2], kept[1::2], strict=True)) == {b"had_group": b"1", b"max_deliveries/g": b"4"}


# --- publishes, as long as their slot moves


def migrate(cluster: BackendCluster, *keys: str | bytes) -> None:
    """These keys go to the server that the slot is about to come to."""
    source, target = ends(cluster)
    assert source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys) == b"OK"


def publishes(*streams: str) -> list[Command]:
    """Each way to publish into them without a key."""
    parts = [XAdd(stream=stream, bodies=[BODY]) for stream in streams]
    return [*parts, *(AddEach(stream=stream, bodies=[BODY]) for stream in streams), Publish(parts=parts)]


def length(server: BackendServer, stream: str) -> int:
    """How many entries the server has of the stream, to which its slot comes or from which it goes."""
    server.call("ASKING")
    return int(server.call("XLEN", stream))


@pytest.mark.parametrize("place", ["stays", "has gone", "is new"])
async def test_publishes_go_on_while_their_slot_moves(cluster: BackendCluster, place: str) -> None:
    """For as long as it takes: answers by key and requests of the gateway need not be there."""
    source, target = ends(cluster)
    made = [] if place == "is new" else publishes(*STREAMS)
    async with opened(cluster) as engine:
        for command in made:
            await reply_to(engine, command)
    before = 3 if made else 0
    # Another gateway has no requests there.
    async with opened(cluster) as engine:
        with moving(cluster):
            if place == "has gone":
                migrate(cluster, *(key for one in STREAMS for key in (one, auxiliary_key(one, "m"))))
            began_s = asyncio.get_running_loop().time()
            for _ in range(2):
                for command in publishes(*STREAMS):
                    await reply_to(engine, command)
            # None has waited until its time was over.
            assert asyncio.get_running_loop().time() - began_s < 2
            assert length(source if place == "stays" else target, STREAMS[0]) == before + 2 * 3
        move_slot(cluster.servers, SLOT, source, target)
        await reply_to(engine, XAdd(stream=STREAMS[0], bodies=[BODY], idempotency=key("a")))
    assert target.call("XLEN", STREAMS[0]) == before + 2 * 3 + 1
    move_slot(cluster.servers, SLOT, target, source)


async def test_a_publish_under_a_key_goes_on_where_the_slot_has_its_keys(cluster: BackendCluster) -> None:
    """It is stored once. Those of a new stream are all where the slot comes to."""
    source, target = ends(cluster)
    async with opened(cluster) as engine:
        first = XAdd(stream=STREAMS[0], bodies=[BODY], idempotency=key("first"))
        await reply_to(engine, first)
    async with opened(cluster) as engine:
        with moving(cluster):
            for command in (first, XAdd(stream=STREAMS[1], bodies=[BODY], idempotency=key("first"))):
                one, again = [await reply_to(engine, command) for _ in range(2)]
                assert isinstance(one, Added)
                assert isinstance(again, Added)
                assert (again.ids, again.duplicate) == (one.ids, True)
            assert (length(source, STREAMS[0]), length(target, STREAMS[1])) == (1, 1)


async def test_a_publish_waits_while_its_stream_and_what_is_beside_it_are_apart(
    cluster: BackendCluster,
) -> None:
    """It would forget what is known of the stream; when both have gone, it is stored there."""
    _, target = ends(cluster)
    command = XAdd(stream=STREAMS[0], bodies=[BODY])
    for first, second in (
        (STREAMS[0], auxiliary_key(STREAMS[0], "m")),
        (auxiliary_key(STREAMS[1], "m"), STREAMS[1]),
    ):
        async with opened(cluster) as engine:
            stream = STREAMS[first == auxiliary_key(STREAMS[1], "m")]
            command = XAdd(stream=stream, bodies=[BODY])
            await reply_to(engine, command)
        async with opened(cluster) as engine:
            with moving(cluster):
                migrate(cluster, first)
                waiting = asyncio.ensure_future(reply_to(engine, command))
                await asyncio.sleep(0.3)
                assert not waiting.done()
                migrate(cluster, second)
                await waiting
                assert length(target, stream) == 2


# --- moves under load


class Load:
    """Publishers and a worker over HTTP. What was published is known by its value."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        # By stream and value.
        self.acknowledged: Counter[tuple[str, str]] = Counter()
        self.unknown: set[tuple[str, str]] = set()
        self.delivered: Counter[tuple[str, str]] = Counter()
        self.refusals: list[Any] = []
        self._http = http
        self._is_over = self._is_published = False

    async def run(self, moves: asyncio.Task[None]) -> None:
        for stream in STREAMS:
            made = await self._http.put(f"/v1/streams/{stream}/groups/g", json={"start": "0"})
            assert made.status_code == 201
        work = [self._work(stream) for stream in STREAMS]
        workers = [asyncio.create_task(one) for one in work]
        ways = (self._add, self._add_under_key, self._add_to_both)
        publishers = [asyncio.create_task(self._publish(way.__name__, way)) for way in ways]
        try:
            await moves
        finally:
            self._is_over = True
        await asyncio.gather(*publishers)
        self._is_published = True
        async with asyncio.timeout(20):
            await asyncio.gather(*workers)

    async def wait_for_more(self) -> None:
        enough = self.acknowledged.total() + PUBLISHED_BETWEEN
        await until_async(lambda: self.acknowledged.total() >= enough)

    async def _publish(self, name: str, way: Any) -> None:
        number = 0
        while not self._is_over:
            streams, answer = await way(f"{name}{number}")
            placed = [(stream, f"{name}{number}") for stream in streams]
            if answer.is_success:
                self.acknowledged.update(placed)
            else:
                self.refusals.append(answer.json())
                self.unknown.update(placed)
            number += 1

    async def _add(self, value: str) -> tuple[tuple[str, ...], httpx.Response]:
        entry = {"fields": {"n": value}}
        return STREAMS[:1], await self._http.post(f"/v1/streams/{STREAMS[0]}/entries", json=entry)

    async def _add_under_key(self, value: str) -> tuple[tuple[str, ...], httpx.Response]:
        entry, once = {"fields": {"n": value}}, {"idempotency-key": value}
        path = f"/v1/streams/{STREAMS[0]}/entries"
        return STREAMS[:1], await self._http.post(path, json=entry, headers=once)

    async def _add_to_both(self, value: str) -> tuple[tuple[str, ...], httpx.Response]:
        parts = {stream: [{"fields": {"n": value}}] for stream in STREAMS}
        once = {"idempotency-key": value}
        return STREAMS, await self._http.post("/v1/publish", json={"streams": parts}, headers=once)

    async def _work(self, stream: str) -> None:
        path = f"/v1/streams/{stream}/groups/g"
        while not (self._is_published and self._has_all(stream)):
            read = await self._http.post(f"{path}/consumers/c/read", json={"count": 50, "wait": 100})
            if not read.is_success:
                self.refusals.append(read.json())
                assert read.status_code == 503, read.text
                continue
            found = read.json()["entries"]
            self.delivered.update((stream, one["fields"]["n"]) for one in found)
            if found:
                given = [one["id"] for one in found]
                acked = await self._http.post(f"{path}/ack", json={"ids": given})
                self.refusals += [] if acked.is_success else [acked.json()]

    def _has_all(self, stream: str) -> bool:
        return all(self.delivered[one] for one in self.acknowledged if one[0] == stream)


async def test_slots_move_under_publishes_and_group_reads(cluster: BackendCluster) -> None:
    """Each publish is answered by 2xx, or by what may be tried again; none is lost, none stored twice."""
    async with opened(cluster) as engine, calling(app_on(engine)) as http:
        load = Load(http)

        async def move() -> None:
            places = ends(cluster)
            for _ in range(MOVES):
                await load.wait_for_more()
                await asyncio.to_thread(move_slot, cluster.servers, SLOT, *places)
                places.reverse()

        await load.run(asyncio.create_task(move()))
        stored: Counter[tuple[str, str]] = Counter()
        for stream in STREAMS:
            text = (await http.get(f"/v1/streams/{stream}/export")).text
            stored.update((stream, json.loads(line)["fields"]["n"]) for line in text.splitlines())
    assert [one for one in load.refusals if one["code"] != "backend_unavailable"] == []
    assert set(load.acknowledged) <= set(stored) <= set(load.acknowledged) | load.unknown
    assert max(stored.values()) == max(load.delivered.values()) == 1
    # Nearly all wait for their slot, and are served.
    assert len(load.unknown) <= MOVES
