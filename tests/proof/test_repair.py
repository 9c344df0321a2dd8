"""A spoiled directory that is repaired starts with a prefix of what it held, or the repair says why not."""

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from engine import Engine, LogRefusedError
from engine.backup import another_life
from engine.keyspace import Keyspace
from engine.log import Log
from engine.log.repair import IrreparableError, carry_out, plan
from engine.log.steps import GiveUp
from engine.records.payload import replay
from engine.storage.memory import MemoryStorage
from tests.engine.clocks import HandClock
from tests.engine.images import image
from tests.proof.damage import SECTOR, Directory, cuts, directory, flips, holes, moved_frames, whole_files
from tests.proof.explorer import HOSTILE_WALL_MS

# `make soak` spoils by each bit; a repair does not depend on which bit of a frame.
FLIPS_EVERY = 211
CUTS_EVERY = 7
STEPS_MAX = 6


@pytest.fixture(scope="module")
def whole() -> Directory:
    """A base, a sealed segment, an open one with a tail that may be torn."""
    return directory()


def mended(whole: Directory, files: Mapping[str, bytes]) -> str:
    """Repair, start, compare; what came of it."""
    storage = MemoryStorage(files)
    given_up: GiveUp | None = None
    for _ in range(STEPS_MAX):
        try:
            step = plan(storage)
        except IrreparableError:
            return "irreparable"
        if step is None:
            break
        assert all(step.sentences())
        given_up = step if isinstance(step, GiveUp) else given_up
        carry_out(storage, step, another_life(), HOSTILE_WALL_MS)
    log = Log.open(storage)
    payloads = list(log.replay())
    end = log.staged_upto
    log.close(clean=False)
    if given_up is not None:
        payloads.pop()  # which warns readers
        end = given_up.cut.end if given_up.cut else given_up.segment.position
    keyspace = Keyspace()
    for payload in payloads:
        replay(keyspace, payload)
    assert end <= whole.end
    assert image(keyspace) == whole.promises.image_at(end), f"silently different, at {end}"
    Engine.open(storage, clock=HandClock(HOSTILE_WALL_MS), fsync="always").check()
    return "given up" if given_up else "mended"


def refused(files: Mapping[str, bytes]) -> bool:
    """Whether a start would be."""
    try:
        Log.open(MemoryStorage(files)).close(clean=False)
    except LogRefusedError:
        return True
    return False


def spoiled(whole: Directory) -> Iterator[tuple[str, str, dict[str, bytes]]]:
    """Every way to spoil it: how, which file, the directory."""
    for number, (name, files) in enumerate(cuts(whole)):
        if number % CUTS_EVERY == 0:
            yield "cut", name, files
    for name, _, files in flips(whole, every=FLIPS_EVERY):
        yield "flipped", name, files
    for name, _, files in holes(whole, SECTOR):
        yield "hole", name, files
    for name, what, files in moved_frames(whole):
        yield what.partition(" ")[0], name, files
    for name, what, files in whole_files(whole):
        yield what, name, files


def test_every_damage_is_mended_or_explained(whole: Directory) -> None:
    """F5 to F12 and F30 to F33: only a base cannot be mended in part, and nothing else is left refused."""
    result: Counter[str] = Counter()
    for how, name, files in spoiled(whole):
        verdict = mended(whole, files)
        result[verdict] += 1
        if verdict == "irreparable":
            assert refused(files), (how, name)
            assert name.startswith("base-") or how.startswith("for "), (how, name)
    assert min(result["mended"], result["given up"], result["irreparable"]) > 20, result
