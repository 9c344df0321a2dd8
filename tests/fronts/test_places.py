"""What a follower holds that could not begin: its front has lost the engine's process meanwhile."""

import asyncio

import pytest

from app.main import App
from app.settings import Settings
from engine import Engine
from engine.commands.durable_commands import CreateDurable
from tests.app.conftest import calling
from tests.bounds import bounded
from tests.engine.asking import reply_to
from tests.fronts.joined import join


@pytest.fixture(scope="module")
def settings() -> Settings:
    return bounded(log_requests="none", durable_streams=True)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/stream/s?offset=-1&live=sse",
        "/v1/streams/s/tail",
        "/v1/tail?stream=s&stream=t",
    ],
)
async def test_a_follower_that_cannot_begin_gives_its_place_back(
    closed_app: App, engine: Engine, path: str
) -> None:
    """Its caller has as many as before."""
    await reply_to(engine, CreateDurable(stream="s", media="text/plain", config=b""))
    joined = await join(engine)
    gateway = closed_app.gateway
    closed_app.life.open(joined.remote)
    async with calling(closed_app) as http:
        following = asyncio.ensure_future(http.get(path, headers={"accept": "text/event-stream"}))
        async with asyncio.timeout(5):
            while not gateway.waits.count:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0)
            joined.cut()
            await following
    assert (gateway.waits.count, len(gateway.limits.connections)) == (0, 0)
