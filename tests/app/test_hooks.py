"""Webhooks that come in: who may write by a signature, what is stored, and what everybody else gets."""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.hooks.table import Hooks
from app.main import App, create_app
from app.server import reload_hooks
from app.settings import Settings, SettingsError
from engine import Clock, EngineProtocol, SystemClock
from tests.app import metrics
from tests.app.conftest import calling
from tests.app.senders import PLAIN, SENDERS, WHSEC, Sign, by_stripe
from tests.bounds import bounded
from tests.engine.clocks import HandClock

HOOK = '[{name}]\nstream = "in/{name}"\nscheme = "{name}"\nsecrets = ["file:old", "file:{name}"]\n'
PLAIN_HMAC = """
[plain]
stream = "in/plain"
scheme = "hmac"
signing = {header = "X-Sign"}
secrets = ["file:plain"]
"""
SLACK = """
[slack]
stream = "in/slack"
scheme = "hmac"
secrets = ["file:plain"]
challenge = "slack"
signing = {header = "X-Slack-Signature", prefix = "v0=", signed = "v0:{time}:{body}", \
time_header = "X-Slack-Request-Timestamp"}
"""
Start = Callable[..., Awaitable[App]]


@pytest.fixture
def start(engine: EngineProtocol, tmp_path: Path) -> Start:
    """Starts a gateway with hooks."""

    async def begin(text: str, clock: Clock | None = None, **set_to: Any) -> App:
        settings = await asyncio.to_thread(_written, tmp_path, text, set_to)
        app = await asyncio.to_thread(create_app, settings, clock or SystemClock())
        app.life.open(engine)
        return app

    return begin


def _written(place: Path, text: str, set_to: Mapping[str, Any]) -> Settings:
    for name in ("stripe", "github", "plain", "shopify"):
        (place / name).write_text(PLAIN)
    (place / "old").write_text("whsec_b2xk\n")
    for name in ("standard-webhooks", "svix"):
        (place / name).write_text(WHSEC)
    (place / "hooks.toml").write_text(text)
    return bounded(log_requests="none", hooks_file=str(place / "hooks.toml"), **set_to)


def sign(body: bytes, prefix: bytes = b"") -> str:
    """The signature of a hook of the scheme hmac."""
    return hmac.new(PLAIN.encode(), prefix + body, "sha256").hexdigest()


async def send(http: httpx.AsyncClient, body: bytes, name: str = "plain", **headers: str) -> httpx.Response:
    sent = {"X-Sign": sign(body), **{one.replace("_", "-"): value for one, value in headers.items()}}
    return await http.post(f"/v1/hooks/{name}", content=body, headers=sent)


async def stored(http: httpx.AsyncClient, stream: str) -> list[Any]:
    """The fields of what a stream has."""
    answer = await http.get(f"/v1/streams/{stream.replace('/', '%2F')}/entries")
    return [
        {**one["fields"], **{k: v for k, v in one.items() if k == "encoding"}}
        for one in answer.json()["entries"]
    ]


@pytest.mark.parametrize(("name", "sender"), SENDERS.items(), ids=SENDERS)
async def test_what_the_senders_library_signs_is_stored_byte_for_byte(
    start: Start, name: str, sender: tuple[str, Sign]
) -> None:
    """By the second of two secrets too; one bit off, in the body or in the signature, is 401."""
    app = await start(HOOK.format(name=name) + 'keep_headers = ["X-Event"]\n')
    body = '{"b" : 1,  "a":"ä"}'
    headers = await asyncio.to_thread(sender[1], body, sender[0])
    headers = {**headers, "content-type": "application/json; charset=utf-8", "x-event": "push"}
    async with calling(app) as http:
        answer = await http.post(f"/v1/hooks/{name}", content=body.encode(), headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.json()["duplicate"] is False
        wrong = [await http.post(f"/v1/hooks/{name}", content=body.replace("1", "3"), headers=headers)]
        for header in headers:
            value = headers[header].encode()
            if header.lower().endswith(("signature", "256")):
                # The signature's last character but one: base64 has padding bits in its last.
                place = value.rindex(b",v0") - 2 if b",v0" in value else len(value) - 3
                value = value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
                changed = {**headers, header: value.decode()}
                wrong.append(await http.post(f"/v1/hooks/{name}", content=body.encode(), headers=changed))
        assert [one.status_code for one in wrong] == [401, 401]
        assert await stored(http, f"in/{name}") == [
            {"data": body, "content-type": "application/json; charset=utf-8", "h-x-event": "push"}
        ]


async def test_all_that_is_wrong_gets_one_answer(start: Start) -> None:
    """No such name, no signature, a wrong one: strangers learn nothing of which hooks there are."""
    app = await start(PLAIN_HMAC)
    async with calling(app) as http:
        answers = [
            await send(http, b"x", "nobody"),
            await http.post("/v1/hooks/plain", content=b"x"),
            await send(http, b"x", X_Sign="00"),
            await send(http, b"x", X_Sign=""),
            await http.get("/v1/hooks/plain?hub.verify_token=&hub.challenge=1"),
            await http.get("/v1/hooks/nobody?hub.verify_token=&hub.challenge=1"),
            await http.get(f"/v1/hooks/plain?{'&' * 16}hub.challenge=1"),
        ]
        texts = {json.dumps({**one.json(), "request_id": ""}) for one in answers}
        assert {one.status_code for one in answers} == {401}
        assert len(texts) == 1
        assert {one.headers["www-authenticate"] for one in answers} == {"Signature"}
        assert (await http.get("/v1/streams")).json()["streams"] == []


async def test_a_replay_is_refused_a_second_after_the_tolerance(start: Start) -> None:
    """The same into the future; a time that is no number is as wrong."""
    clock = HandClock()
    app = await start(SLACK, clock)
    now_s = clock.wall_ms() // 1000

    async def status(time: object) -> int:
        made = sign(b"x", f"v0:{time}:".encode())
        headers = {"X-Slack-Signature": f"v0={made}", "X-Slack-Request-Timestamp": f"{time}"}
        return (await http.post("/v1/hooks/slack", content=b"x", headers=headers)).status_code

    async with calling(app) as http:
        assert [await status(now_s + after) for after in (-301, -300, 300, 301)] == [401, 200, 200, 401]
        assert [await status(text) for text in ("", "now", f"{now_s}.0", "9" * 13)] == [401] * 4


async def test_a_redelivery_is_stored_once_whatever_it_says(start: Start) -> None:
    """By its key: senders write some things anew. Another hook of the same stream has keys of its own."""
    app = await start(
        PLAIN_HMAC + 'key = "X-Id"\n' + PLAIN_HMAC.replace("[plain]", "[other]") + 'key = "X-Id"\n'
    )
    async with calling(app) as http:
        first, again = await send(http, b"1", X_Id="7"), await send(http, b"2", X_Id="7")
        assert (again.status_code, again.json()) == (200, {"id": first.json()["id"], "duplicate": True})
        assert (await send(http, b"3", "other", X_Id="7")).json()["duplicate"] is False
        missing = await send(http, b"4")
        assert (missing.status_code, missing.json()["errors"][0]["header"]) == (422, "X-Id")
        assert [one["data"] for one in await stored(http, "in/plain")] == ["1", "3"]


async def test_a_key_may_stand_in_the_body(start: Start) -> None:
    app = await start(PLAIN_HMAC + 'key = "body:/event/id"\n')
    async with calling(app) as http:
        for body, status in (
            (b'{"event":{"id":"a"},"n":1}', 200),
            (b'{"event":{"id":"a"},"n":2}', 200),
            (b'{"event":{"id":12}}', 200),
            (b'{"event":{}}', 422),
            (b'{"event":7}', 422),
            (b"no JSON", 400),
        ):
            answer = await send(http, body)
            assert answer.status_code == status, answer.text
        assert len(await stored(http, "in/plain")) == 2


async def test_bytes_of_any_kind_and_length_are_stored(start: Start) -> None:
    """What is no text in base64; long ones are looked at in a thread; nothing at all is an entry too."""
    app = await start(PLAIN_HMAC, entry_bytes_max=1 << 20)
    async with calling(app) as http:
        for body in (b"\xff\x00", b"long" * 100_000, b""):
            assert (await send(http, body)).status_code == 200
        found = await stored(http, "in/plain")
        assert found[0] == {"data": "/wA=", "encoding": "base64"}
        assert [len(one["data"]) for one in found[1:]] == [400_000, 0]
        assert (await send(http, b"x" * (1 << 20))).json()["code"] == "entry_too_large"
        assert (await send(http, b"x" * (8 << 20 | 1))).json()["code"] == "body_too_large"


async def test_slacks_question_is_answered_once_it_is_signed(start: Start) -> None:
    """It is not stored; what looks like it and is none is."""
    clock = HandClock()
    app, now_s = await start(SLACK, clock), clock.wall_ms() // 1000
    bodies = [
        b'{"type":"url_verification","challenge":"abc"}',
        b'{"type":"event","text":"url_verification"}',
    ]
    async with calling(app) as http:
        answers = []
        for body in bodies:
            headers = {
                "X-Slack-Signature": "v0=" + sign(body, f"v0:{now_s}:".encode()),
                "X-Slack-Request-Timestamp": str(now_s),
            }
            answers.append(await http.post("/v1/hooks/slack", content=body, headers=headers))
        assert answers[0].json() == {"challenge": "abc"}
        assert (await http.post("/v1/hooks/slack", content=bodies[0])).status_code == 401
        assert [one["data"] for one in await stored(http, "in/slack")] == [bodies[1].decode()]


async def test_metas_question_is_answered_with_the_right_token(start: Start) -> None:
    app = await start(HOOK.format(name="github") + 'challenge = "meta"\nverify_token = "file:plain"\n')
    async with calling(app) as http:
        asked = {"hub.mode": "subscribe", "hub.verify_token": PLAIN, "hub.challenge": "1158201444"}
        right = await http.get("/v1/hooks/github", params=asked)
        assert (right.status_code, right.text) == (200, "1158201444")
        assert right.headers["content-type"] == "text/plain; charset=utf-8"
        for wrong in ({"hub.verify_token": "x"}, {"hub.challenge": ""}, {"hub.challenge": "1" * 1_025}):
            assert (await http.get("/v1/hooks/github", params={**asked, **wrong})).status_code == 401


async def test_a_hook_has_a_rate_and_wrong_signatures_use_up_that_of_their_address(start: Start) -> None:
    """A stranger uses up no hook's rate. An address that was wrong too often is not looked at any more."""
    app = await start(PLAIN_HMAC + 'rate = "1/s burst 2"\n', HandClock(), rate_failures="1/s burst 3")
    async with calling(app, "10.0.0.1") as http, calling(app, "10.0.0.2") as stranger:
        wrong = [(await send(stranger, b"x", X_Sign="0")).status_code for _ in range(4)]
        assert wrong == [401, 401, 401, 429]
        assert (await send(stranger, b"x")).json()["limit"] == "failures"
        taken = list[int]()

        async def pieces() -> AsyncIterator[bytes]:
            for number in range(3):
                taken.append(number)
                yield b"x"

        refused = await stranger.post("/v1/hooks/plain", content=pieces())
        assert (refused.status_code, taken) == (429, []), "the body is not read"
        answers = [await send(http, b"x") for _ in range(3)]
        assert [one.status_code for one in answers] == [200, 200, 429]
        assert (answers[2].json()["limit"], answers[2].headers["retry-after"]) == ("requests", "1")


async def test_an_operator_sees_what_came(start: Start, tmp_path: Path) -> None:
    """In the metrics, in the list of hooks, and what was refused in the audit log, without its body."""
    path = tmp_path / "audit.jsonl"
    app = await start(PLAIN_HMAC + 'key = "X-Id"\n', HandClock(), audit_file=str(path))
    async with calling(app) as http:
        for key in ("1", "1", ""):
            await send(http, b"x", X_Id=key)
        await send(http, b"private", X_Sign="0")
        await send(http, b"private", "nobody")
        series = await metrics.scrape(http)
        shown = {
            tuple(sorted(labels)): n for (name, labels), n in series.items() if name == "weir_hooks_total"
        }
        assert {(hook, result): n for ((_, hook), (_, result)), n in shown.items() if n} == {
            ("plain", "stored"): 1,
            ("plain", "duplicate"): 1,
            ("plain", "refused"): 1,
            ("plain", "rejected"): 1,
            ("", "refused"): 1,
        }
        assert (await http.get("/v1/hooks")).json() == {
            "hooks": [
                {
                    "name": "plain", "stream": "in/plain", "scheme": "hmac", "stored": 1, "duplicates": 1,
                    "refused": 1, "rejected": 1, "last_at": "2023-11-14T22:13:20.000Z",
                }
            ],
            "unknown": 1,
        }  # fmt: skip
    await asyncio.to_thread(app.gateway.access.audit.flush)
    text = await asyncio.to_thread(path.read_text)
    assert "private" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(one["operation"], one["action"], one["hook"], one["status"]) for one in lines] == [
        ("receiveHook", "hook", "plain", 401),
        ("receiveHook", "hook", "nobody", 401),
    ]


async def test_a_hook_takes_cloudevents(start: Start) -> None:
    """As publishing does, with the headers that it keeps; their source and ID may be the key."""
    app = await start(PLAIN_HMAC + 'key = "cloudevent"\nkeep_headers = ["X-Event"]\n')
    event = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{ "a":1 }}'
    async with calling(app) as http:
        headers = {"content_type": "application/cloudevents+json", "X_Event": "e"}
        for _ in range(2):
            assert (await send(http, event, **headers)).status_code == 200
        assert await stored(http, "in/plain") == [
            {
                "ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t",
                "content-type": "application/json", "data": '{ "a":1 }', "h-x-event": "e",
            }
        ]  # fmt: skip
        bad = await send(http, event.replace(b"1.0", b"0.3"), **headers)
        assert (bad.status_code, bad.json()["errors"][0]["pointer"]) == (422, "/specversion")
        assert (await send(http, b"no event")).status_code == 422


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1", "x: Input should be"),
        ("['a/b']\n", "String should match"),
        (PLAIN_HMAC.replace("in/plain", "a//b"), "plain.stream"),
        (PLAIN_HMAC.replace("file:plain", "plain"), "plain.secrets.0"),
        (PLAIN_HMAC.replace("file:plain", "file:missing"), "missing: No such file"),
        (PLAIN_HMAC.replace('"file:plain"', '"file:plain","file:plain","file:plain"'), "at most 2"),
        (PLAIN_HMAC.replace('"hmac"', '"github"'), "signing goes with the scheme hmac"),
        (PLAIN_HMAC.replace("X-Sign", "X Sign"), "plain.signing.header"),
        (SLACK.replace("{body}", "{text}"), "signed has {body} once"),
        (SLACK.replace("{time}:", ""), "signed has no {time}"),
        (PLAIN_HMAC + 'challenge = "meta"', "verify_token goes with"),
        (PLAIN_HMAC + 'rate = "5"', "plain.rate"),
        (PLAIN_HMAC + 'colour = "red"', "plain.colour"),
        (HOOK.format(name="svix").replace("file:svix", "file:plain"), "no whsec_<base64>"),
        ("not [ toml", "hooks_file"),
    ],
)
async def test_a_file_with_a_mistake_is_refused_and_changes_nothing(
    start: Start, tmp_path: Path, text: str, reason: str
) -> None:
    """At the start with words that say where; at SIGHUP the hooks of before stay in use."""
    app = await start(PLAIN_HMAC)
    file = tmp_path / "hooks.toml"
    await asyncio.to_thread(file.write_text, text)
    with pytest.raises(SettingsError) as error:
        await asyncio.to_thread(Hooks, app.gateway.settings)
    assert reason in str(error.value)
    await reload_hooks(app.gateway)
    async with calling(app) as http:
        assert (await send(http, b"x")).status_code == 200
        assert (await http.get("/healthz/ready")).json()["failing"] == ["hooks_stale"]
        await asyncio.to_thread(file.write_text, PLAIN_HMAC.replace("plain]", "new]"))
        await reload_hooks(app.gateway)
        assert [(await send(http, b"x", name)).status_code for name in ("plain", "new")] == [401, 200]
        assert "failing" not in (await http.get("/healthz/ready")).json()


async def test_a_secret_that_is_replaced_signs_until_it_is_gone(start: Start, tmp_path: Path) -> None:
    app = await start(HOOK.format(name="stripe"))
    await asyncio.to_thread((tmp_path / "stripe").write_text, "new")
    await reload_hooks(app.gateway)
    async with calling(app) as http:
        for secret, status in ((PLAIN, 401), ("new", 200), ("whsec_b2xk", 200)):
            answer = await http.post("/v1/hooks/stripe", content="x", headers=by_stripe("x", secret))
            assert answer.status_code == status, secret
