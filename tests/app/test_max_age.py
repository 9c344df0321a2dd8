"""Groups that deliver nothing that is too old, over REST."""

from datetime import UTC, datetime

import httpx

G = "/v1/streams/s/groups/g"


def now_ms() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)


async def test_what_is_too_old_is_a_dead_letter_and_is_counted(http: httpx.AsyncClient) -> None:
    policy = {"start": "0", "max_age_ms": 60_000, "dead_letter": {"stream": "dead"}}
    assert (await http.put(G, json=policy)).json()["max_age_ms"] == 60_000
    young = f"{now_ms()}-0"
    for entry_id in ("5-0", young):
        await http.post("/v1/streams/s/entries", json={"id": entry_id, "fields": {"a": "1"}})
    read = (await http.post(f"{G}/consumers/c/read", json={})).json()
    assert [entry["id"] for entry in read["entries"]] == [young]
    (letter,) = (await http.get("/v1/streams/dead/entries")).json()["entries"]
    assert (letter["fields"]["weir-id"], letter["fields"]["weir-reason"]) == ("5-0", "expired")
    assert "weir_expired_total 1.0" in (await http.get("/metrics")).text.splitlines()
    assert (await http.patch(G, json={"max_age_ms": None})).json()["max_age_ms"] is None
