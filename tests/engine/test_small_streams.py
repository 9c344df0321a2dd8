"""What a stream of one entry takes: there may be hundreds of thousands of them, as of sessions.

Knows: commands, the log and snapshots, how the interpreter counts bytes.
Must never know: how streams are kept.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Final

import pytest

from engine import entries
from engine.commands.execution import execute
from engine.commands.types import XAdd
from engine.commands.weir_commands import EnsureGroup
from engine.keyspace import Caps, Keyspace
from engine.records.changes import CreateStream, RemoveStream, RenameStream
from engine.records.payload import encode
from engine.records.snapshot import snapshot
from tests.engine.house import replayed

COUNT: Final = 2_000
# Bytes that the interpreter asks for, a stream with a name of 16 characters and an entry of 63: some 30 less
# than that is what it takes. The allocator adds a twentieth.
STREAM_BYTES_MAX: Final = 730
# Calls of functions, Python's own too, to read one from a log of frames and from a snapshot.
CALLS_MAX: Final = {"log": 57, "snapshot": 54}
# With an empty group.
GROUP_BYTES_MAX: Final = 760


def sessions(*, groups: bool = False) -> tuple[Keyspace, list[bytes]]:
    """Streams of one entry as commands make them, and the frames of their log."""
    keyspace, frames = Keyspace(caps=Caps(streams_max=COUNT)), list[bytes]()
    for number in range(COUNT):
        name = f"session:{number:08}"
        body = entries.body([("user", f"{number:06}"), ("state", "open")])
        commands = [XAdd(stream=name, bodies=[body]), EnsureGroup(stream=name, group="g", start=0)]
        for command in commands[: 1 + groups]:
            turn = execute(keyspace, command, 1_700_000_000_000 + number).turn
            frames.append(encode(turn.records))
    return keyspace, frames


def from_snapshot(keyspace: Keyspace) -> Callable[[], Keyspace]:
    records = list(snapshot(keyspace))
    frames = [encode(records[at : at + 4]) for at in range(0, len(records), 4)]
    return lambda: replayed(frames)


def bytes_each(make: Callable[[], Keyspace]) -> float:
    """What a stream of this keyspace takes."""
    make()
    gc.collect()
    tracemalloc.start()
    try:
        keyspace = make()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / len(keyspace.keys)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("groups", "most"), [(False, STREAM_BYTES_MAX), (True, STREAM_BYTES_MAX + GROUP_BYTES_MAX)]
)
def test_a_stream_of_one_entry_takes_few_bytes(*, groups: bool, most: int) -> None:
    """As commands make it, and as it is read from a log and from a snapshot."""
    kept, frames = sessions(groups=groups)
    found = {
        "log": bytes_each(lambda: replayed(frames)),
        "snapshot": bytes_each(from_snapshot(kept)),
        "commands": bytes_each(lambda: sessions(groups=groups)[0]),
    }
    frames_bytes = sum(map(len, frames)) / COUNT
    assert found["log"] < most, found
    assert found["snapshot"] < most, found
    # The frames are freed with what made them.
    assert found["commands"] < most, (found, frames_bytes)


def test_the_estimate_of_such_a_stream_is_near_that() -> None:
    """Within a fifth."""
    kept, frames = sessions()
    estimated = kept.memory.estimated_bytes / COUNT
    taken = bytes_each(lambda: replayed(frames))
    assert 0.85 * taken < estimated < 1.25 * taken, (estimated, taken)
    kept.check()


def test_reading_such_a_stream_takes_few_calls() -> None:
    """Of Python functions, from a log and from a snapshot: what a restart costs, on any machine."""
    kept, frames = sessions()
    found = {"log": calls_each(lambda: replayed(frames)), "snapshot": calls_each(from_snapshot(kept))}
    assert found["log"] < CALLS_MAX["log"], found
    assert found["snapshot"] < CALLS_MAX["snapshot"], found


def calls_each(make: Callable[[], Keyspace]) -> float:
    """How many calls each stream takes."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        keyspace = make()
    finally:
        sys.setprofile(before)
    return calls / len(keyspace.keys)


def test_names_are_in_order_after_loading_whatever_came_and_went() -> None:
    """Their order is made once, at the end."""
    keyspace = Keyspace()
    keyspace.begin_loading()
    for name in ("b", "d", "a", "c", "b2"):
        CreateStream(name, "", 100, 100).apply(keyspace)
    RemoveStream("d").apply(keyspace)
    RenameStream("a", "e", "").apply(keyspace)
    RemoveStream("b").apply(keyspace)
    CreateStream("b", "", 100, 100).apply(keyspace)
    keyspace.end_loading()
    assert keyspace.names() == ["b", "b2", "c", "e"]
    RemoveStream("c").apply(keyspace)
    CreateStream("a", "", 100, 100).apply(keyspace)
    assert keyspace.names() == ["a", "b", "b2", "e"]
    keyspace.check()
