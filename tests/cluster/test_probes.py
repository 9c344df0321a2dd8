"""Subscriptions that are gone though their connection stands are noticed, and made again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engine.cluster import wakeups
from tests.cluster.servers import BackendServer
from tests.cluster.test_wakeups import Client, Tail, client_of
from tests.waiting import until_async


class AheadLoop(asyncio.SelectorEventLoop):
    """Its time is moved by hand."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


def is_subscribed(server: BackendServer) -> bool:
    return bool(server.call("PUBSUB", "NUMSUB", "__keyspace@0__:s")[1])


@asynccontextmanager
async def tailed(server: BackendServer) -> AsyncIterator[tuple[Client, Tail]]:
    async with client_of(server) as client:
        tail = Tail(client, "s")
        await client.call("XADD", "s", "1-0", "a", "1")
        await until_async(lambda: tail.seen == [b"1-0"] and is_subscribed(server))
        yield client, tail
        tail.close()


async def go_ahead(loop: AheadLoop, client: Client, seconds: float) -> None:
    """Let the time pass, a second at a time: what was sent has its answer before the next one."""
    for _ in range(round(seconds)):
        loop.ahead_s += 1
        answered = loop.create_future()
        client.listeners[-1].send(("PING",), answered.set_result)
        await answered


def test_a_probe_that_does_not_come_back_makes_the_subscriptions_again(server: BackendServer) -> None:
    """Not before its time is over; without a notification and without polling."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AheadLoop)
        async with tailed(server) as (client, tail):
            client.listeners[0].send(("UNSUBSCRIBE",), None)
            await until_async(lambda: not is_subscribed(server))
            await client.call("XADD", "s", "2-0", "a", "1")
            await go_ahead(loop, client, wakeups.PROBE_S_MAX - 2)
            assert (tail.seen, is_subscribed(server)) == ([b"1-0"], False)
            await go_ahead(loop, client, 12)
            await until_async(lambda: tail.seen == [b"1-0", b"2-0"] and is_subscribed(server))

    with asyncio.Runner(loop_factory=AheadLoop) as runner:
        runner.run(run())


def test_probes_that_come_back_change_nothing(server: BackendServer) -> None:
    """For as long as they do."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AheadLoop)
        async with tailed(server) as (client, _):
            await go_ahead(loop, client, 3 * wakeups.PROBE_S_MAX)
            assert client.wakeups.figures.wakes["subscription"] == 1

    with asyncio.Runner(loop_factory=AheadLoop) as runner:
        runner.run(run())
