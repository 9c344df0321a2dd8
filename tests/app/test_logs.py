"""Log lines: one JSON object each, for any input of a client; of streams nothing but their names."""

import io
import json

import pytest

from app import logs
from app.settings import Settings
from engine import Engine
from tests.app.conftest import app_on, calling

HOSTILE = "a\r\nlevel: fine\x1b[31m\x7f\u2028\u0085\ud800" + "x" * 1_000


def line(path: str, status: int = 200) -> logs.RequestLine:
    return logs.RequestLine("id", "GET", path, status, 1.5, 10, "2026-01-01T00:00:00Z")


async def test_a_line_is_one_line_of_plain_ascii() -> None:
    """No client can end it, colour it or make it endless."""
    target = io.StringIO()
    log = logs.RequestLog("all", "info", "json", target)
    log.note(line(HOSTILE))
    log.flush()
    text = target.getvalue()
    assert text.endswith("\n")
    assert text[:-1].isascii()
    assert text[:-1].isprintable()
    assert len(text) < 1_000
    assert json.loads(text)["event"] == "request"


@pytest.mark.parametrize(
    ("wanted", "level", "statuses"),
    [
        ("all", "info", [200, 404, 500]),
        ("failed", "info", [404, 500]),
        ("none", "info", []),
        ("all", "error", []),
    ],
)
async def test_only_wanted_requests_are_noted(wanted: str, level: str, statuses: list[int]) -> None:
    """By the setting, and by the level."""
    log = logs.RequestLog(wanted, level, "json", io.StringIO())
    assert [status for status in (200, 404, 500) if status >= log.least_status] == statuses


async def test_a_request_is_noted_without_its_content(
    engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    """Method, path, status, time, bytes, ID: neither query nor headers nor body."""
    app = app_on(engine, Settings(log_requests="all"))
    headers = {"authorization": "Bearer secret-1", "weir-request-id": "r-1"}
    async with calling(app, base_url="http://localhost") as http:
        body = {"fields": {"a": "secret-2"}}
        await http.post("/v1/streams/s%20t/entries?maxlen=7654321", json=body, headers=headers)
        app.flush_logs()
    result = json.loads(capfd.readouterr().err)
    assert (result["method"], result["path"], result["status"]) == ("POST", "/v1/streams/s%20t/entries", 201)
    assert result["request_id"] == "r-1"
    assert not [word for word in ("secret", "7654321", "maxlen") if word in json.dumps(result)]


def test_other_lines_are_safe_too(capfd: pytest.CaptureFixture[str]) -> None:
    """What is logged by name is escaped as well, and cut."""
    target = io.StringIO()
    logs.configure("info", "json", target)
    logs.get().info("event", text=HOSTILE.replace("\ud800", ""))
    logs.get().debug("not shown")
    (text,) = target.getvalue().splitlines()
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text)["level"] == "info"


class Terminal(io.StringIO):
    """What a person looks at."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("form", "target", "is_json"),
    [
        ("auto", io.StringIO(), True),
        ("auto", Terminal(), False),
        ("json", Terminal(), True),
        ("console", io.StringIO(), False),
    ],
)
async def test_the_form_follows_the_terminal(form: str, target: io.StringIO, *, is_json: bool) -> None:
    """JSON for programs, text for people; the setting decides where it says so."""
    logs.configure("info", form, target)
    logs.get().info("ready", frames=3)
    assert target.getvalue().startswith("{") is is_json
    assert "ready" in target.getvalue()
    log = logs.RequestLog("all", "info", form, target)
    assert log.least_status <= 200
