"""The content of the gateway that the description's examples are about, at a moment that never passes.

Knows: which streams, groups and pending entries there are. Must never know: which examples use them.
"""

import asyncio
import hmac
from pathlib import Path

import httpx
from pydantic import SecretStr

from app.main import App, create_app
from app.settings import Settings
from engine import Engine
from engine.commands.types import DbSize
from engine.commands.weir_commands import PutMetadata
from tests.engine.asking import reply_to, turn_of

NOW_MS = 1526919040000
ORDERS = [
    {"id": "1526919030474-0", "fields": {"item": "apple", "quantity": "3"}},
    {"id": "1526919030474-1", "fields": {"item": "pear", "quantity": "1"}},
    {"id": "1526919035120-0", "fields": {"item": "plum", "quantity": "12"}},
]
ROOT_TOKEN = "the root token of the examples"
HOOKS = Path(__file__).with_name("hooks.toml")
# Of the webhook of the examples.
SIGNATURE = hmac.digest(HOOKS.read_bytes().strip(), b'{"ref":"refs/heads/main"}', "sha256").hex()
# As `app.live.token_store` keeps them.
KEPT = {
    "token:Zb3kq0VJm2aX": b'{"id":"Zb3kq0VJm2aX","hash":"sha256:%b","label":"billing",' % (b"0" * 64)
    + b'"grants":[{"actions":["consume"],"streams":"orders","groups":"billing*"},"read:orders*"],'
    + b'"created_at":"2018-05-15T08:00:00Z","created_by":"token:root00000000"}',
    "revoked:jti:6f2d": b'{"kind":"jti","value":"6f2d","revoked_at":"2018-05-21T16:10:35Z",'
    b'"expires_at":"2018-05-21T16:25:35Z"}',
}


class SteppedClock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000


async def open_gateway() -> tuple[App, Engine]:
    """A gateway with that content."""
    clock = SteppedClock()
    engine = Engine.open(None, clock=clock)
    await engine.start()
    # A backup can be begun; there is no directory to copy, so that it fails at once.
    settings = Settings(
        log_requests="none",
        data=Path("/nowhere/data"),
        backup_dir="/nowhere/backups",
        root_token=SecretStr(ROOT_TOKEN),
        hooks_file=str(HOOKS),
    )
    app = await asyncio.to_thread(create_app, settings, clock)
    await turn_of(engine, [PutMetadata(name=name, value=value) for name, value in KEPT.items()])
    app.life.open(engine)
    clock.now_ms = NOW_MS - 5_000
    async with client_of(app) as http:
        await _fill(http)
    # Plans tell what is on disk: everything.
    await reply_to(engine, DbSize(), synced=True)
    clock.now_ms = NOW_MS
    return app, engine


def client_of(app: App) -> httpx.AsyncClient:
    """A client of that gateway, which signs the webhook of the examples."""
    headers = {"authorization": f"Bearer {ROOT_TOKEN}", "x-hub-signature-256": f"sha256={SIGNATURE}"}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080", headers=headers
    )


async def _fill(http: httpx.AsyncClient) -> None:
    group = {"name": "billing", "start": "0", "dead_letter": {"stream": "orders:dead", "max_deliveries": 5}}
    dead = {"item": "fig", "quantity": "7", "weir-source": "orders", "weir-id": "1526919020000-0"}
    dead |= {"weir-group": "billing", "weir-consumer": "worker-1", "weir-deliveries": "5"}
    dead |= {"weir-reason": "max_deliveries"}
    requests: list[tuple[str, object]] = [
        ("/v1/streams/orders/entries", {"entries": ORDERS}),
        ("/v1/streams/payments/entries", {"id": "1526919031000-0", "fields": {"amount": "4.20"}}),
        ("/v1/streams/orders:dead/entries", {"id": "1526919032000-0", "fields": dead}),
        ("/v1/streams/orders/groups", group),
        ("/v1/streams/orders/groups/billing/consumers/worker-1/read", {"count": 2}),
    ]
    for path, body in requests:
        (await http.post(path, json=body)).raise_for_status()
    (await http.put("/v1/streams/orders/groups/billing/consumers/worker-2")).raise_for_status()
    nightly = {"entry": {"fields": {"report": "orders"}}, "cron": "30 2 * * *", "tz": "Europe/Berlin"}
    (await http.put("/v1/streams/orders/schedules/nightly", json=nightly)).raise_for_status()
