"""Random histories of groups whose entries are in files, deleted, too old, or delivered too often.

Knows: three streams, two groups with dead letters among these streams, and the commands that look into nodes
and change something. Must never know: what any of them answers.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final

from engine import ids
from engine.commands import types, weir_commands
from engine.commands.base import Command
from engine.commands.durable_commands import CreateDurable, ForkPoint
from engine.commands.schedule_commands import AddScheduled
from engine.entries import body
from engine.keyspace import Keyspace

STREAMS: Final = ("s", "t", "d")
GROUPS: Final = ("g", "h")
_NEVER_MS: Final = (1 << 53) - 1


class History:
    """Commands, one after the other; the same for the same seed and the same streams."""

    def __init__(self, seed: int, keyspace: Keyspace, *, is_kept_in_memory: bool = False) -> None:
        self.random = random.Random(seed)
        # An append trims by the retention what is in files in larger pieces.
        self._trims_roughly = not is_kept_in_memory
        self._keyspace = keyspace
        # The last IDs of each stream.
        self._known: dict[str, list[int]] = {name: [1] for name in STREAMS}

    def begin(self) -> Sequence[Command]:
        """The streams and their groups."""
        made = [
            types.XGroupCreate(stream=name, group=group, start=0, mkstream=True)
            for name in STREAMS
            for group in GROUPS
        ]
        return [*made, *(self._add(name) for name in STREAMS)]

    def note(self) -> None:
        """Know the newest IDs."""
        for name, known in self._known.items():
            key = self._keyspace.find(name)
            if key is not None and key.stream.last_id > known[-1]:
                known.append(key.stream.last_id)
                del known[:-60]

    def next(self) -> Sequence[Command]:
        """One command, or several of a transaction."""
        if self.random.random() < 0.15:
            return [self._command() for _ in range(self.random.randint(2, 5))]
        return [self._command()]

    def upkeep(self) -> Sequence[Command]:
        """What time brings."""
        return [weir_commands.Maintain(), weir_commands.ReleaseDeferred()]

    def _command(self) -> Command:
        name = self.random.choice("ssstd")
        makes: Sequence[Callable[[str], Command]] = (
            self._add, self._add, self._add, self._read, self._read, self._read, self._read, self._look,
            self._delete, self._take_over, self._trim, self._give_back, self._change, self._move,
        )  # fmt: skip
        return self.random.choice(makes)(name)

    def _id(self, name: str) -> int:
        return self.random.choice(self._known[name]) + self.random.choice((0, 0, 0, 1))

    def _ids(self, name: str) -> list[int]:
        return [self._id(name) for _ in range(self.random.randint(1, 6))]

    def _refs(self) -> types.Refs:
        return self.random.choice(list(types.Refs))

    def _trimming(self) -> types.Trim:
        choose = self.random.choice
        bound = choose(
            ({"maxlen": choose((0, 1, 5, 20))}, {"minid": self._id("s")}, {"older_than_ms": choose((5, 200))})
        )
        approx = self.random.random() < 0.4
        limit = choose((None, 0, 3)) if approx else None
        return types.Trim(
            refs=self._refs(), count_pending=choose((True, False)), approx=approx, limit=limit, **bound
        )

    def _add(self, name: str, *, trims: bool | None = None) -> types.XAdd:
        choose = self.random.choice
        bodies = [body([("n", "x" * choose((1, 40)))]) for _ in range(choose((1, 1, 2, 7)))]
        trims = self.random.random() < 0.4 if trims is None else trims
        return types.XAdd(stream=name, bodies=bodies, trim=self._trimming() if trims else None)

    def _read(self, name: str) -> Command:
        choose = self.random.choice
        names = [name] if choose((True, False)) else self.random.sample(STREAMS, 3)
        return types.XReadGroup(
            streams=[
                (each, choose((types.Cursor.NEW, types.Cursor.NEW, 0, self._id(each)))) for each in names
            ],
            group=choose(GROUPS),
            consumer=choose("abc"),
            count=choose((None, 1, 5)),
            count_total=choose((None, None, 3)),
            bytes_max=choose((None, 200)),
            claim_min_idle_ms=choose((None, None, 0, 50, _NEVER_MS)),
            claims_own=choose((True, False)),
        )

    def _look(self, name: str) -> Command:
        if self.random.random() < 0.5:
            return types.XRead(streams=[(each, self._id(each)) for each in STREAMS], count=5)
        return types.XRange(stream=name, start=0, end=ids.ID_MAX, count=10, up_to_damage=True)

    def _delete(self, name: str) -> Command:
        group, refs = self.random.choice(GROUPS), self._refs()
        made = (
            types.XDel(stream=name, ids=self._ids(name)),
            types.XDelEx(stream=name, ids=self._ids(name), refs=refs),
            types.XAckDel(stream=name, group=group, ids=self._ids(name), refs=refs),
        )
        return self.random.choice(made)

    def _take_over(self, name: str) -> Command:
        choose = self.random.choice
        group, consumer, idle_ms = choose(GROUPS), choose("abc"), choose((0, 50))
        if choose((True, False)):
            claim = types.Claim(ids=self._ids(name), min_idle_ms=idle_ms, force=choose((True, False)))
            return types.XClaim(stream=name, group=group, consumer=consumer, claim=claim)
        start, count = choose((0, self._id(name))), choose((1, 100))
        return types.XAutoClaim(
            stream=name, group=group, consumer=consumer, min_idle_ms=idle_ms, start=start, count=count
        )

    def _trim(self, name: str) -> Command:
        dry_run, guard = self.random.random() < 0.2, self.random.random() < 0.2
        return types.XTrim(stream=name, trim=self._trimming(), dry_run=dry_run, guard=guard)

    def _give_back(self, name: str) -> Command:
        choose = self.random.choice
        mode = choose(list(types.NackMode))
        nack = types.Nack(
            ids=self._ids(name), mode=mode, force=choose((True, False)), delay_ms=choose((0, 0, 30))
        )
        return types.XNack(stream=name, group=choose(GROUPS), nack=nack)

    def _change(self, name: str) -> Command:
        choose = self.random.choice
        if self.random.random() < 0.3:
            retention = {"max_age_ms": choose((None, 300))}
            if self._trims_roughly:
                retention |= {"max_len": choose((None, 30)), "max_bytes": choose((None, 900))}
            return weir_commands.UpdateStream(stream=name, retention=retention)
        if self.random.random() < 0.1:
            return types.Expire(stream=name, ms=50, relative=True)
        policy = {
            "dead_letter_stream": choose((None, *STREAMS, "e")),
            "max_deliveries": choose((None, 1, 2)),
            "max_age_ms": choose((None, 50, 500)),
            "ack_timeout_ms": choose((None, 30)),
            "consumer_timeout_ms": choose((None, 100)),
        }
        return weir_commands.UpdateGroup(
            stream=name, group=choose(GROUPS), policy=policy, start=choose((None, None, 0))
        )

    def _move(self, name: str) -> Command:
        group, letters = self.random.choice(GROUPS), self.random.choice((*STREAMS, "e"))
        parts = [self._add(each, trims=True) for each in self.random.sample(STREAMS, 2)]
        made = (
            weir_commands.DeadLetterEntries(stream=name, group=group, ids=self._ids(name), reason="by hand"),
            weir_commands.Redrive(stream=name, group=group, letters=letters, ids=self._ids("d")),
            weir_commands.Publish(parts=parts),
            AddScheduled(stream=name, add=self._add(name, trims=True), later=[]),
            CreateDurable(stream="f", media="", fork=ForkPoint(name)),
        )
        return self.random.choice(made)
