"""What a real Redis answered, as recorded, is what the command API answers over a backend.

Left out is what is the server's own: XINFO (nodes and lags), and what follows an approximate trim, which may
leave more or less.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import pytest

from tests.app.conftest import app_on, calling
from tests.cluster.engines import opened
from tests.cluster.servers import Backend
from tests.engine.test_vectors import agrees, sequences

pytestmark = [pytest.mark.no_cover, pytest.mark.halved]

# Of each part.
SEQUENCES: Final = 37
# Redis 7.0 makes a consumer later than the recorded one, and has another sentence.
OLDER: Final = ("CREATECONSUMER", "DELCONSUMER", "XSETID")


def comparable(steps: Sequence[dict[str, Any]]) -> Iterator[tuple[list[str], object]]:
    """Words and recorded reply, up to an approximate trim."""
    for step in steps:
        words = [str(word) for word in step["cmd"]]
        if "~" in words:
            return
        yield words, f"-{step['error']}" if "error" in step else step["reply"]


def is_its_own(words: Sequence[str], kind: str) -> bool:
    """Whether a server of this kind may answer otherwise."""
    return words[0] == "XINFO" or (kind == "redis" and any(word in OLDER for word in words[:2]))


@pytest.mark.parametrize("part", range(4))
async def test_every_recorded_reply_is_given_over_a_backend(backend: Backend, part: int) -> None:
    """Reply for reply, and error for error."""
    compared, differences = 0, dict[int, str]()
    async with opened(backend) as engine, calling(app_on(engine)) as http:
        for number, steps in enumerate(islice(sequences("family-7", part), SEQUENCES)):
            backend.call("FLUSHALL")
            for words, recorded in comparable(steps):
                found = (await http.post("/v1/commands", json=words)).json()
                answer = f"-{found['error']}" if "error" in found else found["result"]
                if not is_its_own(words, backend.kind):
                    compared += 1
                    if not agrees(recorded, answer):
                        differences[number] = f"{words}: recorded {recorded!r}, answered {answer!r}"
    assert differences == {}
    assert compared > 15 * SEQUENCES
