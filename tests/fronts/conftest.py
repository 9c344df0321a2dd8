"""The application on an engine that is behind a front's connection, called without a network."""

import pytest

from app.main import App
from engine import Engine
from tests.app.conftest import backend, closed_app, engine, five, http, settings
from tests.fronts.joined import join

__all__ = ["app", "backend", "closed_app", "engine", "five", "http", "settings"]


@pytest.fixture
async def app(closed_app: App, engine: Engine) -> App:
    """The front's application."""
    closed_app.life.open((await join(engine)).remote)
    return closed_app
