"""The engine, by which consumers that wait for room learn at once what was settled, by any door.

Knows: which calls settle entries, and when they have run. Must never know: who waits, and at which door.
"""

from app.live.leases import ConsumerLeases
from engine import Call, CommandEngine, Done, EngineProxy, Replies


class SettlingEngine(EngineProxy):
    """Runs calls in `engine`, then wakes those that wait for room in a stream where it may have been made."""

    def __init__(self, engine: CommandEngine, leases: ConsumerLeases) -> None:
        super().__init__(engine)
        self._leases = leases

    def send(self, call: Call, done: Done) -> Replies | None:
        """Run the commands of a call, as the engine does."""
        for command in call.commands:
            if command.settles:
                return self._settle(call, done)
        return self._engine.send(call, done)

    def _settle(self, call: Call, done: Done) -> Replies | None:
        def finish(replies: Replies) -> None:
            self._wake(call)
            done(replies)

        replies = self._engine.send(call, finish)
        if replies is not None:
            self._wake(call)
        return replies

    def _wake(self, call: Call) -> None:
        for command in call.commands:
            if command.settles:
                for stream in command.named_streams() or ():
                    self._leases.settled(stream, command.named_ids())
