"""Plain XADDs of several clients, which are stored together: see `app.live.adds`.

Knows: whose the IDs are that they get, which refusals may be for all together alone.
Must never know: bytes, connections, callers.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise, repeat
from typing import Any, Final

from app.live.adds import Answers, Batch, Batches, Replies
from engine import CommandEngine, EngineError
from engine.replies import Added, Reply

# Refusals before anything has changed, for which all together may be too many.
_TOO_MANY_TOGETHER: Final = frozenset({"memory_full", "storage_full"})


class Share:
    """What gets the one reply to an AddEach of a client's entries, of this number."""

    __slots__ = ("_done", "number")

    def __init__(self, number: int, done: Callable[[Replies], object]) -> None:
        self.number = number
        self._done = done

    def answer(self, reply: Reply | EngineError) -> None:
        """This is the reply."""
        self._done([reply])


class AddBatch(Batch[Share]):
    """Entries that are ready to be stored, any number of each client."""

    def _entries(self, bodies: Sequence[bytes]) -> Sequence[bytes]:
        return bodies

    def _answers(self, clients: Sequence[Share], added: Sequence[int]) -> Answers:
        return map(Share.answer, clients, map(Added, _parts(clients, added)))

    def _refusals(
        self, clients: Sequence[Share], bodies: Sequence[bytes], refusal: EngineError | None
    ) -> Answers:
        assert refusal is not None, "what is ready can be sent"
        if len(clients) > 1 and refusal.code in _TOO_MANY_TOGETHER:
            return map(self._send, [[share] for share in clients], _parts(clients, bodies))
        return map(Share.answer, clients, repeat(refusal))


def _parts(clients: Sequence[Share], whole: Sequence[Any]) -> list[Sequence[Any]]:
    """What of it is each client's."""
    ends = [*accumulate([share.number for share in clients], initial=0)]
    return [whole[at:upto] for at, upto in pairwise(ends)]


class SharedAdds:
    """The batches of one port."""

    def __init__(self) -> None:
        self._batches = Batches(AddBatch)

    def add(
        self, engine: CommandEngine, stream: str, bodies: Sequence[bytes], done: Callable[[Replies], object]
    ) -> None:
        """Store entries at the end of this cycle; `done` gets the one reply to an AddEach of them."""
        self._batches.of(engine, stream).join_all(Share(len(bodies), done), bodies)
