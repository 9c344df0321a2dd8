"""docs/durable-streams.md: its programs as they stand there, while the gateway is killed."""

import contextlib
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.browsing import open_page
from tests.documents.programs import programs
from tests.server import Server, free_port
from tests.waiting import until

DOCUMENT: Final = (Path(__file__).parents[2] / "docs" / "durable-streams.md").read_text()
_SHELL: Final = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROOT: Final = "correct-horse-battery-staple-documents"
MODULES: Final = Path(__file__).parents[1] / "sdk" / "node_modules"
COUNT: Final = 120
TOKENS: Final = [f" {number}" for number in range(COUNT)]
PAGE_MS_MAX: Final = 60_000
# Its answer to every question.
MODEL: Final = """
import time


def answer(question):
    for number in range(%d):
        time.sleep(0.02)
        yield f" {number}"
"""
# The chunks of both, of an answer with these tokens: before, for each, and after them.
CHUNKS: Final = {
    "aisdk": (
        '{ type: "start", messageId: "a" }, { type: "text-start", id: "text" }',
        '{ type: "text-delta", id: "text", delta }',
        '{ type: "text-end", id: "text" }, { type: "finish" }',
    ),
    "tanstack": (
        '{ type: "RUN_STARTED", ...run }, { type: "TEXT_MESSAGE_START", messageId: "a", role: "assistant" }',
        '{ type: "TEXT_MESSAGE_CONTENT", messageId: "a", delta }',
        '{ type: "TEXT_MESSAGE_END", messageId: "a" }, { type: "RUN_FINISHED", ...run }',
    ),
}
NODE_MODEL: Final = """
import { setTimeout } from "node:timers/promises"

const run = { runId: "run", threadId: "thread", model: "counting", finishReason: "stop" }

export async function* answer(messages) {
  if (!JSON.stringify(messages).includes("sky")) throw new Error("it was asked something else")
  yield* [%s]
  for (let number = 0; number < %d; number += 1) {
    await setTimeout(20)
    const delta = ` ${number}`
    yield %s
  }
  yield* [%s]
}
"""
# How many tokens a page shows.
SHOWN: Final = "document.querySelector('#answer').textContent.split(' ').length - 1"


class Reader:
    """Somebody who follows the document in an empty directory. Its ports are others."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ports = ports = {"8080": str(free_port()), "8000": str(free_port()), "3000": str(free_port())}
        self.text = re.sub(r"\b(8080|8000|3000)\b", lambda found: ports[found[0]], DOCUMENT)
        for name, program in {**programs(self.text), "model.py": MODEL % COUNT}.items():
            (directory / name).write_text(program)
        self.server = Server(
            directory / "weir-data", *shlex.split(self._line("weir serve"))[2:], port=int(ports["8080"])
        )
        self.page = f"http://localhost:{ports['8000']}/page.html"
        self._started: list[subprocess.Popen[bytes]] = []

    def _line(self, begin: str) -> str:
        """The command of the document that begins so."""
        blocks: list[str] = _SHELL.findall(self.text)
        (line,) = {line for block in blocks for line in block.splitlines() if line.startswith(begin)}
        return line

    def shell(self, begin: str) -> None:
        """Run a command as the document says."""
        subprocess.run(self._line(begin), cwd=self.directory, shell=True, check=True)

    def run(self, begin: str) -> subprocess.Popen[bytes]:
        """Start a program of Python, or of Node, as the document says."""
        program, *arguments = shlex.split(self._line(begin))
        with (self.directory / "log").open("ab") as log:
            started = subprocess.Popen(
                [sys.executable if program == "python3" else program, *arguments],
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._started.append(started)
        return started

    def said(self) -> str:
        """What the programs have printed."""
        return (self.directory / "log").read_text()

    def read(self, stream: str) -> httpx.Response:
        """What is in a stream."""
        return httpx.get(f"{self.server.url}/v1/stream/{stream}")

    def stored(self) -> int:
        """How many entries all streams have."""
        streams = httpx.get(f"{self.server.url}/v1/streams").json()["streams"]
        return sum(stream["length"] for stream in streams)

    def listens(self, port: str) -> bool:
        """Whether a program listens at this port of the document."""
        with contextlib.suppress(OSError), socket.create_connection(("localhost", int(self._ports[port]))):
            return True
        return False

    def close(self) -> None:
        """End what was started."""
        for started in self._started:
            started.kill()
            started.wait()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    with reader.server:
        yield reader
        reader.close()


@pytest.mark.parametrize("name", ["tokens.py", "page.html", "events.html"])
def test_the_programs_are_short(name: str) -> None:
    """Some twenty lines."""
    assert len([line for line in programs(DOCUMENT)[name].splitlines() if line]) < 25


def test_a_page_shows_each_token_once(reader: Reader) -> None:
    """Over kills of the gateway, and when it is loaded again."""
    reader.run("python3 -m http.server")
    with open_page() as page:
        producer = reader.run("python3 tokens.py")
        until(lambda: reader.listens("8000"), "the site is there")
        page.goto(f"{reader.page}#chat/43")
        page.wait_for_function(f"{SHOWN} > 20", timeout=PAGE_MS_MAX)
        reader.server.restart()
        page.wait_for_function(f"{SHOWN} > 50", timeout=PAGE_MS_MAX)
        page.reload()
        page.wait_for_function(f"{SHOWN} > 80", timeout=PAGE_MS_MAX)
        reader.server.restart()
        assert producer.wait(PAGE_MS_MAX / 1000) == 0, reader.said()
        page.wait_for_function(f"{SHOWN} >= {COUNT}", timeout=PAGE_MS_MAX)
        assert page.inner_text("#answer", timeout=PAGE_MS_MAX).strip() == "".join(TOKENS).strip()
    stored = reader.read("chat/43")
    assert (stored.json(), stored.headers["stream-closed"]) == (TOKENS, "true")


def test_a_page_with_a_ticket_shows_each_token_once(reader: Reader) -> None:
    """Over a kill of the gateway, which knows its ticket no more."""
    reader.run("python3 -m http.server")
    reader.server.stop()
    reader.server = Server(
        reader.server.data,
        *("--set", f"root_token={ROOT}", "--set", f"allowed_origins={reader.page.rpartition('/')[0]}"),
        port=reader.server.port,
    )
    path, headers = f"{reader.server.url}/v1/stream/chat/45", {"authorization": f"Bearer {ROOT}"}
    with reader.server, httpx.Client(headers=headers) as http, open_page() as page:
        http.put(path, headers={"content-type": "application/json"}, content='[" 0", " 1"]')
        until(lambda: reader.listens("8000"), "the site is there")
        page.goto(f"{reader.page.replace('page', 'events')}#chat/45@{ROOT}")
        page.wait_for_function(f"{SHOWN} == 2", timeout=PAGE_MS_MAX)
        reader.server.restart()
        http.post(path, headers={"content-type": "application/json"}, content='[" 2", " 3"]')
        page.wait_for_function(f"{SHOWN} == 4", timeout=PAGE_MS_MAX)
        assert page.inner_text("#answer", timeout=PAGE_MS_MAX).split() == ["0", "1", "2", "3"]


def test_an_answer_ends_where_the_model_fails(reader: Reader) -> None:
    (reader.directory / "model.py").write_text(
        "def answer(question):\n    yield 'Hel'\n    raise ValueError\n"
    )
    assert reader.run("python3 tokens.py").wait(PAGE_MS_MAX / 1000) == 1
    assert reader.said().endswith("ValueError\n")
    stored = reader.read("chat/43")
    assert (stored.json(), stored.headers["stream-closed"]) == (["Hel"], "true")


def test_a_page_stops_an_answer(reader: Reader) -> None:
    """It ends where it was, and the page shows all of it."""
    endless = 100 * COUNT
    (reader.directory / "model.py").write_text(MODEL % endless)
    reader.run("python3 -m http.server")
    reader.shell("cat")
    with open_page() as page:
        producer = reader.run("python3 stoppable.py")
        until(lambda: reader.listens("8000"), "the site is there")
        page.goto(f"{reader.page}#chat/44")
        page.wait_for_function(f"{SHOWN} > 20", timeout=PAGE_MS_MAX)
        page.click("#stop")
        assert producer.wait(PAGE_MS_MAX / 1000) == 0, reader.said()
        stored = reader.read("chat/44")
        page.wait_for_function(f"{SHOWN} == {len(stored.json())}", timeout=PAGE_MS_MAX)
    assert stored.headers["stream-closed"] == "true"
    assert 20 < len(stored.json()) < endless
    assert stored.json() == [f" {number}" for number in range(len(stored.json()))]


@pytest.mark.parametrize("kit", CHUNKS)
def test_a_chat_goes_on(reader: Reader, kit: str) -> None:
    """The gateway is killed while both its server and its reader are at work."""
    begin, token, end = CHUNKS[kit]
    (reader.directory / "model.mjs").write_text(NODE_MODEL % (begin, COUNT, token, end))
    (reader.directory / "node_modules").symlink_to(MODULES)
    reader.run(f"node {kit}_server.mjs")
    until(lambda: reader.listens("3000"), "its server is there")
    chat = reader.run(f"node {kit}_reader.mjs")
    for count in (COUNT // 4, COUNT // 2):
        until(lambda count=count: reader.stored() > count, "tokens are stored")
        reader.server.restart()
    assert chat.wait(PAGE_MS_MAX / 1000) == 0, reader.said()
    assert reader.said().splitlines()[-1] == "".join(TOKENS)
