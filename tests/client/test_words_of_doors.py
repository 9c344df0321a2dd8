"""A refusal speaks the words of its door: no command line and no page names a path of the API, no command of
Redis a member of a request, no request a command of Redis.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

import httpx
import pytest

from app.api.groups.groups import GroupPolicy
from app.errors import CODES
from app.settings import Settings
from engine import EngineError, errors, remedies
from tests.cli.command import weir
from weir.paths import stream_path

_OF_THE_API = ("POST /v1", "DELETE /v1", "PATCH /v1", "PUT /v1", "pending=drop", "schedules=drop")


_REST: Final = re.compile(
    r"\b(?:GET|POST|PUT|PATCH|DELETE) \S*/|/v1|[a-z]+=[a-z]+|[a-z]+(?:_[a-z]+)+|\b[A-Z][a-z]+-[A-Z]\w+"
)
_REDIS: Final = re.compile(r"\bX[A-Z]{2,}\b|\bWEIR\.|\bRECURRING\b")
# Settings, codes and the policy of a group have one name at all doors; the others are words of Redis itself.
_EVERYWHERE: Final = {
    *(*dir(Settings), *Settings.model_fields, *CODES, *GroupPolicy.model_fields, "fsync=no"),
    *("entries_added", "max_deleted_entry_id"),
}
_NAMES: Final = dict.fromkeys(("stream", "group", "consumer", "id", "next_id", "damaged_upto"), "x")
# What Durable Streams alone refuses, in its own words.
_OF_DURABLE: Final = {"fork_beyond_end", "fork_of_another_stream", "writer_seq_too_small"}


def _of_another_door(text: str, pattern: re.Pattern[str]) -> set[str]:
    return {*pattern.findall(text)} - _EVERYWHERE


def _made() -> Iterator[tuple[str, EngineError]]:
    """Each refusal that the engine has a function for."""
    samples = {int: 1, str: "x", bool: True}
    for name, make in inspect.getmembers(errors, inspect.isfunction):
        given = inspect.signature(make).parameters.values()
        if inspect.signature(make).return_annotation is EngineError and all(
            one.annotation in samples for one in given
        ):
            flags = {one.name: samples[one.annotation] for one in given if one.kind is one.KEYWORD_ONLY}
            yield name, make(*(samples[one.annotation] for one in given if one.name not in flags), **flags)


@pytest.mark.parametrize("refusal", [pytest.param(one, id=name) for name, one in _made()])
def test_a_refusal_says_no_word_of_another_door(refusal: EngineError, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.id not in _OF_DURABLE:
        assert not _of_another_door(refusal.redis, _REST)
    said = errors.by_door(refusal)
    assert not _of_another_door(said.pop("redis", ""), _REST)
    for text in (refusal.detail, *said.values()):
        assert not _of_another_door(text, _REDIS)


@pytest.mark.parametrize(
    ("folder", "pattern"),
    [
        *[(folder, _REST) for folder in ("app/redis", "app/doors/resp")],
        *[(folder, _REDIS) for folder in ("app/api", "app/http", "app/live", "app/doors", "engine/cluster")],
    ],
)
def test_a_sentence_that_is_written_at_its_door_has_the_words_of_it(
    folder: str, pattern: re.Pattern[str]
) -> None:
    for file in Path(folder).rglob("*.py"):
        at_another = pattern is _REDIS and "resp" in file.parts
        for call in () if at_another else ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] in (
                *("invalid", "invalid_schedule", "EngineError"),
            ):
                text = " ".join(str(one.value) for one in ast.walk(call) if isinstance(one, ast.Constant))
                assert not _of_another_door(text, pattern), f"{file}:{call.lineno}"


@pytest.mark.parametrize("sentence", ["every_ms: at least 5", "expires_in_ms: 5", "paused_until: 5", "at: 5"])
def test_the_rule_of_a_schedule_is_refused_in_the_words_of_its_door(sentence: str) -> None:
    refusal = errors.invalid_schedule(sentence)
    assert refusal.detail == sentence
    assert refusal.redis.split()[1].upper() in {"EVERY:", "EXPIRES:", "UNTIL:", "AT:"}


@pytest.mark.parametrize("code", remedies._BY_DOOR)  # noqa: SLF001 - all of the table
def test_each_remedy_has_words_for_each_door(code: str) -> None:
    found = remedies.remedy(code, **_NAMES)
    assert all(found), "each door has a sentence"
    assert "{" not in found.cli + found.console + found.redis
    for words in (found.cli, found.console, found.redis):
        assert not _of_another_door(words, _REST)
        assert words is found.redis or not _of_another_door(words, _REDIS)


@pytest.mark.parametrize("code", remedies._BY_DOOR)  # noqa: SLF001 - all of the table
def test_a_command_line_of_a_remedy_is_one(url: str, code: str) -> None:
    """Its command is there, and has the options that are named."""
    found = remedies.remedy(code, **_NAMES).cli
    for line in re.findall(r"\bweir ([^,;:]+)", found):
        words = line.split()
        names = list(takewhile(lambda word: re.fullmatch("[a-z-]{2,}", word), words))
        asked = weir(url, *names, "--help")
        assert asked.code == 0, line
        shown = re.sub(r"[^\w-]+", " ", asked.out).split()
        assert {word for word in words if word.startswith("--")} <= {*shown}, line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("close {s}", "--drop-schedules"),
        ("delete {s} --yes", "--drop-schedules"),
        ("ack {s} g x", "ids: "),
        ("claim {s} g c x", "ids: "),
        ("groups set {s} g --start x", "last_delivered_id: "),
    ],
)
def test_a_command_line_names_its_own_options(url: str, stream: str, words: str, said: str) -> None:
    weir(url, "groups", "create", stream, "g")
    weir(url, "schedule", stream, "later", "n=1", "--in", "1h")
    done = weir(url, *(word.replace("{s}", stream) for word in words.split()))
    assert done.code != 0
    assert said in done.err
    assert not any(one in done.err for one in (*_OF_THE_API, "/ids", "/last_delivered_id"))


def test_over_rest_the_request_is_named(url: str, stream: str) -> None:
    """And what the other doors say stands beside it."""
    weir(url, "schedule", stream, "later", "n=1", "--in", "1h")
    problem = httpx.delete(f"{url}{stream_path(stream)}").json()
    assert "DELETE /v1/streams/{stream}?schedules=drop" in problem["detail"]
    assert problem["by_door"]["cli"].endswith("delete it with --drop-schedules")
    assert "Scheduled" in problem["by_door"]["console"]
