"""kill -9 among chunks that are tried again until they are answered: nothing twice, nothing lost."""

import json
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.crash.harness import MODES, Client, ask, call, kill, working
from tests.server import Server

KILLS: Final = 3
PRODUCERS: Final = 3
ENTRIES_A_CHUNK: Final = 5
CHUNKS_AN_EPOCH: Final = 20


class ChunkProducer(Client):
    """Publishes chunk after chunk; each as often as it takes until it is answered."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(port)
        self.name = name
        self.next = (0, 0)
        self.answers: dict[tuple[int, int], Any] = {}

    def turn(self) -> bool:
        epoch, number = self.next
        answer = self.attempt(epoch, number)
        if answer is None:
            return False
        del answer["duplicate"]
        self.answers[self.next] = answer
        self.next = (epoch, number + 1) if number + 1 < CHUNKS_AN_EPOCH else (epoch + 1, 0)
        return True

    def attempt(self, epoch: int, number: int) -> Any:
        """The answer, None where there was none."""
        rows = [{"fields": {"n": f"{self.name}.{epoch}.{number}.{row}"}} for row in range(ENTRIES_A_CHUNK)]
        chunk = {"weir-producer": self.name, "weir-epoch": str(epoch), "weir-chunk": str(number)}
        streams = {"one": rows, "other": rows[:1]}
        return call(self.port, "POST", "/v1/publish", {"streams": streams}, **chunk)


def _check_memory(client: ChunkProducer) -> None:
    """What was stored before the kills is known after them: the last chunk of each epoch that counts."""
    last = max(client.answers)
    before = max((one for one in client.answers if one[0] < last[0]), default=last)
    for epoch, number in (last, before):
        answer = client.attempt(epoch, number)
        assert answer == {**client.answers[epoch, number], "duplicate": True}


def values(port: int, stream: str) -> dict[str, str]:
    """ID → value of all entries."""
    answer = ask(port, "GET", f"/v1/streams/{stream}/entries", headers={"accept": "application/x-ndjson"})
    assert answer is not None
    return {entry["id"]: entry["fields"]["n"] for entry in map(json.loads, answer[2].splitlines())}


@pytest.mark.parametrize("options", MODES)
def test_chunks_are_stored_once_through_kills(options: tuple[str, ...], tmp_path: Path) -> None:
    """Every chunk is whole, is there once, and was answered with the IDs that its entries have."""
    with Server(tmp_path / "data", *options) as server:
        clients = [ChunkProducer(f"p{number}", server.port) for number in range(PRODUCERS)]
        with working(*clients):
            kill(server, KILLS, (0.2, 0.6))
            time.sleep(0.3)
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
