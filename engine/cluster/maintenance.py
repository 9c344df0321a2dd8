"""What time brings to streams over a backend: retention, silent consumers, what expired streams leave.

Knows: how streams are gone through, that one gateway at a time does it. Must never know: what a stream keeps.

    every second   touch.lua for the consumers that read here, in each gateway
                   SCAN weir/{*}/m/* at each primary, 1,000 keys ──► maintain.lua for each stream found

The lease has the name of its gateway, and how many schedules the last round has found. A lost lease, or two
gateways with one, cost double work and no more: each script looks for itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

from engine.cluster import words
from engine.cluster.keys import auxiliary_pattern, stream_of
from engine.cluster.node import Node
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.schedule_counts import ScheduleCounts
from engine.cluster.scripts import maintain, touch
from engine.cluster.wire import Words, call, report
from engine.errors import OF_BACKEND, EngineError

STEP_S: Final = 1.0
_SCAN_COUNT: Final = 1_000
# Scripts for one stream in a row: what is left then waits for the next round.
_TURNS_MAX: Final = 20
_TOUCHED_MAX: Final = 500
# A consumer is silent for this longer than its group allows, for two looks of a waiting read, and for an
# outage that no request notices.
_GRACE_S: Final = 5.0
_LEASE: Final = "weir/maintainer"
_LEASE_MS: Final = 5_000
# Take the lease, or keep it; at a full server too, where maintenance makes room.
_HOLD: Final = """#!lua flags=allow-oom
local held = redis.call('GET', KEYS[1])
local holder, figures = string.match(held or '', '^(%S*) ?(.*)$')
if held and holder ~= ARGV[1] then return { 0, figures } end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[3], 'PX', ARGV[2])
return { 1, ARGV[3] }
"""

Run = Callable[[BackendRequest], Awaitable[Any]]
Readers = Callable[[Collection[str]], Mapping[str, Collection[tuple[str, str]]]]
Ask = Callable[[Node, Sequence[Words]], Awaitable[Sequence[Any]]]


class Maintenance:
    """One gateway's part: `front` names it. `readers` returns those of some streams that have a reader here,
    each with its readers that the server does not hear of, as pairs of group and consumer. `run` and `ask`
    raise EngineError.
    """

    def __init__(
        self,
        run: Run,
        ask: Ask,
        nodes: Callable[[], Sequence[Node]],
        readers: Readers,
        front: str,
        poll_s: float,
        timeout_s: float,
    ) -> None:
        self._run = run
        self._readers = readers
        self._ask = ask
        self._nodes = nodes
        self._front = front
        self._grace_ms = int(1_000 * (2 * poll_s + timeout_s + _GRACE_S))
        # Of each server: since when it is a primary that answers, and how far the round there has come.
        self._since_s: dict[Node, float] = {}
        self._cursors: dict[Node, bytes] = {}
        self.schedules: Final = ScheduleCounts()
        # Streams that groups were read of here, until a step finds no reader.
        self._read: dict[str, None] = {}
        # Called with a stream that has schedules, and after how many ms the first is due.
        self.note_schedule: Callable[[str, int], None] = lambda *_: None
        # Called with why the servers refuse a step, once for each reason: nothing is maintained until then.
        self.on_refused: Callable[[str], None] = lambda _: None
        # Why the last step ended, so that each reason is reported once; empty where it went well.
        self._reported = ""

    async def keep_on(self) -> None:
        """One step a second, until it is cancelled."""
        while True:
            await asyncio.sleep(STEP_S)
            try:
                await self.step()
            except Exception as error:  # noqa: BLE001 - the next step goes on
                # Of an outage others tell.
                if not _is_outage(error) and str(error) != self._reported:
                    self._report(error)
                self._reported = str(error)
            else:
                self._reported = ""

    def _report(self, error: Exception) -> None:
        if isinstance(error, EngineError):
            call(self.on_refused, error.detail)
        else:
            report("streams could not be maintained", error)

    def note_read(self, streams: Collection[str]) -> None:
        """Groups of these streams are read here."""
        self._read.update(dict.fromkeys(streams))

    async def step(self) -> None:
        """Say which consumers are here. Then look at some streams of each server, where no other gateway
        does. Raises EngineError.
        """
        now_s = asyncio.get_running_loop().time()
        there = [node for node in self._nodes() if node.failure is None]
        self._since_s = {node: self._since_s.get(node, now_s) for node in there}
        found = self._readers(self._read)
        self._read = dict.fromkeys(found)
        touches = (self._touch(stream, list(silent)) for stream, silent in found.items())
        if not all(await asyncio.gather(*touches)):
            # Consumers of other gateways may have had no more success.
            self._since_s.clear()
        if await self._hold():
            await self._look()

    async def _hold(self) -> bool:
        """Whether this gateway has the lease."""
        hold = ("EVAL", _HOLD, 1, _LEASE, self._front, _LEASE_MS, self.schedules.figures)
        lease = BackendRequest(stream=_LEASE, commands=[hold], decode=lambda found: found[0], lane=Lane.GROUP)
        try:
            is_held, figures = await self._run(lease)
        except EngineError:
            self._since_s.clear()
            raise
        self.schedules.take_figures(figures.decode())
        return bool(is_held)

    async def _look(self) -> None:
        nodes = self._nodes()
        self._cursors = {node: self._cursors.get(node, b"0") for node in nodes}
        # Each ends before the next step, which goes on from there.
        found = await asyncio.gather(*map(self._look_at_some, nodes), return_exceptions=True)
        for node, error in zip(nodes, found, strict=True):
            if error is not None:
                self._since_s.pop(node, None)
        for error in found:
            if error is not None:
                raise error

    async def _look_at_some(self, node: Node) -> None:
        scan: Words = ("SCAN", self._cursors[node], "MATCH", auxiliary_pattern("m"), "COUNT", _SCAN_COUNT)
        ((self._cursors[node], keys),) = await self._ask(node, [scan])
        streams = dict.fromkeys(stream for key in keys if (stream := stream_of(key)) is not None)
        now_s = asyncio.get_running_loop().time()
        watched_ms = int((now_s - self._since_s.setdefault(node, now_s)) * 1000)
        await asyncio.gather(*(self._maintain(node, stream, watched_ms) for stream in streams))
        if self._cursors[node] == b"0":
            self.schedules.end_round(node, self._nodes())

    async def _touch(self, stream: str, readers: Sequence[tuple[str, str]]) -> bool:
        """Say that they are there. Whether the server was."""
        for start in range(0, len(readers), _TOUCHED_MAX):
            some = readers[start : start + _TOUCHED_MAX]
            try:
                await self._run(words.by_script(stream, touch(stream, some), Lane.GROUP))
            except EngineError as error:
                # The next step says so again.
                return error.code not in OF_BACKEND
        return True

    async def _maintain(self, node: Node, stream: str, watched_ms: int) -> None:
        request = words.by_script(stream, maintain(stream, watched_ms, self._grace_ms), Lane.GROUP)
        for _ in range(_TURNS_MAX):
            try:
                has_more, due_ms, count, dropped = await self._run(request)
            except EngineError:
                # The next round comes here again.
                return
            self.schedules.note_found(node, stream, count, due_ms)
            self.schedules.dropped += dropped
            if due_ms is not None:
                self.note_schedule(stream, max(0, due_ms))
            if not has_more:
                return


def _is_outage(error: Exception) -> bool:
    return isinstance(error, EngineError) and error.code == "backend_unavailable"
