"""What gateways over one backend tell each other: every message once, in one order; a value for one of them.

Knows: two engines over one backend, in this process. Must never know: what a message says.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine import EngineError
from engine.cluster import ClusterEngine
from tests.cluster.engines import opened
from tests.cluster.servers import Backend, BackendServer
from tests.waiting import until_async


@pytest.fixture
async def pair(backend: Backend) -> AsyncIterator[tuple[ClusterEngine, ClusterEngine]]:
    """Two gateways' engines."""
    async with opened(backend, poll_s=0.5) as one, opened(backend, poll_s=0.5) as other:
        yield one, other


async def test_all_hear_what_each_says_in_one_order(pair: tuple[ClusterEngine, ClusterEngine]) -> None:
    """What was said before a gateway joined is not for it."""
    one, _other = pair
    heard: tuple[list[bytes], list[bytes]] = ([], [])
    await one.gateways.say(b"before")
    for engine, found in zip(pair, heard, strict=True):
        await engine.gateways.join(found.append)
    await asyncio.gather(*[engine.gateways.say(b"%d" % number) for number in range(50) for engine in pair])
    await until_async(lambda: all(len(found) == 100 for found in heard))
    assert heard[0] == heard[1]
    assert await one.gateways.say(b"last") == 2
    await until_async(lambda: heard[1][-1] == b"last")
    assert b"before" not in heard[0]


async def test_a_message_that_cannot_be_handled_hides_no_other(
    pair: tuple[ClusterEngine, ClusterEngine],
) -> None:
    """The fault is reported."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    found: list[bytes] = []
    fault = ValueError("of one message")

    def take(message: bytes) -> None:
        if message == b"bad":
            raise fault
        found.append(message)

    one, other = pair
    await one.gateways.join(take)
    for message in (b"first", b"bad", b"last"):
        await other.gateways.say(message)
    await until_async(lambda: found == [b"first", b"last"])
    assert reported == [fault]


async def test_a_value_is_taken_once(pair: tuple[ClusterEngine, ClusterEngine]) -> None:
    """By whichever gateway asks first."""
    one, other = pair
    await one.gateways.keep("ticket", b"value", 60_000)
    taken = await asyncio.gather(*[engine.gateways.take_value("ticket") for engine in pair for _ in range(3)])
    assert sorted(value or b"" for value in taken) == [b""] * 5 + [b"value"]
    assert await other.gateways.take_value("ticket") is None


async def test_all_look_for_changes_of_metadata(pair: tuple[ClusterEngine, ClusterEngine]) -> None:
    """Now and then, should a notification be lost."""
    one, other = pair
    woken: list[str] = []
    one.gateways.watch_metadata(lambda: woken.append("one"))
    other.gateways.watch_metadata(lambda: woken.append("other"))
    await until_async(lambda: {"one", "other"} <= set(woken))


async def test_a_gateway_joins_when_its_backend_is_back(own_server: BackendServer) -> None:
    """What is said meanwhile is refused, not lost in silence."""
    async with opened(own_server, timeout_s=0.5) as engine:
        own_server.kill()
        found: list[bytes] = []
        joining = asyncio.ensure_future(engine.gateways.join(found.append))
        with pytest.raises(EngineError):
            await engine.gateways.say(b"refused")
        assert not joining.done()
        own_server.start()
        async with asyncio.timeout(30):
            await joining
        await engine.gateways.say(b"heard")
        await until_async(lambda: found == [b"heard"])
