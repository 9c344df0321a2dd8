"""What the port for Redis clients keeps of commands: the audit log, the caller's rate, metrics."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.app.resp.conftest import Wire
from tests.app.ten_doors import BURST, DOORS, Bench, Commands, Redis, opened

_SENDING: Final = [door for door in DOORS if isinstance(door, Commands | Redis)]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path) as bench:
        yield bench


@pytest.fixture
async def wire(bench: Bench) -> AsyncIterator[Wire]:
    wire = await bench.wire()
    yield wire
    wire.close()


async def test_what_is_done_to_the_port_is_audited(bench: Bench, wire: Wire) -> None:
    """Refused or not, with its arguments."""
    for words in (("CLIENT", "KILL", "ID", 7), ("CLIENT", "UNBLOCK", 7), ("SLOWLOG", "RESET")):
        await wire.call(*words)
    await wire.call("CLIENT", "KILL", "nobody")
    await wire.call("CLIENT", "LIST")
    lines = await bench.audited()
    assert [(line["operation"], line["arguments"], line["outcome"]) for line in lines] == [
        ("client|kill", "ID 7", "done"),
        ("client|unblock", "7", "done"),
        ("slowlog|reset", "", "forbidden"),
        ("client|kill", "nobody", "invalid"),
    ]


@pytest.mark.parametrize(
    "words", [("INFO",), ("COMMAND", "DOCS"), ("AUTH", "default", "x"), ("SUBSCRIBE", "c")]
)
async def test_commands_about_the_connection_are_counted(
    bench: Bench, wire: Wire, words: tuple[str, ...]
) -> None:
    """As requests, with the bytes of their replies."""
    requests, size = bench.taken()
    await wire.call(*words)
    more, more_bytes = bench.taken()
    assert more == requests + 1
    assert more_bytes > size
    assert bench.gateway.reports.counters.requests[f"redis {words[0].lower()}"]


async def test_a_rate_holds_until_it_is_paid(bench: Bench, wire: Wire) -> None:
    """A long reply is charged: what comes next is refused, inside a transaction too, and costs nothing."""
    _, before = bench.taken()
    await wire.call("XADD", "orders", "*", "f", "x" * (BURST - before - 500))
    await wire.call("XRANGE", "orders", "-", "+")
    requests, size = bench.taken()
    for _ in range(3):
        assert "the limit of bytes is reached" in str(await wire.call("PING"))
    assert "the limit of bytes is reached" in str(await wire.call("MULTI"))
    assert await wire.call("DISCARD") == "-ERR DISCARD without MULTI"
    assert bench.taken()[0] == requests
    assert bench.taken()[1] - size < 100


async def test_each_stream_that_is_watched_is_counted(bench: Bench, wire: Wire) -> None:
    """It is looked up."""
    requests, _ = bench.taken()
    await wire.call("WATCH", *[f"orders{number}" for number in range(50)])
    more, _ = bench.taken()
    assert more == requests + 50


@pytest.mark.parametrize("door", _SENDING, ids=lambda door: door.name)
async def test_bytes_of_any_words_are_counted(bench: Bench, door: Any) -> None:
    """Not those of entries alone."""
    _, before = bench.taken()
    await door.send(bench, ("XDEL", "orders", *["1-1"] * 1_000))
    _, after = bench.taken()
    assert after - before >= 3_000


@pytest.mark.parametrize("door", _SENDING, ids=lambda door: door.name)
async def test_a_setting_that_is_changed_is_audited(bench: Bench, door: Any) -> None:
    """Behind a stream that is deleted."""
    await door.send(bench, ("DEL", "orders2"), ("CONFIG", "SET", "stream-node-max-entries", 50))
    lines = await bench.audited()
    assert [(line["operation"], line["outcome"]) for line in lines] == [
        ("del", "done"),
        ("config|set", "done"),
    ]
