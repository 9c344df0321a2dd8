"""What the Python client logs of a gateway that is away: one line then, and one when it is back.

Knows: a gateway that can be stopped and started again. Must never know: pauses between attempts.
"""

import asyncio
import threading

import httpx
import pytest

from tests.cli.link import BUSY, STARTING, link
from tests.server import Server, server_of
from weir import AsyncClient, Client, NoAnswerError

# A gateway of one test's own.
alone = server_of("function")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Everything that was logged at the level that is shown by default, by whomever."""
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def _outage(url: str) -> list[str]:
    away = f"the gateway at {url} does not answer: connection refused; trying again"
    return [away, f"the gateway at {url} is back"]


def test_an_outage_is_two_lines(alone: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is called meanwhile, in two threads, and a tail as well."""
    with Client(alone.url) as client:
        client.publish("s", {"n": 0})
        tail = client.tail("s", after="0")
        assert next(tail).fields["n"] == "0"
        alone.kill()
        callers = [threading.Thread(target=client.get_stream, args=("s",)) for _ in range(2)]
        callers.append(threading.Thread(target=next, args=(tail,)))
        for caller in callers:
            caller.start()
        threading.Event().wait(1.5)
        alone.start()
        client.publish("s", {"n": 1})
        for caller in callers:
            caller.join(30)
    assert lines(caplog) == _outage(alone.url)


async def test_an_outage_is_two_lines_with_asyncio(alone: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncClient(alone.url) as client:
        await client.publish("s", {"n": 0})
        await asyncio.to_thread(alone.kill)
        calls = [asyncio.create_task(client.get_stream("s")) for _ in range(2)]
        await asyncio.sleep(1.5)
        await asyncio.to_thread(alone.start)
        await asyncio.gather(*calls)
    assert lines(caplog) == _outage(alone.url)


def test_a_refusal_that_passes_has_the_url_and_the_reason(
    server: Server, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Too many requests are no outage."""
    with link(server.port, BUSY, STARTING, STARTING) as flaky, Client(flaky.url) as client:
        client.publish(stream, {"n": 0})
        url = client.url
    away = f"the gateway at {url} is away: the gateway answered 503 Service Unavailable; trying again"
    assert lines(caplog) == [away, f"the gateway at {url} is back"]


def test_a_call_that_is_not_repeated_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with Client(retry_s=0, transport=httpx.MockTransport(refuse)) as client, pytest.raises(NoAnswerError):
        client.get_stream("s")
    assert lines(caplog) == []
