"""Streams as resources: creating, showing, changing, listing, trimming, deleting."""

from typing import Any

import httpx
import pytest

from app.main import App
from tests.app.conftest import refusal
from tests.bounds import bounded

STREAM = "/v1/streams/s"
NO_LIMITS = {
    "max_len": None,
    "max_age_ms": None,
    "max_bytes": None,
    "keep_unacknowledged": False,
    "keep_unarchived": False,
}


async def entry_ids(http: httpx.AsyncClient) -> list[str]:
    return [entry["id"] for entry in (await http.get(STREAM + "/entries")).json()["entries"]]


# ---- the resource


async def test_a_stream_is_made_by_put(http: httpx.AsyncClient) -> None:
    """201 with the resource and its place, then 200."""
    answer = await http.put(STREAM, json={"retention": {"max_len": 3}})
    assert answer.status_code == 201
    assert answer.headers["location"] == STREAM
    assert answer.headers["weir-durability"] == "os"
    assert len(answer.json()["generation"]) == 16
    assert answer.json()["retention"] == NO_LIMITS | {"max_len": 3}
    again = await http.put(STREAM, json={"retention": {"max_age_ms": 1000}})
    assert (again.status_code, again.json()["retention"]) == (200, NO_LIMITS | {"max_age_ms": 1000})
    assert "location" not in again.headers
    assert (await http.put(STREAM)).json()["retention"] == NO_LIMITS


async def test_patch_changes_what_it_names(five: httpx.AsyncClient) -> None:
    """All else stays; null takes a limit away."""
    await five.put(STREAM, json={"retention": {"max_len": 9, "keep_unacknowledged": True}})
    answer = await five.patch(STREAM, json={"retention": {"max_bytes": 7000}, "archived_up_to": "2-0"})
    expected = NO_LIMITS | {"max_len": 9, "keep_unacknowledged": True, "max_bytes": 7000}
    assert (answer.status_code, answer.json()["retention"]) == (200, expected)
    assert answer.json()["archived_up_to"] == "2-0"
    answer = await five.patch(STREAM, json={"retention": {"max_len": None}})
    assert answer.json()["retention"] == expected | {"max_len": None}
    assert answer.json()["archived_up_to"] == "2-0"
    assert answer.json() == (await five.get(STREAM)).json()


@pytest.mark.parametrize(
    ("beside", "limits"),
    [
        ({}, {"max_len": 0}),
        ({"max_bytes": 9}, {"max_len": 0, "max_bytes": 9}),
        ({"max_age_ms": 9}, {"max_age_ms": 9}),
    ],
)
async def test_acknowledged_is_a_pair_by_its_name(
    http: httpx.AsyncClient, beside: dict[str, int], limits: dict[str, int]
) -> None:
    """What is done goes at once, or stays as long as a limit beside it says."""
    named = await http.put(STREAM, json={"retention": {"acknowledged": True, **beside}})
    expected = NO_LIMITS | {"keep_unacknowledged": True} | limits
    assert (named.status_code, named.json()["retention"]) == (201, expected)


async def test_a_stream_shows_what_it_is(five: httpx.AsyncClient) -> None:
    """Edges, counts and its first and last entries, as they are stored."""
    await five.post(STREAM + "/groups", json={"name": "g", "start": "0"})
    await five.delete(STREAM + "/entries/1-0")
    shown = (await five.get(STREAM)).json()
    assert (shown["length"], shown["entries_added"], shown["groups"], shown["nodes"]) == (4, 5, 1, 1)
    assert (shown["first_id"], shown["last_id"], shown["max_deleted_id"]) == ("2-0", "5-0", "1-0")
    assert shown["removed_upto"] == "1-0"
    assert shown["first_entry"] == {"id": "2-0", "fields": {"n": "2", "m": "x"}}
    assert shown["last_entry"] == {"id": "5-0", "fields": {"n": "5", "m": "x"}}
    assert shown["memory_bytes"] > 0


async def test_in_full_a_stream_shows_its_groups(five: httpx.AsyncClient) -> None:
    """Entries, pending entries of groups and consumers, up to a count."""
    await five.post(STREAM + "/groups", json={"name": "g", "start": "0"})
    await five.post(STREAM + "/groups/g/consumers/c/read", json={"count": 3})
    shown = (await five.get(STREAM + "?full=true&count=2")).json()
    assert [entry["id"] for entry in shown["entries"]] == ["1-0", "2-0"]
    (group,) = shown["group_details"]
    assert (group["name"], group["pending"], group["consumers"], group["nacked"]) == ("g", 3, 1, 0)
    assert [(one["id"], one["consumer"], one["delivery_count"]) for one in group["pending_entries"]] == [
        ("1-0", "c", 1),
        ("2-0", "c", 1),
    ]
    (consumer,) = group["consumer_details"]
    assert (consumer["name"], consumer["pending"]) == ("c", 3)
    assert [one["id"] for one in consumer["pending_entries"]] == ["1-0", "2-0"]
    assert {key: shown[key] for key in (await five.get(STREAM)).json()} == (await five.get(STREAM)).json()


async def test_a_plan_knows_who_had_the_name_of_an_archived_stream(five: httpx.AsyncClient) -> None:
    """While nobody has it, and when another stream does."""
    shown = (await five.patch(STREAM, json={"archived_up_to": "4-0"})).json()
    known = {"s": {"generation": shown["generation"], "last": "5-0"}}
    for ask, previous in ((five.get, None), (five.delete, known), (five.put, known)):
        await ask(STREAM)
        found = (await five.post("/v1/plan", json={"streams": {"s": "0-0"}})).json()
        assert found.get("previous") == previous


async def test_a_deleted_stream_is_gone(five: httpx.AsyncClient) -> None:
    """204, then 404; made again it has another generation."""
    before = (await five.get(STREAM)).json()["generation"]
    answer = await five.delete(STREAM)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["weir-durability"] == "os"
    assert refusal(await five.delete(STREAM)) == (404, "no_stream")
    assert (await five.put(STREAM)).json()["generation"] != before


async def test_durability_can_be_asked_for(http: httpx.AsyncClient) -> None:
    """Each write says what its answer means, and whether the preference was followed."""
    answer = await http.put(STREAM, headers={"prefer": "durability=fsync"})
    assert answer.headers["weir-durability"] == "fsync"
    assert answer.headers["preference-applied"] == "durability=fsync"
    assert refusal(await http.put(STREAM, headers={"prefer": "durability=replicated:2"})) == (
        422,
        "invalid",
    )


async def test_the_last_id_can_be_set(five: httpx.AsyncClient) -> None:
    """Upwards, with counters; never below what the stream holds."""
    answer = await five.post(STREAM + "/last-id", json={"last_id": "9-0", "entries_added": 20})
    assert answer.status_code == 200
    assert (answer.json()["last_id"], answer.json()["entries_added"]) == ("9-0", 20)
    answer = await five.post(STREAM + "/last-id", json={"last_id": "4-0"})
    assert refusal(answer) == (409, "last_id_too_small")
    assert refusal(await five.post(STREAM + "/last-id", json={"last_id": "x"})) == (400, "malformed_id")


# ---- lists


async def test_streams_are_listed_by_name(http: httpx.AsyncClient) -> None:
    """Page by page, by prefix; each as it shows itself."""
    for name in ("b", "a:2", "a:1", "é", "a:3"):
        await http.put(f"/v1/streams/{name}")
    page = (await http.get("/v1/streams")).json()
    assert [stream["name"] for stream in page["streams"]] == ["a:1", "a:2", "a:3", "b", "é"]
    assert page["next"] is None
    assert page["streams"][3] == (await http.get("/v1/streams/b")).json()
    page = (await http.get("/v1/streams?prefix=a:&limit=2")).json()
    assert ([stream["name"] for stream in page["streams"]], page["next"]) == (["a:1", "a:2"], "a:2")
    page = (await http.get("/v1/streams?prefix=a:&limit=2&after=a:2")).json()
    assert ([stream["name"] for stream in page["streams"]], page["next"]) == (["a:3"], None)
    assert (await http.get("/v1/streams?after=zz")).json()["next"] is None


async def test_a_list_is_cut_where_it_gets_too_large(app: App, http: httpx.AsyncClient) -> None:
    """At least one stream; the rest is on the next page."""
    big = {"fields": {"a": "x" * 7000}}
    for n in range(4):
        await http.post(f"/v1/streams/s{n}/entries", json=big)
    limit = app.gateway.settings.answer_bytes_max
    assert limit > 4 * 2 * 7000
    app.gateway.settings = bounded(answer_bytes_max=20_000)
    page = (await http.get("/v1/streams")).json()
    assert ([stream["name"] for stream in page["streams"]], page["next"]) == (["s0"], "s0")
    page = (await http.get("/v1/streams?after=s2")).json()
    assert ([stream["name"] for stream in page["streams"]], page["next"]) == (["s3"], None)


# ---- trimming


@pytest.mark.parametrize(
    ("body", "deleted", "left"),
    [
        ({"maxlen": 2}, 3, "45"),
        ({"maxlen": 0}, 5, ""),
        ({"minid": "3"}, 2, "345"),
        ({"minid": "3-1"}, 3, "45"),
        ({"older_than_ms": 1000}, 5, ""),
        ({"older_than_ms": 1 << 52}, 0, "12345"),
        ({"maxlen": 2, "approx": True}, 0, "12345"),
        ({"maxlen": 2, "approx": True, "limit": 100}, 0, "12345"),
        ({"maxlen": 9}, 0, "12345"),
    ],
)
async def test_a_trim_removes_the_oldest(
    five: httpx.AsyncClient, body: dict[str, Any], deleted: int, left: str
) -> None:
    """Exactly, unless `approx` is given."""
    answer = await five.post(STREAM + "/trim", json=body)
    assert answer.status_code == 200
    first = f"{left[0]}-0" if left else "0-0"
    assert answer.json() == {"deleted": deleted, "first_id": first, "pending_affected": 0}
    assert await entry_ids(five) == [f"{n}-0" for n in left]


async def test_a_dry_run_only_tells(five: httpx.AsyncClient) -> None:
    """What would go, and what of it is pending."""
    await five.post(STREAM + "/groups", json={"name": "g", "start": "0"})
    await five.post(STREAM + "/groups/g/consumers/c/read", json={"count": 2})
    result = await five.post(STREAM + "/trim", json={"maxlen": 2, "dry_run": True})
    assert result.json() == {"deleted": 3, "first_id": "4-0", "pending_affected": 2}
    assert len(await entry_ids(five)) == 5
    done = await five.post(STREAM + "/trim", json={"maxlen": 2})
    assert done.json() == result.json()
    assert len(await entry_ids(five)) == 2


async def test_a_guarded_trim_passes_no_group(five: httpx.AsyncClient) -> None:
    """409 with where the group is, and nothing is removed."""
    await five.post(STREAM + "/groups", json={"name": "g", "start": "2-0"})
    answer = await five.post(STREAM + "/trim", json={"maxlen": 2, "guard": True})
    assert refusal(answer) == (409, "trim_guarded")
    assert answer.json()["needed_from"] == "2-1"
    assert len(await entry_ids(five)) == 5
    answer = await five.post(STREAM + "/trim", json={"minid": "3-0", "guard": True})
    assert answer.json()["deleted"] == 2


async def test_a_trim_spares_what_is_not_acknowledged(five: httpx.AsyncClient) -> None:
    """With refs=acked only what all groups have done goes."""
    await five.post(STREAM + "/groups", json={"name": "g", "start": "0"})
    await five.post(STREAM + "/groups/g/consumers/c/read", json={"count": 3})
    await five.post(STREAM + "/groups/g/ack", json={"ids": ["1-0", "3-0"]})
    answer = await five.post(STREAM + "/trim", json={"maxlen": 0, "refs": "acked"})
    assert answer.json() == {"deleted": 2, "first_id": "2-0", "pending_affected": 0}
    assert await entry_ids(five) == ["2-0", "4-0", "5-0"]


# ---- deleting


async def test_one_entry_is_deleted(five: httpx.AsyncClient) -> None:
    """204, then 404 no_entry."""
    answer = await five.delete(STREAM + "/entries/2-0")
    assert (answer.status_code, answer.content, answer.headers["weir-durability"]) == (204, b"", "os")
    assert refusal(await five.delete(STREAM + "/entries/2-0")) == (404, "no_entry")
    assert refusal(await five.delete(STREAM + "/entries/x")) == (400, "malformed_id")
    assert await entry_ids(five) == ["1-0", "3-0", "4-0", "5-0"]


async def test_an_entry_that_is_needed_can_be_kept(five: httpx.AsyncClient) -> None:
    """With refs=acked: 409 for one entry, `kept` for several."""
    await five.post(STREAM + "/groups", json={"name": "g", "start": "3-0"})
    assert refusal(await five.delete(STREAM + "/entries/4-0?refs=acked")) == (409, "trim_guarded")
    answer = await five.post(STREAM + "/entries/delete", json={"ids": ["5-0", "1-0"], "refs": "acked"})
    assert answer.json() == {"deleted": 1, "results": {"5-0": "kept", "1-0": "deleted"}}
    assert (await five.delete(STREAM + "/entries/4-0?refs=delete")).status_code == 204


async def test_deleting_tells_what_became_of_each(five: httpx.AsyncClient) -> None:
    """Deleted or absent, in the order asked for; one standing twice counts once."""
    body = {"ids": ["5-0", "7-0", "1", "5-0"]}
    answer = await five.post(STREAM + "/entries/delete", json=body)
    assert answer.json() == {"deleted": 2, "results": {"5-0": "deleted", "7-0": "absent", "1-0": "deleted"}}
    minimal = await five.post(STREAM + "/entries/delete", json=body, headers={"prefer": "return=minimal"})
    assert minimal.json() == {"deleted": 0}
