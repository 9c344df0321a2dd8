"""A tenant is answered on the port for Redis clients as a caller without a prefix is, and reply by reply."""

from collections.abc import Awaitable, Callable

import pytest

from app.auth import Grant, Principal
from app.redis.replies import SHAPES
from engine import replies
from tests.app.policies import FixedPolicy
from tests.app.resp.conftest import TestedPort
from tests.app.tenants.test_same_answers import COMMANDS, LEFT_OUT, PREFIX, principal
from tests.app.test_failed_replies import INTERNAL, ROWS, fail
from tests.engine.clocks import HandClock

Open = Callable[..., Awaitable[TestedPort]]


async def test_a_pipeline_and_a_transaction_answer_both_alike(open_port: Open) -> None:
    """Every command, over the same content."""
    found = list[str]()
    for prefix in (None, PREFIX):
        port = await open_port(FixedPolicy(principal(prefix)), HandClock())
        wire = await port.connect()
        await wire.call("HELLO", "3")
        sequence = [*COMMANDS, ("MULTI",), *COMMANDS[:-1], ("EXEC",), ("PING",)]
        for words in sequence:
            wire.send(*words)
        found.append(LEFT_OUT.sub(b"", repr([await wire.reply() for _ in sequence]).encode()).decode())
    assert found[1] == found[0]
    assert found[1].endswith("'PONG']")


async def test_other_commands_on_the_redis_port_have_their_replies(
    open_port: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a run, and in a transaction; the connection goes on."""
    monkeypatch.setitem(SHAPES, replies.StreamInfo, fail)
    port = await open_port()
    wire = await port.connect()
    for row in [*ROWS, ["MULTI"], ["XADD", "s", "2-0", "a", "b"], *ROWS[1:], ["EXEC"], ["PING"]]:
        wire.send(*row)
    assert [await wire.reply() for _ in range(3)] == [b"1-0", f"-{INTERNAL}", 1]
    assert [await wire.reply() for _ in range(4)] == ["OK", "QUEUED", "QUEUED", "QUEUED"]
    assert [await wire.reply(), await wire.reply()] == [[b"2-0", f"-{INTERNAL}", 2], "PONG"]
    assert port.gateway.reports.counters.rejected["internal"] == 2


async def test_a_name_with_spaces_writes_no_fields_of_client_list(open_port: Open) -> None:
    """As the subject of a JWT may be."""
    port = await open_port(FixedPolicy(Principal("jwt:Jo db=9", [Grant.parse("*:*")])))
    wire = await port.connect()
    listed = await wire.call("CLIENT", "LIST")
    assert isinstance(listed, bytes)
    assert b" user=Jo_db=9 redir=-1 " in listed
    assert await wire.call("ACL", "WHOAMI") == b"Jo db=9"
