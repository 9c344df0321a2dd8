"""The end of a stream on a socket: subscriptions and consumers end with it."""

from pathlib import Path

import httpx
import pytest

from engine.commands.schedule_commands import NewSchedule, SetSchedule
from engine.entries import body
from engine.recurrence import Rule
from tests.app.policies import principal_with
from tests.app.sockets import SocketClient
from tests.app.ten_doors import WebSocket, opened
from tests.app.websocket.group_calls import add
from tests.engine.asking import reply_to


def close(http: httpx.Client, stream: str, **given: object) -> None:
    answer = http.post(f"/v1/streams/{stream}/close", json=given)
    assert answer.status_code == 200, answer.text


def test_a_subscription_ends_with_the_last_of_its_streams(client: SocketClient, http: httpx.Client) -> None:
    """A frame for each; then its name is free."""
    (last,) = add(http, "s", 1)
    add(http, "t", 1)
    client.ask("subscribe", sub="live", streams={"s": "0", "t": "0"})
    client.entries(2)
    close(http, "s", reason="done")
    frame = client.until("closed")[-1]
    assert (frame["sub"], frame["stream"], frame["last_id"], frame["reason"]) == ("live", "s", last, "done")
    assert frame["closed_at"].endswith("Z")
    add(http, "t", 2)
    client.entries(1)
    close(http, "t")
    assert client.until("closed")[-1]["stream"] == "t"
    answer = client.ask("subscribe", sub="live", streams={"s": "0"})
    assert answer["op"] == "ok"
    ops = [frame["op"] for frame in client.until("closed")]
    assert [ops[0], ops[-1]] == ["entries", "closed"]


def test_a_publish_may_close(client: SocketClient, http: httpx.Client) -> None:
    """Both or neither: readers get the entries and the end."""
    answer = client.ask(
        "publish", stream="s", entries=[{"fields": {"n": 1}}, {"fields": {"n": 2}}], close=True
    )
    assert (answer["count"], answer["duplicate"], answer["closed"]) == (2, False, True)
    client.ask("subscribe", sub="live", streams={"s": "0"})
    frames = client.until("closed")
    assert frames[-1]["last_id"] == answer["last_id"]
    assert http.get("/v1/streams/s").json()["closed"] is True
    refused = client.ask("publish", stream="s", fields={"n": "3"}, close=True)
    assert refused["problem"]["code"] == "stream_closed"
    missing = client.ask("publish", stream="none", fields={"n": "3"}, close=True, nomkstream=True)
    assert missing["problem"]["code"] == "no_stream"
    open_still = client.ask("publish", stream="t", fields={"n": "1"}, close=False)
    assert "closed" not in open_still
    repeated = [
        client.ask("publish", stream="t", fields={"n": "2"}, close=True, idempotency_key="k") for _ in "12"
    ]
    assert [one["duplicate"] for one in repeated] == [False, True]
    assert repeated[0]["ids"] == repeated[1]["ids"]


async def test_the_audit_log_has_an_end_by_a_publish(tmp_path: Path) -> None:
    """As it has one by any other way in, also where it is refused."""
    frame = {"op": "publish", "stream": "orders", "fields": {"n": "1"}, "close": True}
    async with opened(tmp_path) as bench:
        await WebSocket("websocket", "websocket").ask(bench, frame, frame, {**frame, "close": False})
        lines = [line for line in await bench.audited() if line["action"] == "close"]
    assert [(line["operation"], line["stream"], line["status"]) for line in lines] == [
        ("publish", "orders", 200),
        ("publish", "orders", 409),
    ]


async def test_the_audit_log_has_what_a_publish_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end, and what recurs; once it may, what recurred is cancelled with a line too, and else without."""
    door, end = WebSocket("websocket", "websocket"), {"op": "publish", "stream": "orders", "close": True}
    entry = {"fields": {"n": "1"}}
    cancel = {"op": "publish", "stream": "orders", **entry, "cancel_schedule": "tick"}
    replace = {"op": "publish", "stream": "orders", **entry, "delay_ms": 60_000, "schedule": "tick"}
    async with opened(tmp_path) as bench:
        tick = NewSchedule("tick", body([("n", "1")]), Rule(every_ms=60_000))
        await reply_to(bench.engine, SetSchedule(stream="orders", schedule=tick))
        with monkeypatch.context() as patched:
            patched.setattr(bench.policy, "principal", principal_with("read,write:orders"))
            await door.ask(bench, {**end, **entry}, cancel, replace)
        await door.ask(bench, replace, cancel, cancel)
        lines = await bench.audited()
    assert [(line["operation"], line["action"], line["stream"], line["outcome"]) for line in lines] == [
        ("publish", "close", "orders", "forbidden"),
        ("publish", "manage", "orders", "forbidden"),
        ("publish", "manage", "orders", "forbidden"),
        ("publish", "manage", "orders", "done"),
    ]
