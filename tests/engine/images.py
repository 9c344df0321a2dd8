"""The whole of a keyspace as plain values, so that two of them can be compared without trusting a snapshot.

Knows: that everything an object keeps is its state, but for what is listed here as derived.
Must never know: how a snapshot is made. An attribute that is new tomorrow is compared tomorrow.
"""

from typing import Final

from engine.blocks import SortedMap
from engine.groups import Group
from engine.keyspace import Keyspace
from engine.nodes import OpenNode, SealedNode
from engine.parts.deferrals import Deferrals

# Caches, counters that only order what is compared in order, and what a restart sets anew.
DERIVED: Final = frozenset(
    {
        "_due",
        "_ends",
        "appended",
        "dropped",
        "_dues",
        "_rule",
        "_hot",
        "_cold",
        "_found",
        "_idle_longest",
        "_own_first",
        "_names",
        "_serial",
        "move",
        "number",
        "_decoded",
        "_decoded_bytes",
        "_node_cache",
        "caps",
        "edition",
        "cold",
        "floor_ms",
        "footprint",
        "garbage",
        "memory",
        "new_generation",
        "round",
        "maintained",
        "before_change",
        "held",
        "lifetimes",
        "due_times",
        "notifies",
        "quotas",
        "text_bytes",
        "node_cache",
        "readers",
        # What is news is not all known after a restart.
        "active_ms",
        "failed_ms",
        "seen_ms",
        "unsynced_from",
        "used_ms",
        "versions",
        "_moment_ms",
        "opened_ms",
    }
)
# Dicts whose order is what goes first.
ORDERED: Final = frozenset({"answers", "producers"})


def image(keyspace: Keyspace) -> object:
    """All state, to be compared with `==`."""
    return _image(keyspace, "")


def _image(value: object, name: str) -> object:
    if isinstance(value, Group):
        in_order = list(value.by_delivery.values())
        return _attributes(value) | {"pending": _pending(value), "by_delivery": in_order}
    if isinstance(value, Deferrals):
        # Their orders begin anew where a snapshot is loaded.
        return list(value.times.values())
    if isinstance(value, SealedNode | OpenNode):
        return _node(value)
    if isinstance(value, SortedMap):
        return [(key, _image(each, name)) for key, each in value.items()]
    if isinstance(value, dict):
        pairs = [(key, _image(each, "producers" if name in ORDERED else "")) for key, each in value.items()]
        return pairs if name in ORDERED else dict(pairs)
    if isinstance(value, list | tuple):
        return [_image(each, "") for each in value]
    return _attributes(value) if type(value).__module__.startswith("engine.") else value


def _attributes(value: object) -> dict[str, object]:
    names = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
    names |= set(getattr(value, "__dict__", ()))
    # Pending entries name their consumers, and these their entries: the group alone shows them.
    own = names - DERIVED - ({"by_delivery", "pending"} if isinstance(value, Group) else set())
    return {name: _image(getattr(value, name), name) for name in own}


def _node(node: SealedNode | OpenNode) -> object:
    """What can be read of a node, and when it will be full: deleted texts may be gone or not."""
    live = [text for place, text in enumerate(node.texts()) if not node.deleted >> place & 1]
    if isinstance(node, OpenNode):
        return (list(node.ids), node.deleted, node.size, live)
    return (node.first, node.last, node.count, live)


def _pending(group: Group) -> list[object]:
    return [
        (entry_id, one.consumer and one.consumer.name, one.delivery_time_ms, one.until_ms, one.delivery_count)
        for entry_id, one in group.pending.items()
    ]
