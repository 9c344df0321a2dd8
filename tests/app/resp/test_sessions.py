"""Transactions, notifications, and what clients ask a server about itself."""

from typing import Any

import pytest

from app.doors.resp.subscriptions import PATTERNS_MAX
from tests.app.resp.conftest import TestedPort, Wire

ABORTED = "-EXECABORT Transaction discarded because of previous errors."


async def test_a_transaction_with_an_unknown_command_is_discarded(wire: Wire) -> None:
    """Nothing of it runs; DISCARD ends it too."""
    await wire.call("MULTI")
    assert await wire.call("MULTI") == "-ERR MULTI calls can not be nested"
    assert await wire.call("XADD", "s", "*", "a", "b") == "QUEUED"
    assert str(await wire.call("FOO")).startswith("-ERR unknown command 'FOO'")
    assert await wire.call("EXEC") == ABORTED
    await wire.call("MULTI")
    assert await wire.call("XADD", "s", "*", "a", "b") == "QUEUED"
    assert await wire.call("DISCARD") == "OK"
    assert await wire.call("EXISTS", "s") == 0


@pytest.mark.parametrize("words", [["WATCH"], ["MULTI", "x"], ["DISCARD", "x"]])
async def test_a_wrong_number_of_words_discards_a_transaction(wire: Wire, words: list[str]) -> None:
    """Whichever command it is."""
    await wire.call("MULTI")
    refused = f"-ERR wrong number of arguments for '{words[0].lower()}' command"
    assert await wire.call(*words) == refused
    assert await wire.call("EXEC") == ABORTED


async def test_an_exec_with_words_ends_a_transaction(wire: Wire) -> None:
    """It runs nothing, and what comes next is no part of it."""
    await wire.call("MULTI")
    await wire.call("XADD", "s", "1-1", "a", "b")
    discarded = "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command"
    assert await wire.call("EXEC", "x") == discarded
    assert await wire.call("EXEC") == "-ERR EXEC without MULTI"
    assert await wire.call("EXISTS", "s") == 0


@pytest.mark.parametrize("words", [["SELECT", "0"], ["UNWATCH"], ["CLIENT", "ID"], ["INFO"], ["COMMAND"]])
async def test_a_transaction_refuses_commands_about_the_connection(wire: Wire, words: list[str]) -> None:
    """It says so: they are there, only not inside a transaction."""
    await wire.call("MULTI")
    assert await wire.call(*words) == "-ERR Command not allowed inside a transaction"
    assert await wire.call("EXEC") == ABORTED


async def test_a_transaction_is_as_long_as_a_turn(port: TestedPort, wire: Wire) -> None:
    """One command more discards it, and what was queued is freed at once: a flood costs nothing."""
    most = port.gateway.settings.transaction_commands_max
    await wire.call("MULTI")
    for _ in range(most):
        assert await wire.call("XLEN", "s") == "QUEUED"
    assert await wire.call("XLEN", "s") == (f"-ERR too many commands: a transaction has at most {most}")
    for _ in range(1_000):
        wire.send("XADD", "s", "*", "a", "x" * 1_000)
    found = {str(await wire.reply()) for _ in range(1_000)}
    assert found <= {"QUEUED", "-ERR the transaction is too long (body_bytes_max)"}
    assert await wire.call("EXEC") == ABORTED


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        (("XADD", "s", "*", "a", "b"), False),
        (("XDEL", "s", "1-1"), False),
        (("DEL", "s"), False),
        (("XGROUP", "CREATE", "s", "g", "0"), False),
        (("XSETID", "s", "7-0"), False),
        (("EXPIRE", "s", "100"), False),
        (("RENAME", "s", "u"), False),
        (("RENAME", "v", "s"), False),
        (("COPY", "v", "missing"), False),
        (("FLUSHALL",), False),
        (("XADD", "other", "*", "a", "b"), True),
        (("XGROUP", "SETID", "v", "g", "0"), True),
        (("XREADGROUP", "GROUP", "g", "c", "STREAMS", "v", ">"), True),
        (("XLEN", "s"), True),
    ],
)
async def test_a_watched_stream_that_has_changed_stops_a_transaction(
    port: TestedPort,
    change: tuple[str, ...],
    runs: bool,  # noqa: FBT001 - a case's result
) -> None:
    """Other streams, and reads, do not."""
    one, other = await port.connect(), await port.connect()
    for stream in ("s", "v"):
        await one.call("XADD", stream, "1-1", "a", "b")
    await one.call("XGROUP", "CREATE", "v", "g", "0")
    watched = ("v",) if runs else ()
    assert await one.call("WATCH", "s", "missing", *watched) == "OK"
    assert not str(await other.call(*change)).startswith("-")
    await one.call("MULTI")
    await one.call("XADD", "t", "1-1", "a", "b")
    assert await one.call("EXEC") == ([b"1-1"] if runs else None)
    await one.call("MULTI")
    await one.call("XADD", "t", "2-1", "a", "b")
    assert await one.call("EXEC") == [b"2-1"], "it watches once"


@pytest.mark.parametrize("stream", ["s", "missing"])
async def test_a_stream_that_is_back_as_it_was_has_changed(port: TestedPort, stream: str) -> None:
    """Made and deleted; or replaced by an equal one."""
    one, other = await port.connect(), await port.connect()
    await one.call("XADD", "s", "1-1", "a", "b")
    await one.call("COPY", "s", "kept")
    await one.call("WATCH", stream)
    await other.call("COPY", "kept", stream, "REPLACE")
    if stream == "missing":
        await other.call("DEL", stream)
    await one.call("WATCH", stream)
    await one.call("MULTI")
    assert await one.call("EXEC") is None


async def test_a_stream_that_was_missing_is_watched_too(port: TestedPort) -> None:
    """Until UNWATCH."""
    one, other = await port.connect(), await port.connect()
    await one.call("WATCH", "s")
    await other.call("XADD", "s", "1-1", "a", "b")
    await one.call("MULTI")
    assert await one.call("WATCH", "s") == "-ERR WATCH inside MULTI is not allowed"
    assert await one.call("EXEC") is None
    await one.call("WATCH", "s")
    await other.call("XADD", "s", "1-2", "a", "b")
    await one.call("UNWATCH")
    await one.call("MULTI")
    assert await one.call("EXEC") == []


@pytest.mark.parametrize("protocol", [2, 3])
async def test_subscribers_hear_of_streams(port: TestedPort, protocol: int) -> None:
    """By the stream's channel, the event's, and a pattern; RESP3 pushes between replies."""
    one, other = await port.connect(), await port.connect()
    await one.call("HELLO", protocol)
    assert await one.call("SUBSCRIBE", "__keyspace@0__:s") == [b"subscribe", b"__keyspace@0__:s", 1]
    assert await one.call("PSUBSCRIBE", "__key*__:xdel") == [b"psubscribe", b"__key*__:xdel", 2]
    await other.call("XADD", "s", "1-1", "a", "b")
    await other.call("XADD", "t", "1-1", "a", "b")
    await other.call("XDEL", "t", "1-1")
    heard = [await one.reply() for _ in range(3)]
    assert [b"message", b"__keyspace@0__:s", b"xadd"] in heard
    assert [b"pmessage", b"__key*__:xdel", b"__keyevent@0__:xdel", b"t"] in heard
    if protocol == 2:
        assert str(await one.call("XLEN", "s")).startswith("-ERR Can't execute 'xlen'")
        assert await one.call("PING") == [b"pong", b""]
    else:
        assert await one.call("XLEN", "s") == 1
    assert await one.call("UNSUBSCRIBE") == [b"unsubscribe", b"__keyspace@0__:s", 1]
    assert await one.call("PUNSUBSCRIBE") == [b"punsubscribe", b"__key*__:xdel", 0]
    assert await one.call("XLEN", "s") == 1
    assert port.gateway.engine.events.changed is None


async def test_a_client_follows_a_hundred_patterns_and_no_more(wire: Wire) -> None:
    """Each is matched with each event. Those that it follows already are not counted twice."""
    await wire.call("HELLO", "3")
    patterns = [f"__key*__:{number}" for number in range(PATTERNS_MAX)]
    wire.send("PSUBSCRIBE", *patterns[1:])
    assert [await wire.reply() for _ in patterns[1:]][-1] == [
        *(b"psubscribe", patterns[-1].encode(), PATTERNS_MAX - 1)
    ]
    refusal = f"-ERR too many patterns: a client has at most {PATTERNS_MAX}; SUBSCRIBE takes more channels"
    assert await wire.call("PSUBSCRIBE", "a*", "b*") == refusal
    assert await wire.call("PSUBSCRIBE", "a*") == [b"psubscribe", b"a*", PATTERNS_MAX]
    assert await wire.call("PSUBSCRIBE", "b*") == refusal
    assert await wire.call("PSUBSCRIBE", "a*") == [b"psubscribe", b"a*", PATTERNS_MAX]
    assert await wire.call("SUBSCRIBE", "__keyevent@0__:xadd") == [
        *(b"subscribe", b"__keyevent@0__:xadd", PATTERNS_MAX + 1)
    ]
    assert await wire.call("PUNSUBSCRIBE", "a*") == [b"punsubscribe", b"a*", PATTERNS_MAX]
    assert await wire.call("PSUBSCRIBE", "b*") == [b"psubscribe", b"b*", PATTERNS_MAX + 1]


async def test_info_has_true_figures(wire: Wire) -> None:
    """Under the names that clients and exporters look for."""
    await wire.call("XADD", "s", "1-1", "a", "b")
    text = await wire.call("INFO")
    assert isinstance(text, bytes)
    facts = dict(line.split(":", 1) for line in text.decode().split("\r\n") if ":" in line)
    assert (facts["role"], facts["loading"], facts["redis_mode"]) == ("master", "0", "standalone")
    assert facts["redis_version"] == "8.8.0"
    assert facts["connected_clients"] == "1"
    assert facts["db0"].startswith("keys=1,")
    assert int(facts["used_memory"]) > 0
    part: Any = await wire.call("INFO", "REPLICATION")
    assert part.startswith(b"# Replication\r\nrole:master\r\n")


async def test_info_counts_the_streams_that_expire(wire: Wire) -> None:
    """Each once, through new lifetimes, new names and copies."""

    async def figures() -> bytes:
        text = await wire.call("INFO", "keyspace")
        assert isinstance(text, bytes)
        return text.split(b"db0:")[1].rstrip()

    for stream in ("s", "t", "u"):
        await wire.call("XADD", stream, "1-1", "a", "b")
    assert await figures() == b"keys=3,expires=0,avg_ttl=0"
    for words, expires in (
        (("EXPIRE", "s", "1000"), 1),
        (("EXPIRE", "s", "2000"), 1),
        (("PEXPIREAT", "t", "4102444800000"), 2),
        (("PEXPIREAT", "u", "4102444800000"), 3),
        (("RENAME", "u", "v"), 3),
        (("PERSIST", "t"), 2),
        (("COPY", "s", "u"), 3),
        (("DEL", "s"), 2),
        (("RENAME", "t", "v"), 1),
    ):
        await wire.call(*words)
        assert (await figures()).split(b",")[1] == b"expires=%d" % expires, words


async def test_commands_describe_themselves(wire: Wire) -> None:
    """Cluster clients look for keys, redis-cli for help."""
    info: Any = await wire.call("COMMAND", "INFO", "xadd", "xread", "nothing")
    assert info[0][:6] == [b"xadd", -5, ["write"], 1, 1, 1]
    assert info[1][2:6] == [["readonly", "blocking", "movablekeys"], 0, 0, 0]
    assert info[2] is None
    assert await wire.call("COMMAND", "GETKEYS", "XREAD", "STREAMS", "a", "b", "0", "0") == [b"a", b"b"]
    assert await wire.call("COMMAND", "GETKEYS", "PING") == "-ERR The command has no key arguments"
    number = await wire.call("COMMAND", "COUNT")
    assert isinstance(number, int)
    every: Any = await wire.call("COMMAND")
    assert len(every) == number
    docs: Any = await wire.call("COMMAND", "DOCS", "xadd")
    assert docs[0] == b"xadd"


async def test_other_databases_and_types_are_refused(wire: Wire) -> None:
    """In Redis's words, and the connection goes on."""
    assert await wire.call("SELECT", "0") == "OK"
    assert await wire.call("SELECT", "1") == "-ERR DB index is out of range"
    for words in (("SET", "a", "b"), ("EVAL", "return 1", "0"), ("DEBUG", "SLEEP", "0")):
        assert str(await wire.call(*words)).startswith(f"-ERR unknown command '{words[0]}'")
    assert await wire.call("PING") == "PONG"
