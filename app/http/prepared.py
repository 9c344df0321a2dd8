"""What may be kept of a request that was answered, for equal ones.

Knows: that equal heads mean the same, that equal requests run equal commands, and that equal replies are
answered alike.
Must never know: how long it holds, what is read, how it is run.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from app.auth import Principal
from app.http.responses import Response
from engine.commands import Command


class Verdict(NamedTuple):
    """What was found of a request by its head: who asks, who may, whether that caller has a rate, and the
    arguments of its endpoint, but for the body's.
    """

    principal: Principal
    is_metered: bool
    arguments: Mapping[str, Any]


class PreparedRead(NamedTuple):
    """What an endpoint returns whose commands and answer follow from its request's bytes alone.

    Commands that change nothing and do not wait, several of them in one turn, and what makes the answer
    of their replies. It may be kept, and run again for an equal request of the same caller.
    """

    commands: Sequence[Command]
    answer: Callable[..., Response | BaseModel]
