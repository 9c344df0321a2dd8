"""An engine, and the same engine as a front has it, joined within one event loop.

Knows: the two ends of a link, and how bytes get from one to the other in order.
Must never know: processes, sockets, what is said.
"""

import asyncio

from app.fronts.engine_port import EnginePort
from app.fronts.link import Message, ProcessLink
from app.fronts.messages import OF_LEASES
from app.fronts.remote_engine import RemoteEngine, RemoteLeases
from app.live.leases import ConsumerLeases
from engine import EngineProtocol


class Pipe(asyncio.Transport):
    """Takes bytes to the other end in the next cycle of the loop."""

    def __init__(self, near: ProcessLink, far: ProcessLink) -> None:
        super().__init__()
        self._ends = near, far
        self.is_cut = self.is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_cut:
            asyncio.get_running_loop().call_soon(self._ends[1].data_received, bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It has no buffer."""

    def is_closing(self) -> bool:
        return self.is_cut

    def pause_reading(self) -> None:
        """What was written still comes."""
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def abort(self) -> None:
        if not self.is_cut:
            self.is_cut = True
            for end in self._ends:
                asyncio.get_running_loop().call_soon(end.connection_lost, None)


class Joined:
    """`engine` as a front has it, in `remote`, and its `leases`. `port` serves it; `cut` is the end of the
    front.
    """

    def __init__(self, engine: EngineProtocol, leases: ConsumerLeases) -> None:
        self.port = EnginePort(engine, leases, {})
        self.front = ProcessLink(self._receive, self._lose)
        self.leases = RemoteLeases(self.front)
        self._remote: RemoteEngine | None = None
        self._welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pipes = Pipe(self.port.link, self.front), Pipe(self.front, self.port.link)
        self.port.link.connection_made(self.pipes[0])
        self.front.connection_made(self.pipes[1])
        self.port.welcome()

    @property
    def remote(self) -> RemoteEngine:
        assert self._remote is not None, "the front was welcomed"
        return self._remote

    async def welcomed(self) -> RemoteEngine:
        """The engine as the front has it, once the front was welcomed."""
        await self._welcomed
        return self.remote

    def cut(self) -> None:
        self.front.close()

    def _receive(self, message: Message) -> None:
        if self._remote is None:
            report, _ = message[2]
            self._remote = RemoteEngine(self.front, report)
            self._welcomed.set_result(None)
        elif message[0] in OF_LEASES:
            self.leases.receive(message)
        else:
            self._remote.receive(message)

    def _lose(self) -> None:
        if self._remote is not None:
            self._remote.lose()


async def join(engine: EngineProtocol, leases: ConsumerLeases | None = None) -> Joined:
    """Join a front to an engine, and to the leases of its process."""
    joined = Joined(engine, leases or ConsumerLeases())
    await joined.welcomed()
    return joined
