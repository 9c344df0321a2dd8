"""The data source's options: one table, and what it makes of the texts that Spark hands over.

Knows: names, aliases, limits and defaults; that names are compared without regard to case.
Must never know: gateways, what an option does.
"""

import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from pyspark_weir import ids
from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.gateway.access import Access, request_timeout_ms_default, retry_timeout_ms_default
from weir.durations import parse_ms

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
RELATIONS: Final = ("entries", "streams", "groups", "consumers", "pending", "deadletter")
FORMATS: Final = ("map", "entries", "json", "columns")
# What happens to a value that does not fit its column, as Spark's own readers call it.
PERMISSIVE: Final = "permissive"
FAILFAST: Final = "failfast"

max_entries_per_trigger_default: Final = 500_000
max_entries_per_partition_default: Final = 200_000
max_bytes_per_partition_default: Final = 32 << 20
max_trigger_delay_ms_default: Final = 15 * 60_000
fetch_size_default: Final = 20_000
poll_timeout_ms_default: Final = 500
discovery_interval_ms_default: Final = 10_000
# The gateway's own limits, of a page and of a wait.
_fetch_size_max: Final = 100_000
_poll_timeout_ms_max: Final = 60_000
_integer_max: Final = (1 << 53) - 1
# More than any cluster runs at once; the driver keeps every task of a batch in memory.
partitions_max: Final = 10_000
_nearness: Final = 0.6


@dataclass(frozen=True)
class Option:
    """One line of the table: the name, and what else it may be called."""

    name: str
    aliases: tuple[str, ...] = ()


COMMON: Final = (
    Option("gateway.urls", ("url",)),
    Option("tokenFile"),
    Option("tokenEnv"),
    Option("requestTimeoutMs"),
    Option("retryTimeoutMs"),
)
SOURCE: Final = (
    *COMMON,
    Option("relation"),
    Option("subscribe", ("streams", "stream.keys")),
    Option("subscribePattern", ("pattern",)),
    Option("assign"),
    Option("streamShard"),
    Option("startingOffsets"),
    Option("startingTimestamp"),
    Option("startingOffsetsByTimestamp"),
    Option("endingOffsets"),
    Option("endingTimestamp"),
    Option("endingOffsetsByTimestamp"),
    Option("maxEntriesPerTrigger", ("maxOffsetsPerTrigger",)),
    Option("maxBytesPerTrigger"),
    Option("minEntriesPerTrigger", ("minOffsetsPerTrigger",)),
    Option("maxTriggerDelay"),
    Option("minPartitions"),
    Option("maxEntriesPerPartition", ("maxRecordsPerPartition",)),
    Option("maxBytesPerPartition"),
    Option("ordered"),
    Option("failOnDataLoss"),
    Option("failOnMissingStream"),
    Option("onReset"),
    Option("durableOnly"),
    Option("fetchSize"),
    Option("pollTimeoutMs", ("kafkaConsumer.pollTimeoutMs",)),
    Option("discoveryIntervalMs"),
    Option("fieldsFormat"),
    Option("mode"),
    Option("columns"),
    Option("includeMeta", ("includeHeaders",)),
    Option("onBadUtf8"),
    Option("dupFields"),
    Option("pushdown"),
    Option("mirrorGroup", ("groupIdPrefix",)),
)
# What people write from habit, and what they mean.
_HABITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "token": "a token in an option ends in pickles and logs; use tokenFile or tokenEnv",
        "path": "a stream is no path; use the option subscribe",
        "host": "use gateway.urls=http://host:port",
        "port": "use gateway.urls=http://host:port",
        "kafka.bootstrap.servers": "use gateway.urls",
    }
)


class Given:
    """The options that were given, by the names of a table. `also`: tables of the other side, for what is
    told of a name that is known there only; `ignored`: names that are Spark's own.

    Raises OptionError for a name that no table has, and for one given under two of its names.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        table: Sequence[Option],
        *,
        also: Mapping[str, Sequence[Option]] = MappingProxyType({}),
        ignored: Sequence[str] = (),
    ) -> None:
        known = {name.lower(): one.name for one in table for name in (one.name, *one.aliases)}
        self._values: dict[str, str] = {}
        spellings: dict[str, str] = {}
        skipped = {name.lower() for name in ignored}
        for name, value in options.items():
            canonical = known.get(name.lower())
            if canonical is None:
                if name.lower() in skipped:
                    continue
                raise OptionError(_unknown(name, known, also))
            if spellings.setdefault(canonical, name) != name:
                raise OptionError(
                    f"{spellings[canonical]} and {name} are the same option: leave one of them out"
                )
            self._values[canonical] = value

    def text(self, name: str) -> str | None:
        """The text, None where it was not given or is blank."""
        value = self._values.get(name)
        return None if value is None or not value.strip() else value.strip()

    def integer(self, name: str, default: int, *, least: int = 1, most: int = _integer_max) -> int:
        """A whole number."""
        found = self.maybe_integer(name, least=least, most=most)
        return default if found is None else found

    def maybe_integer(self, name: str, *, least: int = 1, most: int = _integer_max) -> int | None:
        """A whole number, None where it was not given."""
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,16}", value, re.ASCII) or not least <= int(value) <= most:
            raise OptionError(f"{name}={value}: it is a whole number from {least} to {most}")
        return int(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        """`true` or `false`."""
        return self.word(name, ("true", "false"), "true" if default else "false") == "true"

    def word(self, name: str, words: Sequence[str], default: str) -> str:
        """One of some words, in any case."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in words:
            raise OptionError(f"{name}={value}: it is one of {', '.join(words)}")
        return value.lower()

    def duration_ms(self, name: str, default: int) -> int:
        """A time like `500ms`, `10s`, `15m`, `2h`; a number alone is milliseconds."""
        value = self.text(name)
        if value is None:
            return default
        written = re.sub(r"(?<=[0-9])\s+(?=[a-z])", "", value.lower())
        try:
            return parse_ms(f"{written}ms" if written.isdecimal() else written)
        except ValueError:
            raise OptionError(f"{name}={value}: write it like 500ms, 10s, 15m or 2h") from None

    def object(self, name: str, *, example: str) -> dict[str, Any] | None:
        """A JSON object, None where it was not given."""
        value = self.text(name)
        if value is None:
            return None
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found:
            raise OptionError(f"{name}={value}: it is a JSON object like {example}")
        return found


@dataclass(frozen=True)
class Bounds:
    """Where reading begins or ends: `default` (`earliest`, `latest` or an ID) and, for some streams,
    otherwise. IDs are the last one read: a beginning excludes it, an end includes it. `option` says where it
    comes from.
    """

    default: str
    by_stream: Mapping[str, str] = field(default_factory=dict)
    option: str = ""

    def of(self, gateway: str, stream: str) -> str:
        """What holds for a stream; `gateway/stream` wins over `stream`."""
        return self.by_stream.get(f"{gateway}/{stream}", self.by_stream.get(stream, self.default))


@dataclass(frozen=True)
class SourceOptions:
    """How to read. Sizes are entries or bytes, times milliseconds; None is "no limit"."""

    gateways: tuple[Access, ...]
    relation: str = "entries"
    # Exactly one of these three is set.
    subscribe: tuple[str, ...] = ()
    pattern: str | None = None
    assign: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shard: tuple[int, int] | None = None
    starting: Bounds | None = None
    ending: Bounds = Bounds(LATEST)
    max_entries_per_trigger: int = max_entries_per_trigger_default
    max_bytes_per_trigger: int | None = None
    min_entries_per_trigger: int | None = None
    max_trigger_delay_ms: int = max_trigger_delay_ms_default
    min_partitions: int = 1
    max_entries_per_partition: int = max_entries_per_partition_default
    max_bytes_per_partition: int = max_bytes_per_partition_default
    ordered: bool = False
    fail_on_data_loss: bool = True
    fail_on_missing_stream: bool = False
    on_reset: str = "fail"
    durable_only: bool = True
    fetch_size: int = fetch_size_default
    poll_timeout_ms: int = poll_timeout_ms_default
    discovery_interval_ms: int = discovery_interval_ms_default
    fields_format: str = "map"
    mode: str = PERMISSIVE
    columns: tuple[str, ...] = ()
    include_meta: bool = False
    on_bad_utf8: str = "replace"
    dup_fields: str = "first"
    pushdown: bool = False
    mirror_group: str | None = None
    # Whether fieldsFormat was asked for; where it was not, a schema of the user's own means `columns`.
    format_given: bool = False

    def access(self, gateway: str) -> Access:
        """The gateway of that name. Raises OptionError."""
        for one in self.gateways:
            if one.name == gateway:
                return one
        names = ", ".join(one.name for one in self.gateways)
        raise OptionError(f"gateway.urls has no gateway named {gateway}, only {names}")


def source_options(options: Mapping[str, str], *, also: Sequence[Option] = ()) -> SourceOptions:
    """What the options for reading say; `also` are those for writing. Raises OptionError."""
    given = Given(options, SOURCE, also={"writing": also})
    gateways = accesses(given)
    subscribe, pattern, assign = _selection(given, [one.name for one in gateways])
    fail_on_data_loss = given.boolean("failOnDataLoss", default=True)
    fields_format = given.word("fieldsFormat", FORMATS, "map")
    return SourceOptions(
        gateways=gateways,
        relation=given.word("relation", RELATIONS, "entries"),
        subscribe=subscribe,
        pattern=pattern,
        assign=assign,
        shard=_shard(given),
        starting=_bounds(given, "starting"),
        ending=_bounds(given, "ending") or Bounds(LATEST),
        max_entries_per_trigger=given.integer("maxEntriesPerTrigger", max_entries_per_trigger_default),
        max_bytes_per_trigger=given.maybe_integer("maxBytesPerTrigger"),
        min_entries_per_trigger=given.maybe_integer("minEntriesPerTrigger"),
        max_trigger_delay_ms=given.duration_ms("maxTriggerDelay", max_trigger_delay_ms_default),
        min_partitions=given.integer("minPartitions", _parallelism(), most=partitions_max),
        max_entries_per_partition=given.integer("maxEntriesPerPartition", max_entries_per_partition_default),
        max_bytes_per_partition=given.integer("maxBytesPerPartition", max_bytes_per_partition_default),
        ordered=given.boolean("ordered", default=False),
        fail_on_data_loss=fail_on_data_loss,
        fail_on_missing_stream=given.boolean("failOnMissingStream", default=False),
        on_reset=given.word("onReset", ("fail", EARLIEST, LATEST), "fail" if fail_on_data_loss else EARLIEST),
        durable_only=given.boolean("durableOnly", default=True),
        fetch_size=given.integer("fetchSize", fetch_size_default, most=_fetch_size_max),
        poll_timeout_ms=given.integer(
            "pollTimeoutMs", poll_timeout_ms_default, least=0, most=_poll_timeout_ms_max
        ),
        discovery_interval_ms=given.duration_ms("discoveryIntervalMs", discovery_interval_ms_default),
        fields_format=fields_format,
        mode=given.word("mode", (PERMISSIVE, FAILFAST), PERMISSIVE),
        columns=_list(given, "columns"),
        include_meta=given.boolean("includeMeta", default=False),
        on_bad_utf8=given.word("onBadUtf8", ("replace", "fail", "base64"), "replace"),
        dup_fields=given.word("dupFields", ("first", "last"), "first"),
        pushdown=given.boolean("pushdown", default=False),
        mirror_group=given.text("mirrorGroup"),
        format_given=given.text("fieldsFormat") is not None,
    )


def accesses(given: Given) -> tuple[Access, ...]:
    """The gateways that `gateway.urls` names: one URL, or `name=URL` between commas. Raises OptionError."""
    value = given.text("gateway.urls")
    if value is None:
        raise OptionError("gateway.urls is missing: give one URL, or g0=http://…,g1=http://…")
    parts = [part.strip() for part in value.split(",") if part.strip()]
    named: dict[str, str] = {}
    for part in parts:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)=(\S+)", part)
        if match is None and len(parts) > 1:
            raise OptionError(
                "gateway.urls: several gateways need names, by which offsets remember them: "
                "g0=http://…,g1=http://…"
            )
        name, url = (match[1], match[2]) if match else ("g0", part)
        if name in named:
            raise OptionError(f"gateway.urls: two gateways are named {name}")
        named[name] = url
    return tuple(
        Access(
            name=name,
            url=url,
            token_file=given.text("tokenFile"),
            token_env=given.text("tokenEnv"),
            request_timeout_ms=given.integer("requestTimeoutMs", request_timeout_ms_default),
            retry_timeout_ms=given.integer("retryTimeoutMs", retry_timeout_ms_default, least=0),
        )
        for name, url in named.items()
    )


def _selection(
    given: Given, gateways: Sequence[str]
) -> tuple[tuple[str, ...], str | None, dict[str, tuple[str, ...]]]:
    """The streams to read, in the one way in which they were named."""
    ways = ("subscribe", "subscribePattern", "assign")
    used = [name for name in ways if given.text(name) is not None]
    if len(used) != 1:
        told = " and ".join(used) if used else "none of them"
        raise OptionError(f"give exactly one of subscribe, subscribePattern and assign, not {told}")
    subscribe = _list(given, "subscribe")
    for name in subscribe:
        prefix, slash, _ = name.rpartition("/")
        if slash and prefix not in gateways:
            raise OptionError(f"subscribe: {name}: gateway.urls has no gateway named {prefix!r}")
    pattern = given.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"subscribePattern={pattern}: it is a regular expression: {error}") from None
    assigned: dict[str, tuple[str, ...]] = {}
    for gateway, names in (given.object("assign", example='{"g0": ["orders"]}') or {}).items():
        if gateway not in gateways:
            raise OptionError(f"assign: gateway.urls has no gateway named {gateway!r}")
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise OptionError(f'assign: {gateway}: it is a list of names, as {{"{gateway}": ["orders"]}}')
        assigned[gateway] = tuple(names)
    return subscribe, pattern, assigned


def _bounds(given: Given, side: str) -> Bounds | None:
    """`starting…` or `ending…`; a time wins over times by stream, these over IDs."""
    upper = side == "ending"
    name = f"{side}Timestamp"
    if (time := given.text(name)) is not None:
        return Bounds(_id_of_time(name, time, upper=upper), option=name)
    name = f"{side}OffsetsByTimestamp"
    if (times := given.object(name, example='{"orders": 1700000000000}')) is not None:
        found = {stream: _id_of_time(name, str(time), upper=upper) for stream, time in times.items()}
        return Bounds(LATEST if upper else EARLIEST, found, option=name)
    name = f"{side}Offsets"
    value = given.text(name)
    if value is None:
        return None
    if value.lower() in (EARLIEST, LATEST):
        return Bounds(value.lower(), option=name)
    places = given.object(name, example='{"orders": "1700000000000-0"}, or earliest, or latest') or {}
    return Bounds(
        LATEST if upper else EARLIEST,
        {stream: _place(name, stream, place) for stream, place in places.items()},
        option=name,
    )


def _place(option: str, stream: str, place: object) -> str:
    """An ID, `earliest`, `latest`, or Kafka's numbers for these two."""
    habits: dict[object, str] = {-2: EARLIEST, -1: LATEST, EARLIEST: EARLIEST, LATEST: LATEST}
    if isinstance(place, int | str) and place in habits:
        return habits[place]
    try:
        return ids.canonical(str(place))
    except PipelineError as error:
        raise OptionError(f"{option}: {stream}: {error.sentence}, or earliest, or latest") from None


def _id_of_time(option: str, time: str, *, upper: bool) -> str:
    """The last ID before a time, or with `upper` the last one in that millisecond."""
    if re.fullmatch(r"[0-9]{1,20}", time, re.ASCII):
        ms = int(time)
    else:
        try:
            moment = datetime.fromisoformat(time)
        except ValueError:
            raise OptionError(
                f"{option}={time}: it is milliseconds since 1970, or a time like 2026-01-31T12:00:00Z"
            ) from None
        ms = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)
    if not 0 <= ms <= ids.HALF_MAX:
        raise OptionError(f"{option}={time}: it lies before 1970 or beyond what an ID holds")
    return str(ids.EntryId(ms, ids.HALF_MAX) if upper else ids.previous_id(ids.EntryId(ms, 0)))


def _shard(given: Given) -> tuple[int, int] | None:
    value = given.text("streamShard")
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]{1,5})/([0-9]{1,5})", value, re.ASCII)
    if match is None or not int(match[1]) < int(match[2]):
        raise OptionError(f"streamShard={value}: write 0/8 to 7/8 for the eight parts of all streams")
    return int(match[1]), int(match[2])


def _list(given: Given, name: str) -> tuple[str, ...]:
    """Names between commas, each once."""
    return tuple(dict.fromkeys(part.strip() for part in (given.text(name) or "").split(",") if part.strip()))


def _parallelism() -> int:
    """The default of `minPartitions`: Spark does not show a source how many tasks a cluster can run at once.
    So it is the number of this machine's cores. Jobs pass the cluster's number.
    """
    return min(os.cpu_count() or 1, partitions_max)


def _unknown(name: str, known: Mapping[str, str], also: Mapping[str, Sequence[Option]]) -> str:
    lowered = name.lower()
    if lowered in _HABITS:
        return f"{name} is no option: {_HABITS[lowered]}"
    for side, table in also.items():
        if any(lowered in (one.name.lower(), *map(str.lower, one.aliases)) for one in table):
            return f"{name} is an option for {side} only: leave it out here"
    near = difflib.get_close_matches(lowered, known, n=1, cutoff=_nearness)
    return f"{name} is no option" + (f": did you mean {known[near[0]]}?" if near else "")
