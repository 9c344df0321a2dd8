"""Tenants: what belongs to the streams of one prefix, and the engine as one tenant has it.

Knows: that each command is renamed on its way in, and each reply and refusal on its way out; that callers
without a prefix have the engine itself.
Must never know: who belongs to a tenant, where names stand in commands and replies.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from app.glob import literal
from app.live.feeds import Feeds
from app.live.leases import ConsumerLeases
from app.tenants.renaming import add_prefix, strip_prefix, strip_refusal
from app.tenants.tenant_names import RecordedNames, TenantNames
from engine import (
    Call,
    CommandEngine,
    Done,
    EngineError,
    EngineProxy,
    How,
    Refused,
    Replies,
    errors,
    taking_back,
    unexpected,
)
from engine.commands.base import Command
from engine.commands.types import XReadGroup
from engine.replies import GroupRead, Reply

# Beyond it, tenants whose streams are not followed are forgotten, until they come again.
TENANTS_MAX: Final = 1_000


class TenantEngine(EngineProxy):
    """Runs the commands of a tenant in `engine`.

    The commands of a transaction are refused together where one of them is about all streams or has too long
    a name.
    """

    def __init__(self, engine: CommandEngine, prefix: str) -> None:
        super().__init__(engine)
        self._names = TenantNames(prefix)

    def send(self, call: Call, done: Done) -> Replies | None:
        """Run the commands of a call, as the engine does; its `on_run` gets replies as they are."""
        if call.how is How.EACH:
            return self._send_each(call, done)
        try:
            renamed = [add_prefix(command, self._names) for command in call.commands]
        except Exception as error:  # noqa: BLE001 - the caller gets an answer in any case
            return self._refuse(call, done, error)

        def show(replies: Replies) -> None:
            done(self._shown(replies, call.commands))

        replies = self._engine.send(msgspec.structs.replace(call, commands=renamed), show)
        return None if replies is None else self._shown(replies, call.commands)

    def _send_each(self, call: Call, done: Done) -> Replies | None:
        """A command that is refused here leaves the others alone."""
        renamed, refused = list[Command](), dict[int, EngineError]()
        for place, command in enumerate(call.commands):
            try:
                renamed.append(add_prefix(command, self._names))
            except Exception as error:  # noqa: BLE001 - the others have replies of their own
                refused[place] = _refusal_of(call, error)
        if not renamed:
            return [*refused.values()]
        ran = [command for place, command in enumerate(call.commands) if place not in refused]

        def shown(given: Replies) -> Replies:
            replies = iter(self._shown(given, ran))
            return [refused.get(place) or next(replies) for place in range(len(call.commands))]

        replies = self._engine.send(
            msgspec.structs.replace(call, commands=renamed), lambda replies: done(shown(replies))
        )
        return None if replies is None else shown(replies)

    @staticmethod
    def _refuse(call: Call, done: Done, error: Exception) -> Replies | None:
        refused = Refused(_refusal_of(call, error))
        if call.waits is None:
            return refused
        call.waits.begin(call.commands[0], done, lambda _: None)
        # Never before this returns.
        asyncio.get_running_loop().call_soon(call.waits.answer, refused)
        return None

    def _shown(self, replies: Replies, commands: Sequence[Command]) -> Replies:
        """The replies for the tenant. Where each command has one, a refusal quotes names of its own alone."""
        if isinstance(replies, Refused):
            return Refused(self._refusal(replies.error, commands))
        return [self._answer(reply, (command,)) for reply, command in zip(replies, commands, strict=True)]

    def _answer(self, reply: Reply | EngineError, commands: Sequence[Command]) -> Reply | EngineError:
        if isinstance(reply, EngineError):
            return self._refusal(reply, commands)
        try:
            return strip_prefix(reply, self._names)
        except EngineError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the other commands have replies of their own
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a reply failed", "exception": error}
            )
            return errors.internal()

    def _refusal(self, error: EngineError, commands: Sequence[Command]) -> EngineError:
        # Refusals are rare: the names that they may quote are found only now.
        names = RecordedNames(self._names.prefix)
        for command in commands:
            add_prefix(command, names)
        quota = error.members.get("quota")
        if isinstance(quota, str):
            names.added[quota] = quota.removeprefix(literal(names.prefix))
        return strip_refusal(error, names.added)


def _refusal_of(call: Call, error: Exception) -> EngineError:
    return error if isinstance(error, EngineError) else unexpected(call.origin, error)


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


class Tenant:
    """The engine, the feeds and the consumer leases for the callers of one prefix, which may be empty."""

    __slots__ = ("engine", "feeds", "leases", "prefix")

    def __init__(self, prefix: str, engine: CommandEngine, leases: ConsumerLeases) -> None:
        self.prefix: Final = prefix
        self.engine: Final = TenantEngine(engine, prefix) if prefix else engine
        self.feeds: Final = Feeds(self.engine)
        self.leases: Final = leases.under(prefix)

    def take_back(self, command: XReadGroup, reply: Reply | EngineError) -> None:
        """Undo what was delivered to a client that never gets it: it has left."""
        if isinstance(reply, GroupRead):
            for undo in taking_back(command, reply):
                # Each by itself: a large one takes several turns, which a transaction may not.
                self.engine.send(Call((undo,)), lambda _: None)


class Tenants:
    """All tenants of one engine; they share the leases, whose consumers learn what is settled."""

    def __init__(self, engine: CommandEngine, leases: ConsumerLeases) -> None:
        self._engine = SettlingEngine(engine, leases)
        self._leases = leases
        # Callers without a prefix.
        self.plain: Final = Tenant("", self._engine, leases)
        self._tenants: dict[str, Tenant] = {}

    def find(self, prefix: str) -> Tenant:
        """The tenant of this prefix."""
        if not prefix:
            return self.plain
        tenant = self._tenants.get(prefix)
        if tenant is None:
            if len(self._tenants) >= TENANTS_MAX:
                self._tenants = {key: tenant for key, tenant in self._tenants.items() if len(tenant.feeds)}
            tenant = self._tenants[prefix] = Tenant(prefix, self._engine, self._leases)
        return tenant

    def close(self, failure: EngineError) -> None:
        """End all feeds with `failure`."""
        for tenant in (self.plain, *self._tenants.values()):
            tenant.feeds.close(failure)
