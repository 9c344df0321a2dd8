"""What an endpoint asks of the engine, and what makes its answer of the replies.

Knows: that one exchange with the engine suffices for most requests. Must never know: how it is run.

    def get_stream(request, stream) -> Ask:
        return Ask([XInfoStream(stream=stream)], lambda info: Response(200, …))

An answer may be another `Ask`, or a coroutine where it needs a thread or is sent in pieces. What waits for
more than the engine before it has asked anything is a coroutine itself.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, Union

from app.http.models import ResponseModel
from app.http.responses import Response
from app.live.joiner import Raw
from engine import EngineError
from engine.commands.base import Command
from engine.replies import Reply

# What an endpoint comes to, perhaps in several steps.
Result: TypeAlias = Union[Response, ResponseModel, "Ask", Coroutine[Any, Any, Response | ResponseModel]]


class Ask(NamedTuple):
    """Commands, several of them in one turn, and what makes the answer of their replies.

    `synced`: the answer leaves once they are on disk. `joins`: others may ask the same in this cycle, as one
    command. `publishes`: its entries keep the trace that the request belongs to. `in_turn`: it takes long, so
    its caller's other requests and those of others come in between. It `lasts` where commands and answer
    follow from the head of the request alone: it may be asked again for an equal one; `bound` is what its
    replies may take, once that is known. `refused` gets a refusal among the replies; without it, that is
    raised. What is `raw` has no commands: its body is an entry, which is read with others of its cycle.
    """

    commands: Sequence[Command]
    answer: Callable[..., Result]
    synced: bool = False
    joins: bool = False
    publishes: bool = False
    in_turn: bool = False
    lasts: bool = False
    bound: int | None = None
    refused: Callable[[EngineError], Result] | None = None
    raw: Raw | None = None

    @property
    def may_be_apart(self) -> bool:
        """Whether several commands, of which the last one alone changes something, may be asked one after the
        other: while it is full, Redis 7.0 refuses all that is several commands in one turn, though the last
        one may be what makes room.
        """
        looks = self.commands[:-1]
        return bool(looks) and self.commands[-1].changes and not any(command.changes for command in looks)

    def apart(self, *found: Reply) -> Result:
        """The same, one command after the other, behind those that have been `found`."""
        if len(found) == len(self.commands):
            return self.answer(*found)
        command = self.commands[len(found)]
        synced = self.synced and command.changes
        return Ask([command], partial(self.apart, *found), synced, refused=self.refused)
