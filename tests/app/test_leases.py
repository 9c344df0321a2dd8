"""Who may read as a consumer: one reader at a time, and each behind all that came before it."""

from app.live.leases import ConsumerKey, ConsumerLeases
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
