"""Trims streams up to what an archive surely holds and every group has finished, never further.

Knows: which bounds a trim has, and what is compared before it.
Must never know: Spark, what is printed, whether the user has agreed.

A plan is made from one version of the table: what is committed later is trimmed by the next one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_weir import gateway as calls
from pyspark_weir import ids
from pyspark_weir.errors import Refused
from pyspark_weir.gateway import Gateway, PlanQuery, StreamPlan
from pyspark_weir.gateway.client import of_stream
from pyspark_weir.ids import EntryId
from pyspark_weir.table.counting import count, ids_of
from pyspark_weir.table.deletions import record
from pyspark_weir.table.errors import ArchiveDamagedError, ArchiveError
from pyspark_weir.table.files import DataFile, prove
from pyspark_weir.table.ranges import StreamKey, gaps
from pyspark_weir.table.schema import id_of_key
from pyspark_weir.table.table import ArchiveTable, Selection

_ARCHIVED: Final = "the archive ends there"
_SETTLED: Final = "the archive job has not settled what comes after: let it run once more"
_PAGE_ENTRIES: Final = 10_000


@dataclass(frozen=True)
class Rules:
    """What is kept besides what must be: entries of the last `keep_ms`, of each stream the last `keep_last`.

    `ignored_groups` hold nothing back here, but the gateway's own guard knows nothing of that.
    """

    keep_ms: int = 0
    keep_last: int = 0
    ignored_groups: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Bound:
    """Entries up to `upto` may go; `why` says what forbids more."""

    upto: EntryId
    why: str


# A trim names the lowest ID that stays, and none comes after the highest of all.
_FULL: Final = Bound(ids.previous_id(ids.LAST), "no ID comes after the last entry's")


@dataclass(frozen=True)
class Planned:
    """What may be trimmed of a stream: its `entries` up to `upto`, none of which is only in the gateway.

    `archived`: how many entries of that range the archive holds; more than `entries` where some were deleted
    since. `first` is the gateway's first. `refused`: why the stream is not touched, None where it may be.
    """

    key: StreamKey
    upto: str
    why: str
    entries: int = 0
    archived: int = 0
    first: str = ids.BEGINNING
    refused: str | None = None

    @property
    def minid(self) -> str:
        """The lowest ID that stays: a trim by ID keeps what is not below it."""
        return str(ids.next_id(ids.parse(self.upto)))


@dataclass(frozen=True)
class Trimmed:
    """What a trim did: `deleted` entries, or why it was refused after all."""

    planned: Planned
    deleted: int = 0
    refused: str | None = None


def group_bound(name: str, last_delivered: str, oldest_pending: str | None) -> Bound:
    """What a group has finished: all that it was given, before the oldest that it has not acknowledged."""
    delivered = ids.parse(last_delivered)
    if oldest_pending is None:
        return Bound(delivered, f"group {name} has read up to there")
    finished = ids.previous_id(ids.parse(oldest_pending))
    if finished < delivered:
        return Bound(finished, f"group {name} has still to acknowledge {oldest_pending}")
    return Bound(delivered, f"group {name} has read up to there")


def age_bound(now_ms: int, keep_ms: int) -> Bound:
    """What is older than `keep_ms`, by the time in its ID."""
    edge = EntryId(max(0, now_ms - keep_ms), 0)
    return Bound(ids.previous_id(edge), "what comes after is younger than --keep")


def count_bound(first_kept: str) -> Bound:
    """What comes before the last so many."""
    return Bound(ids.previous_id(ids.parse(first_kept)), "what comes after is among --keep-last")


def lowest(bounds: Iterable[Bound]) -> Bound:
    """The bound that all allow; of equal ones the first."""
    return min(bounds, key=lambda bound: bound.upto)


def plan(table: ArchiveTable, gateways: Mapping[str, Gateway], rules: Rules, now_ms: int) -> list[Planned]:
    """What may be trimmed, for every stream of the archive. Changes nothing.

    Raises ArchiveError where ranges are not contiguous from the beginning; Refused, Unavailable.
    """
    for gap in gaps(table.ranges()):
        raise ArchiveDamagedError(f"{gap.key}: entries up to {gap.after} are in no batch; run verify")
    by_gateway: dict[str, dict[str, StreamKey]] = {}
    for (gateway, stream), position in table.positions().items():
        by_gateway.setdefault(gateway, {})[stream] = StreamKey(gateway, stream, position.generation)
    planned: list[Planned] = []
    for name, keys in sorted(by_gateway.items()):
        if name not in gateways:
            why = f"the archive knows a gateway {name}, and none was named so"
            planned += [Planned(key, ids.BEGINNING, why, refused=why) for key in keys.values()]
            continue
        one = _Planner(table, gateways[name], rules, now_ms)
        for some in calls.of_one_call(dict(sorted(keys.items()))):
            planned += one.planned(some)
    return planned


def run(
    table: ArchiveTable, gateways: Mapping[str, Gateway], planned: Iterable[Planned]
) -> Iterator[Trimmed]:
    """Trim what was planned; guarded, so that a group that came in between loses nothing.

    What was deleted from a stream since it was archived is recorded before: afterwards nothing shows it.
    """
    for one in planned:
        if one.refused is not None or not one.entries:
            continue
        gateway = gateways[one.key.gateway]
        try:
            record(table.root, {one.key: ids.parse(one.upto)}, {one.key: _deleted(table, gateway, one)})
            answer = calls.trim(gateway, one.key.stream, minid=one.minid, guard=True)
        except (Refused, ArchiveError) as refused:
            yield Trimmed(one, refused=refused.sentence)
        else:
            yield Trimmed(one, deleted=answer["deleted"])


def _deleted(table: ArchiveTable, gateway: Gateway, one: Planned) -> Iterator[EntryId]:
    """The archived entries of a planned range that the gateway does not have."""
    if one.archived == one.entries:
        return
    after, upto = ids.previous_id(ids.parse(one.first)), ids.parse(one.upto)
    files = table.files(Selection(*one.key, after=after, upto=upto))
    living = _ids_in(gateway, one.key.stream, after, one.upto)
    next_living = next(living, None)
    for piece in ids_of(table.root, files, one.key, after, upto):
        for archived in map(id_of_key, piece.column("id_key").to_pylist()):
            while next_living is not None and next_living < archived:
                next_living = next(living, None)
            if next_living != archived:
                yield archived


def _ids_in(gateway: Gateway, stream: str, after: EntryId, end: str) -> Iterator[EntryId]:
    cursor = str(after)
    while True:
        page = calls.page(gateway, stream, after=cursor, end=end, count=_PAGE_ENTRIES)
        yield from map(EntryId, page.ms, page.seq)
        if not page.more:
            return
        cursor = page.next_id


class _Planner:
    """The streams of one gateway."""

    def __init__(self, table: ArchiveTable, gateway: Gateway, rules: Rules, now_ms: int) -> None:
        self._table = table
        self._gateway = gateway
        self._rules = rules
        self._now_ms = now_ms
        self._uptos = {one.key: one.upto for one in table.ranges()}

    def planned(self, keys: Mapping[str, StreamKey]) -> list[Planned]:
        beginnings = dict.fromkeys(sorted(keys), ids.BEGINNING)
        whole = calls.plan(self._gateway, PlanQuery(streams=beginnings)).streams
        bounds = {
            stream: self._bound(key, whole[stream])
            for stream, key in keys.items()
            if stream in whole and whole[stream].generation == key.generation
        }
        ends = {stream: str(bound.upto) for stream, bound in bounds.items()}
        asked = PlanQuery(streams={stream: beginnings[stream] for stream in bounds}, end=ends)
        ranges = calls.plan(self._gateway, asked).streams
        compared = {
            keys[stream]: (bounds[stream], ranges[stream])
            for stream in bounds
            if stream in ranges and ranges[stream].generation == keys[stream].generation
        }
        archived = self._archived(compared)
        found: list[Planned] = []
        for stream, key in keys.items():
            if key in compared:
                found.append(_compared(key, *compared[key], archived[key]))
            elif stream in whole and whole[stream].generation != key.generation:
                found.append(_other_generation(key, whole[stream]))
            else:
                found.append(Planned(key, ids.BEGINNING, "the gateway has no such stream"))
        return found

    def _archived(self, compared: Mapping[StreamKey, tuple[Bound, StreamPlan]]) -> dict[StreamKey, int | str]:
        """How many entries of each range the files hold, each of them proven; or what is wrong with one."""
        wanted = {
            key: (ids.previous_id(ids.parse(found.first)), bound.upto)
            for key, (bound, found) in compared.items()
            if found.count and found.first is not None
        }
        files = {
            key: self._table.files(Selection(*key, after=after, upto=upto))
            for key, (after, upto) in wanted.items()
        }
        wrong: dict[StreamKey, str] = {}
        proven: dict[str, DataFile] = {}
        for key, own in files.items():
            try:
                for file in own:
                    if file.path not in proven:
                        prove(self._table.root, file)
                        proven[file.path] = file
            except ArchiveDamagedError as error:
                wrong[key] = error.sentence
        sound = {key: one for key, one in wanted.items() if key not in wrong}
        try:
            counted = count(self._table.root, proven.values(), sound)
        except ArchiveDamagedError as error:
            return dict.fromkeys(compared, error.sentence)
        return {key: wrong.get(key, counted.get(key, 0)) for key in compared}

    def _bound(self, key: StreamKey, seen: StreamPlan) -> Bound:
        stream = key.stream
        bounds = [Bound(self._uptos[key], _ARCHIVED), _FULL, self._settled(stream)]
        for group in calls.groups(self._gateway, stream):
            name = group["name"]
            if name in self._rules.ignored_groups:
                continue
            oldest = (
                calls.pending(self._gateway, stream, name, count=1)["pending"] if group["pending"] else []
            )
            bounds.append(group_bound(name, group["last_delivered_id"], oldest[0]["id"] if oldest else None))
        if self._rules.keep_ms:
            bounds.append(age_bound(self._now_ms, self._rules.keep_ms))
        if self._rules.keep_last:
            bounds.append(self._last(stream, seen))
        return lowest(bounds)

    def _settled(self, stream: str) -> Bound:
        """What the archive job has reported to the gateway. A driver that dies after the table's commit reads
        its batch again, and what is missing then would look like a loss.
        """
        shown = calls.stream(self._gateway, stream)
        return Bound(ids.ZERO if shown is None else ids.parse(shown["archived_up_to"]), _SETTLED)

    def _last(self, stream: str, seen: StreamPlan) -> Bound:
        if seen.first is None or seen.count <= self._rules.keep_last:
            return count_bound(seen.first or ids.BEGINNING)
        body = {"maxlen": self._rules.keep_last, "approx": False, "dry_run": True}
        path = f"{of_stream(stream)}/trim"
        answer = self._gateway.post(path, body, repeatable=True, about=f"counting {stream} from its end")
        return count_bound(answer["first_id"])


def _compared(key: StreamKey, bound: Bound, found: StreamPlan, archived: int | str) -> Planned:
    upto = str(bound.upto)
    if not found.count or found.first is None:
        return Planned(key, upto, bound.why)
    if isinstance(archived, str):
        return Planned(key, upto, bound.why, found.count, refused=archived)
    refused = None
    if archived < found.count:
        refused = (
            f"the gateway holds {found.count} entries up to {upto}, the archive {archived} of them: "
            "run verify to see which are missing"
        )
    return Planned(key, upto, bound.why, found.count, archived, found.first, refused)


def _other_generation(key: StreamKey, found: StreamPlan) -> Planned:
    refused = (
        f"the stream was made anew: the archive holds generation {key.generation}, the gateway "
        f"{found.generation}; archive it first"
    )
    return Planned(key, ids.BEGINNING, refused, refused=refused)
