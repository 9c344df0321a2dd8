"""What is missing is refused over a backend as over an own log, by every command of one stream that there is.

In words and members too: a door distinguishes by them what it answers.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest

from engine import Engine, EngineError, SystemClock, entries
from engine.cluster import gathering, shadow, words
from engine.commands.base import Command, StreamCommand
from engine.commands.registry import RUN
from engine.commands.schedule_commands import NewSchedule, Pause
from engine.commands.types import Claim, Nack, NackMode, Trim, XAdd, XGroupCreate
from engine.recurrence import Rule
from tests.cluster.engines import opened
from tests.cluster.servers import BackendServer
from tests.engine.asking import reply_to

BODY: Final = entries.body([("data", "1")])
ID: Final = 1 << 64
# What a command needs beside its stream, by the names of its fields.
NEEDED: Final[Mapping[str, Any]] = {
    "bodies": [BODY],
    "claim": Claim(ids=[ID], min_idle_ms=0),
    "consumer": "none",
    "count": 1,
    "end": 2 * ID,
    "group": "none",
    "high": 2 * ID,
    "ids": [ID],
    "kind": "application/json",
    "last_id": 9 * ID,
    "letters": "letters",
    "low": ID,
    "media": "application/json",
    "min_idle_ms": 0,
    "ms": 60_000,
    "nack": Nack(ids=[ID], mode=NackMode.FAIL),
    "name": "none",
    "pause": Pause(),
    "reason": "why",
    "relative": True,
    "schedule": NewSchedule("one", BODY, Rule(in_ms=60_000)),
    "start": 0,
    "target": "target",
    "trim": Trim(maxlen=0),
}
# Made of others; and what each engine knows by a mark of its own.
LEFT_OUT: Final = {"AppendBatches", "Undo"}
KINDS: Final = sorted(
    (
        kind
        for kind in RUN
        if issubclass(kind, StreamCommand)
        and (kind in words._MAKERS or kind in gathering._GATHERERS or kind in shadow.KINDS)  # noqa: SLF001 - all of them
        and kind.__name__ not in LEFT_OUT
    ),
    key=lambda kind: kind.__name__,
)


def made(kind: type[Command], **given: object) -> Command:
    needed = [field.name for field in msgspec.structs.fields(kind) if field.required]
    return kind(**{name: given[name] if name in given else NEEDED[name] for name in needed})


async def refusal(engine: Any, command: Command) -> tuple[object, ...]:
    try:
        await reply_to(engine, command)
    except EngineError as error:
        return error.code, error.redis, error.detail, error.members
    return ("done",)


@pytest.mark.parametrize("there", ["nothing", "a stream", "a group"])
async def test_what_is_missing_is_refused_alike(server: BackendServer, there: str) -> None:
    """A stream, its group, a consumer of that."""
    own = Engine.open(None, clock=SystemClock())
    await own.start()
    differences = {}
    async with opened(server) as over:
        for kind in KINDS:
            stream, group = f"s{kind.__name__}", "g" if there == "a group" else "none"
            found = []
            for engine in (own, over):
                if there != "nothing":
                    await reply_to(engine, XAdd(stream=stream, bodies=[BODY], ids=[ID]))
                if there == "a group":
                    await reply_to(engine, XGroupCreate(stream=stream, group="g", start=0))
                target = f"t{kind.__name__}"
                found.append(await refusal(engine, made(kind, stream=stream, group=group, target=target)))
            if found[0] != found[1]:
                differences[kind.__name__] = found
    await own.close()
    assert differences == {}, "\n".join(f"{k}: {a}\n      {b}" for k, (a, b) in differences.items())


def test_every_command_is_made() -> None:
    """A field of a new command that has no value here is named."""
    assert len(KINDS) > 50
    for kind in KINDS:
        assert isinstance(made(kind, stream="s"), kind)
