"""Every call of the Python client × what may go wrong with its answer, and how often the gateway was asked.

What may have been done is done again only where twice is the same as once. Each method has its row: one that
is added has to say which it is.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import httpx
import pytest

from weir import Client, WeirError, _retrying
from weir._client import Group

Call = Callable[[Client], object]


class Row(NamedTuple):
    """A call, and why it is not made again where it may have been done; empty where it is."""

    call: Call
    once: str = ""


_ADDS: Final = "each time adds an entry"
_DELIVERS: Final = "each time delivers other entries"
_COUNTS: Final = "what another consumer holds meanwhile would be taken from it"
_SAYS: Final = "the second answer would say that there is none"
_ANY: Final = "nothing is known of it"
AT: Final = "2030-01-01T00:00:00Z"

STREAMS: Final[Mapping[str, Row]] = {
    "call": Row(lambda one: one.call("POST", "/v1/x"), _ANY),
    "call, a read": Row(lambda one: one.call("GET", "/v1/x")),
    "call, a read that is not": Row(lambda one: one.call("GET", "/v1/x", repeatable=False), _ANY),
    "call, repeatable": Row(lambda one: one.call("POST", "/v1/x", repeatable=True)),
    "cancel_schedule": Row(lambda one: one.cancel_schedule("s", "x"), _SAYS),
    "close_stream": Row(lambda one: one.close_stream("s")),
    "command": Row(lambda one: one.command("XADD", "s", "*", "a", 1), _ANY),
    "delete_entries": Row(lambda one: one.delete_entries("s", ["1-0"])),
    "delete_stream": Row(lambda one: one.delete_stream("s"), _SAYS),
    "ensure_stream": Row(lambda one: one.ensure_stream("s")),
    "entries": Row(lambda one: [*one.entries("s")]),
    "fire_schedule": Row(lambda one: one.fire_schedule("s", "x"), _ADDS),
    "get_entry": Row(lambda one: one.get_entry("s", "1-0")),
    "get_schedule": Row(lambda one: one.get_schedule("s", "x")),
    "get_stream": Row(lambda one: one.get_stream("s")),
    "list_all_schedules": Row(lambda one: [*one.list_all_schedules()]),
    "list_groups": Row(lambda one: [*one.list_groups("s")]),
    "pause_schedule": Row(lambda one: one.pause_schedule("s", "x")),
    "resume_schedule": Row(lambda one: one.resume_schedule("s", "x")),
    "list_schedules": Row(lambda one: [*one.list_schedules("s")]),
    "list_streams": Row(lambda one: [*one.list_streams()]),
    # They have a key that the client draws.
    "publish": Row(lambda one: one.publish("s", {"a": 1})),
    "publish_batch": Row(lambda one: one.publish_batch("s", [{"a": 1}, {"b": 2}])),
    "publish_many": Row(lambda one: one.publish_many({"s": [{"a": 1}]})),
    "publish_later": Row(lambda one: one.publish_later("s", {"a": 1}, delay_ms=5), _ADDS),
    "publish_later, named": Row(lambda one: one.publish_later("s", {"a": 1}, delay_ms=5, name="x")),
    "publish_timed": Row(lambda one: one.publish_timed("s", [{"fields": {"a": 1}, "deliver_at": AT}]), _ADDS),
    "read": Row(lambda one: one.read("s")),
    "read_after": Row(lambda one: one.read_after("s", "0")),
    "read_group": Row(lambda one: one.read_group(["s"], group="g", consumer="c"), _DELIVERS),
    "schedule": Row(lambda one: one.schedule("s", "x", {"a": 1}, every_ms=60_000)),
    "schedule, only new": Row(
        lambda one: one.schedule("s", "x", {"a": 1}, only_new=True, every_ms=60_000), _SAYS
    ),
    "send": Row(lambda one: one.send("POST", "/v1/x"), _ANY),
    "trim": Row(lambda one: one.trim("s", maxlen=1)),
    "update_stream": Row(lambda one: one.update_stream("s", retention={"max_len": 1})),
    "wait_until_ready": Row(lambda one: one.wait_until_ready()),
}
GROUPS: Final[Mapping[str, Row]] = {
    "why": Row(lambda one: one.group("s", "g").why()),
    "ack": Row(lambda one: one.group("s", "g").ack("1-0")),
    "claim": Row(lambda one: one.group("s", "g").claim("c", "1-0"), _COUNTS),
    "consumers": Row(lambda one: [*one.group("s", "g").consumers()]),
    "dead_letter": Row(lambda one: one.group("s", "g").dead_letter("1-0")),
    "delete": Row(lambda one: one.group("s", "g").delete(), _SAYS),
    "ensure": Row(lambda one: one.group("s", "g").ensure()),
    "extend": Row(lambda one: one.group("s", "g").extend("c", "1-0")),
    "history": Row(lambda one: one.group("s", "g").history("c")),
    "info": Row(lambda one: one.group("s", "g").info()),
    "nack": Row(lambda one: one.group("s", "g").nack("1-0"), _COUNTS),
    "pause": Row(lambda one: one.group("s", "g").pause()),
    "pending": Row(lambda one: [*one.group("s", "g").pending()]),
    "read": Row(lambda one: one.group("s", "g").read("c"), _DELIVERS),
    "redrive": Row(lambda one: one.group("s", "g").redrive(["1-0"])),
    "resume": Row(lambda one: one.group("s", "g").resume()),
}
ROWS: Final = {**STREAMS, **{f"group: {name}": row for name, row in GROUPS.items()}}
# Nothing is sent, or a reader that comes back by itself, which other tests follow.
NOT_CALLS: Final = {"close", "group", "tail"}


def _problem(status: int, code: str, **members: object) -> Callable[[httpx.Request], httpx.Response]:
    problem = {
        "type": f"/errors/{code}",
        "title": "x",
        "status": status,
        "code": code,
        "detail": "x",
        **members,
    }
    headers = {"content-type": "application/problem+json"}
    return lambda _: httpx.Response(status, json=problem, headers=headers)


def _raise(kind: type[httpx.RequestError]) -> Callable[[httpx.Request], httpx.Response]:
    def fail(request: httpx.Request) -> httpx.Response:
        raise kind("it failed", request=request)

    return fail


class Fault(NamedTuple):
    """What comes instead of an answer, and whether the call may have been done."""

    answer: Callable[[httpx.Request], httpx.Response]
    is_unknown: bool


FAULTS: Final = {
    "no connection": Fault(_raise(httpx.ConnectError), is_unknown=False),
    "starting": Fault(_problem(503, "starting", retryable=True), is_unknown=False),
    "overloaded": Fault(_problem(503, "overloaded", retryable=True), is_unknown=False),
    "rate_limited": Fault(_problem(429, "rate_limited", retryable=True), is_unknown=False),
    "cut off": Fault(_raise(httpx.ReadError), is_unknown=True),
    "no answer in time": Fault(_raise(httpx.ReadTimeout), is_unknown=True),
    "a broken proxy": Fault(lambda _: httpx.Response(502, text="bad gateway"), is_unknown=True),
    "outcome unknown": Fault(
        _problem(503, "storage_failed", retryable=True, outcome="unknown"), is_unknown=True
    ),
}


def _methods(kind: type) -> Iterator[str]:
    """The names of the public methods of a class."""
    return (name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_"))


@pytest.mark.early
@pytest.mark.parametrize(("kind", "rows"), [(Client, STREAMS), (Group, GROUPS)])
def test_every_call_has_its_row(kind: type, rows: Mapping[str, Row]) -> None:
    assert {name.partition(",")[0] for name in rows} == {*_methods(kind)} - NOT_CALLS, "each has a row here"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ROWS)
def test_what_may_have_been_done_is_done_again_where_that_is_the_same(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the fault the gateway refuses for good: so it was asked once, or twice."""
    monkeypatch.setattr(_retrying, "PAUSE_S_MIN", 0.0)
    row, keys = ROWS[name], list[Any]()

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers.get("idempotency-key"))
        return FAULTS[fault].answer(request) if len(keys) == 1 else _problem(403, "forbidden")(request)

    transport = httpx.MockTransport(answer)
    with Client(retry_s=5, transport=transport) as client, pytest.raises(WeirError) as raised:
        row.call(client)
    is_lost = FAULTS[fault].is_unknown and bool(row.once)
    assert (len(keys), getattr(raised.value, "outcome_unknown", False)) == (1 if is_lost else 2, is_lost)
    assert len({*keys}) == 1, "what is repeated has the same key"
