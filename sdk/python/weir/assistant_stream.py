"""A store for assistant-ui's resumable streams: an answer of a model is a stream of the gateway.

Knows: which entry begins an answer, holds a piece of it, and ends it. Must never know: what the pieces say.

    store = WeirResumableStreamStore("http://127.0.0.1:8080")
    context = create_resumable_stream_context(store=store)

The first entry of an answer, `begin`, elects its producer: it is only published into an empty stream. Each
further one is only published directly behind the producer's last one, so that a producer whose answer has
ended and was begun anew cannot write into that. The stream is closed with the entry `end`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Literal
from uuid import uuid4

from assistant_stream.resumable import (
    DEFAULT_TTL_MS,
    CancellationSignal,
    ResumableStreamEntry,
    ResumableStreamError,
    ResumableStreamRole,
    ResumableStreamStatus,
    validate_stream_id,
)

from weir._async_client import AsyncClient
from weir.entries import Page
from weir.errors import ConflictError, NotFoundError
from weir.paths import stream_path

BEGIN, CHUNK, END, ERROR = "begin", "chunk", "end", "error"
WAIT_MS: Final = 20_000
PAGE_COUNT: Final = 500
# The lifetime counts from the last piece, give or take this part of it.
REFRESH_PART: Final = 0.1
EMPTY: Final = "0-0"


@dataclass(eq=False)
class _Answer:
    """What a producer knows of its answer: which one it is, its last entry, when its lifetime was set."""

    stream: str
    begun: str
    last_id: str
    ttl_ms: int
    refreshed_s: float


# The answer that this task, or the one that has started it, was elected for.
_elected: Final[ContextVar[_Answer | None]] = ContextVar("weir_answer", default=None)


class WeirResumableStreamStore:
    """See `ResumableStreamStore`: any process may produce an answer, resume it, or end it.

    `url` and its options, or a `client`, as of `AsyncClient`. The streams are called `prefix` and the ID.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        client: AsyncClient | None = None,
        prefix: str = "answers:",
        **connection: Any,  # noqa: ANN401 - options of AsyncClient
    ) -> None:
        self._client = client or AsyncClient(url, **connection)
        self._prefix = prefix

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.close()

    def _name(self, stream_id: str) -> str:
        validate_stream_id(stream_id)
        return self._prefix + stream_id

    async def acquire(self, stream_id: str, *, ttl_ms: int | None = None) -> ResumableStreamRole:
        """Elect the producer of an answer: one of all that ask, until it is deleted or has expired."""
        stream, ttl_ms = self._name(stream_id), ttl_ms or DEFAULT_TTL_MS
        # Before the election, so that no answer stays for ever.
        await self._client.call("PUT", stream_path(stream), body={"expires_in_ms": ttl_ms}, repeatable=True)
        try:
            begun = await self._client.publish(stream, {BEGIN: ttl_ms}, if_last_id=EMPTY)
        except ConflictError:
            return "consumer"
        _elected.set(_Answer(stream, begun.id, begun.id, ttl_ms, monotonic()))
        return "producer"

    async def append(self, stream_id: str, chunk: bytes) -> None:
        """Add a piece. Raises ResumableStreamError: it has ended, or was begun anew by another producer."""
        answer = await self._own(stream_id)
        while True:
            try:
                published = await self._client.publish(
                    answer.stream, {CHUNK: chunk}, if_last_id=answer.last_id, nomkstream=True
                )
            except (ConflictError, NotFoundError):
                await self._follow(stream_id, answer)
            else:
                answer.last_id = published.id
                return await self._refresh(answer)

    async def finalize(
        self, stream_id: str, status: Literal["done", "error"], error: str | None = None
    ) -> None:
        """End the answer. One that has ended, or was begun anew by another producer, stays as it is."""
        try:
            answer = await self._own(stream_id)
            await self._keep(answer)
            fields = {END: status, **({ERROR: error or "Stream errored"} if status == "error" else {})}
            key = uuid4().hex
            while True:
                try:
                    await self._client.call(
                        "POST",
                        f"{stream_path(answer.stream)}/close",
                        body={"entry": {"fields": fields}},
                        headers={"if-match": f'"{answer.last_id}"', "idempotency-key": key},
                        repeatable=True,
                    )
                except (ConflictError, NotFoundError):
                    await self._follow(stream_id, answer)
                else:
                    return
        except ResumableStreamError as refused:
            if refused.code not in ("finalized", "missing"):
                raise

    async def read(
        self, stream_id: str, cursor: str, signal: CancellationSignal
    ) -> AsyncIterator[ResumableStreamEntry]:
        """The pieces after a cursor (empty: all), as they come, to the end; at once after `signal`.

        Raises RuntimeError for an answer that ended with an error.
        """
        stream = self._name(stream_id)
        await self._describe(stream_id)
        after = cursor or EMPTY
        stopping = asyncio.ensure_future(signal.wait())
        try:
            while (page := await self._page(stream, after, stopping)) is not None:
                for entry in page.entries:
                    fields = entry.fields
                    if fields.get(END) == "error":
                        raise RuntimeError(fields.get(ERROR, "Stream errored"))
                    if CHUNK in fields:
                        yield ResumableStreamEntry(cursor=entry.id, chunk=entry.raw[CHUNK])
                    if signal.is_set():
                        return
                is_gone = page.gap is not None and page.gap.reason not in (None, "trimmed", "failover")
                if page.closed or is_gone:
                    return
                if not page.entries and await self._client.get_stream(stream) is None:
                    return
                after = page.next or after
        finally:
            stopping.cancel()

    async def status(self, stream_id: str) -> ResumableStreamStatus:
        """Where the answer is."""
        found = await self._client.get_stream(self._name(stream_id))
        if found is None or not found["length"]:
            return "missing"
        if not found["closed"]:
            return "streaming"
        return "error" if found["last_entry"]["fields"].get(END) == "error" else "done"  # type: ignore[typeddict-item]

    async def delete(self, stream_id: str) -> None:
        """Remove the answer; those that read it end."""
        try:
            await self._client.delete_stream(self._name(stream_id))
        except NotFoundError:
            return

    # --- inside -------------------------------------------------------------------------------------------

    async def _page(self, stream: str, after: str, stopping: "asyncio.Future[bool]") -> Page | None:
        """The next page, as soon as there is something; None once the reader was stopped."""
        reading = asyncio.ensure_future(
            self._client.read_after(stream, after, count=PAGE_COUNT, wait_ms=WAIT_MS)
        )
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            return None if stopping.done() else reading.result()
        finally:
            reading.cancel()

    async def _describe(self, stream_id: str) -> dict[str, Any]:
        """The stream of an answer. Raises RuntimeError where there is none."""
        found = await self._client.get_stream(self._name(stream_id))
        if found is None or not found["length"]:
            raise RuntimeError(f"Stream not found: {stream_id}")
        return dict(found)

    async def _own(self, stream_id: str) -> _Answer:
        """The answer that this task produces; another process may go on with one that it did not begin."""
        stream, answer = self._name(stream_id), _elected.get()
        if answer is not None and answer.stream == stream:
            return answer
        found = await self._describe(stream_id)
        begun = found["first_entry"]
        ttl_ms = int(begun["fields"].get(BEGIN, DEFAULT_TTL_MS))
        answer = _Answer(stream, begun["id"], found["last_id"], ttl_ms, 0.0)
        self._check(stream_id, answer, found)
        return answer

    async def _follow(self, stream_id: str, answer: _Answer) -> None:
        """Something was published behind the last entry that was known, or there is no such answer.

        Raises RuntimeError, ResumableStreamError.
        """
        found = await self._describe(stream_id)
        self._check(stream_id, answer, found)
        answer.last_id = found["last_id"]

    def _check(self, stream_id: str, answer: _Answer, found: dict[str, Any]) -> None:
        if found["first_entry"]["id"] != answer.begun:
            raise ResumableStreamError("missing", f"Stream superseded by a new acquisition: {stream_id}")
        if found["closed"]:
            raise ResumableStreamError("finalized", f"Stream already finalized: {stream_id}")

    async def _refresh(self, answer: _Answer) -> None:
        """Count the lifetime from now on."""
        if (monotonic() - answer.refreshed_s) * 1000 > answer.ttl_ms * REFRESH_PART:
            await self._keep(answer)
            answer.refreshed_s = monotonic()

    async def _keep(self, answer: _Answer) -> None:
        """Let the stream go after its lifetime; where it has gone, the next call says so."""
        with contextlib.suppress(NotFoundError):
            await self._client.update_stream(answer.stream, expires_in_ms=answer.ttl_ms)
