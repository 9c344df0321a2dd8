"""The gateway fetches a few pages at a time for each caller, and says what is wrong with the service."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.archived.asking import BUSY_WAIT_S_MAX, Asked
from app.archived.client import FETCHES_MAX, HistoryClient
from app.metrics.counters import Counters
from app.settings import Settings
from engine import Clock, EngineError, Reader, SystemClock, ids
from tests.engine.clocks import HandClock

ASKED = Asked("g0", "s", "0" * 16, 1, ids.ID_MAX, 10, 1 << 20, after=0)
PAGE = b'{"entries":[],"next":"0-0","more":false}'
HEADERS = b"weir-source: history\r\nweir-count: 0\r\nweir-more: false\r\nweir-covered-up-to: 0-0\r\n"

Answering = Callable[[bytes], Awaitable[bytes]]


@asynccontextmanager
async def asking(
    answering: Answering, *, clock: Clock | None = None, counters: Counters | None = None, **settings: object
) -> AsyncIterator[HistoryClient]:
    """A client of a server that answers so, one request a connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await answering(await reader.readuntil(b"\r\n\r\n")))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        named = {"history_url": f"http://127.0.0.1:{port}", **settings}
        # It reads the file of the token.
        given = Settings(**named)  # type: ignore[arg-type]
        watched = clock or SystemClock(), counters or Counters()
        client = await asyncio.to_thread(HistoryClient, given, *watched)
        try:
            yield client
        finally:
            await client.close()


def answer(status: bytes, body: bytes, headers: bytes = b"") -> bytes:
    """As HTTP has it."""
    head = b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\nconnection: close\r\n\r\n" % (status, headers, len(body))
    return head + body


def asked_from(low: int, *, end: int | None = None) -> Asked:
    """Of ten entries from that one on."""
    return ASKED._replace(low=low << 64, high=ids.ID_MAX if end is None else end << 64, after=None)


async def refusal(client: HistoryClient, caller: str = "a") -> EngineError:
    """Why a page is refused."""
    with pytest.raises(EngineError) as refused:
        await client.fetch(ASKED, Reader(caller))
    return refused.value


async def test_beyond_two_pages_a_caller_waits_a_second_and_who_follows_longer() -> None:
    """Other callers have their own."""
    free, asked = asyncio.Event(), asyncio.Semaphore(0)

    async def hold(_: bytes) -> bytes:
        asked.release()
        await free.wait()
        return answer(b"200 OK", PAGE, HEADERS)

    async with asking(hold) as client:
        first = [asyncio.create_task(client.fetch(ASKED, Reader("a"))) for _ in range(FETCHES_MAX)]
        other = asyncio.create_task(client.fetch(ASKED, Reader("b")))
        following = asyncio.create_task(client.fetch(ASKED, Reader("a", follows=True)))
        for _ in range(FETCHES_MAX + 1):
            await asked.acquire()
        began_s = asyncio.get_running_loop().time()
        assert (await refusal(client)).code == "history_busy"
        waited_s = asyncio.get_running_loop().time() - began_s
        assert waited_s >= BUSY_WAIT_S_MAX
        assert not following.done()
        free.set()
        found = await asyncio.gather(*first, other, following)
        assert [page.number for page in found] == [0] * (FETCHES_MAX + 2)


async def test_reads_side_by_side_take_turns() -> None:
    """Five plain ones of a caller are answered, two at a time."""
    counters, here = Counters(), set[bytes]()
    most = 0

    async def take_a_while(head: bytes) -> bytes:
        nonlocal most
        here.add(head)
        most = max(most, len(here))
        for _ in range(10):
            await asyncio.sleep(0)
        here.discard(head)
        return answer(b"200 OK", PAGE, HEADERS)

    async with asking(take_a_while, counters=counters) as client:
        reads = [client.fetch(asked_from(number), Reader("a")) for number in range(1, 6)]
        assert [page.number for page in await asyncio.gather(*reads)] == [0] * 5
    assert most <= FETCHES_MAX
    assert counters.history_fetches == {"ok": 5, "busy": 0, "unavailable": 0}


async def test_the_token_and_the_deadline_go_along(tmp_path: Path) -> None:
    """In headers."""
    heads: list[bytes] = []

    async def note(head: bytes) -> bytes:
        heads.append(head.lower())
        return answer(b"200 OK", PAGE, HEADERS)

    token = tmp_path / "token"
    token.write_text("secret\n")
    async with asking(note, history_token_file=str(token), request_s_max=7) as client:
        await client.fetch(ASKED, Reader("a"))
    assert b"authorization: bearer secret\r\n" in heads[0]
    assert b"weir-deadline-ms: 7000\r\n" in heads[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (answer(b"429 Too Many Requests", b'{"code":"history_busy","detail":"64 pages"}'), "64"),
        (answer(b"503 x", b'{"code":"history_unavailable","detail":"x.parquet is missing"}'), "x.parquet is"),
        (answer(b"401 Unauthorized", b'{"code":"unauthenticated"}'), "history_token_file"),
        (answer(b"200 OK", b"<html>"), "is no service of history"),
        (answer(b"502 Bad Gateway", b"<html>"), "status 502"),
        (b"", "does not answer"),
        # Killed in the middle of a page.
        (b"HTTP/1.1 200 OK\r\n%bcontent-length: 900\r\n\r\n%b" % (HEADERS, PAGE[:9]), "does not answer"),
        (answer(b"200 OK", b"\xff" * 40, HEADERS), "is no service of history"),
        (answer(b"200 OK", PAGE, HEADERS.replace(b"0-0", b"x")), "no service of"),
        (answer(b"200 OK", PAGE, HEADERS.replace(b": 0\r", b": 9\r")), "no service of"),
        (answer(b"200 OK", b"x" * (20 << 20), HEADERS), "bytes that a page may have"),
    ],
)
async def test_what_is_wrong_is_named(given: bytes, words: str) -> None:
    """So that it can be put right."""

    async def give(_: bytes) -> bytes:
        return given

    async with asking(give) as client:
        refused = await refusal(client)
    assert refused.code == ("history_busy" if words == "64" else "history_unavailable")
    assert words in refused.detail


@pytest.mark.parametrize(
    ("asked", "last", "count"),
    [
        # Below what was asked for, above it, and more entries than that.
        (asked_from(5), "4-0", 1),
        (asked_from(1, end=3), "4-0", 1),
        (asked_from(1), "1-0", 11),
    ],
)
async def test_entries_that_were_not_asked_for_are_no_page(asked: Asked, last: str, count: int) -> None:
    """A cursor would go on from them."""
    page = b'{"entries":[{"id":"%b","fields":{"a":"1"}}],"next":null,"more":false}' % last.encode()
    headers = b"weir-source: history\r\nweir-count: %d\r\nweir-more: false\r\n" % count
    headers += b"weir-next-id: %b\r\nweir-covered-up-to: 9-0\r\n" % last.encode()

    async def give(_: bytes) -> bytes:
        return answer(b"200 OK", page, headers)

    async with asking(give) as client:
        with pytest.raises(EngineError, match="not asked for") as refused:
            await client.fetch(asked, Reader("a"))
    assert refused.value.code == "history_unavailable"


async def test_a_service_that_hangs_is_given_up_when_the_request_has_had_its_time() -> None:
    """Also one that goes on sending, a little at a time; the caller's turn is free then."""
    ended, left = asyncio.Event(), asyncio.Event()

    async def hang(_: bytes) -> bytes:
        await ended.wait()
        return b""

    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 90000\r\n\r\n")
        with suppress(ConnectionError):
            while not ended.is_set():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        left.set()

    async with asking(hang, request_s_max=1) as client:
        for _ in range(FETCHES_MAX + 1):
            refused = await refusal(client)
            assert (refused.code, "does not answer" in refused.detail) == ("history_unavailable", True)
        ended.set()
    ended.clear()
    async with await asyncio.start_server(trickle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = Settings(history_url=f"http://127.0.0.1:{port}", request_s_max=1)
        client = await asyncio.to_thread(HistoryClient, settings, SystemClock(), Counters())
        assert (await refusal(client)).code == "history_unavailable"
        ended.set()
        await client.close()
        # Or its end would be the next test's.
        await left.wait()


async def test_a_token_that_has_changed_is_read_again(tmp_path: Path) -> None:
    """When the service refuses the one that is known; one that is still wrong is a refusal that names it."""
    token = tmp_path / "token"
    token.write_text("old\n")
    good = b"old"

    async def check(head: bytes) -> bytes:
        if b"bearer %b\r\n" % good in head.lower():
            return answer(b"200 OK", PAGE, HEADERS)
        return answer(b"401 Unauthorized", b'{"code":"unauthenticated"}')

    async with asking(check, history_token_file=str(token)) as client:
        await client.fetch(ASKED, Reader("a"))
        good = b"new"
        assert "history_token_file" in (await refusal(client)).detail
        token.unlink()
        assert "history_token_file" in (await refusal(client)).detail
        token.write_text("new\n")
        await client.fetch(ASKED, Reader("a"))


async def test_fetches_are_counted_by_outcome_and_pages_are_timed() -> None:
    """A refusal says nothing about how long a page takes."""
    clock, counters = HandClock(), Counters()
    answers = [
        answer(b"200 OK", PAGE, HEADERS),
        answer(b"429 Too Many Requests", b'{"code":"history_busy","detail":"64 pages"}'),
        answer(b"502 Bad Gateway", b""),
    ]

    async def give(_: bytes) -> bytes:
        clock.pass_ms(300)
        return answers.pop(0)

    async with asking(give, clock=clock, counters=counters) as client:
        await client.fetch(ASKED, Reader("a"))
        for _ in range(2):
            await refusal(client)
    assert counters.history_fetches == {"ok": 1, "busy": 1, "unavailable": 1}
    assert sum(counters.history_fetch_seconds.counts) == 1
    assert counters.history_fetch_seconds.total == pytest.approx(0.3, abs=0.01)


async def test_the_log_says_once_that_no_page_comes_and_once_that_one_does() -> None:
    """A page that is refused because of its caller says nothing of the service."""
    answers = [
        answer(b"500 No", b""),
        answer(b"429 Busy", b'{"code":"history_busy"}'),
        answer(b"500 No", b""),
    ]
    answers += [answer(b"200 OK", PAGE, HEADERS)] * 2

    async def answering(_: bytes) -> bytes:
        return answers.pop(0)

    with capture_logs() as lines:
        async with asking(answering) as client:
            for _ in range(3):
                await refusal(client)
            for _ in range(2):
                await client.fetch(ASKED, Reader("a"))
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("history cannot be read", "error"),
        ("history can be read again", "warning"),
    ]
    assert "status 500" in lines[0]["reason"]
    assert "history_url" in lines[0]["remedy"]
