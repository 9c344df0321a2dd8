"""Groups over REST: making them, reading as a consumer, acknowledging."""

import httpx
import pytest

from tests.app.conftest import store

GROUPS = "/v1/streams/s/groups"
READ = GROUPS + "/g/consumers/c/read"
ACK = GROUPS + "/g/ack"


@pytest.fixture
async def group(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """A stream of 1-0 to 3-0 with the group g at its start."""
    await store(http, "s", 3)
    await http.post(GROUPS, json={"name": "g", "start": "0"})
    return http


async def test_a_group_is_made_and_shown(group: httpx.AsyncClient) -> None:
    """201 with the group as it is, and where it is."""
    answer = await group.post(GROUPS, json={"name": "a b", "start": "2-0", "entries_read": 2})
    assert answer.status_code == 201
    assert answer.headers["location"] == GROUPS + "/a%20b"
    assert answer.json() == (await group.get(answer.headers["location"])).json()
    assert (answer.json()["entries_read"], answer.json()["lag"]) == (2, 1)
    latest = await group.post(GROUPS, json={"name": "latest"})
    assert latest.json()["last_delivered_id"] == "3-0"


async def test_mkstream_makes_the_stream(http: httpx.AsyncClient) -> None:
    """An empty one, for a group that is there before its first entry."""
    answer = await http.post(GROUPS, json={"name": "g", "mkstream": True})
    assert (answer.status_code, answer.json()["last_delivered_id"]) == (201, "0-0")


async def test_a_consumer_reads_new_entries_once(group: httpx.AsyncClient) -> None:
    """Each is delivered once, in order; then there is nothing, and the answer has the position."""
    first = await group.post(READ, json={"count": 2})
    assert first.json() == {
        "entries": [{"id": "1-0", "fields": {"n": "1"}}, {"id": "2-0", "fields": {"n": "2"}}],
        "last_delivered_id": "2-0",
        "more": True,
    }
    rest = await group.post(READ)
    assert [entry["id"] for entry in rest.json()["entries"]] == ["3-0"]
    assert rest.json()["more"] is False
    nothing = {"entries": [], "last_delivered_id": "3-0", "more": False}
    assert (await group.post(READ, json={})).json() == nothing
    assert (await group.post(READ, json={"wait": 5})).json()["entries"] == []


async def test_history_is_what_was_not_acknowledged(group: httpx.AsyncClient) -> None:
    """With its delivery count; an entry that was deleted meanwhile has no fields."""
    await group.post(READ, json={})
    await group.post(ACK, json={"ids": ["1-0"]})
    await group.post("/v1/commands", json=["XDEL", "s", "2-0"])
    answer = await group.post(READ, json={"after": "0"})
    assert answer.json() == {
        "entries": [
            {"id": "2-0", "fields": None, "delivery_count": 1},
            {"id": "3-0", "fields": {"n": "3"}, "delivery_count": 2},
        ],
        "next": "3-0",
        "more": False,
    }
    end = {"entries": [], "next": "3-0", "more": False}
    assert (await group.post(READ, json={"after": "3-0"})).json() == end
    assert (await group.post(READ, json={"after": "0", "count": 1})).json()["more"] is True


async def test_idle_entries_can_be_taken_over(group: httpx.AsyncClient) -> None:
    """A claim read gives them first, with how long they were idle."""
    await group.post(READ, json={"count": 1})
    answer = await group.post(READ.replace("/c/", "/d/"), json={"claim_min_idle_ms": 0, "count": 2})
    claimed, fresh = answer.json()["entries"]
    assert (claimed["id"], claimed["delivery_count"]) == ("1-0", 2)
    assert claimed["idle_ms"] >= 0
    assert (fresh["id"], fresh["delivery_count"]) == ("2-0", 1)


async def test_noack_leaves_nothing_pending(group: httpx.AsyncClient) -> None:
    """What was read is done."""
    await group.post(READ, json={"noack": True})
    assert (await group.post(READ, json={"after": "0"})).json()["entries"] == []


async def test_reads_and_acknowledgements_say_how_safe_they_are(group: httpx.AsyncClient) -> None:
    """Both change the group; with Prefer they are on disk before the answer."""
    assert (await group.post(READ, json={"count": 1})).headers["weir-durability"] == "os"
    wanted = {"prefer": "durability=fsync"}
    for path, body in ((READ, {"count": 1}), (ACK, {"ids": ["1-0"]}), (READ, {"after": "0"})):
        answer = await group.post(path, json=body, headers=wanted)
        assert answer.status_code == 200
        assert answer.headers["weir-durability"] == "fsync"
        assert answer.headers["preference-applied"] == "durability=fsync"


async def test_a_read_may_be_told_to_wait_by_prefer(group: httpx.AsyncClient) -> None:
    """`wait` in the body wins, a history read never waits, and too long is 422."""
    await group.post(READ, json={})
    too_long = {"prefer": "wait=6"}
    assert (await group.post(READ, json={}, headers=too_long)).status_code == 422
    assert (await group.post(READ, json={"wait": 1}, headers=too_long)).json()["entries"] == []
    assert len((await group.post(READ, json={"after": "0"}, headers=too_long)).json()["entries"]) == 3


async def test_what_was_given_back_comes_first(group: httpx.AsyncClient) -> None:
    """A read with `claim_min_idle_ms` gets released entries before what is idle and what is new; the delivery
    that did not count does not count.
    """
    await group.post(READ, json={"count": 2})
    await group.post(GROUPS + "/g/nack", json={"ids": ["2-0"], "mode": "silent"})
    answer = await group.post(READ.replace("/c/", "/d/"), json={"claim_min_idle_ms": 60_000})
    assert [(one["id"], one["delivery_count"]) for one in answer.json()["entries"]] == [
        ("2-0", 1),
        ("3-0", 1),
    ]


async def test_acknowledging_tells_of_each_id(group: httpx.AsyncClient) -> None:
    """What was pending is acknowledged; what was not is absent, and no error."""
    await group.post(READ, json={"count": 2})
    answer = await group.post(ACK, json={"ids": ["1-0", "2", "3-0", "1-0"]})
    assert answer.json() == {
        "acknowledged": 2,
        "results": {"1-0": "acknowledged", "2-0": "acknowledged", "3-0": "absent"},
    }


async def test_acknowledging_can_delete(group: httpx.AsyncClient) -> None:
    """With `delete` the entry goes too; `acked` keeps it while another group needs it."""
    await group.post(GROUPS, json={"name": "other", "start": "0"})
    await group.post(READ, json={})
    answer = await group.post(ACK, json={"ids": ["1-0"], "delete": "keep"})
    assert answer.json() == {"acknowledged": 1, "results": {"1-0": "deleted"}}
    answer = await group.post(ACK, json={"ids": ["2-0", "9-0"], "delete": "acked"})
    assert answer.json() == {"acknowledged": 1, "results": {"2-0": "kept", "9-0": "absent"}}


async def test_a_group_read_tells_of_a_gap(group: httpx.AsyncClient) -> None:
    """When unread entries were trimmed away."""
    await group.post(READ, json={"count": 1})
    await group.post("/v1/commands", json=["XTRIM", "s", "MAXLEN", "1"])
    answer = await group.post(READ, json={})
    assert answer.json()["gap"]["requested"] == "1-0"
    assert answer.json()["gap"]["first_available"] == "3-0"
