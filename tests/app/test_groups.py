"""Groups and consumers as resources: listed, made, shown, changed, removed."""

import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from app.api.groups import consumers
from engine import Engine
from engine.replies import ConsumerInfo
from tests.app.conftest import app_on, calling, store
from tests.app.policies import FixedPolicy, principal_with

GROUPS = "/v1/streams/s/groups"
G = GROUPS + "/g"
READ = G + "/consumers/c/read"


@pytest.fixture
async def group(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """A stream of 1-0 to 3-0 with the group g at its start, of which the consumer c holds 1-0."""
    await store(http, "s", 3)
    await http.post(GROUPS, json={"name": "g", "start": "0"})
    await http.post(READ, json={"count": 1})
    return http


# ---- groups


async def test_what_waits_for_the_first_group_is_kept_and_shown(http: httpx.AsyncClient) -> None:
    """In each description, and then what the group needs; its reader gets all of it."""
    await http.put("/v1/streams/s", json={"retention": {"acknowledged": True}})
    await store(http, "s", 100)
    assert await held(http) == ["no group"] * 4
    assert (await http.put(G, json={"start": "0"})).status_code == 201
    assert await held(http) == [{"group": "g", "id": "1-0"}] * 4
    assert len((await http.post(READ, json={"count": 100})).json()["entries"]) == 100
    await http.patch("/v1/streams/s", json={"retention": {"max_len": 100}})
    assert await held(http) == [None] * 4


async def held(http: httpx.AsyncClient) -> list[Any]:
    """As the answer to a change, GET, a list and a full description say it."""
    made = (await http.patch("/v1/streams/s", json={})).json()
    shown = (await http.get("/v1/streams/s")).json()
    listed = (await http.get("/v1/streams?prefix=s")).json()["streams"][0]
    full = (await http.get("/v1/streams/s?full=true")).json()
    return [one.get("held_by") for one in (made, shown, listed, full)]


async def test_groups_are_listed_by_name(group: httpx.AsyncClient) -> None:
    """Each as GET shows it; in pages where asked for."""
    for name in ("b", "a"):
        await group.put(f"{GROUPS}/{name}")
    whole = (await group.get(GROUPS)).json()
    assert [one["name"] for one in whole["groups"]] == ["a", "b", "g"]
    assert whole["next"] is None
    assert whole["groups"][2] == (await group.get(G)).json()
    first = (await group.get(f"{GROUPS}?limit=2")).json()
    assert ([one["name"] for one in first["groups"]], first["next"]) == (["a", "b"], "b")
    rest = (await group.get(f"{GROUPS}?limit=2&after=b")).json()
    assert ([one["name"] for one in rest["groups"]], rest["next"]) == (["g"], None)


async def test_ensuring_makes_a_group_once(http: httpx.AsyncClient) -> None:
    """201 and its stream too; then 200, and neither position nor policy moves."""
    body = {"start": "0", "ack_timeout_ms": 1_000}
    made = await http.put(G, json=body)
    assert made.status_code == 201
    assert made.headers["location"] == G
    assert made.headers["weir-durability"] == "os"
    await http.post("/v1/streams/s/entries", json={"id": "1-0", "fields": {"a": "1"}})
    await http.post(READ, json={})
    again = await http.put(G, json={**body, "ack_timeout_ms": 5})
    assert again.status_code == 200
    assert "location" not in again.headers
    assert (again.json()["last_delivered_id"], again.json()["ack_timeout_ms"]) == ("1-0", 1_000)


async def test_a_body_that_may_be_left_out_may_be_null(group: httpx.AsyncClient) -> None:
    """Clients that are made for Go send it so; where there has to be one, null is none."""
    kind = {"content-type": "application/json"}
    for method, path, status in (
        ("PUT", f"{GROUPS}/h", 201),
        ("PUT", "/v1/streams/t", 201),
        ("POST", READ, 200),
    ):
        answer = await group.request(method, path, content=b"null\n", headers=kind)
        assert answer.status_code == status, (path, answer.text)
    refused = await group.post(GROUPS, content=b"null", headers=kind)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")


async def test_ensuring_may_leave_the_stream_to_others(http: httpx.AsyncClient) -> None:
    """Without `mkstream` a missing stream is 404 and stays missing."""
    answer = await http.put(G, json={"mkstream": False})
    assert (answer.status_code, answer.json()["code"]) == (404, "no_stream")
    assert (await http.get(G)).json()["code"] == "no_stream"


async def test_a_refused_group_changes_nothing(group: httpx.AsyncClient) -> None:
    """POST of a name that there is leaves that group as it is, policy too."""
    before = (await group.get(G)).json()
    answer = await group.post(GROUPS, json={"name": "g", "start": "3-0", "ack_timeout_ms": 5})
    assert (answer.status_code, answer.json()["code"]) == (409, "group_exists")
    assert (await group.get(G)).json() == before


async def test_a_group_is_moved(group: httpx.AsyncClient) -> None:
    """To an ID, the end or the start; `entries_read` keeps the lag exact."""
    moved = await group.patch(G, json={"last_delivered_id": "2-0", "entries_read": 2})
    assert moved.status_code == 200
    assert (moved.json()["last_delivered_id"], moved.json()["lag"]) == ("2-0", 1)
    assert (await group.patch(G, json={"last_delivered_id": "$"})).json()["last_delivered_id"] == "3-0"
    assert (await group.patch(G, json={"last_delivered_id": "0"})).json()["last_delivered_id"] == "0-0"
    assert (await group.patch(G, json={"entries_read": 9})).json()["entries_read"] == 3


async def test_a_policy_is_changed_part_by_part(group: httpx.AsyncClient) -> None:
    """What is not named stays; null takes a part away."""
    dead = {"stream": "dead", "max_deliveries": 3}
    await group.patch(G, json={"dead_letter": dead, "ack_timeout_ms": 30_000})
    answer = await group.patch(G, json={"consumer_timeout_ms": 60_000, "ack_timeout_ms": None})
    result = answer.json()
    assert (result["dead_letter"], result["ack_timeout_ms"], result["consumer_timeout_ms"]) == (
        dead,
        None,
        60_000,
    )
    assert result["last_delivered_id"] == "1-0"
    by_hand = await group.patch(G, json={"dead_letter": {"stream": "dead"}})
    assert by_hand.json()["dead_letter"] == {"stream": "dead", "max_deliveries": None}
    assert (await group.patch(G, json={"dead_letter": None})).json()["dead_letter"] is None
    assert (await group.patch(G, json={})).json()["consumer_timeout_ms"] == 60_000


async def test_dead_letters_go_nowhere_that_is_forbidden(engine: Engine) -> None:
    """Who makes a group write into another stream has to be allowed to write there; nothing is made."""
    async with calling(app_on(engine, policy=FixedPolicy(principal_with("*:s")))) as http:
        policy = {"dead_letter": {"stream": "dead"}}
        assert (await http.put(G, json=policy)).json()["code"] == "forbidden"
        assert (await http.get(G)).json()["code"] == "no_stream"
        assert (await http.put(G)).status_code == 201
        assert (await http.patch(G, json=policy)).json()["code"] == "forbidden"
        assert (await http.get(G)).json()["dead_letter"] is None


async def test_a_group_is_removed(group: httpx.AsyncClient) -> None:
    """Not while entries are pending, unless they may go with it; 204 without a body."""
    refused = await group.delete(G)
    assert (refused.status_code, refused.json()["code"]) == (409, "group_has_pending")
    assert refused.json()["pending"] == 1
    assert (await group.delete(f"{G}?pending=keep")).status_code == 422
    removed = await group.delete(f"{G}?pending=drop", headers={"prefer": "durability=fsync"})
    assert (removed.status_code, removed.content) == (204, b"")
    assert removed.headers["weir-durability"] == "fsync"
    assert (await group.get(G)).json()["code"] == "no_group"
    assert (await group.delete(G)).json()["code"] == "no_group"


async def test_numbers_are_safe_for_everybody(group: httpx.AsyncClient) -> None:
    """Nothing beyond 2^53 - 1, where JavaScript's numbers become inexact."""
    await group.post(G + "/nack", json={"ids": ["1-0"], "mode": "fatal"})
    (pending,) = (await group.get(G + "/pending?count=1")).json()["pending"]
    assert pending["delivery_count"] == (1 << 53) - 1


# ---- consumers


@pytest.mark.parametrize(("most", "inline"), [(3, True), (2, False)])
async def test_many_consumers_are_shown_by_a_thread(
    group: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, most: int, *, inline: bool
) -> None:
    """Others are served meanwhile; its answer is the same."""
    threads: set[int] = set()
    show = consumers._show  # noqa: SLF001 - what takes the time

    def noted(page: Sequence[ConsumerInfo], following: str | None) -> consumers.ConsumerPage:
        threads.add(threading.get_ident())
        return show(page, following)

    monkeypatch.setattr(consumers, "_show", noted)
    monkeypatch.setattr(consumers, "_INLINE_ROWS_MAX", most)
    for name in "ab":
        await group.put(f"{G}/consumers/{name}")
    page = (await group.get(G + "/consumers")).json()
    assert [one["name"] for one in page["consumers"]] == ["a", "b", "c"]
    assert [thread == threading.get_ident() for thread in threads] == [inline]


async def test_consumers_are_listed_by_name(group: httpx.AsyncClient) -> None:
    """What each holds; `inactive_ms` is null where it never got anything."""
    await group.put(G + "/consumers/b")
    result = (await group.get(G + "/consumers")).json()
    first, second = result["consumers"]
    assert (first["name"], first["pending"], first["inactive_ms"]) == ("b", 0, None)
    assert (second["name"], second["pending"], second["inactive_ms"] >= 0) == ("c", 1, True)
    assert first["idle_ms"] >= 0
    assert result["next"] is None
    page = (await group.get(G + "/consumers?limit=1")).json()
    assert ([one["name"] for one in page["consumers"]], page["next"]) == (["b"], "b")


async def test_a_consumer_is_made_once(group: httpx.AsyncClient) -> None:
    """201 with its place, then 200; both show it."""
    made = await group.put(G + "/consumers/d%20e")
    assert (made.status_code, made.headers["location"]) == (201, G + "/consumers/d%20e")
    assert (made.json()["name"], made.json()["pending"]) == ("d e", 0)
    again = await group.put(G + "/consumers/d%20e")
    assert (again.status_code, again.json()["name"]) == (200, "d e")
    shown = await group.get(G + "/consumers/d%20e")
    assert (shown.status_code, shown.json()["name"]) == (200, "d e")
    assert (await group.put(G + "/consumers/d", json={"name": "d"})).status_code == 422


async def test_a_consumer_that_holds_entries_is_not_removed_by_mistake(group: httpx.AsyncClient) -> None:
    """409 says how many, `drop` takes them off the pending list and says how many they were."""
    place = G + "/consumers/c"
    refused = await group.delete(place)
    assert (refused.status_code, refused.json()["code"]) == (409, "consumer_has_pending")
    assert refused.json()["pending"] == 1
    removed = await group.delete(place + "?pending=drop")
    assert (removed.status_code, removed.json()) == (200, {"pending": 1})
    assert removed.headers["weir-durability"] == "os"
    assert (await group.get(G)).json()["pending"] == 0
    assert (await group.get(place)).json()["code"] == "no_consumer"
    assert (await group.delete(place)).json()["code"] == "no_consumer"


async def test_what_a_consumer_holds_may_go_to_another(group: httpx.AsyncClient) -> None:
    """As it is: nothing was delivered, so the count stays."""
    removed = await group.delete(G + "/consumers/c?pending=transfer:d")
    assert (removed.status_code, removed.json()) == (200, {"pending": 1})
    (pending,) = (await group.get(G + "/pending?count=5")).json()["pending"]
    assert (pending["consumer"], pending["delivery_count"]) == ("d", 1)


@pytest.mark.parametrize(
    ("pending", "status", "code"),
    [
        ("transfer:c", 422, "invalid"),
        ("transfer:", 400, "invalid_name"),
        ("transfer:a%2F%2Fb", 400, "invalid_name"),
        ("transfer", 422, "invalid"),
        ("keep", 422, "invalid"),
    ],
)
async def test_nowhere_to_transfer_to(group: httpx.AsyncClient, pending: str, status: int, code: str) -> None:
    """Refused, and the consumer keeps what it holds."""
    answer = await group.delete(f"{G}/consumers/c?pending={pending}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert (await group.get(G + "/consumers/c")).json()["pending"] == 1


# ---- what is missing


@pytest.mark.parametrize("path", ["/v1/streams/s", "/v1/streams/s/groups/g"])
async def test_a_patch_is_a_merge_patch(http: httpx.AsyncClient, path: str) -> None:
    """Said so or not (RFC 7396); another kind of patch is refused with what it may be."""
    await http.put("/v1/streams/s/groups/g", json={"mkstream": True})
    for kind in ("application/json", "application/merge-patch+json", "Application/Merge-Patch+JSON"):
        assert (await http.patch(path, content="{}", headers={"content-type": kind})).status_code == 200
    for kind in ("application/json-patch+json", "application/merge-patch", "text/plain"):
        wrong = await http.patch(path, content="{}", headers={"content-type": kind})
        assert (wrong.status_code, wrong.json()["code"]) == (415, "unsupported_media_type")
        assert wrong.headers["accept-patch"] == "application/merge-patch+json, application/json"
    whole = await http.put(path, content="{}", headers={"content-type": "application/merge-patch+json"})
    assert whole.status_code == 415
    assert "accept-patch" not in whole.headers
