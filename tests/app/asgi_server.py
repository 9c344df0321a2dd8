"""The gateway behind a server that knows nothing but ASGI, as `uvicorn app.main:app` has it.

Knows: how such a connection serves an application. Must never know: what is asked of it.
"""

from functools import partial

from app.doors.http.http_connection import HttpConnection
from app.doors.http.listening import HttpServer, Times
from app.main import App
from app.server import http_service
from app.settings import Settings


def asgi_server(settings: Settings, app: App) -> HttpServer:
    """What serves the application with every request in a task of its own, read by the parser."""
    service = http_service(settings, app, app)
    times = Times(settings.handshake_s_max, settings.drain_s_max)
    return HttpServer(service, partial(HttpConnection, service), times)
