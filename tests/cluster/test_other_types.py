"""Keys of other types, and of names that are none, are other programs': nothing changes or removes them."""

from collections.abc import Sequence

import pytest

from engine import EngineError, entries
from engine.cluster import ClusterEngine
from engine.commands import types
from engine.commands.base import Command
from engine.replies import Listing, Reply
from tests.cluster.engines import opened
from tests.cluster.servers import Backend, BackendServer
from tests.engine.asking import reply_to, turn_of

BODY = entries.body([("a", "1")])
# One slot, so that a cluster runs what concerns both.
TEXT, STREAM = "{x}text", "{x}s"


@pytest.fixture
def text(backend: Backend) -> Backend:
    """A string without a lifetime."""
    backend.call("SET", TEXT, "1")
    return backend


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (types.Delete(streams=[TEXT]), 0),
        (types.Delete(streams=[TEXT, "elsewhere"]), 0),
        (types.Exists(streams=[TEXT]), 0),
        (types.Exists(streams=[TEXT, "elsewhere"]), 0),
        (types.Type(stream=TEXT), "none"),
        (types.Expire(stream=TEXT, ms=100_000, relative=True), False),
        (types.Expire(stream=TEXT, ms=1, relative=False), False),
        (types.TimeToLive(stream=TEXT), -2),
        (types.TimeToLive(stream=TEXT, absolute=True), -2),
        (types.Copy(stream=TEXT, target="{x}other", replace=True), False),
    ],
)
async def test_they_are_as_missing(
    text: Backend, engine: ClusterEngine, command: Command, reply: Reply
) -> None:
    assert await reply_to(engine, command) == reply
    assert (text.call("GET", TEXT), text.call("PTTL", TEXT)) == (b"1", -1)


async def test_their_lifetime_stays(text: Backend, engine: ClusterEngine) -> None:
    text.call("PEXPIRE", TEXT, 100_000)
    assert await reply_to(engine, types.Persist(stream=TEXT)) is False
    assert 0 < text.call("PTTL", TEXT) <= 100_000


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (types.Rename(stream=TEXT, target="{x}other"), "no_stream"),
        (types.Rename(stream=STREAM, target=TEXT), "invalid"),
        (types.Rename(stream=STREAM, target=TEXT, replace=False), "invalid"),
        (types.Copy(stream=STREAM, target=TEXT, replace=True), "invalid"),
        (types.XAdd(stream=TEXT, bodies=[BODY]), "invalid"),
    ],
)
async def test_no_stream_takes_their_place(
    text: Backend, engine: ClusterEngine, command: Command, code: str
) -> None:
    await reply_to(engine, types.XAdd(stream=STREAM, bodies=[BODY]))
    with pytest.raises(EngineError) as refusal:
        await reply_to(engine, command)
    assert refusal.value.code == code
    assert (text.call("GET", TEXT), text.call("TYPE", STREAM)) == (b"1", b"stream")


async def test_a_stream_of_another_program_is_within_reach_by_its_key(
    backend: Backend, engine: ClusterEngine
) -> None:
    """Slashes included. What is no name here, and what is Weir's own, is as if it was not there."""
    for key in ("acme/orders", "acme/orders/eu", "acme//orders", "acme/", "weir/gateways", "weir/x", "a\n"):
        backend.call("XADD", key, "1-1", "a", "1")
    assert await reply_to(engine, types.ListStreams()) == Listing(["acme/orders", "acme/orders/eu"])
    assert await reply_to(engine, types.ListStreams(prefix="acme/orders/")) == Listing(["acme/orders/eu"])
    await reply_to(engine, types.XAdd(stream="acme/orders/eu", bodies=[BODY]))
    assert backend.call("XLEN", "acme/orders/eu") == 2


async def test_streams_beside_them_are_removed(text: Backend, engine: ClusterEngine) -> None:
    await reply_to(engine, types.XAdd(stream=STREAM, bodies=[BODY]))
    assert await reply_to(engine, types.Delete(streams=[TEXT, STREAM])) == 1
    assert text.call("GET", TEXT) == b"1"
    assert text.call("EXISTS", STREAM) == 0


async def test_a_removal_is_one_turn_with_them(server: BackendServer) -> None:
    """Over one server, and as a transaction."""
    server.call("SET", TEXT, "1")
    async with opened(server) as engine:
        add: Sequence[Command] = [
            types.XAdd(stream=STREAM, bodies=[BODY]),
            types.Delete(streams=[TEXT, STREAM]),
        ]
        _, removed = await turn_of(engine, add)
    assert removed == 1
    assert server.call("GET", TEXT) == b"1"
