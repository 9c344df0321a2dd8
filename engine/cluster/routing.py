"""What is sent for a command: words for one server, and what their results mean.

Knows: the shape of a request. Must never know: servers, connections, single commands.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from engine.cluster.scripts import Script
from engine.cluster.wire import Word, Words

# Raises EngineError.
Decode = Callable[[Sequence[Any]], Any]


class Lane(Enum):
    """Which of a server's connections a request takes: what waits in one holds up nothing in another."""

    WRITE = "write"
    GROUP = "group"
    READ = "read"


class BackendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Commands for the server of the slot of `stream`, run there in one turn.

    `decode` takes the results of all, none of them a refusal. `instead` are replies in the place of refusals,
    by what these begin with; `scripts` are those that the commands name by their digest.
    With `takes_refusals` the results may be refusals, unless nothing ran. A `number` above 0 says that the
    server does it once, however often it is sent. One that `looks` changes nothing, though it is in the lane
    of writes, to be in order with them.

    While a slot moves, a server runs no script that names several keys of which some are not there. `lighter`
    makes the same without a number, whose key need not be there then, and `may_name_one` says that its script
    takes the first of its keys alone.
    """

    stream: str
    commands: Sequence[Words]
    decode: Decode
    lane: Lane
    instead: Mapping[str, Any] = {}
    scripts: Sequence[Script] = ()
    takes_refusals: bool = False
    number: int = 0
    looks: bool = False
    lighter: Callable[[], "BackendRequest"] | None = None
    may_name_one: bool = False

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.lane is not Lane.READ and not self.looks

    def naming_one_key(self) -> "BackendRequest":
        """As the server takes it that the slot comes to, where the other one has none of its keys: all but
        the first are its last arguments.
        """
        ((name, script, count, first, *others),) = self.commands
        assert isinstance(count, int), "it is a script"
        keys, arguments = others[: count - 1], others[count - 1 :]
        return msgspec.structs.replace(self, commands=[(name, script, 1, first, *arguments, *keys)])

    def with_texts(self) -> "BackendRequest":
        """The same for a server that has not loaded its scripts."""
        known: dict[Word, Script] = {one.digest: one for one in self.scripts}
        commands = [
            ("EVAL", known[words[1]].text, *words[2:]) if words[0] == "EVALSHA" else words
            for words in self.commands
        ]
        return msgspec.structs.replace(self, commands=commands, scripts=())
