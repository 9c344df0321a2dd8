"""Plain XADDs of several clients, which are stored together: see `app.live.adds`.

Knows: whose the IDs are that they get, which refusals may be for all together alone.
Must never know: bytes, connections, callers.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise, repeat
from typing import Final

from app.live.adds import Answers, Coalescer, Replies
from engine import CommandEngine, EngineError
from engine.replies import Added, Reply

# Refusals before anything has changed, for which all together may be too many.
_TOO_MANY_TOGETHER: Final = frozenset({"memory_full", "storage_full"})


class Share:
    """One client's entries as they are stored, and what gets the one reply to an AddEach of them."""

    __slots__ = ("_done", "bodies")

    def __init__(self, bodies: Sequence[bytes], done: Callable[[Replies], object]) -> None:
        self.bodies = bodies
        self._done = done

    def answer(self, reply: Reply | EngineError) -> None:
        """This is the reply."""
        self._done([reply])


class SharedAdds(Coalescer[Share]):
    """Entries that are ready to be stored, any number of each client."""

    def add(
        self, engine: CommandEngine, stream: str, bodies: Sequence[bytes], done: Callable[[Replies], object]
    ) -> None:
        """Store entries at the end of this cycle; `done` gets the one reply to an AddEach of them."""
        self._collect(engine, stream, Share(bodies, done), len(bodies), sum(map(len, bodies)))

    def _bodies(self, clients: Sequence[Share]) -> Sequence[bytes]:
        return [body for share in clients for body in share.bodies]

    def _answers(
        self, engine: CommandEngine, stream: str, clients: Sequence[Share], added: Sequence[int]
    ) -> Answers:
        ends = [*accumulate([len(share.bodies) for share in clients], initial=0)]
        parts = [added[at:upto] for at, upto in pairwise(ends)]
        return map(Share.answer, clients, map(Added, parts))

    def _refusals(
        self, engine: CommandEngine, stream: str, clients: Sequence[Share], refusal: EngineError | None
    ) -> Answers:
        assert refusal is not None, "what is ready can be sent"
        if len(clients) > 1 and refusal.code in _TOO_MANY_TOGETHER:
            return map(partial(self._send, engine, stream), [[share] for share in clients])
        return map(Share.answer, clients, repeat(refusal))
