"""Webhooks as they are sent: verified by foreign libraries, in each form, with data as they were."""

import base64
import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks
import svix.webhooks
from cloudevents.core.bindings import http as binding
from cloudevents.core.formats.json import JSONFormat

from tests.app.senders import WHSEC
from tests.waiting import completed
from weir.entries import Entry
from weir.push.messages import Format, Message, NoDataError, message_of

SDK = Path(__file__).parents[1] / "sdk"
SECRET = base64.b64decode(WHSEC.removeprefix("whsec_"))
OTHER = b"another secret of 32 bytes, older"
VERIFY = """
import { Webhook } from "standardwebhooks";
import { Webhook as Svix } from "svix";
const [secret, headers, body] = JSON.parse(process.argv[1]);
const bytes = Buffer.from(body, "base64");
const found = [Webhook, Svix].map((Kind) => new Kind(secret).verify(bytes, headers));
console.log(JSON.stringify(found));
"""


def entry(**fields: Any) -> Entry:
    """An entry with these fields; `_` stands for `-` in their names."""
    pairs = []
    for name, value in fields.items():
        text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
        pairs.append((name.replace("_", "-"), text))
    return Entry("1769860800000-1", tuple(pairs), "orders/eu ü", delivery_count=3)


def message(form: Format, *entries: Entry) -> Message:
    return message_of(entries, form, generation="00ff", group="crm", source="")


def test_foreign_libraries_verify_it() -> None:
    """By the newer and by the older of two secrets; one bit off is refused."""
    sent = message("entry", entry(city="Graz", note="ä"))
    headers = sent.signed([SECRET, OTHER], int(time.time()))
    for secret in (WHSEC, base64.b64encode(OTHER).decode()):
        verified = standardwebhooks.Webhook(secret).verify(sent.body, headers)
        assert verified == {"city": "Graz", "note": "ä"}
        svix.webhooks.Webhook(secret).verify(sent.body, headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(WHSEC).verify(sent.body.replace(b"Graz", b"Grax"), headers)
    given = json.dumps([WHSEC, headers, base64.b64encode(sent.body).decode()])
    words = ["node", "--input-type=module", "-e", VERIFY, given]
    ran = completed(words, cwd=SDK)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [{"city": "Graz", "note": "ä"}] * 2


def test_headers_say_what_it_is() -> None:
    """The ID is the same at each try: generation and ID of the entry. No header can be broken by an entry."""
    sent = message("entry", entry(data="x", content_type="text/plain\r\nx: y"))
    assert sent.id == "00ff.1769860800000-1"
    assert sent.headers == {
        "weir-stream": "orders/eu%20%C3%BC",
        "weir-group": "crm",
        "weir-deliveries": "3",
        "content-type": "application/octet-stream",
    }


@pytest.mark.parametrize(
    ("form", "fields", "media", "body"),
    [
        ("entry", {"a": "1", "b": "ü"}, "application/json", '{"a":"1","b":"ü"}'.encode()),
        ("entry", {"a": b"\xff"}, "application/json", b'{"a":"/w=="}'),
        ("entry", {"data": b"\xff\x00", "content_type": "image/png", "x": "y"}, "image/png", b"\xff\x00"),
        ("raw", {"data": '{ "a":1 }', "content_type": "application/json"}, "application/json", b'{ "a":1 }'),
        ("raw", {"data": ""}, "application/octet-stream", b""),
    ],
)
def test_the_body_is_the_data_or_else_the_fields(
    form: Format, fields: dict[str, Any], media: str, body: bytes
) -> None:
    sent = message(form, entry(**fields))
    assert (sent.headers["content-type"], sent.body) == (media, body)


def test_what_has_no_data_is_not_sent_raw() -> None:
    with pytest.raises(NoDataError):
        message("raw", entry(a="1"))


TIME = "2026-01-31T12:00:00Z"
EVENT = {
    "ce_specversion": "1.0",
    "ce_id": "é 7%",
    "ce_source": "/s",
    "ce_type": "t",
    "ce_tenant": 'ä "b"',
    "ce_time": TIME,
}


@pytest.mark.parametrize(
    ("data", "media"),
    [('{"n":1}', "application/json"), ("two words", "text/plain"), (b"\xff\x00", "application/octet-stream")],
)
def test_the_sdk_of_cloudevents_reads_events(data: Any, media: str) -> None:
    """Binary, structured and in a batch: all attributes, and the data."""
    one = entry(**EVENT, content_type=media, data=data)
    binary, structured = message("cloudevents-binary", one), message("cloudevents", one)
    batch = message("cloudevents-batch", one, one)
    assert batch.headers["content-type"] == "application/cloudevents-batch+json"
    texts = [structured.body, *(json.dumps(text).encode() for text in json.loads(batch.body))]
    found = [binding.from_binary(binding.HTTPMessage(binary.headers, binary.body), JSONFormat())]
    kind = {"content-type": "application/cloudevents+json"}
    found += [binding.from_structured(binding.HTTPMessage(kind, text), JSONFormat()) for text in texts]
    for event in found:
        assert event.get_attributes() == {
            "specversion": "1.0", "id": "é 7%", "source": "/s", "type": "t", "tenant": 'ä "b"',
            "time": datetime.fromisoformat(TIME),
            "datacontenttype": media,
        }  # fmt: skip
        got = event.get_data()
        assert got in (data, data.encode() if isinstance(data, str) else data, {"n": 1})


def test_what_is_no_event_becomes_one() -> None:
    """With the entry's ID, its time, and the path of its stream."""
    shown = json.loads(message("cloudevents", entry(city="Graz")).body)
    assert shown == {
        "specversion": "1.0", "id": "1769860800000-1", "source": "/v1/streams/orders%2Feu%20%C3%BC",
        "type": "weir.entry", "time": "2026-01-31T12:00:00.000Z", "datacontenttype": "application/json",
        "data": {"city": "Graz"},
    }  # fmt: skip
    odd = json.loads(message("cloudevents", entry(a=b"\xff")).body)
    assert (odd["encoding"], odd["data"]) == ("base64", {"a": "/w=="})


def test_a_batch_has_one_id_for_the_same_entries() -> None:
    first, second = entry(a="1"), entry(a="2")
    assert message("cloudevents-batch", first, second).id == message("cloudevents-batch", first, second).id
    assert message("cloudevents-batch", first).id != message("cloudevents-batch", first, first).id
