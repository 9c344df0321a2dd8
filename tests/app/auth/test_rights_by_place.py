"""Each command asks for what it does in each place where it names a stream, at every way in for commands."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from app.auth import ANONYMOUS, Grant, Principal
from app.redis import parse
from app.redis.rights import needed
from engine import Engine, entries
from engine.commands.types import Delete, Exists, XAdd
from engine.commands.weir_commands import EnsureGroup
from tests.app.conftest import app_on, calling
from tests.app.every_command import WORDS
from tests.app.policies import FixedPolicy, principal_with
from tests.app.ten_doors import DOORS, Bench, Door, InWords, WebSocket, opened
from tests.cluster.servers import BackendServer
from tests.engine.asking import reply_to

# What the servers of the gate do not have, and what it does with its stream.
OTHERS: Final[Mapping[str, set[str]]] = {
    # Redis from 8.2 on says so.
    "xdelex": {"delete"},
    "xackdel": {"update", "delete"},
    "xnack": {"update"},
    "xcfgset": {"update"},
    "xidmprecord": {"insert"},
    # Weir's own.
    "weir.close": {"update"},
    "weir.info": {"access"},
    "weir.schedule|set": {"insert"},
    "weir.schedule|get": {"access"},
    "weir.schedule|list": {"access"},
    "weir.schedule|del": {"delete"},
    "weir.schedule|pause": {"update"},
    "weir.schedule|resume": {"update"},
    "weir.nack": {"update"},
    "weir.extend": {"update"},
    "weir.pause": {"update"},
    "weir.why": {"access"},
    "weir.resume": {"update"},
    "weir.group|set": {"update"},
}
# And with another one.
TARGETS: Final = {"weir.group|set": {"b": {"insert"}}}
CHANGES: Final = {"write", "consume", "manage"}
# For what is done in a place, one of these actions is asked for there.
RULE: Final[Mapping[str, set[str]]] = {
    "access": {"read", "consume"},
    "insert": CHANGES,
    "update": CHANGES,
    "delete": {"write", "manage"},
}
EXCEPTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("xautoclaim", "delete"): "it takes deleted entries out of the list of pending ones: no entry goes",
    ("weir.close", "update"): "an end is an action of its own",
}
# A stream that takes another's place brings groups and retention.
SOURCES: Final = {"rename": {"read", "manage"}, "renamenx": {"read", "manage"}, "copy": {"read"}}
REPLACED: Final = {"write", "manage"}


def places(name: str) -> Mapping[str, set[str]]:
    """The actions that the command asks for, of each stream."""
    found = defaultdict[str, set[str]](set)
    for action, resource in needed(parse([word.encode() for word in WORDS[name].split()]), ANONYMOUS):
        if resource.stream is not None:
            found[resource.stream].add(action.value)
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackendServer]:
    with BackendServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def flags(server: BackendServer) -> Mapping[str, Mapping[str, set[str]]]:
    """What a real server says that each command does with each stream."""
    asked = [("COMMAND", "GETKEYSANDFLAGS", *words.split()) for words in WORDS.values()]
    found: dict[str, Mapping[str, set[str]]] = {}
    for name, reply in zip(WORDS, server.each([*asked]), strict=True):
        if isinstance(reply, Exception):
            assert name in OTHERS, f"OTHERS says what {name} does with its stream: {reply}"
            found[name] = {"a": OTHERS[name], **TARGETS.get(name, {})}
        else:
            found[name] = {key.decode(): {one.decode() for one in said} for key, said in reply}
    return found


@pytest.mark.parametrize("name", WORDS)
def test_what_is_asked_for_in_each_place_is_what_is_done_there(
    name: str, flags: Mapping[str, Mapping[str, set[str]]]
) -> None:
    """As a real server says it, exceptions with a reason, which must be one."""
    asked = places(name)
    assert asked.keys() == flags[name].keys()
    for stream, done in flags[name].items():
        assert asked[stream]
        for one in done & RULE.keys():
            assert bool(asked[stream] & RULE[one]) is ((name, one) not in EXCEPTIONS), (stream, one)


@pytest.mark.parametrize("name", SOURCES)
def test_a_stream_that_takes_anothers_place_is_written_and_managed(name: str) -> None:
    assert places(name) == {"a": SOURCES[name], "b": REPLACED}


# ---- at every way in


def streams_of(prefix: str, actions: set[str]) -> list[tuple[str, set[str], bool]]:
    """A stream on which all of these are allowed, and one each on which all others but one of them are."""
    every = {"read", "write", "consume", "manage"}
    some = [(f"{prefix}.all-but-{one}", every - {one}, False) for one in sorted(actions)]
    return [(f"{prefix}.enough", actions, True), *some]


CASES: Final = [
    (name, source, target, may_take and may_put)
    for name, taken in SOURCES.items()
    for source, _, may_take in streams_of(f"{name}.from", taken)
    for target, _, may_put in streams_of(f"{name}.to", REPLACED)
]
GRANTS: Final = [
    f"{','.join(sorted(actions))}:{stream}"
    for name, taken in SOURCES.items()
    for place, asked in (("from", taken), ("to", REPLACED))
    for stream, actions, _ in streams_of(f"{name}.{place}", asked)
]
WAYS: Final = [door for door in DOORS if isinstance(door, InWords | WebSocket)]


SECRET: Final = entries.body([("text", "secret")])


def is_refused(answer: str) -> bool:
    return "NOPERM" in answer or "forbidden" in answer


async def run(bench: Bench, door: Door, *commands: Sequence[str]) -> str:
    assert isinstance(door, InWords | WebSocket), "it takes commands"
    return await door.send(bench, *commands)


@pytest.mark.parametrize("is_front", [False, True], ids=["engine", "front"])
@pytest.mark.parametrize("door", WAYS, ids=lambda door: door.name)
async def test_source_and_target_are_asked_for_apart(tmp_path: Path, door: Door, *, is_front: bool) -> None:
    """Each right that is missing in its place refuses it, and nothing is changed, whatever is allowed on the
    other one.
    """
    async with opened(tmp_path, principal=principal_with(*GRANTS), is_front=is_front) as bench:
        for name, source, target, may in CASES:
            await reply_to(bench.engine, XAdd(stream=source, bodies=[SECRET]))
            answer = await run(bench, door, (name.upper(), source, target))
            assert is_refused(answer) is not may, (name, source, target, answer)
            assert await reply_to(bench.engine, Exists(streams=[target])) == may, (name, source, target)
            await reply_to(bench.engine, Delete(streams=[source, target]))


@pytest.mark.parametrize("door", WAYS, ids=lambda door: door.name)
async def test_a_command_beside_it_that_may_run_allows_nothing(tmp_path: Path, door: Door) -> None:
    """What was asked for once in a pipeline is not asked for again: of the same streams, this is more."""
    async with opened(tmp_path, principal=principal_with("read:*")) as bench:
        await reply_to(bench.engine, XAdd(stream="a", bodies=[SECRET]))
        answer = await run(bench, door, ("EXISTS", "a", "b"), ("COPY", "a", "b"))
        assert is_refused(answer), answer
        assert await reply_to(bench.engine, Exists(streams=["b"])) == 0


# ---- entries that REST carries from one stream to another


GROUP: Final = "/v1/streams/tasks/groups/g"
SET: Final = ("PATCH", GROUP, {"dead_letter": {"stream": "letters"}})
ENSURE: Final = ("PUT", GROUP, {"dead_letter": {"stream": "letters"}})
COMMAND: Final = ("POST", "/v1/commands", ["WEIR.GROUP", "SET", "tasks", "g", "DEADLETTER", "letters"])
REDRIVE: Final = ("POST", f"{GROUP}/dead-letters/redrive", {"dry_run": False})
LOOK: Final = ("POST", f"{GROUP}/dead-letters/redrive", {"dry_run": True})
# Of each call, which grants are enough; without any part of one it is refused.
CARRIED: Final[Mapping[str, Sequence[Any]]] = {
    "set": (SET, ENSURE, COMMAND, ("manage:tasks", "read:tasks", "write:letters")),
    "set-by-a-worker": (SET, ENSURE, COMMAND, ("manage:tasks", "consume:tasks", "write:letters")),
    "redrive": (LOOK, REDRIVE, ("write:tasks", "read:letters", "write:letters")),
    "redrive-by-a-worker": (LOOK, REDRIVE, ("write:tasks", "consume:letters", "write:letters")),
}


@pytest.mark.parametrize("name", CARRIED)
async def test_who_carries_entries_elsewhere_may_read_them(engine: Engine, name: str) -> None:
    """Else who manages a stream, or writes into it, could read it by another one of its own."""
    *calls, enough = CARRIED[name]
    letters = {"dead_letter_stream": "letters", "max_deliveries": 1}
    await reply_to(engine, EnsureGroup(stream="tasks", group="g", start=0, mkstream=True, policy=letters))
    partly = [tuple(one for one in enough if one != left_out) for left_out in enough]
    for grants, may in ((enough, True), *((some, False) for some in partly)):
        policy = FixedPolicy(principal_with(*grants))
        async with calling(app_on(engine, policy=policy)) as http:
            for method, path, body in calls:
                answer = await http.request(method, path, json=body)
                assert answer.status_code == (200 if may else 403), (grants, path, answer.text)


@pytest.mark.parametrize(
    ("grant", "may"), [({"groups": "g"}, True), ({"groups": "h"}, False), ({"consumer": "a"}, False)]
)
async def test_a_worker_may_read_what_its_group_does(
    engine: Engine, grant: dict[str, str], *, may: bool
) -> None:
    """One that reads for another group, or what one consumer has alone, may not."""
    await reply_to(engine, EnsureGroup(stream="tasks", group="g", start=0, mkstream=True))
    narrow = Grant.model_validate({"actions": ["consume"], "streams": "tasks", **grant})
    grants = [Grant.parse("manage:tasks"), Grant.parse("write:letters"), narrow]
    policy = FixedPolicy(Principal("tester", grants))
    async with calling(app_on(engine, policy=policy)) as http:
        for method, path, body in (SET, COMMAND):
            answer = await http.request(method, path, json=body)
            assert answer.status_code == (200 if may else 403), answer.text
