"""A disk that fails once, at every operation in turn: what was answered is kept, and what cannot be is
refused.

Knows: which operations fail and how, and what the engine must and must not do afterwards.
Must never know: which history it is.
"""

import errno
from collections.abc import Iterable
from typing import Final

from engine import EngineError, Fsync, entries
from engine.commands.types import XAdd, XLen
from engine.log.manifest import run_number
from engine.storage.memory import Fault
from tests.engine.asking import reply_to
from tests.proof.explorer import Explorer
from tests.proof.lives import Living

# How an operation fails: the error, and how much of an append has been written by then.
FAULTS: Final = (
    *((errno.EIO, 0), (errno.ENOSPC, 0), (errno.EMFILE, 0), (errno.EIO, 7), (errno.ENOSPC, 41)),
    (errno.EDQUOT, 19),
)
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
STEPS_PER_LIFE = 25
# After the fault the disks of this number of operations are examined.
_LOOKS_MAX: Final = 6
_WRITTEN_MS_MAX: Final = 1_000


def operations_of(seed: int, fsync: Fsync, *, stores: bool = False) -> int:
    """How many operations a history has on a sound disk."""
    life = Living(seed, fsync, stores=stores)
    try:
        life.live(STEPS_PER_LIFE, restarts=False)
    finally:
        life.end()
    return life.operations


def fail_at(
    seed: int, fsync: Fsync, number: int, code: int, after_bytes: int, *, stores: bool = False
) -> Explorer:
    """Live through the failure of one operation; raise `Broken` where a promise does not hold."""
    explorer = Explorer()
    looks = 0

    def look(life: Living) -> None:
        nonlocal looks
        if life.storage.failed and looks < _LOOKS_MAX:
            looks += 1
            explorer.look(life)

    life = Living(seed, fsync, look=look, faults={number: Fault("any", 1, code, after_bytes)}, stores=stores)
    try:
        life.live(STEPS_PER_LIFE, restarts=False)
        explorer.look(life)
        check_conduct(life, code)
        life.check()
    finally:
        life.end()
    return explorer


def check_conduct(life: Living, code: int) -> None:
    """What must follow from any failed operation: want of room is waited for, where nothing of it stays."""
    if not life.storage.failed:
        return
    failed = life.storage.failed[0]
    after = [each for each in life.storage.operations[failed.number + 1 :] if each[1] == failed.name]
    # An empty segment is one that was only prepared.
    waits = failed.operation == "append" and code in _NO_ROOM
    frames_lost = failed.name.startswith("segment-") and (
        (failed.operation == "append" and not waits) or (failed.operation == "sync" and failed.size > 0)
    )
    if waits and life.refused_for_good and len(life.storage.failed) == 1:
        life.report(f"{failed.operation} of {failed.name} found no room and commands were refused for good")
    if life.refused_for_good and any(what in {"append", "sync"} for what, _ in after):
        life.report(f"{failed.operation} failed and the log was used again: {after}")
    used = len(life.storage.operations) > failed.number + 2
    if run_number(failed.name) is not None:
        if life.refused_for_good:
            life.report(
                f"{failed.operation} of {failed.name} failed and commands were refused: the nodes stay"
            )
        if failed.operation in {"append", "sync"} and any(what == "append" for what, _ in after):
            life.report(f"{failed.operation} of {failed.name} failed and the file grew on: {after}")
    if frames_lost and used and not life.refused_for_good and failed.number > _opening(life):
        life.report(f"{failed.operation} of {failed.name} failed and no command was refused")


def _opening(life: Living) -> int:
    """The number of the last operation of the first start: a failure there is a refusal to start."""
    operations = [what for what, _ in life.storage.operations]
    return operations.index("preallocate") if "preallocate" in operations else len(operations)


def failing_disk(
    seeds: Iterable[int], fsync: Fsync, *, every: int = 1, stores: bool = False
) -> tuple[int, int]:
    """Let each operation of each history fail in each way, or one of `every` in one of them; how many failed,
    and how many disks were looked at.
    """
    failures = disks = 0
    for seed in seeds:
        for number in range(seed % every, operations_of(seed, fsync, stores=stores), every):
            ways = FAULTS if every == 1 else (FAULTS[number // every % len(FAULTS)],)
            for code, after_bytes in ways:
                disks += fail_at(seed, fsync, number, code, after_bytes, stores=stores).disks
                failures += 1
    return failures, disks


def full_disk(seed: int, fsync: Fsync) -> int:
    """Fill a disk until nothing can be written, make room, and go on; how many writes were refused."""
    life = Living(seed, fsync, space_bytes=30 << 20)
    body = entries.body([("v", "x" * (1 << 20))])

    def write() -> object:
        adding = life.loop.create_task(reply_to(life.engine, XAdd(stream="s", bodies=[body])))
        life.pass_ms(_WRITTEN_MS_MAX)
        assert adding.done(), "a full disk is known before the write, which would wait for room"
        try:
            return adding.result()
        except EngineError as refusal:
            return refusal.code

    try:
        written = 0
        while write() != "storage_full":
            life.settle()
            written += 1
            assert written < 30, "a full disk is known before the write"
        refused = 1
        before = life.loop.run_until_complete(reply_to(life.engine, XLen(stream="s")))
        refused += sum(write() == "storage_full" for _ in range(5))
        assert life.loop.run_until_complete(reply_to(life.engine, XLen(stream="s"))) == before, (
            "nothing changed"
        )
        life.storage.space_bytes = None
        assert write() not in {"storage_full", "storage_failed"}, "it goes on by itself"
        life.close()
    finally:
        life.end()
    return refused
