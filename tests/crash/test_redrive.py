"""kill -9 among redrives that are tried again until they are answered: each dead letter goes back once."""

import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.crash.harness import MODES, Client, call, kill, working
from tests.server import Server

LETTERS: Final = 900
KILLS: Final = 4
COUNT: Final = 7
GROUP: Final = "/v1/streams/s/groups/g"


def entries(port: int, stream: str) -> list[Any]:
    path = f"/v1/streams/{stream}/entries?count=10000"
    found: list[Any] = call(port, "GET", path)["entries"]
    return found


def dead_letter(port: int) -> None:
    """Entries with neighbouring IDs, all of them dead letters."""
    rows = [{"id": f"5-{number}", "fields": {"n": str(number)}} for number in range(LETTERS)]
    call(port, "POST", "/v1/streams/s/entries", {"entries": rows})
    call(port, "PUT", GROUP, {"start": "0", "dead_letter": {"stream": "dead"}})
    call(port, "POST", f"{GROUP}/consumers/c/read", {"count": LETTERS})
    call(port, "POST", f"{GROUP}/dead-letter", {"ids": [row["id"] for row in rows]})
    assert len(entries(port, "dead")) == LETTERS


class Operator(Client):
    """Redrives a few at a time; each call as often as it takes until it is answered, under its key."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(port)
        self.name, self.number = name, 0
        self.answers: dict[str, Any] = {}

    def turn(self) -> bool:
        key = f"{self.name}-{self.number}"
        answer = self.attempt(key)
        if answer is not None:
            self.answers[key] = answer["entries"]
            self.number += 1
            if not answer["entries"]:
                self.over.set()
        return False

    def attempt(self, key: str) -> Any:
        path = f"{GROUP}/dead-letters/redrive"
        return call(self.port, "POST", path, {"count": COUNT}, **{"idempotency-key": key})


@pytest.mark.parametrize("options", MODES[::2])
def test_redriven_once_through_kills(options: tuple[str, ...], tmp_path: Path) -> None:
    """An entry is a dead letter or back in its stream; what was answered is what is there."""
    with Server(tmp_path / "data", *options) as server:
        dead_letter(server.port)
        operators = [Operator(name, server.port) for name in ("a", "b")]
        with working(*operators):
            kill(server, KILLS, (0.1, 0.4))
            time.sleep(0.2)
        for operator in operators:
            key = f"{operator.name}-{operator.number - 1}"
            assert operator.attempt(key)["entries"] == operator.answers[key], "remembered through the kills"
        dead, alive = entries(server.port, "dead"), entries(server.port, "s")
        assert server.stop() == 0
    back = {one["id"]: one["fields"] for one in alive[LETTERS:]}
    froms = [one["weir-redriven-from"] for one in back.values()]
    everything = froms + [one["fields"]["weir-id"] for one in dead]
    assert sorted(everything) == sorted(f"5-{number}" for number in range(LETTERS)), "each once"
    answered = [row for operator in operators for rows in operator.answers.values() for row in rows]
    assert len(answered) > 10 * COUNT, "there was a load"
    gone = {row["dead_letter_id"] for row in answered}
    assert len(gone) == len(answered), "none was answered twice"
    assert not gone & {one["id"] for one in dead}
    assert {row["id"] for row in answered} <= back.keys()
    assert len(back) <= len(answered) + 2 * COUNT, "beside them at most the calls under way"
