"""The store for assistant-ui's resumable streams, with assistant-ui's own context around it."""

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from assistant_stream.resumable import (
    ResumableStreamError,
    create_resumable_stream_context,
    create_resume_assistant_stream_response,
)

from tests.waiting import until_async
from weir import AsyncClient
from weir.assistant_stream import WeirResumableStreamStore

ID = "answer.1"


@pytest.fixture
async def stores(url: str, stream: str) -> AsyncIterator[Callable[[], WeirResumableStreamStore]]:
    """Stores of as many processes; with a prefix of this test's own."""
    async with contextlib.AsyncExitStack() as stack:

        def make() -> WeirResumableStreamStore:
            store = WeirResumableStreamStore(url, prefix=f"{stream}:")
            stack.push_async_callback(store.close)
            return store

        yield make


async def read(store: WeirResumableStreamStore, cursor: str = "") -> list[bytes]:
    return [one.chunk async for one in store.read(ID, cursor, asyncio.Event())]


async def isolated(call: Any) -> Any:
    """As in another request: what this task was elected for is not known there."""
    return await asyncio.get_running_loop().create_task(call, context=contextvars.Context())


async def test_one_of_all_that_ask_produces(stores: Callable[[], WeirResumableStreamStore]) -> None:
    roles = await asyncio.gather(*(stores().acquire(ID) for _ in range(8)))
    assert sorted(roles) == ["consumer"] * 7 + ["producer"]
    assert await stores().status(ID) == "streaming"


async def test_an_answer_is_read_as_it_comes_and_again_later(
    stores: Callable[[], WeirResumableStreamStore],
) -> None:
    """Byte for byte, from any cursor, by a process that came later."""
    producer, other = stores(), stores()
    assert await other.status(ID) == "missing"
    assert await producer.acquire(ID) == "producer"
    reading = asyncio.create_task(read(other))
    pieces = [b"one", bytes(range(256)), "ü🌍".encode()]
    for piece in pieces:
        await producer.append(ID, piece)
    found = [one async for one in _first(producer, 2)]
    await producer.finalize(ID, "done")
    assert await reading == pieces
    assert await read(stores()) == pieces
    assert await read(stores(), found[1].cursor) == pieces[2:]
    assert await other.status(ID) == "done"
    assert await other.acquire(ID) == "consumer"


async def _first(store: WeirResumableStreamStore, count: int) -> AsyncIterator[Any]:
    """The first pieces; then the reader is stopped."""
    signal, number = asyncio.Event(), 0
    async for one in store.read(ID, "", signal):
        yield one
        number += 1
        if number == count:
            signal.set()


async def test_a_reader_that_waits_ends_when_it_is_told_to(
    stores: Callable[[], WeirResumableStreamStore],
) -> None:
    store, signal = stores(), asyncio.Event()
    await store.acquire(ID)
    asyncio.get_running_loop().call_later(0.2, signal.set)
    async with asyncio.timeout(5):
        assert [one async for one in store.read(ID, "", signal)] == []


async def test_an_error_reaches_the_readers(stores: Callable[[], WeirResumableStreamStore]) -> None:
    store = stores()
    await store.acquire(ID)
    await store.append(ID, b"half")
    await store.finalize(ID, "error", "the model is away")
    with pytest.raises(RuntimeError, match="the model is away"):
        await read(store)
    assert await store.status(ID) == "error"
    with pytest.raises(ResumableStreamError) as refused:
        await store.append(ID, b"more")
    assert refused.value.code == "finalized"
    await store.finalize(ID, "done")
    assert await store.status(ID) == "error"


async def test_a_producer_whose_answer_was_begun_anew_writes_nothing(
    stores: Callable[[], WeirResumableStreamStore],
) -> None:
    """Also with the same store, in the same process."""
    store = stores()
    assert await store.acquire(ID) == "producer"
    await store.append(ID, b"old")
    await isolated(store.delete(ID))

    async def again() -> None:
        assert await store.acquire(ID) == "producer"
        await store.append(ID, b"new")

    await isolated(again())
    with pytest.raises(ResumableStreamError) as refused:
        await store.append(ID, b"stale")
    assert refused.value.code == "missing"
    await store.finalize(ID, "error", "stale")
    assert await store.status(ID) == "streaming"
    # Another process goes on with it and ends it.
    await isolated(stores().append(ID, b"and more"))
    await isolated(stores().finalize(ID, "done"))
    assert await read(store) == [b"new", b"and more"]


async def test_deleting_ends_readers_and_what_is_not_there_is_said(
    stores: Callable[[], WeirResumableStreamStore], url: str, stream: str
) -> None:
    store = stores()
    await store.acquire(ID)
    await store.append(ID, b"one")
    reading = asyncio.create_task(read(stores()))
    await asyncio.sleep(0.2)
    await store.delete(ID)
    async with asyncio.timeout(15):
        assert await reading == [b"one"]
    await store.delete(ID)
    for refused in (store.append(ID, b"x"), store.finalize(ID, "done"), read(store)):
        with pytest.raises(RuntimeError, match="Stream not found"):
            await refused
    async with AsyncClient(url) as client:
        assert await client.get_stream(f"{stream}:{ID}") is None, "nothing makes it again"
    with pytest.raises(ResumableStreamError) as wrong:
        await store.status("a/b")
    assert wrong.value.code == "invalid-id"


async def test_the_lifetime_counts_from_the_last_piece(
    stores: Callable[[], WeirResumableStreamStore],
) -> None:
    store = stores()
    await store.acquire(ID, ttl_ms=3_000)
    for _ in range(3):
        await asyncio.sleep(1.1)
        await store.append(ID, b"x")
    await store.finalize(ID, "done")
    assert len(await read(store)) == 3
    ends: list[str] = []

    async def look() -> None:
        while not ends:
            status = await stores().status(ID)
            if status == "missing":
                ends.append(status)
            await asyncio.sleep(0.1)

    looking = asyncio.create_task(look())
    await until_async(lambda: ends == ["missing"], 20)
    await looking


async def test_assistant_ui_s_context_produces_once_and_resumes(
    stores: Callable[[], WeirResumableStreamStore], url: str, stream: str
) -> None:
    """Five processes are asked for one answer: the model is asked once, and all get the same bytes."""
    asked: list[int] = []

    async def model() -> AsyncIterator[bytes]:
        asked.append(1)
        for number in range(20):
            yield b"%d " % number

    contexts = [create_resumable_stream_context(store=stores(), ttl_ms=60_000) for _ in range(5)]

    async def answer(context: Any) -> bytes:
        return b"".join([piece async for piece in await context.run(ID, model)])

    answers = await asyncio.gather(*(answer(context) for context in contexts))
    assert set(answers) == {b"".join(b"%d " % number for number in range(20))}
    assert asked == [1]
    resumed = await contexts[4].resume(ID)
    assert resumed is not None
    assert b"".join([piece async for piece in resumed]) == answers[0]
    missing = await create_resume_assistant_stream_response(context=contexts[0], stream_id="none")
    assert missing.status_code == 404
    async with AsyncClient(url) as client:
        found = await client.get_stream(f"{stream}:{ID}")
        assert found is not None
        assert (found["closed"], found["expires_at"] is not None) == (True, True)
