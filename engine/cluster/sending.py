"""Sends requests to the servers of their streams, and again where that is safe.

Knows: who may be asked again, and where: after MOVED, ASK, TRYAGAIN and their like, after a lost connection.
Must never know: commands of the engine, how servers are found.

    send ──► its server ──► decode ──► confirm ──► finish
      ▲         └─ nothing has run: the slot is elsewhere, or moving, or without a server
      └─────────── a read, or a numbered write, whose reply was lost

All of it takes no longer than one reply may: after that the request is refused, in any state.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from engine import errors
from engine.cluster.node import Node
from engine.cluster.refusals import is_elsewhere, refusal_of, unavailable
from engine.cluster.replication import BackendDurability, not_replicated
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.topology import Topology
from engine.cluster.wire import Address, ConnectionLostError, ServerError, call, report
from engine.errors import EngineError

Finish = Callable[[Any], None]

# Refusals before anything has run, which another server or time will cure.
_PASSING: Final = {"TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY"}
_REDIRECTIONS: Final = {"MOVED", "ASK"}
_HAS_NOT_RUN: Final = {*_PASSING, *_REDIRECTIONS, "NOSCRIPT"}
# What a server says, or what is said of it, before it looks whether the write is one that it has done.
_NOT_DONE: Final = {"backend_unavailable", "backend_forbidden", "memory_full"}
# Servers may send a request to and fro while a slot moves: so often at once, and then with pauses.
_REDIRECTIONS_AT_ONCE_MAX: Final = 4
_PAUSE_S_MIN: Final = 0.01
_PAUSE_S_MAX: Final = 0.2
# A connection ends a first attempt by itself, and knows better whether it was sent.
_LATE_S: Final = 0.05


class _Errand:
    """A request on its way."""

    __slots__ = (
        *("deadline", "finish", "is_confirming", "is_over", "is_under_way", "lost", "pause_s"),
        *("redirections", "request"),
    )

    def __init__(self, request: BackendRequest, finish: Finish, deadline: float) -> None:
        self.request = request
        self.finish = finish
        self.deadline = deadline
        self.pause_s = _PAUSE_S_MIN
        self.redirections = 0
        self.is_under_way = self.is_confirming = self.is_over = False
        # After this it may have been done.
        self.lost: ConnectionLostError | None = None


class Sender:
    """All requests of this process. Belongs to one event loop.

    `settle` is called with the number of each write that is not under way any more and is not sent again.
    `explain` finishes a write that has found no memory.
    """

    def __init__(
        self,
        topology: Topology,
        settle: Callable[[int], None] = lambda _: None,
        explain: Callable[[str, EngineError, Finish], None] = lambda _, refusal, finish: finish(refusal),
    ) -> None:
        self._topology = topology
        self._explain = explain
        self._settle = settle
        self._figures = topology.figures
        self._promises = topology.durability != BackendDurability()
        self._loop = asyncio.get_running_loop()
        # By deadline, since all have the same time.
        self._open: dict[_Errand, None] = {}
        self._expiring: asyncio.TimerHandle | None = None
        self._paused: dict[_Errand, asyncio.TimerHandle] = {}
        self._is_closed = False

    def send(self, request: BackendRequest, finish: Finish) -> None:
        """Send a request, and call `finish` once with its reply or EngineError; never before this returns."""
        self._figures.count_request(request.lane.value)
        errand = _Errand(request, finish, self._loop.time() + self._topology.timeout_s)
        self._open[errand] = None
        if self._expiring is None:
            self._expiring = self._loop.call_at(errand.deadline + _LATE_S, self._expire)
        self._route(errand)

    def close(self) -> None:
        """Send nothing again."""
        self._is_closed = True
        if self._expiring is not None:
            self._expiring.cancel()
        for errand, timer in list(self._paused.items()):
            timer.cancel()
            self._end(errand, unavailable("closed"))
        self._paused.clear()

    def _route(self, errand: _Errand) -> None:
        self._paused.pop(errand, None)
        if errand.is_over:
            return
        node = self._topology.node_of(errand.request.stream)
        if node is None:
            self._topology.refresh()
            otherwise = unavailable(self._topology.failure or "no server has this slot now")
            self._pause(errand, otherwise, "not_served")
        else:
            self._run(errand, node)

    def _run(self, errand: _Errand, node: Node, *, asking: bool = False) -> None:
        request, errand.is_under_way = errand.request, True
        if asking and request.may_name_one:
            request = request.naming_one_key()
        node.send(request.commands, request.lane, partial(self._take, errand, node), asking=asking)

    def _pause(self, errand: _Errand, otherwise: Any, reason: str) -> None:  # noqa: ANN401 - a reply or EngineError
        """Try again a little later, unless its time is over by then."""
        if self._is_closed or self._loop.time() + errand.pause_s > errand.deadline:
            self._loop.call_soon(self._end, errand, otherwise)
            return
        self._figures.repeats[reason] += 1
        self._paused[errand] = self._loop.call_later(errand.pause_s, self._route, errand)
        errand.pause_s = min(2 * errand.pause_s, _PAUSE_S_MAX)

    def _take(self, errand: _Errand, node: Node, results: Sequence[Any]) -> None:
        errand.is_under_way = False
        if errand.is_over:
            self._settle(errand.request.number)
            return
        for one in results:
            if isinstance(one, ServerError | ConnectionLostError) and self._goes_on(
                errand, node, one, results
            ):
                return
        self._confirm(node, errand, settled(errand.request, results))

    def _goes_on(
        self, errand: _Errand, node: Node, error: ServerError | ConnectionLostError, results: Sequence[Any]
    ) -> bool:
        """Whether the request is on its way again after this."""
        if isinstance(error, ConnectionLostError):
            return self._goes_on_after_loss(errand, node, error)
        request = errand.request
        if self._is_between_slots(request, error):
            self._topology.refresh()
            otherwise = refusal_of(error, writes=request.changes)
            self._pause(errand, otherwise, "not_served")
            return True
        # Of several commands some may have run: then only those that change nothing are sent again.
        if request.changes and not all(map(_has_not_run, results)):
            return False
        if error.code == "NOSCRIPT":
            if request.scripts:
                errand.request = request.with_texts()
                self._figures.repeats["script_unknown"] += 1
                self._route(errand)
            return bool(request.scripts)
        if self._topology.is_fixed or error.code not in _PASSING | _REDIRECTIONS:
            return False
        if error.code in _REDIRECTIONS:
            self._redirect(errand, node, error)
        else:
            if error.code == "TRYAGAIN":
                self._name_fewer_keys(errand)
            self._topology.refresh()
            self._pause(errand, refusal_of(error, writes=False), "not_served")
        return True

    def _name_fewer_keys(self, errand: _Errand) -> None:
        """A server refuses a script that names a key which is not there. Without its number, a write is not
        sent again after a loss.
        """
        if errand.request.lighter is not None and errand.lost is None:
            self._settle(errand.request.number)
            errand.request = errand.request.lighter()

    def _is_between_slots(self, request: BackendRequest, error: ServerError) -> bool:
        """Whether a script ended in its midst as its slot moved, and may run again: it changes nothing, or
        keeps its number with the first that it stores.
        """
        is_repeatable = not request.changes or request.number > 0
        return self._topology.has_slots and is_repeatable and is_elsewhere(error)

    def _redirect(self, errand: _Errand, node: Node, error: ServerError) -> None:
        """Follow MOVED and ASK, whose host is empty where it is that of the server that says it."""
        code, slot, where = error.text.split()[:3]
        host, _, port = where.rpartition(":")
        address = Address(host or node.address.host, int(port))
        errand.redirections += 1
        if code == "MOVED":
            self._topology.move(int(slot), address)
        if errand.redirections > _REDIRECTIONS_AT_ONCE_MAX:
            self._pause(errand, refusal_of(error, writes=False), code.lower())
        else:
            self._figures.repeats[code.lower()] += 1
            self._run(errand, self._topology.node_at(address), asking=code == "ASK")

    def _goes_on_after_loss(self, errand: _Errand, node: Node, lost: ConnectionLostError) -> bool:
        """Sent again are reads, numbered writes, and what was not sent where there is another server now."""
        if lost.may_have_run or errand.lost is not None:
            may_repeat = not errand.request.changes or errand.request.number > 0
        else:
            may_repeat = self._topology.node_of(errand.request.stream) is not node
        if self._is_closed or not may_repeat or self._loop.time() >= errand.deadline:
            return False
        if lost.may_have_run and errand.request.changes:
            errand.lost = errand.lost or lost
        self._pause(errand, refusal_of(lost, writes=False), "connection_lost")
        return True

    def _confirm(self, node: Node, errand: _Errand, reply: Any) -> None:  # noqa: ANN401
        """Finish once what was written is as durable as promised."""
        finish = partial(self._end, errand)
        is_write = errand.request.lane is Lane.WRITE and errand.request.changes
        if not is_write or isinstance(reply, EngineError) or not self._promises:
            finish(reply)
            return

        def take(failure: EngineError | ConnectionLostError | None) -> None:
            if isinstance(failure, ConnectionLostError):
                failure = refusal_of(failure, writes=True)
            finish(reply if failure is None else failure)

        errand.is_confirming = True
        node.confirm(take)

    def _expire(self) -> None:
        """Refuse those whose time is over, and look again when that of the next one is."""
        now_s = self._loop.time()
        while self._open and (errand := next(iter(self._open))).deadline + _LATE_S <= now_s:
            self._end(errand, self._late(errand))
        first = next(iter(self._open), None)
        self._expiring = None
        if first is not None:
            self._expiring = self._loop.call_at(first.deadline + _LATE_S, self._expire)

    def _late(self, errand: _Errand) -> EngineError:
        if errand.is_confirming:
            return not_replicated(self._topology.durability, "the server says nothing")
        reason = f"no answer within {self._topology.timeout_s:g} s"
        return unavailable(reason, is_unknown=errand.request.changes)

    def _end(self, errand: _Errand, reply: Any) -> None:  # noqa: ANN401 - a reply or EngineError
        """Finish. That it was not done now does not say that it was not done the first time."""
        if errand.is_over:
            return
        errand.is_over = True
        del self._open[errand]
        if not errand.is_under_way:
            self._settle(errand.request.number)
        if errand.lost is not None and isinstance(reply, EngineError) and reply.code in _NOT_DONE:
            reply = refusal_of(errand.lost, writes=True)
        took_s = self._loop.time() - errand.deadline + self._topology.timeout_s
        self._figures.count_reply(errand.request.lane.value, reply, took_s)
        if isinstance(reply, EngineError) and reply.code == "memory_full":
            self._explain(errand.request.stream, reply, errand.finish)
        else:
            call(errand.finish, reply)


def _has_not_run(result: object) -> bool:
    return isinstance(result, ServerError) and result.code in _HAS_NOT_RUN


def settled(request: BackendRequest, results: Sequence[Any]) -> Any:  # noqa: ANN401 - a reply or EngineError
    """What the results of a request are for the engine."""
    failed = [one for one in results if isinstance(one, ServerError | ConnectionLostError)]
    if failed and not request.takes_refusals:
        return _in_place(request, failed[0], in_part=len(failed) < len(results))
    is_lost = bool(failed) and isinstance(failed[0], ConnectionLostError)
    if failed and (is_lost or len(results) != len(request.commands)):
        # Refused as a whole, so that none has run.
        return refusal_of(failed[0], writes=is_lost)
    try:
        return request.decode(results)
    except EngineError as refusal:
        return refusal
    except Exception as error:  # noqa: BLE001 - who waits for the reply gets one
        report("a reply could not be read", error)
        return errors.internal()


def _in_place(request: BackendRequest, error: ServerError | ConnectionLostError, *, in_part: bool) -> object:
    text = str(error)
    for beginning, reply in request.instead.items():
        if text.startswith(beginning):
            return reply
    return refusal_of(error, writes=request.changes, in_part=in_part)
