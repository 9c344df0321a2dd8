"""POST …/dead-letters/redrive: which dead letters go back, what is answered, what is refused."""

import asyncio

import httpx
import pytest

from app.api.groups import dead_letters
from app.settings import Settings
from engine import Engine, SystemClock
from engine.commands.weir_commands import EnsureGroup
from tests.app.conftest import app_on
from tests.app.orders import client_of
from tests.app.policies import FixedPolicy, principal_with
from tests.engine.asking import reply_to

G = "/v1/streams/s/groups/g"
REDRIVE = G + "/dead-letters/redrive"


@pytest.fixture
async def dead(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """5-0 to 5-2 of the source died: the first of three tries, the others by hand, as b held them."""
    rows = [{"id": f"5-{n}", "fields": {"n": str(n)}} for n in range(3)]
    await http.post("/v1/streams/s/entries", json={"entries": rows})
    await http.put(G, json={"start": "0", "dead_letter": {"stream": "dead", "max_deliveries": 1}})
    for consumer, count in (("a", 1), ("b", 2)):
        await http.post(f"{G}/consumers/{consumer}/read", json={"count": count})
    await http.post(G + "/claim", json={"consumer": "b", "min_idle_ms": 0, "ids": ["5-0"]})
    await http.post(G + "/dead-letter", json={"ids": ["5-1", "5-2"], "reason": "bad ü"})
    return http


async def ids_of(http: httpx.AsyncClient, stream: str = "dead") -> list[str]:
    return [one["id"] for one in (await http.get(f"/v1/streams/{stream}/entries")).json()["entries"]]


async def sources(http: httpx.AsyncClient) -> list[str]:
    """Which entries the dead letters were."""
    rows = (await http.get("/v1/streams/dead/entries")).json()["entries"]
    return [one["fields"]["weir-id"] for one in rows]


@pytest.mark.parametrize("body", [b"", b"null", b" null\n", b"{}"])
async def test_the_body_may_be_left_out(dead: httpx.AsyncClient, body: bytes) -> None:
    """Or be null, as typed clients send what is left out: the first letters of the group go back."""
    answer = await dead.post(REDRIVE, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["redriven"]) == (200, 3)
    operations = (await dead.get("/openapi.json")).json()["paths"]
    (redrive,) = (operations[path]["post"] for path in operations if path.endswith("/redrive"))
    assert not redrive["requestBody"].get("required")


async def test_named_dead_letters_go_back(dead: httpx.AsyncClient) -> None:
    """They are new entries of the source, which the group reads as such; the others stay."""
    letters = await ids_of(dead)
    answer = await dead.post(REDRIVE, json={"ids": [letters[1]]})
    assert (answer.status_code, answer.headers["weir-durability"]) == (200, "os")
    (row,) = answer.json()["entries"]
    assert row["dead_letter_id"] == letters[1]
    assert await ids_of(dead) == [letters[0], letters[2]]
    assert await ids_of(dead, "s") == ["5-0", "5-1", "5-2", row["id"]]
    (entry,) = (await dead.post(f"{G}/consumers/a/read", json={"count": 9})).json()["entries"]
    assert entry == {"id": row["id"], "fields": {"n": "1", "weir-redriven-from": "5-1"}}
    (pending,) = (await dead.get(G + "/pending?count=9")).json()["pending"]
    assert pending["delivery_count"] == 1


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ({}, []),
        ({"filter": {}}, []),
        ({"filter": None, "count": None}, []),
        ({"count": 1}, ["5-1", "5-2"]),
        ({"count": 2}, ["5-2"]),
        ({"filter": {"reason": "max_deliveries"}}, ["5-1", "5-2"]),
        ({"filter": {"reason": "bad ü"}, "count": 1}, ["5-0", "5-2"]),
        ({"filter": {"reason": "bad"}}, ["5-0", "5-1", "5-2"]),
        ({"filter": {"consumer": "b"}}, ["5-0"]),
        ({"filter": {"consumer": ""}}, ["5-0", "5-1", "5-2"]),
        ({"filter": {"start": "-", "end": "+"}}, []),
    ],
)
async def test_a_filter_names_dead_letters(dead: httpx.AsyncClient, body: object, left: list[str]) -> None:
    await dead.post(REDRIVE, json=body)
    assert await sources(dead) == left


async def test_bounds_are_ids_of_dead_letters(dead: httpx.AsyncClient) -> None:
    """The next call goes on behind `next`; one that ends with the last dead letter says so."""
    first, second, third = await ids_of(dead)
    answer = (await dead.post(REDRIVE, json={"count": 1, "dry_run": True})).json()
    assert answer["entries"] == [{"dead_letter_id": first, "id": None}]
    assert answer["next"] == first
    rest = {"filter": {"start": f"({first}", "end": third}, "count": 2, "dry_run": True}
    answer = (await dead.post(REDRIVE, json=rest)).json()
    assert [one["dead_letter_id"] for one in answer["entries"]] == [second, third]
    assert (answer["redriven"], answer["next"]) == (2, None)
    rest["filter"] = {"start": second, "end": f"({third}"}
    assert [one["dead_letter_id"] for one in (await dead.post(REDRIVE, json=rest)).json()["entries"]] == [
        second
    ]
    assert await sources(dead) == ["5-0", "5-1", "5-2"], "dry runs change nothing"


async def test_a_search_ends_after_so_many_turns(
    dead: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a stream full of others' letters the answer says where to go on, though nothing was found."""
    monkeypatch.setattr(dead_letters, "_SEARCHES_MAX", 1)
    monkeypatch.setattr("engine.commands.redriving.TURN_LOOKS_MAX", 1)
    body: dict[str, object] = {"filter": {"reason": "bad ü"}}
    answers = []
    for _ in range(3):
        answers.append((await dead.post(REDRIVE, json=body)).json())
        body = {"filter": {"reason": "bad ü", "start": f"({answers[-1]['next']}"}}
    assert [one["redriven"] for one in answers] == [0, 1, 1]
    assert answers[-1]["next"] is None


async def test_several_turns_find_no_more_than_asked_for(
    dead: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that finds some of them leaves as many less for the next one."""
    monkeypatch.setattr("engine.commands.redriving.TURN_LOOKS_MAX", 2)
    await dead.post("/v1/streams/s/entries", json={"id": "5-3", "fields": {"n": "3"}})
    await dead.post(f"{G}/consumers/b/read", json={})
    await dead.post(G + "/dead-letter", json={"ids": ["5-3"], "reason": "bad ü"})
    answer = (await dead.post(REDRIVE, json={"filter": {"reason": "bad ü"}, "count": 2})).json()
    assert answer["redriven"] == 2
    assert await sources(dead) == ["5-0", "5-3"]


async def test_a_repeated_call_is_answered_as_the_first_time(dead: httpx.AsyncClient) -> None:
    """Nothing more goes back; another body under the key is refused."""
    key = {"idempotency-key": "k"}
    first = (await dead.post(REDRIVE, json={"count": 1}, headers=key)).json()
    again = (await dead.post(REDRIVE, json={"count": 1}, headers=key)).json()
    assert again == {**first, "duplicate": True}
    assert await sources(dead) == ["5-1", "5-2"]
    refused = await dead.post(REDRIVE, json={"count": 2}, headers=key)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")
    other = await dead.post("/v1/streams/s/entries", json={"fields": {"a": "1"}}, headers=key)
    assert other.json()["code"] == "idempotency_mismatch", "keys are those of the stream"


async def test_calls_at_once_move_each_once(dead: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(dead.post(REDRIVE, json={}) for _ in range(4)))
    assert sum(answer.json()["redriven"] for answer in answers) == 3
    copies = (await dead.get("/v1/streams/s/entries?start=6")).json()["entries"]
    assert [one["fields"]["weir-redriven-from"] for one in copies] == ["5-0", "5-1", "5-2"]


async def test_a_dead_letter_stream_may_be_shared(dead: httpx.AsyncClient) -> None:
    """Letters of other groups and streams are passed over, named or not."""
    await dead.put("/v1/streams/s/groups/h", json={"start": "0", "dead_letter": {"stream": "dead"}})
    await dead.put("/v1/streams/t/groups/g", json={"dead_letter": {"stream": "dead"}})
    for place in ("/v1/streams/s/groups/h", "/v1/streams/t/groups/g"):
        for body in ({}, {"ids": await ids_of(dead)}):
            answer = await dead.post(place + "/dead-letters/redrive", json=body)
            assert (answer.json()["redriven"], answer.json()["next"]) == (0, None)
    assert await sources(dead) == ["5-0", "5-1", "5-2"]


async def test_a_dry_run_has_no_key(dead: httpx.AsyncClient) -> None:
    answer = await dead.post(REDRIVE, json={"dry_run": True}, headers={"idempotency-key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


async def test_what_is_missing_is_reported(dead: httpx.AsyncClient) -> None:
    """The stream, the group, the group's dead-letter stream; one that was never written is empty."""
    for path, code in (("t/groups/g", "no_stream"), ("s/groups/h", "no_group")):
        answer = await dead.post(f"/v1/streams/{path}/dead-letters/redrive", json={})
        assert (answer.status_code, answer.json()["code"]) == (404, code)
    await dead.patch(G, json={"dead_letter": {"stream": "never"}})
    assert (await dead.post(REDRIVE, json={})).json()["redriven"] == 0
    assert (await dead.post(REDRIVE, json={"ids": ["1-0"]})).json()["redriven"] == 0
    await dead.patch(G, json={"dead_letter": None})
    answer = await dead.post(REDRIVE, json={})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "dead_letter" in answer.json()["detail"]


@pytest.mark.parametrize(("streams", "status"), [(["s"], 403), (["dead"], 403), (["s", "dead"], 200)])
async def test_both_streams_must_be_writable(streams: list[str], status: int) -> None:
    """Letters are deleted from one, copies are appended to the other."""
    async with Engine.open(None, clock=SystemClock()) as engine:
        settings = Settings(log_requests="none")
        writer = principal_with("read,consume,manage:*", *(f"write:{stream}" for stream in streams))
        app = app_on(engine, settings, policy=FixedPolicy(writer))
        policy = {"dead_letter_stream": "dead"}
        await reply_to(engine, EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=policy))
        async with client_of(app) as http:
            assert (await http.post(REDRIVE, json={})).status_code == status


async def test_one_call_puts_back_a_hundred_where_more_are_asked_for(http: httpx.AsyncClient) -> None:
    """By count and by IDs, as the document says; `next` goes on behind them."""
    await http.put("/v1/streams/s", json={})
    await http.put(G, json={"start": "0", "dead_letter": {"stream": "dead", "max_deliveries": 1}})
    numbers = [f"{number}-0" for number in range(1, 103)]
    for some in (numbers[:51], numbers[51:]):
        rows = [{"id": one, "fields": {"n": "1"}} for one in some]
        await http.post("/v1/streams/s/entries", json={"entries": rows})
        await http.post(f"{G}/consumers/a/read", json={"count": 51})
        moved = await http.post(G + "/dead-letter", json={"ids": some})
        assert moved.json() == {"stream": "dead", "ids": some}
    letters = [one["id"] for one in (await http.get("/v1/streams/dead/entries?count=200")).json()["entries"]]
    for asked in ({"count": 102}, {"ids": letters}):
        answer = (await http.post(REDRIVE, json={**asked, "dry_run": True})).json()
        assert (answer["redriven"], answer["next"]) == (100, letters[99])
    await http.post(REDRIVE, json={"count": 102})
    rest = (await http.post(REDRIVE, json={"ids": letters[100:]})).json()
    assert ([one["dead_letter_id"] for one in rest["entries"]], rest["next"]) == (letters[100:], None)
    members = (await http.get("/openapi.json")).json()["components"]["schemas"]
    wanted, moved_to = members["RedriveWanted"]["properties"], members["DeadLetteredEntries"]["properties"]
    assert "100 at most" in wanted["count"]["description"]
    assert "100 of them at most" in wanted["ids"]["description"]
    assert "in the source" in moved_to["ids"]["description"]
