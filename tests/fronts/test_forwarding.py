"""What a front forwards, without processes."""

import gzip
import json
from typing import Any

from app.fronts.forwarding import Operations, pack_request
from app.http.plan import HeadPlan
from app.http.requests import Request
from app.http.responses import Exchange
from app.main import ROUTES, App

LABEL = "POST /v1/admin/backup"


async def test_a_coded_body_is_forwarded_as_what_it_stands_for(app: App) -> None:
    body = gzip.compress(b'{"name":"one"}')
    headers = [(b"content-encoding", b"gzip"), (b"content-length", b"%d" % len(body))]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    scope = {
        "type": "http",
        "method": "POST",
        "raw_path": b"/v1/admin/backup",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 4_711),
    }
    exchange = Exchange(HeadPlan("GET", b"/", b"", {}), "r")
    packed = await pack_request(Request(app.gateway, scope, receive, exchange))
    operations = {one.label: one for one in ROUTES}
    status, answer, *_ = await Operations(app.gateway, operations).run(LABEL, packed)
    assert (status, json.loads(answer)["code"]) == (409, "not_configured"), "the name was read"
