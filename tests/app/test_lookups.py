"""How many IDs a request names: `ids_max` to acknowledge, `lookups_max` where each entry is looked up.

Knows: the contract's number and the refusals at each API. Must never know: what a lookup costs.
"""

from typing import Any

import httpx
import pytest

from app.http.media import JSON
from app.settings import Settings
from engine.commands.turn import TURN_COMMANDS_MAX, TURN_LOOKUPS_MAX
from tests.app.conversing import LIMITS, SocketWorld
from tests.bounds import bounded

IDS_MAX = 600
GROUP = "/v1/streams/{}/groups/g"
# Of one request: the path behind the stream or the group, and what stands beside the IDs.
REQUESTS: dict[str, tuple[str, dict[str, object]]] = {
    "nack": (GROUP + "/nack", {"mode": "fail"}),
    "claim": (GROUP + "/claim", {"consumer": "d", "min_idle_ms": 0, "just_ids": True}),
    "ack": (GROUP + "/ack", {}),
    "ack and delete": (GROUP + "/ack", {"delete": "acked"}),
    "delete": ("/v1/streams/{}/entries/delete", {}),
}
COMMANDS: dict[str, list[object]] = {
    "XNACK": ["g", "FAIL", "IDS", "n"],
    "XCLAIM": ["g", "d", 0],
    "XACK": ["g"],
    "XACKDEL": ["g", "IDS", "n"],
    "XDEL": [],
    "XDELEX": ["IDS", "n"],
}


@pytest.fixture
def settings() -> Settings:
    return bounded(log_requests="none", ids_max=IDS_MAX)


async def held(http: httpx.AsyncClient, stream: str, count: int) -> list[str]:
    """Make a stream of which the consumer c holds everything; its IDs."""
    ids = [f"{number}-0" for number in range(1, count + 1)]
    rows = [{"id": one, "fields": {"n": "1"}} for one in ids]
    assert (await http.post(f"/v1/streams/{stream}/entries", json={"entries": rows})).status_code == 201
    await http.put(GROUP.format(stream), json={"start": "0"})
    read = await http.post(GROUP.format(stream) + "/consumers/c/read", json={"count": count})
    assert len(read.json()["entries"]) == count
    return ids


async def state(http: httpx.AsyncClient, stream: str) -> list[Any]:
    """What a refused request must leave as it was."""
    length = (await http.get(f"/v1/streams/{stream}")).json()["length"]
    pending = (await http.get(GROUP.format(stream) + f"/pending?count={IDS_MAX + 1}")).json()["pending"]
    return [length, [(one["id"], one["consumer"], one["delivery_count"]) for one in pending]]


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_names_as_many_as_the_setting_allows(http: httpx.AsyncClient, name: str) -> None:
    """One less and as many are done whole; one more is refused by its pointer, and nothing is changed."""
    path, body = REQUESTS[name]
    most = IDS_MAX if name == "ack" else TURN_LOOKUPS_MAX
    for count in (most - 1, most):
        ids = await held(http, f"s{count}", count)
        before = await state(http, f"s{count}")
        answer = await http.post(path.format(f"s{count}"), json={**body, "ids": ids})
        assert answer.status_code == 200, answer.text
        found = answer.json().get("results") or answer.json()["ids"]
        assert list(found) == ids
        assert await state(http, f"s{count}") != before
    ids = await held(http, "s", most + 1)
    before = await state(http, "s")
    answer = await http.post(path.format("s"), json={**body, "ids": ids})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"pointer": "/ids", "detail": f"one request names at most {most} IDs: send several requests"}
    ]
    assert await state(http, "s") == before


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_command_names_as_many_as_the_setting_allows(http: httpx.AsyncClient, name: str) -> None:
    """The same at the command API, where the refusal names the limit."""
    most, limit = (IDS_MAX, "ids_max") if name == "XACK" else (TURN_LOOKUPS_MAX, "lookups_max")
    for count in (most - 1, most, most + 1):
        ids, stream = await held(http, f"s{count}", count), f"s{count}"
        before = await state(http, stream)
        options = [count if word == "n" else word for word in COMMANDS[name]]
        answer = (await http.post("/v1/commands", json=[name, stream, *options, *ids])).json()
        if count <= most:
            assert "result" in answer, answer
            assert await state(http, stream) != before
        else:
            assert answer["error"] == (
                f"ERR too many IDs: one command names at most {most} ({limit}); use several commands"
            )
            assert await state(http, stream) == before


async def test_a_transaction_shares_the_lookups_and_a_pipeline_does_not(http: httpx.AsyncClient) -> None:
    """A transaction is one turn: at the limit it is done, with one ID more its last command is refused."""
    ids = await held(http, "s", TURN_LOOKUPS_MAX + 1)
    half = TURN_LOOKUPS_MAX // 2
    rows = [["XCLAIM", "s", "g", "d", 0, *some, "JUSTID"] for some in (ids[:half], ids[half:-1], ids[half:])]
    multi = "/v1/commands/multi-exec"
    assert [len(one["result"]) for one in (await http.post(multi, json=rows[:2])).json()] == [half, half]
    first, second = (await http.post(multi, json=[rows[0], rows[2]])).json()
    assert len(first["result"]) == half
    assert f"at most {TURN_LOOKUPS_MAX} entries, this one has room for {half}; use several" in second["error"]
    singly = [["XDEL", "s", one] for one in ids]
    done = (await http.post("/v1/commands/pipeline", json=singly)).json()
    assert [one["result"] for one in done] == [1] * len(ids)


@pytest.mark.parametrize(
    ("op", "members", "most"),
    [
        ("ack", {}, LIMITS.ids_max),
        ("ack", {"delete": "keep"}, LIMITS.lookups_max),
        ("nack", {}, LIMITS.lookups_max),
    ],
)
def test_a_frame_names_as_many_as_hello_says(op: str, members: dict[str, str], most: int) -> None:
    """One less and as many are done; one more is refused, and the consumer goes on holding them all."""
    world = SocketWorld()
    world.add("s", 3 * most)
    world.say("consume", sub="w", stream="s", group="g", consumer="c", create="0", credit=3 * most)
    left = world.pushed("w")
    for count in (most - 1, most):
        (result,) = [
            one for one in world.say(op, sub="w", ids=left[:count], ref=1, **members) if "ref" in one
        ]
        assert result["op"] == "ok", result
        left = left[count:]
    (result,) = world.say(op, sub="w", ids=left, ref=2, **members)
    assert result["problem"]["errors"] == [
        {"pointer": "/ids", "detail": f"one frame names at most {most} IDs: send several frames"}
    ]
    assert len(left) == most + 1
    (result,) = [one for one in world.say("ack", sub="w", ids=left[:1], ref=3) if "ref" in one]
    assert result["acknowledged"] == 1


@pytest.mark.parametrize("ids_max", [TURN_LOOKUPS_MAX - 1, TURN_LOOKUPS_MAX, TURN_LOOKUPS_MAX + 1])
def test_less_than_a_turn_takes_can_be_set_and_no_more(ids_max: int) -> None:
    assert bounded(ids_max=ids_max).lookups_max == min(ids_max, TURN_LOOKUPS_MAX)


async def test_the_descriptions_show_what_is_enforced(http: httpx.AsyncClient) -> None:
    """OpenAPI and AsyncAPI have each limit where it holds."""
    described = (await http.get("/openapi.json")).json()
    for name, (path, _) in REQUESTS.items():
        template = path.format("{stream}").replace("/g/", "/{group}/")
        body = described["paths"][template]["post"]["requestBody"]["content"][JSON]["schema"]
        ids = described["components"]["schemas"][body["$ref"].rpartition("/")[2]]["properties"]["ids"]
        assert ids["maxItems"] == (IDS_MAX if name.startswith("ack") else TURN_LOOKUPS_MAX), name
    acknowledgement = described["components"]["schemas"]["Acknowledgement"]["properties"]["delete"]
    assert f"at most {TURN_LOOKUPS_MAX}" in acknowledgement["description"]
    frames = (await http.get("/asyncapi.json")).json()["components"]["schemas"]
    limits = {name: frames[name]["properties"]["ids"]["maxItems"] for name in ("AckFrame", "NackFrame")}
    assert limits == {"AckFrame": IDS_MAX, "NackFrame": TURN_LOOKUPS_MAX}


async def test_xinfo_full_shows_as_many_rows_as_a_turn_has_time_for(http: httpx.AsyncClient) -> None:
    """A consumer and 499 entries, each twice, are 999 rows; one more consumer is fine, two are too many."""
    await held(http, "s", 499)
    full = ["XINFO", "STREAM", "s", "FULL", "COUNT", 0]
    for name in ("d", "e"):
        answer = (await http.post("/v1/commands", json=full)).json()
        assert len(answer["result"]) > 0
        await http.post("/v1/commands", json=["XGROUP", "CREATECONSUMER", "s", "g", name])
    answer = (await http.post("/v1/commands", json=full)).json()
    assert answer["error"].startswith("ERR too many rows: XINFO STREAM FULL shows at most 1000 consumers")


async def test_a_transaction_has_as_many_commands_as_one_turn_has_time_for(http: httpx.AsyncClient) -> None:
    """A pipeline, which is many turns, may have more."""
    rows = [["XADD", "t", "*", "n", "[[[[[["]] * (TURN_COMMANDS_MAX + 1)
    refused = await http.post("/v1/commands/multi-exec", json=rows)
    assert (refused.status_code, refused.json()["code"]) == (413, "too_many_entries")
    assert f"at most {TURN_COMMANDS_MAX} commands" in refused.json()["detail"]
    assert len((await http.post("/v1/commands/multi-exec", json=rows[1:])).json()) == TURN_COMMANDS_MAX
    assert len((await http.post("/v1/commands/pipeline", json=rows)).json()) == TURN_COMMANDS_MAX + 1
    length = await http.post("/v1/commands", json=["XLEN", "t"])
    assert length.json() == {"result": 2 * TURN_COMMANDS_MAX + 1}
