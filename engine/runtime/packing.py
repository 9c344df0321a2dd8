"""Compressing texts that have gone cold, while everything goes on.

Knows: a thread, and what of a keyspace is cold. Must never know: commands, readers, when something is cold.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from engine.keyspace import Keyspace
from engine.runtime.loading import packed


class Packer:
    """A keyspace's one packer, on its event loop."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self._thread = ThreadPoolExecutor(1, "weir-pack")
        self._packing: asyncio.Future[None] | None = None

    def begin(self, *, texts_min: int = 1) -> None:
        """Compress what is cold, if there is so much of it and none is being compressed."""
        if len(self._keyspace.cold) >= texts_min and self._packing is None:
            self._packing = asyncio.ensure_future(self._pack())

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._packing is not None:
            await self._packing
        self._thread.shutdown(wait=False)

    async def _pack(self) -> None:
        """In a thread: the texts never change, so only the exchange is ours."""
        try:
            while self._keyspace.cold:
                texts, self._keyspace.cold = self._keyspace.cold, []
                small = await asyncio.get_running_loop().run_in_executor(self._thread, packed, texts)
                for text, one in zip(texts, small, strict=True):
                    text.keep_packed(one)
        finally:
            self._packing = None
