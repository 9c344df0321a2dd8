"""docs/bulk.md: its reader and its writer as they stand there, with the gateway killed under them."""

import json
import subprocess
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.documents.programs import programs, start
from tests.server import Server, server_of
from tests.serving import serving

DOCUMENT = (Path(__file__).parents[2] / "docs" / "bulk.md").read_text()
# The last chunk of them is not full.
LINES = [f"word {number}" for number in range(1_950)]
KILLS = 2
DONE_S_MAX = 60.0


server = server_of("function", "--fsync", "always")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, program in programs(DOCUMENT).items():
        (tmp_path / name).write_text(program)
    (tmp_path / "words.txt").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path


def read(place: Path, server: Server) -> list[Any]:
    """What the reader prints."""
    program = start(place, "reader.py", server.url, "words*", "cursors.json")
    assert program.wait(DONE_S_MAX) == 0, (place / "reader.py.log").read_text()
    log = place / "reader.py.log"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    log.unlink()
    return rows


def write(place: Path, server: Server, epoch: int) -> subprocess.Popen[bytes]:
    return start(place, "writer.py", server.url, "words", str(epoch), "words.txt")


def test_each_line_is_written_and_read_once(server: Server, place: Path) -> None:
    """Through kills of the gateway, and with the writer run twice; the reader goes on where it stopped."""
    writer = write(place, server, 1)
    for _ in range(KILLS):
        time.sleep(0.3)
        server.restart()
    assert writer.wait(DONE_S_MAX) == 0, (place / "writer.py.log").read_text()
    assert write(place, server, 1).wait(DONE_S_MAX) == 0
    first = read(place, server)
    assert [row["line"] for row in first] == LINES
    assert len({row["id"] for row in first}) == len(LINES)
    assert read(place, server) == []
    with (place / "words.txt").open("a") as words:
        words.write("one more\n")
    assert write(place, server, 1).wait(DONE_S_MAX) == 1, "what would be lost is refused"
    assert "HTTP Error 422" in (place / "writer.py.log").read_text()
    assert read(place, server) == []
    (place / "words.txt").write_text("".join(f"{line}\n" for line in LINES))
    assert write(place, server, 2).wait(DONE_S_MAX) == 0
    again = read(place, server)
    assert [row["line"] for row in again] == LINES
    assert not {row["id"] for row in first} & {row["id"] for row in again}


def test_the_reader_reads_streams_of_any_name(server: Server, place: Path) -> None:
    """What a name holds is not the address's."""
    names = ["words a", "words?é#%2F"]
    streams = {name: [{"fields": {"line": name}}] for name in names}
    answer = httpx.post(f"{server.url}/v1/publish", json={"streams": streams})
    assert answer.status_code == 201, answer.text
    assert sorted(row["line"] for row in read(place, server)) == names


def test_the_reader_stops_at_a_stream_that_was_made_anew_after_its_plan(server: Server, place: Path) -> None:
    """On the way to the page it is deleted, and published to again."""
    entry = {"id": "1-0", "fields": {"line": "old"}}
    httpx.post(f"{server.url}/v1/publish", json={"streams": {"words": [entry]}}).raise_for_status()

    class Between(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self._pass_on(
                httpx.post(server.url + self.path, content=body, headers={"content-type": "application/json"})
            )

        def do_GET(self) -> None:
            httpx.delete(f"{server.url}/v1/streams/words").raise_for_status()
            anew = {"streams": {"words": [{**entry, "fields": {"line": "new"}}]}}
            httpx.post(f"{server.url}/v1/publish", json=anew).raise_for_status()
            self._pass_on(httpx.get(server.url + self.path, headers={"accept": self.headers["accept"]}))

        def _pass_on(self, answer: httpx.Response) -> None:
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.startswith("weir-") or name == "content-length":
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Between)) as between:
        url = f"http://127.0.0.1:{between.server_port}"
        program = start(place, "reader.py", url, "words", "cursors.json")
        status = program.wait(DONE_S_MAX)
    assert (status, (place / "reader.py.log").read_text()) == (1, "words was made anew while it was read\n")
