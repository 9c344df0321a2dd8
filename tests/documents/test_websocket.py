"""docs/websocket.md: its conversations are had, and its workers work and survive."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from websockets.sync.client import connect

from tests.server import Server
from tests.waiting import until

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = (ROOT / "docs" / "websocket.md").read_text()
CONVERSATIONS: Final = re.findall(r"^```frames\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
PROGRAMS: Final = dict(
    re.findall(r"^```(?:python|js)\n(?:#|//) (\S+)\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
)
MODULES: Final = ROOT / "tests" / "sdk" / "node_modules"

# Notes each task when it is done; one cannot be done.
TASKS: Final = {
    "tasks.py": """
def work(fields):
    if fields["order"] == "bad":
        raise ValueError("no such order")
    with open("done", "a") as done:
        done.write(fields["order"] + "\\n")
""",
    "tasks.mjs": """
import { appendFile } from "node:fs/promises";
export async function work(fields) {
  if (fields.order === "bad") throw new Error("no such order");
  await appendFile("done", `${fields.order}\\n`);
}
""",
}


def settled(frame: str) -> Any:
    """A frame without what differs from run to run: IDs made by the clock, and the request's."""
    frame = re.sub(r'"[0-9]{13}-[0-9]+"', '"made"', frame)
    return json.loads(re.sub(r'"(request_id|idle_ms)":("[^"]*"|[0-9]+)', r'"\1":0', frame))


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=range(len(CONVERSATIONS)))
def test_a_conversation_goes_as_it_is_told(server: Server, conversation: str) -> None:
    """Frame by frame; `hello` and heartbeats are checked once."""
    url = f"ws://127.0.0.1:{server.port}/v1/ws"
    with connect(url, subprotocols=["weir.v1"], compression=None) as socket:  # type: ignore[list-item]
        lines = conversation.splitlines()
        if '"hello"' not in lines[0]:
            assert "hello" in str(socket.recv(5))
        for line in lines:
            way, frame = line.split(" ", 1)
            if way == "→":
                socket.send(frame)
            else:
                assert settled(str(socket.recv(5))) == settled(frame)


def test_all_frames_are_told() -> None:
    """The page shows each kind of frame once, but for three that are sent when it ends."""
    ops = set(re.findall(r'"op": ?"(\w+)"', "".join(CONVERSATIONS)))
    assert ops >= {"publish", "subscribe", "consume", "ack", "nack", "credit", "unsubscribe", "command"}
    assert ops >= {"hello", "ok", "error", "entries", "caught_up", "gap", "paused"}
    assert all(word in DOCUMENT for word in ("revoked", "goaway", "heartbeat"))


@pytest.mark.parametrize(("program", "runner"), [("worker.py", sys.executable), ("worker.mjs", "node")])
def test_a_worker_works_and_survives(server: Server, tmp_path: Path, program: str, runner: str) -> None:
    """Under fifty lines. Each task is done once, but for one that fails, which ends as a dead letter; the
    gateway is killed and comes back, so does the worker; what it was given and had not done it does when it
    is started again.
    """
    text = PROGRAMS[program]
    assert len(text.splitlines()) < 50
    (tmp_path / program).write_text(text)
    for name, tasks in TASKS.items():
        (tmp_path / name).write_text(tasks)
    (tmp_path / "node_modules").symlink_to(MODULES)
    done = tmp_path / "done"

    def add(http: httpx.Client, *orders: str) -> None:
        body = {"entries": [{"fields": {"order": order}} for order in orders]}
        assert http.post("/v1/streams/orders/entries", json=body).status_code == 201

    def finished() -> list[str]:
        return done.read_text().split() if done.exists() else []

    command = [runner, program, f"ws://127.0.0.1:{server.port}/v1/ws", "orders", "billing", "anna"]
    group = "/v1/streams/orders/groups/billing"
    with httpx.Client(base_url=server.url, timeout=30) as http:
        add(http, "1", "bad", "2")
        http.put(group, json={"start": "0", "dead_letter": {"stream": "dead", "max_deliveries": 2}})
        # As if an earlier life had been given the first and had died of it.
        http.post(f"{group}/consumers/anna/read", json={"count": 1})
        with (tmp_path / "log").open("wb") as log:
            worker = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
        try:
            until(lambda: finished() == ["1", "2"], "what was there is done, its own first")
            until(lambda: http.get("/v1/streams/dead").status_code == 200, "what fails is a dead letter")
            server.kill()
            server.start()
            add(http, "3")
            until(lambda: finished()[-1] == "3", (tmp_path / "log").read_text())
            until(lambda: http.get(f"{group}/pending").json()["count"] == 0, "all is acknowledged")
            assert worker.poll() is None, (tmp_path / "log").read_text()
        finally:
            worker.kill()
            worker.wait()
