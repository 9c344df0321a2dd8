"""The bounds of the settings: of their own values, and of what a gateway that is set so takes, at both sides.

Knows: one request for each setting, as long as it is told. Must never know: where a bound is looked at.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import annotated_types
import httpx
import pytest
from pydantic import ValidationError

from app.main import create_app
from app.settings import Settings
from engine import Engine, SystemClock
from tests.app.conftest import BASE

ENTRIES = "/v1/streams/s/entries"
JSON = {"content-type": "application/json"}


@asynccontextmanager
async def gateway(**limits: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway that is set so."""
    engine = Engine.open(None, clock=SystemClock())
    await engine.start()
    app = create_app(Settings(log_requests="none", **limits), SystemClock())
    app.gateway.open(engine)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as http:
        yield http
    await engine.close()


# ---- what a setting may be


def bounds_of(name: str) -> tuple[int, int]:
    """The smallest and the largest value of a number."""
    found = Settings.model_fields[name].metadata
    (least,) = [one.ge for one in found if isinstance(one, annotated_types.Ge)]
    (most,) = [one.le for one in found if isinstance(one, annotated_types.Le)]
    assert isinstance(least, int)
    assert isinstance(most, int)
    return least, most


NUMBERS = [name for name, field in Settings.model_fields.items() if field.annotation is int]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_setting_is_within_its_bounds(name: str) -> None:
    """Every number has both; at each it is taken, beyond it refused by its name."""
    least, most = bounds_of(name)
    for value in (least, least + 1, most - 1, most):
        assert getattr(Settings.model_validate({name: value}), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ValidationError, match=name):
            Settings.model_validate({name: value})


# ---- what is taken of a gateway that is set so


Ask = Callable[[int], tuple[str, str, bytes | None]]


def posted(path: str, body: object) -> tuple[str, str, bytes]:
    return "POST", path, json.dumps(body).encode()


def entry_of_bytes(size: int) -> tuple[str, str, bytes]:
    """A publication with a body of so many bytes."""
    empty = len(b'{"fields":{"a":""}}')
    return "POST", ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * (size - empty))


ASKED: dict[str, tuple[int, Ask, str]] = {
    "body_bytes_max": (1_024, entry_of_bytes, "body_too_large"),
    "batch_entries_max": (
        3,
        lambda n: posted(ENTRIES, {"entries": [{"fields": {"a": "1"}}] * n}),
        "too_many_entries",
    ),
    "pipeline_commands_max": (
        3,
        lambda n: posted("/v1/commands/pipeline", [["PING"]] * n),
        "too_many_entries",
    ),
    "request_streams_max": (
        3,
        lambda n: posted("/v1/publish", {"streams": {f"s{i}": [{"fields": {"a": "1"}}] for i in range(n)}}),
        "invalid",
    ),
    "count_max": (7, lambda n: ("GET", f"{ENTRIES}?count={n}", None), "invalid"),
    "columns_count_max": (7, lambda n: ("COLUMNS", f"{ENTRIES}?after=0&count={n}", None), "invalid"),
    "wait_ms_max": (3, lambda n: ("GET", f"{ENTRIES}?after=$&wait={n}", None), "invalid"),
}


@pytest.mark.parametrize("name", ASKED)
async def test_a_request_is_within_what_is_set(name: str) -> None:
    """One less and as much are taken; one more is refused."""
    most, ask, code = ASKED[name]
    async with gateway(**{name: most}) as http:
        await http.post(ENTRIES, json={"fields": {"a": "1"}})
        for size in (most - 1, most, most + 1):
            method, path, content = ask(size)
            headers = JSON if content else {}
            if method == "COLUMNS":
                method, headers = "GET", {"accept": "application/vnd.weir.columns+json"}
            answer = await http.request(method, path, content=content, headers=headers)
            if size <= most:
                assert answer.is_success, (size, answer.text)
            else:
                assert answer.status_code in (413, 422), answer.text
                assert answer.json()["code"] == code


async def test_an_answer_without_a_count_has_as_many_entries_as_are_set() -> None:
    """One less and as many are whole; of one more the last stays for the next page."""
    async with gateway(count_default=3) as http:
        for size, more in ((2, False), (3, False), (4, True)):
            rows = [{"fields": {"a": "1"}}] * size
            await http.post(f"/v1/streams/{size}/entries", json={"entries": rows})
            page = (await http.get(f"/v1/streams/{size}/entries")).json()
            assert (len(page["entries"]), page["more"]) == (min(size, 3), more)


async def test_json_is_nested_as_deep_as_is_set() -> None:
    """What is within the limit is refused for what it is, what is deeper for its depth."""
    async with gateway(json_depth_max=6) as http:
        told = []
        for levels in (5, 6, 7):
            ids = "[" * (levels - 1) + "]" * (levels - 1)
            answer = await http.post(f"{ENTRIES}/delete", content=f'{{"ids":{ids}}}', headers=JSON)
            told.append(answer.json()["detail"])
        assert told[0] == told[1] != told[2]
        assert "6" in told[2]
