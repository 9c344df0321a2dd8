"""`weir push`: from a group of a real gateway to endpoints that behave, and that do not."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import standardwebhooks
from prometheus_client.parser import text_string_to_metric_families

from tests.app.senders import WHSEC
from tests.push import receiver
from tests.push.receiver import Receiver, status
from tests.push.test_endpoint import push_to
from tests.server import Server, free_port, server_of
from tests.waiting import until_async
from weir import AsyncClient
from weir.errors import NotFoundError
from weir.push.endpoint import Endpoint
from weir.push.metrics import PushMetrics
from weir.push.pusher import Pusher
from weir.worker import Backoff

SOON = Backoff(first=0.01, max=0.05)
# A minute of looks, and as many requests.
_LOOKS_MAX = 5_000


server = server_of("module")


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    """A client; the stream `s` is new."""
    async with AsyncClient(server.url) as client:
        for stream in ("s", "dead"):
            with suppress(NotFoundError):
                await client.delete_stream(stream)
        yield client


@asynccontextmanager
async def pushing(
    server: Server, listening: Receiver, **more: Any
) -> AsyncIterator[tuple[Pusher, list[str]]]:
    """A push from the group `g` of `s`, and what it says."""
    said: list[str] = []
    push = push_to(listening.url, **{"backoff": SOON, "jitter": 0.0, **more})
    clock = asyncio.get_running_loop().time
    endpoint = Endpoint(push, clock, lambda: 1_769_860_800.0)
    pusher = Pusher(push, server.url, "me", endpoint=endpoint, metrics=PushMetrics(), say=said.append)
    running = asyncio.create_task(pusher.run())
    try:
        yield pusher, said
    finally:
        pusher.worker.stop()
        await running


async def make_group(client: AsyncClient, max_deliveries: int) -> None:
    """The group, with a policy."""
    policy = {"stream": "dead", "max_deliveries": max_deliveries}
    await client.call("PUT", "/v1/streams/s/groups/g", body={"start": "0", "dead_letter": policy})


async def drained(client: AsyncClient) -> None:
    """Wait until the group has nothing left."""
    group = client.group("s", "g")
    info, looks = await group.info(), 0
    while info["pending"] or info["lag"]:
        looks += 1
        assert looks < _LOOKS_MAX, (info, await client.call("GET", "/v1/streams/s/groups/g/why"))
        await asyncio.sleep(0.01)
        info = await group.info()


async def test_each_entry_is_delivered_and_acknowledged(server: Server, client: AsyncClient) -> None:
    """Several at once, never more than `in_flight`; failures come again, counted, with the same ID."""
    ids = [(await client.publish("s", {"n": str(n)})).id for n in range(30)]
    async with Receiver() as listening:
        listening.answers = [status(500), receiver.reset, status(302, "Location: /")]
        async with pushing(server, listening, in_flight=4) as (_, said):
            await until_async(lambda: len(listening.delivered) == 33)
            await drained(client)
        assert listening.at_once_max <= 4
        stream = await client.get_stream("s")
        assert stream is not None
        generation = stream["generation"]
        found = [one.headers["webhook-id"] for one in listening.delivered]
        assert {*found} == {f"{generation}.{entry_id}" for entry_id in ids}
        again = [one.headers["weir-deliveries"] for one in listening.delivered]
        assert sorted(again) == ["1"] * 30 + ["2"] * 3
        assert len(said) == 1


@pytest.mark.parametrize("order", ["key:user", "strict"])
async def test_entries_arrive_in_order(server: Server, client: AsyncClient, order: str) -> None:
    """Those of a key, or all; what the endpoint answers in between changes nothing."""
    await client.publish_batch("s", [{"user": "abc"[n % 3], "n": str(n)} for n in range(24)])
    async with Receiver() as listening:
        listening.answers = [status(500)] * 7
        async with pushing(server, listening, order=order, in_flight=8) as _:
            await until_async(lambda: len(listening.delivered) == 31)
            await drained(client)
        found = [json.loads(one.body) for one in listening.delivered]
        keys = [one["user"] if order == "key:user" else "" for one in found]
        assert listening.at_once_max <= len({*keys})
        for key in {*keys}:
            numbers = [int(one["n"]) for one, of in zip(found, keys, strict=True) if of == key]
            assert numbers == sorted(numbers)


async def test_an_entry_becomes_a_dead_letter_with_its_reason(server: Server, client: AsyncClient) -> None:
    """At the last delivery that the group's policy allows."""
    entry_id = (await client.publish("s", {"n": "1"})).id
    await make_group(client, max_deliveries=3)
    async with Receiver(status(422)) as listening:
        async with pushing(server, listening):
            await until_async(lambda: len(listening.delivered) == 3)
            await drained(client)
        (letter,) = (await client.read("dead")).entries
        assert (letter.fields["weir-id"], letter.fields["weir-reason"]) == (entry_id, "push 422")
        assert len(listening.delivered) == 3


async def test_an_endpoint_that_asks_to_wait_is_waited_for(server: Server, client: AsyncClient) -> None:
    """That counts as no delivery."""
    await client.publish("s", {"n": "1"})
    async with Receiver() as listening:
        listening.answers = [status(429, "Retry-After: 0"), status(503, "Retry-After: 1")]
        async with pushing(server, listening):
            await until_async(lambda: len(listening.delivered) == 3)
            await drained(client)
        assert [one.headers["weir-deliveries"] for one in listening.delivered] == ["1"] * 3


@pytest.mark.parametrize("answer", [status(410), status(500)], ids=["gone", "nothing is good"])
async def test_a_group_is_paused_and_nothing_is_lost(
    server: Server, client: AsyncClient, answer: receiver.Answer
) -> None:
    """At 410, or without a success for `pause_after`. Resumed, it goes on with all of it."""
    for n in range(5):
        await client.publish("s", {"n": str(n)})
    group = client.group("s", "g")
    async with Receiver(answer) as listening:
        async with pushing(server, listening, pause_after=0.05, in_flight=2) as (_, said):
            await until_async(lambda: any("the group is paused" in line for line in said))
            assert (await group.info())["paused"]
            assert "weir groups resume s g" in said[-1]
            listening.usual = status(200)
            listening.delivered.clear()
            await group.resume()
            await drained(client)
        assert len({one.headers["webhook-id"] for one in listening.delivered}) == 5


async def test_batches_of_events_are_taken_as_one(server: Server, client: AsyncClient) -> None:
    """All are acknowledged with the batch, or given back with it; no more than `batch` are in one."""
    for n in range(25):
        await client.publish("s", {"n": str(n)})
    async with Receiver() as listening:
        listening.answers = [status(500)]
        async with pushing(server, listening, format="cloudevents-batch", batch=10, in_flight=1):
            await until_async(lambda: len(listening.delivered) >= 4)
            await drained(client)
        sizes = [one.body.count(b'"specversion"') for one in listening.delivered]
        assert max(sizes) <= 10
        assert sum(sizes[1:]) == 25


async def test_what_cannot_be_sent_raw_is_given_up(server: Server, client: AsyncClient) -> None:
    """It never reaches the endpoint; the next entry does."""
    await make_group(client, max_deliveries=1)
    await client.publish("s", {"n": "1"})
    await client.publish("s", {"data": "x"})
    async with Receiver() as listening:
        async with pushing(server, listening, format="raw"):
            await until_async(lambda: len(listening.delivered) == 1)
            await drained(client)
        (letter,) = (await client.read("dead")).entries
        assert letter.fields["weir-reason"] == "push no data"


async def test_a_stop_does_not_wait_for_a_gateway_that_is_away(tmp_path: Path) -> None:
    """Nor does a failure that is to be noted there."""
    with Server(tmp_path / "data") as server:
        async with AsyncClient(server.url) as client:
            await client.publish("s", {"n": "1"})

        async def fail_without_gateway(one: receiver.Delivered, writer: asyncio.StreamWriter) -> None:
            await asyncio.to_thread(server.kill)
            await status(500)(one, writer)

        listening = Receiver(fail_without_gateway)
        async with asyncio.timeout(60), listening, pushing(server, listening) as (pusher, _):
            pusher.worker._grace_s = 0.1  # noqa: SLF001 - no setting of a push
            await until_async(lambda: not server.running and listening.at_once == 0)


# ---- the command


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(WHSEC)
    return tmp_path / "secret"


def options(server: Server, url: str, secret: Path) -> list[str]:
    words = ["push", "s", "g", url, "--secret-file", str(secret), "--url", server.url]
    words += ["--allow-http", "127.0.0.1", "--allow-network", "127.0.0.0/8"]
    return [sys.executable, "-m", "weir", *words]


async def run(*words: str) -> tuple[int, str, str]:
    """A command, to its end."""
    ran = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = await ran.communicate()
    return ran.returncode or 0, out.decode(), err.decode()


async def test_the_command_pushes_until_it_is_stopped(
    server: Server, client: AsyncClient, secret: Path
) -> None:
    """It has metrics of its own; SIGTERM ends it with 0, and it has acknowledged what it delivered."""
    port = free_port()
    async with Receiver() as listening:
        listening.answers = [status(500)]
        words = options(server, listening.url, secret)
        pusher = await asyncio.create_subprocess_exec(*words, "--metrics-port", str(port))
        try:
            await client.publish("s", {"n": "1"})
            await until_async(lambda: len(listening.delivered) == 2)
            async with httpx.AsyncClient() as http:
                text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
        finally:
            pusher.terminate()
        assert await pusher.wait() == 0
    assert (await client.group("s", "g").info())["pending"] == 0
    samples = {
        (sample.name, sample.labels.get("result") or sample.labels.get("state")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["weir_push_attempts_total", "failed"] == 1
    assert samples["weir_push_state", "open"] == 1


async def test_a_probe_is_signed_and_tells_whether_it_was_taken(server: Server, secret: Path) -> None:
    """`--test` needs no gateway."""
    async with Receiver() as listening:
        listening.answers = [status(200), status(401)]
        words = [*options(server, listening.url, secret), "--test"]
        assert (await run(*words))[:2] == (0, "s/g → 127.0.0.1: push 200\n")
        assert (await run(*words))[:2] == (1, "s/g → 127.0.0.1: push 401\n")
        one = listening.delivered[0]
        assert standardwebhooks.Webhook(WHSEC).verify(one.body, one.headers) == {"type": "weir.push.test"}


async def test_what_would_be_sent_is_printed(server: Server, client: AsyncClient, secret: Path) -> None:
    """`--print` delivers nothing, and makes no group."""
    entry_id = (await client.publish("s", {"city": "Graz"})).id
    async with Receiver() as listening:
        code, out, err = await run(*options(server, listening.url, secret), "--print")
        assert (code, err, listening.delivered) == (0, "", [])
        assert out.startswith(f"POST {listening.url}\n")
        assert re.search(rf"^webhook-id: [0-9a-f]{{16}}\.{entry_id}$", out, re.MULTILINE)
        assert '\n\n{"city":"Graz"}\n' in out
        await client.publish("s", {"city": "Ulm"})
        for form, parts in (("cloudevents-batch", ["POST ", "Graz", "Ulm"]), ("raw", ["no data"] * 2)):
            code, out, err = await run(*options(server, listening.url, secret), "--print", "--format", form)
            assert (code, err, re.findall("POST |Graz|Ulm|no data", out)) == (0, "", parts)
    with pytest.raises(NotFoundError):
        await client.group("s", "g").info()


async def test_a_file_has_several_pushes(server: Server, client: AsyncClient, secret: Path) -> None:
    """One that the gateway refuses does not stop the others. A mistake in the file is a usage error."""
    async with Receiver() as listening:
        table = f'url = "{listening.url}"\nsecrets = ["file:secret"]\nallow_http = ["127.0.0.1"]\n'
        table += 'allowed_networks = ["127.0.0.0/8"]\n'
        file = secret.with_name("push.toml")
        pushes = "".join(f'[[push]]\nstream = "{one}"\ngroup = "g"\n{table}' for one in ("a//b", "s"))
        await asyncio.to_thread(file.write_text, f'gateway = "{server.url}"\n{pushes}')
        words = [sys.executable, "-m", "weir", "push", "--config", str(file)]
        pusher = await asyncio.create_subprocess_exec(*words, stderr=subprocess.PIPE)
        await client.publish("s", {"n": "1"})
        await until_async(lambda: len(listening.delivered) == 1)
        pusher.terminate()
        _, said = await pusher.communicate()
        assert pusher.returncode == 1
        assert b"a//b/g" in said
        await asyncio.to_thread(file.write_text, pushes + "colour = 1\n")
        code, _, said_of_usage = await run(*words)
        assert code == 2
        assert "push 2: colour" in said_of_usage
