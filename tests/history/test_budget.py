"""Pages, reads and what is kept share one bound of memory: who comes waits, and somebody always ends.

Knows: the bound by itself, and the service as a process. Must never know: which pages there are.
"""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest

from history.budget import Budget, Share
from tests.history.served import Served
from tests.spark.table.making import GENERATION, Maker, key_of, numbered

BOUND: Final = 100
MIB: Final = 1 << 20
STREAMS: Final = 16
PAGES: Final = 64
CACHE_MIB: Final = 48
ENTRIES: Final = 2_000
VALUE: Final = b"x" * 5_000


async def is_waiting(taking: asyncio.Task[None]) -> bool:
    """Whether it has no room yet."""
    for _ in range(3):
        await asyncio.sleep(0)
    return not taking.done()


def take(share: Share, size: int) -> asyncio.Task[None]:
    return asyncio.ensure_future(share.take(size))


async def pages(budget: Budget, *sizes: int) -> Sequence[Share]:
    """Pages under way of these sizes."""
    found = [budget.page() for _ in sizes]
    for one, size in zip(found, sizes, strict=True):
        await one.take(size)
    return found


class TestWaiting:
    async def test_the_bound_is_reached_and_not_passed(self) -> None:
        """A page waits for the last byte."""
        budget = Budget(BOUND)
        (first,) = await pages(budget, 60)
        fitting, larger = budget.page(), budget.page()
        waiting = take(larger, 41)
        assert await is_waiting(waiting)
        waiting.cancel()
        assert not await is_waiting(take(fitting, 40))
        assert budget.taken == BOUND
        with first:
            pass
        assert budget.taken == 40

    async def test_none_overtakes_another(self) -> None:
        """A small one behind a large one waits for it."""
        budget = Budget(BOUND)
        first, _ = await pages(budget, 50, 30)
        large, small = take(budget.page(), 60), take(budget.page(), 1)
        assert await is_waiting(large)
        assert await is_waiting(small)
        with first:
            pass
        assert not await is_waiting(large)
        assert not await is_waiting(small)

    async def test_one_that_leaves_lets_those_behind_it_go_on(self) -> None:
        """As at its deadline."""
        budget = Budget(BOUND)
        await pages(budget, 50)
        large, small = take(budget.page(), 60), take(budget.page(), 1)
        assert await is_waiting(small)
        large.cancel()
        assert not await is_waiting(small)
        assert budget.taken == 51

    async def test_what_is_larger_than_all_goes_alone(self) -> None:
        """A bound that is too small for a page is no reason to serve none."""
        budget = Budget(BOUND)
        alone, other = budget.page(), budget.page()
        assert not await is_waiting(take(alone, 2 * BOUND))
        waiting = take(other, 1)
        assert await is_waiting(waiting)
        with alone:
            pass
        assert not await is_waiting(waiting)


class TestTheFirst:
    async def test_the_first_page_goes_on_beyond_the_bound(self) -> None:
        """Else all of them might wait for each other; the second one is the first when that ends."""
        budget = Budget(BOUND)
        first, second = await pages(budget, 50, 50)
        behind = take(second, 10)
        assert await is_waiting(behind)
        assert not await is_waiting(take(first, 30))
        assert await is_waiting(behind)
        with first:
            pass
        assert not await is_waiting(behind)

    async def test_what_it_waits_for_is_read_whoever_has_begun_to(self) -> None:
        """Another page, or none any more."""
        budget = Budget(BOUND)
        first, second = await pages(budget, 50, 50)
        second.want("group")
        reading = take(budget.read("group"), 40)
        assert await is_waiting(reading)
        first.want("group")
        assert not await is_waiting(reading)

    async def test_it_waits_for_clients_that_take_their_pages(self) -> None:
        """Else each page in turn would be the first, and be left with a client that takes nothing."""
        budget = Budget(BOUND)
        sent, first = await pages(budget, 50, 50)
        sent.send()
        waiting = take(first, 10)
        assert await is_waiting(waiting)
        with sent:
            pass
        assert not await is_waiting(waiting)


class TestWhatIsKept:
    async def test_it_yields_as_far_as_is_needed(self) -> None:
        """And what is in use does not."""
        budget, kept = Budget(BOUND), [90]

        def shrink(size: int) -> int:
            kept[0] = max(30, min(kept[0], size))
            return kept[0]

        budget.shrink = shrink
        await pages(budget, 20)
        assert kept == [80]
        waiting = take(budget.page(), 60)
        assert await is_waiting(waiting)
        assert kept == [30]

    async def test_what_turns_out_to_be_larger_counts(self) -> None:
        """It is in use by then; what is smaller changes nothing."""
        budget = Budget(BOUND)
        read = budget.read("group")
        await read.take(10)
        read.grow(5)
        assert budget.taken == 10
        read.grow(99)
        assert budget.taken == 99
        waiting = take(budget.page(), 2)
        assert await is_waiting(waiting)
        with read:
            pass
        assert not await is_waiting(waiting)

    async def test_a_page_pins_what_it_works_with(self) -> None:
        """Once, however often it says so, and until it is sent."""
        budget = Budget(BOUND)
        one, other = await pages(budget, 1, 1)
        for page in (one, one, other):
            page.pin("group")
        one.send()
        assert "group" in budget.pins
        with other:
            pass
        assert "group" not in budget.pins


def ask(port: int, stream: int) -> socket.socket:
    """Ask for a page as large as there may be, and take nothing of it yet."""
    found = socket.create_connection(("127.0.0.1", port), timeout=60)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    query = f"generation={GENERATION}&count=100000"
    found.sendall(f"GET /v1/streams/s{stream}/entries?{query} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    return found


def answer(asked: socket.socket) -> tuple[int, int]:
    """Its status, and the bytes of its body, all of which are taken."""
    with asked.makefile("rb") as file:
        status = int(file.readline().split()[1])
        length = 0
        while (line := file.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return status, len(file.read(length))


@pytest.mark.alone
def test_many_pages_at_once_take_no_more_than_the_cache_and_a_page(tmp_path: Path) -> None:
    """Of clients that wait before they take them: some are answered, others are told to come again."""
    maker = Maker(tmp_path / "archive")
    for number in range(STREAMS):
        maker.batch({key_of(f"s{number}"): numbered(1, ENTRIES)}, value=VALUE)
    served = Served(maker.table.root.url, "--cache-mb", str(CACHE_MIB)).start()
    try:
        assert served.page("s0", GENERATION, count=1).status == 200
        before = served.peak_bytes()
        with ExitStack() as open_ones:
            asked = [
                open_ones.enter_context(closing(ask(served.port, number % STREAMS)))
                for number in range(PAGES)
            ]
            answers = [answer(one) for one in asked]
        grown = served.peak_bytes() - before
        sizes = [size for status, size in answers if status == 200]
        assert {status for status, _ in answers} <= {200, 429, 503}
        assert len(sizes) >= 3
        assert min(sizes) > 7 * MIB
        # A page that goes beyond the bound takes three times its text, and five times a group of 10 MiB; an
        # allocator keeps some. Without a bound it was more than a gigabyte.
        assert grown < (CACHE_MIB + 3 * 8 + 5 * 10 + 64) * MIB, f"{grown / MIB:.0f} MiB"
        assert served.page("s1", GENERATION, count=ENTRIES).status == 200
    finally:
        served.kill()
