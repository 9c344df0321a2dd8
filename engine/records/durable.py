"""Forks: streams that begin as others are.

Knows: each resolved change, with its `apply`.
Must never know: files, frames, clients, why something changed.
"""

from collections.abc import Sequence

from engine.copying import fork_key
from engine.keyspace import Keyspace
from engine.record import Id, Record, TextList


class ForkStream(Record, frozen=True):
    """The stream is new, with the entries of another one up to an ID, and nothing else of it."""

    number = 37
    stream: str
    source: str
    upto: Id
    generation: str

    def apply(self, keyspace: Keyspace) -> None:
        self._fork(keyspace, None)

    def _fork(self, keyspace: Keyspace, texts: Sequence[bytes] | None) -> None:
        source, limits = keyspace.keys[self.source], keyspace.node_limits()
        key, cold = fork_key(source, self.generation, self.upto, limits, texts)
        keyspace.create(self.stream, key)
        keyspace.cold += cold


class ForkStored(ForkStream, frozen=True):
    """The same where it ends in a run: with what it has of that, so that no file is needed to do it again."""

    number = 49
    texts: TextList

    def apply(self, keyspace: Keyspace) -> None:
        self._fork(keyspace, self.texts)


class NoteFork(Record, frozen=True):
    """The stream is a fork of another one, whose name stays taken until it is gone."""

    number = 38
    stream: str
    source: str

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.forks.add(self.stream, self.source)


class RestoreHidden(Record, frozen=True):
    """Of a snapshot: a stream was removed and has forks."""

    number = 71
    stream: str

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.forks.hidden[self.stream] = None
