"""What users of Redis Streams type every day: either it works, or the error says what to do instead."""

from typing import Any

import pytest

from app.redis.parsers.parse_server import FIXED_SETTINGS
from app.redis.parsers.table import hint as hint_of
from tests.app.resp.conftest import TestedPort, Wire


@pytest.mark.parametrize("container", ["ACL", "CLIENT", "COMMAND", "CONFIG"])
async def test_help_is_there_where_an_error_points_to_it(wire: Wire, container: str) -> None:
    refused = await wire.call(container, "FOO")
    assert refused == f"-ERR unknown subcommand 'FOO'. Try {container} HELP."
    lines: Any = await wire.call(container, "HELP")
    assert [str(line) for line in lines][-2:] == ["HELP", "    Print this help."]


@pytest.mark.parametrize("container", ["CLIENT", "COMMAND"])
async def test_help_names_what_works_alone(wire: Wire, container: str) -> None:
    """No subcommand that it names is unknown."""
    lines: Any = await wire.call(container, "HELP")
    named = [line.split()[0] for line in lines[1:] if not line.startswith((" ", "("))]
    assert len(named) > 4
    for subcommand in named:
        assert "unknown" not in str(await wire.call(container, subcommand))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("SET a b", "Weir has streams alone; COMMAND LIST shows its commands"),
        ("BLPOP a 1", "Weir has streams alone; COMMAND LIST shows its commands"),
        ("EVAL script 0", "Weir runs no scripts; MULTI, EXEC and WATCH make several commands one"),
        (
            "PUBLISH a b",
            "Weir has no messages but notifications of streams: XADD and XREAD BLOCK take their place",
        ),
        ("MONITOR", "CLIENT LIST and SLOWLOG GET show what clients do"),
        ("BGSAVE", "Weir saves before it replies; WAITAOF 1 0 0 waits for the disk"),
        ("BGREWRITEAOF", "POST /v1/admin/rewrite rewrites the log, and so does `weir log rewrite`"),
        ("SHUTDOWN NOSAVE", "end the process to stop Weir"),
        ("DUMP a", "COPY copies a stream; backup, or export and import, take it elsewhere"),
        ("RESTORE b 0 text", "COPY copies a stream; backup, or export and import, take it elsewhere"),
        ("MOVE a 1", "Weir has one database"),
        ("CLUSTER SLOTS", "Weir is one server to its clients: connect without cluster mode"),
    ],
)
async def test_what_redis_has_and_weir_has_not(wire: Wire, words: str, hint: str) -> None:
    """Redis's sentence first: clients look for it."""
    name, *rest = words.split()
    shown = "".join(f"'{word}' " for word in rest)
    expected = f"-ERR unknown command '{name}', with args beginning with: {shown}({hint})"
    assert await wire.call(*words.split()) == expected


async def test_what_the_hints_point_to_is_there(wire: Wire) -> None:
    names: Any = await wire.call("COMMAND", "LIST")
    assert {b"xadd", b"xread", b"multi", b"exec", b"watch", b"slowlog", b"waitaof", b"client"} <= set(names)


async def test_no_hint_is_for_a_command_that_is_there(wire: Wire) -> None:
    """A hint behind a name of COMMAND LIST would never be seen."""
    names: Any = await wire.call("COMMAND", "LIST")
    assert [name for name in names if hint_of(name.decode())] == []


async def test_settings_that_are_shown_can_be_set_or_say_why_not(wire: Wire) -> None:
    """The gateway's own are given at its start."""
    shown: Any = await wire.call("CONFIG", "GET", "*")
    names = {name.decode() for name in shown[::2]}
    assert names > FIXED_SETTINGS
    for name in FIXED_SETTINGS:
        assert await wire.call("CONFIG", "SET", name, "1") == (
            f"-ERR CONFIG SET failed (possibly related to argument '{name}') - can't set immutable config"
        )
    settable = sorted(names - FIXED_SETTINGS - {"notify-keyspace-events"})
    values: Any = await wire.call("CONFIG", "GET", *settable)
    assert len(settable) == 4
    assert await wire.call("CONFIG", "SET", *values) == "OK"


async def test_notifications_may_be_asked_for_and_not_ended(wire: Wire) -> None:
    """What every guide to keyspace notifications begins with."""
    assert await wire.call("CONFIG", "SET", "notify-keyspace-events", "KEA") == "OK"
    assert str(await wire.call("CONFIG", "SET", "notify-keyspace-events", "")).endswith(
        "- can't set immutable config"
    )


async def test_role_is_that_of_a_primary_without_replicas(wire: Wire) -> None:
    assert await wire.call("ROLE") == [b"master", 0, []]
    assert await wire.call("ROLE", "x") == "-ERR wrong number of arguments for 'role' command"


async def test_a_day(port: TestedPort) -> None:
    """One client after the other; the last is on RESP3."""
    wire = await port.connect()
    calls: list[tuple[str, object]] = [
        ("CLIENT SETNAME worker-1", "OK"),
        ("CLIENT GETNAME", b"worker-1"),
        ("XADD orders:eu 1-0 a b", b"1-0"),
        ("TYPE orders:eu", "stream"),
        ("TYPE nope", "none"),
        ("EXISTS orders:eu orders:eu nope", 2),
        ("DBSIZE", 1),
        ("SCAN 0 TYPE stream", [b"0", [b"orders:eu"]]),
        ("SCAN 0 TYPE string", [b"0", []]),
        ("OBJECT ENCODING orders:eu", b"stream"),
        ("SELECT 0", "OK"),
        ("SELECT 1", "-ERR DB index is out of range"),
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
        ("AUTH default any", "OK"),
        ("SLOWLOG RESET", "OK"),
        ("LATENCY LATEST", []),
        ("UNLINK nope", 0),
        ("FLUSHALL ASYNC", "OK"),
        ("DBSIZE", 0),
    ]
    for words, expected in calls:
        assert await wire.call(*words.split()) == expected, words
    greeting: Any = await (await port.connect()).call("HELLO", 3, "AUTH", "default", "any", "SETNAME", "w")
    assert greeting[b"proto"] == 3
