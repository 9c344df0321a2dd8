"""Rate limits at every API: what costs what, what a refusal says, who is limited with whom."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.main import ROUTES, App, create_app
from app.settings import Settings
from engine import Engine
from engine.commands.types import XLen
from tests.app.auth.callers import ROOT, app_with, client, made
from tests.app.conftest import BASE, app_on, calling
from tests.app.conversing import SocketWorld
from tests.app.sockets import talking
from tests.engine.clocks import HandClock
from tests.engine.running import engine_of
from tests.server import Server

ENTRIES_BODY = {"entries": [{"fields": {"a": "1"}}] * 4}
AS_JSON = {"content-type": "application/json"}
XADD = ["XADD", "s", "*", "a", "1"]
# One request a second, ten at once.
SLOW: dict[str, Any] = {"rate_requests": "1/s burst 10"}


engine = engine_of()


def limited(engine: Engine, clock: HandClock, **set_to: Any) -> App:
    settings = Settings(log_requests="none", **set_to)
    return app_on(engine, settings, clock)


def left(answer: httpx.Response) -> int:
    """How many requests are left, as the answer says it."""
    found = re.match(r'"requests";r=(\d+);t=\d+', answer.headers["ratelimit"])
    assert found is not None, answer.headers
    return int(found[1])


async def test_messages_of_durable_streams_count_as_entries(engine: Engine) -> None:
    """Those that a stream is made with too; what counts more than the burst waits for all of it."""
    async with calling(limited(engine, HandClock(), **SLOW)) as http:
        made = await http.put("/v1/stream/d", headers=AS_JSON, content="[1,2,3]")
        assert (made.status_code, left(made)) == (201, 7)
        added = await http.post("/v1/stream/d", headers=AS_JSON, content="[4,5,6,7]")
        assert (added.status_code, left(added)) == (204, 3)
        refused = await http.post("/v1/stream/d", headers=AS_JSON, content="[8,9,10,11]")
        assert (refused.status_code, left(refused)) == (429, 3)
        assert (await http.get("/v1/stream/d")).json() == [1, 2, 3, 4, 5, 6, 7]


async def test_requests_beyond_the_burst_are_429_until_there_is_room(engine: Engine) -> None:
    clock = HandClock()
    async with calling(limited(engine, clock, **SLOW)) as http:
        answers = [await http.get("/v1/streams/s/entries") for _ in range(11)]
        assert [answer.status_code for answer in answers] == [200] * 10 + [429]
        assert [left(answer) for answer in answers] == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]
        refused = answers[-1]
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["ratelimit-policy"] == '"requests";q=10;w=10'
        assert refused.headers["ratelimit"] == '"requests";r=0;t=10'
        problem = refused.json()
        assert (problem["code"], problem["limit"], problem["retry_after_ms"]) == (
            "rate_limited",
            "requests",
            1_000,
        )
        assert problem["retryable"] is True
        clock.pass_ms(999)
        assert (await http.get("/v1/streams/s/entries")).status_code == 429
        clock.pass_ms(1)
        assert (await http.get("/v1/streams/s/entries")).status_code == 200
        assert (await http.get("/v1/streams/s/entries")).status_code == 429


async def test_without_a_limit_answers_show_none(engine: Engine) -> None:
    async with calling(limited(engine, HandClock())) as http:
        answers = [await http.get("/v1/streams/s/entries") for _ in range(50)]
    assert {answer.status_code for answer in answers} == {200}
    assert not any("ratelimit" in name for name in answers[-1].headers)


COSTS = {
    "an entry": (1, "POST", "/v1/streams/s/entries", {"fields": {"a": "1"}}),
    "a batch": (4, "POST", "/v1/streams/s/entries", ENTRIES_BODY),
    "a batch of one": (1, "POST", "/v1/streams/s/entries", {"entries": [{"fields": {"a": "1"}}]}),
    "many streams": (
        3,
        "POST",
        "/v1/publish",
        {"streams": {"a": [{"fields": {"a": "1"}}], "b": [{"fields": {"a": "1"}}] * 2}},
    ),
    "a command": (1, "POST", "/v1/commands", XADD),
    "a pipeline": (3, "POST", "/v1/commands/pipeline", [XADD] * 3),
    "a transaction": (2, "POST", "/v1/commands/multi-exec", [XADD] * 2),
    "a read": (1, "GET", "/v1/streams/s/entries?count=100", None),
    "a read that waits": (1, "GET", "/v1/streams/s/entries?after=9-0&wait=1", None),
    "a read of many": (1, "POST", "/v1/read", {"streams": {"a": "0", "b": "0"}}),
    "what is refused": (1, "GET", "/v1/streams/none", None),
    "what is malformed": (1, "POST", "/v1/streams/s/entries", {"entries": 1}),
}


@pytest.mark.parametrize("what", COSTS)
async def test_what_a_request_costs(what: str) -> None:
    """A batch costs its entries, a pipeline its commands, everything else one."""
    cost, method, path, body = COSTS[what]
    clock = HandClock()
    async with Engine.open(None, clock=clock) as engine:
        app = limited(engine, clock, **SLOW)
        async with calling(app, "192.0.2.1") as http:
            answering = asyncio.create_task(http.request(method, path, json=body))
            if "wait" in path:
                for _ in range(50):
                    await asyncio.sleep(0.001)
                    clock.pass_ms(1)
            answer = await answering
            again = await http.get("/v1/streams/s/entries")
        assert left(answer) == 10 - cost, answer.text
        assert left(again) == 9 - cost


async def test_a_batch_that_there_is_no_room_for_changes_and_costs_nothing(engine: Engine) -> None:
    clock = HandClock()
    async with calling(limited(engine, clock, **SLOW)) as http:
        for path, body in (
            ("/v1/streams/s/entries", {"entries": [{"fields": {"a": "1"}}] * 9}),
            ("/v1/publish", {"streams": {"s": [{"fields": {"a": "1"}}] * 9}}),
            ("/v1/commands/pipeline", [XADD] * 9),
            ("/v1/commands/multi-exec", [XADD] * 9),
        ):
            first = await http.get("/v1/streams/s/entries")
            second = await http.get("/v1/streams/s/entries")
            refused = await http.post(path, json=body)
            assert (refused.status_code, refused.json()["retry_after_ms"]) == (429, 1_000), path
            assert (left(first), left(second), left(refused)) == (9, 8, 8)
            assert first.json()["entries"] == second.json()["entries"] == []
            clock.pass_ms(10_000)


async def test_a_batch_larger_than_the_burst_is_stored_and_then_waited_for(engine: Engine) -> None:
    clock = HandClock()
    async with calling(limited(engine, clock, **SLOW)) as http:
        batch = {"entries": [{"fields": {"a": "1"}}] * 30}
        assert (await http.post("/v1/streams/s/entries", json=batch)).status_code == 201
        refused = await http.get("/v1/streams/s/entries")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "21")
        assert refused.headers["ratelimit"] == '"requests";r=0;t=30'
        clock.pass_ms(21_000)
        assert (await http.get("/v1/streams/s/entries")).status_code == 200


async def test_bytes_of_requests_and_answers_are_counted(engine: Engine) -> None:
    clock = HandClock()
    app = limited(engine, clock, rate_bytes="1000/s burst 10000")
    async with calling(app, "192.0.2.1") as http:
        entry = json.dumps({"fields": {"a": "x" * 6_000}}).encode()
        stored = await http.post("/v1/streams/s/entries", content=entry, headers=AS_JSON)
        assert stored.headers["ratelimit-policy"] == '"bytes";q=10000;qu="content-bytes";w=10'
        used = len(entry) + len(stored.content)
        assert stored.headers["ratelimit"].startswith(f'"bytes";r={10_000 - used};')
        refused = await http.post("/v1/streams/s/entries", content=entry, headers=AS_JSON)
        assert (refused.status_code, refused.json()["limit"]) == (429, "bytes")
        assert refused.headers["retry-after"] == "3"
        # An answer is counted once it is made: the caller may get into debt with it, and waits then.
        page = await http.get("/v1/streams/s/entries")
        assert page.status_code == 200
        debt = used + len(page.content) - 10_000
        refused = await http.get("/v1/streams/s/entries")
        assert refused.status_code == 429
        assert refused.json()["retry_after_ms"] == pytest.approx(debt, abs=2)
        clock.pass_ms(debt + 1)
        assert (await http.get("/v1/streams/s")).status_code == 200


async def test_a_body_without_a_length_is_counted_when_it_is_here(engine: Engine) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"fields":{"a":"'
        yield b"x" * 3_000 + b'"}}'

    app = limited(engine, HandClock(), rate_bytes="1000/s burst 4000")
    async with calling(app, "192.0.2.1") as http:
        stored = await http.post("/v1/streams/s/entries", content=pieces(), headers=AS_JSON)
        assert stored.status_code == 201
        assert (
            await http.post("/v1/streams/s/entries", content=pieces(), headers=AS_JSON)
        ).status_code == 429


async def test_an_export_is_slowed_down_to_the_rate(engine: Engine) -> None:
    """It is not refused halfway: what its caller owes is waited for after each piece."""
    app = limited(engine, HandClock(), rate_bytes="1000/s")
    async with calling(app, "192.0.2.1") as http:
        for number in range(3):
            await http.post("/v1/streams/s/entries", json={"fields": {"a": str(number)}})
        exported = await http.get("/v1/streams/s/entries", headers={"accept": "application/x-ndjson"})
        assert len(exported.text.splitlines()) == 3
        after = await http.get("/v1/streams/s")
    first, last = (int(re.search(r"r=(\d+)", one.headers["ratelimit"])[1]) for one in (exported, after))  # type: ignore[index]
    assert first - last == pytest.approx(len(exported.content) + len(after.content), abs=2)


async def test_callers_without_a_token_are_limited_by_address(engine: Engine) -> None:
    app = limited(engine, HandClock(), **SLOW)
    async with (
        calling(app, "192.0.2.1") as one,
        calling(app, "2001:db8::1") as two,
        calling(app, "2001:db8::2") as beside,
    ):
        for http in (one, two):
            assert [(await http.get("/v1/streams")).status_code for _ in range(11)] == [200] * 10 + [429]
        assert (await beside.get("/v1/streams")).status_code == 429


async def test_pages_and_probes_are_not_counted(engine: Engine) -> None:
    app = limited(engine, HandClock(), rate_requests="1/s")
    async with calling(app, "192.0.2.1") as http:
        for _ in range(5):
            for path in ("/healthz/live", "/healthz/ready", "/v1", "/errors/rate-limited"):
                assert (await http.get(path)).status_code == 200


async def test_a_token_has_buckets_of_its_own_wherever_it_comes_from(engine: Engine, tmp_path: Path) -> None:
    tokens = [made("read:*"), made("read:*")]
    app = await app_with(engine, tmp_path, *tokens, clock=HandClock(), **SLOW)
    async with client(app, tokens[0].text) as one, client(app, tokens[1].text) as two:
        assert [(await one.get("/v1/streams")).status_code for _ in range(11)] == [200] * 10 + [429]
        pages = {"origin": "http://localhost"}
        assert (await one.get("/v1/streams", headers=pages)).status_code == 429
        assert (await two.get("/v1/streams")).status_code == 200


async def test_a_grants_rate_takes_the_place_of_the_settings(engine: Engine, tmp_path: Path) -> None:
    fast = made('{"actions":["read"],"rate":{"requests_per_s":2,"requests_burst":20}}')
    free = made('{"actions":["read"],"rate":{}}')
    app = await app_with(engine, tmp_path, fast, free, clock=HandClock(), **SLOW)
    async with client(app, fast.text) as http:
        answers = [await http.get("/v1/streams") for _ in range(21)]
        assert [answer.status_code for answer in answers] == [200] * 20 + [429]
        assert answers[0].headers["ratelimit-policy"] == '"requests";q=20;w=10'
    async with client(app, free.text) as http:
        assert {(await http.get("/v1/streams")).status_code for _ in range(50)} == {200}


# What no operation answers: by its status.
UNANSWERED: Final = {
    "no path": (404, httpx.Request("GET", f"{BASE}/nothing")),
    "no path of streams": (404, httpx.Request("POST", f"{BASE}/v1/streams/s/none/none/none")),
    "a slash at the end": (404, httpx.Request("GET", f"{BASE}/v1/streams/")),
    "HEAD of no path": (404, httpx.Request("HEAD", f"{BASE}/nothing")),
    "no name": (400, httpx.Request("GET", f"{BASE}/v1/streams/%ff/entries")),
    "a control character": (400, httpx.Request("POST", f"{BASE}/v1/streams/a%00/entries")),
    "another origin": (403, httpx.Request("GET", f"{BASE}/v1/streams", headers={"origin": "http://evil"})),
    "another host": (403, httpx.Request("GET", f"{BASE}/v1/streams", headers={"host": "evil"})),
    **{
        f"another method of {path}": (405, httpx.Request("PATCH", BASE + path.replace("{stream}", "s")))
        for path in sorted({one.template for one in ROUTES})
        if not {"group", "consumer", "id"} & {*re.findall(r"{(\w+)", path)}
        and not any(one.template == path and one.method == "PATCH" for one in ROUTES)
    },
}


@pytest.mark.parametrize("name", UNANSWERED)
async def test_what_no_operation_answers_counts_for_its_caller(
    engine: Engine, tmp_path: Path, name: str
) -> None:
    """Otherwise nothing would limit a flood of it: a stranger's by the address, a caller's by the token."""
    status, asked = UNANSWERED[name]
    app = await app_with(engine, tmp_path, token := made("read:*"), clock=HandClock(), **SLOW)
    async with client(app, token.text) as known, client(app, None) as stranger:
        assert left(await known.get("/v1/streams")) == 9
        # A caller is known by the token at an origin.
        callers = [(stranger, 10), (known, 9)][: 1 if "origin" in asked.headers else 2]
        for caller, before in callers:
            headers = {**caller.headers, **asked.headers}
            one = partial(caller.request, asked.method, asked.url, headers=headers)
            answers = [await one() for _ in range(before + 1)]
            assert [answer.status_code for answer in answers] == [status] * before + [429]
            assert [left(answer) for answer in answers] == [*range(before - 1, -1, -1), 0]
            assert answers[-1].headers["retry-after"] == "1"
        assert (await known.get("/v1/streams")).status_code == (429 if len(callers) == 2 else 200)


async def test_a_flood_of_wrong_tokens_is_refused_unseen(engine: Engine, tmp_path: Path) -> None:
    """A caller who is known already is served from the same address meanwhile."""
    clock, token = HandClock(), made("read:*")
    app = await app_with(
        engine,
        tmp_path,
        token,
        clock=clock,
        rate_failures="1/s burst 3",
    )
    async with client(app, token.text) as known, client(app, None) as wrong:
        assert (await known.get("/v1/streams")).status_code == 200
        answers = [
            await wrong.get("/v1/streams", headers={"authorization": f"Bearer {made('read:*').text}"})
            for _ in range(4)
        ]
        assert [answer.status_code for answer in answers] == [401, 401, 401, 429]
        assert answers[-1].json()["limit"] == "failures"
        assert answers[-1].headers["retry-after"] == "1"
        assert (await known.get("/v1/streams")).status_code == 200
        # No credentials are no wrong ones.
        assert (await wrong.get("/v1/streams")).status_code == 401
        new = {"authorization": f"Bearer {ROOT}"}
        assert (await wrong.get("/v1/streams", headers=new)).status_code == 429
        assert (await wrong.get("/v1/streams/s/tail?ticket=x")).status_code == 429
        clock.pass_ms(1_000)
        # What is right is not counted.
        for _ in range(5):
            assert (await wrong.get("/v1/streams", headers=new)).status_code == 200
        assert (await wrong.get("/v1/streams/s/tail?ticket=x")).status_code == 401


async def test_a_flood_of_wrong_tokens_shuts_out_none_that_were_known_when_others_end(
    engine: Engine, tmp_path: Path
) -> None:
    """One that is revoked, or has other grants from then on, is no more known than any other."""
    known, ended = made("read:*"), made("read:*")
    settings: dict[str, Any] = {"clock": HandClock(), "rate_failures": "1/s burst 3"}
    app = await app_with(engine, tmp_path, known, ended, **settings)

    async def statuses(*texts: str) -> list[int]:
        async with client(app, None) as http:
            each = [{"authorization": f"Bearer {text}"} for text in texts]
            return [(await http.get("/v1/streams", headers=headers)).status_code for headers in each]

    assert await statuses(ROOT, known.text, ended.text) == [200, 200, 200]
    assert await statuses(*[made("read:*").text for _ in range(4)]) == [401, 401, 401, 429]
    async with client(app, ROOT) as root:
        revoked = await root.post("/v1/admin/revocations", json={"token": ended.token.id})
        assert revoked.status_code in (200, 201), revoked.text
    for _ in range(2):
        assert await statuses(ROOT, known.text, ended.text) == [200, 200, 429]


# ---- sockets


def metered(**set_to: str) -> tuple[SocketWorld, HandClock]:
    clock, world = HandClock(), SocketWorld()
    limiter = create_app(Settings(**set_to), clock).gateway.limits.rates  # type: ignore[arg-type]
    assert limiter is not None
    world.session.meter = limiter.meter(world.session.table.principal, "192.0.2.1")
    return world, clock


def test_frames_beyond_the_rate_are_refused_with_their_ref() -> None:
    world, clock = metered(**SLOW)
    assert [world.say("ping", ref=n)[0]["op"] for n in range(10)] == ["pong"] * 10
    (refused,) = world.say("ping", ref="r")
    assert (refused["op"], refused["ref"]) == ("error", "r")
    assert refused["problem"]["code"] == "rate_limited"
    assert refused["problem"]["retry_after_ms"] == 1_000
    clock.pass_ms(1_000)
    assert world.say("ping")[0]["op"] == "pong"
    assert world.closed is None


def test_a_publish_frame_costs_its_entries() -> None:
    world, _ = metered(**SLOW)
    assert world.say("publish", stream="s", entries=[{"fields": {"a": "1"}}] * 8)[0]["op"] == "ok"
    (refused,) = world.say("publish", stream="s", entries=[{"fields": {"a": "1"}}] * 3)
    assert refused["problem"]["code"] == "rate_limited"
    assert world.say("publish", stream="s", entries=[{"fields": {"a": "1"}}] * 2)[0]["op"] == "ok"
    assert world.run(XLen(stream="s")) == 10


def test_the_bytes_of_a_frame_count() -> None:
    world, _ = metered(rate_bytes="1/s burst 500")
    assert world.say("publish", stream="s", fields={"a": "x" * 400})[0]["op"] == "ok"
    (refused,) = world.say("publish", stream="s", fields={"a": "x" * 400})
    assert refused["problem"]["limit"] == "bytes"


def test_a_socket_that_goes_on_all_the_same_is_closed() -> None:
    world, clock = metered(**SLOW)
    for _ in range(10 + 999):
        world.say("ping")
    clock.pass_ms(1_000)
    assert world.say("ping")[0]["op"] == "pong"
    for _ in range(999):
        world.say("ping")
    assert not world.session.table.closed
    world.say("ping")
    assert world.closed == (4005, "rate_limited")


def test_sockets_and_requests_of_one_caller_share_its_buckets(tmp_path: Path) -> None:
    options = ("--set", "rate_requests=1/s burst 20")
    with Server(tmp_path / "data", *options) as server, httpx.Client(base_url=server.url) as http:
        with talking(server) as one:
            for _ in range(15):
                assert one.ask("ping")["op"] == "pong"
        # The handshake is a request too.
        statuses = [http.get("/v1/streams").status_code for _ in range(10)]
    assert statuses[:4] == [200] * 4
    assert statuses[-1] == 429
