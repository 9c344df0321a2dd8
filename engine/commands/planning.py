"""Plans for readers of many streams: the entries after each cursor, and which of them to read next.

Knows: counting and finding by number, how a budget is shared, what of a stream is on disk.
Must never know: readers, wire formats, how waiting works.

The cost of a plan does not depend on the length of the stream. A plan changes nothing.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from engine import errors, ids, order_statistics
from engine.apportion import apportion
from engine.commands import weir_commands
from engine.commands.registry import Waiting, runs, waits
from engine.commands.turn import Blocked, Look, Turn
from engine.keyspace import Key
from engine.parts.closing import Closed
from engine.replies import Planned, StreamPlan

# Each exact cut may take a look into another node; above this number, ranges are cut between nodes.
_EXACT_CUTS_MAX: Final = 16
_NODE_ENTRIES: Final = 100
# No stream has a control character in its name: these are queues of their own.
_DURABLE: Final = "\0"


class _Range(NamedTuple):
    """What may be read of one stream: `live` entries of `size` bytes, `below` others stand before them.

    `upto` is the last ID that may be read; `durable` None where nothing is known of it.
    """

    name: str
    key: Key
    after: int
    upto: int
    below: order_statistics.Amount
    live: int
    size: int
    durable: int | None


@runs(weir_commands.Plan)
def plan(turn: Turn, command: weir_commands.Plan) -> Planned | Blocked:
    if command.durable_only and turn.keyspace.unsynced_from is None:
        raise errors.nothing_is_durable()
    spans: list[_Range] = []
    missing: list[str] = []
    for name, after in command.streams:
        key = turn.keyspace.find(name)
        if key is None:
            missing.append(name)
        else:
            spans.append(_range(turn, name, key, after, command))
    if command.block_ms is not None and not any(span.live for span in spans):
        names = [name for name, _ in command.streams]
        queues = [durable_queue(name) for name in names] if command.durable_only else names
        return Blocked(command, tuple(queues), command.block_ms)
    counts = _shared([span.live for span in spans], command.max_entries)
    sizes = _shared([span.size for span in spans], command.max_bytes)
    planned = [
        _planned(span, count, size, command.parts)
        for span, count, size in zip(spans, counts, sizes, strict=True)
    ]
    known = turn.keyspace.generations.previous
    return Planned(planned, missing, [known[name] for name, _ in command.streams if name in known])


def durable_queue(stream: str) -> str:
    """The queue of reads that wait for entries of the stream to be on disk."""
    return _DURABLE + stream


def is_ready(look: Look, command: weir_commands.Plan, queue: str | None) -> bool:
    """Whether a blocked plan would find something, in the stream of one queue (None: in any)."""
    looked_at = None if queue is None else queue.removeprefix(_DURABLE)
    for name, after in command.streams:
        if looked_at is None or name == looked_at:
            key = look.keyspace.find(name)
            if key is not None and _has_more(look, name, key, after, command):
                return True
    return False


def _nothing(turn: Turn, command: weir_commands.Plan) -> Planned:
    """The plan as it is by now, its time being over."""
    reply = plan(turn, command.to_nonblocking())
    assert isinstance(reply, Planned), "it does not wait any more"
    return reply


waits(weir_commands.Plan, Waiting(is_ready, _nothing, retry_at_ms=lambda *_: None))


def _has_more(look: Look, name: str, key: Key, after: int, command: weir_commands.Plan) -> bool:
    upto = _upto(look, name, key, command)
    if upto >= key.stream.last_live_id:
        return key.stream.last_live_id > after
    return upto > after and _range(look, name, key, after, command).live > 0


def _upto(look: Look, name: str, key: Key, command: weir_commands.Plan) -> int:
    """The last ID that may be read, whether there is an entry of it or not."""
    upto = command.ends.get(name, ids.ID_MAX)
    if command.durable_only:
        assert look.keyspace.unsynced_from is not None, "it was asked before"
        upto = min(upto, look.keyspace.unsynced_from(name) - 1)
    return min(upto, key.stream.last_id)


def _range(look: Look, name: str, key: Key, after: int, command: weir_commands.Plan) -> _Range:
    stream = key.stream
    upto = max(after, _upto(look, name, key, command))
    below = order_statistics.amount_below(stream, after + 1)
    whole = order_statistics.amount_below(stream, upto + 1) if upto > after else below
    return _Range(
        name,
        key,
        after,
        upto,
        below,
        whole.live - below.live,
        whole.size - below.size,
        _durable(look, name, key),
    )


def _durable(look: Look, name: str, key: Key) -> int | None:
    if look.keyspace.unsynced_from is None:
        return None
    unsynced_from = look.keyspace.unsynced_from(name)
    return key.stream.last_id if unsynced_from > key.stream.last_id else key.stream.live_below(unsynced_from)


def _planned(span: _Range, count: int, size: int, parts: int) -> StreamPlan:
    """The plan of one stream with its share of entries and bytes, at least one entry."""
    stream, live, taken = span.key.stream, span.live, span.size
    if size < span.size:
        live = max(1, order_statistics.count_within(stream, span.below.size + size) - span.below.live)
    live = min(live, count)
    end = span.after
    if live:
        end = order_statistics.id_at(stream, span.below.live + live - 1)
    if live < span.live:
        taken = order_statistics.amount_below(stream, end + 1).size - span.below.size
    return StreamPlan(
        stream=span.name,
        after=span.after,
        end=end,
        count=live,
        bytes=taken,
        first_id=stream.first_id,
        last_id=stream.last_id,
        removed_upto=stream.removed_upto,
        max_deleted_id=stream.max_deleted_id,
        generation=span.key.generation,
        durable=span.durable,
        lag=stream.length - span.below.live,
        cuts=_cuts(span, live, end, parts),
        closed=Closed.of(span.key) is not None,
    )


def _cuts(span: _Range, count: int, end: int, parts: int) -> Sequence[int]:
    """The IDs between pieces of about the same number of entries, at most `parts` of them."""
    parts = min(parts, count)
    roughly = min(parts, count // _NODE_ENTRIES) > _EXACT_CUTS_MAX
    cuts: list[int] = []
    for piece in range(1, parts):
        number = span.below.live + count * piece // parts - 1
        cut = order_statistics.id_at(span.key.stream, number, roughly=roughly)
        if span.after < cut < end and (not cuts or cuts[-1] < cut):
            cuts.append(cut)
    return cuts


def _shared(wanted: Sequence[int], budget: int | None) -> Sequence[int]:
    return wanted if budget is None else apportion(wanted, budget)
