"""Long random histories over the wire, in pipelines: many for the price of one of `differential.py`.

The commands are drawn once and picked at random from then on; what a history sends is one pipeline or one
transaction after the other. After each, all that XINFO STREAM FULL shows is compared too. What the two answer
differently on purpose is left out by the same rules as in `tests/engine/test_beside_redis.py`.

Knows: how a history is made, played again and made short.
Must never know: what a command should answer.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.engine.model_state import Id, parse_id, show
from tests.engine.running import same
from tests.engine.steps import (
    GROUPS,
    KEYS,
    PAST_MS,
    Adding,
    ModelStep,
    adding,
    blocking,
    commands,
    consumer_made,
    full,
    grouping,
    near,
)
from tests.engine.test_beside_redis import FORGETTING, NO_BOUND, READERS_MAX, REMOVING, below, comparable
from tests.engine.world import pairs_of

Words = tuple[str, ...]
Drawn = TypeVar("Drawn")

EVENTS_OF_A_HISTORY: Final = 60
PIPELINE_MAX: Final = 12
NODE_MAX: Final = 100
_STATE: Final = [full(key).words for key in KEYS]
_AT_ONCE: Final = 20


@dataclass(frozen=True)
class Event:
    """What both get: a `pipeline`, a `transaction`, a `read` that may wait, or a reader that `leaves`."""

    kind: str
    commands: tuple[Words, ...] = ()
    reader: str = ""


class DifferenceError(AssertionError):
    """The two have not answered the same."""


def draw(strategy: st.SearchStrategy[Drawn], number: int, seed_number: int) -> list[Drawn]:
    """Many examples of a strategy."""
    found: list[Drawn] = []

    @seed(seed_number)
    @settings(
        max_examples=max(1, number // _AT_ONCE),
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(strategy, min_size=_AT_ONCE, max_size=_AT_ONCE))
    def collect(some: list[Drawn]) -> None:
        found.extend(some)

    collect()
    return found


class Pair:
    """A server and a gateway that get the same events."""

    def __init__(self, server: Any, gateway: Any) -> None:
        self._server, self._gateway = server, gateway
        # What the server has: XINFO STREAM FULL of each stream, an error where there is none.
        self.state: list[object] = []

    @property
    def waiting(self) -> list[str]:
        """The readers that wait."""
        found: list[str] = self._server.waiting
        return found

    def empty(self) -> None:
        """Begin anew."""
        self._server.empty()
        self._gateway.empty()

    def play(self, event: Event) -> None:
        """Have both do it. Raises DifferenceError."""
        if event.kind == "leaves":
            for peer in (self._server, self._gateway):
                peer.cancel(event.reader)
        elif event.kind == "read":
            self._server.block(event.reader, *event.commands[0])
            self._gateway.block_words(event.reader, *event.commands[0])
        elif event.kind == "pipeline":
            self._compare(event.commands, *(peer.pipeline(event.commands) for peer in self._peers()))
        else:
            self._compare(event.commands, *(peer.transaction(*event.commands) for peer in self._peers()))
        self._compare_served(event)
        state = [peer.pipeline(_STATE) for peer in self._peers()]
        self._compare(_STATE, *state)
        self.state = state[0]

    def _peers(self) -> tuple[Any, Any]:
        return self._server, self._gateway

    def _compare(self, commands: Sequence[Words], theirs: Sequence[object], ours: Sequence[object]) -> None:
        for words, expected, reply in zip(commands, theirs, ours, strict=True):
            if not same(comparable(words, expected), comparable(words, reply)):
                raise DifferenceError(f"{' '.join(words)}\n  server  {expected}\n  gateway {reply}")

    def _compare_served(self, event: Event) -> None:
        if not self.waiting:
            return
        theirs, ours = self._server.served(), self._gateway.served()
        words = event.commands[0] if event.kind == "read" else ("XREAD",)
        shown = [
            sorted((name, comparable(words, reply)) for name, reply in found.items())
            for found in (theirs, ours)
        ]
        if not same(*shown) or self._gateway.readers_waiting != len(self.waiting):
            raise DifferenceError(f"readers\n  server  {theirs}\n  gateway {ours}")


def shorten(pair: Pair, events: Sequence[Event]) -> list[Event]:
    """The same difference, or another one, with nothing in it that could be left out."""
    kept = list(events)
    place = len(kept)
    while place:
        place -= 1
        event = kept[place]
        fewer = [
            [*kept[:place], *kept[place + 1 :]],
            *(
                [*kept[:place], replace(event, commands=_without(event.commands, one)), *kept[place + 1 :]]
                for one in range(len(event.commands))
                if len(event.commands) > 1
            ),
        ]
        for candidate in fewer:
            if differs(pair, candidate):
                kept = candidate
                # The event may have more to lose; where it is gone, the one before it comes next.
                place = min(place + 1, len(kept))
                break
    return kept


def _without(commands: tuple[Words, ...], place: int) -> tuple[Words, ...]:
    return (*commands[:place], *commands[place + 1 :])


def differs(pair: Pair, events: Sequence[Event]) -> bool:
    """Whether this history, from an empty server, gives a difference."""
    pair.empty()
    try:
        for event in events:
            if event.kind != "leaves" or event.reader in pair.waiting:
                pair.play(event)
    except DifferenceError:
        return True
    return False


class History:
    """Random events, as far as the two should agree on them."""

    def __init__(self, pair: Pair, pool: Sequence[ModelStep | Adding], reads: Sequence[ModelStep]) -> None:
        self._pair, self._pool, self._reads = pair, pool, reads
        self.events: list[Event] = []
        self._node_max = NODE_MAX
        # Deleted entries are not above it. XSETID may lower what XINFO shows.
        self._deleted_max: Id = (0, 0)

    def play(self, random: random.Random) -> int:
        """Play it; the number of commands. Raises DifferenceError."""
        self._pair.empty()
        groups = GROUPS[: random.randrange(4)]
        start = random.choice(["0", "0", "$", "1-1"])
        first = [adding("s", show(entry_id)) for entry_id in near[: random.randrange(6)]]
        first += [grouping("s", group, start) for group in groups]
        self._do(Event("pipeline", tuple(step.words for step in first)))
        number = len(first)
        for serial in range(EVENTS_OF_A_HISTORY):
            chosen = random.random()
            waiting = self._pair.waiting
            if chosen < 0.1 and len(waiting) < READERS_MAX:
                read = random.choice(self._reads)
                self._make([read], "pipeline", only_makers=True)
                self._do(Event("read", (read.blocking_words(),), f"reader {serial}"))
                number += 1
            elif chosen < 0.15 and waiting:
                self._do(Event("leaves", reader=random.choice(waiting)))
            else:
                steps = random.choices(self._pool, k=random.randint(1, PIPELINE_MAX))
                number += self._make(steps, "transaction" if chosen > 0.85 else "pipeline")
        return number

    def _do(self, event: Event) -> None:
        if event.kind in {"pipeline", "transaction"} and not event.commands:
            return
        self.events.append(event)
        self._pair.play(event)
        for key in KEYS:
            found = self._info(key)
            if found:
                self._deleted_max = max(self._deleted_max, parse_id(str(found["max-deleted-entry-id"])))

    def _info(self, key: str) -> dict[Any, Any]:
        info = self._pair.state[KEYS.index(key)] if self._pair.state else ""
        return {} if isinstance(info, str) else pairs_of(info)

    def _make(self, steps: Sequence[ModelStep | Adding], kind: str, *, only_makers: bool = False) -> int:
        """Send the commands together; how many of them were sent."""
        last = {key: parse_id(str(self._info(key).get("last-generated-id", "0-0"))) for key in KEYS}
        sent: list[Words] = []
        number = 0
        for step in steps:
            made = step if isinstance(step, ModelStep) else step.after(last[step.key])
            if isinstance(step, Adding):
                last[step.key] = max(last[step.key], _id_of(made, step))
            if self._is_left_out(made.words, is_first=not sent):
                continue
            sent += [each.words for each in consumer_made(made)]
            if not only_makers:
                sent.append(made.words)
                number += 1
        if len(sent) > 1 or kind == "pipeline":
            self._do(Event(kind, tuple(sent)))
        return number

    def _is_left_out(self, words: Words, *, is_first: bool) -> bool:
        """Whether the two would differ on purpose. Some depends on the state, which is known at the first."""
        if words[0] == "XSETID":
            return not is_first or parse_id(words[2]) < self._deleted_max
        if words[0] == "CONFIG":
            lower = int(words[-1]) <= self._node_max or not any(map(self._info, KEYS))
            if is_first and lower:
                self._node_max = int(words[-1])
            return not (is_first and lower)
        if below(words) < NO_BOUND and (not is_first or below(words) <= self._deleted_max):
            return True
        if not self._pair.waiting:
            return False
        expires = words[0] == "PEXPIREAT" and int(words[2]) == PAST_MS
        removes = expires or words[0] in REMOVING or words[:2] in FORGETTING
        return removes or (words[0] == "XADD" and bool({"MAXLEN", "MINID"} & set(words)))


def _id_of(made: ModelStep, step: Adding) -> Id:
    text = made.words[-len(step.values) - 1]
    ms, _, sequence = text.partition("-")
    return int(ms), int(sequence) if sequence.isdigit() else 0


def compare(server: Any, gateway: Any, *, steps: int, drawn: int, seed_number: int) -> tuple[int, int]:
    """Play histories until there were as many commands; the numbers of histories and commands."""
    pair = Pair(server, gateway)
    chance = random.Random(seed_number)
    pool = draw(commands(newest=False), drawn, seed_number)
    reads = draw(blocking(newest=False), drawn // 20, seed_number)
    histories = played = 0
    while played < steps:
        history = History(pair, pool, reads)
        try:
            played += history.play(chance)
        except DifferenceError as difference:
            events = shorten(pair, history.events)
            shown = "\n".join(f"{event.kind} {event.reader} {_shown(event)}" for event in events)
            raise DifferenceError(f"seed {seed_number}, history {histories}: {difference}\n{shown}") from None
        histories += 1
    pair.empty()
    return histories, played


def _shown(event: Event) -> str:
    return "; ".join(map(" ".join, event.commands))
