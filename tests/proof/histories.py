"""What clients of a small world do, drawn by chance: commands in Redis's words and Weir's own.

Knows: three streams, two groups, two consumers, and the IDs that were answered.
Must never know: what is answered, or what may go wrong.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final

from app.redis import CommandRequest, parse
from engine import entries, ids
from engine.commands import schedule_commands
from engine.commands.base import Command
from engine.commands.durable_commands import AppendDurable, CreateDurable, ForkPoint, ProducerBatch
from engine.commands.types import Delete, IdempotencyKey, NewId, XAdd
from engine.commands.weir_commands import Close, EnsureGroup, EnsureStream, Publish, UpdateGroup
from engine.parts.keeping import Retention
from engine.recurrence import Rule

STREAMS: Final = ("s", "t", "u")
GROUPS: Final = ("g", "h")
CONSUMERS: Final = ("a", "b")
LETTERS: Final = "dead"
DURABLE: Final = ("d", "e", "f")
# Of the IDs that were answered, this number is kept to be acknowledged, deleted or claimed.
_KNOWN_MAX: Final = 40


class Clients:
    """`command` gives the next one. `known` are IDs, by stream, that a client was shown."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.known: dict[str, list[int]] = {name: [] for name in STREAMS}
        self._serial = 0
        self._kinds: Sequence[tuple[int, Callable[[], Command]]] = (
            (9, self._add), (2, self._publish), (1, self._add_once), (5, self._read_group),
            (4, self._settle), (3, self._claim), (2, self._remove), (2, self._group),
            (2, self._look), (1, self._configure), (1, self._rare), (3, self._durable), (3, self._schedule),
        )  # fmt: skip

    def tell(self, stream: str, some: Sequence[int]) -> None:
        """A client knows these IDs now."""
        self.known.setdefault(stream, []).extend(some)
        del self.known[stream][:-_KNOWN_MAX]

    def opening(self) -> list[Command]:
        """How every history begins, so that there is something to go wrong."""
        return [
            *(self._words(f"XGROUP CREATE {name} {group} 0 MKSTREAM") for name in "st" for group in GROUPS),
            self._words("CONFIG SET stream-node-max-entries 5"),
            EnsureStream(stream="u", retention=Retention(max_len=6, max_age_ms=1_500)),
            EnsureGroup(stream="u", group="g", start=0, policy={"ack_timeout_ms": 700}),
            UpdateGroup(stream="t", group="h", policy={"dead_letter_stream": LETTERS, "max_deliveries": 2}),
        ]

    def command(self) -> Command:
        """Any command."""
        weights = [weight for weight, _ in self._kinds]
        return self._chance.choices([kind for _, kind in self._kinds], weights)[0]()

    def waiting(self) -> Command:
        """A read that may wait."""
        stream, ms = self._stream(), self._chance.choice((300, 1_000, 5_000))
        if self._chance.random() < 0.5:
            return self._words(f"XREAD BLOCK {ms} STREAMS {stream} $")
        group, consumer = self._group_name(), self._consumer()
        return self._words(f"XREADGROUP GROUP {group} {consumer} BLOCK {ms} STREAMS {stream} >")

    # --- the kinds ------------------------------------------------------------------------------------------

    def _add(self) -> XAdd:
        count = self._chance.choice((1, 1, 1, 2, 4))
        new: list[NewId] = []
        if self._chance.random() < 0.12:
            # Of the client's own choice: small, or ahead of the clock.
            ahead = self._chance.choice((0, 0, 10**7, 10**10))
            new = [((self._chance.randint(1, 50) + ahead) << 64) + at for at in range(count)]
        return XAdd(stream=self._stream(), bodies=self._bodies(count), ids=new)

    def _add_once(self) -> Command:
        stream, key = self._stream(), self._chance.choice("123")
        if self._chance.random() < 0.5:
            body = entries.body([("key", key)])
            return XAdd(stream=stream, bodies=[body], idempotency=IdempotencyKey(key, key.encode()))
        return self._words(f"XADD {stream} IDMP p {key} * key {key}")

    def _publish(self) -> Publish:
        names = self._chance.sample(STREAMS, self._chance.randint(1, 3))
        parts = [XAdd(stream=name, bodies=self._bodies(self._chance.randint(1, 2))) for name in names]
        key = IdempotencyKey(self._chance.choice("xy"), b"d") if self._chance.random() < 0.2 else None
        return Publish(parts=parts, idempotency=key)

    def _read_group(self) -> Command:
        count, claim = self._chance.randint(1, 4), self._chance.choice(("", "", "CLAIM 200 "))
        noack, cursor = self._chance.choice(("", "", "", "NOACK ")), self._chance.choice(">>>>0")
        names = self._chance.sample(STREAMS, self._chance.randint(1, 2))
        streams = " ".join(names + [cursor] * len(names))
        group, consumer = self._group_name(), self._consumer()
        return self._words(
            f"XREADGROUP GROUP {group} {consumer} COUNT {count} {claim}{noack}STREAMS {streams}"
        )

    def _settle(self) -> Command:
        stream, group = self._stream(), self._group_name()
        some = self._some(stream)
        kind = self._chance.choice(("ack", "ack", "ackdel", "nack"))
        if kind == "ack":
            return self._words(f"XACK {stream} {group} {' '.join(some)}")
        refs, mode = (
            self._chance.choice(("KEEPREF", "DELREF", "ACKED")),
            self._chance.choice(("FAIL", "SILENT")),
        )
        middle = f"XACKDEL {stream} {group} {refs}" if kind == "ackdel" else f"XNACK {stream} {group} {mode}"
        return self._words(f"{middle} IDS {len(some)} {' '.join(some)}")

    def _claim(self) -> Command:
        stream, group, consumer = self._stream(), self._group_name(), self._consumer()
        if self._chance.random() < 0.5:
            return self._words(f"XAUTOCLAIM {stream} {group} {consumer} 100 0 COUNT 3")
        more = self._chance.choice(("", "FORCE", "RETRYCOUNT 3", "JUSTID"))
        return self._words(f"XCLAIM {stream} {group} {consumer} 0 {' '.join(self._some(stream))} {more}")

    def _remove(self) -> Command:
        stream = self._stream()
        some = self._some(stream)
        return self._words(
            self._chance.choice(
                (
                    f"XDEL {stream} {' '.join(some)}",
                    f"XDELEX {stream} DELREF IDS {len(some)} {' '.join(some)}",
                    f"XTRIM {stream} MAXLEN {self._chance.randint(0, 8)}",
                    f"XTRIM {stream} MAXLEN ~ {self._chance.randint(0, 8)}",
                )
            )
        )

    def _group(self) -> Command:
        stream, group, consumer = self._stream(), self._group_name(), self._consumer()
        return self._words(
            self._chance.choice(
                (
                    f"XGROUP CREATE {stream} {group} {self._chance.choice('0$')} MKSTREAM",
                    f"XGROUP CREATE {stream} {group} 0 MKSTREAM",
                    f"XGROUP SETID {stream} {group} 0",
                    f"XGROUP CREATECONSUMER {stream} {group} {consumer}",
                    f"XGROUP DELCONSUMER {stream} {group} {consumer}",
                    f"XGROUP DESTROY {stream} {group}",
                )
            )
        )

    def _look(self) -> Command:
        stream = self._stream()
        return self._words(
            self._chance.choice(
                (f"XRANGE {stream} - +", f"XREAD STREAMS {stream} 0", f"XINFO STREAM {stream}")
            )
        )

    def _configure(self) -> Command:
        return self._chance.choice(
            (
                self._words(f"CONFIG SET stream-node-max-entries {self._chance.choice((2, 5, 100))}"),
                self._words(f"XCFGSET {self._stream()} IDMP-MAXSIZE 1"),
                EnsureStream(stream=self._stream(), retention=Retention(max_len=self._chance.randint(1, 9))),
                UpdateGroup(stream="t", group="h", policy={"max_deliveries": self._chance.randint(1, 3)}),
            )
        )

    def _rare(self) -> Command:
        stream = self._stream()
        rare = (f"DEL {stream}", f"DEL {stream}", f"XSETID {stream} 99999999-9", "FLUSHALL", "", "")
        words = self._chance.choice(rare)
        return self._words(words) if words else self._close(stream)

    def _close(self, stream: str) -> Close:
        """With or without last entries. Only the end of the name begins it anew."""
        count = self._chance.choice((0, 1, 2))
        add = XAdd(stream=stream, bodies=self._bodies(count)) if count else None
        return Close(stream=stream, reason="r" * count, add=add, drops_schedules=self._chance.random() < 0.5)

    def _schedule(self) -> Command:
        """Entries for later: set, published, cancelled, fired."""
        stream, name = self._stream(), self._chance.choice("123")
        (body,) = self._bodies(1)
        kind = self._chance.choice(("set", "set", "later", "instead", "cancel", "fire"))
        if kind == "set":
            count = self._chance.choice((None, 1, 3))
            rule = self._chance.choice((Rule(in_ms=700), Rule(every_ms=1_000, count=count)))
            return schedule_commands.SetSchedule(
                stream=stream, schedule=schedule_commands.NewSchedule(name, body, rule)
            )
        if kind == "later":
            rules = [Rule(in_ms=self._chance.choice((1, 300, 2_000))) for _ in range(3)]
            later = [
                schedule_commands.NewSchedule(f"{self._serial}-{at}", body, rule)
                for at, rule in enumerate(rules)
            ]
            return schedule_commands.AddScheduled(stream=stream, later=later)
        if kind == "instead":
            add = XAdd(stream=stream, bodies=[body])
            required = self._chance.random() < 0.5
            return schedule_commands.AddScheduled(
                stream=stream, add=add, cancel=name, cancel_required=required
            )
        if kind == "cancel":
            return schedule_commands.CancelSchedule(stream=stream, name=name)
        return schedule_commands.FireSchedule(stream=stream, name=name)

    def _durable(self) -> Command:
        """Of Durable Streams: made, forked, written by producers, closed, removed."""
        stream, seq = self._chance.choice(DURABLE), self._chance.randint(0, 3)
        kind = self._chance.choice(("make", "fork", "remove", *["append"] * 7))
        if kind == "make":
            ttl_ms = self._chance.choice((None, None, 2_000))
            return CreateDurable(stream=stream, media="text/plain", bodies=[_data("made")], ttl_ms=ttl_ms)
        if kind == "fork":
            return CreateDurable(stream=stream, media="", fork=ForkPoint(self._chance.choice(DURABLE)))
        if kind == "remove":
            return Delete(streams=[stream])
        producer = self._chance.choice(("", "p", "q"))
        batch = ProducerBatch(producer, self._chance.choice((0, 0, 0, 1)), seq) if producer else None
        count = self._chance.randint(1, 2)
        return AppendDurable(
            stream=stream,
            bodies=[_data(f"{producer} {seq} {number}") for number in range(count)],
            kind="text/plain",
            batch=batch,
            writer_seq=self._chance.choice((None, None, str(self._serial).encode())),
            closes=self._chance.random() < 0.05,
        )

    # --- words ----------------------------------------------------------------------------------------------

    def _stream(self) -> str:
        return self._chance.choices(STREAMS, (4, 2, 1))[0]

    def _group_name(self) -> str:
        return self._chance.choices(GROUPS, (3, 1))[0]

    def _consumer(self) -> str:
        return self._chance.choice(CONSUMERS)

    def _some(self, stream: str) -> list[str]:
        known = self.known.get(stream) or [1 << 64]
        return [ids.format(self._chance.choice(known)) for _ in range(self._chance.randint(1, 3))]

    def _bodies(self, count: int) -> list[bytes]:
        self._serial += count
        text = "v" * self._chance.choice((0, 1, 20, 300))
        return [entries.body([("n", f"{self._serial - at}"), ("v", text)]) for at in range(count)]

    @staticmethod
    def _words(words: str) -> Command:
        request = parse([word.encode() for word in words.split()])
        assert isinstance(request, CommandRequest), words
        assert request.command is not None, words
        return request.command


class StoringClients(Clients):
    """The same where full nodes go to files: more of what looks into these, and takes parts of them."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        less = {self._remove: 1, self._configure: 0, self._publish: 1}
        kinds = [(less.get(kind, weight), kind) for weight, kind in self._kinds]
        self._kinds = (*kinds, (16, self._add), (9, self._of_files))

    def opening(self) -> list[Command]:
        """Nodes are full early, and there is something to fork."""
        made = CreateDurable(
            stream="d", media="text/plain", bodies=[_data(f"{number}") for number in range(9)]
        )
        first = [XAdd(stream=name, bodies=self._bodies(12)) for name in ("s", "t")]
        return [*super().opening(), self._words("CONFIG SET stream-node-max-entries 2"), made, *first]

    def _of_files(self) -> Command:
        stream, other = self._chance.choice(("s", "t")), self._chance.choice(STREAMS)
        some, known = self._some(stream), self.known.get(stream) or [1 << 64]
        start = self._chance.randrange(len(known))
        thinned = [ids.format(one) for one in known[start : start + 9] if self._chance.random() < 0.8]
        kinds = (
            f"XDEL {stream} {' '.join(thinned or some)}",
            f"XTRIM {stream} MINID {some[0]}",
            f"XRANGE {stream} - {some[0]} COUNT 4",
            f"XADD {stream} MAXLEN 12 * n trimmed",
            f"COPY {stream} {other} REPLACE",
            f"RENAME {stream} {other}",
            "fork",
        )
        words = self._chance.choices(kinds, (4, 2, 2, 2, 1, 1, 2))[0]
        return self._fork() if words == "fork" else self._words(words)

    def _fork(self) -> Command:
        """Of a part of a stream, mostly: it may end within a run."""
        stream, source = self._chance.choice(DURABLE), self._chance.choice(DURABLE)
        known = self.known.get(source)
        upto = self._chance.choice(known) if known and self._chance.random() < 0.8 else None
        return CreateDurable(stream=stream, media="", fork=ForkPoint(source, upto))


def _data(text: str) -> bytes:
    return entries.body([("data", text)])
