"""Reads that wait, and how they end: one wait for the clients of all protocols.

Knows: how many there may be, of all callers and of each; when their client leaves or its token ends.
Must never know: sockets, protocols, what was read.

    entries, time, drain ─► the engine answers ─┐
    `end`                ─► the engine answers ─┴► done(reply)
    the client leaves, its token ends ─► `cancel` ─► nothing is taken, `done` is not called

Each end happens in the step of the loop in which its cause is seen: what another client publishes next is not
taken for a reader that has gone. A coroutine that waits (`Waits.outcome`) goes on a cycle later.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from app.auth import Principal
from app.errors import RefusalError, draining
from app.limits import entries_in
from app.live.sessions import OpenSessions
from app.live.shares import Share, Shares
from app.live.turns import CallerTurns
from app.settings import Settings
from engine import Call, CommandEngine, EngineError
from engine.replies import GroupRead, Reply, StreamsRead

T = TypeVar("T")
Callback = Callable[[], None]
# What a read comes to, and what gets it.
Outcome = Reply | EngineError | RefusalError
Done = Callable[[Outcome], None]
# Begins something that waits, has it call back with what it comes to, and returns what cancels it.
Begin = Callable[[Callable[[T | Exception], None]], Callable[[], object]]


class ClientLeftError(Exception):
    """The client closed the connection before its response was ready."""


class Departure:
    """Whether a client has left. Who follows is called in the step of the loop in which that is seen."""

    __slots__ = ("_callbacks", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self._callbacks: dict[object, Callback] = {}

    def follow(self, callback: Callback) -> Callback:
        """Call back once when the client leaves, at once if it has. Returns what stops that."""
        if self.is_over:
            callback()
            return _nothing
        key = object()
        self._callbacks[key] = callback

        def stop() -> None:
            self._callbacks.pop(key, None)

        return stop

    def note(self) -> None:
        """The client has left."""
        self.is_over = True
        callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            callback()


class Place:
    """A read that waits or a connection that follows, which is counted until it leaves."""

    __slots__ = ("_share", "_waits")

    def __init__(self, waits: "Waits", share: Share) -> None:
        self._waits: Waits | None = waits
        self._share = share

    def leave(self) -> None:
        """It is over. May be called again."""
        if self._waits is not None:
            self._waits.count -= 1
            self._waits = None
            self._share.leave()


class Wait:
    """One read, a call with a handle, from its start to `done`, which gets the reply once, unless it is
    cancelled.
    """

    __slots__ = ("_done", "_handle", "_instead", "_place")

    def __init__(
        self,
        engine: CommandEngine,
        call: Call,
        done: Done,
        place: Place | None = None,
        instead: RefusalError | None = None,
    ) -> None:
        assert call.waits is not None, "it is a read that may wait"
        self._handle = call.waits
        self._done = done
        self._place = place
        # The answer where nothing was found.
        self._instead: EngineError | RefusalError | None = instead
        engine.send(call, self._answer)

    def end(self, instead: EngineError | None = None) -> None:
        """End as its time would, or with an error where nothing was found."""
        self._instead = instead
        self._handle.end()

    def cancel(self) -> None:
        """Take nothing, and do not call `done` any more. Behind `done` it takes back what was delivered, as
        long as nothing of the reply was written. May be called again.
        """
        self._leave()
        self._handle.cancel()

    def _answer(self, replies: Sequence[Reply | EngineError]) -> None:
        self._leave()
        (reply,) = replies
        instead = self._instead
        if instead is None or isinstance(reply, EngineError) or entries_in(reply) or _is_over(reply):
            self._done(reply)
        else:
            self._done(instead)

    def _leave(self) -> None:
        if self._place is not None:
            self._place.leave()
            self._place = None


def _is_over(reply: Reply) -> bool:
    """Whether nothing more can come to the reader of these streams."""
    return isinstance(reply, StreamsRead | GroupRead) and bool(reply.closed) and not reply.streams


class Waits:
    """All that waits in this process: reads, and connections that follow; at most `most` of them, and of each
    caller as many as `each` has room for.
    """

    def __init__(self, settings: Settings, sessions: OpenSessions, turns: CallerTurns) -> None:
        self.most = settings.waiters_max
        self.count = 0
        self.each: Final = Shares("too_many_waiters", "per_principal_max", settings.each_max(self.most))
        self._sessions = sessions
        self._turns = turns

    def enter(self, caller: str, shares: Shares | None = None) -> Place:
        """Count one more of this caller, as a read that waits or as what `shares` count.

        Raises `too_many_waiters`, and the refusal of `shares`.
        """
        share = (self.each if shares is None else shares).enter(caller)
        if self.count >= self.most:
            share.leave()
            raise RefusalError("too_many_waiters", "too many reads wait already: try again later")
        self.count += 1
        return Place(self, share)

    def begin_read(self, engine: CommandEngine, call: Call, caller: str, done: Done) -> Wait:
        """Begin a read. Where too many wait already it gets what is there, or `too_many_waiters`."""
        place, refusal = None, None
        try:
            place = self.enter(caller)
        except RefusalError as refused:
            refusal = refused
            commands = [msgspec.structs.replace(one, block_ms=None) for one in call.commands]
            call = msgspec.structs.replace(call, commands=commands)
        return Wait(engine, call, done, place, refusal)

    def begin_task(
        self, work: Coroutine[Any, Any, T], caller: str, done: Callable[[T | Exception], None]
    ) -> asyncio.Task[T]:
        """Begin work that waits and changes nothing, as a task. Cancelled, it does not call `done`.

        Raises `too_many_waiters`.
        """
        try:
            place = self.enter(caller)
        except RefusalError:
            work.close()
            raise

        def settle(ended: asyncio.Task[T]) -> None:
            place.leave()
            if not ended.cancelled():
                error = ended.exception()
                assert error is None or isinstance(error, Exception), "others end the loop"
                done(ended.result() if error is None else error)

        task = asyncio.create_task(work)
        task.add_done_callback(settle)
        return task

    async def outcome(
        self,
        begin: Begin[T],
        leaving: Callable[[Callback], Callback],
        principal: Principal,
        caller: str,
    ) -> T:
        """What this comes to. It is cancelled when the client leaves or its token ends: then it has taken
        nothing. `leaving` has a function called as soon as the client leaves, and returns what stops that.

        Raises ClientLeftError, `unauthenticated`, `draining`.
        """
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        is_one_of_many = False

        def settle(found: T | Exception) -> None:
            nonlocal is_one_of_many
            if outcome.done():
                return
            is_one_of_many = self.each.held(caller) > 0
            if isinstance(found, Exception):
                outcome.set_exception(found)
            else:
                outcome.set_result(found)

        cancel = begin(settle)

        def end(why: Exception) -> None:
            # What has come before is not sent any more, and taken back then.
            if not outcome.done():
                outcome.set_exception(why)
                cancel()

        session = self._sessions.enter(principal, lambda access: end(access.refusal))
        stay = leaving(partial(end, ClientLeftError()))
        try:
            found = await outcome
        except EngineError as error:
            # The gateway has words of its own for it.
            raise draining() if error.code == "draining" else error from None
        except asyncio.CancelledError:
            cancel()
            raise
        finally:
            stay()
            session.leave()
        if is_one_of_many:
            # Many of them may end in the same cycle.
            await self._turns.wait(caller)
        return found


def _nothing() -> None:
    """It was called already."""
