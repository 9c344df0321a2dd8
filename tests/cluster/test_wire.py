"""A connection to a server: what is sent together is answered in order, and what is lost is said."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from engine.cluster import wire
from engine.cluster.wire import Address, ConnectionLostError, ServerAccess, ServerConnection, ServerError
from tests.cluster.servers import BackendServer
from tests.waiting import until_async

TIMEOUT_S = 5.0


def address_of(server: BackendServer) -> Address:
    return Address("127.0.0.1", server.port)


@asynccontextmanager
async def connected(
    server: BackendServer, timeout_s: float = TIMEOUT_S, **options: Any
) -> AsyncIterator[ServerConnection]:
    connection = ServerConnection(
        address_of(server), options.pop("access", ServerAccess()), timeout_s, **options
    )
    connection.start()
    try:
        yield connection
    finally:
        await connection.close()


async def ask(connection: ServerConnection, *words: wire.Word) -> Any:
    """The reply, or what came in its place."""
    replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection.send(words, replied.set_result)
    return await replied


async def test_replies_come_in_order(server: BackendServer) -> None:
    """Also what was sent before the connection was made, and as values that are no bytes."""
    async with connected(server) as connection:
        replies = await asyncio.gather(*(ask(connection, "ECHO", number) for number in range(1_000)))
        assert replies == [b"%d" % number for number in range(1_000)]
        assert await ask(connection, "HELLO") == await ask(connection, "HELLO")
        assert await ask(connection, "GET", "missing") is None
        assert connection.failure is None


async def test_a_refusal_stands_in_its_place(server: BackendServer) -> None:
    async with connected(server) as connection:
        before, refused, behind = await asyncio.gather(
            ask(connection, "ECHO", "a"), ask(connection, "XADD", "s"), ask(connection, "ECHO", "b")
        )
        assert before + behind == b"ab"
        assert isinstance(refused, ServerError)
        assert refused.code == "ERR"
        assert refused.text.startswith("ERR wrong number of arguments for 'xadd'")


async def test_commands_that_belong_together_stay_together(server: BackendServer) -> None:
    async with connected(server) as connection:
        found: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        connection.send_together([("MULTI",), ("XADD", "s", "1-1", "a", "1"), ("EXEC",)], found.set_result)
        assert await found == [b"OK", b"QUEUED", [b"1-1"]]


async def test_pushes_are_no_replies(server: BackendServer) -> None:
    pushed: list[list[Any]] = []
    async with connected(server, on_push=pushed.append) as connection:
        connection.send(("SUBSCRIBE", "news"), None)
        assert await ask(connection, "ECHO", "a") == b"a"
        assert pushed == [[b"subscribe", b"news", 1]]
        server.call("PUBLISH", "news", "hello")
        await until_async(lambda: len(pushed) == 2)
        assert pushed[1] == [b"message", b"news", b"hello"]


async def test_it_comes_back_after_a_loss(server: BackendServer) -> None:
    """What had been sent may have run; what comes meanwhile is sent on the next link."""
    ups: list[None] = []
    downs: list[str] = []
    async with connected(server, on_up=lambda: ups.append(None), on_down=downs.append) as connection:
        number = await ask(connection, "CLIENT", "ID")
        waiting = asyncio.ensure_future(ask(connection, "BLPOP", "nothing", 0))
        await until_async(lambda: server.call("INFO", "clients").find(b"blocked_clients:1") >= 0)
        server.call("CLIENT", "KILL", "ID", number)
        lost = await waiting
        assert isinstance(lost, ConnectionLostError)
        assert lost.may_have_run
        assert await ask(connection, "ECHO", "again") == b"again"
        assert (len(ups), len(downs)) == (2, 1)


async def test_what_could_not_be_sent_has_not_run(own_server: BackendServer) -> None:
    """With no server, a command ends with its time; when there is one again, commands go on."""
    own_server.kill()
    async with connected(own_server, 0.3) as connection:
        lost = await ask(connection, "ECHO", "a")
        assert isinstance(lost, ConnectionLostError)
        assert not lost.may_have_run
        assert str(own_server.port) in str(lost)
        own_server.start()
        await until_async(lambda: connection.failure is None)
        assert await ask(connection, "ECHO", "b") == b"b"


async def test_a_server_that_does_not_answer_is_left(own_server: BackendServer) -> None:
    async with connected(own_server, 0.3) as connection:
        assert await ask(connection, "ECHO", "a") == b"a"
        own_server.pause()
        lost = await asyncio.gather(ask(connection, "ECHO", "b"), ask(connection, "ECHO", "c"))
        assert [one.may_have_run for one in lost] == [True, True]
        own_server.resume()
        await until_async(lambda: connection.failure is None)
        assert await ask(connection, "ECHO", "d") == b"d"


async def test_what_is_sent_as_the_link_ends_goes_over_the_next_one(server: BackendServer) -> None:
    """Nothing answers on the link that has ended, and no deadline is watched there."""
    async with connected(server) as connection:
        await ask(connection, "ECHO", "a")
        sent = asyncio.ensure_future(ask(connection, "ECHO", "b"))
        await asyncio.sleep(0)
        assert connection._link is not None  # noqa: SLF001 - the cut must come before the next write
        connection._link.end("cut")  # noqa: SLF001 - the same
        assert await sent == b"b"


async def test_what_waits_to_be_sent_is_bounded(own_server: BackendServer) -> None:
    """At the bound it is taken, one byte above it is refused."""
    own_server.kill()
    async with connected(own_server, 0.3) as connection:
        room = wire.UNSENT_BYTES_MAX - len(b"*2\r\n$4\r\nECHO\r\n$67108830\r\n\r\n")
        fits = asyncio.ensure_future(ask(connection, "ECHO", bytes(room)))
        await asyncio.sleep(0)
        assert "wait to be sent" in str(await ask(connection, ""))
        assert str(own_server.port) in str(await fits)


async def test_a_closed_connection_answers_too(server: BackendServer) -> None:
    async with connected(server) as connection:
        assert await ask(connection, "ECHO", "a") == b"a"
        waiting = asyncio.ensure_future(ask(connection, "BLPOP", "nothing", 0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await connection.close()
        assert str(await waiting) == "closed"
        assert str(await ask(connection, "ECHO", "b")) == "closed"


async def test_users_databases_and_sockets(server: BackendServer) -> None:
    """The greeting logs in and selects; a wrong password keeps the connection down, with the reason."""
    server.call("ACL", "SETUSER", "weir", "on", ">secret", "~*", "&*", "+@all")
    access = ServerAccess("weir", "secret", database=3)
    connection = ServerConnection(Address(path=str(server.socket)), access, TIMEOUT_S)
    connection.start()
    assert await ask(connection, "ACL", "WHOAMI") == b"weir"
    assert b" db=3 " in await ask(connection, "CLIENT", "INFO")
    await connection.close()
    async with connected(server, 0.3, access=ServerAccess("weir", "wrong")) as refused:
        lost = await ask(refused, "ECHO", "a")
        assert not lost.may_have_run
        assert "WRONGPASS" in str(lost)


async def test_what_speaks_no_resp_is_no_server() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with listening:
        connection = ServerConnection(
            Address("127.0.0.1", listening.sockets[0].getsockname()[1]), ServerAccess(), timeout_s=0.3
        )
        connection.start()
        assert "no RESP" in str(await ask(connection, "ECHO", "a"))
        await connection.close()


async def test_a_callback_that_fails_concerns_no_other(server: BackendServer) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail(_: object) -> None:
        raise ValueError("mine")

    async with connected(server) as connection:
        connection.send(("ECHO", "a"), fail)
        assert await ask(connection, "ECHO", "b") == b"b"
        assert [str(one["exception"]) for one in reported] == ["mine"]


@pytest.mark.parametrize("chunk", [b"", b"x" * (1 << 20)])
async def test_large_words_and_empty_ones(server: BackendServer, chunk: bytes) -> None:
    async with connected(server) as connection:
        replies = await asyncio.gather(*(ask(connection, "ECHO", chunk) for _ in range(20)))
        assert set(replies) == {chunk}


def test_the_event_loop_of_the_gateway(server: BackendServer) -> None:
    """Its transports are of another class."""

    async def talk() -> object:
        async with connected(server) as connection:
            return await ask(connection, "ECHO", "a")

    assert uvloop.run(talk()) == b"a"
