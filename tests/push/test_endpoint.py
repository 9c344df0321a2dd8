"""What an endpoint answers, and what becomes of it."""

import asyncio
import base64
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.senders import WHSEC
from tests.engine.clocks import HandClock
from tests.push import receiver
from tests.push.receiver import Receiver, status
from weir.push.config import ConfigError, Push, of_table
from weir.push.endpoint import PROBE_S_MAX, PROBING_FAILURES_MIN, Endpoint, Outcome
from weir.push.messages import Message

MESSAGE = Message("00.1-0", b"body", {"content-type": "text/plain"})


def push_to(url: str, **more: Any) -> Push:
    secret = base64.b64decode(WHSEC.removeprefix("whsec_"))
    return Push(
        stream="s", group="g", url=httpx.URL(url), secrets=[secret], allow_http=["127.0.0.1"],
        allowed_networks=[ip_network("127.0.0.0/8")], **more,
    )  # fmt: skip


async def stopping() -> None:
    """Nobody stops."""
    await asyncio.Event().wait()


async def outcome_of(answer: receiver.Answer, **more: Any) -> tuple[Outcome, Receiver]:
    async with Receiver(answer) as listening:
        endpoint = Endpoint(push_to(listening.url, **more), HandClock().monotonic, lambda: 1_769_860_800.0)
        try:
            return await endpoint.try_once(MESSAGE), listening
        finally:
            await endpoint.close()


async def test_it_is_sent_as_it_is() -> None:
    """One POST with the query of the URL; the host is the name, and nothing of the environment is used."""
    outcome, listening = await outcome_of(status(204))
    assert outcome == Outcome("done", "push 204")
    (one,) = listening.delivered
    assert (one.line, one.body) == ("POST /hook?a=1 HTTP/1.1", b"body")
    assert one.headers["host"] == f"127.0.0.1:{listening.port}"
    assert one.headers["webhook-id"] == "00.1-0"
    assert one.headers["webhook-timestamp"] == "1769860800"
    assert one.headers["webhook-signature"].startswith("v1,")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (status(200), Outcome("done", "push 200")),
        (status(299), Outcome("done", "push 299")),
        (status(301, "Location: http://127.0.0.1:1/"), Outcome("failed", "push 301")),
        (status(400), Outcome("failed", "push 400")),
        (status(404), Outcome("failed", "push 404")),
        (status(410), Outcome("gone", "push 410")),
        (status(429), Outcome("failed", "push 429")),
        (status(429, "Retry-After: 7"), Outcome("later", "push 429", 7.0)),
        (status(503, "Retry-After: Sat, 31 Jan 2026 12:00:09 GMT"), Outcome("later", "push 503", 9.0)),
        (status(503, "Retry-After: 99999999"), Outcome("later", "push 503", 3_600.0)),
        (status(503, "Retry-After: soon"), Outcome("failed", "push 503")),
        (status(500, "Retry-After: 7"), Outcome("failed", "push 500")),
        (receiver.flood, Outcome("done", "push 200")),
    ],
)
async def test_each_answer_has_a_meaning(answer: receiver.Answer, outcome: Outcome) -> None:
    """No redirect is followed; of a gigabyte 64 KiB are read; it asks for an hour at most."""
    found, listening = await outcome_of(answer)
    assert found == outcome
    assert len(listening.delivered) == 1


@pytest.mark.parametrize("answer", [receiver.hang, receiver.drip])
async def test_an_answer_that_does_not_come_is_a_failure(answer: receiver.Answer) -> None:
    """All of it within the time, not only each piece."""
    found, _ = await outcome_of(answer, timeout=0.1)
    assert found == Outcome("failed", "push timeout")


async def test_a_connection_that_is_cut_or_refused_is_a_failure() -> None:
    found, _ = await outcome_of(receiver.reset)
    assert (found.kind, found.reason[:13]) == ("failed", "push network:")
    endpoint = Endpoint(push_to("http://127.0.0.1:9/"), HandClock().monotonic, lambda: 0.0)
    assert (await endpoint.try_once(MESSAGE)).kind == "failed"
    await endpoint.close()


async def test_an_address_that_is_not_public_is_a_failure_with_its_reason() -> None:
    """Though the name looks like any other."""
    push = Push(stream="s", group="g", url=httpx.URL("https://example.com/"), secrets=[b"x"])

    async def inside(host: str, port: int) -> list[str]:
        return ["169.254.169.254"]

    endpoint = Endpoint(push, HandClock().monotonic, lambda: 0.0, resolver=inside)
    outcome = await endpoint.try_once(MESSAGE)
    assert outcome.reason == "push refused: example.com has the address 169.254.169.254, which is not public"
    await endpoint.close()


async def test_after_twenty_failures_one_at_a_time_is_sent(tmp_path: Path) -> None:
    """Not before a pause, which grows up to a minute; one success opens it again."""
    clock = HandClock()
    async with Receiver(status(500)) as listening:
        endpoint = Endpoint(push_to(listening.url, jitter=0.0), clock.monotonic, lambda: 0.0)
        for failures in range(1, PROBING_FAILURES_MIN + 1):
            assert endpoint.state == "open"
            await endpoint.send(MESSAGE, stopping)
            assert endpoint.failures == failures
        assert endpoint.state == "probing"
        pauses = []
        for _ in range(8):
            pauses.append(round(endpoint.wait_s))
            clock.pass_ms(round(endpoint.wait_s * 1_000) + 1)
            await endpoint.send(MESSAGE, stopping)
        assert pauses == [1, 2, 4, 8, 16, 32, PROBE_S_MAX, PROBE_S_MAX]
        clock.pass_ms(60_001)
        listening.usual = status(200)
        await endpoint.send(MESSAGE, stopping)
        assert (endpoint.state, endpoint.failures, endpoint.wait_s) == ("open", 0, 0)
        await endpoint.close()


async def test_what_waits_for_a_closed_endpoint_ends_with_the_program() -> None:
    """Retry-After is of the endpoint: nothing else is sent to it meanwhile."""
    clock = HandClock()
    async with Receiver(status(429, "Retry-After: 30")) as listening:
        endpoint = Endpoint(push_to(listening.url), clock.monotonic, lambda: 0.0)
        first = await endpoint.send(MESSAGE, stopping)
        assert first is not None
        assert (first.after_s, endpoint.state) == (30.0, "waiting")
        assert endpoint.wait_s == pytest.approx(30)
        assert endpoint.failures == 0

        async def at_once() -> None:
            """It is to stop."""

        assert await endpoint.send(MESSAGE, at_once) is None
        assert len(listening.delivered) == 1
        await endpoint.close()


async def test_it_is_given_up_once_nothing_was_good_for_long() -> None:
    """From the first failure on; a success begins anew."""
    clock = HandClock()
    async with Receiver(status(500)) as listening:
        endpoint = Endpoint(push_to(listening.url, pause_after=60.0), clock.monotonic, lambda: 0.0)
        await endpoint.send(MESSAGE, stopping)
        found = []
        for _ in range(2):
            clock.pass_ms(30_000 - 500)
            found.append(endpoint.is_given_up)
        clock.pass_ms(1_000)
        found.append(endpoint.is_given_up)
        listening.usual = status(200)
        await endpoint.send(MESSAGE, stopping)
        assert [*found, endpoint.is_given_up] == [False, False, True, False]
        await endpoint.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"url": "http://example.com/"}, "url: it begins with https://, unless allow_http names example.com"),
        ({"url": "ftp://example.com/"}, "url: it begins with https://"),
        ({"url": "https://me:pass@example.com/"}, "url: it has no user"),
        ({"url": "https://example.com/#a"}, "url: it has no user"),
        ({"url": 7}, "url: it is a text"),
        ({"order": "key:"}, "order: it is none, key:<field>"),
        ({"format": "xml"}, "format: it is one of entry, raw"),
        ({"secrets": []}, "secrets: it is one or two of"),
        ({"secrets": ["whsec_abc"]}, "secrets: it is one or two of"),
        ({"secrets": ["file:short"]}, "has fewer than 16 bytes"),
        ({"secrets": ["file:wrong"]}, "has no whsec_<base64>"),
        ({"secrets": ["file:missing"]}, "No such file"),
        ({"in_flight": 0}, "in_flight: it is a whole number from 1"),
        ({"in_flight": 1_001}, "in_flight: it is a whole number from 1"),
        ({"timeout": "15"}, "timeout: '15' is no duration"),
        ({"timeout": 15}, "timeout: it is a text"),
        ({"backoff": {"first": "2h"}}, "backoff: of a Backoff"),
        ({"backoff": {"jitter": 2}}, "backoff: it is a number from 0 to 1"),
        ({"backoff": {"last": "1s"}}, "backoff: last: there is no such key"),
        ({"allowed_networks": ["10.0.0.1/8"]}, "allowed_networks: 10.0.0.1/8 has host bits set"),
        ({"colour": "red"}, "colour: there is no such key"),
        ({"group": None}, "group: it is needed"),
    ],
)
def test_a_configuration_with_a_mistake_says_where(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    (tmp_path / "secret").write_text(WHSEC)
    (tmp_path / "short").write_text("whsec_c2hvcnQ=")
    (tmp_path / "wrong").write_text("whsec_?")
    usual = {"stream": "s", "group": "g", "url": "https://example.com/", "secrets": ["file:secret"]}
    assert of_table(usual, tmp_path).in_flight == 8
    table = {name: value for name, value in {**usual, **change}.items() if value is not None}
    with pytest.raises(ConfigError) as error:
        of_table(table, tmp_path)
    assert reason in str(error.value)
