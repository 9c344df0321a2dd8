"""A stream as plain lists and dicts: what the naive model keeps, and the rules of docs/semantics.md.

Knows: entries in nodes of a fixed size, trimming, references, counters and lag, word for word.
Must never know: the engine's code. Slow on purpose: everything is a walk over a list.
"""

from dataclasses import dataclass, field
from typing import Final

Id = tuple[int, int]

ZERO: Final[Id] = (0, 0)
SEQUENCE_MAX: Final = 2**64 - 1
COUNT_MAX: Final = 2**63 - 1
ID_MAX: Final[Id] = (SEQUENCE_MAX, SEQUENCE_MAX)
INVALID_ID: Final = "ERR Invalid stream ID specified as stream command argument"


class Refusal(Exception):  # noqa: N818 - Redis's word for it
    """What Redis answers instead of a reply."""


def parse_id(text: str) -> Id:
    ms, _, sequence = text.partition("-")
    return int(ms), int(sequence or 0)


def show(entry_id: Id) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"


def after(entry_id: Id) -> Id:
    ms, sequence = entry_id
    return (ms + 1, 0) if sequence == SEQUENCE_MAX else (ms, sequence + 1)


def before(entry_id: Id) -> Id:
    ms, sequence = entry_id
    return (ms, sequence - 1) if sequence else (ms - 1, SEQUENCE_MAX)


@dataclass
class ModelTrim:
    """The words of MAXLEN or MINID."""

    kind: str
    threshold: str
    approx: bool = False
    limit: int | None = None

    def words(self) -> list[str]:
        limit = [] if self.limit is None else ["LIMIT", str(self.limit)]
        return [self.kind, *(["~"] if self.approx else []), self.threshold, *limit]


@dataclass
class ModelEntry:
    """An entry. Deleted ones stay in their node, as in Redis."""

    id: Id
    fields: list[str]
    live: bool = True


@dataclass
class ModelPending:
    """A pending entry. `order` counts deliveries and releases."""

    owner: str | None
    time: int
    count: int
    order: int
    # When it comes back, if it is deferred.
    until: int | None = None

    def place(self) -> tuple[bool, int, int]:
        """Released ones first, then by time of delivery."""
        return self.owner is not None, self.time, self.order


@dataclass
class ModelConsumer:
    """When it was seen, and when it got something."""

    seen: int
    active: int = -1


@dataclass
class ModelGroup:
    """A group. `read` None is unknown."""

    last: Id
    read: int | None
    pending: dict[Id, ModelPending] = field(default_factory=dict)
    consumers: dict[str, ModelConsumer] = field(default_factory=dict)
    deliveries: int = 0
    paused: bool = False

    def deliver(
        self, entry_id: Id, owner: str | None, time: int, count: int, until: int | None = None
    ) -> None:
        self.deliveries += 1
        self.pending[entry_id] = ModelPending(owner, time, count, self.deliveries, until)

    def in_order_of_delivery(self) -> list[tuple[Id, ModelPending]]:
        here = [item for item in self.pending.items() if item[1].until is None]
        return sorted(here, key=lambda item: item[1].place())

    def deferred_until(self, now: int) -> list[tuple[Id, ModelPending]]:
        """Those whose time has come, in the order in which they come back."""
        due = [item for item in self.pending.items() if item[1].until is not None and item[1].until <= now]
        return sorted(due, key=lambda item: (item[1].until or 0, item[1].order))

    def by_id(self, owner: str | None = None) -> list[tuple[Id, ModelPending]]:
        return [item for item in sorted(self.pending.items()) if owner is None or item[1].owner == owner]


@dataclass
class ModelStream:
    """A stream with its groups, and idempotent idempotency_table: producer → key → ID."""

    nodes: list[list[ModelEntry]] = field(default_factory=list)
    # Where the next entry goes: one before it is never opened again, also where the limit was raised.
    open_node: list[ModelEntry] = field(default_factory=list)
    last: Id = ZERO
    max_deleted: Id = ZERO
    added: int = 0
    groups: dict[str, ModelGroup] = field(default_factory=dict)
    idempotency_table: dict[str, dict[object, Id]] = field(default_factory=dict)
    keys_added: int = 0
    duplicates: int = 0
    idmp_duration: int = 100
    idmp_maxsize: int = 100
    # When it goes, by the wall clock.
    expires: int | None = None
    # When it was closed, and why.
    closed: tuple[int, str] | None = None

    def entries(self) -> list[ModelEntry]:
        return [entry for node in self.nodes for entry in node if entry.live]

    def find(self, entry_id: Id) -> ModelEntry | None:
        return next((entry for entry in self.entries() if entry.id == entry_id), None)

    @property
    def length(self) -> int:
        return len(self.entries())

    @property
    def first(self) -> Id:
        return min((entry.id for entry in self.entries()), default=ZERO)

    @property
    def top(self) -> Id:
        return max((entry.id for entry in self.entries()), default=ZERO)

    def append(self, entry_id: Id, fields: list[str], node_max: int) -> None:
        if not self.nodes or self.nodes[-1] is not self.open_node or len(self.nodes[-1]) >= node_max:
            self.open_node = []
            self.nodes.append(self.open_node)
        self.nodes[-1].append(ModelEntry(entry_id, fields))
        self.last = entry_id
        self.added += 1

    def remove(self, entry_id: Id, *, deleted: bool) -> bool:
        entry = self.find(entry_id)
        if entry is None:
            return False
        entry.live = False
        self.nodes = [node for node in self.nodes if any(each.live for each in node)]
        if deleted:
            self.max_deleted = max(self.max_deleted, entry_id)
        return True

    # --- references -----------------------------------------------------------------------------------------

    def is_referenced(self, entry_id: Id) -> bool:
        groups = self.groups.values()
        unread = any(entry_id > group.last for group in groups)
        return unread or any(entry_id in group.pending for group in groups)

    def drop_references(self, entry_id: Id) -> None:
        for group in self.groups.values():
            group.pending.pop(entry_id, None)

    # --- trimming -----------------------------------------------------------------------------------------

    def trim(self, trim: ModelTrim, refs: str, node_max: int) -> int:
        limit = self._limit(trim, node_max)
        removed = 0
        for node in list(self.nodes):
            live = [entry for entry in node if entry.live]
            if self._reached(trim) or (limit and removed + len(live) > limit):
                break
            eligible = self._eligible(trim, node, len(live))
            if trim.approx and refs == "KEEPREF" and not eligible:
                break
            for entry in live:
                if self._kept(trim, entry):
                    break
                if refs == "ACKED" and self.is_referenced(entry.id):
                    continue
                if refs == "DELREF":
                    self.drop_references(entry.id)
                removed += self.remove(entry.id, deleted=False)
            if not eligible:
                break
        return removed

    @staticmethod
    def _limit(trim: ModelTrim, node_max: int) -> int:
        if not trim.approx:
            return 0
        return min(100 * node_max, 1_000_000) if trim.limit is None else trim.limit

    def _reached(self, trim: ModelTrim) -> bool:
        return trim.kind == "MAXLEN" and self.length <= int(trim.threshold)

    def _eligible(self, trim: ModelTrim, node: list[ModelEntry], live: int) -> bool:
        if trim.kind == "MAXLEN":
            return self.length - live >= int(trim.threshold)
        return node[-1].id < parse_id(trim.threshold)

    def _kept(self, trim: ModelTrim, entry: ModelEntry) -> bool:
        return self._reached(trim) or (trim.kind == "MINID" and entry.id >= parse_id(trim.threshold))

    # --- entries-read and lag: docs/semantics.md, Lag ----------------------------------------------------

    def has_tombstone_from(self, entry_id: Id) -> bool:
        return self.length > 0 and self.max_deleted != ZERO and entry_id <= self.max_deleted

    def estimate(self, entry_id: Id) -> int | None:
        if self.added == 0:
            return 0
        if self.length == 0 and entry_id <= self.last:
            return self.added
        if entry_id != ZERO and entry_id < self.max_deleted:
            return None
        if entry_id == self.last:
            return self.added
        if entry_id > self.last:
            return None
        if self.max_deleted == ZERO or self.max_deleted < self.first:
            if entry_id < self.first:
                return self.added - self.length
            if entry_id == self.first:
                return self.added - self.length + 1
        return None

    def read_on(self, group: ModelGroup, entry_id: Id) -> None:
        """Move the group to a new entry that it was given."""
        known = group.read is not None
        if known and group.last >= self.first and not self.has_tombstone_from(group.last):
            group.read = (group.read or 0) + 1
        elif self.added > 0:
            group.read = self.estimate(entry_id)
        group.last = entry_id

    def lag(self, group: ModelGroup) -> int | None:
        if self.added == 0 or self.length == 0:
            return 0
        if group.last < self.first and self.max_deleted < self.first:
            return self.length
        if group.read is not None and not self.has_tombstone_from(group.last):
            return self.added - group.read
        seen = self.estimate(group.last)
        return None if seen is None else self.added - seen
