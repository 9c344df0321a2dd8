"""A read that may wait, as its caller has it: how to end it early.

Knows: whether it waits, is answered, or was given something that has not left yet; what takes that back.
Must never know: how an engine runs reads, and how it waits.

    begun ─► waits ─► served ─► answered       end(): as its time would
               │         └────────┴──► undone  cancel(): nothing is taken, no callback
               └─────────────────────► gone

Both are synchronous: a door that sees its client leave ends the wait before it reads another byte, so that
what is published next goes to others.
"""

from collections.abc import Callable, Iterator, Sequence

from engine.commands.base import Command, StreamCommand
from engine.commands.types import XReadGroup
from engine.commands.weir_commands import GiveBack, Undo
from engine.errors import EngineError
from engine.replies import GroupRead, Reply

Replies = Sequence[Reply | EngineError]
Done = Callable[[Replies], None]


class Refused(list[Reply | EngineError]):
    """One refusal in the place of all replies."""

    def __init__(self, error: EngineError) -> None:
        super().__init__([error])
        self.error = error


class ReadHandle:
    """One read, made by its caller, who sends it with the call."""

    __slots__ = ("_command", "_done", "_end", "_is_cancelled", "_is_ending", "_leave", "_reply", "_run")

    def __init__(self) -> None:
        self._command: Command | None = None
        self._done: Done = _ignore
        self._run: Callable[[StreamCommand], None] = _ignore
        # What ends the wait and what leaves it, while it waits.
        self._end: Callable[[], None] | None = None
        self._leave: Callable[[], None] | None = None
        self._is_ending = self._is_cancelled = False
        # What was found for it, and is not taken back.
        self._reply: Reply | EngineError | None = None

    # --- for the caller

    def end(self) -> None:
        """End the wait as its time would: `done` is called later with what there is, which is nothing. What
        was served already is answered as usual.
        """
        self._is_ending = True
        end, self._end, self._leave = self._end, None, None
        if end is not None:
            end()

    def cancel(self) -> None:
        """Take nothing, and do not call `done` any more. What was delivered is undone, as far as it can be:
        also behind `done`, as long as no part of the reply was handed to a socket.
        """
        if self._is_cancelled:
            return
        self._is_cancelled = True
        leave, self._end, self._leave = self._leave, None, None
        if leave is not None:
            leave()
        self._take_back()

    # --- for the engine

    def begin(self, command: Command, done: Done, run: Callable[[StreamCommand], None]) -> None:
        """It is the read of this command. `run` runs one that takes something back, as soon as it can."""
        self._command, self._done, self._run = command, done, run

    @property
    def is_cancelled(self) -> bool:
        """Whether its caller has left."""
        return self._is_cancelled

    def wait(self, end: Callable[[], None], leave: Callable[[], None]) -> None:
        """It waits from now on: `end` ends that as its time would, `leave` with nothing taken."""
        self._end, self._leave = end, leave
        if self._is_cancelled:
            leave()
        elif self._is_ending:
            self.end()

    def serve(self, reply: Reply | EngineError) -> None:
        """It waits no more: this was found, and may not leave yet."""
        self._end = self._leave = None
        self._reply = reply
        if self._is_cancelled:
            self._take_back()

    def answer(self, replies: Replies) -> None:
        """Call back with the one reply, or with a refusal in its place."""
        if self._reply is None:
            self.serve(replies[0])
        if not self._is_cancelled:
            self._done(replies)

    def _take_back(self) -> None:
        reply, self._reply = self._reply, None
        if isinstance(self._command, XReadGroup) and isinstance(reply, GroupRead):
            for undo in taking_back(self._command, reply):
                self._run(undo)


def _ignore(_: object) -> None:
    """Of a read that was not sent there is nothing to take back, and no answer."""


def taking_back(command: XReadGroup, reply: GroupRead) -> Iterator[StreamCommand]:
    """The commands that take back what a reply has delivered that never left: each stream by itself, new
    entries first, since who is given released ones may be given newer ones with them.
    """
    for delivered in reversed(reply.streams):
        if delivered.history:
            continue
        entry_ids = [entry.id for entry in delivered.entries]
        mark, stream, group, consumer = delivered.mark, delivered.stream, command.group, command.consumer
        claimed = len(entry_ids) if mark is None else mark.claimed
        if mark is not None:
            new = () if command.noack else entry_ids[claimed:]
            yield Undo(stream=stream, group=group, consumer=consumer, ids=new, mark=mark)
        if claimed:
            yield GiveBack(stream=stream, group=group, consumer=consumer, ids=entry_ids[:claimed])
