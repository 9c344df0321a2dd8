"""Sends what streams get on to other streams, here or at another gateway: each entry once, in order.

Knows: Spark, the data source, the sink, what of a mirror may not change between two runs.
Must never know: how options are written, how often there is a batch, what is printed.

It begins with the earliest entry. Where it is to begin with the latest, that place is written down before
Spark is started: killed before its first batch, it begins there all the same. Without a checkpoint, and with
targets that have had entries, it has to be said: a checkpoint that was lost would send all of them again.

A batch that runs again has to give each task the same rows in the same order, however many cores there are by
then: so rows go to tasks by the stream that they are for, and are sorted there by their IDs. Both, and what
is done to the entries, are written into the checkpoint before the first batch.

    CHECKPOINT/weir-mirror.json
"""

import http
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import orjson
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_weir import checkpoint, ids, offsets
from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.errors import OptionError, RefusedError
from pyspark_weir.gateway import GatewayAccess, PlanQuery
from pyspark_weir.gateways import Gateways, plan_once
from pyspark_weir.jobs.archived import as_map
from pyspark_weir.jobs.batches import report_failures, write
from pyspark_weir.options import EARLIEST, LATEST, SourceOptions, source_options
from pyspark_weir.schema import schema_of
from pyspark_weir.session import slots, with_slots
from pyspark_weir.source.stream import StreamingReader

STATE: Final = "weir-mirror.json"
_FIXED: Final = {"fieldsFormat": "entries", "relation": "entries"}
_STARTING: Final = "startingOffsets"
_HALF_DIGITS: Final = 20
_TARGET: Final = "_target"
_ENTRY: Final = "_entry"
# In a target: the name of the source.
PLACEHOLDER: Final = "{stream}"


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


@dataclass(frozen=True)
class Mirror:
    """What is sent where. `source` holds options of the data source. Expressions are SQL over stream, id, ms,
    seq, ts and `fields`, a map of text: entries for which `where` is true, to the stream that `route` gives
    (null: nowhere), else by `targets`; `set_fields` are replaced or added, `drop_fields` left out. Entries
    keep their IDs with `keep_ids`; else the field `orig_field` has it, unless that is empty.
    """

    checkpoint: str
    source: Mapping[str, str]
    target: GatewayAccess
    targets: Targets = field(default_factory=Targets)
    where: str | None = None
    route: str | None = None
    set_fields: Mapping[str, str] = field(default_factory=dict)
    drop_fields: tuple[str, ...] = ()
    keep_ids: bool = False
    orig_field: str = ""
    # Where it begins, EARLIEST or LATEST, unless `source` says so; None: the earliest, where targets are new.
    # A checkpoint goes on where it ends.
    start: str | None = None
    # As many as the session runs at once.
    tasks: int | None = None
    chunk_rows: int = 5_000

    def about(self) -> dict[str, Any]:
        """What must be the same when it is begun again."""
        return {
            "to": {"by_stream": dict(self.targets.by_stream), "otherwise": self.targets.otherwise},
            "where": self.where,
            "route": self.route,
            "set": dict(self.set_fields),
            "drop": sorted(self.drop_fields),
            "keep_ids": self.keep_ids,
            "orig_field": self.orig_field,
            "chunk_rows": self.chunk_rows,
        }


def query(spark: SparkSession, asked: Mirror) -> DataStreamWriter:
    """The query, to be given its checkpoint and a trigger, and started. Raises OptionError."""
    for name in asked.source:
        if name.lower() in {fixed.lower() for fixed in _FIXED}:
            raise OptionError(f"{name} is fixed in a mirror, which keeps entries as they are: leave it out")
    # Before anything is settled: what is refused here may be put right under the same checkpoint.
    guard = loop_guard_of(asked)
    check(asked)
    place = StateFolder.of(asked.checkpoint)
    settled = settle(place, asked, slots(spark))
    source = with_slots(spark, {**asked.source, **settled.starting, **_FIXED})
    rows = spark.readStream.format("weir").options(**source).load()
    entries = transform(rows, asked)

    def send(frame: DataFrame, number: int) -> None:
        query_id = checkpoint.query_id(place)
        if query_id is None:
            raise OptionError(f"{place.address} is not the checkpoint of this query")
        settled.begin(place, query_id)
        if guard is not None:
            # What a pattern takes is known batch by batch.
            guard.check({offsets.parts(key)[1] for key in checkpoint.ends(place, number)})
        options = {
            "keyMode": "position",
            "jobId": f"mirror-{query_id}",
            "epoch": number,
            "chunkRows": asked.chunk_rows,
            "ordered": True,
        }
        write(distribute(frame, settled.tasks, keep_ids=asked.keep_ids), asked.target, options)

    return entries.writeStream.queryName("weir-mirror").foreachBatch(report_failures(send, place))


def check(asked: Mirror) -> None:
    """Refuse to begin anew where entries were sent before, and how far is lost; and what would grow for ever.
    Raises OptionError, RefusedError, Unavailable.
    """
    loop_guard_of(asked)
    place = StateFolder.of(asked.checkpoint)
    if place.read(STATE) is not None:
        return
    if checkpoint.query_id(place) is not None:
        raise OptionError(
            f"{place.address} has batches, and {STATE}, which says how they are sent, is lost: restore it "
            "from a copy, or begin with a checkpoint of its own and --source startingOffsets=…"
        )
    options = source_options({**asked.source, **_FIXED})
    # What an expression makes of streams is known batch by batch.
    if asked.start is not None or options.starting is not None or asked.route is not None:
        return
    with closing(Gateways(options)) as gateways:
        streams = {offsets.parts(key)[1] for key in gateways.select()}
    written = _written(asked.target, {asked.targets.of(name) for name in streams})
    if written:
        raise OptionError(
            f"{written[0]} at {asked.target.url} has had entries, and {place.address} holds no checkpoint: "
            'restore it from a copy, or say where to begin: --source startingOffsets={"stream": "ID"}, the '
            "last that was sent, as a line of --json or the group of --mirror-group has it, or --from"
        )


def _written(access: GatewayAccess, streams: Iterable[str]) -> list[str]:
    """Which of the streams have had entries; none where the token may only write."""
    keys = [offsets.key(access.name, name) for name in streams]
    try:
        found = plan_once(SourceOptions((access,)), PlanQuery(dict.fromkeys(keys, ids.BEGINNING))).streams
    except RefusedError as refused:
        if refused.status != http.HTTPStatus.FORBIDDEN:
            raise
        return []
    return sorted(
        offsets.parts(key)[1] for key, one in found.items() if ids.is_after(one.last, ids.BEGINNING)
    )


@dataclass
class Settled:
    """What a mirror was begun with: into how many tasks a batch is cut, the options that say where the first
    one begins, and the query, once it has a batch.
    """

    tasks: int
    about: dict[str, Any]
    starting: dict[str, str] = field(default_factory=dict)
    query: str | None = None

    def begin(self, place: StateFolder, query_id: str) -> None:
        """Remember that there are batches: from now on their checkpoint must not be lost."""
        if self.query is None:
            self.query = query_id
            self.store(place)

    def store(self, place: StateFolder) -> None:
        place.replace(STATE, orjson.dumps(self))


def settle(place: StateFolder, asked: Mirror, slots_now: int) -> Settled:
    """What it was begun with at its first start. Raises OptionError where it is another by now, or where the
    batches that it had are gone.
    """
    stored = place.read(STATE)
    if stored is None:
        settled = Settled(asked.tasks or slots_now, asked.about(), _starting(asked))
        settled.store(place)
        return settled
    before = Settled(**orjson.loads(stored))
    for name, value in asked.about().items():
        if before.about.get(name) != value:
            raise OptionError(
                f"{place.address} belongs to a mirror with another {name}: {before.about.get(name)!r}, "
                f"now {value!r}; go on as it was begun, or begin with a checkpoint of its own and "
                "--source startingOffsets=…"
            )
    if before.query is not None and not checkpoint.is_of(place, before.query):
        raise OptionError(
            f"{place.address} has sent entries before, and how far is lost: restore it from a copy, or begin "
            "with a checkpoint of its own and --source startingOffsets=…"
        )
    return before


def _starting(asked: Mirror) -> dict[str, str]:
    """Options that say where a mirror begins that has no checkpoint. Streams that come later are read from
    their beginning.
    """
    given = source_options({**asked.source, **_FIXED}).starting
    if given is not None:
        return {}
    if asked.start != LATEST:
        return {_STARTING: EARLIEST}
    options = source_options({**asked.source, **_FIXED, _STARTING: LATEST})
    reader = StreamingReader(options, schema_of(options))
    try:
        found = offsets.decode(reader.initialOffset())
    finally:
        reader.stop()
    # Without a stream there is nothing to leave out.
    return {
        _STARTING: orjson.dumps({key: at.id for key, at in found.items()}).decode() if found else EARLIEST
    }


class LoopGuard:
    """Refuses to send into streams that are read, which would make them grow for ever. `source` is how
    streams are chosen; `gateways` those of its gateways that are also the target.
    """

    def __init__(self, source: SourceOptions, gateways: frozenset[str], targets: Targets) -> None:
        self._source = source
        self._gateways = gateways
        self._targets = targets
        self._checked: set[str] = set()
        named = {name for at in source.gateways for name in source.named_at(at.name)}
        if not named and targets.otherwise == PLACEHOLDER:
            raise _loop("any", "any")
        # With a pattern a stream may have any name.
        self.check(named or (*targets.by_stream, "any"))

    def check(self, streams: Iterable[str]) -> None:
        """Raises OptionError where one of the streams, at any gateway, is sent to one that is read."""
        for stream in set(streams) - self._checked:
            target = self._targets.of(stream)
            if self._is_read(target):
                raise _loop(stream, target)
            self._checked.add(stream)

    def _is_read(self, stream: str) -> bool:
        """Whether the mirror reads a stream of that name at the target."""
        source = self._source
        if source.pattern is not None:
            return re.fullmatch(source.pattern, stream) is not None
        return any(stream in source.named_at(name) for name in self._gateways)


def _loop(stream: str, target: str) -> OptionError:
    return OptionError(
        f"a stream would go to itself: one such as {stream} is sent to {target}, which is read too; say with "
        "--to where it goes, such as copy.{stream}, and leave that out of the pattern, such as (?!copy[.]).*"
        "; where batches have begun, with a checkpoint of its own"
    )


def loop_guard_of(asked: Mirror) -> LoopGuard | None:
    """What is to be looked at in each batch; None where nothing is sent to where it is read, or by an
    expression, which knows what it does. Raises OptionError where it is known by now.
    """
    options = source_options({**asked.source, **_FIXED})
    same = frozenset(one.name for one in options.gateways if is_same_gateway(one, asked.target))
    if not same or asked.route is not None:
        return None
    guard = LoopGuard(options, same, asked.targets)
    return guard if options.pattern is not None else None


def is_same_gateway(one: GatewayAccess, other: GatewayAccess) -> bool:
    """Whether both are at one port of one machine, under any of its names: a name and its address, or two
    names of this machine.
    """
    here, there = httpx.URL(one.url), httpx.URL(other.url)
    if one.url == other.url:
        return True
    return _port(here) == _port(there) and not _addresses(here.host).isdisjoint(_addresses(there.host))


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _addresses(host: str) -> frozenset[str]:
    """The addresses of a name; itself where it has none."""
    try:
        found = {ipaddress.ip_address(str(one[4][0])) for one in socket.getaddrinfo(host, None)}
    except (OSError, ValueError):
        return frozenset({host.lower()})
    # All of these are this machine.
    return frozenset("here" if one.is_loopback or one.is_unspecified else one.compressed for one in found)


def transform(rows: DataFrame, asked: Mirror) -> DataFrame:
    """Rows with the stream that they go to, and with their entries as they are to be there. Raises
    OptionError for an expression that Spark does not understand.
    """
    try:
        seen = rows.withColumnRenamed("fields", _ENTRY).withColumn("fields", as_map(sf.col(_ENTRY)))
        if asked.where is not None:
            seen = seen.where(asked.where)
        target = _target(asked.targets) if asked.route is None else sf.expr(asked.route).cast("string")
        seen = seen.withColumn(_TARGET, target).where(sf.col(_TARGET).isNotNull())
        return seen.select(
            sf.col(_TARGET).alias("stream"),
            "id",
            sf.col("stream").alias("_from"),
            _entry(asked).alias("fields"),
        )
    except (AnalysisException, ParseException) as error:
        raise OptionError(f"Spark does not understand an expression: {str(error).splitlines()[0]}") from None


def distribute(rows: DataFrame, tasks: int, *, keep_ids: bool) -> DataFrame:
    """Rows as tasks send them: all of a target in one, by ID."""
    halves = sf.split("id", "-")
    order = [sf.lpad(halves[place], _HALF_DIGITS, "0") for place in (0, 1)]
    ordered = rows.repartition(tasks, "stream").sortWithinPartitions("stream", *order, "_from")
    return ordered.select("stream", "id", "fields") if keep_ids else ordered.select("stream", "fields")


def _target(targets: Targets) -> Column:
    # Between two of these parts stands the source's name.
    first, *rest = targets.otherwise.split(PLACEHOLDER)
    parts = [sf.lit(first), *(one for part in rest for one in (sf.col("stream"), sf.lit(part)))]
    target: Column = sf.concat(*parts)
    for name, to in targets.by_stream.items():
        target = sf.when(sf.col("stream") == name, sf.lit(to)).otherwise(target)
    return target


def _entry(asked: Mirror) -> Column:
    pairs: Column = sf.col(_ENTRY)
    gone = [*asked.drop_fields, *asked.set_fields]
    if gone:
        pairs = sf.filter(pairs, lambda one: ~one["name"].isin(gone))
    added = [
        _pair(name, sf.expr(text).cast("string").cast("binary")) for name, text in asked.set_fields.items()
    ]
    if asked.orig_field and not asked.keep_ids:
        added.append(_pair(asked.orig_field, sf.col("id").cast("binary")))
    if not added:
        return pairs
    # What is null is not set.
    return sf.concat(pairs, sf.filter(sf.array(*added), lambda one: one["value"].isNotNull()))


def _pair(name: str, value: Column) -> Column:
    return sf.struct(sf.lit(name).alias("name"), value.alias("value"))
