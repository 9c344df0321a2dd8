"""POST /v1/publish by producer, epoch and chunk: repeated chunks are answered, old epochs are refused."""

from typing import Any

import httpx
import pytest

PUBLISH = "/v1/publish"
BODY = {"streams": {"a": [{"fields": {"n": "1"}}, {"fields": {"n": "2"}}], "b": [{"fields": {"n": "3"}}]}}


def by(epoch: object, number: object, producer: str = "spark/q1/0") -> dict[str, str]:
    return {"weir-producer": producer, "weir-epoch": str(epoch), "weir-chunk": str(number)}


async def published(http: httpx.AsyncClient, headers: dict[str, str], body: Any = None) -> Any:
    answer = await http.post(PUBLISH, json=body or BODY, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_chunk_that_comes_again_is_answered_as_the_first_time(http: httpx.AsyncClient) -> None:
    """And stored once; also in the epoch before."""
    first = await published(http, by(4, 0))
    assert first["duplicate"] is False
    assert [one["count"] for one in first["streams"].values()] == [2, 1]
    await published(http, by(5, 0))
    for _ in range(2):
        assert await published(http, by(4, 0)) == {**first, "duplicate": True}
    assert (await http.get("/v1/streams/a")).json()["length"] == 4


async def test_explicit_ids_are_told_again(http: httpx.AsyncClient) -> None:
    """A chunk that keeps its IDs would be refused the second time, were it not known."""
    body = {"streams": {"a": [{"id": "5-0", "fields": {"n": "1"}}, {"id": "9-3", "fields": {"n": "2"}}]}}
    for duplicate in (False, True):
        assert await published(http, by(0, 0), body) == {
            "streams": {"a": {"first_id": "5-0", "last_id": "9-3", "count": 2}},
            "duplicate": duplicate,
        }


async def test_an_epoch_that_is_over_is_409(http: httpx.AsyncClient) -> None:
    """With the one that the producer is in."""
    await published(http, by(4, 0))
    await published(http, by(5, 0))
    answer = await http.post(PUBLISH, json=BODY, headers=by(4, 1))
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["epoch"]) == (409, "stale_epoch", 5)
    assert problem["retryable"] is False
    assert (await http.get("/v1/streams/a")).json()["length"] == 4


@pytest.mark.parametrize(
    ("headers", "header"),
    [
        ({"weir-producer": "p"}, "Weir-Epoch"),
        ({"weir-producer": "p", "weir-epoch": "1"}, "Weir-Chunk"),
        ({"weir-epoch": "1", "weir-chunk": "1"}, "Weir-Producer"),
        (by("-1", 0), "Weir-Epoch"),
        (by("1.5", 0), "Weir-Epoch"),
        (by(1 << 53, 0), "Weir-Epoch"),
        (by(0, "x"), "Weir-Chunk"),
        (by(0, ""), "Weir-Chunk"),
        (by(0, 0, "p" * 256), "Weir-Producer"),
        (by(0, 0, " p"), "Weir-Producer"),
        ({**by(0, 0), "idempotency-key": "k"}, "Idempotency-Key"),
    ],
)
async def test_what_does_not_go_together_is_refused(
    http: httpx.AsyncClient, headers: dict[str, str], header: str
) -> None:
    """422 with the header's name; nothing is stored."""
    answer = await http.post(PUBLISH, json=BODY, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["header"] == header
    assert (await http.get("/v1/streams")).json()["streams"] == []


async def test_a_producer_has_any_printable_name(http: httpx.AsyncClient) -> None:
    """255 characters of it."""
    name = "spark/0b7c:~ x/" + "p" * 240
    assert len(name) == 255
    await published(http, by(0, 0, name))
    assert (await published(http, by(0, 0, name)))["duplicate"] is True
