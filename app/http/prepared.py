"""Prepared reads: what an endpoint returns whose commands and answer follow from its request's bytes alone.

Knows: that equal requests run equal commands, and that equal replies are answered alike.
Must never know: who asks, what is read, how it is run.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from app.http.responses import Response
from engine.commands import Command


class PreparedRead(NamedTuple):
    """Commands that change nothing and do not wait, several of them in one turn, and what makes the answer
    of their replies. It may be kept, and run again for an equal request of the same caller.
    """

    commands: Sequence[Command]
    answer: Callable[..., Response]
