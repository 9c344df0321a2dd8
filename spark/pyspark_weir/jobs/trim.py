"""Trims streams up to what an archive surely holds and every group has finished, never further.

Knows: which bounds a trim has, and what is compared before it.
Must never know: Spark, what is printed, whether the user has agreed.

A plan is made from one version of the table: what is committed later is trimmed by the next one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveDamagedError, ArchiveError, RefusedError
from pyspark_weir.gateway import Answer, GatewayClient, PlannedRange, PlanQuery, of_one_call
from pyspark_weir.ids import EntryId
from pyspark_weir.jobs.comparing import compare_entries, hint_of_erased, keys_by_gateway
from pyspark_weir.table.deletions import record
from pyspark_weir.table.files import DataFile, prove
from pyspark_weir.table.ranges import StreamKey, gaps
from pyspark_weir.table.reading import count
from pyspark_weir.table.schema import id_of_key
from pyspark_weir.table.table import ArchiveTable, EntryFilter

# Deletions of this many streams are recorded in one commit; what is deleted between that and a trim is
# not recorded.
_RECORDED_AT_ONCE: Final = 100
_ARCHIVED: Final = "the archive ends there"
_SETTLED: Final = "the archive job has not settled what comes after: let it run once more"


@dataclass(frozen=True)
class TrimRules:
    """What is kept besides what must be: what is younger than `keep_ms`, and the last `keep_last` entries."""

    keep_ms: int = 0
    keep_last: int = 0


@dataclass(frozen=True)
class Bound:
    """Entries up to `upto` may go; `why` says what forbids more."""

    upto: EntryId
    why: str


# A trim names the lowest ID that stays, and none comes after the highest of all.
_FULL: Final = Bound(ids.previous_id(ids.LAST), "no ID comes after the last entry's")


@dataclass(frozen=True)
class TrimProposal:
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
class TrimResult:
    """What a trim did: `deleted` entries, or why it was refused after all."""

    planned: TrimProposal
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
    """What comes before the newest entries, which are kept."""
    return Bound(ids.previous_id(ids.parse(first_kept)), "what comes after is among --keep-last")


def lowest(bounds: Iterable[Bound]) -> Bound:
    """The bound that all allow; of equal ones the first."""
    return min(bounds, key=lambda bound: bound.upto)


def plan(
    table: ArchiveTable, gateways: Mapping[str, GatewayClient], rules: TrimRules, now_ms: int
) -> list[TrimProposal]:
    """What may be trimmed, for every stream of the archive. Changes nothing.

    Raises ArchiveError where ranges are not contiguous from the beginning; RefusedError, Unavailable.
    """
    for gap in gaps(table.ranges()):
        raise ArchiveDamagedError(f"{gap.key}: entries up to {gap.after} are in no batch; run verify")
    planned: list[TrimProposal] = []
    for name, keys in keys_by_gateway(table).items():
        if name not in gateways:
            why = f"the archive knows a gateway {name}, and none was named so"
            planned += [TrimProposal(key, ids.BEGINNING, why, refused=why) for key in keys.values()]
            continue
        one = _Planner(table, gateways[name], rules, now_ms)
        for some in of_one_call(keys):
            planned += one.plan(some)
    return planned


def run(
    table: ArchiveTable, gateways: Mapping[str, GatewayClient], planned: Iterable[TrimProposal]
) -> Iterator[TrimResult]:
    """Trim what was planned; guarded, so that a group that came in between loses nothing.

    Before that all of it is read, in the archive and in the gateway, and compared. What was deleted from a
    stream since it was archived is recorded: afterwards nothing shows it.
    """
    due = [one for one in planned if one.refused is None and one.entries]
    for start in range(0, len(due), _RECORDED_AT_ONCE):
        some = due[start : start + _RECORDED_AT_ONCE]
        refused = _record(table, gateways, some)
        for one in some:
            why = refused.get(one.key)
            yield _trim(gateways[one.key.gateway], one) if why is None else TrimResult(one, refused=why)


def _record(
    table: ArchiveTable, gateways: Mapping[str, GatewayClient], due: Sequence[TrimProposal]
) -> dict[StreamKey, str]:
    """Compare these ranges, entry by entry, and record what was deleted of them, in one commit; why some must
    not be trimmed.
    """
    refused: dict[StreamKey, str] = {}
    deleted: dict[StreamKey, list[EntryId]] = {}
    for one in due:
        try:
            deleted[one.key] = list(_find_deleted(table, gateways[one.key.gateway], one))
        except (RefusedError, ArchiveError) as error:
            refused[one.key] = error.sentence
    try:
        record(table.root, {one.key: ids.parse(one.upto) for one in due if one.key in deleted}, deleted)
    except ArchiveError as error:
        refused |= dict.fromkeys(deleted, error.sentence)
    return refused


def _trim(gateway: GatewayClient, one: TrimProposal) -> TrimResult:
    try:
        return TrimResult(one, deleted=gateway.trim(one.key.stream, minid=one.minid, guard=True))
    except RefusedError as refused:
        return TrimResult(one, refused=refused.sentence)


def _find_deleted(table: ArchiveTable, gateway: GatewayClient, one: TrimProposal) -> Iterator[EntryId]:
    """The archived entries of a planned range that the gateway does not have. Raises ArchiveDamagedError
    where the archive does not hold the others as the gateway does: it is about to be all that has them.
    """
    after, upto = ids.previous_id(ids.parse(one.first)), ids.parse(one.upto)
    for part in compare_entries(table, gateway, one.key, after, upto):
        if part.fault is not None:
            hint = hint_of_erased(table, one.key)
            raise ArchiveDamagedError(f"{part.fault}{hint or ': run verify --deep'}")
        yield from (id_of_key(key.decode()) for key in part.archived.tolist())


class _Planner:
    """The streams of one gateway."""

    def __init__(self, table: ArchiveTable, gateway: GatewayClient, rules: TrimRules, now_ms: int) -> None:
        self._table = table
        self._gateway = gateway
        self._rules = rules
        self._now_ms = now_ms
        self._uptos = {one.key: one.upto for one in table.ranges()}

    def plan(self, keys: Mapping[str, StreamKey]) -> list[TrimProposal]:
        beginnings = dict.fromkeys(sorted(keys), ids.BEGINNING)
        whole = self._gateway.plan(PlanQuery(streams=beginnings)).streams
        bounds = {
            stream: self._bound(key, whole[stream])
            for stream, key in keys.items()
            if stream in whole and whole[stream].generation == key.generation
        }
        ends = {stream: str(bound.upto) for stream, bound in bounds.items()}
        asked = PlanQuery(streams={stream: beginnings[stream] for stream in bounds}, end=ends)
        ranges = self._gateway.plan(asked).streams
        compared = {
            keys[stream]: (bounds[stream], ranges[stream])
            for stream in bounds
            if stream in ranges and ranges[stream].generation == keys[stream].generation
        }
        archived = self._count_archived(compared)
        found: list[TrimProposal] = []
        for stream, key in keys.items():
            if key in compared:
                found.append(_compare(key, *compared[key], archived[key], hint_of_erased(self._table, key)))
            elif stream in whole and whole[stream].generation != key.generation:
                found.append(_other_generation(key, whole[stream]))
            else:
                found.append(TrimProposal(key, ids.BEGINNING, "the gateway has no such stream"))
        return found

    def _count_archived(
        self, compared: Mapping[StreamKey, tuple[Bound, PlannedRange]]
    ) -> dict[StreamKey, int | str]:
        """How many entries of each range the files hold, each of them proven; or what is wrong with one."""
        wanted = {
            key: (ids.previous_id(ids.parse(found.first)), bound.upto)
            for key, (bound, found) in compared.items()
            if found.count and found.first is not None
        }
        files = {
            key: self._table.files(EntryFilter(*key, after=after, upto=upto))
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

    def _bound(self, key: StreamKey, seen: PlannedRange) -> Bound:
        stream = key.stream
        shown = self._gateway.stream(stream)
        bounds = [Bound(self._uptos[key], _ARCHIVED), _FULL, _settled_bound(shown)]
        for group in self._gateway.groups(stream) if shown is not None and shown["groups"] else ():
            name = group["name"]
            waiting = self._gateway.pending(stream, name, 1) if group["pending"] else iter(())
            oldest = next((one["id"] for one in waiting), None)
            bounds.append(group_bound(name, group["last_delivered_id"], oldest))
        if self._rules.keep_ms:
            bounds.append(age_bound(self._now_ms, self._rules.keep_ms))
        if self._rules.keep_last:
            bounds.append(self._last(stream, seen))
        return lowest(bounds)

    def _last(self, stream: str, seen: PlannedRange) -> Bound:
        if seen.first is None or seen.count <= self._rules.keep_last:
            return count_bound(seen.first or ids.BEGINNING)
        return count_bound(self._gateway.first_of_last(stream, self._rules.keep_last))


def _settled_bound(shown: Answer | None) -> Bound:
    """What the archive job has reported to the gateway. A driver that dies after the table's commit reads its
    batch again, and what is missing then would look like a loss.
    """
    return Bound(ids.ZERO if shown is None else ids.parse(shown["archived_up_to"]), _SETTLED)


def _compare(
    key: StreamKey, bound: Bound, found: PlannedRange, archived: int | str, hint: str
) -> TrimProposal:
    upto = str(bound.upto)
    if not found.count or found.first is None:
        return TrimProposal(key, upto, bound.why)
    if isinstance(archived, str):
        return TrimProposal(key, upto, bound.why, found.count, refused=archived)
    refused = None
    if archived < found.count:
        refused = (
            f"the gateway holds {found.count} entries up to {upto}, the archive {archived} of them"
            f"{hint or ': run verify to see which are missing'}"
        )
    return TrimProposal(key, upto, bound.why, found.count, archived, found.first, refused)


def _other_generation(key: StreamKey, found: PlannedRange) -> TrimProposal:
    """Nothing is left of what was archived, and nothing of the other one is archived yet."""
    why = (
        f"the stream was made anew: the archive holds generation {key.generation}, the gateway "
        f"{found.generation}; archive it first"
    )
    return TrimProposal(key, ids.BEGINNING, why)
