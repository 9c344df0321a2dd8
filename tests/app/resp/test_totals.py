"""MAXCOUNT and MAXSIZE over Redis's protocol: of one command, however it is sent."""

from tests.app.resp.conftest import TestedPort, Wire, until

STREAMS = ("STREAMS", "s", "t", "0", "0")
ONE_ENTRY = [[b"s", [[b"1-0", [b"a", b"b"]]]]]


async def test_a_total_holds_alone_and_in_a_transaction(wire: Wire) -> None:
    """And of a read that may wait."""
    for stream in ("s", "t"):
        for entry_id in ("1-0", "2-0"):
            await wire.call("XADD", stream, entry_id, "a", "b")
    for options in (("MAXCOUNT", 1), ("MAXSIZE", 1), ("MAXCOUNT", 1, "BLOCK", 0)):
        assert await wire.call("XREAD", *options, *STREAMS) == ONE_ENTRY
    await wire.call("MULTI")
    await wire.call("XREAD", "MAXCOUNT", 1, *STREAMS)
    await wire.call("XREAD", "MAXSIZE", 1, *STREAMS)
    assert await wire.call("EXEC") == [ONE_ENTRY, ONE_ENTRY]


async def test_a_read_that_waits_keeps_its_total(port: TestedPort, wire: Wire) -> None:
    """Of what comes together the rest stays undelivered."""
    for stream in ("s", "t"):
        await wire.call("XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
    reader = await port.connect()
    reader.send("XREADGROUP", "GROUP", "g", "c", "MAXCOUNT", 1, "BLOCK", 0, "STREAMS", "s", "t", ">", ">")
    await until(lambda: any(link.blocked for link in port.server.port.sessions.values()))
    await wire.call("MULTI")
    for stream in ("s", "t"):
        await wire.call("XADD", stream, "1-0", "a", "b")
    await wire.call("EXEC")
    assert await reader.reply() == ONE_ENTRY
    assert await wire.call("XPENDING", "t", "g") == [0, None, None, None]
