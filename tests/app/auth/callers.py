"""Gateways that know tokens, and callers with one of them.

Knows: how a token is configured and sent. Must never know: what is being tested.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
from pydantic import SecretStr

from app.auth import Grant, token_file, tokens
from app.main import App
from app.policies import policy_of
from app.settings import Settings
from engine import Clock, Engine, SystemClock
from tests.app.conftest import app_on

ROOT: Final = "root-token-of-at-least-24-characters"


async def app_with(
    engine: Engine,
    tmp_path: Path,
    *made: tokens.CreatedToken,
    clock: Clock | None = None,
    **set_to: Any,
) -> App:
    path = tmp_path / "tokens.toml"
    clock, lines = clock or SystemClock(), "".join(token_file.write(one.token) for one in made)
    settings = Settings(log_requests="none", root_token=SecretStr(ROOT), tokens_file=str(path), **set_to)
    await asyncio.to_thread(path.write_text, lines)
    policy = await asyncio.to_thread(policy_of, settings, clock)
    return app_on(engine, settings, clock, policy=policy)


def client(app: App, token: str | None) -> httpx.AsyncClient:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


def made(*grants: str, expires_in_s: float | None = None) -> tokens.CreatedToken:
    end = None if expires_in_s is None else datetime.now(UTC) + timedelta(seconds=expires_in_s)
    return tokens.create(tuple(map(Grant.parse, grants)), expires_at=end)
