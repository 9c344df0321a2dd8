"""A plan over a server: each stream is measured by a script, and they share the budget.

Knows: how the budget is shared, when what a plan names is durable. Must never know: connections.
"""

from collections.abc import Awaitable, Callable, Sequence
from secrets import token_hex
from typing import Any, Final

from engine import ids
from engine.apportion import apportion
from engine.cluster.refusals import not_supported
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.scripts import ScriptCall, Word, script, stream_keys
from engine.cluster.words import by_script
from engine.commands.weir_commands import Plan
from engine.replies import Planned, StreamPlan

RunEach = Callable[[Sequence[BackendRequest]], Awaitable[Sequence[StreamPlan | None]]]
_NOTHING: Final = "memory"


async def plan(run_each: RunEach, command: Plan, durability: str) -> Planned:
    """See `Plan`. With `durable_only` a plan is a write, whose confirmation is for all writes before it.
    Raises EngineError.
    """
    if command.durable_only and durability == _NOTHING:
        raise not_supported("durable_only", "backend_durability=memory")
    count = len(command.streams)
    entries, size = [command.max_entries] * count, [command.max_bytes] * count
    if count > 1 and not (command.max_entries is command.max_bytes is None):
        counted = await run_each(_requests(command, [None] * count, [None] * count))
        entries = _shares(
            [0 if measured is None else measured.count for measured in counted], command.max_entries
        )
        size = _shares([0 if measured is None else measured.bytes for measured in counted], command.max_bytes)
    plans = await run_each(_requests(command, entries, size))
    rows = list(zip([name for name, _ in command.streams], plans, strict=True))
    return Planned(
        [plan for _, plan in rows if plan is not None], [name for name, plan in rows if plan is None]
    )


def _shares(wanted: Sequence[int], budget: int | None) -> list[int | None]:
    return [None] * len(wanted) if budget is None else [*apportion(wanted, budget)]


def _requests(
    command: Plan, entries: Sequence[int | None], size: Sequence[int | None]
) -> list[BackendRequest]:
    rows = zip(command.streams, entries, size, strict=True)
    lane = Lane.WRITE if command.durable_only else Lane.READ
    return [
        by_script(name, _call(command, name, after, most, most_bytes), lane)
        for (name, after), most, most_bytes in rows
    ]


def _call(command: Plan, name: str, after: int, most: int | None, most_bytes: int | None) -> ScriptCall:
    end = command.ends.get(name)
    words: list[Word] = [token_hex(8), ids.format(after), "" if end is None else ids.format(end)]
    words += ["" if most is None else most, "" if most_bytes is None else most_bytes]
    words += [command.parts, int(command.durable_only)]

    def decode(reply: Any) -> StreamPlan | None:  # noqa: ANN401 - as the server sent it
        if reply is None:
            return None
        stop, count, size, *edges, generation, lag, cuts, closed = reply
        first, last, removed_upto, max_deleted = map(ids.parse_canonical, edges)
        return StreamPlan(
            stream=name,
            after=after,
            end=ids.parse_canonical(stop),
            count=count,
            bytes=size,
            first_id=first,
            last_id=last,
            removed_upto=removed_upto,
            max_deleted_id=max_deleted,
            generation=generation.decode(),
            durable=last if command.durable_only else None,
            lag=lag,
            cuts=list(map(ids.parse_canonical, cuts)),
            closed=bool(closed),
        )

    return ScriptCall(script("plan"), stream_keys(name)[:2], words, decode)
