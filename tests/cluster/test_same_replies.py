"""Commands that change how a stream is kept are answered over a backend as by an own log, in any state of it.

Each runs twice on a stream in each state, once of them in a transaction, and then both engines say what has
become of the stream. Other commands are compared in `test_same_commands` and `test_same_refusals`.
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import pytest

from engine import Engine, EngineError, EngineProtocol, SystemClock, entries
from engine.commands import schedule_commands, types, weir_commands
from engine.commands.base import Command
from engine.commands.durable_commands import AppendDurable, CreateDurable, DescribeDurable, ForkPoint
from engine.parts.keeping import Retention
from engine.recurrence import Rule
from tests.cluster.engines import opened
from tests.cluster.servers import BackendServer
from tests.engine.asking import reply_to, turn_of

S: Final = "s"
BODY: Final = entries.body([("n", "1")])
DATA: Final = entries.data_body(b"1")
ID: Final = 5 << 64
JSON: Final = "application/json"


def later(name: str, body: bytes = BODY, **rule: Any) -> schedule_commands.NewSchedule:
    return schedule_commands.NewSchedule(name, body, Rule(**(rule or {"in_ms": 60_000})))


def setting(name: str, body: bytes = BODY, **rule: Any) -> schedule_commands.SetSchedule:
    return schedule_commands.SetSchedule(stream=S, schedule=later(name, body, **rule))


def adding(*ids: int, **given: Any) -> types.XAdd:
    return types.XAdd(stream=S, bodies=[BODY] * (len(ids) or 1), ids=ids, **given)


def keyed(digest: bytes) -> types.XAdd:
    return adding(9 * ID, idempotency=types.IdempotencyKey("k", digest))


STORED: Final = (adding(ID, ID + 1),)
GROUPED: Final = (
    *STORED,
    weir_commands.EnsureGroup(stream=S, group="g", start=0, policy={"max_deliveries": 3}),
)
DURABLE: Final = (
    CreateDurable(stream=S, media=f"{JSON}; a=b", config=b"c"),
    AppendDurable(stream=S, kind=JSON, bodies=[DATA]),
)
STATES: Final[Mapping[str, Sequence[Command]]] = {
    "missing": (),
    "empty": (weir_commands.EnsureStream(stream=S),),
    "with entries": STORED,
    "with a group": GROUPED,
    "read": (*GROUPED, types.XReadGroup(group="g", consumer="c", streams=[(S, types.Cursor.NEW)])),
    "paused": (*GROUPED, weir_commands.UpdateGroup(stream=S, group="g", policy={"paused": True})),
    "scheduled": (*STORED, setting("a"), setting("r", every_ms=60_000, count=2)),
    "limited": (
        weir_commands.EnsureStream(
            stream=S,
            retention=Retention(max_len=10, keep_unarchived=True),
            lifetime=weir_commands.NewLifetime(ms=900_000, relative=True),
        ),
        *STORED,
    ),
    "cut": (*STORED, types.XDel(stream=S, ids=[ID + 1]), types.XTrim(stream=S, trim=types.Trim(maxlen=0))),
    "closed": (*STORED, weir_commands.Close(stream=S, reason="done")),
    "with a key": (keyed(b"d"),),
    "of Durable Streams": DURABLE,
    "of Durable Streams, scheduled": (*DURABLE, setting("d", DATA)),
    "ended": (*DURABLE, AppendDurable(stream=S, kind=JSON, bodies=[], closes=True)),
    "kept for a fork": (
        *DURABLE,
        CreateDurable(stream="fork", media="", config=b"f", fork=ForkPoint(S)),
        types.Delete(streams=[S]),
    ),
}
COMMANDS: Final[Sequence[Command]] = [
    setting("a"),
    setting("a", in_ms=70_000),
    setting("r", every_ms=60_000, count=2),
    setting("r"),
    setting("d", DATA),
    setting(""),
    setting("n" * 513),
    setting("at", at_ms=1_900_000_000_000),
    schedule_commands.SetSchedule(stream=S, schedule=later("a"), only_new=True),
    schedule_commands.SetSchedule(stream=S, schedule=later("r"), recurring=False),
    schedule_commands.SetSchedule(stream=S, schedule=later("x", every_ms=60_000), recurring=False),
    schedule_commands.AddScheduled(stream=S, later=[later("a"), later("b", DATA)]),
    schedule_commands.AddScheduled(stream=S, later=[later("a"), later("a")]),
    schedule_commands.AddScheduled(stream=S, later=[later("a")], cancel="a"),
    schedule_commands.AddScheduled(stream=S, later=[later("r")], recurring=False),
    schedule_commands.AddScheduled(stream=S, cancel="a"),
    schedule_commands.AddScheduled(stream=S, cancel="a", cancel_required=True),
    schedule_commands.AddScheduled(stream=S, cancel="r", mkstream=False),
    schedule_commands.AddScheduled(stream=S, add=adding(), later=[later("r")], cancel="a"),
    schedule_commands.AddScheduled(stream=S, add=adding(6 * ID, 7 * ID, trim=types.Trim(maxlen=1))),
    schedule_commands.AddScheduled(stream=S, add=adding(ID)),
    schedule_commands.AddScheduled(stream=S, add=adding(expected_last_id=ID + 1), later=[later("b")]),
    schedule_commands.AddScheduled(stream=S, add=keyed(b"d"), later=[later("b")]),
    schedule_commands.AddScheduled(stream=S, add=keyed(b"e")),
    schedule_commands.CancelSchedule(stream=S, name="a"),
    schedule_commands.CancelSchedule(stream=S, name="r", recurring=False),
    *(
        schedule_commands.PauseSchedule(stream=S, name=name, pause=pause, recurring=recurring)
        for pause in (schedule_commands.Pause(), schedule_commands.Pause(on=False))
        for name, recurring in (("a", True), ("r", True), ("r", False), ("x", True))
    ),
    msgspec.structs.replace(setting("a"), pause=schedule_commands.Pause()),
    schedule_commands.FireSchedule(stream=S, name="a"),
    schedule_commands.FireSchedule(stream=S, name="r"),
    schedule_commands.FireSchedule(stream=S, name="r", recurring=False),
    weir_commands.Close(stream=S),
    weir_commands.Close(stream=S, reason="x" * 257),
    weir_commands.Close(stream=S, reason="other", drops_schedules=True),
    weir_commands.Close(stream=S, expected_last_id=ID + 1),
    weir_commands.Close(stream=S, expected_last_id=0),
    weir_commands.Close(stream=S, add=adding(8 * ID)),
    weir_commands.Close(stream=S, add=adding(mkstream=False)),
    weir_commands.Close(stream=S, add=keyed(b"d"), drops_schedules=True),
    weir_commands.Close(stream=S, add=keyed(b"e")),
    types.XGroupCreate(stream=S, group="g", start=0),
    types.XGroupCreate(stream=S, group="h", start=types.Cursor.LATEST, mkstream=True, entries_read=7),
    weir_commands.EnsureGroup(stream=S, group="g", start=ID),
    weir_commands.EnsureGroup(
        stream=S, group="h", start=types.Cursor.LATEST, mkstream=True, policy={"max_age_ms": 9_000}
    ),
    weir_commands.EnsureGroup(stream=S, group="h", start=ID, entries_read=1, policy={"paused": True}),
    weir_commands.UpdateGroup(stream=S, group="g"),
    weir_commands.UpdateGroup(stream=S, group="g", start=types.Cursor.LATEST),
    weir_commands.UpdateGroup(
        stream=S, group="g", start=ID, entries_read=1, policy={"ack_timeout_ms": 5_000}
    ),
    weir_commands.UpdateGroup(
        stream=S, group="g", entries_read=99, policy={"max_deliveries": None, "paused": False}
    ),
    weir_commands.UpdateGroup(stream=S, group="h", policy={"paused": True}),
    types.XGroupSetId(stream=S, group="g", start=types.Cursor.LATEST),
    types.XSetId(stream=S, last_id=ID),
    types.XSetId(stream=S, last_id=ID >> 1),
    types.XSetId(stream=S, last_id=9 * ID, entries_added=9, max_deleted_id=ID),
    types.XSetId(stream=S, last_id=9 * ID, entries_added=1),
    types.XSetId(stream=S, last_id=ID, max_deleted_id=9 * ID),
    weir_commands.EnsureStream(stream=S),
    weir_commands.EnsureStream(stream=S, retention=Retention(max_bytes=9_999, keep_unacknowledged=True)),
    weir_commands.EnsureStream(stream=S, lifetime=weir_commands.NewLifetime()),
    weir_commands.EnsureStream(stream=S, lifetime=weir_commands.NewLifetime(ms=900_000, relative=True)),
    weir_commands.EnsureStream(stream=S, lifetime=weir_commands.NewLifetime(ms=1)),
    weir_commands.UpdateStream(
        stream=S, retention={"max_len": 5, "keep_unarchived": False}, archived_up_to=ID
    ),
    weir_commands.UpdateStream(stream=S, lifetime=weir_commands.NewLifetime(ms=(1 << 63) - 1, relative=True)),
    types.Delete(streams=[S], drops_schedules=False),
    AppendDurable(stream=S, kind=JSON, bodies=[], closes=True),
    CreateDurable(stream=S, media=JSON, config=b"c"),
    CreateDurable(stream=S, media=JSON, config=b"c", closes=True),
    CreateDurable(stream=S, media="text/plain", bodies=[DATA] * 2, ttl_ms=900_000, closes=True),
    CreateDurable(stream=S, media=JSON, bodies=[DATA], expires_at_ms=4_000_000_000_000),
]
PROBES: Final[Sequence[Command]] = [
    types.XLen(stream=S),
    weir_commands.DescribeEdges(stream=S),
    DescribeDurable(stream=S),
    schedule_commands.ListSchedules(stream=S, by_name=True),
    types.XInfoGroups(stream=S),
]
# Of these the server has its own, and Redis 7.0 counts a lag where entries were removed.
_OWN: Final = {"memory_bytes", "nodes", "expires_at_ms", "lag"}
_GENERATION: Final = re.compile(r"\b[0-9a-f]{16}\b")
_TIME: Final = re.compile(r"\b20\d\d-\d\d-\d\dT[\d:.]+Z|\b[12]\d{12}-\d+\b")
_NEAR_MS: Final = 1_000_000


def plain(value: Any) -> Any:
    """A reply without what is drawn, and times by the clock as about how far away they are."""
    if isinstance(value, EngineError):
        return plain([value.code, value.redis, value.detail, value.members])
    if isinstance(value, msgspec.Struct):
        fields = [name for name in value.__struct_fields__ if name not in _OWN]
        return [type(value).__name__, *((name, plain(getattr(value, name))) for name in fields)]
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, str):
        return _TIME.sub("…", _GENERATION.sub("…", value))
    if isinstance(value, int):
        away_ms = (value >> 64 or value) - time.time() * 1_000
        return f"in {away_ms / 20_000:.0f}" if abs(away_ms) < _NEAR_MS else value
    return [plain(one) for one in value] if isinstance(value, list | tuple | range) else value


async def replies(engine: EngineProtocol, commands: Sequence[Command]) -> list[Any]:
    """The reply or refusal of each."""
    found = []
    for command in commands:
        try:
            found.append(plain(await reply_to(engine, command)))
        except EngineError as refusal:
            found.append(plain(refusal))
    return found


async def replies_twice(engine: EngineProtocol, command: Command, *, first_in_turn: bool) -> list[Any]:
    """Alone, and in a transaction behind a read."""
    found = []
    for in_turn in (first_in_turn, not first_in_turn):
        if in_turn:
            found += [plain(one) for one in await turn_of(engine, [types.XLen(stream=S), command])]
        else:
            found += await replies(engine, [command])
    return found


@pytest.mark.parametrize("state", STATES)
async def test_what_changes_a_stream_is_answered_alike(server: BackendServer, state: str) -> None:
    own = Engine.open(None, clock=SystemClock())
    await own.start()
    differences = []
    async with opened(server) as over:
        for place, command in enumerate(COMMANDS):
            found = []
            for engine in (own, over):
                await replies(engine, STATES[state])
                twice = await replies_twice(engine, command, first_in_turn=bool(place % 2))
                found.append([*twice, *await replies(engine, PROBES)])
                await replies(engine, [types.Delete(streams=[S, "fork"])])
            differences += [(command, *two) for two in zip(*found, strict=True) if two[0] != two[1]]
    await own.close()
    assert not differences, "\n".join(f"{command}\n  {one}\n  {two}" for command, one, two in differences)
