"""XINFO of the naive model: the flat maps of docs/semantics.md, in their order.

Knows: which facts are shown. Must never know: the engine's code.
"""

from tests.engine.model import Model, pending_rows
from tests.engine.model_state import ModelEntry, ModelGroup, ModelStream, Refusal, show
from tests.engine.model_turns import Reply


def xinfo_stream(model: Model, key: str) -> Reply:
    stream = _stream(model, key)
    entries = stream.entries()
    ends = [_shown(entries[0]), _shown(entries[-1])] if entries else [None, None]
    return [*_head(stream), "groups", len(stream.groups), "first-entry", ends[0], "last-entry", ends[1]]


def xinfo_full(model: Model, key: str, count: int | None = 10) -> Reply:
    stream = _stream(model, key)
    entries = [_shown(entry) for entry in stream.entries()[:count]]
    groups = [_full_group(stream, name, count) for name in sorted(stream.groups)]
    return [*_head(stream), "entries", entries, "groups", groups]


def xinfo_groups(model: Model, key: str) -> Reply:
    stream = _stream(model, key)
    return [
        [
            *["name", name, "consumers", len(group.consumers), "pending", len(group.pending)],
            *["last-delivered-id", show(group.last), "entries-read", group.read, "lag", stream.lag(group)],
        ]
        for name, group in sorted(stream.groups.items())
    ]


def xinfo_consumers(model: Model, key: str, name: str) -> Reply:
    stream = _stream(model, key)
    if name not in stream.groups:
        raise Refusal(f"NOGROUP No such consumer group '{name}' for key name '{key}'")
    group = stream.groups[name]
    return [
        [
            *["name", consumer, "pending", len(group.by_id(consumer))],
            *["idle", max(0, model.now - one.seen)],
            *["inactive", max(0, model.now - one.active) if one.active >= 0 else -1],
        ]
        for consumer, one in sorted(group.consumers.items())
    ]


def _stream(model: Model, key: str) -> ModelStream:
    if key not in model.streams:
        raise Refusal("ERR no such key")
    return model.streams[key]


def _shown(entry: ModelEntry) -> Reply:
    return [show(entry.id), entry.fields]


def _head(stream: ModelStream) -> list[Reply]:
    tracked = sum(len(keys) for keys in stream.idempotency_table.values())
    return [
        *["length", stream.length, "radix-tree-keys", len(stream.nodes), "radix-tree-nodes", "<any>"],
        *["last-generated-id", show(stream.last), "max-deleted-entry-id", show(stream.max_deleted)],
        *["entries-added", stream.added, "recorded-first-entry-id", show(stream.first)],
        *["idmp-duration", stream.idmp_duration, "idmp-maxsize", stream.idmp_maxsize],
        *["pids-tracked", len(stream.idempotency_table), "iids-tracked", tracked],
        *["iids-added", stream.keys_added, "iids-duplicates", stream.duplicates],
    ]


def _full_group(stream: ModelStream, name: str, count: int | None) -> Reply:
    group = stream.groups[name]
    released = sum(one.owner is None and one.until is None for one in group.pending.values())
    return [
        *["name", name, "last-delivered-id", show(group.last), "entries-read", group.read],
        *["lag", stream.lag(group), "pel-count", len(group.pending), "nacked-count", released],
        *["pending", pending_rows(group.by_id()[:count], owners=True)],
        *["consumers", [_full_consumer(group, consumer, count) for consumer in sorted(group.consumers)]],
    ]


def _full_consumer(group: ModelGroup, name: str, count: int | None) -> Reply:
    consumer, mine = group.consumers[name], group.by_id(name)
    return [
        *["name", name, "seen-time", consumer.seen, "active-time", consumer.active],
        *["pel-count", len(mine), "pending", pending_rows(mine[:count], owners=False)],
    ]
