"""CloudEvents as entries and entries as CloudEvents, with the SDK of PyPI as sender and receiver."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from cloudevents.core.bindings import http as binding
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

FORMAT = JSONFormat()
BATCH = "application/cloudevents-batch+json"
ONE = "application/cloudevents+json"
ENTRIES = "/v1/streams/s/entries"
LEAST = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def event(data: Any, media: str | None, **more: Any) -> CloudEvent:
    """An event of the SDK."""
    kind = {} if media is None else {"datacontenttype": media}
    time = datetime(2026, 1, 31, 12, tzinfo=UTC)
    named = {"id": "é 7%", "source": "/shop?a=1", "type": "com.example.paid", "time": time, "tenant": 'ä "b"'}
    return CloudEvent({**named, **kind, **more}, data)


async def stored(http: httpx.AsyncClient) -> list[dict[str, str]]:
    """The fields of all entries."""
    return [one["fields"] for one in (await http.get(ENTRIES)).json()["entries"]]


async def read_back(http: httpx.AsyncClient) -> list[Any]:
    """All entries, as the SDK reads them."""
    answer = await http.get(ENTRIES, headers={"accept": BATCH})
    assert (answer.status_code, answer.headers["content-type"]) == (200, BATCH)
    return [
        binding.from_structured(binding.HTTPMessage({"content-type": ONE}, json.dumps(one).encode()), FORMAT)
        for one in answer.json()
    ]


DATA = [
    ({"n": 1, "text": "ä"}, "application/json"),
    ("plain\ttext", "text/plain"),
    (b"\xff\x00\xfe", "application/octet-stream"),
]


@pytest.mark.parametrize(("data", "media"), DATA, ids=["json", "text", "bytes"])
@pytest.mark.parametrize("mode", ["binary", "structured", "batch"])
async def test_what_the_sdk_sends_it_reads_again(
    http: httpx.AsyncClient, mode: str, data: Any, media: str
) -> None:
    """All attributes, extensions too, and the data as they were."""
    sent = event(data, media)
    message = (binding.to_binary if mode == "binary" else binding.to_structured)(sent, FORMAT)
    headers, body = {**message.headers}, message.body
    if mode == "batch":
        headers, body = {"content-type": BATCH}, b"[%b,%b]" % (body, body)
    answer = await http.post(ENTRIES, content=body, headers=headers)
    assert answer.status_code == 201, answer.text
    found = await read_back(http)
    assert len(found) == (2 if mode == "batch" else 1)
    for one in found:
        assert one.get_attributes() == sent.get_attributes()
        got = one.get_data()
        assert (got.encode() if isinstance(data, bytes) and isinstance(got, str) else got) == data


async def test_data_is_kept_byte_for_byte(http: httpx.AsyncClient) -> None:
    """JSON with its blanks and numbers; bytes; a string of JSON is no text."""
    texts = [b'{ "a" : 1.0, "b":\n[ 1e3 ] }', b'"x\\u00e9"', b"null", b"[]", b"7"]
    events = [json.dumps(LEAST).encode()[:-1] + b',"data":%b}' % text for text in texts]
    answer = await http.post(ENTRIES, content=b"[%b]" % b",".join(events), headers={"content-type": BATCH})
    assert answer.json()["count"] == len(texts), answer.text
    assert [one["data"].encode() for one in await stored(http)] == texts
    back = await http.get(ENTRIES, headers={"accept": BATCH})
    for text in texts:
        assert b'"data":%b}' % text in back.content


async def test_an_event_has_the_fields_of_a_binary_delivery(http: httpx.AsyncClient) -> None:
    """In all modes; header values are percent-decoded once."""
    headers = {f"ce-{name}": value for name, value in LEAST.items()} | {"ce-tenant": "%C3%A4%2525"}
    await http.post(ENTRIES, content=b"1", headers={**headers, "content-type": "application/json"})
    structured = {**LEAST, "tenant": "ä%25", "data": 1, "count": 5, "ok": True, "none": None}
    await http.post(ENTRIES, json=structured, headers={"content-type": ONE})
    first, second = await stored(http)
    assert first == {
        **{f"ce-{name}": value for name, value in LEAST.items()},
        "ce-tenant": "ä%25",
        "content-type": "application/json",
        "data": "1",
    }
    assert second == {**first, "ce-count": "5", "ce-ok": "true"}


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"id": None}, "/id"),
        ({"id": ""}, "/id"),
        ({"type": None}, "/type"),
        ({"source": None}, "/source"),
        ({"specversion": "0.3"}, "/specversion"),
        ({"specversion": 1}, "/specversion"),
        ({"time": "yesterday"}, "/time"),
        ({"time": "2026-02-30 12:00:00Z"}, "/time"),
        ({"aName": "x"}, "/aName"),
        ({"a" * 21: "x"}, "/" + "a" * 21),
        ({"nested": {}}, "/nested"),
        ({"ratio": 0.5}, "/ratio"),
        ({"data": 1, "data_base64": "eA=="}, "/data_base64"),
    ],
)
async def test_what_is_no_event_is_refused_by_its_pointer(
    http: httpx.AsyncClient, change: dict[str, Any], pointer: str
) -> None:
    """Alone, and in a batch, of which nothing is stored then."""
    wrong = {name: value for name, value in {**LEAST, **change}.items() if value is not None}
    alone = await http.post(ENTRIES, json=wrong, headers={"content-type": ONE})
    assert (alone.status_code, alone.json()["errors"][0]["pointer"]) == (422, pointer)
    batch = await http.post(ENTRIES, json=[LEAST, wrong], headers={"content-type": BATCH})
    assert (batch.status_code, batch.json()["errors"][0]["pointer"]) == (422, f"/1{pointer}")
    assert batch.json()["index"] == 1
    assert (await http.get("/v1/streams/s")).status_code == 404


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"content-type": ONE}, b'{"specversion":"1.0"', 400),
        ({"content-type": ONE}, b"[]", 422),
        ({"content-type": ONE}, b'{"specversion":"1.0","specversion":"1.0"}', 422),
        ({"content-type": ONE}, json.dumps({**LEAST, "data_base64": "?"}).encode(), 400),
        ({"content-type": BATCH}, b"{}", 422),
        ({"content-type": BATCH}, b"[]", 422),
        ({"content-type": BATCH}, b"[%b]" % b",".join([json.dumps(LEAST).encode()] * 101), 413),
        ({"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/", "ce-type": "%FF"}, b"", 422),
        ({"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/"}, b"x", 422),
        ({"ce-specversion": "1.0", "content-type": "application/json"}, b'{"fields":{"a":"b"}}', 422),
    ],
)
async def test_other_mistakes_store_nothing(
    http: httpx.AsyncClient, headers: dict[str, str], body: bytes, status: int
) -> None:
    answer = await http.post(ENTRIES, content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert (await http.get("/v1/streams/s")).status_code == 404


async def test_source_and_id_are_the_key_where_that_is_asked_for(http: httpx.AsyncClient) -> None:
    """It does not depend on the rest of the event; it goes with no other key, and with no other body."""

    async def post(what: Any, media: str = ONE, **headers: str) -> httpx.Response:
        named = {"content-type": media, **headers}
        return await http.post(f"{ENTRIES}?dedupe=ce", json=what, headers=named)

    first = await post(LEAST)
    again = await post({**LEAST, "type": "other"})
    assert again.json() == {"id": first.json()["id"], "duplicate": True}
    assert (await post({**LEAST, "source": "/other"})).json()["duplicate"] is False
    batches = [await post([LEAST, {**LEAST, "id": "2"}], BATCH) for _ in range(2)]
    assert [one.json()["duplicate"] for one in batches] == [False, True]
    assert (await post(LEAST, idempotency_key="x")).status_code == 201
    refused = await post(LEAST, **{"Idempotency-Key": "x"})
    assert (refused.status_code, refused.json()["errors"][0]["parameter"]) == (422, "dedupe")
    assert (await post({"a": "b"}, "application/json")).status_code == 422
    assert len(await stored(http)) == 4


async def test_any_entry_can_be_read_as_an_event(http: httpx.AsyncClient) -> None:
    """Its ID and time, the path of its stream, and its fields as JSON, or its data as they are."""
    await http.post(ENTRIES, json={"id": "1769860800000-1", "fields": {"city": "Graz"}})
    await http.post(f"{ENTRIES}/raw", content=b"\xff", headers={"content-type": "image/png"})
    await http.post(ENTRIES, json={"fields": {"a": base64.b64encode(b"\xff").decode()}, "encoding": "base64"})
    fields, image, odd = (await http.get(ENTRIES, headers={"accept": BATCH})).json()
    assert fields == {
        "specversion": "1.0", "id": "1769860800000-1", "source": "/v1/streams/s", "type": "weir.entry",
        "time": "2026-01-31T12:00:00.000Z", "datacontenttype": "application/json", "data": {"city": "Graz"},
    }  # fmt: skip
    assert (image["datacontenttype"], image["data_base64"]) == ("image/png", "/w==")
    assert (odd["encoding"], odd["data"]) == ("base64", {"a": "/w=="})


async def test_a_batch_says_where_to_go_on_and_refuses_a_gap(http: httpx.AsyncClient) -> None:
    """In headers, since it has no other place; what was lost is 410 with each `on_gap`."""
    for n in (1, 2, 3):
        await http.post(ENTRIES, json={"id": f"{n}-0", "fields": {"n": str(n)}})
    headers = {"accept": BATCH}
    page = await http.get(f"{ENTRIES}?after=0&count=2", headers=headers)
    assert [one["id"] for one in page.json()] == ["1-0", "2-0"]
    assert (page.headers["weir-next-id"], page.headers["weir-more"]) == ("2-0", "true")
    assert (await http.get(f"{ENTRIES}?after=3-0", headers=headers)).json() == []
    assert (await http.get(f"{ENTRIES}?fields=n", headers=headers)).status_code == 422
    await http.post("/v1/streams/s/trim", json={"maxlen": 1})
    gap = await http.get(f"{ENTRIES}?after=1-0", headers=headers)
    assert (gap.status_code, gap.json()["code"]) == (410, "gap")
