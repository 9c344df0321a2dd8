"""Redis clients: replies in order, blocked reads, identity, and what ends a connection."""

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.auth import Grant, Principal, TokenPolicy, tokens
from engine import Call, Done, Replies
from tests.app.resp.conftest import TestedPort, Wire, until
from tests.engine.clocks import HandClock

ID = b"1-1"


async def test_replies_come_in_the_order_of_their_commands(wire: Wire) -> None:
    """Run together, alone, at once, refused: nothing overtakes."""
    for words in (
        ("XADD", "s", "1-1", "a", "b"),
        ("PING",),
        ("XLEN", "s"),
        ("CLIENT", "GETNAME"),
        ("XINFO", "STREAM", "s", "FULL"),
        ("FOO",),
        ("XADD", "s", "1-1", "a", "b"),
        ("WAITAOF", "1", "0", "0"),
        ("XREAD", "BLOCK", "1", "STREAMS", "s", "$"),
        ("XRANGE", "s", "-", "+"),
    ):
        wire.send(*words)
    assert [await wire.reply() for _ in range(4)] == [ID, "PONG", 1, None]
    full = await wire.reply()
    assert isinstance(full, list)
    assert [await wire.reply() for _ in range(5)] == [
        "-ERR unknown command 'FOO', with args beginning with: ",
        "-ERR The ID specified in XADD is equal or smaller than the target stream top item",
        [1, 0],
        None,
        [[ID, [b"a", b"b"]]],
    ]


async def test_resp3_has_maps_and_nulls(wire: Wire) -> None:
    """The same replies in the shapes of the newer protocol."""
    hello: Any = await wire.call("HELLO", "3")
    assert hello[b"proto"] == 3
    assert hello[b"role"] == b"master"
    await wire.call("XADD", "s", "1-1", "a", "b")
    assert await wire.call("XREAD", "STREAMS", "s", "0") == {b"s": [[ID, [b"a", b"b"]]]}
    await wire.call("XGROUP", "CREATE", "s", "g", "0")
    wire.send("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    assert await wire.reply() == {b"s": [[ID, [b"a", b"b"]]]}
    await wire.call("XDEL", "s", "1-1")
    wire.send("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", "0")
    assert await wire.reply() == {b"s": [[ID, None]]}
    info: Any = await wire.call("XINFO", "STREAM", "s")
    assert info[b"first-entry"] is None
    assert await wire.call("XREAD", "STREAMS", "s", "$") is None
    groups: Any = await wire.call("XINFO", "GROUPS", "s")
    assert groups[0][b"name"] == b"g"
    assert await wire.call("HELLO", "4") == "-NOPROTO unsupported protocol version"
    wire.send("HELLO", "2")
    assert isinstance(await wire.reply(), list)


async def test_nulls_of_resp2_are_of_two_kinds(wire: Wire) -> None:
    """As Redis has them: clients tell a missing list from a missing word."""
    await wire.call("XADD", "s", "1-1", "a", "b")
    await wire.call("XGROUP", "CREATE", "s", "g", "0")
    for words, null in (
        (("XREAD", "STREAMS", "s", "$"), b"*-1"),
        (("XRANGE", "s", "-", "+", "COUNT", "0"), b"*-1"),
        (("XADD", "t", "NOMKSTREAM", "*", "a", "b"), b"$-1"),
        (("XPENDING", "s", "g"), b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1"),
        (("CLIENT", "GETNAME"), b"$-1"),
    ):
        wire.send(*words)
        assert [await wire.line() for _ in null.split(b"\r\n")] == null.split(b"\r\n")


async def test_a_blocked_read_stops_its_connection_alone(port: TestedPort) -> None:
    """What comes behind it waits; another connection's entry ends it."""
    reader, writer = await port.connect(), await port.connect()
    reader.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    reader.send("PING")
    await until(lambda: port.gateway.engine.figures().waiting == 1)
    assert await writer.call("XADD", "s", "1-1", "a", "b") == ID
    assert await reader.reply() == [[b"s", [[ID, [b"a", b"b"]]]]]
    assert await reader.reply() == "PONG"


@pytest.mark.parametrize(
    ("how", "reply"), [("TIMEOUT", None), ("ERROR", "-UNBLOCKED client unblocked via CLIENT UNBLOCK")]
)
async def test_a_blocked_read_is_ended_by_another_client(port: TestedPort, how: str, reply: object) -> None:
    """By the number of its client."""
    reader, other = await port.connect(), await port.connect()
    number = await reader.call("CLIENT", "ID")
    assert isinstance(number, int)
    assert await other.call("CLIENT", "UNBLOCK", number) == 0
    reader.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    await until(lambda: port.gateway.engine.figures().waiting == 1)
    assert await other.call("CLIENT", "UNBLOCK", number, how) == 1
    assert await reader.reply() == reply


async def test_the_same_client_finishes_what_it_sent_before_it_closed_its_side(wire: Wire) -> None:
    """`printf … | nc`: the replies come, then the end."""
    wire.send("XADD", "s", "1-1", "a", "b")
    wire.send("XLEN", "s")
    wire.writer.write_eof()
    assert [await wire.reply(), await wire.reply()] == [ID, 1]
    assert await wire.ended()


async def test_inline_commands_are_answered(wire: Wire) -> None:
    """A health check writes `PING` and a line end."""
    wire.writer.write(b"PING\r\n\r\nxadd s 1-1 a 'b c'\r\n")
    assert await wire.reply() == "PONG"
    assert await wire.reply() == ID


async def test_what_is_no_request_ends_the_connection(port: TestedPort, wire: Wire) -> None:
    """Behind the replies to what came before it."""
    wire.send("PING")
    wire.writer.write(b"*1000000000\r\n")
    assert await wire.reply() == "PONG"
    assert await wire.reply() == "-ERR Protocol error: invalid multibulk length"
    assert await wire.ended()
    page = await port.connect()
    page.writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nFLUSHALL\r\n")
    assert await page.ended()


async def test_quit_is_answered_and_ends_the_connection(wire: Wire) -> None:
    """What comes behind it is not run."""
    wire.send("QUIT")
    wire.send("XADD", "s", "*", "a", "b")
    assert await wire.reply() == "OK"
    assert await wire.ended()


async def test_clients_are_listed_and_ended(port: TestedPort) -> None:
    """By what they say about themselves."""
    one, other = await port.connect(), await port.connect()
    assert await one.call("CLIENT", "SETNAME", "worker-1") == "OK"
    assert await one.call("CLIENT", "SETINFO", "LIB-NAME", "lib") == "OK"
    assert await one.call("CLIENT", "SETNAME", "a b") == (
        "-ERR Client names cannot contain spaces, newlines or special characters."
    )
    listed = await other.call("CLIENT", "LIST")
    assert isinstance(listed, bytes)
    assert b" name=worker-1 " in listed
    assert b" lib-name=lib " in listed
    assert listed.count(b"\n") == 2
    for kept in ("NO-EVICT", "NO-TOUCH"):
        assert await one.call("CLIENT", kept, "ON") == "OK"
        assert await one.call("CLIENT", kept, "MAYBE") == "-ERR syntax error"
    number = await one.call("CLIENT", "ID")
    assert isinstance(number, int)
    assert await other.call("CLIENT", "KILL", "ID", number) == 1
    assert await one.ended()
    assert await other.call("CLIENT", "MAINT_NOTIFICATIONS", "ON") == (
        "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."
    )


def policy(*grants: str) -> tuple[TokenPolicy, tokens.CreatedToken]:
    made = tokens.create(tuple(map(Grant.parse, grants)))
    return TokenPolicy([made.token], wall_s=lambda: 0.0), made


def policies() -> tuple[TokenPolicy, str, str]:
    """Two callers who may do everything, by the texts of their tokens."""
    made = [tokens.create((Grant.parse("*:*"),)) for _ in range(2)]
    return TokenPolicy([one.token for one in made], wall_s=lambda: 0.0), made[0].text, made[1].text


async def test_a_token_is_needed_and_its_grants_hold(open_port: Any) -> None:
    """For each command and key, in Redis's words."""
    access, made = policy("read,write:orders.*", "read:stock")
    port = await open_port(policy=access)
    wire = await port.connect()
    needed = "-NOAUTH Authentication required."
    assert await wire.call("PING") == needed
    assert await wire.call("XLEN", "orders.a") == needed
    wrong = "-WRONGPASS invalid username-password pair or user is disabled."
    assert await wire.call("AUTH", "weir_no") == wrong
    assert await wire.call("AUTH", "someone", made.text) == wrong
    assert await wire.call("AUTH", made.token.id, made.text) == "OK"
    assert await wire.call("ACL", "WHOAMI") == made.token.id.encode()
    assert isinstance(await wire.call("XADD", "orders.a", "*", "a", "b"), bytes)
    key = "-NOPERM No permissions to access a key"
    assert await wire.call("XADD", "stock", "*", "a", "b") == key
    assert await wire.call("XREAD", "STREAMS", "orders.a", "other", "0", "0") == key
    assert await wire.call("XDEL", "orders.a", "1-1") == 0
    assert await wire.call("XDELEX", "orders.a", "IDS", 1, "1-1") == [-1]
    for name, *words in (("xtrim", "MAXLEN", "0"), ("xackdel", "g", "IDS", "1", "1-1")):
        assert await wire.call(name, "orders.a", *words) == (
            f"-NOPERM User {made.token.id} has no permissions to run the '{name}' command"
        )
    assert await wire.call("KEYS", "*") == [b"orders.a"]
    assert await wire.call("RESET") == "RESET"
    assert await wire.call("PING") == needed
    wire.send("HELLO", "3", "AUTH", "default", made.text, "SETNAME", "me")
    assert isinstance(await wire.reply(), dict)
    assert await wire.call("CLIENT", "GETNAME") == b"me"


async def test_a_caller_has_its_share_of_connections(open_port: Any) -> None:
    """One too many is refused and closed: when it connects, or when it shows its token."""
    access, mine, other = policies()
    port = await open_port(policy=access, per_principal_max=2)
    refusal = "-ERR one caller may have at most 2 at a time: see the setting per_principal_max"
    shares = port.gateway.limits.connections

    async def connected(text: str) -> Wire:
        wire: Wire = await port.connect()
        wire.send("AUTH", text)
        return wire

    first, second = await connected(mine), await connected(mine)
    assert [await first.reply(), await second.reply()] == ["OK", "OK"]
    assert shares.held(f"token:{tokens.id_of(mine)}") == 2
    third = await connected(mine)
    assert await third.reply() == refusal
    assert await third.ended()
    theirs = await connected(other)
    assert await theirs.reply() == "OK"
    assert await theirs.call("AUTH", mine) == refusal
    assert await theirs.ended()
    assert await first.call("AUTH", mine) == "OK"
    assert await first.call("RESET") == "RESET"
    assert shares.held(f"token:{tokens.id_of(mine)}") == 1
    assert await (await connected(mine)).reply() == "OK"
    second.close()
    await until(lambda: shares.held(f"token:{tokens.id_of(mine)}") == 1)
    # The one after RESET has no token, and so is its address's again.
    strange = await port.connect()
    assert await strange.call("PING") == "-NOAUTH Authentication required."
    refused = await port.connect()
    assert await refused.reply() == refusal
    assert await refused.ended()
    port.close()
    await until(lambda: len(shares) == 0)


class SlowPolicy(TokenPolicy):
    """Looks at a token when it is let go on."""

    def __init__(self, token: tokens.Token) -> None:
        super().__init__([token], wall_s=lambda: 0.0)
        self.asked, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def identify(self, text: str) -> Principal:
        """Whose token this is."""
        self.asked.set()
        await self.may_go_on.wait()
        return await super().identify(text)


async def test_a_client_that_is_ended_while_its_token_is_looked_at_holds_nothing(open_port: Any) -> None:
    """No share, and no session that a revocation would look for."""
    made = tokens.create((Grant.parse("*:*"),))
    access = SlowPolicy(made.token)
    port = await open_port(policy=access)
    wire = await port.connect()
    wire.send("AUTH", made.text)
    await access.asked.wait()
    (session,) = port.server.port.sessions.values()
    session.abort("a test")
    await until(lambda: not port.server.port.sessions)
    access.may_go_on.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(port.gateway.limits.connections) == 0
    access.replace_tokens([])
    assert port.gateway.access.sessions.revoke(access.is_revoked) == 0


async def test_without_tokens_an_address_has_its_share_of_connections(open_port: Any) -> None:
    """RESET changes nothing: it is the same caller."""
    port = await open_port(per_principal_max=1)
    first = await port.connect()
    assert await first.call("RESET") == "RESET"
    second = await port.connect()
    assert str(await second.reply()).startswith("-ERR one caller may have at most 1 at a time")
    assert await second.ended()
    assert await first.call("PING") == "PONG"


async def test_only_the_same_user_may_use_the_unix_socket(port: TestedPort, tmp_path: Path) -> None:
    """Its file is made with that mode, and goes with the port."""
    path = tmp_path / "0.sock"
    mode = (await asyncio.to_thread(path.stat)).st_mode
    assert stat.S_IMODE(mode) == 0o600
    await port.server.close()
    assert not await asyncio.to_thread(path.exists)


async def test_pipelines_of_alike_and_other_commands_are_answered_in_order(wire: Wire) -> None:
    """Alike, with one of another name between, and with a command by itself; of other lengths than a run."""
    adds = [("XADD", "s", "*", "n", str(number)) for number in range(2_003)]
    mixed: list[tuple[str, ...]] = [
        *adds[:5],
        ("XADD", "s", "*", "m", "1"),
        *adds[5:10],
        ("PING",),
        *adds[10:],
    ]
    for pipeline in (adds, mixed, adds[:3]):
        for words in pipeline:
            wire.send(*words)
        replies = [await wire.reply() for _ in pipeline]
        given = [reply for reply in replies if isinstance(reply, bytes)]
        assert len(given) == sum(words[0] == "XADD" for words in pipeline)
        assert given == sorted(set(given), key=lambda text: [*map(int, text.split(b"-"))])
    rows: Any = await wire.call("XRANGE", "s", "-", "+")
    expected = [
        [word.encode() for word in words[3:]] for words in (*adds, *mixed, *adds[:3]) if len(words) > 1
    ]
    assert [fields for _, fields in rows] == expected


async def test_long_replies_are_made_one_by_one(
    open_port: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each leaves before the next is made, together with the short ones beside it."""
    # Without a clock that moves no slice of time ends within them.
    port = await open_port(clock=HandClock(1_700_000_000_000))
    wire, engine = await port.connect(), port.gateway.tenant("").engine
    await wire.call("XADD", "s", "1-1", "a", "1")
    send, seen = engine.send, list[int]()

    def counted(call: Call, done: Done) -> Replies | None:
        seen.append(len(call.commands))
        replies: Replies | None = send(call, done)
        return replies

    monkeypatch.setattr(engine, "send", counted)
    long = b"*4\r\n$6\r\nXRANGE\r\n$1\r\ns\r\n$1\r\n-\r\n$1\r\n+\r\n"
    short = b"*2\r\n$4\r\nXLEN\r\n$1\r\ns\r\n"
    wire.writer.write(short * 2 + long * 3 + short)
    found = [await wire.reply() for _ in range(6)]
    assert found == [1, 1, *[[[b"1-1", [b"a", b"1"]]]] * 3, 1]
    assert seen == [3, 1, 2]
