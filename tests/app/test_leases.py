"""Who may read as a consumer: one reader at a time, and each behind all that came before it."""

import asyncio

from app.live.leases import ConsumerKey, ConsumerLeases
from app.live.other_gateways import SharedLeases
from tests.engine.clocks import settle

KEY = ConsumerKey("s", "g", "c")


async def test_a_reader_waits_for_all_before_it() -> None:
    """Also for one whose successor has left again: what it reads is not given back yet."""
    leases = ConsumerLeases()
    replaced = list[str]()
    first = leases.acquire(KEY, lambda: replaced.append("first"))
    first.begin_operation()
    second = leases.acquire(KEY, lambda: replaced.append("second"))
    second.leave()
    third = leases.acquire(KEY, lambda: replaced.append("third"))
    await settle()
    assert not third.alone.done()
    first.leave()
    await settle()
    assert not third.alone.done()
    first.end_operation()
    await settle()
    assert third.alone.result() is None
    assert replaced == ["first"]


async def test_a_reader_at_another_gateway_waits_until_the_read_here_has_ended() -> None:
    """One that has stopped may still be given entries: its lease is over once they went back."""
    gateways = list[SharedLeases]()

    async def say(message: bytes) -> int:
        for one in gateways:
            asyncio.get_running_loop().call_soon(one.receive, message)
        return len(gateways)

    gateways += [SharedLeases(say), SharedLeases(say)]
    here = gateways[0].acquire(KEY, lambda: here.leave())  # noqa: PLW0108 - it is not there yet
    await here.wait_alone()
    here.begin_operation()
    there = gateways[1].acquire(KEY, lambda: None)
    await settle()
    assert (here.is_stopped, there.alone.done()) == (True, False)
    here.end_operation()
    async with asyncio.timeout(1):
        await there.wait_alone()
