"""kill -9 among batches of Durable Streams, which are sent until they are answered: none lost, none twice."""

import json
from pathlib import Path
from typing import Final

import pytest

from tests import halves
from tests.crash.harness import Answer, Client, ask, call, kill, working
from tests.server import Server

# In the gate, and in all.
KILLS: Final = (4, 200)
PRODUCERS: Final = 3
BATCHES_A_STREAM: Final = 25
LOAD_S: Final = (0.1, 0.4)
NOTHING: Final[Answer] = (200, {}, b"[]")


class Writer(Client):
    """Fills stream after stream; each request is sent as often as it takes until it is answered."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(port)
        self.name = name
        # The streams that are closed, and the batches of the one that is not, once it is made.
        self.closed: list[str] = []
        self.is_made = False
        self.acknowledged = 0
        self.repeated = 0

    @property
    def stream(self) -> str:
        """The one that is filled now."""
        return f"{self.name}/{len(self.closed)}"

    def turn(self) -> bool:
        if not self.is_made:
            self.is_made = ask(self.port, "PUT", place(self.stream)) is not None
            return self.is_made
        answer = self.append(self.stream, self.acknowledged)
        if answer is None:
            return False
        self.repeated += answer[0] == 204
        self.acknowledged += 1
        if self.acknowledged == BATCHES_A_STREAM:
            self.closed.append(self.stream)
            self.is_made, self.acknowledged = False, 0
        return True

    def append(self, stream: str, seq: int) -> Answer | None:
        """Append a batch, the last one of a stream as its end."""
        producer = {"producer-id": self.name, "producer-epoch": "0", "producer-seq": str(seq)}
        end = {"stream-closed": "true"} if seq == BATCHES_A_STREAM - 1 else {}
        return ask(self.port, "POST", place(stream), messages(stream, seq), {**producer, **end})


def place(stream: str) -> str:
    return f"/v1/stream/{stream}"


def messages(stream: str, seq: int) -> list[str]:
    """Those of a batch."""
    return [f"{stream} {seq}.{number}" for number in range(seq % 3 + 1)]


def check(port: int, writer: Writer) -> None:
    """Assert that each stream has its batches in order, each once, whole; and its end, where it has one."""
    whole = [message for seq in range(BATCHES_A_STREAM) for message in messages("", seq)]
    for stream in writer.closed:
        _, headers, body = ask(port, "GET", place(stream)) or NOTHING
        assert json.loads(body) == [f"{stream}{message}" for message in whole]
        assert headers["stream-closed"] == "true"
    made = call(port, "GET", "/v1/streams?prefix=" + writer.stream)["streams"]
    _, _, body = (made and ask(port, "GET", place(writer.stream))) or NOTHING
    read = json.loads(body)
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
        with working(*writers):
            kill(server, kills, LOAD_S)
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
