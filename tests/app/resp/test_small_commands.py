"""What programs that watch a server ask now and then: PUBSUB, COMMAND LIST, INFO of commands, TOUCH."""

from collections.abc import Callable

from tests.app.policies import FixedPolicy, principal_with
from tests.app.resp.conftest import TestedPort, Wire, until


async def test_touch_and_randomkey(wire: Wire) -> None:
    """TOUCH counts those that exist; a random stream is one of them."""
    assert await wire.call("RANDOMKEY") is None
    for stream in ("s", "t"):
        await wire.call("XADD", stream, "1-1", "a", "b")
    assert await wire.call("TOUCH", "s", "t", "no", "s") == 3
    assert {await wire.call("RANDOMKEY") for _ in range(50)} == {b"s", b"t"}


async def test_pubsub_says_who_follows_what(port: TestedPort, wire: Wire) -> None:
    """Channels that have subscribers, how many each has, and the number of patterns."""
    one, two = await port.connect(), await port.connect()
    for client in (one, two):
        await client.call("SUBSCRIBE", "__keyevent@0__:xadd")
    await one.call("SUBSCRIBE", "other")
    await two.call("PSUBSCRIBE", "__key*")
    assert await wire.call("PUBSUB", "CHANNELS") == [b"__keyevent@0__:xadd", b"other"]
    assert await wire.call("PUBSUB", "CHANNELS", "o*") == [b"other"]
    assert await wire.call("PUBSUB", "NUMSUB", "__keyevent@0__:xadd", "no") == [
        *(b"__keyevent@0__:xadd", 2),
        *(b"no", 0),
    ]
    assert await wire.call("PUBSUB", "NUMSUB") == []
    assert await wire.call("PUBSUB", "NUMPAT") == 1
    assert str(await wire.call("PUBSUB", "X")).startswith("-ERR unknown subcommand 'X'")
    for client in (one, two):
        client.close()
    await until(lambda: len(port.server.port.sessions) == 1)
    assert await wire.call("PUBSUB", "CHANNELS") == []
    assert await wire.call("PUBSUB", "NUMPAT") == 0


async def test_a_narrow_token_sees_its_own_subscriptions(open_port: Callable[..., object]) -> None:
    """Those of others name streams."""
    port = await open_port(FixedPolicy(principal_with("read:s")))  # type: ignore[misc]
    assert isinstance(port, TestedPort)
    other, wire = await port.connect(), await port.connect()
    await other.call("SUBSCRIBE", "__keyspace@0__:secret")
    await wire.call("HELLO", 3)
    await wire.call("SUBSCRIBE", "__keyspace@0__:s")
    assert await wire.call("PUBSUB", "CHANNELS") == [b"__keyspace@0__:s"]
    assert await wire.call("PUBSUB", "NUMSUB", "__keyspace@0__:secret") == [b"__keyspace@0__:secret", 0]


async def test_commands_are_listed_by_filters(wire: Wire) -> None:
    """By a pattern, an ACL category, a module."""
    assert await wire.call("COMMAND", "LIST", "FILTERBY", "PATTERN", "xrea*") == [b"xread", b"xreadgroup"]
    streams = await wire.call("COMMAND", "LIST", "FILTERBY", "ACLCAT", "stream")
    assert isinstance(streams, list)
    assert b"xadd" in streams
    assert b"del" not in streams
    readers = await wire.call("COMMAND", "LIST", "FILTERBY", "ACLCAT", "read")
    assert isinstance(readers, list)
    assert b"xrange" in readers
    assert b"xadd" not in readers
    assert await wire.call("COMMAND", "LIST", "FILTERBY", "MODULE", "json") == []
    assert await wire.call("COMMAND", "LIST", "FILTERBY", "ACLCAT", "no") == []
    assert await wire.call("COMMAND", "LIST", "FILTERBY", "NO", "x") == "-ERR syntax error"


async def test_info_counts_commands_and_errors(wire: Wire) -> None:
    """Commands where they are asked for, by name; errors by their first words."""
    await wire.call("XADD", "s", "1-1", "a", "b")
    await wire.call("XADD", "s", "1-1", "a", "b")
    await wire.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    commands = str(await wire.call("INFO", "commandstats"))
    assert "cmdstat_xadd:calls=2,usec=0,usec_per_call=0.00,rejected_calls=0,failed_calls=1" in commands
    errors = str(await wire.call("INFO", "errorstats"))
    assert "errorstat_ERR:count=1" in errors
    assert "errorstat_NOGROUP:count=1" in errors
    assert "cmdstat_xadd" not in str(await wire.call("INFO"))
    assert "cmdstat_xadd" in str(await wire.call("INFO", "all"))


async def test_several_clients_are_killed_by_their_numbers(port: TestedPort, wire: Wire) -> None:
    """CLIENT KILL ID with more than one; of those that are gone none counts."""
    one, two = await port.connect(), await port.connect()
    numbers = [await one.call("CLIENT", "ID"), await two.call("CLIENT", "ID")]
    assert await wire.call("CLIENT", "KILL", "ID", *map(str, numbers), "999", "SKIPME", "yes") == 2
    assert await one.ended()
    assert await two.ended()
    refused = "-ERR client-id should be greater than 0"
    assert await wire.call("CLIENT", "KILL", "ID", "x") == refused
