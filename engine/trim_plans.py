"""What a trim would remove, by Redis's rules: plans that change nothing.

Knows: the live entries of a stream, node by node.
Must never know: which entries are pending, callers, the time.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from engine import ids
from engine.live_entries import LiveEntries
from engine.nodes import Node, live_place
from engine.runs import Run


class TrimPlan(NamedTuple):
    """What a trim removes: everything below `cut`, or (where references matter) exactly `ids`.

    `removed` is the number of entries, `scanned` how many were looked at. With `resume_at`, everything below
    that ID stays, and the rest has not been looked at.

    One that begins with `added` entries, which are to come before it, may end with an `open_at`: from that ID
    on it depends on them. Once they are there, another one begins with it, and goes on from there.
    """

    cut: int = 0
    ids: Sequence[int] = ()
    removed: int = 0
    scanned: int = 0
    resume_at: int | None = None
    open_at: int | None = None
    added: int = 0


NOTHING_PLANNED: Final = TrimPlan()


class RemovalLimits(NamedTuple):
    """Limits of one planned removal: the highest ID of the nodes; entries in whole nodes (0 is none); entries
    removed, exactly, and entries looked at, about.
    """

    upto: int
    limit: int
    removed_max: int
    scanned_max: int


def plan_cut(
    stream: LiveEntries,
    *,
    maxlen: int | None,
    minid: int | None,
    approx: bool,
    limit: int,
    whole_runs: bool = False,
    begun: TrimPlan = NOTHING_PLANNED,
) -> TrimPlan:
    """What a trim that keeps references removes. Walks over whole nodes from the head, as Redis does.

    `limit` 0 is none. With `approx` no node is split, not even for the limit; without, the limit is met
    exactly. With `whole_runs` and `approx` no run is looked into.
    """
    added, removed, cut = begun.added, begun.removed, begun.cut
    length = stream.length + added - removed
    if maxlen == length - 1 and not approx and not removed and stream.length:
        # One entry too many: the common case, each append to a stream with MAXLEN.
        return TrimPlan(stream.first_id + 1, (), 1)

    def is_whole(part: Node | Run) -> bool:
        fits = length - part.live >= maxlen if maxlen is not None else part.last < (minid or 0)
        return fits and not (limit and removed + part.live > limit)

    for node in _parts(stream, lambda run: whole_runs or is_whole(run), begun.open_at or 0):
        live = node.live
        if maxlen is not None and length <= maxlen:
            break
        if added and node is stream.open:
            return TrimPlan(cut, (), removed, open_at=node.first)
        if is_whole(node):
            length, removed, cut = length - live, removed + live, node.last + 1
            continue
        if not approx and not isinstance(node, Run):
            count = stream.live_before(node, minid or 0) if maxlen is None else length - maxlen
            return _cut_inside(stream, node, min(count, limit - removed) if limit else count, removed, cut)
        break
    else:
        return TrimPlan(cut, (), removed, open_at=_end(stream) if added else None)
    return TrimPlan(cut, (), removed)


def _end(stream: LiveEntries) -> int:
    """Where the open node is to begin, or beyond."""
    last = stream.nodes.last()
    return last[1].last + 1 if last else ids.ID_MIN


def _parts(stream: LiveEntries, is_whole: Callable[[Run], bool], start: int = 0) -> Iterator[Node | Run]:
    """The nodes upwards; a run as one where that is enough."""
    for part in stream.parts_from(start):
        if isinstance(part, Run) and not is_whole(part):
            yield from stream.nodes_of(part)
        else:
            yield part


def plan_bytes(stream: LiveEntries, bytes_max: int, *, approx: bool, limit: int) -> TrimPlan:
    """What to remove, in whole nodes, so that the remaining texts take about `bytes_max`, never less.

    A node is split only where `limit` requires it, and never with `approx`, which looks into no run either.
    """
    size, removed, cut = stream.text_bytes, 0, 0

    def is_whole(run: Run) -> bool:
        return approx or (size - run.size >= bytes_max and not (limit and removed + run.live > limit))

    for node in _parts(stream, is_whole):
        if size - node.size < bytes_max:
            break
        if limit and removed + node.live > limit:
            return (
                TrimPlan(cut, (), removed)
                if approx or isinstance(node, Run)
                else _cut_inside(stream, node, limit - removed, removed, cut)
            )
        size, removed, cut = size - node.size, removed + node.live, node.last + 1
    return TrimPlan(cut, (), removed)


def _cut_inside(stream: LiveEntries, node: Node, count: int, removed: int, cut: int) -> TrimPlan:
    """The plan so far (`removed`, `cut`) extended by the first `count` live entries of `node`."""
    if count <= 0:
        return TrimPlan(cut, (), removed)
    return TrimPlan(stream.id_at(node, live_place(node.deleted, count - 1)) + 1, (), removed + count)


def plan_removal(
    stream: LiveEntries,
    *,
    maxlen: int | None,
    minid: int | None,
    limits: RemovalLimits,
    kept: Callable[[Sequence[int]], Collection[int]],
    begun: TrimPlan = NOTHING_PLANNED,
) -> TrimPlan:
    """What a trim that respects references removes, entry by entry.

    `kept` returns those of a node's IDs that must stay.
    """
    gone, scanned, limit, added = [*begun.ids], begun.scanned, limits.limit, begun.added
    length = stream.length + added - len(gone)
    for node in stream.nodes_from(begun.open_at or 0):
        live = node.live
        if node.first > limits.upto or (maxlen is not None and length <= maxlen):
            break
        if added and node is stream.open:
            return TrimPlan(0, gone, len(gone), scanned, open_at=node.first)
        if limit and len(gone) + live > limit:
            break
        if scanned >= limits.scanned_max:
            return TrimPlan(0, gone, len(gone), scanned, None if gone else node.first)
        scanned += live
        eligible = length - live >= maxlen if maxlen is not None else node.last < (minid or 0)
        run_ids = stream.live_ids_of(node)
        staying = kept(run_ids)
        for entry_id in run_ids:
            if length <= maxlen if maxlen is not None else entry_id >= (minid or 0):
                break
            if len(gone) == limits.removed_max:
                return TrimPlan(0, gone, len(gone), scanned)
            if entry_id not in staying:
                gone.append(entry_id)
                length -= 1
        if not eligible:
            break
    else:
        return TrimPlan(0, gone, len(gone), scanned, open_at=_end(stream) if added else None)
    return TrimPlan(0, gone, len(gone), scanned)
