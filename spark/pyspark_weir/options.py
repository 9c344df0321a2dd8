"""What the options for reading say; each is declared once, as a member.

Knows: the options' names, limits and defaults. Must never know: gateways, what an option does.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark_weir import ids, raw_options
from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.gateway import GatewayAccess
from pyspark_weir.raw_options import (
    Option,
    RawOptions,
    declare,
    duration,
    flag,
    integer,
    json_object,
    names,
    table_of,
    word,
)

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
RELATIONS: Final = ("entries", "streams", "groups", "consumers", "pending", "deadletter")
FORMATS: Final = ("map", "entries", "json", "columns")
# What happens to a value that does not fit its column, as Spark's own readers call it.
PERMISSIVE: Final = "permissive"
FAILFAST: Final = "failfast"
# The gateway's own limits, of a page and of a wait.
_FETCH_SIZE_MAX: Final = 100_000
_POLL_TIMEOUT_MS_MAX: Final = 60_000
# More than any cluster runs at once; the driver keeps every task of a batch in memory.
_PARTITIONS_MAX: Final = 10_000

COMMON: Final = (
    Option("gateway.urls", ("url",)),
    *table_of(GatewayAccess),
)


@dataclass(frozen=True)
class OffsetBounds:
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


def _names(value: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names(value)))


def _shard(value: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,5})/([0-9]{1,5})", value, re.ASCII)
    if match is None or not int(match[1]) < int(match[2]):
        raise OptionError(f"streamShard={value}: write 0/8 to 7/8 for the eight parts of all streams")
    return int(match[1]), int(match[2])


@dataclass(frozen=True)
class SourceOptions:
    """How to read. Sizes are entries or bytes, times milliseconds; None is "no limit"."""

    gateways: tuple[GatewayAccess, ...]
    relation: str = word("relation", RELATIONS)
    # Exactly one of these three is set.
    subscribe: tuple[str, ...] = declare("subscribe", "streams", "stream.keys", default=())
    pattern: str | None = declare("subscribePattern", "pattern")
    assign: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shard: tuple[int, int] | None = declare("streamShard", read=_shard)
    starting: OffsetBounds | None = declare("startingOffsets")
    # What a time behind a stream's last entry means to a streaming query.
    starting_strategy: str = word(
        "startingTimestampStrategy", ("error", LATEST), "startingOffsetsByTimestampStrategy"
    )
    ending: OffsetBounds = declare("endingOffsets", default=OffsetBounds(LATEST))
    max_entries_per_trigger: int = integer("maxEntriesPerTrigger", "maxOffsetsPerTrigger", default=500_000)
    max_bytes_per_trigger: int | None = integer("maxBytesPerTrigger")
    min_entries_per_trigger: int | None = integer("minEntriesPerTrigger", "minOffsetsPerTrigger")
    max_trigger_delay_ms: int = duration("maxTriggerDelay", 15 * 60_000)
    # Spark does not show a source how many tasks a cluster runs at once: this machine's cores. Jobs pass the
    # cluster's number.
    min_partitions: int = integer(
        "minPartitions", default=min(os.cpu_count() or 1, _PARTITIONS_MAX), most=_PARTITIONS_MAX
    )
    max_entries_per_partition: int = integer(
        "maxEntriesPerPartition", "maxRecordsPerPartition", default=200_000
    )
    max_bytes_per_partition: int = integer("maxBytesPerPartition", default=32 << 20)
    ordered: bool = flag("ordered")
    fail_on_data_loss: bool = flag("failOnDataLoss", default=True)
    fail_on_missing_stream: bool = flag("failOnMissingStream")
    on_reset: str = word("onReset", ("fail", EARLIEST, LATEST))
    durable_only: bool = flag("durableOnly", default=True)
    fetch_size: int = integer("fetchSize", default=20_000, most=_FETCH_SIZE_MAX)
    poll_timeout_ms: int = integer(
        "pollTimeoutMs", "kafkaConsumer.pollTimeoutMs", default=500, least=0, most=_POLL_TIMEOUT_MS_MAX
    )
    discovery_interval_ms: int = duration("discoveryIntervalMs", 10_000)
    fields_format: str = word("fieldsFormat", FORMATS)
    mode: str = word("mode", (PERMISSIVE, FAILFAST))
    columns: tuple[str, ...] = declare("columns", default=(), read=_names)
    include_meta: bool = flag("includeMeta", "includeHeaders")
    on_bad_utf8: str = word("onBadUtf8", ("replace", "fail", "base64"))
    dup_fields: str = word("dupFields", ("first", "last"))
    pushdown: bool = flag("pushdown", default=True)
    mirror_group: str | None = raw_options.text("mirrorGroup", "groupIdPrefix")
    # Whether fieldsFormat was asked for; where it was not, a schema of the user's own means `columns`.
    format_given: bool = False

    def named_at(self, gateway: str) -> Sequence[str]:
        """The streams that are named for a gateway. `subscribe` has `stream` for each, `gateway/stream` for
        one: what is before the first slash is a gateway if `gateway.urls` has one of that name.
        """
        if self.assign:
            return self.assign.get(gateway, ())
        return [name for at, name in map(self._split, self.subscribe) if at in (None, gateway)]

    def _split(self, name: str) -> tuple[str | None, str]:
        at, _, stream = name.partition("/")
        is_gateway = stream and any(one.name == at for one in self.gateways)
        return (at, stream) if is_gateway else (None, name)

    def access(self, gateway: str) -> GatewayAccess:
        for one in self.gateways:
            if one.name == gateway:
                return one
        names = ", ".join(one.name for one in self.gateways)
        raise OptionError(f"gateway.urls has no gateway named {gateway}, only {names}")


_TIMES: Final = (
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
)
SOURCE: Final = (*COMMON, *table_of(SourceOptions), *map(Option, ("assign", *_TIMES)))


def source_options(options: Mapping[str, str], *, also: Sequence[Option] = ()) -> SourceOptions:
    """What the options for reading say; `also` are those for writing. Raises OptionError."""
    raw = RawOptions(options, SOURCE, also={"writing": also})
    gateways = accesses(raw)
    subscribe, pattern, assign = _selection(raw, [one.name for one in gateways])
    given = raw.members(SourceOptions)
    if not given.get("fail_on_data_loss", True):
        given.setdefault("on_reset", EARLIEST)
    return SourceOptions(
        gateways=gateways,
        subscribe=subscribe,
        pattern=pattern,
        assign=assign,
        starting=_bounds(raw, "starting"),
        ending=_bounds(raw, "ending") or OffsetBounds(LATEST),
        format_given="fields_format" in given,
        **given,
    )


def accesses(raw: RawOptions) -> tuple[GatewayAccess, ...]:
    """The gateways that `gateway.urls` names: one URL, or `name=URL` between commas. Raises OptionError."""
    value = raw.text("gateway.urls")
    if value is None:
        raise OptionError("gateway.urls is missing: give one URL, or g0=http://…,g1=http://…")
    parts = names(value)
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
    given = raw.members(GatewayAccess)
    return tuple(GatewayAccess(name, url, **given) for name, url in named.items())


def _selection(
    raw: RawOptions, gateways: Sequence[str]
) -> tuple[tuple[str, ...], str | None, dict[str, tuple[str, ...]]]:
    """The streams to read, in the one way in which they were named."""
    ways = ("subscribe", "subscribePattern", "assign")
    used = [name for name in ways if raw.text(name) is not None]
    if len(used) != 1:
        named = " and ".join(used) if used else "none of them"
        raise OptionError(f"give exactly one of subscribe, subscribePattern and assign, not {named}")
    subscribe = _names(raw.text("subscribe"))
    pattern = raw.text("subscribePattern")
    check_pattern("subscribePattern", pattern)
    assigned: dict[str, tuple[str, ...]] = {}
    asked = json_object("assign", raw.text("assign"), example='{"g0": ["orders"]}')
    for gateway, streams in asked.items():
        if gateway not in gateways:
            raise OptionError(f"assign: gateway.urls has no gateway named {gateway!r}")
        if not isinstance(streams, list) or not all(isinstance(name, str) and name for name in streams):
            raise OptionError(f'assign: {gateway}: it is a list of names, as {{"{gateway}": ["orders"]}}')
        assigned[gateway] = tuple(streams)
    return subscribe, pattern, assigned


def check_pattern(option: str, pattern: str | None) -> None:
    """Raises OptionError for what is no regular expression."""
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise OptionError(f"{option}={pattern}: it is a regular expression: {error}") from None


def _bounds(raw: RawOptions, side: str) -> OffsetBounds | None:
    """`starting…` or `ending…`; a time wins over times by stream, these over IDs."""
    upper = side == "ending"
    name = f"{side}Timestamp"
    if (time := raw.text(name)) is not None:
        return OffsetBounds(id_of_time(name, time, upper=upper), option=name)
    name = f"{side}OffsetsByTimestamp"
    if times := json_object(name, raw.text(name), example='{"orders": 1700000000000}'):
        found = {stream: id_of_time(name, str(time), upper=upper) for stream, time in times.items()}
        return OffsetBounds(LATEST if upper else EARLIEST, found, option=name)
    name = f"{side}Offsets"
    value = raw.text(name)
    if value is None:
        return None
    if value.lower() in (EARLIEST, LATEST):
        return OffsetBounds(value.lower(), option=name)
    places = json_object(name, value, example='{"orders": "1700000000000-0"}, or earliest, or latest')
    return OffsetBounds(
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


def id_of_time(option: str, time: str, *, upper: bool = False) -> str:
    """The last ID before a time, or with `upper` the last one in that millisecond. Raises OptionError."""
    try:
        ms = ids.ms_of_time(time)
    except ValueError:
        raise OptionError(
            f"{option}={time}: it is milliseconds since 1970, or a time like 2026-01-31T12:00:00Z"
        ) from None
    if not 0 <= ms <= ids.HALF_MAX:
        raise OptionError(f"{option}={time}: it lies before 1970 or beyond what an ID holds")
    return str(ids.EntryId(ms, ids.HALF_MAX) if upper else ids.previous_id(ids.EntryId(ms, 0)))
