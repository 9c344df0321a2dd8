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

from pyspark_weir import ids
from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.ids import EntryId
from pyspark_weir.place import Place
from pyspark_weir.table.ranges import StreamKey
from pyspark_weir.table.scan import keys_in
from pyspark_weir.table.schema import id_of_key
from pyspark_weir.table.table import ArchiveTable, Selection

VERSION: Final = 2
PLAN: Final = "plan.json"
DONE: Final = "done.json"
slice_rows_default: Final = 100_000
orig_field_default: Final = "_orig_id"
# In a target: the name of the source.
PLACEHOLDER: Final = "{stream}"

_T = TypeVar("_T", bound=msgspec.Struct)


@dataclass(frozen=True)
class Wanted:
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
        """Whether the stream is among them."""
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
        """Where a stream goes."""
        return self.by_stream.get(stream) or self.otherwise.replace(PLACEHOLDER, stream)


class Span(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
        """The stream that they are of, and its gateway."""
        return self.shard, self.stream


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole replay. `source` is where it reads from, `tasks` how many there are, `task_of` which one has
    a target; `slices` are sent one after the other. `gateway` is where it sends to, `wanted` and `to` what it
    was made for; nothing of the three stands in a plan that is only looked at.
    """

    v: int
    job: str
    source: str
    keep_ids: bool
    orig_field: str
    chunk_rows: int
    tasks: int
    task_of: dict[str, int]
    slices: tuple[tuple[Span, ...], ...]
    gateway: str = ""
    wanted: Wanted = Wanted()
    to: Targets = Targets()

    def made_for(self, gateway: str, wanted: Wanted, to: Targets) -> "Plan":
        """The same, to be written down."""
        return msgspec.structs.replace(self, gateway=gateway, wanted=wanted, to=to)

    @property
    def rows(self) -> int:
        """Entries in all."""
        return sum(span.rows for part in self.slices for span in part)

    def first_ids(self) -> dict[str, str]:
        """The ID after which each target's first entry comes."""
        found: dict[str, str] = {}
        for part in self.slices:
            for span in part:
                found.setdefault(span.target, span.after)
        return found


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a replay is: whole slices, and the entries in them."""

    slices: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Form:
    """How a replay is sent; what of it is fixed at the first start."""

    job: str
    source: str
    keep_ids: bool = False
    orig_field: str = orig_field_default
    chunk_rows: int = 5_000
    tasks: int = 1
    slice_rows: int = slice_rows_default


def make(spans: Iterable[Span], form: Form) -> Plan:
    """The plan for ranges that come in the order in which they are to be sent. Raises OptionError."""
    every = list(spans)
    if form.keep_ids:
        _expect_ascending(every)
    task_of = _shared(every, form.tasks)
    return Plan(
        v=VERSION,
        job=form.job,
        source=form.source,
        keep_ids=form.keep_ids,
        orig_field=form.orig_field,
        chunk_rows=form.chunk_rows,
        tasks=max(task_of.values(), default=0) + 1,
        task_of=task_of,
        slices=tuple(_sliced(every, form.slice_rows)),
    )


def archive_spans(table: ArchiveTable, wanted: Wanted, targets: Targets, slice_rows: int) -> list[Span]:
    """Ranges of an archive, at most `slice_rows` entries each, older ones first, each stream's in order.

    Reads the IDs of the files that hold some. Raises OptionError where a named stream is not archived.
    """
    # Of a stream that was made anew the older generation moved first.
    keys = [key for key in dict.fromkeys(one.key for one in table.ranges()) if wanted.has(key.stream)]
    missing = set(wanted.streams) - {key.stream for key in keys}
    if missing:
        raise OptionError(f"the archive has no stream {', '.join(sorted(missing))}")
    stored: dict[StreamKey, list[pa.Array]] = {key: [] for key in keys}
    within = Selection(
        after=ids.parse(wanted.after), upto=None if wanted.end is None else ids.parse(wanted.end)
    )
    for file in table.files(within):
        for key, own in keys_in(table.root, file, within).items():
            if key in stored:
                stored[key] += [own[start : start + slice_rows] for start in range(0, len(own), slice_rows)]
    found: list[tuple[EntryId, Span]] = []
    latest: dict[tuple[str, str], EntryId] = {}
    for key, parts in stored.items():
        for part in sorted(parts, key=lambda one: one[0].as_py()):
            first, last = id_of_key(part[0].as_py()), id_of_key(part[-1].as_py())
            # It may have begun with smaller IDs; it still comes after.
            at = max(latest.get(key[:2], ids.ZERO), first)
            latest[key[:2]] = at
            span = Span(*key, str(ids.previous_id(first)), str(last), len(part), targets.of(key.stream))
            found.append((at, span))
    return [span for _, span in sorted(found, key=lambda one: one[0])]


def load(state: Place) -> Plan | None:
    """The plan of before; None at the first start. Raises PipelineError where it cannot be read."""
    stored = state.read(PLAN)
    if stored is None:
        return None
    plan = _decoded(state, PLAN, stored, Plan)
    if plan.v != VERSION:
        raise PipelineError(
            "WEIR_STATE",
            f"{state.address}/{PLAN} is of version {plan.v}, not {VERSION}: go on with the version of Weir "
            "that wrote it, or begin again with a new --job-id",
        )
    return plan


def save(state: Place, plan: Plan) -> None:
    """Write the plan down, before its first entry goes."""
    state.write(PLAN, msgspec.json.encode(plan))


def load_done(state: Place) -> Done:
    """How far it is. Raises PipelineError where that cannot be read."""
    stored = state.read(DONE)
    return Done() if stored is None else _decoded(state, DONE, stored, Done)


def save_done(state: Place, done: Done) -> None:
    """Write down how far it is."""
    state.write(DONE, msgspec.json.encode(done))


def expect_same(plan: Plan, form: Form, gateway: str, wanted: Wanted, to: Targets) -> None:
    """Refuse to go on with another replay's plan. Raises OptionError."""
    before_to, now_to = ({**one.by_stream, "all others": one.otherwise} for one in (plan.to, to))
    for name, before, now in (
        ("job ID", plan.job, form.job),
        ("source", plan.source, form.source),
        ("keeping of IDs", plan.keep_ids, form.keep_ids),
        ("field for IDs", plan.orig_field, form.orig_field),
        ("gateway to send to", plan.gateway, gateway),
        ("choice of streams", sorted(set(plan.wanted.streams)), sorted(set(wanted.streams))),
        ("pattern", plan.wanted.pattern, wanted.pattern),
        ("beginning", plan.wanted.after, wanted.after),
        ("end", plan.wanted.end, wanted.end),
        ("place for streams", before_to, now_to),
    ):
        if before != now:
            raise OptionError(
                f"this replay was begun with another {name}: {before!r}, now {now!r}; go on as it was begun, "
                "or begin another with a --job-id of its own"
            )


def _sliced(spans: Sequence[Span], slice_rows: int) -> Iterator[tuple[Span, ...]]:
    part: list[Span] = []
    rows = 0
    for span in spans:
        if part and rows + span.rows > slice_rows:
            yield tuple(part)
            part, rows = [], 0
        part.append(span)
        rows += span.rows
    if part:
        yield tuple(part)


def _shared(spans: Sequence[Span], tasks: int) -> dict[str, int]:
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


def _expect_ascending(spans: Iterable[Span]) -> None:
    ends: dict[str, Span] = {}
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


def _decoded(state: Place, name: str, stored: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(stored, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PipelineError(
            "WEIR_STATE",
            f"{state.address}/{name} cannot be read ({error}): begin again with a new --job-id",
        ) from None
