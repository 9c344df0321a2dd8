"""A conversation in Redis's words with a real engine, on a modelled disk, under clocks that a test moves.

Knows: the running event loop, readers that wait as tasks, a disk whose syncs can be held back.
Must never know: what a command should answer.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterable
from types import TracebackType
from typing import Any, Final, Self

import pytest

from app.redis import CommandRequest, parse
from engine import Engine, EngineError, Fsync
from engine.storage import Storage
from engine.storage.memory import MemoryHandle, MemoryStorage
from tests.engine.asking import reply_to, turn_of
from tests.engine.clocks import HandClock, let_threads_run, settle
from tests.engine.world import Word, plain, words_of

REPLY_S_MAX: Final = 10.0


class SlowDisk(MemoryStorage):
    """A directory in memory whose syncs wait while `hold` is on."""

    def __init__(self) -> None:
        super().__init__()
        self._may_sync = threading.Event()
        self._may_sync.set()
        self._holds_next = False

    def hold(self) -> None:
        """Let no sync end from now on."""
        self._may_sync.clear()

    def let_one_go(self) -> None:
        """Let the sync that waits end, and hold the next one."""
        self._holds_next = True
        self._may_sync.set()

    def wait(self) -> None:
        """Wait for leave to sync."""
        self._may_sync.wait()
        if self._holds_next:
            self._holds_next = False
            self.hold()

    def let_go(self) -> None:
        """Let syncs end."""
        self._may_sync.set()

    def open(self, name: str) -> "SlowHandle":
        """Open a file that exists."""
        return SlowHandle(self, name, self._file(name))


class SlowHandle(MemoryHandle):
    """A handle whose sync waits for leave."""

    def __init__(self, storage: SlowDisk, name: str, file: Any) -> None:
        super().__init__(storage, name, file)
        self._disk = storage

    def sync(self) -> None:
        """Wait, then sync."""
        self._disk.wait()
        super().sync()


class Begun:
    """A command under way. Awaiting it gives the reply, or fails where none comes."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task

    def __await__(self) -> Generator[Any, None, object]:
        return self._reply().__await__()

    async def _reply(self) -> object:
        # By real time: that of the loop stands still.
        deadline = time.monotonic() + REPLY_S_MAX
        while not self.task.done():
            assert time.monotonic() < deadline, "no reply came"
            await let_threads_run()
        return self.task.result()

    def done(self) -> bool:
        """Whether the reply is there."""
        return self.task.done()

    async def give_up(self) -> None:
        """Go away, as a client does."""
        self.task.cancel()
        await asyncio.wait([self.task])


class Conversation:
    """`call` waits for the reply; `begin` starts what may wait. Open it with `async with`."""

    def __init__(self, storage: Storage | None = None, fsync: Fsync = "everysec") -> None:
        self.storage = storage or MemoryStorage()
        self.clock = HandClock()
        self._fsync: Fsync = fsync
        self._begun: set[asyncio.Task[object]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        self.clock.drive(asyncio.get_running_loop())
        self.engine = self.opened()
        await self.engine.start()
        return self

    def opened(self) -> Engine:
        """The engine to talk to."""
        return Engine.open(self.storage, clock=self.clock, fsync=self._fsync)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self.storage, SlowDisk):
            self.storage.let_go()
        for task in self._begun:
            task.cancel()
        await asyncio.gather(*self._begun, return_exceptions=True)
        assert self.engine.figures().waiting == 0, "no reader stays behind"
        self.engine.check()
        if not self._closed:
            await self.close()
        self.clock.let_be(asyncio.get_running_loop())

    async def close(self) -> None:
        """Stop the engine, as at a shutdown."""
        self._closed = True
        await self.engine.close()

    def abandon(self) -> None:
        """Leave the engine as a crash leaves it."""
        self._closed = True

    async def call(self, *words: Word, synced: bool = False) -> object:
        """The reply; what is refused as the text `-…`."""
        try:
            request = parse(words_of(words))
            assert request.command is not None, "the engine's"
            return plain(request.answer(await reply_to(self.engine, request.command, synced=synced)))
        except EngineError as refusal:
            return f"-{refusal.redis}"

    async def transaction(self, *commands: str) -> list[object]:
        """The replies of commands, words apart by blanks, that are one turn."""
        requests = [parse(words_of(words.split())) for words in commands]
        inner = [request.command for request in requests if request.command is not None]
        replies = await turn_of(self.engine, inner)
        return [_shown(request, reply) for request, reply in zip(requests, replies, strict=True)]

    async def begin(self, *words: Word) -> Begun:
        """A command under way; what can happen at once has happened."""
        task = asyncio.ensure_future(self.call(*words))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        await settle()
        return Begun(task)

    async def pass_ms(self, wall: int, monotonic: int | None = None) -> None:
        """Let time pass, and what is due by then happen."""
        self.clock.pass_ms(wall, monotonic)
        await settle()

    async def call_each(self, commands: Iterable[tuple[Word, ...]]) -> None:
        """Each behind the reply to the one before."""
        for words in commands:
            await self.call(*words)

    async def add(self, stream: str, *entry_ids: str) -> None:
        """Add entries with these IDs."""
        for entry_id in entry_ids:
            assert await self.call("XADD", stream, entry_id, "a", "1") == entry_id


def _shown(request: CommandRequest, reply: Any) -> object:
    return f"-{reply.redis}" if isinstance(reply, EngineError) else plain(request.answer(reply))


def read_of(stream: str, *entry_ids: str) -> list[object]:
    """The reply of a read that gives these entries."""
    return [[stream, [[entry_id, ["a", "1"]] for entry_id in entry_ids]]]


def talk_of(*commands: tuple[Word, ...], fsync: Fsync = "everysec") -> Any:
    """A fixture: a conversation that begins with these commands."""

    @pytest.fixture
    async def talk() -> AsyncIterator[Conversation]:
        async with Conversation(fsync=fsync) as conversation:
            await conversation.call_each(commands)
            yield conversation

    return talk
