"""Compressing texts that have gone cold, while everything goes on.

Knows: a thread, and what of a keyspace is cold. Must never know: commands, readers, when something is cold.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from engine.clock import Clock
from engine.keyspace import Keyspace
from engine.nodes import Text
from engine.runtime.loading import pack

# The pause after a failure, such as a lack of memory, which may be available again then.
RETRY_S: Final = 10.0


class Packer:
    """A keyspace's one packer, on its event loop."""

    def __init__(self, keyspace: Keyspace, clock: Clock) -> None:
        self._keyspace = keyspace
        self._clock = clock
        self._retry_at = 0.0
        self._thread = ThreadPoolExecutor(1, "weir-pack")
        self._packing: asyncio.Future[None] | None = None

    def begin(self, *, texts_min: int = 1) -> None:
        """Compress what is cold, if there is so much of it and none is being compressed."""
        if len(self._keyspace.cold) < texts_min or self._packing is not None:
            return
        if self._clock.monotonic() >= self._retry_at:
            self._packing = asyncio.ensure_future(self._pack())

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._packing is not None:
            await self._packing
        self._thread.shutdown(wait=False)

    async def _pack(self) -> None:
        """In a thread: the texts never change, so only the exchange is ours."""
        loop, texts = asyncio.get_running_loop(), list[Text]()
        try:
            while self._keyspace.cold:
                texts, self._keyspace.cold = self._keyspace.cold, []
                small = await loop.run_in_executor(self._thread, pack, texts)
                for text, one in zip(texts, small, strict=True):
                    text.keep_packed(one)
        except Exception as error:  # noqa: BLE001 - the texts are unchanged in any case
            self._keyspace.cold[:0] = texts
            self._retry_at = self._clock.monotonic() + RETRY_S
            context = {"message": "compressing failed, and is tried again later", "exception": error}
            loop.call_exception_handler(context)
        finally:
            self._packing = None
