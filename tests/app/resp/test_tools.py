"""What programs that look at a Redis ask, in their order, and what they read from the replies.

The sequences are those of redis_exporter 1.6x, KEDA's redis-streams scaler, Redis Insight 2 and the stream
subscriber of FastStream's Redis broker. They are written down here, and the programs themselves are not run:
each is sent as its client sends it, and read as it reads it.
"""

from pathlib import Path
from typing import Any, Final

import pytest
from ruamel.yaml import YAML

from app.auth import Grant, TokenPolicy, tokens
from app.limits import SLOW_TURNS_MAX
from app.metrics.slow_turns import SlowTurns
from engine import SLOW_TURN_S, SystemClock
from engine.commands.types import XLen, XRange
from engine.commands.weir_commands import AddEach
from tests.app.resp.conftest import TestedPort, Wire
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock

ROOT: Final = Path(__file__).parents[3]
# What redis_exporter makes its labels and gauges of; dashboards show these.
_EXPORTED: Final = (
    *("redis_version", "redis_mode", "os", "tcp_port", "process_id", "role", "maxmemory_policy"),
    *("uptime_in_seconds", "connected_clients", "blocked_clients", "maxclients", "rejected_connections"),
    *("used_memory", "used_memory_rss", "maxmemory", "loading", "aof_enabled", "rdb_changes_since_last_save"),
    *("total_connections_received", "total_commands_processed", "connected_slaves", "master_repl_offset"),
    *("used_cpu_sys", "used_cpu_user", "aof_last_write_status", "cluster_enabled"),
)


async def work(wire: Wire) -> None:
    """A stream of three entries, a group that has read two, and acknowledged one."""
    for number in range(3):
        await wire.call("XADD", "jobs", f"{number + 1}-0", "item", "a")
    await wire.call("XGROUP", "CREATE", "jobs", "packers", "0")
    await wire.call("XREADGROUP", "GROUP", "packers", "ann", "COUNT", 2, "STREAMS", "jobs", ">")
    await wire.call("XACK", "jobs", "packers", "1-0")


def pairs(flat: Any) -> dict[bytes, Any]:
    """A flat list of names and values, as clients of RESP2 get maps."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def facts(wire: Wire, *sections: str) -> dict[str, str]:
    """INFO as exporters read it."""
    text = await wire.call("INFO", *sections)
    assert isinstance(text, bytes | str)
    lines = (text.decode() if isinstance(text, bytes) else text).split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


async def test_redis_exporter(wire: Wire) -> None:
    """CONFIG GET *, INFO ALL, the slow log, latencies; then the keys and streams that it shall check."""
    await work(wire)
    await wire.call("CLIENT", "SETNAME", "redis_exporter")
    config = pairs(await wire.call("CONFIG", "GET", "*"))
    assert int(config[b"databases"]) == 1
    assert int(config[b"maxclients"]) > 0
    assert int(config[b"maxmemory"]) >= 0
    found = await facts(wire, "ALL")
    assert set(_EXPORTED) <= found.keys()
    assert found["db0"] == "keys=1,expires=0,avg_ttl=0"
    assert all(float(found[name]) >= 0 for name in ("used_memory", "used_cpu_sys", "uptime_in_seconds"))
    assert await wire.call("LATENCY", "LATEST") == []
    assert await wire.call("LATENCY", "HISTOGRAM") == []
    # A turn takes long where the machine is busy.
    assert await wire.call("SLOWLOG", "RESET") == "OK"
    assert await wire.call("SLOWLOG", "LEN") == 0
    assert await wire.call("SLOWLOG", "GET", "1") == []
    assert await wire.call("SELECT", "0") == "OK"
    assert await wire.call("SCAN", "0", "MATCH", "jobs*", "COUNT", "1000") == [b"0", [b"jobs"]]
    assert await wire.call("TYPE", "jobs") == "stream"
    assert isinstance(await wire.call("MEMORY", "USAGE", "jobs"), int)
    assert await wire.call("XLEN", "jobs") == 3
    stream = pairs(await wire.call("XINFO", "STREAM", "jobs"))
    numbers = (b"length", b"radix-tree-keys", b"radix-tree-nodes", b"groups")
    assert [isinstance(stream[name], int) for name in numbers] == [True] * 4
    assert (stream[b"last-generated-id"], stream[b"max-deleted-entry-id"]) == (b"3-0", b"0-0")
    [group] = map(pairs, await wire.call("XINFO", "GROUPS", "jobs"))  # type: ignore[call-overload]
    assert [group[name] for name in (b"name", b"consumers", b"pending", b"lag")] == [b"packers", 1, 1, 1]
    [consumer] = map(pairs, await wire.call("XINFO", "CONSUMERS", "jobs", "packers"))  # type: ignore[call-overload]
    assert (consumer[b"name"], consumer[b"pending"]) == (b"ann", 1)
    assert consumer[b"idle"] >= 0


async def test_keda(wire: Wire) -> None:
    """go-redis connects, asks for RESP3 and says its name; the scaler asks one of three numbers. Stream
    and group are those of the recipe.
    """
    *_, scaled = YAML(typ="safe").load_all((ROOT / "deploy/keda.yaml").read_text())
    recipe = scaled["spec"]["triggers"][0]["metadata"]
    assert (recipe["stream"], recipe["consumerGroup"]) == ("jobs", "packers")
    await work(wire)
    hello: Any = await wire.call("HELLO", "3")
    assert hello[b"proto"] == 3
    for attribute, value in (("LIB-NAME", "go-redis(,go1.24)"), ("LIB-VER", "9.7.0")):
        assert await wire.call("CLIENT", "SETINFO", attribute, value) == "OK"
    assert await wire.call("PING") == "PONG"
    # pendingEntriesCount
    pending: Any = await wire.call("XPENDING", "jobs", "packers")
    assert pending == [1, b"2-0", b"2-0", [[b"ann", b"1"]]]
    # streamLength
    assert await wire.call("XLEN", "jobs") == 3
    # lagCount: refused below version 7
    found = await facts(wire)
    assert int(found["redis_version"].split(".")[0]) >= 7
    groups: Any = await wire.call("XINFO", "GROUPS", "jobs")
    assert [group[b"lag"] for group in groups if group[b"name"] == b"packers"] == [1]


async def test_faststream(port: TestedPort, wire: Wire) -> None:
    """A subscriber makes its group, waits, acknowledges, claims, and ends with the stream."""
    publisher = await port.connect()
    assert await wire.call("PING") == "PONG"
    create = ("XGROUP", "CREATE", "jobs", "packers", "$", "MKSTREAM")
    assert await wire.call(*create) == "OK"
    again = await wire.call(*create)
    assert isinstance(again, str)
    assert "already exists" in again
    read = ("XREADGROUP", "GROUP", "packers", "ann", "COUNT", 10, "BLOCK", 60_000, "STREAMS", "jobs", ">")
    wire.send(*read)
    message = b'\x89BIN\r\n\xff\x00{"item":"a"}'
    first = await publisher.call("XADD", "jobs", "MAXLEN", "~", 1_000, "*", "__data__", message)
    assert await wire.reply() == [[b"jobs", [[first, [b"__data__", message]]]]]
    second = await publisher.call("XADD", "jobs", "MAXLEN", "~", 1_000, "*", "__data__", message)
    taken: Any = await wire.call("XREADGROUP", "GROUP", "packers", "bob", "COUNT", 1, "STREAMS", "jobs", ">")
    assert taken[0][1][0][0] == second
    assert isinstance(first, bytes)
    assert await wire.call("XACK", "jobs", "packers", first) == 1
    claim = ("XAUTOCLAIM", "jobs", "packers", "ann", 0, "0-0", "COUNT", 1)
    assert await wire.call(*claim) == [b"0-0", [[second, [b"__data__", message]]], []]
    assert isinstance(second, bytes)
    rows: Any = await wire.call("XPENDING", "jobs", "packers", second, second, 1)
    assert (rows[0][1], rows[0][3]) == (b"ann", 2)
    assert await wire.call("XACK", "jobs", "packers", second) == 1
    assert await wire.call(*claim) == [b"0-0", [], []]
    wire.send(*read)
    assert await publisher.call("DEL", "jobs") == 1
    ended = await wire.reply()
    assert isinstance(ended, str)
    assert "NOGROUP" in ended


async def test_redpanda_connect(port: TestedPort, wire: Wire) -> None:
    """Its input reads what it left behind first, stream by stream, and then new entries of all."""
    publisher = await port.connect()
    hello: Any = await wire.call("HELLO", 3)
    assert hello[b"server"] == b"redis"
    for name, value in (("LIB-NAME", "go-redis(,go1.24)"), ("LIB-VER", "9.17.0")):
        assert await wire.call("CLIENT", "SETINFO", name, value) == "OK"
    assert await wire.call("PING") == "PONG"
    streams = ("orders", "stock")
    for stream in streams:
        create = ("XGROUP", "CREATE", stream, "connect", "0", "MKSTREAM")
        assert await wire.call(*create) == "OK"
        # It compares the whole sentence.
        assert await wire.call(*create) == "-BUSYGROUP Consumer Group name already exists"
    trimmed = ("MAXLEN", "~", 100, "*", "body", b'\xff{"item":"a"}', "key", "k")
    left, *others = [await publisher.call("XADD", stream, *trimmed) for stream in ("orders", *streams)]
    fields = [b"body", b'\xff{"item":"a"}', b"key", b"k"]
    read = ("XREADGROUP", "GROUP", "connect", "one", "COUNT", 1, "BLOCK", 1, "STREAMS", *streams)
    assert await wire.call(*read, ">", ">") == {b"orders": [[left, fields]], b"stock": [[others[1], fields]]}
    assert isinstance(others[1], bytes)
    assert await wire.call("XACK", "stock", "connect", others[1]) == 1
    # It begins anew: what it did not acknowledge, until a stream has no more of it.
    assert isinstance(left, bytes)
    assert await wire.call(*read, "0", "0") == {b"orders": [[left, fields]], b"stock": []}
    assert await wire.call(*read, left, ">") == {b"orders": []}
    assert await wire.call("XACK", "orders", "connect", left) == 1
    assert await wire.call(*read, ">", ">") == {b"orders": [[others[0], fields]]}
    assert await wire.call(*read, ">", ">") is None


async def test_redis_insight(wire: Wire) -> None:
    """It connects, looks for modules, shows the overview, the browser of keys, a stream, and the slow log."""
    await work(wire)
    await wire.call("CLIENT", "SETNAME", "redisinsight-common-1a2b3c4d")
    assert int(pairs(await wire.call("CONFIG", "GET", "databases"))[b"databases"]) == 1
    assert await wire.call("MODULE", "LIST") == []
    found = await facts(wire)
    assert {"redis_version", "connected_clients", "used_memory", "db0"} <= found.keys()
    assert await wire.call("DBSIZE") == 1
    page: Any = await wire.call("SCAN", "0", "MATCH", "*", "COUNT", "500")
    assert page == [b"0", [b"jobs"]]
    for words in (
        ("TYPE", "jobs"),
        ("TTL", "jobs"),
        ("MEMORY", "USAGE", "jobs", "SAMPLES", "0"),
        ("XLEN", "jobs"),
    ):
        wire.send(*words)
    kind, lifetime_s, size, length = [await wire.reply() for _ in range(4)]
    assert (kind, lifetime_s, length) == ("stream", -1, 3)
    assert isinstance(size, int)
    assert size > 0
    stream = pairs(await wire.call("XINFO", "STREAM", "jobs"))
    assert (stream[b"first-entry"][0], stream[b"last-entry"][0]) == (b"1-0", b"3-0")
    entries: Any = await wire.call("XREVRANGE", "jobs", "+", "-", "COUNT", "500")
    assert [entry[0] for entry in entries] == [b"3-0", b"2-0", b"1-0"]
    rows: Any = await wire.call("XPENDING", "jobs", "packers", "-", "+", "500", "ann")
    assert [(row[0], row[1], row[3]) for row in rows] == [(b"2-0", b"ann", 1)]
    slow = pairs(await wire.call("CONFIG", "GET", "slowlog*"))
    assert slow == {b"slowlog-log-slower-than": b"10000", b"slowlog-max-len": b"128"}
    # On a loaded machine a turn may have been slow.
    slow_turns: Any = await wire.call("SLOWLOG", "GET", "50")
    assert {len(slow_turn) for slow_turn in slow_turns} <= {6}


async def test_the_memory_of_a_stream_is_that_of_its_parts(wire: Wire) -> None:
    """It grows with entries, groups and what is pending, and is what INFO adds up."""
    assert await wire.call("MEMORY", "USAGE", "s") is None
    sizes = []
    for words in (
        ("XADD", "s", "1-0", "a", "b"),
        ("XADD", "s", "2-0", "a", "x" * 10_000),
        ("XGROUP", "CREATE", "s", "g", "0"),
        ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"),
    ):
        await wire.call(*words)
        sizes.append(await wire.call("MEMORY", "USAGE", "s", "SAMPLES", "5"))
    assert sizes == sorted(sizes)  # type: ignore[type-var]
    assert sizes[1] - sizes[0] >= 10_000  # type: ignore[operator]
    assert int((await facts(wire, "memory"))["used_memory_dataset"]) == sizes[-1]
    for wrong in (("SAMPLES",), ("SAMPLES", "-1"), ("FOO", "1")):
        assert await wire.call("MEMORY", "USAGE", "s", *wrong) == "-ERR syntax error"
    assert await wire.call("MEMORY", "USAGE", "s", "SAMPLES", "x") == (
        "-ERR value is not an integer or out of range"
    )
    assert await wire.call("MEMORY", "FOO", "s") == "-ERR unknown subcommand 'FOO'. Try MEMORY HELP."


async def test_a_stream_is_idle_since_a_command_named_it(open_port: Any) -> None:
    """Reads count, looking at names and lifetimes does not."""
    clock = HandClock()
    port: TestedPort = await open_port(clock=clock)
    wire = await port.connect()
    await wire.call("XADD", "s", "1-0", "a", "b")
    clock.pass_ms(7_999)
    for looks in (("EXISTS", "s"), ("TYPE", "s"), ("TTL", "s"), ("MEMORY", "USAGE", "s"), ("KEYS", "*")):
        await wire.call(*looks)
    assert await wire.call("OBJECT", "IDLETIME", "s") == 7
    clock.pass_ms(1)
    assert await wire.call("OBJECT", "IDLETIME", "s") == 8
    await wire.call("XRANGE", "s", "-", "+")
    assert await wire.call("OBJECT", "IDLETIME", "s") == 0
    clock.pass_ms(2_000)
    assert await wire.call("XADD", "s", "1-0", "a", "b") != b"1-0"
    assert await wire.call("OBJECT", "IDLETIME", "s") == 2, "it was refused"


async def test_objects_are_described_as_by_redis(wire: Wire) -> None:
    """Without the policy that counts accesses."""
    for subcommand in ("ENCODING", "IDLETIME", "FREQ", "REFCOUNT"):
        assert await wire.call("OBJECT", subcommand, "s") is None
    await wire.call("XADD", "s", "1-0", "a", "b")
    assert await wire.call("OBJECT", "ENCODING", "s") == b"stream"
    assert await wire.call("OBJECT", "REFCOUNT", "s") == 1
    assert str(await wire.call("OBJECT", "FREQ", "s")).startswith(
        "-ERR An LFU maxmemory policy is not selected"
    )
    assert await wire.call("OBJECT", "FREQ") == "-ERR wrong number of arguments for 'object|freq' command"


async def test_the_slow_log_has_turns_above_ten_milliseconds(open_port: Any) -> None:
    """The last 128 of them, newest first."""
    clock = HandClock()
    port: TestedPort = await open_port(clock=clock)
    wire = await port.connect()
    await wire.call("XADD", "s", "1-0", "a", "b")
    clock.ticking_s = SLOW_TURN_S + 0.001
    await reply_to(port.gateway.engine, XRange(stream="s", start=0, end=1))
    clock.ticking_s = SLOW_TURN_S / 100
    await wire.call("XLEN", "s")
    slow = [0, clock.wall_ms() // 1000, 11_000, [b"xrange", b"s"], b"", b""]
    assert await wire.call("SLOWLOG", "GET") == [slow]
    several = [XLen(stream="t"), *[AddEach(stream="u", bodies=[]) for _ in range(3)]]
    for number in range(SLOW_TURNS_MAX):
        port.gateway.reports.slow_turns.note(several[: 1 + number % 4], 0.02)
    assert await wire.call("SLOWLOG", "LEN") == SLOW_TURNS_MAX
    newest: Any = await wire.call("SLOWLOG", "GET", "1")
    assert newest[0][0] == SLOW_TURNS_MAX
    assert newest[0][3] == [b"xlen", b"t", b"xadd", b"u", b"(4 commands)"]
    assert [len(await wire.call("SLOWLOG", "GET", count)) for count in ("0", "200", "-1")] == [0, 128, 128]  # type: ignore[arg-type]
    for count in ("-2", "x"):
        refused = "-ERR count should be greater than or equal to -1"
        assert await wire.call("SLOWLOG", "GET", count) == refused
    assert str(await wire.call("SLOWLOG", "GET", "1", "2")).startswith(
        "-ERR unknown subcommand or wrong number"
    )
    assert await wire.call("SLOWLOG", "RESET") == "OK"
    assert await wire.call("SLOWLOG", "LEN") == 0


def test_a_slow_turn_of_many_streams_is_cut() -> None:
    """As Redis cuts a command of many words."""
    found = SlowTurns(lambda: 0)
    found.note([XRange(stream=f"s{number}", start=0, end=1) for number in range(100)], 1.0)
    [slow] = found.turns
    assert len(slow.words) <= 32
    assert slow.words[-1] == b"(100 commands)"


async def test_latency_has_no_events(wire: Wire) -> None:
    """As in a Redis that does not monitor it."""
    assert await wire.call("LATENCY", "HISTORY", "command") == []
    assert await wire.call("LATENCY", "RESET", "command") == 0
    assert b"SLOWLOG" in await wire.call("LATENCY", "DOCTOR")  # type: ignore[operator]
    assert await wire.call("LATENCY", "HISTORY") == (
        "-ERR wrong number of arguments for 'latency|history' command"
    )
    assert await wire.call("LATENCY", "FOO") == "-ERR unknown subcommand 'FOO'. Try LATENCY HELP."


@pytest.mark.parametrize("container", ["OBJECT", "MEMORY", "SLOWLOG", "LATENCY", "MODULE"])
async def test_containers_have_help(wire: Wire, container: str) -> None:
    lines: Any = await wire.call(container, "HELP")
    assert lines[0] == f"{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    assert lines[-2:] == ["HELP", "    Print this help."]


async def test_the_mean_lifetime_is_of_those_that_expire(open_port: Any) -> None:
    """In milliseconds from now."""
    clock = HandClock()
    wire = await (await open_port(clock=clock)).connect()
    for name in ("s", "t", "u", "v"):
        await wire.call("XADD", name, "1-0", "a", "b")
    await wire.call("PEXPIRE", "s", 1_000)
    await wire.call("PEXPIRE", "t", 3_000)
    await wire.call("PEXPIRE", "v", 9_000)
    await wire.call("PERSIST", "v")
    assert (await facts(wire, "keyspace"))["db0"] == "keys=4,expires=2,avg_ttl=2000"
    clock.pass_ms(500)
    assert (await facts(wire, "keyspace"))["db0"] == "keys=4,expires=2,avg_ttl=1500"


@pytest.mark.parametrize(
    ("grant", "shown", "reset"),
    [
        ("*:*", [], "OK"),
        ("read:*", [], "-NOPERM User {} has no permissions to run the 'slowlog|reset' command"),
        ("*:a.*", "-NOPERM User {} has no permissions to run the 'slowlog|get' command", None),
    ],
)
async def test_slow_turns_name_streams(open_port: Any, grant: str, shown: object, reset: object) -> None:
    """So they are for callers that may read all of them."""
    made, clock = tokens.create((Grant.parse(grant),)), SystemClock()
    port = await open_port(TokenPolicy([made.token], lambda: clock.wall_ms() / 1000))
    wire = await port.connect()
    assert await wire.call("AUTH", made.text) == "OK"
    user = made.token.id
    assert await wire.call("SLOWLOG", "GET") == (shown.format(user) if isinstance(shown, str) else shown)
    if reset is not None:
        assert await wire.call("SLOWLOG", "RESET") == str(reset).format(user)
