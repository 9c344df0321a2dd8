"""What a server keeps for a time counts up to its age, and is asked for it when it is looked at.

The clock is the server's: so items are made older in their tables, by what they say of their time.
"""

import re
from typing import Any, Final

import pytest
from msgspec.structs import replace

from engine import EngineError, entries
from engine.cluster import ClusterEngine
from engine.commands.base import Command
from engine.commands.durable_commands import AppendBatches, AppendDurable, CreateDurable, ProducerBatch
from engine.commands.types import IdempotencyKey, XAdd
from engine.commands.weir_commands import Chunk, Close, EnsureGroup, Publish, Redrive
from engine.dedup import ANSWER_AGE_MS_MAX
from engine.parts.durable import PRODUCER_AGE_MS_MAX
from engine.replies import BatchesAppended, Republished
from tests.cluster.engines import opened
from tests.cluster.servers import BackendServer
from tests.engine.asking import reply_to
from tests.engine.test_redriving import letter_body

BODY: Final = entries.body([("data", "x")])
KEY: Final = IdempotencyKey("k", b"digest")
BATCH: Final = ProducerBatch("p", 3, 0)
APPEND: Final = AppendDurable(stream="s", bodies=[BODY], kind="text/plain", batch=BATCH)
CREATE: Final = CreateDurable(stream="s", media="text/plain")
POLICY: Final = {"dead_letter_stream": "dead", "max_deliveries": 1}
LETTERS: Final = (
    EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=POLICY),
    XAdd(stream="dead", bodies=[letter_body("5-0"), letter_body("5-1")], ids=[5 << 64, (5 << 64) + 1]),
)
# Far more than a test takes, far less than an age.
BESIDE_MS: Final = 3_600_000
# In the tables of answers and of producers; nothing else has such values.
TIMES: Final = {b"i": re.compile(rb"^()(\d+)( \d+ )", re.DOTALL), b"w": re.compile(rb"^(\d+ \d+ )(\d+)($)")}


def keyed(key: IdempotencyKey | None = KEY) -> XAdd:
    return XAdd(stream="s", bodies=[BODY], idempotency=key)


def redrive(letter: int) -> Redrive:
    return Redrive(stream="s", group="g", letters="dead", ids=[(5 << 64) + letter], idempotency=KEY)


def of_batches() -> AppendBatches:
    return AppendBatches(stream="s", bodies=[BODY], kind="text/plain", batches=[BATCH], counts=[1])


# Commands before it, what is kept, what is asked then, and the age; None for one that never ends.
ROWS: Final[dict[str, tuple[tuple[Command, ...], Command, Command, int | None]]] = {
    "an entry under a key": ((), keyed(), keyed(), ANSWER_AGE_MS_MAX),
    "an end under a key": (
        (), Close(stream="s", add=keyed()), Close(stream="s", add=keyed()), ANSWER_AGE_MS_MAX
    ),
    "a publication under a key": (
        (), Publish(parts=[keyed(None)], idempotency=KEY), Publish(parts=[keyed(None)], idempotency=KEY),
        ANSWER_AGE_MS_MAX,
    ),
    "a redrive under a key": (LETTERS, redrive(0), redrive(1), ANSWER_AGE_MS_MAX),
    "a batch of Durable Streams": ((CREATE,), APPEND, APPEND, PRODUCER_AGE_MS_MAX),
    "batches of Durable Streams": ((CREATE,), APPEND, of_batches(), PRODUCER_AGE_MS_MAX),
    "an end of Durable Streams": (
        (CREATE,), replace(APPEND, closes=True), replace(APPEND, closes=True), PRODUCER_AGE_MS_MAX
    ),
    "a chunk": (
        (), Publish(parts=[keyed(None)], chunk=Chunk("p", 1, 1)),
        Publish(parts=[keyed(None)], chunk=Chunk("p", 1, 1)), None,
    ),
}  # fmt: skip


def make_older(server: BackendServer, ms: int) -> int:
    """Move the times of all items; how many there are."""
    count = 0
    for key in server.call("KEYS", "weir/*"):
        pattern = TIMES.get(key.split(b"/")[2])
        if pattern is None or server.call("TYPE", key) != b"hash":
            continue
        row = server.call("HGETALL", key)
        pairs = row.items() if isinstance(row, dict) else zip(row[::2], row[1::2], strict=True)
        for field, value in pairs:
            older = pattern.sub(lambda found: b"%b%d%b" % (found[1], int(found[2]) - ms, found[3]), value)
            count += older != value
            server.call("HSET", key, field, older)
    return count


async def counts(engine: ClusterEngine, command: Command) -> bool:
    try:
        reply: Any = await reply_to(engine, command)
    except EngineError as refusal:
        if refusal.code != "stream_closed":
            raise
        return False
    if isinstance(reply, BatchesAppended):
        (reply,) = reply.replies
    return isinstance(reply, Republished) or bool(reply.duplicate)


@pytest.mark.parametrize("what", ROWS)
async def test_an_item_counts_up_to_its_age(server: BackendServer, what: str) -> None:
    """Although nothing else came."""
    before, keep, again, age_ms = ROWS[what]
    for beside_ms in (-BESIDE_MS, 1):
        server.call("FLUSHALL")
        async with opened(server) as engine:
            for command in (*before, keep):
                await reply_to(engine, command)
            moved = make_older(server, (age_ms or 10 * PRODUCER_AGE_MS_MAX) + beside_ms)
            assert bool(moved) == (age_ms is not None)
            assert await counts(engine, again) == (beside_ms < 0 or age_ms is None)
