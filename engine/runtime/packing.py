"""Compresses texts that have gone cold, while everything goes on.

Knows: a thread, and which texts of a keyspace are cold.
Must never know: commands, readers, what makes a text cold.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from engine.clock import Clock
from engine.keyspace import Keyspace
from engine.nodes import Text
from engine.runtime.loading import pack

# The pause after a failure, such as a lack of memory, which may be available again then.
RETRY_S: Final = 10.0


class Packer:
    """The packer of a keyspace, on its event loop."""

    def __init__(self, keyspace: Keyspace, clock: Clock) -> None:
        # Called when texts were compressed: more has gone cold.
        self.on_packed: Callable[[], object] = lambda: None
        self._keyspace = keyspace
        self._clock = clock
        self._retry_at = 0.0
        self._thread = ThreadPoolExecutor(1, "weir-pack")
        self._packing: asyncio.Future[None] | None = None

    def begin_packing(self, *, texts_min: int = 1) -> None:
        """Compress the cold texts if there are enough of them and none are being compressed."""
        if len(self._keyspace.cold) < texts_min or self._packing is not None:
            return
        if self._clock.monotonic() >= self._retry_at:
            self._packing = asyncio.ensure_future(self._pack())

    async def close(self) -> None:
        """Wait for the thread."""
        if self._packing is not None:
            await self._packing
        self._thread.shutdown(wait=False)

    async def _pack(self) -> None:
        """Compress in a thread. The texts never change, so only their exchange runs on the event loop."""
        loop, texts = asyncio.get_running_loop(), list[Text]()
        try:
            while self._keyspace.cold:
                texts, self._keyspace.cold = self._keyspace.cold, []
                small = await loop.run_in_executor(self._thread, pack, texts)
                for text, packed in zip(texts, small, strict=True):
                    text.keep_packed(packed)
                self.on_packed()
        except Exception as error:  # noqa: BLE001 - the texts are unchanged in any case
            self._keyspace.cold[:0] = texts
            self._retry_at = self._clock.monotonic() + RETRY_S
            context = {"message": "compressing failed, and is tried again later", "exception": error}
            loop.call_exception_handler(context)
        finally:
            self._packing = None
