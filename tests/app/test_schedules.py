"""Entries for later over REST, the command API and in tokens: what is answered, and who may."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from app.auth.grants import Action, Grant
from app.auth.principal import Principal
from engine import EngineProtocol, entries
from engine.commands.schedule_commands import NewSchedule, SetSchedule
from engine.recurrence import Rule
from tests.app.conftest import call, refusal, store
from tests.engine.asking import reply_to

STREAM: Final = "/v1/streams/s"
ENTRIES: Final = STREAM + "/entries"
SCHEDULES: Final = STREAM + "/schedules"
ENTRY: Final = {"fields": {"n": "1"}}


def place(answer: httpx.Response) -> str:
    assert answer.status_code == 422, answer.text
    return str(next(iter(answer.json()["errors"][0].values())))


async def fields(http: httpx.AsyncClient) -> list[dict[str, str]]:
    return [entry["fields"] for entry in (await http.get(ENTRIES)).json()["entries"]]


async def until_there_are(http: httpx.AsyncClient, count: int) -> list[dict[str, str]]:
    for _ in range(200):
        if len(found := await fields(http)) >= count:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("they never came")


# ---- publishing


async def test_an_entry_for_later_is_answered_with_its_name_and_time(http: httpx.AsyncClient) -> None:
    answer = await http.post(ENTRIES + "?delay_ms=60000", json=ENTRY)
    assert (answer.status_code, answer.headers["weir-durability"]) == (202, "os")
    given = answer.json()
    assert given["schedule"].startswith("sch_")
    at = datetime.fromisoformat(given["deliver_at"])
    assert timedelta(seconds=50) < at - datetime.now(UTC) <= timedelta(seconds=60)
    assert await fields(http) == []
    shown = (await http.get(f"{SCHEDULES}/{given['schedule']}")).json()
    assert shown == {
        "name": given["schedule"], "next_at": given["deliver_at"], "at": given["deliver_at"], "entry": ENTRY,
    }  # fmt: skip


async def test_it_is_appended_at_its_time(http: httpx.AsyncClient) -> None:
    await http.post(ENTRIES + "?delay_ms=20", json=ENTRY)
    assert await until_there_are(http, 1) == [{"n": "1"}]
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    await http.post(ENTRIES, params={"deliver_at": at}, json={"fields": {"n": "2"}})
    assert (await until_there_are(http, 2))[1] == {"n": "2"}


async def test_a_batch_for_later_is_a_schedule_each(http: httpx.AsyncClient) -> None:
    answer = await http.post(ENTRIES + "?delay_ms=60000", json={"entries": [ENTRY, ENTRY]})
    given = answer.json()
    assert (answer.status_code, given["count"], len(given["scheduled"])) == (202, 2, 2)
    page = (await http.get(SCHEDULES)).json()
    assert sorted(one["name"] for one in page["schedules"]) == sorted(
        one["schedule"] for one in given["scheduled"]
    )


async def test_a_name_replaces_itself(http: httpx.AsyncClient) -> None:
    for value in "12":
        await http.post(ENTRIES + "?delay_ms=60000&schedule=reminder", json={"fields": {"n": value}})
    (one,) = (await http.get(SCHEDULES)).json()["schedules"]
    assert (one["name"], one["entry"]["fields"]) == ("reminder", {"n": "2"})


async def test_cancel_and_publish_are_one(http: httpx.AsyncClient) -> None:
    await http.post(ENTRIES + "?delay_ms=60000&schedule=timeout", json=ENTRY)
    paid = ENTRIES + "?cancel_schedule=timeout&required=true"
    answer = await http.post(paid, json=ENTRY)
    assert (answer.status_code, answer.json()["cancelled"]) == (201, True)
    assert refusal(await http.post(paid, json=ENTRY)) == (412, "schedule_gone")
    anyway = await http.post(ENTRIES + "?cancel_schedule=timeout", json=ENTRY)
    assert (anyway.status_code, anyway.json()["cancelled"]) == (201, False)
    assert len(await fields(http)) == 2


@pytest.mark.parametrize(
    ("query", "headers", "body", "where"),
    [
        ("delay_ms=1&deliver_at=2030-01-01T00:00:00Z", {}, ENTRY, "delay_ms"),
        ("schedule=a", {}, ENTRY, "schedule"),
        ("required=true", {}, ENTRY, "required"),
        ("delay_ms=1&maxlen=1", {}, ENTRY, "maxlen"),
        ("delay_ms=1&close=true", {}, ENTRY, "close"),
        ("delay_ms=1", {"Idempotency-Key": "k"}, ENTRY, "Idempotency-Key"),
        ("delay_ms=1", {"If-Match": '"0-0"'}, ENTRY, "If-Match"),
        ("delay_ms=1", {}, {"id": "1-0", **ENTRY}, "/id"),
        ("delay_ms=1&schedule=a", {}, {"entries": [ENTRY, ENTRY]}, "schedule"),
    ],
)
async def test_what_goes_with_no_entry_for_later_is_refused(
    http: httpx.AsyncClient, query: str, headers: dict[str, str], body: object, where: str
) -> None:
    answer = await http.post(f"{ENTRIES}?{query}", json=body, headers=headers)
    assert place(answer) == where
    assert (await http.get(SCHEDULES)).status_code == 404


# ---- entries that say themselves when they are appended


def single(**later: object) -> dict[str, object]:
    return {**ENTRY, **later}


@pytest.mark.parametrize(
    ("media", "body"),
    [
        ("application/json", b'{"fields":{"n":"1"},"delay_ms":60000,"schedule":"a"}'),
        (
            "application/json",
            b'{"entries":[{"fields":{"n":"1"},"deliver_at":"2035-01-01T00:00:00Z","schedule":"a"}]}',
        ),
        ("application/json", b'[{"fields":{"n":"1"},"delay_ms":6e4,"schedule":"a"}]'),
        ("application/x-ndjson", b'{"fields":{"n":"1"},"delay_ms":60000,"schedule":"a"}\n'),
    ],
)
async def test_an_entry_says_itself_when_it_is_appended(
    http: httpx.AsyncClient, media: str, body: bytes
) -> None:
    answer = await http.post(ENTRIES, content=body, headers={"Content-Type": media})
    assert answer.status_code == 202, answer.text
    (one,) = answer.json().get("scheduled", [answer.json()])
    assert one["schedule"] == "a"
    assert (await http.get(SCHEDULES + "/a")).json()["entry"] == ENTRY
    assert await fields(http) == []


async def test_of_a_list_some_are_published_and_some_scheduled(http: httpx.AsyncClient) -> None:
    rows = [ENTRY, single(delay_ms=60_000, schedule="a"), {"fields": {"n": "2"}}, single(delay_ms=90_000)]
    answer = await http.post(ENTRIES + "?maxlen=10", json={"entries": rows}, headers={"If-Match": '"0-0"'})
    given = answer.json()
    assert (answer.status_code, given["count"], len(given["ids"])) == (201, 2, 2)
    assert [one["index"] for one in given["scheduled"]] == [1, 3]
    assert given["scheduled"][0]["schedule"] == "a"
    assert await fields(http) == [{"n": "1"}, {"n": "2"}]
    assert len((await http.get(SCHEDULES)).json()["schedules"]) == 2


async def test_of_a_list_those_for_now_keep_their_ids(http: httpx.AsyncClient) -> None:
    """What stands between them and comes later has none."""
    rows = [single(delay_ms=60_000), {**ENTRY, "id": "5-0"}, single(delay_ms=60_000), {**ENTRY, "id": "6-0"}]
    assert (await http.post(ENTRIES, json={"entries": rows})).json()["ids"] == ["5-0", "6-0"]


async def test_an_entry_wins_over_the_query(http: httpx.AsyncClient) -> None:
    rows = [single(deliver_at="2035-01-01T00:00:00Z"), single(schedule="named"), ENTRY]
    given = (await http.post(ENTRIES + "?deliver_at=2034-01-01T00:00:00Z", json=rows)).json()
    assert [one["deliver_at"][:4] for one in given["scheduled"]] == ["2035", "2034", "2034"]
    assert given["scheduled"][1]["schedule"] == "named"


@pytest.mark.parametrize(
    ("query", "headers", "body", "where"),
    [
        ("", {}, single(delay_ms=1, deliver_at="2030-01-01T00:00:00Z"), "/delay_ms"),
        ("", {}, single(schedule="a"), "/schedule"),
        ("", {}, [ENTRY, single(schedule="a")], "/1/schedule"),
        ("", {}, single(delay_ms="1"), "/delay_ms"),
        ("", {}, single(delay_ms=1.5), "/delay_ms"),
        ("", {}, single(delay_ms=400_000_000_000), "/delay_ms"),
        ("", {}, {"entries": [ENTRY, single(deliver_at="soon")]}, "/entries/1/deliver_at"),
        ("", {}, single(deliver_at=1), "/deliver_at"),
        ("", {}, {"entries": [{"id": "1-0", **ENTRY}, single(delay_ms=1, id="2-0")]}, "/entries/1/id"),
        ("close=true", {}, [ENTRY, single(delay_ms=1)], "close"),
        ("maxlen=1", {}, single(delay_ms=1), "maxlen"),
        ("", {"Idempotency-Key": "k"}, [ENTRY, single(delay_ms=1)], "Idempotency-Key"),
        ("", {"If-Match": '"0-0"'}, single(delay_ms=1), "If-Match"),
    ],
)
async def test_an_entry_with_a_wrong_time_refuses_all(
    http: httpx.AsyncClient, query: str, headers: dict[str, str], body: object, where: str
) -> None:
    answer = await http.post(f"{ENTRIES}?{query}", json=body, headers=headers)
    assert place(answer) == where
    assert (await http.get(STREAM)).status_code == 404


async def test_a_list_is_published_and_scheduled_or_neither(http: httpx.AsyncClient) -> None:
    rows = [ENTRY, single(delay_ms=1, schedule="a"), single(delay_ms=1, schedule="a")]
    assert (await http.post(ENTRIES, json=rows)).status_code == 422
    assert (await http.get(STREAM)).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "where"),
    [
        ("POST", "/v1/publish", {"streams": {"s": [single(delay_ms=1)]}}, "/streams/s/0/delay_ms"),
        ("POST", STREAM + "/close", {"entry": single(delay_ms=1)}, "/entry/delay_ms"),
        ("PUT", SCHEDULES + "/a", {"entry": single(delay_ms=1), "in_ms": 1}, "/entry"),
    ],
)
async def test_where_an_entry_has_no_time_of_its_own_it_is_refused(
    http: httpx.AsyncClient, method: str, path: str, body: object, where: str
) -> None:
    assert place(await http.request(method, path, json=body)) == where
    assert (await http.get(STREAM)).status_code == 404


async def test_a_missing_stream_is_made_unless_that_is_forbidden(http: httpx.AsyncClient) -> None:
    answer = await http.post(ENTRIES + "?delay_ms=60000&nomkstream=true", json=ENTRY)
    assert refusal(answer) == (404, "no_stream")
    await http.post(ENTRIES + "?delay_ms=60000", json=ENTRY)
    assert (await http.get(STREAM)).json()["length"] == 0


# ---- the resource


async def test_a_put_may_be_repeated(http: httpx.AsyncClient) -> None:
    """As a program does it whenever it starts."""
    wanted = {"entry": ENTRY, "every_ms": 60_000}
    first = await http.put(SCHEDULES + "/tick", json=wanted)
    assert (first.status_code, first.headers["location"]) == (201, "/v1/streams/s/schedules/tick")
    shown = first.json()
    assert shown == {"name": "tick", "next_at": shown["next_at"], "entry": ENTRY, "every_ms": 60_000}
    again = await http.put(SCHEDULES + "/tick", json=wanted)
    assert (again.status_code, again.json()) == (200, shown)
    other = await http.put(SCHEDULES + "/tick", json={**wanted, "every_ms": 90_000})
    assert (other.status_code, other.json()["every_ms"]) == (200, 90_000)
    new = await http.put(SCHEDULES + "/tick", json=wanted, headers={"If-None-Match": "*"})
    assert refusal(new) == (412, "schedule_exists")
    tagged = await http.put(SCHEDULES + "/tick", json=wanted, headers={"If-None-Match": '"1"'})
    assert refusal(tagged) == (422, "invalid")


async def test_all_of_a_rule_is_shown(http: httpx.AsyncClient) -> None:
    rule = {
        "cron": "30 2 * * *", "tz": "Europe/Berlin", "until": "2030-01-01T00:00:00.000Z", "count": 5,
        "missed": "skip", "expires_in_ms": 9_000,
    }  # fmt: skip
    answer = await http.put(SCHEDULES + "/nightly", json={"entry": ENTRY, **rule})
    shown = answer.json()
    assert shown == {"name": "nightly", "next_at": shown["next_at"], "entry": ENTRY, "left": 5, **rule}
    assert (await http.get(SCHEDULES + "/nightly")).json() == shown


async def test_pages_go_on_by_time_and_by_name(http: httpx.AsyncClient) -> None:
    for name, ms in (("b", 60_000), ("a/1", 90_000), ("c", 60_000)):
        target = SCHEDULES + "/" + name.replace("/", "%2F")
        assert (await http.put(target, json={"entry": ENTRY, "in_ms": ms})).status_code == 201
    found: dict[str, list[str]] = {}
    for by in ("time", "name"):
        after: str | None = ""
        while after is not None:
            params = {"by": by, "limit": "1", **({"after": after} if after else {})}
            page = (await http.get(SCHEDULES, params=params)).json()
            found.setdefault(by, []).extend(one["name"] for one in page["schedules"])
            after = page["next"]
    assert found == {"time": ["b", "c", "a/1"], "name": ["a/1", "b", "c"]}
    soon = (datetime.now(UTC) + timedelta(seconds=75)).isoformat().replace("+00:00", "Z")
    bounds = [
        [one["name"] for one in (await http.get(SCHEDULES, params={which: soon})).json()["schedules"]]
        for which in ("before", "after")
    ]
    assert bounds == [["b", "c"], ["a/1"]]
    assert place(await http.get(SCHEDULES, params={"before": "soon"})) == "before"


async def test_all_schedules_are_listed_over_their_streams(http: httpx.AsyncClient) -> None:
    """By time, then by stream and name, in pages of any size; what is late comes first, what waits without an
    end last.
    """
    for stream, name, at in (
        *(("b", "x:1", "2035-01-01T00:00:00Z"), ("b", "a", "2035-01-01T00:00:02Z")),
        *(("a:2", "y", "2035-01-01T00:00:00Z"), ("a:2", "z", "2035-01-01T00:00:00Z")),
        *(("c", "w", "2035-01-01T00:00:01Z"), ("a:2", "late", "2034-12-31T23:59:59Z")),
    ):
        path = f"/v1/streams/{stream}/schedules/{name}"
        await http.put(path, json={"entry": {"fields": {"n": "1"}}, "at": at})
    await http.patch("/v1/streams/b/schedules/a", json={"paused": True})
    await http.post("/v1/streams/none/entries", json={"fields": {"n": "1"}})
    order = [("a:2", "late"), ("a:2", "y"), ("a:2", "z"), ("b", "x:1"), ("c", "w"), ("b", "a")]
    for limit in range(1, 8):
        found: list[tuple[str, str]] = []
        after: str | None = ""
        while after is not None:
            query = {"limit": str(limit)} | ({"after": after} if after else {})
            page = (await http.get("/v1/schedules", params=query)).json()
            assert len(page["schedules"]) <= limit
            found += [(one["stream"], one["name"]) for one in page["schedules"]]
            after = page["next"]
        assert found == order, limit
    between = {"after": "2034-12-31T23:59:59Z", "before": "2035-01-01T00:00:01Z"}
    page = (await http.get("/v1/schedules", params=between)).json()
    assert [one["name"] for one in page["schedules"]] == ["y", "z", "x:1"]
    wrong = await http.get("/v1/schedules", params={"after": "soon"})
    assert (wrong.status_code, wrong.json()["errors"][0]["parameter"]) == (422, "after")


async def test_of_all_schedules_those_are_shown_whose_stream_may_be_read(
    http: httpx.AsyncClient, caller: Any
) -> None:
    """A page is full of them, also where there are others."""
    for stream in ("a", "b", "c"):
        await http.put(
            f"/v1/streams/{stream}/schedules/x", json={"entry": {"fields": {"n": "1"}}, "in_ms": 9_000}
        )
    caller(Action.READ, streams=("b", "c"))
    page = (await http.get("/v1/schedules", params={"limit": "2"})).json()
    assert ([one["stream"] for one in page["schedules"]], page["next"]) == (["b", "c"], None)
    caller(streams=())
    assert (await http.get("/v1/schedules")).status_code == 403


async def test_a_page_of_all_schedules_ends_by_its_bytes(
    http: httpx.AsyncClient, engine: EngineProtocol
) -> None:
    """And goes on behind it, with what another stream has in between."""
    start_ms = 2_000_000_000_000
    for number in range(12):
        for place, (stream, size) in enumerate((("a", 900_000), ("b", 1))):
            rule = Rule(at_ms=start_ms + 2 * number + place)
            new = NewSchedule(f"{number:02}", entries.body([("n", "x" * size)]), rule)
            await reply_to(engine, SetSchedule(stream=stream, schedule=new))
    found: list[str] = []
    pages = 0
    after: str | None = ""
    while after is not None:
        page = (await http.get("/v1/schedules", params={"after": after} if after else {})).json()
        found += [f"{one['name']}{one['stream']}" for one in page["schedules"]]
        pages, after = pages + 1, page["next"]
    assert found == [f"{number:02}{stream}" for number in range(12) for stream in "ab"]
    assert pages == 2


async def test_one_is_fired_and_cancelled(http: httpx.AsyncClient) -> None:
    await http.put(SCHEDULES + "/tick", json={"entry": ENTRY, "every_ms": 60_000})
    fired = await http.post(SCHEDULES + "/tick/fire")
    assert (fired.status_code, await fields(http)) == (201, [{"n": "1"}])
    assert fired.headers["location"] == f"{ENTRIES}/{fired.json()['id']}"
    assert (await http.delete(SCHEDULES + "/tick")).status_code == 204
    for answer in (
        await http.delete(SCHEDULES + "/tick"),
        await http.get(SCHEDULES + "/tick"),
        await http.post(SCHEDULES + "/tick/fire"),
    ):
        assert refusal(answer) == (404, "no_schedule")


async def test_a_rule_may_have_a_name(http: httpx.AsyncClient) -> None:
    """It is shown as it was given, and is the same rule when it is given again."""
    wanted = {"entry": ENTRY, "cron": "@daily", "tz": "Europe/Berlin"}
    made, again = [await http.put(SCHEDULES + "/a", json=wanted) for _ in range(2)]
    assert (made.status_code, again.status_code, made.json()["cron"]) == (201, 200, "@daily")
    assert made.json()["next_at"][11:] in ("22:00:00.000Z", "23:00:00.000Z")


async def test_one_is_paused_and_goes_on(http: httpx.AsyncClient) -> None:
    """What recurs makes up for nothing; setting it again leaves the pause as it is, unless it says so."""
    path = "/v1/streams/s/schedules/tick"
    definition = {"entry": {"fields": {"n": "1"}}, "every_ms": 3_600_000}
    first = (await http.put(path, json=definition)).json()
    paused = await http.patch(path, json={"paused": True})
    assert (paused.status_code, paused.json()) == (200, {**first, "next_at": None, "paused": True})
    assert (await http.put(path, json=definition)).json() == paused.json()
    assert (await http.get("/v1/streams/s/schedules")).json()["schedules"] == [paused.json()]
    until = (await http.patch(path, json={"paused_until": "2035-01-01T00:00:00Z"})).json()
    assert (until["paused"], until["paused_until"]) == (True, "2035-01-01T00:00:00.000Z")
    assert "2035-01-01T00:00" <= until["next_at"] <= "2035-01-01T01:00:00.000Z"
    assert (await http.patch(path, json={"paused": False})).json() == first
    again = (await http.put(path, json={**definition, "paused": True})).json()
    assert (again["paused"], again["next_at"]) == (True, None)
    assert (await http.put(path, json={**definition, "paused": False})).json() == first
    fresh = await http.put("/v1/streams/s/schedules/new", json={**definition, "paused": True})
    assert (fresh.status_code, fresh.json()["next_at"]) == (201, None)


async def test_a_stream_is_closed_only_without_them(http: httpx.AsyncClient) -> None:
    await http.put(SCHEDULES + "/a", json={"entry": ENTRY, "in_ms": 60_000})
    answer = await http.post(STREAM + "/close")
    assert (refusal(answer), answer.json()["schedules"]) == ((409, "has_schedules"), 1)
    assert "the stream 's' has 1 schedule still to run" in answer.json()["detail"]
    method, way = answer.json()["detail"].partition("close it with ")[2].split()
    assert (await http.request(method, way.replace("{stream}", "s"))).status_code == 200
    assert (await http.get(SCHEDULES)).json() == {"schedules": [], "next": None}


async def test_a_stream_is_deleted_only_without_them(http: httpx.AsyncClient) -> None:
    """The refusal changes nothing and names the way; the description and the list say how many there are."""
    for name in ("a", "b"):
        await http.put(f"{SCHEDULES}/{name}", json={"entry": ENTRY, "in_ms": 60_000})
    described, listed = await http.get(STREAM), await http.get("/v1/streams")
    assert described.json()["schedules"] == listed.json()["streams"][0]["schedules"] == 2
    answer = await http.delete(STREAM)
    assert (refusal(answer), answer.json()["schedules"]) == ((409, "has_schedules"), 2)
    assert refusal(await http.delete(f"{STREAM}?schedules=refuse")) == (409, "has_schedules")
    # What was seen is no more so, which comes first.
    tag = described.headers["etag"]
    await http.delete(f"{SCHEDULES}/b")
    assert refusal(await http.delete(STREAM, headers={"if-match": tag})) == (412, "precondition_failed")
    assert place(await http.delete(f"{STREAM}?schedules=keep")) == "schedules"
    assert [one["name"] for one in (await http.get(SCHEDULES)).json()["schedules"]] == ["a"]
    method, way = answer.json()["detail"].partition("delete it with ")[2].split()
    assert (await http.request(method, way.replace("{stream}", "s"))).status_code == 204
    assert (await http.get(STREAM)).status_code == 404


async def test_the_way_to_close_it_is_named_where_it_is_refused(http: httpx.AsyncClient) -> None:
    """Over the command API in its words; by Durable Streams, which knows no schedules, as an operation."""
    json_type = {"content-type": "application/json"}
    for name in ("a", "b"):
        await http.put(f"/v1/stream/{name}", headers=json_type)
        await http.post(f"/v1/streams/{name}/entries?delay_ms=60000", json={"fields": {"data": "1"}})
    refused = await call(http, "WEIR.CLOSE", "a")
    assert await call(http, "WEIR.CLOSE", "a", *refused.partition("close it with ")[2].split()) is not None
    answer = await http.post("/v1/stream/b", headers={**json_type, "stream-closed": "true"})
    assert refusal(answer) == (409, "has_schedules")
    method, way = answer.json()["detail"].partition("close it with ")[2].split()
    assert (await http.request(method, way.replace("{stream}", "b"))).status_code == 200


# ---- the command API


async def test_the_commands_of_weir_are_of_the_command_api(http: httpx.AsyncClient) -> None:
    set_it = ["WEIR.SCHEDULE", "SET", "s", "tick", "EVERY", "60000", "COUNT", "3", "FIELDS", "n", "1"]
    at_ms = await call(http, *set_it)
    assert 50_000 < at_ms - time.time() * 1000 <= 60_000
    assert await call(http, *set_it) == at_ms
    shown = await call(http, "WEIR.SCHEDULE", "GET", "s", "tick")
    rule = '{"every_ms":60000,"count":3}'
    assert shown == ["name", "tick", "at-ms", at_ms, "rule", rule, "left", 3, "fields", ["n", "1"]]
    assert await call(http, "WEIR.SCHEDULE", "LIST", "s", "BYNAME") == [shown]
    once = ["WEIR.SCHEDULE", "SET", "s", "tick", "IN", "60000", "FIELDS", "n", "1"]
    refused = await call(http, "WEIR.SCHEDULE", "DEL", "s", "tick")
    assert refused.startswith("NOPERM what recurs takes the right to manage the stream: ")
    word = refused.partition("say ")[2].removesuffix(" as the last word")
    for way in ("PAUSE", "RESUME"):
        assert await call(http, "WEIR.SCHEDULE", way, "s", "tick") == refused
    assert await call(http, "WEIR.SCHEDULE", "DEL", "s", "tick", word) == 1
    assert await call(http, *set_it) >= at_ms
    # Who may manage the stream may put a single run in its place.
    assert await call(http, *once) > at_ms - 60_000
    assert "every_ms" not in (await http.get(f"{SCHEDULES}/tick")).json()
    assert await call(http, "WEIR.SCHEDULE", "SET", "s", "a", "NX", "IN", "9", "FIELDS", "n") == (
        "ERR syntax error"
    )
    await call(http, "WEIR.SCHEDULE", "SET", "s", "a", "IN", "60000", "FIELDS", "n", "1")
    assert await call(http, "WEIR.SCHEDULE", "DEL", "s", "a") == 1
    assert await call(http, "WEIR.CLOSE", "s", "SCHEDULES", "DROP") is not None


# ---- rights


@pytest.fixture
def caller(app: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the caller may do."""

    def become(*actions: Action, streams: Sequence[str] = ("*",)) -> None:
        known = Principal("t", [Grant(actions=frozenset(actions), streams=one) for one in streams])
        monkeypatch.setattr(app.gateway.access.policy, "recognise", lambda *_: known)

    return become


async def test_what_recurs_takes_manage_too(http: httpx.AsyncClient, caller: Any) -> None:
    recurring, once = {"entry": ENTRY, "every_ms": 60_000}, {"entry": ENTRY, "in_ms": 60_000}
    await http.put(SCHEDULES + "/tick", json=recurring)
    caller(Action.WRITE)
    assert (await http.put(SCHEDULES + "/a", json=once)).status_code == 201
    for answer in (
        await http.put(SCHEDULES + "/b", json=recurring),
        await http.put(SCHEDULES + "/tick", json=once),
        await http.delete(SCHEDULES + "/tick"),
        await http.post(SCHEDULES + "/tick/fire"),
        await http.post(ENTRIES + "?cancel_schedule=tick", json=ENTRY),
    ):
        assert refusal(answer) == (403, "forbidden")
    assert (await http.delete(SCHEDULES + "/a")).status_code == 204
    caller(Action.READ)
    assert refusal(await http.put(SCHEDULES + "/a", json=once)) == (403, "forbidden")
    assert (await http.get(SCHEDULES)).status_code == 200
    caller(Action.WRITE, Action.MANAGE)
    assert (await http.put(SCHEDULES + "/b", json=recurring)).status_code == 201


async def test_the_figures_count_them(http: httpx.AsyncClient) -> None:
    await store(http, "s", 1)
    await http.put(SCHEDULES + "/a", json={"entry": ENTRY, "in_ms": 60_000})
    text = (await http.get("/metrics")).text
    assert "weir_schedules 1" in text
    assert "weir_schedules_late_seconds 0" in text
