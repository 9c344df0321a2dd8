"""Limits that settings put on entries, reads and Redis commands.

Knows: their names and units. Must never know: who enforces them.
"""

from collections.abc import Sequence
from typing import Final, Self

import msgspec

from app.settings import Settings
from engine import SLOW_TURN_S

# Maximum words of a command besides fields, streams and IDs.
_OPTIONS_MAX: Final = 64
# Turns that SLOWLOG remembers: as Redis's slowlog-max-len by default.
SLOW_TURNS_MAX: Final = 128


class EntryLimits(msgspec.Struct, frozen=True):
    """Limits of one body: entries, bytes of a stored entry, fields of an entry, levels of JSON."""

    entries_max: int
    entry_bytes_max: int
    fields_max: int
    depth_max: int

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As set."""
        return cls(
            entries_max=settings.batch_entries_max,
            entry_bytes_max=settings.entry_bytes_max,
            fields_max=settings.entry_fields_max,
            depth_max=settings.json_depth_max,
        )


class ReadLimits(msgspec.Struct, frozen=True):
    """Limits of one response with entries, and of the time that a read may wait for them."""

    count_default: int
    count_max: int
    bytes_max: int
    wait_ms_max: int

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As set."""
        return cls(
            count_default=min(settings.count_default, settings.count_max),
            count_max=settings.count_max,
            bytes_max=settings.answer_bytes_max,
            wait_ms_max=settings.wait_ms_max,
        )


class CommandLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one Redis command and its reply, named like the settings; `rows_max` is `count_max`.

    `config` is what CONFIG GET shows of the gateway: Redis's names and values.
    """

    entry_bytes_max: int
    entry_fields_max: int
    ids_max: int
    lookups_max: int
    request_streams_max: int
    rows_max: int
    answer_bytes_max: int
    config: Sequence[tuple[str, int | str]] = ()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As set."""
        return cls(
            config=_redis_config(settings),
            entry_bytes_max=settings.entry_bytes_max,
            entry_fields_max=settings.entry_fields_max,
            ids_max=settings.ids_max,
            lookups_max=settings.lookups_max,
            request_streams_max=settings.request_streams_max,
            rows_max=settings.count_max,
            answer_bytes_max=settings.answer_bytes_max,
        )

    @property
    def words_max(self) -> int:
        """Maximum words of a command, which follows from the other limits."""
        return 2 * max(self.entry_fields_max, self.request_streams_max) + self.ids_max + _OPTIONS_MAX


def _redis_config(settings: Settings) -> list[tuple[str, int | str]]:
    """The settings of Redis that programs ask for, as they are here."""
    return [
        ("appendfsync", settings.fsync),
        ("appendonly", "yes"),
        ("cluster-enabled", "no"),
        ("databases", 1),
        ("latency-monitor-threshold", 0),
        ("maxclients", settings.resp_connections_max),
        ("maxmemory-policy", "noeviction"),
        # Those of streams, without being asked for.
        ("notify-keyspace-events", "gxtnKE"),
        ("port", settings.resp_port),
        ("proto-max-bulk-len", settings.body_bytes_max),
        ("save", ""),
        ("slowlog-log-slower-than", round(SLOW_TURN_S * 1_000_000)),
        ("slowlog-max-len", SLOW_TURNS_MAX),
        ("timeout", 0),
    ]
