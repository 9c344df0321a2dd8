"""Settling names its holder: every word, by every way in, for an entry in every state, over every engine.

Knows: what each word does with an entry of its consumer, of another one, and of none.
Must never know: how the ways in and the engines do it.
"""

import asyncio
import json
from ast import literal_eval
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from app.api.root import FEATURES
from app.auth.principal import NAME_CONSUMER
from app.doors.websocket.frames import CLIENT_FRAMES
from app.redis.parsers.table import COMMANDS
from engine import EngineProtocol, SystemClock, entries, ids
from engine.cluster import BackendDurability, ClusterEngine
from engine.commands import types
from engine.commands.group_reading import DELIVERY_COUNT_MAX
from engine.commands.weir_commands import DeadLetterEntries, EnsureGroup
from engine.replies import NOT_HELD, Deletions, PendingList
from tests.app.policies import principal_with
from tests.app.ten_doors import (
    DOORS,
    Bench,
    Commands,
    Door,
    Durable,
    Http,
    Redis,
    Sse,
    WebSocket,
    embedded,
    opened,
)
from tests.app.test_openapi import DOCUMENT, SCHEMAS
from tests.cluster.clusters import BACKENDS, opened_backend
from tests.cluster.servers import Backend
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock

LATER_MS: Final = 3_600_000
GROUP: Final = "/v1/streams/orders/groups/g"
TENANT: Final = "acme."


# ---- engines


@asynccontextmanager
async def _over(backend: Backend, _: HandClock) -> AsyncIterator[EngineProtocol]:
    backend.call("FLUSHALL")
    engine = ClusterEngine(backend.topology(5.0, BackendDurability()), SystemClock())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Backend]]:
    """Servers, each begun when it is first asked for."""
    running: dict[str, Any] = {}

    def begun(kind: str) -> Backend:
        if kind not in running:
            manager = opened_backend(tmp_path_factory.mktemp(kind), kind)
            running[kind] = manager, manager.__enter__()
        backend: Backend = running[kind][1]
        return backend

    yield begun
    for manager, _ in running.values():
        manager.__exit__(None, None, None)


ENGINES: Final = ("embedded", "front", "tenant", *BACKENDS)


@asynccontextmanager
async def world(kind: str, directory: Path, backends: Callable[[str], Backend]) -> AsyncIterator["World"]:
    """A gateway with all ways in, over such an engine."""
    opening = partial(_over, backends(kind)) if kind in BACKENDS else embedded
    grant = {"actions": ["consume"], "streams": "orders*", "prefix": TENANT}
    principal = principal_with(json.dumps(grant)) if kind == "tenant" else None
    is_front = kind == "front"
    async with opened(directory, principal=principal, opening=opening, is_front=is_front) as bench:
        yield World(bench, TENANT if kind == "tenant" else "")


# ---- states


class World:
    """A stream with a group, and an entry of it in each state. `prefix` is the caller's."""

    def __init__(self, bench: Bench, prefix: str) -> None:
        self.bench = bench
        self.stream = f"{prefix}orders"
        self.letters = f"{prefix}orders-dead"

    async def lay_out(self) -> None:
        """Make all of it anew."""
        await reply_to(self.bench.engine, types.Delete(streams=[self.stream, self.letters]))
        engine, where = self.bench.engine, partial(dict[str, Any], stream=self.stream, group="g")
        every = [_id(state) for state in STATES]
        await reply_to(
            engine,
            types.XAdd(stream=self.stream, bodies=[entries.body([("n", "1")])] * len(every), ids=every),
        )
        await reply_to(engine, EnsureGroup(**where(), start=0, policy={"dead_letter_stream": self.letters}))
        reading = types.XReadGroup(
            group="g", consumer="b", streams=[(self.stream, types.Cursor.NEW)], count=1
        )
        await reply_to(engine, reading)
        held = types.XReadGroup(
            group="g", consumer="c", streams=[(self.stream, types.Cursor.NEW)], count=len(every) - 2
        )
        await reply_to(engine, held)
        claim = types.Claim(ids=[_id("taken")], min_idle_ms=0)
        back = partial(types.Nack, mode=types.NackMode.FAIL)
        for command in (
            types.XClaim(**where(), consumer="b", claim=claim),
            types.XNack(**where(), nack=back(ids=[_id("released")])),
            types.XNack(**where(), nack=back(ids=[_id("deferred")], delay_ms=LATER_MS)),
            types.XAck(**where(), ids=[_id("acknowledged")]),
            DeadLetterEntries(**where(), ids=[_id("a dead letter")], reason="before"),
        ):
            await reply_to(engine, command)

    async def pending(self) -> dict[str, "Pending"]:
        """What is pending, by its state at the beginning."""
        whole = types.XPendingRange(stream=self.stream, group="g", start=0, end=ids.ID_MAX, count=100)
        reply = await reply_to(self.bench.engine, whole)
        assert isinstance(reply, PendingList)
        return {
            STATES[ids.ms_of(row.id) - 1]: Pending(row.consumer, row.delivery_count, row.until_ms is not None)
            for row in reply.entries
        }


class Pending(NamedTuple):
    """A pending entry."""

    consumer: str | None
    deliveries: int
    is_deferred: bool = False


# In order of IDs: `b` reads the first, `c` what follows, no one the last.
STATES: Final = (
    *("another's", "mine", "taken", "released", "deferred", "acknowledged", "a dead letter", "unread"),
)
LAID_OUT: Final = {
    "another's": Pending("b", 1),
    "mine": Pending("c", 1),
    "taken": Pending("b", 2),
    "released": Pending(None, 1),
    "deferred": Pending(None, 1, is_deferred=True),
}


def _id(state: str) -> int:
    return ids.make(STATES.index(state) + 1, 0)


def _text(state: str) -> str:
    return ids.format(_id(state))


EVERY: Final = [_text(state) for state in STATES]
IN_WORDS: Final = ("IDS", str(len(EVERY)), *EVERY)


# ---- words


class Word(NamedTuple):
    """What is said of entries, by each of the ways in that has it; to which of them it is done, and what they
    are then, None for no longer pending.
    """

    rest: tuple[str, Mapping[str, object]]
    frame: Mapping[str, object] | None
    command: Sequence[str] | None
    done: Sequence[str]
    then: Callable[[Pending], Pending | None]

    @property
    def not_held(self) -> list[str]:
        """What is pending, and not the consumer's."""
        return [state for state in LAID_OUT if state not in self.done]


def _nack(mode: str, deliveries: int, delay_ms: int = 0) -> Word:
    """Giving back, in each way that there is."""
    delay = {"delay_ms": delay_ms} if delay_ms else {}
    words = ["WEIR.NACK", "orders", "g", mode.upper(), *(["DELAY", str(delay_ms)] if delay_ms else [])]
    return Word(
        ("nack", {"mode": mode, **delay, "consumer": "c"}),
        {"op": "nack", "mode": mode, **delay},
        [*words, "CONSUMER", "c", *IN_WORDS],
        ["mine"],
        lambda _: Pending(None, deliveries, is_deferred=bool(delay_ms)),
    )


WORDS: Final = {
    "fail": _nack("fail", 1),
    "silent": _nack("silent", 0),
    "fatal": _nack("fatal", DELIVERY_COUNT_MAX),
    "later": _nack("fail", 1, LATER_MS),
    "ack": Word(
        ("ack", {"consumer": "c"}),
        {"op": "ack"},
        None,
        ["mine", "released", "deferred"],
        lambda _: None,
    ),
    "dead-letter": Word(
        ("dead-letter", {"reason": "now", "consumer": "c"}), None, None, ["mine"], lambda _: None
    ),
    "extend": Word(
        ("extend", {"consumer": "c"}),
        None,
        ["WEIR.EXTEND", "orders", "g", "c", *EVERY],
        ["mine", "released"],
        lambda was: Pending("c", was.deliveries),
    ),
}
DONE: Final = {"ack": "acknowledged", "nack": "released", "extend": "extended"}


class Said(NamedTuple):
    """What an answer says: with which it was done, or with how many; which the consumer does not hold, None
    where the way in does not tell.
    """

    done: list[str] | int
    not_held: list[str] | None = None


async def _by_rest(door: Http, bench: Bench, word: Word) -> Said:
    path, members = word.rest
    answer = await door.ask(bench, "POST", f"{GROUP}/{path}", {"ids": EVERY, **members})
    status, _, text = answer.partition(" ")
    found = json.loads(text)
    assert status == "200", answer
    if path == "dead-letter":
        return Said(found["ids"], found["not_held"])
    results, done = found["results"], DONE[path]
    assert list(results) == EVERY
    assert set(results.values()) <= {done, "not_held", "absent"}
    by_word = {
        name: [one for one, result in results.items() if result == name] for name in (done, "not_held")
    }
    assert found[done] == len(by_word[done])
    return Said(*by_word.values())


async def _by_frame(door: WebSocket, bench: Bench, word: Word) -> Said:
    """As the consumer `c`, which is given nothing."""
    place = {"sub": "s", "stream": "orders", "group": "g", "consumer": "c", "credit": 0}
    async with door.talking(bench) as connection:
        found: dict[str, Any] = {}
        for frame in ({"op": "consume", **place}, {**(word.frame or {}), "sub": "s", "ids": EVERY}):
            await connection.send(json.dumps({"ref": "r", **frame}))
            while (found := json.loads(await connection.recv()))["op"] not in ("ok", "error"):
                pass
    assert found["op"] == "ok", found
    return Said(found["acknowledged" if "acknowledged" in found else "released"], found["not_held"])


async def _in_words(door: Commands | Redis, bench: Bench, word: Word) -> Said:
    assert word.command is not None
    answer = await door.send(bench, word.command)
    if isinstance(door, Commands):
        status, _, text = answer.partition(" ")
        assert status == "200", answer
        found = json.loads(text)
        return Said((found[0] if isinstance(found, list) else found)["result"])
    found = literal_eval(answer.splitlines()[-1])
    reply = found[0] if door.name == "RESP MULTI" else found
    return Said(reply if isinstance(reply, int) else [one.decode() for one in reply])


Ask = Callable[[Any, Bench, Word], Any]


def ways(door: Door) -> dict[str, Ask]:
    """How a way in says which words."""
    if isinstance(door, Commands | Redis):
        return {name: _in_words for name, word in WORDS.items() if word.command is not None}
    if isinstance(door, WebSocket):
        return {name: _by_frame for name, word in WORDS.items() if word.frame is not None}
    return dict.fromkeys(WORDS, _by_rest) if type(door) is Http else {}


# Nothing is settled there.
SILENT: Final = {Sse: "a consumer acknowledges by REST", Durable: "it knows no groups"}
TRIED: Final = [door for door in DOORS if type(door) not in SILENT]


EVERYWHERE: Final = [pytest.param(door, id=door.name.replace(" ", "-")) for door in TRIED]


@pytest.mark.parametrize("door", EVERYWHERE)
@pytest.mark.parametrize("kind", ENGINES)
async def test_it_is_done_to_what_the_consumer_holds_alone(
    kind: str, door: Door, tmp_path: Path, backends: Callable[[str], Backend]
) -> None:
    """What another one has, or has taken, and what was given back, stays as it is, and is said to be
    `not_held`; what is not pending is `absent`.
    """
    async with asyncio.timeout(60), world(kind, tmp_path, backends) as found:
        for name, ask in ways(door).items():
            await found.lay_out()
            word = WORDS[name]
            said = await ask(door, found.bench, word)
            texts = [_text(state) for state in word.done]
            assert said.done in (texts, len(texts)), name
            assert said.not_held in (None, [_text(state) for state in word.not_held]), name
            then = {state: word.then(was) if state in word.done else was for state, was in LAID_OUT.items()}
            assert await found.pending() == {state: one for state, one in then.items() if one}, name


@pytest.mark.parametrize("kind", ENGINES)
async def test_what_is_deleted_with_its_acknowledgement_is_no_other_ones(
    kind: str, tmp_path: Path, backends: Callable[[str], Backend]
) -> None:
    """It is said to be held by another one, and its entry stays."""
    done = WORDS["ack"].done
    async with asyncio.timeout(60), world(kind, tmp_path, backends) as found:
        for refs in types.Refs:
            await found.lay_out()
            wanted = [_id(state) for state in (*STATES, *STATES)]
            command = types.XAckDel(stream=found.stream, group="g", ids=wanted, refs=refs, consumer="c")
            reply = await reply_to(found.bench.engine, command)
            assert isinstance(reply, Deletions)
            first = [1 if state in done else NOT_HELD if state in LAID_OUT else -1 for state in STATES]
            assert reply.results == [*first, *[-1 if one == 1 else one for one in first]]
            assert (await found.pending()).keys() == LAID_OUT.keys() - {*done}
            assert await reply_to(found.bench.engine, types.XLen(stream=found.stream)) == len(STATES) - len(
                done
            )


# ---- without a consumer


@pytest.mark.parametrize("kind", ENGINES)
async def test_without_a_consumer_all_that_is_pending_is_settled_by_its_id(
    kind: str, tmp_path: Path, backends: Callable[[str], Backend]
) -> None:
    """As Redis does, and as older clients ask for it."""
    pending, by_id = [_text(state) for state in LAID_OUT], {"ids": EVERY}
    async with asyncio.timeout(60), world(kind, tmp_path, backends) as found:
        rest, redis = DOORS[0], next(door for door in DOORS if door.name == "RESP")
        assert isinstance(rest, Http)
        assert isinstance(redis, Redis)
        await found.lay_out()
        answer = await rest.ask(found.bench, "POST", f"{GROUP}/nack", {**by_id, "mode": "fail"})
        assert [one for one, what in _body(answer)["results"].items() if what == "released"] == pending
        assert {one.consumer for one in (await found.pending()).values()} == {None}
        await found.lay_out()
        answer = await rest.ask(found.bench, "POST", f"{GROUP}/dead-letter", by_id)
        assert (_body(answer).keys(), _body(answer)["ids"]) == ({"stream", "ids"}, pending)
        assert await found.pending() == {}
        for command in ("XNACK", "WEIR.NACK"):
            await found.lay_out()
            words = (command, "orders", "g", "FAIL", *IN_WORDS)
            assert await redis.send(found.bench, words) == str(len(pending))
            assert {one.consumer for one in (await found.pending()).values()} == {None}
        assert "Unrecognized XNACK option 'CONSUMER'" in await redis.send(
            found.bench, ("XNACK", "orders", "g", "FAIL", "CONSUMER", "c", *IN_WORDS)
        )


def _body(answer: str) -> Any:
    status, _, text = answer.partition(" ")
    assert status == "200", answer
    return json.loads(text)


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("name", ["weir:released", "weir:deferred"])
async def test_what_was_given_back_over_a_backend_has_no_consumer(
    kind: str, name: str, tmp_path: Path, backends: Callable[[str], Backend]
) -> None:
    """The server has it under such a name, which no one may use to get at it."""
    rest, nothing = DOORS[0], Said([], [_text(state) for state in LAID_OUT])
    assert isinstance(rest, Http)
    async with asyncio.timeout(60), world(kind, tmp_path, backends) as found:
        await found.lay_out()
        for word in WORDS.values():
            path, members = word.rest
            if path not in ("ack", "extend"):
                as_that = word._replace(rest=(path, {**members, "consumer": name}))
                assert await _by_rest(rest, found.bench, as_that) == nothing
        assert await found.pending() == LAID_OUT


async def test_force_takes_what_none_holds(tmp_path: Path) -> None:
    """So it does not go with a consumer."""
    async with opened(tmp_path) as bench:
        found = World(bench, "")
        await found.lay_out()
        for door in DOORS:
            if type(door) is Http:
                body = {"ids": EVERY, "mode": "fail", "force": True, "consumer": "c"}
                answer = await door.ask(bench, "POST", f"{GROUP}/nack", body)
                assert answer.startswith("422 ")
                assert json.loads(answer[4:])["errors"][0]["pointer"] == "/force"
            elif isinstance(door, Commands | Redis):
                words = ("WEIR.NACK", "orders", "g", "FAIL", "CONSUMER", "c", *IN_WORDS, "FORCE")
                assert "FORCE does not go with CONSUMER" in await door.send(bench, words)
        assert await found.pending() == LAID_OUT


# ---- grants for one consumer


def _as(word: Word, consumer: str | None) -> Word:
    """The same, of another consumer, or of any."""
    path, members = word.rest
    others = {name: value for name, value in members.items() if name != "consumer"}
    command = list(word.command or ())
    if "CONSUMER" in command:
        place = command.index("CONSUMER")
        command[place : place + 2] = [] if consumer is None else ["CONSUMER", consumer]
    elif command:
        command[3] = consumer or ""
    named = {} if consumer is None else {"consumer": consumer}
    return word._replace(rest=(path, {**others, **named}), command=command or None)


@pytest.mark.parametrize("door", EVERYWHERE)
async def test_a_grant_for_one_consumer_settles_what_that_one_holds(door: Door, tmp_path: Path) -> None:
    """It has to name it, and no other."""
    principal = principal_with(json.dumps({"actions": ["consume"], "streams": "orders*", "consumer": "c"}))
    async with asyncio.timeout(60), opened(tmp_path, principal=principal) as bench:
        found = World(bench, "")
        for name, ask in ways(door).items():
            word = WORDS[name]
            await found.lay_out()
            for consumer in (
                () if isinstance(door, WebSocket) else ("b", *([] if name == "extend" else [None]))
            ):
                answer = await _answer(door, bench, _as(word, consumer))
                assert "403 " in answer or "NOPERM" in answer, (name, consumer, answer)
                assert (NAME_CONSUMER in answer) is (consumer is None), answer
                assert await found.pending() == LAID_OUT, (name, consumer)
            assert (await ask(door, bench, word)).done in (
                len(word.done),
                [_text(state) for state in word.done],
            )
        if isinstance(door, Commands | Redis):
            refused = await door.send(bench, ("XNACK", "orders", "g", "FAIL", *IN_WORDS))
            assert NAME_CONSUMER in refused


async def _answer(door: Door, bench: Bench, word: Word) -> str:
    if isinstance(door, Commands | Redis):
        assert word.command is not None
        return await door.send(bench, word.command)
    assert isinstance(door, Http)
    path, members = word.rest
    return await door.ask(bench, "POST", f"{GROUP}/{path}", {"ids": EVERY, **members})


# ---- that these are all


# What takes IDs in a group and names no consumer, and why.
UNNAMED: Final = {
    "redriveDeadLetters": "they are entries of the dead-letter stream",
}
UNNAMED_COMMANDS: Final = {
    "xack": "what is done is done, whoever holds it",
    "xackdel": "what is done is done, whoever holds it",
    "xnack": "it is as Redis has it",
}
OF_A_CONSUMER: Final = {"xclaim", "xautoclaim", "weir.nack", "weir.extend"}


def test_every_request_on_ids_of_a_group_names_a_consumer() -> None:
    """And where it may be left out, `features` says that the gateway knows it."""
    bodies = {
        operation["operationId"]: SCHEMAS[_schema_of(operation)]
        for path, methods in DOCUMENT["paths"].items()
        for operation in methods.values()
        if path.startswith("/v1/streams/{stream}/groups/{group}/") and "requestBody" in operation
    }
    settling = {name: body for name, body in bodies.items() if "ids" in body["properties"]}
    named = {name: body for name, body in settling.items() if "consumer" in body["properties"]}
    assert settling.keys() - named.keys() == UNNAMED.keys()
    tried = {word.rest[0] for word in WORDS.values()}
    paths = {
        "ackEntries": "ack",
        "nackEntries": "nack",
        "deadLetterEntries": "dead-letter",
        "extendEntries": "extend",
    }
    # A claim takes entries from others.
    assert named.keys() - {"claimEntries"} == paths.keys()
    assert tried == set(paths.values())
    may_be_left_out = [paths[name] for name, body in named.items() if "consumer" not in body["required"]]
    assert sorted(FEATURES) == sorted(f"{name.replace('-', '_')}_consumer" for name in may_be_left_out)


def _schema_of(operation: Mapping[str, Any]) -> str:
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    name: str = schema.get("$ref", "").rpartition("/")[2]
    return name


def test_every_frame_and_command_on_ids_of_a_group_is_tried() -> None:
    """A frame is of the consumer of its subscription."""
    frames = {kind.__name__ for kind in CLIENT_FRAMES if "ids" in kind.__struct_fields__}
    assert frames == {"AckFrame", "NackFrame"}, "a frame that takes IDs belongs to `WORDS`"
    in_groups = {
        name
        for name, row in COMMANDS.items()
        if "consume" in row.actions and name not in ("xreadgroup", "xgroup|createconsumer")
    }
    assert in_groups == UNNAMED_COMMANDS.keys() | OF_A_CONSUMER
    tried = {word.command[0].lower() for word in WORDS.values() if word.command}
    assert tried == {name for name in OF_A_CONSUMER if name.startswith("weir.")}


def test_every_way_in_is_tried_or_settles_nothing() -> None:
    assert {type(door) for door in DOORS} == {type(door) for door in TRIED} | SILENT.keys()
    assert all(ways(door) for door in TRIED)
    assert {name for door in TRIED for name in ways(door)} == WORDS.keys()
