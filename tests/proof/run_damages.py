"""Files of runs with any damage: each range is as it was or refused, and everything else goes on.

Knows: how such a file can be spoiled, and what each range held.
Must never know: what a run looks like.
"""

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from engine import Engine, EngineError
from engine.keyspace import Keyspace
from engine.log.manifest import run_name, run_number
from engine.runs import Run
from engine.storage.memory import MemoryStorage
from tests.engine.clocks import HandClock
from tests.engine.conversation import Conversation
from tests.engine.running import keyspace_of
from tests.proof.lives import EarlyStoringEngine

ENTRIES: Final = 300
KINDS: Final = ("bit", "cut", "zeros", "noise", "moved", "empty", "missing")
_OFTEN: Final = (30, 10, 20, 20, 18, 1, 1)

Files = dict[str, bytes]


class RunDamages(NamedTuple):
    """How many there were, and what came of the ranges in files: refused, or as they were."""

    damages: int = 0
    refused: int = 0
    sound: int = 0


class _Storing(Conversation):
    def opened(self) -> Engine:
        return EarlyStoringEngine.open(self.storage, clock=self.clock, fsync="always")


async def stored_directory(seed: int) -> MemoryStorage:
    """A log with small files of runs, some of them named by a base, and entries deleted in them."""
    storage, rng = MemoryStorage(), random.Random(seed)
    async with _Storing(storage) as talk:
        storer = talk.engine._storer  # noqa: SLF001 - to have it store at a moment of the test's own
        await talk.call("CONFIG", "SET", "stream-node-max-entries", "5")
        for first in (1, ENTRIES):
            for number in range(first, first + ENTRIES, 3):
                await talk.call("XADD", "s", f"{number}-0", "n", f"value {rng.randrange(100, 1_000)}")
            await storer.store(lambda: True)
            await talk.call("XDEL", "s", *(f"{number}-0" for number in range(first, first + ENTRIES, 21)))
            if first == 1:
                await talk.engine.rewrite()
    return storage


def contents_of(keyspace: Keyspace) -> dict[int, bytes | None]:
    """By the first ID of each part of the stream its entries; None where they are refused."""
    stream = keyspace.keys["s"].stream
    found: dict[int, bytes | None] = {}
    for part in stream.parts_from():
        try:
            found[part.first] = b",".join(stream.range(part.first, part.last).parts)
        except EngineError:
            assert isinstance(part, Run), "what is in memory is not refused"
            found[part.first] = None
    return found


def spoil(files: Files, runs: Sequence[Run], rng: random.Random) -> Files:
    """One damage to the files of runs."""
    (kind,) = rng.choices(KINDS, _OFTEN)
    run = rng.choice(runs)
    name = run_name(run.file)
    content = files[name]
    at = rng.randrange(len(content))
    if kind == "missing":
        return {each: kept for each, kept in files.items() if each != name}
    if kind in {"cut", "empty"}:
        return files | {name: content[: at if kind == "cut" else 0]}
    if kind == "bit":
        spoiled = content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    elif kind == "moved":
        # A sound run, but another one.
        other = rng.choice([each for each in runs if each.length == run.length])
        moved = files[run_name(other.file)][other.offset : other.offset + other.length]
        spoiled = content[: run.offset] + moved + content[run.offset + run.length :]
    else:
        length = rng.randrange(1, 200)
        filling = bytes(length) if kind == "zeros" else rng.randbytes(length)
        spoiled = (content[:at] + filling + content[at + length :])[: len(content)]
    return files | {name: spoiled}


async def damage_runs(seed: int, count: int, tally: RunDamages) -> RunDamages:
    """Spoil a directory in `count` ways, and start and read all of it each time. AssertionError where other
    entries are served than were stored, or anything but the range of a damage is refused.
    """
    storage, rng = await stored_directory(seed), random.Random(seed)
    files = {name: storage.content(name) for name in storage.names() if name != "lock"}
    sound = Engine.open(MemoryStorage(files), clock=HandClock())
    expected = contents_of(keyspace_of(sound))
    length = keyspace_of(sound).keys["s"].stream.length
    runs = [part for part in keyspace_of(sound).keys["s"].stream.nodes.values() if isinstance(part, Run)]
    assert len({run.file for run in runs}) > 5, "there is something to spoil"
    for _ in range(count):
        spoiled = spoil(files, runs, rng)
        changed = {run_number(name) for name in files if spoiled.get(name) != files[name]}
        keyspace = keyspace_of(Engine.open(MemoryStorage(spoiled), clock=HandClock()))
        assert keyspace.keys["s"].stream.length == length, "nothing is lost without a word"
        found = contents_of(keyspace)
        refused = {first for first, held in found.items() if held is None}
        assert {first: held for first, held in found.items() if held is not None} == {
            first: held for first, held in expected.items() if first not in refused
        }, "what is served is what was stored"
        assert refused <= {run.first for run in runs if run.file in changed}, (
            "only what is damaged is refused"
        )
        assert len(keyspace.runs.damaged) == len(refused), "each is reported"
        tally = RunDamages(
            tally.damages + 1, tally.refused + len(refused), tally.sound + len(runs) - len(refused)
        )
    return tally
