"""docs/answers.md, docs/live-page.md: applications with four workers, as they stand there."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.documents.programs import programs
from tests.documents.test_documents import PYTHONPATH, ROOT, compile_client
from tests.server import Server, free_port
from tests.waiting import until

WORKERS: Final = 4
LINES_MAX: Final = 60
# Asked for `words` it says ten, else it goes on and on; it notes that it was asked, and that it ended.
MODEL_PY: Final = """
import asyncio

def note(what):
    with open("noted", "a") as noted:
        noted.write(what + "\\n")

async def tokens(question):
    note("asked " + question)
    try:
        for number in range(10 if question == "words" else 10_000):
            yield f"ü{number} "
            await asyncio.sleep(0.1)
    finally:
        note("ended " + question)
"""
MODEL_MJS: Final = """
import { appendFileSync } from "node:fs"
import { setTimeout as sleep } from "node:timers/promises"

const note = (what) => appendFileSync("noted", what + "\\n")

export function tokens(question) {
  note("asked " + question)
  async function* words() {
    try {
      for (let number = 0; number < (question === "words" ? 10 : 10_000); number += 1) {
        yield `ü${number} `
        await sleep(100)
      }
    } finally {
      note("ended " + question)
    }
  }
  return ReadableStream.from(words())
}
"""
ALL: Final = "".join(f"ü{number} " for number in range(10))
KINDS: Final = ("fastapi", "next")


@contextlib.contextmanager
def running(directory: Path, words: list[Any], port: int) -> Iterator[str]:
    """An application and its workers, which end with it; where it is."""
    with (directory / "application.log").open("wb") as log:
        process = subprocess.Popen(
            [*words, str(port)],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/answers/none").status_code == 404
        return False

    try:
        until(answers, "the application answers")
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def written(name: str, directory: Path, server: Server) -> None:
    """A document's programs, with the gateway's place."""
    text = (ROOT / "docs" / name).read_text().replace("localhost:8080", f"127.0.0.1:{server.port}")
    for file, program in programs(text).items():
        (directory / file).write_text(program)


def uvicorn(module: str) -> list[Any]:
    return [sys.executable, "-m", "uvicorn", module, "--workers", str(WORKERS), "--port"]


@pytest.fixture(params=KINDS)
def application(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Iterator[str]:
    """The application of docs/answers.md."""
    written("answers.md", tmp_path, server)
    (tmp_path / "model.py").write_text(MODEL_PY)
    (tmp_path / "model.mjs").write_text(MODEL_MJS)
    words: list[Any] = uvicorn("answers:app")
    if request.param == "next":
        compile_client(tmp_path / "node_modules" / "weir-client")
        shutil.copy(Path(__file__).with_name("route_server.mjs"), tmp_path)
        words = ["node", "route_server.mjs"]
    with running(tmp_path, words, free_port()) as url:
        yield url


def ask(application: str, answer: str, question: str, pieces: int) -> str:
    """The first pieces of an answer; then the browser leaves."""
    seen = ""
    asked = {"json": {"question": question}, "timeout": 30}
    with httpx.stream("POST", f"{application}/answers/{answer}", **asked) as response:  # type: ignore[arg-type]
        assert response.status_code == 200
        for text in response.iter_text():
            seen += text
            if seen.count(" ") >= pieces:
                break
    return seen


def test_an_answer_survives_reloads_and_is_stopped_from_any_worker(application: str, tmp_path: Path) -> None:
    """The model is asked once for each answer, and ends where it is stopped."""
    noted = tmp_path / "noted"
    assert ALL.startswith(ask(application, "one", "words", 2))
    # Each connection may reach another worker.
    for _ in range(WORKERS):
        assert ALL.startswith(ask(application, "one", "words", 3))
    assert httpx.get(f"{application}/answers/one", timeout=30).text == ALL
    assert httpx.get(f"{application}/answers/one", timeout=30).text == ALL
    assert noted.read_text().splitlines() == ["asked words", "ended words"]
    ask(application, "two", "endless", 3)
    texts: list[str] = []
    reading = [
        threading.Thread(
            target=lambda: texts.append(httpx.get(f"{application}/answers/two", timeout=60).text)
        )
        for _ in range(WORKERS)
    ]
    for one in reading:
        one.start()
    assert httpx.delete(f"{application}/answers/two").status_code == 204
    for one in reading:
        one.join(30)
    assert len(texts) == WORKERS
    assert len(set(texts)) == 1
    until(lambda: noted.read_text().splitlines()[2:] == ["asked endless", "ended endless"], "the model ends")
    assert httpx.delete(f"{application}/answers/none").status_code == 204


def test_a_live_page_shows_what_any_worker_took(server: Server, tmp_path: Path) -> None:
    """And what came while the browser was away, and the gateway was killed."""
    written("live-page.md", tmp_path, server)
    with running(tmp_path, uvicorn("live:app"), free_port()) as url:
        assert "EventSource" in httpx.get(url).text
        for number in range(8):
            assert httpx.post(f"{url}/orders", json={"item": f"item {number}"}).status_code == 201
        last, items = _events(url, 8)
        assert items == [f"item {number}" for number in range(8)]
        server.restart()
        httpx.post(f"{url}/orders", json={"item": "away"}, timeout=30)
        assert _events(url, 1, {"last-event-id": last})[1] == ["away"]


def _events(url: str, count: int, headers: dict[str, str] | None = None) -> tuple[str, list[str]]:
    """The last ID and the items of the first events."""
    seen = ""
    with httpx.stream("GET", f"{url}/events", headers=headers, timeout=30) as response:
        for text in response.iter_text():
            seen += text
            if seen.count("\n\n") >= count:
                break
    data = [json.loads(line) for line in re.findall(r"^data: (.*)$", seen, re.MULTILINE)]
    return re.findall(r"^id: (.*)$", seen, re.MULTILINE)[-1], [one["item"] for one in data]


@pytest.mark.parametrize("name", ["answers.md", "live-page.md", "leave-celery.md", "mcp.md"])
def test_its_programs_are_short(name: str) -> None:
    found = programs((ROOT / "docs" / name).read_text())
    assert found
    assert {
        file: len(text.splitlines()) for file, text in found.items() if text.count("\n") > LINES_MAX
    } == {}
