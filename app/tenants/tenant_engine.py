"""The engine as one tenant has it.

Knows: that each command is renamed on its way in, and each reply and refusal on its way out.
Must never know: where names stand in them.
"""

import asyncio
from collections.abc import Callable, Sequence

from app.glob import literal
from app.tenants.renaming import add_prefix
from app.tenants.stripping import strip_prefix, strip_refusal
from app.tenants.tenant_names import RecordedNames, TenantNames
from engine import CommandEngine, EngineError, Quota, ReadHandle, errors
from engine.commands import BlockingCommand, Command
from engine.replies import Reply

Answers = Sequence[Reply | EngineError]
Done = Callable[[Answers], None]


class TenantEngine:
    """Runs the commands of a tenant in `engine`.

    The commands of a transaction are refused together where one of them is about all streams or has too long
    a name.
    """

    def __init__(self, engine: CommandEngine, prefix: str) -> None:
        self._engine = engine
        self._names = TenantNames(prefix)

    @property
    def durability(self) -> str:
        """What an answer promises."""
        return self._engine.durability

    @property
    def delivery_durability(self) -> str:
        """The same for the answer to a group's read."""
        return self._engine.delivery_durability

    async def execute(
        self,
        command: Command,
        *,
        synced: bool = False,
        quotas: Sequence[Quota] = (),
        on_run: Done | None = None,
    ) -> Reply:
        """Run `command`, as the engine does; `on_run` gets its reply as it is. Raises EngineError."""
        renamed = add_prefix(command, self._names)
        try:
            reply = await self._engine.execute(renamed, synced=synced, quotas=quotas, on_run=on_run)
        except EngineError as error:
            raise self._refusal(error, [command]) from None
        return strip_prefix(reply, self._names)

    async def transaction(
        self, commands: Sequence[Command], *, synced: bool = False, quotas: Sequence[Quota] = ()
    ) -> list[Reply | EngineError]:
        """Run `commands` as one turn, as the engine does. Raises EngineError."""
        renamed = [add_prefix(command, self._names) for command in commands]
        try:
            found = await self._engine.transaction(renamed, synced=synced, quotas=quotas)
        except EngineError as error:
            raise self._refusal(error, commands) from None
        return self._shown(found, commands)

    def submit(
        self,
        commands: Sequence[Command],
        done: Done,
        *,
        synced: bool = False,
        quotas: Sequence[Quota] = (),
        on_run: Done | None = None,
    ) -> None:
        """Run `commands` now, as the engine does; `on_run` as above. Raises nothing."""
        try:
            renamed = [add_prefix(command, self._names) for command in commands]
        except EngineError as error:
            done([error])
            return

        def show(found: Sequence[Reply | EngineError]) -> None:
            done(self._shown(found, commands))

        self._engine.submit(renamed, show, synced=synced, quotas=quotas, on_run=on_run)

    def submit_each(
        self,
        commands: Sequence[Command],
        done: Done,
        quotas: Sequence[Quota] = (),
        on_run: Done | None = None,
    ) -> None:
        """Run commands one after the other, as the engine does; `on_run` as above. Raises nothing."""
        renamed, refused = list[Command](), dict[int, EngineError]()
        for place, command in enumerate(commands):
            try:
                renamed.append(add_prefix(command, self._names))
            except EngineError as error:
                refused[place] = error
        if not renamed:
            done([*refused.values()])
            return

        def show(found: Answers) -> None:
            ran = [command for place, command in enumerate(commands) if place not in refused]
            replies = iter(self._shown(found, ran))
            done([refused.get(place) or next(replies) for place in range(len(commands))])

        self._engine.submit_each(renamed, show, quotas, on_run)

    def read(
        self, command: BlockingCommand, done: Done, *, synced: bool = False, going_on: bool = False
    ) -> ReadHandle:
        """Run a read that may wait, as the engine does. Raises nothing."""
        try:
            renamed = add_prefix(command, self._names)
        except EngineError as error:
            refused = ReadHandle(command, done, lambda _: None)
            # Never before this returns.
            asyncio.get_running_loop().call_soon(refused.answer, [error])
            return refused
        assert isinstance(renamed, BlockingCommand), "a renamed command is of the same type"
        return self._engine.read(
            renamed, lambda found: done(self._shown(found, [command])), synced=synced, going_on=going_on
        )

    def _shown(self, found: Answers, commands: Sequence[Command]) -> list[Reply | EngineError]:
        """The replies for the tenant. Where each command has one, a refusal quotes names of its own alone."""
        if len(found) != len(commands):
            return [self._answer(one, commands) for one in found]
        return [self._answer(one, (command,)) for one, command in zip(found, commands, strict=True)]

    def _answer(self, found: Reply | EngineError, commands: Sequence[Command]) -> Reply | EngineError:
        if isinstance(found, EngineError):
            return self._refusal(found, commands)
        try:
            return strip_prefix(found, self._names)
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
