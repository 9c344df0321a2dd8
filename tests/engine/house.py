"""A world that also takes Weir's own commands, as they are typed.

Knows: a command → one turn → its reply, and what the log would hold of it.
Must never know: asyncio, disk, waiting.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, TypeVar

import pytest

from engine import EngineError, entries, ids
from engine.commands.base import Command
from engine.commands.execution import Blocked, Turn, Unfinished, execute
from engine.commands.schedule_commands import FireDueSchedules
from engine.commands.types import XAdd
from engine.commands.weir_commands import ExpireStreams, Maintain, Publish, ReleaseDeferred
from engine.keyspace import Key, Keyspace
from engine.parts.idempotence import idempotence_of
from engine.parts.keeping import RETENTION_DEFAULT, kept_of
from engine.parts.redelivery import redelivery_of
from engine.record import Record
from engine.records.payload import decode, encode, replay
from engine.records.snapshot import snapshot
from engine.replies import Added, Published, Reply
from tests.cluster.clusters import BACKENDS
from tests.engine.world import World

R = TypeVar("R")
# An engine of the gateway's own, and what it may be over: where a rule holds that is `everywhere`.
OWN: Final = "own"
everywhere: Final = pytest.mark.parametrize("house", [OWN, *BACKENDS], indirect=True)


def id_of(words: str) -> int:
    """The ID that the words spell."""
    found = ids.parse(words)
    assert found is not None, words
    return found


def adding(stream: str, *entry_ids: str) -> XAdd:
    """A command that adds entries with these IDs, the clock's where there are none."""
    bodies = [entries.body([("a", "1")])] * max(1, len(entry_ids))
    return XAdd(stream=stream, bodies=bodies, ids=[id_of(words) for words in entry_ids])


class House(World):
    """`run` gives the reply, or raises the refusal; `turn` is the last one."""

    turn: Turn
    # How near to a limit of time a test comes.
    margin_ms: ClassVar[int] = 0

    def run(self, command: Command) -> object:
        """The reply of one command."""
        *_, reply = self.turns(command)
        return None if isinstance(reply, Blocked) else reply

    def turns(self, command: Command) -> Iterator[object]:
        """Run a command a turn at a time: `Unfinished`, and at the end the reply."""
        reply: object = Unfinished(None)
        while isinstance(reply, Unfinished):
            outcome = execute(self.keyspace, command, self.now_ms, reply.so_far)
            self.turn, reply = outcome.turn, outcome.reply
            if self.turn.records:
                self.payloads.append(encode(self.turn.records))
            if isinstance(reply, EngineError):
                assert not self.turn.records, "a refusal has changed nothing"
                raise reply
            yield reply

    def execute(self, command: Command) -> tuple[Reply | EngineError] | None:
        """The reply or the refusal of one command in a tuple, None where it would wait."""
        try:
            reply: Any = self.run(command)
        except EngineError as refusal:
            reply = refusal
        self.signalled = list(self.turn.signalled)
        return None if reply is None and command.to_nonblocking() != command else (reply,)

    def of(self, kind: type[R], command: Command) -> R:
        """The reply, known to be of a kind."""
        reply = self.run(command)
        assert isinstance(reply, kind), reply
        return reply

    def refused(self, command: Command) -> EngineError:
        """The refusal of a command that must change nothing."""
        before = state(self.keyspace)
        try:
            reply = self.run(command)
        except EngineError as refusal:
            assert state(self.keyspace) == before, "a refusal has changed nothing"
            return refusal
        raise AssertionError(f"not refused: {reply}")

    def added(self, command: XAdd) -> Added:
        return self.of(Added, command)

    def published(self, command: Publish) -> Published:
        return self.of(Published, command)

    def fill(self, stream: str, count: int, first: int = 1) -> None:
        """Add `first`-0 and so on."""
        self.run(adding(stream, *[f"{number}-0" for number in range(first, first + count)]))

    def keep_house(self) -> int:
        """Turns until there is no more to do; how many there were."""
        turns = 1
        while self.run(Maintain()) is True:
            turns += 1
        return turns

    def wait_ms(self, ms: int) -> None:
        """Let time pass, and what is due by then happen."""
        self.pass_ms(ms)
        for due in (ReleaseDeferred(), FireDueSchedules(), ExpireStreams()):
            while self.run(due):
                pass

    def key(self, stream: str) -> Key:
        return self.keyspace.keys[stream]

    def live(self, stream: str) -> list[str]:
        """The IDs of all live entries."""
        key = self.keyspace.find(stream)
        return [] if key is None else [ids.format(entry_id) for entry_id in key.stream.live_ids()]

    def pairs(self, stream: str) -> list[list[tuple[str, bytes]]]:
        """The fields of all live entries."""
        key = self.keyspace.find(stream)
        texts = [] if key is None else [key.stream.get(entry_id) for entry_id in key.stream.live_ids()]
        return [entries.pairs_of(text) for text in texts if text]

    def restart(self) -> None:
        """Go on from what the log holds."""
        self.keyspace = replayed(self.payloads)

    def rewrite(self) -> None:
        """Go on from a snapshot, as the only frame of a new log."""
        self.payloads = [encode(state(self.keyspace))]
        self.restart()

    def check(self) -> None:
        """Assert integrity, that log and snapshot each give the same state, and that both tend what needs
        it.
        """
        self.keyspace.check()
        now = state(self.keyspace)
        for copy in (replayed(self.payloads), replayed([encode(now)])):
            copy.check()
            assert state(copy) == now, "a restart gives the same state"
            assert needing(copy) <= set(copy.maintained), "what needs tending is maintained"
        assert needing(self.keyspace) <= set(self.keyspace.maintained), "what needs tending is maintained"


def state(keyspace: Keyspace) -> Sequence[Record]:
    """Everything in the keyspace, in a form to compare."""
    return decode(encode(list(snapshot(keyspace))))


def replayed(payloads: Sequence[bytes]) -> Keyspace:
    """What a log of these frames gives."""
    keyspace = Keyspace()
    for payload in payloads:
        replay(keyspace, payload)
    return keyspace


def needing(keyspace: Keyspace) -> set[str]:
    """The streams in which time may change something."""
    return {
        name
        for name, key in keyspace.keys.items()
        if kept_of(key).retention != RETENTION_DEFAULT
        or idempotence_of(key).producers
        or idempotence_of(key).answers
        or any(redelivery_of(group).has_timeout for group in key.groups.values())
    }
