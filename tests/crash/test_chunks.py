"""kill -9 among chunks that are tried again until they are answered: nothing twice, nothing lost."""

import contextlib
import http.client
import json
import random
import threading
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.crash.test_kill import REWRITING
from tests.server import Server

KILLS: Final = 3
PRODUCERS: Final = 3
ENTRIES_A_CHUNK: Final = 5
CHUNKS_AN_EPOCH: Final = 20
CLIENT_S_MAX: Final = 60.0


class ChunkProducer:
    """Publishes chunk after chunk; each as often as it takes until it is answered."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.answers: dict[tuple[int, int], Any] = {}
        self.duplicates = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        epoch = number = 0
        while not self.over.is_set():
            answer = self.attempt(epoch, number)
            if answer is None:
                time.sleep(0.02)
                continue
            self.duplicates += answer.pop("duplicate")
            self.answers[epoch, number] = answer
            number += 1
            if number == CHUNKS_AN_EPOCH:
                epoch, number = epoch + 1, 0

    def attempt(self, epoch: int, number: int) -> Any:
        """The answer, None where there was none."""
        rows = [{"fields": {"n": f"{self.name}.{epoch}.{number}.{row}"}} for row in range(ENTRIES_A_CHUNK)]
        body = json.dumps({"streams": {"one": rows, "other": rows[:1]}})
        headers = {
            "content-type": "application/json",
            "weir-producer": self.name,
            "weir-epoch": str(epoch),
            "weir-chunk": str(number),
        }
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            with contextlib.closing(connection):
                connection.request("POST", "/v1/publish", body, headers)
                answer = connection.getresponse()
                result = json.loads(answer.read())
            if answer.status == 201:
                return result
            assert answer.status == 503, result
        return None


def _check_memory(client: ChunkProducer) -> None:
    """What was stored before the kills is known after them: the last chunk of each epoch that counts."""
    last = max(client.answers)
    before = max((one for one in client.answers if one[0] < last[0]), default=last)
    for epoch, number in (last, before):
        answer = client.attempt(epoch, number)
        assert answer == {**client.answers[epoch, number], "duplicate": True}


def values(port: int, stream: str) -> dict[str, str]:
    """ID → value of all entries."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", f"/v1/streams/{stream}/entries", headers={"accept": "application/x-ndjson"})
        lines = connection.getresponse().read().splitlines()
    return {entry["id"]: entry["fields"]["n"] for entry in map(json.loads, lines)}


@pytest.mark.parametrize(("fsync", "options"), [("everysec", ()), ("always", ()), ("everysec", REWRITING)])
def test_chunks_are_stored_once_through_kills(fsync: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Every chunk is whole, is there once, and was answered with the IDs that its entries have."""
    with Server(tmp_path / "data", "--fsync", fsync, *options) as server:
        clients = [ChunkProducer(f"p{number}", server.port) for number in range(PRODUCERS)]
        for client in clients:
            client.thread.start()
        try:
            for _ in range(KILLS):
                time.sleep(random.uniform(0.2, 0.6))
                server.kill()
                server.start()
            time.sleep(0.3)
        finally:
            for client in clients:
                client.over.set()
            for client in clients:
                client.thread.join(CLIENT_S_MAX)
        for client in clients:
            _check_memory(client)
        found, other = values(server.port, "one"), values(server.port, "other")
        assert server.stop() == 0
    assert all(client.answers for client in clients), "there was a load"
    stored = list(found.values())
    assert len(stored) == len(set(stored)), "nothing twice"
    assert len(other) == len(set(other.values())), "nothing twice in the other stream"
    wanted = 0
    for client in clients:
        for (epoch, number), answer in client.answers.items():
            rows = [f"{client.name}.{epoch}.{number}.{row}" for row in range(ENTRIES_A_CHUNK)]
            first, last = answer["streams"]["one"]["first_id"], answer["streams"]["one"]["last_id"]
            assert (found[first], found[last]) == (rows[0], rows[-1]), "answered with its own IDs"
            assert other[answer["streams"]["other"]["first_id"]] == rows[0]
            wanted += len(rows)
    assert len(stored) >= wanted, "nothing lost"
    assert len(stored) <= wanted + PRODUCERS * ENTRIES_A_CHUNK, "at most the chunks under way are beside them"
    assert len(stored) % ENTRIES_A_CHUNK == 0, "whole chunks"
