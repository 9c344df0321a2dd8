"""What a replay sends, in which order, and what of it is done: fixed at the first start.

Knows: ranges of entries by ID, how they are shared among slices and tasks.
Must never know: Spark, how entries are read and sent.

A replay that is started again has to send the same chunks as before, or the gateway could not know them: so
the ranges, the size of chunks and which task has which stream are written down before the first entry goes.
They are ranges of IDs and no files, which a compaction replaces.

    STATE/plan.json   the plan; written once
    STATE/done.json   how many slices are stored wholly; a slice that is begun again meets its own chunks
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_weir import ids
from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.ids import EntryId
from pyspark_weir.table.ranges import StreamKey
from pyspark_weir.table.reading import keys_in, overlapping
from pyspark_weir.table.schema import id_of_key
from pyspark_weir.table.table import ArchiveTable, EntryFilter

VERSION: Final = 3
PLAN: Final = "plan.json"
DONE: Final = "done.json"
SLICE_ROWS_DEFAULT: Final = 100_000
ORIG_FIELD_DEFAULT: Final = "_orig_id"
# In a target: the name of the source.
PLACEHOLDER: Final = "{stream}"

_T = TypeVar("_T", bound=msgspec.Struct)


@dataclass(frozen=True)
class EntrySelection:
    """Which entries: of the named `streams` or of those that `pattern` fits wholly, else of all; those in
    `(after, end]`, IDs as text; `end` None is the last.
    """

    streams: tuple[str, ...] = ()
    pattern: str | None = None
    after: str = ids.BEGINNING
    end: str | None = None

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise OptionError(f"--pattern {self.pattern}: {error}") from None
        if self.end is not None and ids.is_after(self.after, self.end):
            raise OptionError(f"the replay ends at {self.end}, before it begins: after {self.after}")

    def has(self, stream: str) -> bool:
        if self.streams:
            return stream in self.streams
        return self.pattern is None or re.fullmatch(self.pattern, stream) is not None


@dataclass(frozen=True)
class Targets:
    """Where streams go: as `by_stream` says, else `otherwise`; `{stream}` in it is the source."""

    by_stream: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = PLACEHOLDER

    @classmethod
    def parse(cls, texts: Sequence[str]) -> "Targets":
        """From `a=b` for one stream, and `name` or `copy.{stream}` for all others. Raises OptionError."""
        named: dict[str, str] = {}
        otherwise: list[str] = []
        for text in texts:
            source, equals, target = text.partition("=")
            if not equals:
                otherwise.append(text)
            elif not source or not target or source in named:
                raise OptionError(f"--to {text}: write source=target, each source once, or copy.{{stream}}")
            else:
                named[source] = target
        if len(otherwise) > 1 or "" in otherwise:
            raise OptionError("--to names several streams for all others: give one, or source=target")
        return cls(named, otherwise[0] if otherwise else PLACEHOLDER)

    def of(self, stream: str) -> str:
        return self.by_stream.get(stream) or self.otherwise.replace(PLACEHOLDER, stream)


class ReplayRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entries of one stream in `(after, end]`, `rows` of them, for the stream `target`."""

    shard: str
    stream: str
    generation: str
    after: str
    end: str
    rows: int
    target: str

    @property
    def key(self) -> tuple[str, str]:
        return self.shard, self.stream


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is sent from `source` to the URL `gateway`, and how; all of it is fixed at the first start."""

    job: str
    source: str
    gateway: str = ""
    wanted: EntrySelection = EntrySelection()
    to: Targets = Targets()
    keep_ids: bool = False
    orig_field: str = ORIG_FIELD_DEFAULT
    chunk_rows: int = 5_000
    tasks: int = 1
    slice_rows: int = SLICE_ROWS_DEFAULT

    def about(self) -> dict[str, object]:
        return {
            "job ID": self.job,
            "source": self.source,
            "keeping of IDs": self.keep_ids,
            "field for IDs": self.orig_field,
            "gateway to send to": self.gateway,
            "choice of streams": sorted(set(self.wanted.streams)),
            "pattern": self.wanted.pattern,
            "beginning": self.wanted.after,
            "end": self.wanted.end,
            "place for streams": {**self.to.by_stream, "all others": self.to.otherwise},
        }


class ReplayPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replay as it is sent: `task_of` says which task has a target; `slices` go one after the other."""

    v: int
    replay: Replay
    task_of: dict[str, int]
    slices: tuple[tuple[ReplayRange, ...], ...]

    @property
    def tasks(self) -> int:
        return max(self.task_of.values(), default=0) + 1

    @property
    def rows(self) -> int:
        return sum(span.rows for part in self.slices for span in part)

    def first_ids(self) -> dict[str, str]:
        """The ID after which each target's first entry comes."""
        found: dict[str, str] = {}
        for part in self.slices:
            for span in part:
                found.setdefault(span.target, span.after)
        return found


class _Version(msgspec.Struct):
    v: int


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a replay is: whole slices, and the entries in them."""

    slices: int = 0
    rows: int = 0


def make(spans: Iterable[ReplayRange], replay: Replay) -> ReplayPlan:
    """The plan for ranges that come in the order in which they are to be sent. Raises OptionError."""
    every = list(spans)
    if replay.keep_ids:
        _expect_ascending(every)
    slices = tuple(_slice(every, replay.slice_rows))
    return ReplayPlan(VERSION, replay, _assign_tasks(every, replay.tasks), slices)


def archive_spans(table: ArchiveTable, replay: Replay) -> list[ReplayRange]:
    """Ranges of an archive, at most a slice's entries each, older ones first, each stream's in order.

    Reads the IDs of the files that hold some. Raises OptionError where a named stream is not archived.
    """
    wanted, slice_rows = replay.wanted, replay.slice_rows
    # Of a stream that was made anew the older generation moved first.
    keys = [key for key in dict.fromkeys(one.key for one in table.ranges()) if wanted.has(key.stream)]
    missing = set(wanted.streams) - {key.stream for key in keys}
    if missing:
        raise OptionError(f"the archive has no stream {', '.join(sorted(missing))}")
    stored: dict[StreamKey, list[pa.Array]] = {key: [] for key in keys}
    within = EntryFilter(
        after=ids.parse(wanted.after), upto=None if wanted.end is None else ids.parse(wanted.end)
    )
    for file in table.files(within):
        for key, own in keys_in(table.root, file, within).items():
            if key in stored:
                stored[key].append(own)
    found: list[tuple[EntryId, ReplayRange]] = []
    latest: dict[tuple[str, str], EntryId] = {}
    for key, parts in stored.items():
        for part in _apart(parts, slice_rows):
            first, last = _edges(part)
            # It may have begun with smaller IDs; it still comes after.
            at = max(latest.get(key[:2], ids.ZERO), first)
            latest[key[:2]] = at
            span = ReplayRange(
                *key, str(ids.previous_id(first)), str(last), len(part), replay.to.of(key.stream)
            )
            found.append((at, span))
    return [span for _, span in sorted(found, key=lambda one: one[0])]


def _apart(parts: Iterable[pa.Array], rows_max: int) -> Iterator[pa.Array]:
    """The `id_key`s of a stream, which files may have interleaved, as ranges that share none."""
    for together in overlapping(sorted(parts, key=_edges), _edges):
        keys = pa.concat_arrays(together)
        if len(together) > 1:
            keys = keys.take(pc.array_sort_indices(keys))
        for start in range(0, len(keys), rows_max):
            yield keys[start : start + rows_max]


def _edges(keys: pa.Array) -> tuple[EntryId, EntryId]:
    return id_of_key(keys[0].as_py()), id_of_key(keys[-1].as_py())


def load(state: StateFolder) -> ReplayPlan | None:
    """The plan of before; None at the first start. Raises PipelineError where it cannot be read."""
    stored = state.read(PLAN)
    if stored is None:
        return None
    version = _decode(state, PLAN, stored, _Version).v
    if version != VERSION:
        raise PipelineError(
            "WEIR_STATE",
            f"{state.address}/{PLAN} is of version {version}, not {VERSION}: go on with the version of Weir "
            "that wrote it, or begin again with a new --job-id",
        )
    return _decode(state, PLAN, stored, ReplayPlan)


def save(state: StateFolder, plan: ReplayPlan) -> None:
    """Write the plan down, before its first entry goes."""
    state.replace(PLAN, msgspec.json.encode(plan))


def load_done(state: StateFolder) -> Done:
    """How far it is. Raises PipelineError where that cannot be read."""
    stored = state.read(DONE)
    return Done() if stored is None else _decode(state, DONE, stored, Done)


def save_done(state: StateFolder, done: Done) -> None:
    """Write down how far it is."""
    state.replace(DONE, msgspec.json.encode(done))


def expect_same(plan: ReplayPlan, replay: Replay) -> None:
    """Refuse to go on with another replay's plan. Raises OptionError."""
    asked = replay.about()
    for name, before in plan.replay.about().items():
        if before != asked[name]:
            raise OptionError(
                f"this replay was begun with another {name}: {before!r}, now {asked[name]!r}; go on as it "
                "was begun, or begin another with a --job-id of its own"
            )


def _slice(spans: Sequence[ReplayRange], slice_rows: int) -> Iterator[tuple[ReplayRange, ...]]:
    part: list[ReplayRange] = []
    rows = 0
    for span in spans:
        if part and rows + span.rows > slice_rows:
            yield tuple(part)
            part, rows = [], 0
        part.append(span)
        rows += span.rows
    if part:
        yield tuple(part)


def _assign_tasks(spans: Sequence[ReplayRange], tasks: int) -> dict[str, int]:
    """Targets to tasks, the largest first to the one that has least: a target has one writer, which keeps it
    in order.
    """
    rows: dict[str, int] = {}
    for span in spans:
        rows[span.target] = rows.get(span.target, 0) + span.rows
    loads = [0] * max(1, min(tasks, len(rows)))
    task_of: dict[str, int] = {}
    for target in sorted(rows, key=lambda name: (-rows[name], name)):
        least = loads.index(min(loads))
        task_of[target] = least
        loads[least] += rows[target]
    return task_of


def _expect_ascending(spans: Iterable[ReplayRange]) -> None:
    ends: dict[str, ReplayRange] = {}
    for span in spans:
        before = ends.get(span.target)
        if before is not None and before.key != span.key:
            raise OptionError(
                f"{before.stream} and {span.stream} both go to {span.target}, where their IDs would not "
                "ascend: give each a target of its own, or leave out --keep-ids"
            )
        if before is not None and ids.is_after(before.end, span.after):
            raise OptionError(
                f"{span.stream} was deleted and created anew, and its IDs begin again below {before.end}: "
                "replay up to there and from there apart, or leave out --keep-ids"
            )
        ends[span.target] = span


def _decode(state: StateFolder, name: str, stored: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(stored, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PipelineError(
            "WEIR_STATE",
            f"{state.address}/{name} cannot be read ({error}): begin again with a new --job-id",
        ) from None
