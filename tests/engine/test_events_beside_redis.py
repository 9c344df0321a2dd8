"""Events of streams have the names and the order that a real Redis 7.0 gives them, command by command.

Not compared: reads and claims that find nothing, which make their consumer since 7.2. XDELEX came later: its
event is `xdel` in Redis 8's t_stream.c, xdelexCommand.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from app.redis import parse
from engine.commands.execution import execute
from tests.engine.real_redis import RealRedis
from tests.engine.world import World

# What `new` is for is not in `A`.
FLAGS: Final = "KEAn"
END: Final = ("end", "end")
ANSWER_S_MAX: Final = 5.0
HISTORIES: Final = {
    "entries": """
        XADD s 1-0 a 1 | XADD s MAXLEN 1 2-0 a 1 | XADD s MAXLEN 5 3-0 a 1 | XADD s NOMKSTREAM 4-0 a 1
        XADD none NOMKSTREAM 4-0 a 1 | XADD s 4-0 a 1 | XADD s MAXLEN 0 5-0 a 1 | XADD s 6-0 a 1
        XADD s 7-0 a 1 | XADD s 8-0 a 1 | XDEL s 6-0 | XDEL s 6-0 | XDEL s 6-0 7-0 8-0 | XDEL none 6-0
        XTRIM s MAXLEN 0 | XADD s 9-0 a 1 | XTRIM s MAXLEN 5 | XTRIM s MINID 10 | XLEN s | XRANGE s - +
        XSETID s 9-0 | XSETID s 9-0 | XSETID s 20-0 | XSETID none 1-0 | XINFO STREAM s
    """,
    "groups": """
        XADD s 1-0 a 1 | XADD s 2-0 a 1 | XADD s 3-0 a 1 | XGROUP CREATE s g 0 | XGROUP CREATE s g 0
        XGROUP CREATE n g $ MKSTREAM | XGROUP CREATE n h $ MKSTREAM | XGROUP SETID s g 0
        XGROUP CREATECONSUMER s g a | XGROUP CREATECONSUMER s g a | XREADGROUP GROUP g b COUNT 1 STREAMS s >
        XREADGROUP GROUP g b COUNT 1 STREAMS s > | XREADGROUP GROUP g b STREAMS s 0
        XREADGROUP GROUP g c NOACK COUNT 1 STREAMS s > | XACK s g 1-0 | XACK s g 1-0 | XCLAIM s g d 0 2-0
        XCLAIM s g d 0 2-0 | XAUTOCLAIM s g f 0 - | XAUTOCLAIM s g f 0 - | XPENDING s g
        XPENDING s g - + 5 | XGROUP DELCONSUMER s g d | XGROUP DELCONSUMER s g d | XGROUP DESTROY s g
        XGROUP DESTROY s g
    """,
    "lifetimes": """
        XADD s 1-0 a 1 | EXPIRE s 1000 | EXPIRE s 1000 NX | PEXPIRE s 1000000 | EXPIREAT s 4102444800
        PEXPIREAT s 4102444800000 | TTL s | PERSIST s | PERSIST s | EXPIRE s 0 | EXPIRE s 10
        XADD s 1-0 a 1 | PEXPIREAT s 1
    """,
    "keys": """
        XADD s 1-0 a 1 | RENAME s t | RENAMENX t s | RENAME s s | COPY s t | COPY s t | COPY s t REPLACE
        RENAME s t | XADD n 1-0 a 1 | RENAMENX t n | DEL t none n t | XADD t 1-0 a 1 | UNLINK t
        XADD t 1-0 a 1 | TYPE t | FLUSHALL
    """,
}


class Both:
    """A real Redis that publishes its events, and a world that records them."""

    def __init__(self, directory: Path) -> None:
        self._server = RealRedis(directory)
        self._server.call("CONFIG", "SET", "notify-keyspace-events", FLAGS)
        # The client library has no types for what it subscribes with.
        connect: Any = redis.Redis
        self._client: Any = connect(unix_socket_path=str(directory / "redis.sock"), protocol=2)
        self._events: Any = self._client.pubsub()
        self._events.psubscribe("__keyevent@0__:*")
        self._events.get_message(timeout=ANSWER_S_MAX)
        self.begin()

    def begin(self) -> None:
        """Nothing is there."""
        self._server.empty()
        self._theirs()
        self.world = World(time.time_ns() // 1_000_000)
        self.world.keyspace.notifies = True

    def compare(self, *words: str) -> None:
        """The events of a command."""
        self._server.call(*words)
        ours = self._ours([word.encode() for word in words])
        assert ours == self._theirs(), words

    def _ours(self, words: list[bytes]) -> list[tuple[str, str]]:
        command = parse(words).command
        assert command is not None
        return execute(self.world.keyspace, command, self.world.now_ms).turn.events or []

    def _theirs(self) -> list[tuple[str, str]]:
        event, stream = END
        self._client.publish(f"__keyevent@0__:{event}", stream)
        found: list[tuple[str, str]] = []
        while END not in found:
            message = self._events.get_message(timeout=ANSWER_S_MAX)
            assert message is not None, found
            found.append((message["channel"].decode().partition(":")[2], message["data"].decode()))
        return found[:-1]

    def end(self) -> None:
        """End the server."""
        self._client.close()
        self._server.end()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    both = Both(tmp_path_factory.mktemp("redis"))
    yield both
    both.end()


@pytest.mark.parametrize("history", HISTORIES)
def test_each_command_has_the_events_of_redis(both: Both, history: str) -> None:
    """Refused commands and those that change nothing have none."""
    both.begin()
    for line in HISTORIES[history].split("\n"):
        for words in filter(None, map(str.split, line.split("|"))):
            both.compare(*words)


def test_xdelex_is_xdel() -> None:
    """If it deletes something."""
    world = World()
    world.add("s", "1-0")
    world.keyspace.notifies = True
    for expected in ([("xdel", "s")], []):
        command = parse([b"XDELEX", b"s", b"IDS", b"1", b"1-0"]).command
        assert command is not None
        assert execute(world.keyspace, command, world.now_ms).turn.events == expected
