"""kill -9 among batches of Durable Streams, which are sent until they are answered: none lost, none twice."""

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests import halves
from tests.server import Server

# In the gate, and in all.
KILLS: Final = (4, 200)
PRODUCERS: Final = 3
BATCHES_A_STREAM: Final = 25
CLIENT_S_MAX: Final = 60.0
load_s_min, load_s_max = 0.1, 0.4
JSON: Final = {"content-type": "application/json"}
CLOSING: Final = {"stream-closed": "true"}

Answer = tuple[int, Mapping[str, str], bytes]


class Writer:
    """Fills stream after stream; each request is sent as often as it takes until it is answered."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        # The streams that are closed, and the batches of the one that is not.
        self.closed: list[str] = []
        self.acknowledged = 0
        self.repeated = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    @property
    def stream(self) -> str:
        """The one that is filled now."""
        return f"{self.name}/{len(self.closed)}"

    def _run(self) -> None:
        while not self.over.is_set():
            if self.until_answered("PUT", self.stream, "", JSON) is None:
                return
            for seq in range(BATCHES_A_STREAM):
                answer = self.append(self.stream, seq)
                if answer is None:
                    return
                self.repeated += answer[0] == 204
                self.acknowledged = seq + 1
            self.closed.append(self.stream)
            self.acknowledged = 0

    def append(self, stream: str, seq: int) -> Answer | None:
        """Append a batch, the last one of a stream as its end."""
        producer = {"producer-id": self.name, "producer-epoch": "0", "producer-seq": str(seq)}
        end = CLOSING if seq == BATCHES_A_STREAM - 1 else {}
        body = json.dumps(messages(stream, seq))
        return self.until_answered("POST", stream, body, {**JSON, **producer, **end})

    def until_answered(
        self, method: str, stream: str, body: str, headers: Mapping[str, str]
    ) -> Answer | None:
        """The answer, None once it is over."""
        while not self.over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, said, _ = answer = ask(self.port, method, stream, body, headers)
                if status in (200, 201, 204):
                    return answer
                assert status == 503, said
            time.sleep(0.02)
        return None


def ask(
    port: int, method: str, stream: str, body: str = "", headers: Mapping[str, str] | None = None
) -> Answer:
    """One request. Raises OSError, HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request(method, f"/v1/stream/{stream}", body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def messages(stream: str, seq: int) -> list[str]:
    """Those of a batch."""
    return [f"{stream} {seq}.{number}" for number in range(seq % 3 + 1)]


def check(port: int, writer: Writer) -> None:
    """Assert that each stream has its batches in order, each once, whole; and its end, where it has one."""
    whole = [message for seq in range(BATCHES_A_STREAM) for message in messages("", seq)]
    for stream in writer.closed:
        _, headers, body = ask(port, "GET", stream)
        assert json.loads(body) == [f"{stream}{message}" for message in whole]
        assert headers["stream-closed"] == "true"
    status, _, body = ask(port, "GET", writer.stream)
    read = json.loads(body) if status == 200 else []
    batches = [messages(writer.stream, seq) for seq in range(BATCHES_A_STREAM)]
    counts = [sum(map(len, batches[:count])) for count in range(BATCHES_A_STREAM + 1)]
    assert len(read) in counts, "a batch is there whole or not at all"
    assert read == [message for batch in batches for message in batch][: len(read)]
    assert counts.index(len(read)) >= writer.acknowledged


@pytest.mark.halved
@pytest.mark.parametrize("kills", KILLS if halves.are_whole() else KILLS[:1])
def test_batches_are_stored_once_however_often_it_is_killed(kills: int, tmp_path: Path) -> None:
    """And who has closed a stream and asks again is answered as the first time, over every restart."""
    with Server(tmp_path / "data", "--fsync", "everysec", "--set", "durable_streams=true") as server:
        writers = [Writer(f"writer-{number}", server.port) for number in range(PRODUCERS)]
        for writer in writers:
            writer.thread.start()
        for _ in range(kills):
            time.sleep(random.uniform(load_s_min, load_s_max))
            server.kill()
            server.start()
        for writer in writers:
            writer.over.set()
            writer.thread.join(CLIENT_S_MAX)
            writer.over.clear()
        for writer in writers:
            check(server.port, writer)
            assert writer.closed, "there was a load"
            for stream in writer.closed:
                again = writer.append(stream, BATCHES_A_STREAM - 1)
                assert again is not None
                assert (again[0], again[1]["stream-closed"]) == (204, "true")
            check(server.port, writer)
        assert sum(writer.repeated for writer in writers) or kills < 10, (
            "some were killed before their answer"
        )
