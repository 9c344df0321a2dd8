"""What a client with a narrow token tries over the port: to see, watch or burden what is not its own."""

import asyncio
from typing import Any, Final

import pytest
from pydantic import SecretStr

from app.auth import Grant, TokenPolicy, tokens
from engine import SystemClock
from tests.app.resp.conftest import TestedPort, Wire, until
from tests.engine.clocks import HandClock, settle

NOPERM = "-NOPERM No permissions to access a key"


async def clients(open_port: Any, *grants: str, **given: object) -> tuple[TestedPort, list[Wire]]:
    """A port, and a client for each of these grants; `*:*` may do everything."""
    made = [tokens.create((Grant.parse(grant),)) for grant in grants]
    clock = SystemClock()
    port = await open_port(TokenPolicy([one.token for one in made], lambda: clock.wall_ms() / 1000), **given)
    wires = [await port.connect() for _ in made]
    for wire, one in zip(wires, made, strict=True):
        assert await wire.call("AUTH", one.text) == "OK"
    return port, wires


async def test_a_stream_that_was_added_to_is_allowed_to_that_caller_alone(open_port: Any) -> None:
    """The port remembers it: not beyond the next AUTH, and never one that was refused."""
    made = [tokens.create((Grant.parse(grant),)) for grant in ("write:a", "write:b")]
    port = await open_port(TokenPolicy([one.token for one in made], lambda: 0.0))
    wire = await port.connect()
    noauth, noperm = "-NOAUTH Authentication required.", NOPERM
    streams = [("a", "b"), ("b", "a"), ("a", "b")]
    for caller, (may, may_not) in zip([*made, made[0]], streams, strict=True):
        assert await wire.call("AUTH", caller.text) == "OK"
        for _ in range(2):
            assert await wire.call("XADD", may_not, "*", "k", "v") == noperm
            assert isinstance(await wire.call("XADD", may, "*", "k", "v"), bytes)
    assert await wire.call("RESET") == "RESET"
    assert await wire.call("XADD", "a", "*", "k", "v") == noauth
    assert str(await wire.call("XADD", "", "*", "k", "v")) == noauth


async def test_watching_needs_the_right_to_read(open_port: Any) -> None:
    """Whether EXEC runs shows whether a stream has changed."""
    _, (root, tenant) = await clients(open_port, "*:*", "read,write:a.*")
    assert await tenant.call("WATCH", "a.1", "secret") == NOPERM
    # None of them is watched.
    await root.call("XADD", "a.1", "1-0", "k", "v")
    await root.call("XADD", "secret", "1-0", "k", "v")
    assert await tenant.call("MULTI") == "OK"
    assert await tenant.call("XLEN", "a.1") == "QUEUED"
    assert await tenant.call("EXEC") == [1]
    assert await tenant.call("WATCH", "a.1", "a.2") == "OK"


async def test_a_client_watches_as_many_streams_as_a_command_may_name(open_port: Any) -> None:
    _, (tenant,) = await clients(open_port, "read:a.*", request_streams_max=2)
    assert await tenant.call("WATCH", "a.1", "a.1") == "OK"
    assert await tenant.call("WATCH", "a.1", "a.2") == "OK"
    refused = "-ERR too many watched streams: at most 2 (request_streams_max)"
    assert await tenant.call("WATCH", "a.3") == refused
    assert await tenant.call("UNWATCH") == "OK"
    assert await tenant.call("WATCH", "a.3") == "OK"


async def test_facts_about_all_streams_need_the_right_to_read_them(open_port: Any) -> None:
    _, (root, tenant) = await clients(open_port, "read:*", "*:a.*")
    await asyncio.gather(*(wire.call("CLIENT", "SETNAME", "x") for wire in (root, tenant)))
    everything, own = await root.call("INFO"), await tenant.call("INFO")
    assert isinstance(everything, bytes)
    assert isinstance(own, bytes)
    for fact in (b"db0", b"used_memory:", b"connected_clients:", b"aof_current_size:", b"process_id:"):
        assert (fact in everything) == (fact != b"db0")
        assert fact not in own
    for fact in (b"redis_version:", b"weir_version:", b"redis_mode:", b"role:master", b"cluster_enabled:0"):
        assert fact in own
    assert await tenant.call("INFO", "keyspace", "memory", "clients", "everything") == own


@pytest.mark.parametrize("kind", ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"])
async def test_a_channel_is_as_long_as_the_longest_name_of_a_stream(open_port: Any, kind: str) -> None:
    """Longer ones would fill the memory, and patterns of them the event loop."""
    _, (tenant,) = await clients(open_port, "read:a.*")
    longest = b"__keyspace@0__:" + b"a" * 512
    refused = await tenant.call(kind, longest + b"a")
    assert refused == f"-ERR channel too long: a channel or pattern has at most {len(longest)} bytes"
    await tenant.call("HELLO", 3)
    assert await tenant.call(kind, longest) == [kind.lower().encode(), longest, 1]


@pytest.mark.parametrize("channel", ["__keyspace@0__:secret", "__keyevent@0__:new"])
async def test_events_of_hidden_streams_reach_nobody(open_port: Any, channel: str) -> None:
    """Neither by a pattern, nor by the channel of the stream or the event."""
    _, (root, tenant) = await clients(open_port, "*:*", "read:a.*")
    await tenant.call("HELLO", 3)
    await tenant.call("SUBSCRIBE", channel)
    await root.call("XADD", "secret", "1-0", "k", "v")
    await root.call("DEL", "secret")
    await root.call("XADD", "a.0", "1-0", "k", "v")
    if channel.endswith("new"):
        assert await tenant.reply() == [b"message", channel.encode(), b"a.0"]
    assert await tenant.call("UNSUBSCRIBE", channel) == [b"unsubscribe", channel.encode(), 0]
    await tenant.call("PSUBSCRIBE", "*")
    await root.call("XADD", "secret", "1-0", "k", "v")
    await root.call("RENAME", "secret", "hidden")
    await root.call("XADD", "a.1", "1-0", "k", "v")
    assert await tenant.reply() == [b"pmessage", b"*", b"__keyspace@0__:a.1", b"new"]


async def test_scans_and_lists_end_as_if_there_were_no_hidden_streams(open_port: Any) -> None:
    """A cursor that is not 0 would say that there are others, and with MATCH how their names begin."""
    _, (root, tenant) = await clients(open_port, "*:*", "read:a.*")
    for name in ("Z.secret", "a.1", "a.2", "a.3", "b.secret.1", "b.secret.2"):
        await root.call("XADD", name, "1-0", "k", "v")
    assert await tenant.call("SCAN", 0, "MATCH", "b.secret*", "COUNT", 1) == [b"0", []]
    assert await tenant.call("SCAN", 0, "COUNT", 3) == [b"0", [b"a.1", b"a.2", b"a.3"]]
    assert await tenant.call("SCAN", 0, "COUNT", 1, "TYPE", "stream", "MATCH", "Z*") == [b"0", []]
    assert await tenant.call("KEYS", "*") == [b"a.1", b"a.2", b"a.3"]
    for wire, names in ((tenant, [b"a.1", b"a.2", b"a.3"]), (root, await root.call("KEYS", "*"))):
        cursor, found = b"0", list[bytes]()
        for _ in range(len(names)):  # type: ignore[arg-type]
            page = await wire.call("SCAN", cursor, "COUNT", 1)
            assert isinstance(page, list)
            cursor = page[0]
            found += page[1]
        assert (cursor, found) == (b"0", names)


@pytest.mark.parametrize("words", [["AUTH"], ["AUTH", "default"], ["HELLO", "3", "AUTH", "default"]])
async def test_a_token_sent_inside_a_transaction_is_not_repeated(open_port: Any, words: list[str]) -> None:
    """Programs log the errors that they get."""
    _, (tenant,) = await clients(open_port, "read:a.*")
    await tenant.call("MULTI")
    assert await tenant.call(*words, "weir_secret") == "-ERR Command not allowed inside a transaction"
    assert await tenant.call("EXEC") == "-EXECABORT Transaction discarded because of previous errors."
    assert await tenant.call("PING") == "PONG"


async def test_a_client_without_a_token_does_not_keep_its_connection(open_port: Any) -> None:
    """Otherwise strangers could hold all of `sockets_max`."""
    port, (tenant,) = await clients(open_port, "read:a.*")
    port.server.port.auth_s_max = 0.01
    stranger = await port.connect()
    assert await stranger.reply() == "-NOAUTH no token came within 0.01 s"
    assert await stranger.ended()
    assert await tenant.call("RESET") == "RESET"
    assert await tenant.reply() == "-NOAUTH no token came within 0.01 s"
    assert await tenant.ended()


async def test_a_client_that_ends_itself_by_a_filter_gets_their_number(open_port: Any) -> None:
    _, (root,) = await clients(open_port, "*:*")
    assert await root.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no") == 1
    assert await root.ended()


# Whatever is refused to a client that is not known, in both forms.
REFUSED: Final = {
    "commands": b"*1\r\n$4\r\nPING\r\n",
    "commands in words": b"XLEN s\r\n",
    "unknown commands": b"x\r\n",
    "nothing": b'""\r\n',
    "commands about the connection": b"CLIENT ID\r\n",
    "HELLO": b"HELLO 3\r\n",
    "AUTH without a token": b"AUTH\r\n",
    "wrong tokens": b"AUTH weir_wrong\r\n",
    "wrong tokens in HELLO": b"HELLO 3 AUTH default weir_wrong\r\n",
}


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
async def test_a_client_that_is_not_known_is_refused_sixteen_times(open_port: Any, sent: bytes) -> None:
    """A last one says what to do, and the connection ends. Each counts as a wrong token of its address."""
    port, (known,) = await clients(
        open_port, "*:*", clock=HandClock(), root_token=SecretStr("x" * 24), rate_failures="1/s burst 20"
    )
    for refusals in (16, 16):
        stranger = await port.connect()
        stranger.writer.write(sent * 100)
        replies = (await stranger.reader.read()).split(b"\r\n")[:-1]
        assert len(replies) == refusals + 1
        assert all(reply.startswith(b"-") for reply in replies)
        assert replies[-1].startswith(b"-NOAUTH 16 commands came without a token: connect again")
    late = await port.connect()
    assert "too many wrong credentials" in str(await late.call("AUTH", "weir_wrong"))
    assert await known.call("PING") == "PONG"


async def test_a_client_that_was_refused_may_still_show_its_token(open_port: Any) -> None:
    """What was refused before is forgotten then. `RESET` gives a stranger no more time."""
    clock, loop = HandClock(), asyncio.get_running_loop()
    clock.drive(loop)
    made = tokens.create((Grant.parse("*:*"),))
    port = await open_port(TokenPolicy([made.token], lambda: 0.0), clock=clock)
    wire, stranger = await port.connect(), await port.connect()
    for _ in range(2):
        for _ in range(15):
            assert str(await wire.call("PING")).startswith("-NOAUTH")
        assert await wire.call("AUTH", made.text) == "OK"
        assert await wire.call("PING") == "PONG"
        assert await wire.call("RESET") == "RESET"
    for _ in range(4):
        assert await stranger.call("RESET") == "RESET"
        clock.pass_ms(3_000)
    assert await stranger.reply() == "-NOAUTH no token came within 10 s"
    clock.let_be(loop)


BEGUN: Final = [b"*", b"*2\r\n$4\r\nXLEN\r\n$1\r\n", b"XLE", b"*1\r\n$100000\r\nxxx", b"*3\r\n$4\r\nXL"]


@pytest.mark.parametrize("begun", BEGUN)
async def test_a_command_that_drips_has_the_time_of_a_request(open_port: Any, begun: bytes) -> None:
    """From its first byte on, each anew: also behind whole ones, and not while the gateway reads nothing."""
    clock, loop = HandClock(), asyncio.get_running_loop()
    clock.drive(loop)
    port = await open_port(clock=clock, request_s_max=2)
    whole = b"*2\r\n$4\r\nXLEN\r\n$1\r\ns\r\n"
    wire = await port.connect()
    for _ in range(4):
        wire.writer.write(whole[:5])
        await settle()
        clock.pass_ms(1_500)
        wire.writer.write(whole[5:])
        assert await wire.reply() == 0
    wire.writer.write(whole + begun[:1])
    assert await wire.reply() == 0
    for at in range(1, len(begun)):
        clock.pass_ms(1_900 // len(begun))
        wire.writer.write(begun[at : at + 1])
        await settle()
    clock.pass_ms(2_000)
    assert await wire.reply() == "-ERR a command arrives within 2 s"
    assert await wire.ended()
    blocked = await port.connect()
    blocked.send("XREAD", "BLOCK", 10_000, "STREAMS", "s", "$")
    await until(lambda: port.gateway.waits.count == 1)
    blocked.writer.write(begun)
    await settle()
    clock.pass_ms(9_000)
    await settle()
    clock.pass_ms(1_000)
    assert await blocked.reply() is None
    clock.pass_ms(2_000)
    assert await blocked.reply() == "-ERR a command arrives within 2 s"
    clock.let_be(loop)
