"""Workers of the Python client: nothing lost, nothing acknowledged that was not done, over both ways."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import httpx
import pytest

import weir
from tests.cli.link import BAD_GATEWAY, DROP, LOSE, PASS, link
from tests.server import Server
from tests.waiting import until_async
from weir import AsyncClient, Backoff, Delivery, Worker
from weir._links import give_back
from weir.entries import Entry
from weir.worker import Handler

Via = Literal["websocket", "long-poll"]
# Far below the time of a long-poll.
AT_ONCE_S: Final = 10.0
vias = pytest.mark.parametrize("via", ["websocket", "long-poll"])


@contextlib.asynccontextmanager
async def until_done(worker: Worker, handle: Handler, **options: int) -> AsyncIterator[None]:
    """Run a worker beside the block; it ends with it."""
    running = asyncio.create_task(worker.run(handle, stop_on=(), **options))
    try:
        yield
    finally:
        worker.stop()
        async with asyncio.timeout(40):
            await running


async def settled(client: AsyncClient, stream: str, group: str = "g") -> bool:
    try:
        info = await client.group(stream, group).info()
    except weir.NotFoundError:
        return False
    return info["pending"] == 0 and info["lag"] == 0


async def wait_until_settled(client: AsyncClient, stream: str) -> None:
    await until_async(lambda: settled(client, stream))


async def work_off(
    worker: Worker, handle: Handler, client: AsyncClient, *streams: str, **options: int
) -> None:
    async with until_done(worker, handle, **options):
        for stream in streams:
            await wait_until_settled(client, stream)


async def pass_by(_: Delivery) -> None: ...


@vias
async def test_each_entry_is_handled_and_acknowledged_once(url: str, stream: str, via: Via) -> None:
    done: Counter[str] = Counter()

    async def handle(delivery: Delivery) -> None:
        done[delivery.entry.fields["n"]] += 1

    async with AsyncClient(url) as client:
        await client.publish_batch(stream, [{"n": number} for number in range(300)])
        worker = Worker(url, stream, group="g", consumer="c", via=via, credit=7)
        async with until_done(worker, handle, concurrency=3):
            await wait_until_settled(client, stream)
            await client.publish(stream, {"n": 300})
            await wait_until_settled(client, stream)
    assert done == Counter(str(number) for number in range(301))


def test_a_worker_that_has_ended_leaves_no_socket_open(url: str, stream: str) -> None:
    """Also one that ends while the gateway's answer to its close is under way."""

    async def work() -> None:
        async with AsyncClient(url) as client:
            await client.publish_batch(stream, [{"n": number} for number in range(20)])
            worker = Worker(url, stream, group="g", consumer="c", via="websocket", credit=7)
            await work_off(worker, pass_by, client, stream, concurrency=3)

    for _ in range(30):
        asyncio.run(work())
    # One that is open yet warns now, and a warning fails the test.
    gc.collect()


@vias
async def test_no_entry_is_lost_or_done_twice_over_kills_of_the_gateway(tmp_path: Path, via: Via) -> None:
    done: Counter[str] = Counter()

    async def handle(delivery: Delivery) -> None:
        await asyncio.sleep(0.001)
        done[delivery.entry.fields["n"]] += 1

    with Server(tmp_path / "data") as server:
        async with AsyncClient(server.url) as client:
            worker = Worker(server.url, "s", group="g", consumer="c", via=via, credit=10)
            async with until_done(worker, handle, concurrency=4):
                for number in range(150):
                    await client.publish("s", {"n": number})
                    if number in (50, 100):
                        await asyncio.to_thread(server.restart)
                await wait_until_settled(client, "s")
    assert done == Counter(str(number) for number in range(150)), "one life of a worker does nothing twice"


@vias
async def test_what_a_handler_fails_at_comes_again_and_the_rest_goes_on(
    url: str, stream: str, via: Via, caplog: pytest.LogCaptureFixture
) -> None:
    counts: list[tuple[str, int | None]] = []

    async def handle(delivery: Delivery) -> None:
        counts.append((delivery.entry.fields["n"], delivery.entry.delivery_count))
        if counts.count(counts[-1]) == 1 and counts[-1][0] == "1" and len(counts) < 4:
            raise RuntimeError("not today")

    async with AsyncClient(url) as client:
        await client.publish_batch(stream, [{"n": 0}, {"n": 1}, {"n": 2}])
        await work_off(Worker(url, stream, group="g", consumer="c", via=via), handle, client, stream)
    assert [number for number, _ in counts].count("1") == 2
    assert {number for number, _ in counts} == {"0", "1", "2"}
    assert "not today" in caplog.text


@vias
async def test_a_worker_that_stops_gives_back_what_it_has_not_begun(url: str, stream: str, via: Via) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handle(_: Delivery) -> None:
        begun.set()
        await may_end.wait()

    async with AsyncClient(url) as client:
        await client.publish_batch(stream, [{"n": number} for number in range(5)])
        worker = Worker(url, stream, group="g", consumer="c", via=via)
        running = asyncio.create_task(worker.run(handle, stop_on=()))
        await begun.wait()
        worker.stop()
        may_end.set()
        async with asyncio.timeout(40):
            await running
        pending = [one async for one in client.group(stream, "g").pending()]
    # One is done and acknowledged; four went back, as if they were never delivered.
    assert [(one["consumer"], one["delivery_count"]) for one in pending] == [(None, 0)] * 4


async def test_what_goes_back_waits_until_the_read_of_new_entries_is_cut_off(
    server: Server, stream: str
) -> None:
    """That read would get it, and its answer would reach nothing."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handle(_: Delivery) -> None:
        begun.set()
        await may_end.wait()

    with link(server.port) as proxy:
        async with AsyncClient(server.url) as client:
            await client.publish_batch(stream, [{"n": number} for number in range(5)])
        worker = Worker(proxy.url, stream, group="g", consumer="c", via="long-poll")
        running = asyncio.create_task(worker.run(handle, stop_on=()))
        await begun.wait()
        while proxy.operations.count("read") < 2:  # noqa: ASYNC110 - a thread counts
            await asyncio.sleep(0.01)
        worker.stop()
        may_end.set()
        async with asyncio.timeout(40):
            await running
        settling = [one for one in proxy.operations if one in ("pending", "nack")]
    assert settling[:2] == ["pending", "nack"]


async def test_entries_of_an_earlier_life_come_first(url: str, stream: str) -> None:
    async with AsyncClient(url) as client:
        ids = (await client.publish_batch(stream, [{"n": 0}, {"n": 1}, {"n": 2}])).ids
        group = client.group(stream, "g")
        await group.ensure(start="0")
        await group.read("c", count=2)
        await client.delete_entries(stream, ids[:1])
        seen: list[str] = []
        worker = Worker(url, stream, group="g", consumer="c")
        async with worker:
            async for delivery in worker:
                async with delivery as entry:
                    seen.append(entry.fields["n"])
                if len(seen) == 2:
                    break
        assert seen == ["1", "2"], "what was deleted meanwhile is acknowledged and not shown"
        assert await settled(client, stream)


async def test_an_earlier_life_of_more_than_a_page_comes_whole(url: str, stream: str) -> None:
    """A page of the history has a thousand entries."""
    async with AsyncClient(url) as client:
        ids = (await client.publish_batch(stream, [{"n": number} for number in range(1_001)])).ids
        group = client.group(stream, "g")
        await group.ensure(start="0")
        for count in (1_000, 1):
            await group.read("c", count=count)
        seen: list[str] = []
        worker = Worker(url, stream, group="g", consumer="c", via="long-poll")
        async with asyncio.timeout(40), worker:
            async for delivery in worker:
                seen.append(delivery.entry.id)
                delivery.ack()
                if len(seen) == len(ids):
                    break
        assert tuple(seen) == ids
        assert await settled(client, stream)


@pytest.mark.parametrize("fault", [LOSE, DROP])
async def test_what_is_given_back_over_a_bad_connection_goes_back_once(
    server: Server, stream: str, fault: str
) -> None:
    """Whether the request arrived or not; what another consumer has got meanwhile stays with it."""
    async with AsyncClient(server.url) as client:
        ids = (await client.publish_batch(stream, [{"n": 0}, {"n": 1}])).ids
        group = client.group(stream, "g")
        await group.ensure(start="0")
        await group.read("c")
        # What the gateway knows is asked first, and again after a lost connection.
        with link(server.port, PASS, fault) as lossy:
            async with AsyncClient(lossy.url, retry_s=None) as worker:
                await give_back(worker.group(stream, "g"), "c", list(ids), "silent")
            assert len(lossy.seen) == (3 if fault == LOSE else 5), "a request, a look, and a repetition"
        pending = [(one["consumer"], one["delivery_count"]) async for one in group.pending()]
        assert pending == [(None, 0)] * 2


@pytest.mark.parametrize("kind", ["ack", "nack"])
@pytest.mark.parametrize("history", [False, True])
async def test_what_comes_again_before_it_is_confirmed(
    kind: Literal["ack", "nack"], *, history: bool
) -> None:
    """It is delivered again only if it was given back, and is new since: the history shows what was held."""
    worker = Worker("http://127.0.0.1:1", "s", group="g", consumer="c")
    entry = Entry.parse({"id": "5-1", "fields": {"n": "1"}}, "s")
    worker.holdings.receive(entry, history=False)
    async for delivery in worker:
        delivery.ack() if kind == "ack" else delivery.nack()
        break
    (settled,) = worker.holdings.unconfirmed
    worker.holdings.receive(entry, history=history)
    is_new = kind == "nack" and not history
    assert worker.holdings.unconfirmed == ([] if is_new else [settled])
    await worker.close()


async def test_what_is_not_confirmed_yet_takes_room() -> None:
    """To the gateway it is still held: no more than `credit` entries are under way. Where more than the rest
    is about to be confirmed, one read then takes all.
    """
    worker = Worker("http://127.0.0.1:1", "s", group="g", consumer="c", credit=3)
    deliveries = aiter(worker)
    for entry_id, room in (("5-1", 2), ("5-2", 0)):
        worker.holdings.receive(Entry.parse({"id": entry_id, "fields": {"n": "1"}}, "s"), history=False)
        (await anext(deliveries)).ack()
        assert worker.holdings.room == room
    worker.holdings.confirm(worker.holdings.unconfirmed[:1])
    assert worker.holdings.room == 2
    worker.holdings.confirm(worker.holdings.unconfirmed)
    assert worker.holdings.room == 3
    await worker.close()


async def test_an_exception_in_the_block_gives_the_entry_back(url: str, stream: str) -> None:
    async def fail() -> None:
        async with Worker(url, stream, group="g", consumer="c") as worker:
            async for delivery in worker:
                async with delivery:
                    raise RuntimeError("mine")

    async with AsyncClient(url) as client:
        await client.publish(stream, {"n": 0})
        with pytest.raises(RuntimeError, match="mine"):
            await fail()
        pending = [one async for one in client.group(stream, "g").pending()]
    assert [(one["consumer"], one["delivery_count"]) for one in pending] == [(None, 1)]


async def test_a_second_worker_of_the_same_name_ends_the_first(url: str, stream: str) -> None:
    async with AsyncClient(url) as client:
        await client.publish(stream, {"n": 0})
        first = asyncio.create_task(Worker(url, stream, group="g", consumer="c").run(pass_by, stop_on=()))
        await wait_until_settled(client, stream)
        async with until_done(Worker(url, stream, group="g", consumer="c"), pass_by):
            with pytest.raises(weir.ConsumerReplacedError):
                async with asyncio.timeout(20):
                    await first


async def test_a_long_poll_outlasts_what_a_proxy_says_of_a_gateway_that_is_away(
    server: Server, stream: str
) -> None:
    """A group read must not be repeated, and neither must what gives entries back."""
    done: list[str] = []

    async def handle(delivery: Delivery) -> None:
        done.append(delivery.entry.fields["n"])
        if len(done) == 1:
            raise ValueError("not this time")

    async with AsyncClient(server.url) as client:
        await client.publish(stream, {"n": 0})
        # The group is made, its history read; then the proxy has no gateway.
        with link(server.port, PASS, PASS, BAD_GATEWAY, PASS, PASS, BAD_GATEWAY, BAD_GATEWAY) as proxy:
            worker = Worker(proxy.url, stream, group="g", consumer="c", via="long-poll")
            await work_off(worker, handle, client, stream)
    assert done == ["0", "0"]


@vias
async def test_what_is_refused_for_good_ends_the_worker(url: str, via: Via) -> None:
    with pytest.raises((weir.ApiError, ValueError)):
        await Worker(url, "a//b", group="g", consumer="c", via=via, start="0").run(pass_by, stop_on=())


async def test_extending_resets_the_idle_time(url: str, stream: str) -> None:
    async with AsyncClient(url) as client:
        await client.publish(stream, {"n": 0})
        async with Worker(url, stream, group="g", consumer="c") as worker:
            async for delivery in worker:
                await asyncio.sleep(0.2)
                assert await delivery.extend()
                pending = [one async for one in client.group(stream, "g").pending()]
                assert pending[0]["idle_ms"] < 200
                assert pending[0]["delivery_count"] == 1
                delivery.ack()
                delivery.nack()  # too late, and without effect
                break
        assert await settled(client, stream)


async def test_a_signal_ends_all_workers_of_a_process(url: str, stream: str) -> None:
    """The first to end leaves the signal to the others."""
    slow, fast = asyncio.Event(), asyncio.Event()

    async def linger(_: Delivery) -> None:
        slow.set()
        await asyncio.sleep(0.3)

    async def finish(_: Delivery) -> None:
        fast.set()

    async with AsyncClient(url) as client, asyncio.timeout(40), asyncio.TaskGroup() as group:
        await client.publish(stream, {"n": 0})
        for name, handle in (("slow", linger), ("fast", finish)):
            group.create_task(Worker(url, stream, group=name, consumer="c").run(handle))
        await asyncio.gather(slow.wait(), fast.wait())
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "as it was before"


@vias
async def test_a_worker_with_much_credit_gives_all_of_it_back(url: str, stream: str, via: Via) -> None:
    """A gateway takes at most 500 IDs in a request that gives entries back."""
    async with AsyncClient(url) as client:
        await client.publish_batch(stream, [{"n": number} for number in range(1_002)])
        async with asyncio.timeout(40):
            many = Worker(url, stream, group="g", consumer="c", via=via, credit=1_002, grace_s=5)
            async with many as worker:
                async for delivery in worker:
                    if delivery.entry.fields["n"] == "1":
                        break
        pending = [one async for one in client.group(stream, "g").pending()]
        assert len([one for one in pending if one["consumer"] is not None]) == 2, "those that were begun"


async def test_a_worker_whose_end_is_cancelled_leaves_nothing_behind(url: str, stream: str) -> None:
    async with AsyncClient(url) as client:
        await client.publish(stream, {"n": 0})
        before = asyncio.all_tasks()
        worker = await Worker(url, stream, group="g", consumer="c").__aenter__()
        async for _ in worker:  # what it holds unsettled delays its end
            closing = asyncio.create_task(worker.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            break
        assert asyncio.all_tasks() == before


async def test_sigterm_ends_a_worker_after_the_work_in_hand(url: str, stream: str) -> None:
    done: list[str] = []

    async def handle(delivery: Delivery) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        done.append(delivery.entry.fields["n"])

    async with AsyncClient(url) as client:
        await client.publish_batch(stream, [{"n": 0}, {"n": 1}])
        async with asyncio.timeout(40):
            await Worker(url, stream, group="g", consumer="c").run(handle)
        info = await client.group(stream, "g").info()
        assert info["pending"] == 1, "the second entry was given back"
    assert done == ["0"]


@vias
async def test_a_closed_worker_does_not_run_again(url: str, stream: str, via: Via) -> None:
    worker = Worker(url, stream, group="g", consumer="c", via=via)
    await worker.close()
    with pytest.raises(weir.ClientClosedError, match="this worker is closed: make another one"):
        await worker.run(pass_by, stop_on=())


@vias
async def test_what_is_to_be_tried_later_comes_back_then(url: str, stream: str, via: Via) -> None:
    """To whichever worker there is; until then none has it."""
    given_s: list[float] = []

    async def handle(delivery: Delivery) -> None:
        given_s.append(asyncio.get_running_loop().time())
        if len(given_s) == 1:
            delivery.retry_in(0.4)

    async with AsyncClient(url) as client:
        await client.publish(stream, {"n": 1})
        await work_off(Worker(url, stream, group="g", consumer="c", via=via), handle, client, stream)
    assert len(given_s) == 2
    assert given_s[1] - given_s[0] >= 0.39


@vias
async def test_a_worker_with_a_backoff_gives_back_later_and_later(url: str, stream: str, via: Via) -> None:
    given_s: list[float] = []

    async def fail(_: Delivery) -> None:
        given_s.append(asyncio.get_running_loop().time())
        if len(given_s) < 3:
            raise ValueError("not yet")

    retry = Backoff(first=0.1, factor=3, max=60)
    async with AsyncClient(url) as client:
        await client.publish(stream, {"n": 1})
        worker = Worker(url, stream, group="g", consumer="c", via=via, retry=retry)
        await work_off(worker, fail, client, stream)
    assert given_s[1] - given_s[0] >= 0.09
    assert given_s[2] - given_s[1] >= 0.29


@pytest.mark.parametrize("number", [1, 2])
@vias
async def test_a_worker_goes_on_at_once_behind_many_that_are_too_old(
    url: str, stream: str, via: Via, number: int
) -> None:
    """More than expire in one turn, in the last of its streams; it would wait for 20 s."""
    streams = [f"{stream}-{one}" for one in range(number)]
    old: list[dict[str, object]] = [{"id": f"{n}-0", "fields": {"n": "old"}} for n in range(1, 3_501)]
    found: list[str] = []

    async def handle(delivery: Delivery) -> None:
        found.append(delivery.entry.fields["n"])

    async with httpx.AsyncClient(base_url=f"{url}/v1/streams") as http, AsyncClient(url) as client:
        (await http.post(f"/{quote(streams[-1], safe='')}/entries", json={"entries": old})).raise_for_status()
        await client.publish(streams[-1], {"n": "young"})
        for one in streams:
            policy = {"start": "0", "mkstream": True, "max_age_ms": 3_600_000}
            (await http.put(f"/{quote(one, safe='')}/groups/g", json=policy)).raise_for_status()
        named = {"streams": streams, "priority": "strict"} if number > 1 else {"stream": stream + "-0"}
        worker = Worker(url, group="g", consumer="c", via=via, **named)
        begun_s = time.monotonic()
        await work_off(worker, handle, client, *streams)
        assert time.monotonic() - begun_s < AT_ONCE_S
    assert found == ["young"]


def test_a_backoff_ends_at_its_longest_time_after_any_number_of_deliveries() -> None:
    backoff = Backoff(first=1, factor=2, max=60)
    assert [backoff.after(deliveries) for deliveries in (1, 2, 3, 7, 2**63 - 1)] == [1, 2, 4, 60, 60]
    assert Backoff(first=0).after(2**63 - 1) == 0
    for wrong in ({"first": -1}, {"first": 61, "max": 60}, {"max": 604_801}, {"factor": 0.5}):
        with pytest.raises(weir.InvalidValueError):
            Backoff(**wrong)


@vias
async def test_a_worker_waits_through_a_pause_and_says_so_once(
    url: str, stream: str, via: Via, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    async def handle(delivery: Delivery) -> None:
        done.append(delivery.entry.fields["n"])

    async with AsyncClient(url) as client:
        group = client.group(stream, "g")
        await group.ensure(start="0")
        assert (await group.pause())["paused"] is True
        await client.publish(stream, {"n": 1})
        worker = Worker(url, stream, group="g", consumer="c", via=via)
        async with until_done(worker, handle):
            await asyncio.sleep(0.3)
            assert (done, (await group.read("other")).paused) == ([], True)
            assert (await group.resume())["paused"] is False
            await wait_until_settled(client, stream)
            # Over long-polls a worker that hears of the pause late has nothing to say of it.
            await group.pause()
            await group.resume()
    assert done == ["1"]
    said = [one.message for one in caplog.records if f"group g of {stream}" in one.message]
    assert said[:2] == (
        [
            f"group g of {stream} is paused: nothing comes until it is resumed",
            f"group g of {stream} was resumed",
        ]
        if via == "websocket"
        else []
    )


@vias
async def test_an_entry_stays_with_a_worker_that_lives(url: str, stream: str, via: Via) -> None:
    """However long it takes: the time to acknowledge counts from the worker's last word."""
    handled: list[int | None] = []

    async def handle(delivery: Delivery) -> None:
        handled.append(delivery.entry.delivery_count)
        await asyncio.sleep(3)

    async with AsyncClient(url) as client:
        await client.group(stream, "g").ensure(start="0", ack_timeout_ms=1_000)
        await client.publish(stream, {"n": 1})
        worker = Worker(url, stream, group="g", consumer="a", via=via)
        other = Worker(url, stream, group="g", consumer="b", via=via)
        async with until_done(worker, handle), until_done(other, handle):
            await wait_until_settled(client, stream)
    assert len(handled) == 1


async def test_without_a_lease_it_goes_to_another(url: str, stream: str) -> None:
    """So would it with the other test's worker, if that did not extend it."""
    held, taken = asyncio.Event(), asyncio.Event()

    async def work(_: Delivery) -> None:
        held.set()
        await taken.wait()

    async def take(_: Delivery) -> None:
        taken.set()

    async with AsyncClient(url) as client:
        await client.group(stream, "g").ensure(start="0", ack_timeout_ms=500)
        await client.publish(stream, {"n": 1})
        async with until_done(Worker(url, stream, group="g", consumer="a", lease="off"), work):
            await held.wait()
            async with until_done(Worker(url, stream, group="g", consumer="b"), take), asyncio.timeout(20):
                await taken.wait()


KILLED: Final = """
import asyncio, sys
from weir import Worker

async def handle(delivery):
    print(delivery.entry.id, flush=True)
    await asyncio.sleep(600)

url, stream = sys.argv[1:]
asyncio.run(Worker(url, stream, group="g", consumer="killed").run(handle))
"""


async def test_an_entry_of_a_killed_worker_comes_back_within_its_timeout(url: str, stream: str) -> None:
    timeout_s = 2
    async with AsyncClient(url) as client:
        group = client.group(stream, "g")
        await group.ensure(start="0", ack_timeout_ms=timeout_s * 1_000)
        await client.publish(stream, {"n": 1})
        killed = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, url, stream, stdout=asyncio.subprocess.PIPE
        )
        assert killed.stdout is not None
        entry_id = (await killed.stdout.readline()).decode().strip()
        # For longer than the timeout it is the worker's.
        await asyncio.sleep(1.5 * timeout_s)
        assert not (await group.read("b", claim_min_idle_ms=1 << 40)).entries
        killed.kill()
        await killed.wait()
        killed_at = time.monotonic()
        page = await group.read("b", claim_min_idle_ms=1 << 40, wait_ms=20_000)
    assert [entry.id for entry in page.entries] == [entry_id]
    # The gateway looks every second.
    assert time.monotonic() - killed_at < timeout_s + 3


@vias
async def test_a_handler_learns_that_its_entry_was_given_to_another(url: str, stream: str, via: Via) -> None:
    """What it decides then does not count, and the worker goes on with others."""
    lost, done = asyncio.Event(), asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if delivery.entry.fields["n"] == "2":
            done.set()
            return
        await client.group(stream, "g").claim("other", delivery.entry.id)
        while not delivery.lost:  # noqa: ASYNC110 - it is asked, as a handler does between two steps
            await asyncio.sleep(0.02)
        lost.set()

    async with AsyncClient(url) as client:
        await client.group(stream, "g").ensure(start="0", ack_timeout_ms=1_000)
        await client.publish_batch(stream, [{"n": 1}, {"n": 2}])
        async with until_done(Worker(url, stream, group="g", consumer="a", via=via), handle):
            async with asyncio.timeout(20):
                await lost.wait()
                await done.wait()
        held = [one["consumer"] async for one in client.group(stream, "g").pending()]
    # It is the other's, or it was released again since that does not extend it.
    assert held in (["other"], [None])


async def test_extending_takes_nothing_from_others(url: str, stream: str) -> None:
    async with AsyncClient(url) as client:
        await client.publish_batch(stream, [{"n": 1}, {"n": 2}])
        group = client.group(stream, "g")
        await group.ensure(start="0")
        first, second = [entry.id for entry in (await group.read("a")).entries]
        await group.claim("b", second)
        assert await group.extend("a", first, second, "9-0") == [first]
        assert [one["consumer"] async for one in group.pending()] == ["a", "b"]


async def test_entries_of_the_first_stream_come_before_those_of_the_second(url: str, stream: str) -> None:
    """A flood of them keeps all others waiting; what is being worked on is not interrupted."""
    high, low = f"{stream}:high", f"{stream}:low"
    order: list[str] = []

    async def handle(delivery: Delivery) -> None:
        name = delivery.entry.stream.removeprefix(f"{stream}:")
        order.append(name)
        if name == "high" and len(order) < 30:
            await client.publish(high, {"n": len(order)})
        elif name == "low" and order.count("low") == 3:
            await client.publish_batch(high, [{"n": 1}, {"n": 2}])

    async with AsyncClient(url) as client:
        await client.publish_batch(low, [{"n": number} for number in range(10)])
        await client.publish(high, {"n": 0})
        worker = Worker(url, streams=[high, low], priority="strict", group="g", consumer="c")
        await work_off(worker, handle, client, high, low)
    assert order == ["high"] * 30 + ["low"] * 3 + ["high"] * 2 + ["low"] * 7


async def test_entries_of_one_id_in_two_streams_are_two(url: str, stream: str) -> None:
    """Each is settled in its own stream, also what came to an earlier life of the worker."""
    streams = [f"{stream}:{number}" for number in range(3)]
    done: Counter[tuple[str, str]] = Counter()

    async def handle(delivery: Delivery) -> None:
        done[delivery.entry.stream, delivery.entry.id] += 1

    async with AsyncClient(url) as client:
        for name in streams:
            for number in (1, 2):
                await client.publish(name, {"n": number}, id=f"{number}-0")
            await client.group(name, "g").ensure(start="0")
            await client.group(name, "g").read("c", count=1)
        worker = Worker(url, streams=streams, group="g", consumer="c", credit=2)
        await work_off(worker, handle, client, *streams, concurrency=2)
    assert done == Counter({(name, one): 1 for name in streams for one in ("1-0", "2-0")})


async def test_a_group_of_several_streams_that_is_deleted_is_made_again(url: str, stream: str) -> None:
    """The others' entries stay with the worker meanwhile."""
    high, low = f"{stream}:high", f"{stream}:low"
    seen: list[tuple[str, str]] = []
    held, deleted = asyncio.Event(), asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        seen.append((delivery.entry.stream, delivery.entry.fields["n"]))
        if delivery.entry.stream == high:
            held.set()
            await deleted.wait()

    async with AsyncClient(url) as client:
        await client.publish(high, {"n": 1})
        worker = Worker(
            url, streams=[high, low], group="g", consumer="c", on_gone="recreate", on_gap=lambda _: None
        )
        async with until_done(worker, handle):
            await held.wait()
            await client.group(low, "g").delete()
            await client.publish(low, {"n": 2})
            deleted.set()
            await wait_until_settled(client, high)
            await wait_until_settled(client, low)
    assert seen == [(high, "1"), (low, "2")]


@pytest.mark.parametrize(
    "named", [{}, {"stream": "a", "streams": ["b"]}, {"streams": ["a", "a"]}, {"streams": ["a"], "credit": 0}]
)
def test_a_worker_has_one_stream_or_several(named: dict[str, Any]) -> None:
    with pytest.raises(weir.InvalidValueError):
        Worker("http://localhost:1", **{"group": "g", "consumer": "c", **named})


@vias
async def test_entries_of_a_key_are_worked_on_in_order_by_all_workers(
    url: str, stream: str, via: Via
) -> None:
    """The first one makes the group with its order; what a handler fails with holds its key, and no other."""
    busy: Counter[str] = Counter()
    done: dict[str, list[int]] = {key: [] for key in "abc"}
    failed = set[str]()

    async def handle(delivery: Delivery) -> None:
        key, number = delivery.entry.fields["user"], int(delivery.entry.fields["n"])
        busy[key] += 1
        assert busy[key] == 1, "one of a key at a time"
        try:
            await asyncio.sleep(0)
            if number % 7 == 0 and delivery.entry.id not in failed:
                failed.add(delivery.entry.id)
                raise ValueError(number)
            done[key].append(number)
        finally:
            busy[key] -= 1

    async with AsyncClient(url) as client:
        await client.publish_batch(stream, [{"n": number, "user": "abc"[number % 3]} for number in range(60)])
        order: dict[str, Any] = {"ordered_by": "user", "in_flight_per_key": 1}
        workers = [Worker(url, stream, group="g", consumer=one, via=via, **order) for one in "xyz"]
        async with contextlib.AsyncExitStack() as stack:
            for worker in workers:
                await stack.enter_async_context(until_done(worker, handle, concurrency=4))
            await wait_until_settled(client, stream)
        info = await client.group(stream, "g").info()
    assert (info.get("ordered_by"), info.get("passed_over")) == ("user", 0)
    assert done == {key: [n for n in range(60) if "abc"[n % 3] == key] for key in "abc"}


@vias
async def test_a_worker_takes_no_group_with_another_order(url: str, stream: str, via: Via) -> None:
    async with AsyncClient(url) as client:
        await client.group(stream, "g").ensure(start="0", ordered_by="customer")
    worker = Worker(url, stream, group="g", consumer="c", via=via, ordered_by="user")
    with pytest.raises(weir.InvalidValueError, match="is there with ordered_by='customer'"):
        await worker.run(lambda _: asyncio.sleep(0), stop_on=())
    with pytest.raises(weir.InvalidValueError, match="needs ordered_by"):
        Worker(url, stream, group="g", consumer="c", in_flight_per_key=2)
