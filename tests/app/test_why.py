"""Why a group delivers nothing: each reason is found, and who does what it says sees the entry move."""

import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import httpx
import pytest

from engine.why import PENDING_LOOKED_AT
from tests.app.conftest import call, store

S: Final = "/v1/streams/s"
G: Final = f"{S}/groups/g"
_REQUEST: Final = re.compile(r"(POST|PUT|PATCH) (/v1/\S+)(?: (\{.*\}))?$")


async def why(http: httpx.AsyncClient, consumer: str | None = None) -> dict[str, Any]:
    """The reasons by their words, in order."""
    answer = await http.get(f"{G}/why", params={"consumer": consumer} if consumer else None)
    assert answer.status_code == 200, answer.text
    return {one["code"]: one for one in answer.json()["reasons"]}


async def follow(http: httpx.AsyncClient, reason: dict[str, Any]) -> httpx.Response:
    """Do what it says, to the letter; what is published is an entry of the caller's."""
    method, path, body = _REQUEST.search(reason["remedies"]["rest"]).groups()  # type: ignore[union-attr]
    given = json.loads(body) if body else {"fields": {"n": "1"}} if path.endswith("/entries") else {}
    answer = await http.request(method, path, json=given)
    assert answer.status_code in (200, 201), answer.text
    return answer


async def give_back(http: httpx.AsyncClient, **options: Any) -> None:
    answer = await http.post(f"{G}/nack", json={"ids": await read(http), **options})
    assert answer.status_code == 200, answer.text


async def read(http: httpx.AsyncClient, **options: Any) -> list[str]:
    answer = await http.post(f"{G}/consumers/c/read", json=options)
    return [entry["id"] for entry in answer.json()["entries"]]


async def group(http: httpx.AsyncClient, start: str = "0", **policy: Any) -> None:
    made = await http.put(G, json={"start": start, **policy})
    assert made.status_code == 201, made.text


class Case(NamedTuple):
    """How it comes to the reason, and what is there to read once that was followed."""

    begin: Callable[[httpx.AsyncClient], Awaitable[None]]
    after: Callable[[httpx.AsyncClient, httpx.Response], Awaitable[None]]


async def _reads(http: httpx.AsyncClient, _: httpx.Response) -> None:
    assert len(await read(http)) == 1


async def _no_stream(_: httpx.AsyncClient) -> None:
    """Nothing is there."""


async def _no_group(http: httpx.AsyncClient) -> None:
    await store(http, "s", 1)


async def _group_is_next(http: httpx.AsyncClient, _: httpx.Response) -> None:
    assert "no_group" in await why(http)


async def _paused(http: httpx.AsyncClient) -> None:
    await group(http)
    await store(http, "s", 1)
    await http.patch(G, json={"paused": True})
    assert await read(http) == []


async def _too_old(http: httpx.AsyncClient) -> None:
    await group(http, max_age_ms=1_000)
    await http.post(f"{S}/entries", json={"id": f"{int(time.time() * 1000) - 9_000}-0", "fields": {"n": "1"}})


async def _at_the_end(http: httpx.AsyncClient) -> None:
    await store(http, "s", 1)
    await group(http, "$")
    assert await read(http) == []


async def _caught_up(http: httpx.AsyncClient) -> None:
    await group(http)
    await store(http, "s", 1)
    await http.post(f"{G}/ack", json={"ids": await read(http)})


async def _unread(http: httpx.AsyncClient) -> None:
    await group(http)
    await store(http, "s", 1)


async def _was_given(_: httpx.AsyncClient, answer: httpx.Response) -> None:
    assert len(answer.json()["entries"]) == 1


async def _deferred(http: httpx.AsyncClient) -> None:
    await _unread(http)
    await give_back(http, mode="fail", delay_ms=60_000)
    assert await read(http, claim_min_idle_ms=1_000) == []


async def _held(http: httpx.AsyncClient) -> None:
    await _unread(http)
    await read(http)


async def _released(http: httpx.AsyncClient) -> None:
    await _unread(http)
    await give_back(http, mode="fail")
    assert await read(http) == []


async def _key_busy(http: httpx.AsyncClient) -> None:
    await group(http, ordered_by="n")
    # Who has it is found however many others are in flight for longer.
    keys = [*range(PENDING_LOOKED_AT), "x", "x", "x"]
    rows = [{"id": f"{at}-0", "fields": {"n": str(key)}} for at, key in enumerate(keys, 1)]
    await http.post(f"{S}/entries", json={"entries": rows})
    assert len(await read(http)) == PENDING_LOOKED_AT + 1
    assert "2 entries wait for the n 'x', which 51-0 has" in (await why(http))["key_busy"]["detail"]


async def _holds_stream(http: httpx.AsyncClient) -> None:
    await http.put(S, json={"retention": {"acknowledged": True}})
    await group(http)
    await store(http, "s", 3)
    await http.post(f"{G}/ack", json={"ids": (await read(http, count=2))[1:]})


CASES: Final = {
    "holds_stream": Case(_holds_stream, _reads),
    "no_stream": Case(_no_stream, _group_is_next),
    "no_group": Case(_no_group, _reads),
    "paused": Case(_paused, _reads),
    "too_old": Case(_too_old, _reads),
    "starts_at_end": Case(_at_the_end, _reads),
    "caught_up": Case(_caught_up, _reads),
    "no_consumers": Case(_unread, _was_given),
    "deferred": Case(_deferred, _was_given),
    "held": Case(_held, _was_given),
    "key_busy": Case(_key_busy, _reads),
    "released": Case(_released, _was_given),
}


@pytest.mark.parametrize("code", CASES)
async def test_who_follows_the_remedy_sees_the_entry_move(http: httpx.AsyncClient, code: str) -> None:
    """And the reason is gone."""
    await CASES[code].begin(http)
    reason = (await why(http))[code]
    assert "/v1" not in reason["remedies"]["cli"] + reason["remedies"]["console"]
    await CASES[code].after(http, await follow(http, reason))
    found = await why(http)
    assert code not in found or found[code]["detail"] != reason["detail"]


async def test_what_was_trimmed_is_named_and_kept_from_then_on(http: httpx.AsyncClient) -> None:
    await group(http)
    await store(http, "s", 3)
    await http.post(f"{G}/ack", json={"ids": await read(http, count=1)})
    await http.post(f"{S}/trim", json={"maxlen": 1})
    await follow(http, (await why(http))["trimmed"])
    await http.patch(S, json={"retention": {"max_len": 0}})
    await http.post(f"{S}/entries", json={"fields": {"n": "4"}})
    assert len(await read(http)) == 2


async def test_a_consumer_that_never_read_is_named(http: httpx.AsyncClient) -> None:
    await _unread(http)
    reason = (await why(http, "c"))["no_consumer"]
    assert "'c'" in reason["detail"]
    assert len((await follow(http, reason)).json()["entries"]) == 1
    held = await why(http, "c")
    assert "no_consumer" not in held
    assert "is held by 'c'" in held["held"]["detail"]
    assert "held" not in await why(http, "other")


async def test_a_group_that_is_done_has_no_other_reason(http: httpx.AsyncClient) -> None:
    await _caught_up(http)
    await http.post(f"{S}/close", json={})
    assert list(await why(http)) == ["drained"]


async def test_where_nothing_is_in_the_way_it_says_so(http: httpx.AsyncClient) -> None:
    await _caught_up(http)
    await http.post(f"{S}/entries", json={"fields": {"n": "2"}})
    assert list(await why(http)) == ["ready"]
    assert len((await follow(http, (await why(http))["ready"])).json()["entries"]) == 1


async def test_the_command_says_it_in_words_of_redis(http: httpx.AsyncClient) -> None:
    """Which do what they say, too."""
    await _paused(http)
    (code, detail, remedy), *_ = await call(http, "WEIR.WHY", "s", "g")
    assert (code, remedy) == ("paused", "resume it: WEIR.RESUME s g")
    assert "paused" in detail
    await call(http, *remedy.partition(": ")[2].split())
    assert len(await read(http)) == 1
    assert "syntax" in await call(http, "WEIR.WHY", "s", "g", "c", "d")
