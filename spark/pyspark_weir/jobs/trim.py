"""Trims streams up to what an archive surely holds and every group has finished, never further.

Knows: which bounds a trim has, and what is compared before it.
Must never know: Spark, what is printed, whether the user has agreed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_weir import gateway as calls
from pyspark_weir import ids
from pyspark_weir.errors import Refused
from pyspark_weir.gateway import Gateway, PlanQuery, StreamPlan
from pyspark_weir.gateway.client import of_stream
from pyspark_weir.ids import EntryId
from pyspark_weir.jobs.verify import overlap_findings
from pyspark_weir.manifest import Archive, File, ManifestError, State, StreamKey
from pyspark_weir.parquet import footer_rows, rows_within
from pyspark_weir.place import Place

_ARCHIVED: Final = "the archive ends there"
_SETTLED: Final = "the archive job has not settled what comes after: let it run once more"


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

    `archived`: so many of that range lie in the archive; more than `entries` where some were deleted since.
    `refused`: why nothing of the stream is touched at all; None where nothing is wrong.
    """

    key: StreamKey
    upto: str
    why: str
    entries: int = 0
    archived: int = 0
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


def plan(
    place: Place, archive: Archive, gateways: Mapping[str, Gateway], rules: Rules, now_ms: int
) -> list[Planned]:
    """What may be trimmed, for every stream of the archive. Changes nothing.

    Raises ManifestError, Refused, Unavailable.
    """
    planned: list[Planned] = []
    for shard in sorted({key.shard for key in archive.keys}):
        states = {key.stream: state for key, state in archive.states.items() if key.shard == shard}
        if shard not in gateways:
            why = f"the archive knows a gateway {shard}, and none was named so"
            planned += [
                Planned(StreamKey(shard, stream), ids.BEGINNING, why, refused=why) for stream in states
            ]
            continue
        one = _Shard(place, archive, shard, gateways[shard], rules, now_ms)
        for some in calls.of_one_call(dict(sorted(states.items()))):
            planned += one.planned(some)
    return planned


def run(gateways: Mapping[str, Gateway], planned: Iterable[Planned]) -> Iterator[Trimmed]:
    """Trim what was planned; guarded, so that a group that came in between loses nothing."""
    for one in planned:
        if one.refused is not None or not one.entries:
            continue
        try:
            answer = calls.trim(gateways[one.key.shard], one.key.stream, minid=one.minid, guard=True)
        except Refused as refused:
            yield Trimmed(one, refused=refused.sentence)
        else:
            yield Trimmed(one, deleted=answer["deleted"])


class _Shard:
    """The streams of one gateway."""

    def __init__(
        self, place: Place, archive: Archive, shard: str, gateway: Gateway, rules: Rules, now_ms: int
    ) -> None:
        self._place = place
        self._archive = archive
        self._shard = shard
        self._gateway = gateway
        self._rules = rules
        self._now_ms = now_ms

    def planned(self, states: Mapping[str, State]) -> list[Planned]:
        beginnings = dict.fromkeys(sorted(states), ids.BEGINNING)
        whole = calls.plan(self._gateway, PlanQuery(streams=beginnings)).streams
        bounds = {
            stream: self._bound(stream, state, whole[stream])
            for stream, state in states.items()
            if stream in whole and whole[stream].generation == state.generation
        }
        ends = {stream: str(bound.upto) for stream, bound in bounds.items()}
        asked = PlanQuery(streams={stream: beginnings[stream] for stream in bounds}, end=ends)
        ranges = calls.plan(self._gateway, asked).streams
        found: list[Planned] = []
        for stream, state in states.items():
            key = StreamKey(self._shard, stream)
            if stream not in whole:
                found.append(Planned(key, ids.BEGINNING, "the gateway has no such stream"))
            elif stream not in bounds:
                found.append(_other_generation(key, state, whole[stream]))
            elif stream not in ranges:
                found.append(Planned(key, ids.BEGINNING, "the stream was deleted just now"))
            else:
                found.append(self._compared(key, bounds[stream], state, ranges[stream]))
        return found

    def _bound(self, stream: str, state: State, seen: StreamPlan) -> Bound:
        bounds = [Bound(ids.parse(state.upto), _ARCHIVED), _FULL, self._settled(stream)]
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
        """What the archive job has told the gateway. A driver that dies after a manifest reads its batch
        again, and what is missing then would look like a loss.
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

    def _compared(self, key: StreamKey, bound: Bound, state: State, found: StreamPlan) -> Planned:
        upto = str(bound.upto)
        if not found.count or found.first is None:
            return Planned(key, upto, bound.why)
        if found.generation != state.generation:
            return _other_generation(key, state, found)
        after = ids.previous_id(ids.parse(found.first))
        files = self._archive.files([key], after=str(after), end=upto, generation=state.generation)
        try:
            _check_footers(self._place, files)
            _check_once(self._place, key, files)
            archived = sum(rows_within(self._place, file, after, bound.upto) for file in files)
        except ManifestError as error:
            return Planned(key, upto, bound.why, found.count, refused=error.sentence)
        refused = None
        if archived < found.count:
            refused = (
                f"the gateway holds {found.count} entries up to {upto}, the archive {archived} of them: "
                "run verify to see which are missing"
            )
        return Planned(key, upto, bound.why, found.count, archived, refused)


def _check_once(place: Place, key: StreamKey, files: Sequence[File]) -> None:
    """Entries that are counted twice would stand for some that are missing."""
    twice = next(overlap_findings(place, files), None)
    if twice is not None:
        raise ManifestError(
            f"{key} is archived twice in part ({twice.about}: {twice.what}): run compact first"
        )


def _check_footers(place: Place, files: Sequence[File]) -> None:
    for file in files:
        rows = footer_rows(place, file.path)
        if rows != file.rows:
            raise ManifestError(f"{file.path} has {rows} rows, its manifest says {file.rows}: run verify")


def _other_generation(key: StreamKey, state: State, found: StreamPlan) -> Planned:
    refused = (
        f"the stream was made anew: the archive holds generation {state.generation}, the gateway "
        f"{found.generation}; archive it first"
    )
    return Planned(key, ids.BEGINNING, refused, refused=refused)
