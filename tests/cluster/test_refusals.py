"""Each sentence of a server that has a meaning here is said by a real one; all others are the backend's."""

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import hiredis
import pytest

from engine.cluster.keys import slot_of
from engine.cluster.refusals import KNOWN, refusal_of
from engine.cluster.wire import ServerError, pack
from tests.cluster.clusters import BackendCluster, primaries
from tests.cluster.servers import BackendServer
from tests.engine.real_redis import PROGRAMS
from tests.waiting import until

_BYTES_MAX: Final = 1 << 16
ANSWER_S_MAX: Final = 10.0


class Wire:
    """A connection that says what it is told, without a greeting."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_S_MAX)
        self._reader = hiredis.Reader(replyError=ServerError)

    def send(self, *words: object) -> None:
        self._socket.sendall(pack(tuple(map(str, words))))

    def said(self, *words: object) -> Any:
        """The reply, a refusal as `ServerError`."""
        self.send(*words)
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(_BYTES_MAX))
        return reply

    def close(self) -> None:
        self._socket.close()


@contextmanager
def wire(server: BackendServer) -> Iterator[Wire]:
    found = Wire(server.port)
    try:
        yield found
    finally:
        found.close()


def said(server: BackendServer, *words: object) -> Any:
    """The reply over a connection of its own."""
    with wire(server) as fresh:
        return fresh.said(*words)


# --- how to make a server say it


def of_streams(server: BackendServer) -> Iterator[Any]:
    """About streams, groups, lifetimes."""
    server.call("XADD", "s", "5-1", "a", "1")
    server.call("XGROUP", "CREATE", "s", "g", "0")
    server.call("SET", "text", "1")
    yield said(server, "XGROUP", "CREATE", "s", "g", "0")
    yield said(server, "XGROUP", "CREATE", "none", "g", "0")
    yield said(server, "XINFO", "CONSUMERS", "s", "none")
    yield said(server, "XINFO", "STREAM", "none")
    yield said(server, "XLEN", "text")
    yield said(server, "XSETID", "s", "1-0")
    yield said(server, "XSETID", "s", "9-0", "ENTRIESADDED", 0, "MAXDELETEDID", "0-0")
    yield said(server, "PEXPIRE", "s", (1 << 63) - 1)
    yield said(server, "GLANCE", "s")
    yield said(server, "EVALSHA", "0" * 40, 0)
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    yield said(server, "OBJECT", "IDLETIME", "s")
    server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")


def of_users(server: BackendServer) -> Iterator[Any]:
    """About who may do what."""
    server.call("ACL", "SETUSER", "weir", "on", ">secret", "~mine", "+@all", "-xadd")
    with wire(server) as of_user:
        yield of_user.said("AUTH", "weir", "wrong")
        assert of_user.said("AUTH", "weir", "secret") == b"OK"
        yield of_user.said("XLEN", "other")
        yield of_user.said("EVAL", "return redis.call('XADD', KEYS[1], '*', 'a', '1')", 1, "mine")
    server.call("CONFIG", "SET", "requirepass", "secret")
    yield said(server, "XLEN", "s")
    server.call("CONFIG", "SET", "requirepass", "")


def of_state(server: BackendServer) -> Iterator[Any]:
    """About what the server can do now."""
    add = ("XADD", "s", "*", "a", "1")
    server.call("CONFIG", "SET", "maxmemory", 1)
    yield said(server, *add)
    server.call("CONFIG", "SET", "maxmemory", 0)
    server.call("CONFIG", "SET", "min-replicas-to-write", 1)
    yield said(server, *add)
    server.call("CONFIG", "SET", "min-replicas-to-write", 0)
    server.call("CONFIG", "SET", "busy-reply-threshold", 1)
    with wire(server) as running:
        running.send("EVAL", "while true do end", 0)
        until(lambda: isinstance(said(server, "XLEN", "s"), ServerError), "the script runs")
        yield said(server, "XLEN", "s")
        said(server, "SCRIPT", "KILL")
        until(lambda: not isinstance(said(server, "XLEN", "s"), ServerError), "it has ended")
    server.call("REPLICAOF", "127.0.0.1", 1)
    yield said(server, *add)
    server.call("CONFIG", "SET", "replica-serve-stale-data", "no")
    yield said(server, "XLEN", "s")


def of_failed_disk(server: BackendServer) -> Iterator[Any]:
    """About data that cannot be written."""
    shutil.rmtree(server.socket.parent)
    server.call("CONFIG", "SET", "save", "3600 1")
    server.call("BGSAVE")
    until(lambda: b"rdb_last_bgsave_status:err" in server.call("INFO", "persistence"), "it has failed")
    yield said(server, "XADD", "s", "*", "a", "1")


def of_slow_disk(server: BackendServer) -> Iterator[Any]:
    """About data that are read."""
    server.call("DEBUG", "POPULATE", 2_000, "key", 100)
    server.call("SAVE")
    server.kill()
    with subprocess.Popen(server.words, stdout=subprocess.DEVNULL) as process:
        try:
            until(lambda: is_loading(server), "it answers while it reads")
            yield said(server, "XLEN", "s")
        finally:
            process.kill()


def is_loading(server: BackendServer) -> bool:
    try:
        return isinstance(said(server, "XLEN", "s"), ServerError)
    except OSError:
        return False


def of_slots(cluster: BackendCluster) -> Iterator[Any]:
    """About where a key is."""
    owner, other = sorted(cluster.servers, key=lambda server: server is not cluster.owner("{m}"))
    slot, names = slot_of(b"m"), [server.call("CLUSTER", "MYID") for server in (owner, other)]
    look = "return redis.call('XLEN', '{m}gone')"
    owner.call("XADD", "{m}", "*", "a", "1")
    yield said(other, "XLEN", "{m}")
    yield said(other, "EVAL", look, 0)
    yield said(owner, "EXISTS", "{m}", "other")
    other.call("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0].decode())
    owner.call("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1].decode())
    yield said(owner, "XLEN", "{m}gone")
    yield said(owner, "EXISTS", "{m}", "{m}gone")
    yield said(owner, "EVAL", look, 0)
    other.call("CLUSTER", "DELSLOTS", next(one for one in range(1 << 14) if is_of(other, cluster, one)))
    until(lambda: b"cluster_state:fail" in other.call("CLUSTER", "INFO"), "the cluster is down")
    yield said(other, "XLEN", "{m}")
    yield said(other, "EVAL", look, 0)


def is_of(server: BackendServer, cluster: BackendCluster, slot: int) -> bool:
    return cluster.servers[slot * len(cluster.servers) >> 14] is server


SLOWLY: Final = ("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
# What makes a server say it, and the options of that server.
WAYS: Final[Sequence[tuple[Callable[[BackendServer], Iterator[Any]], Sequence[str]]]] = (
    *((of_streams, ()), (of_users, ()), (of_state, ()), (of_failed_disk, ())),
    (of_slow_disk, ("--enable-debug-command", "yes", *SLOWLY)),
)


def provoked(kind: str, directory: Path) -> Iterator[Any]:
    """All that a server of a kind is made to say."""
    for number, (way, options) in enumerate(WAYS):
        place = directory / str(number)
        place.mkdir(parents=True)
        with BackendServer(place, kind, options) as server:
            yield from way(server)
    (directory / "cluster").mkdir()
    with primaries(directory / "cluster", kind, 2) as cluster:
        yield from of_slots(cluster)


def test_every_known_sentence_is_said_by_a_server(tmp_path: Path) -> None:
    """And no refusal that they are made to say is unknown."""
    heard: set[str] = set()
    for kind in sorted(PROGRAMS):
        for one in provoked(kind, tmp_path / kind):
            if isinstance(one, ServerError):
                assert refusal_of(one, writes=True).code != "backend_error", one
                heard |= {
                    known for known in KNOWN if f"{one} ".startswith(f"{known} ") or is_begun(one, known)
                }
    assert heard == set(KNOWN)


def is_begun(one: ServerError, known: str) -> bool:
    return " " in known and str(one).startswith(known)


@pytest.mark.parametrize(
    "text",
    ["ERR the moon is full", "ODD", "ERR", "", "MOONFULL try elsewhere 127.0.0.1:1", "REDIRECT 127.0.0.1:1"],
)
def test_any_other_sentence_is_the_backends(text: str) -> None:
    """Its words are shown, and no client of Redis takes them for its own."""
    for writes, outcome in ((True, "unknown"), (False, "not done")):
        refusal = refusal_of(ServerError(text), writes=writes)
        assert (refusal.code, refusal.members["outcome"]) == ("backend_error", outcome)
        assert refusal.redis.startswith("ERR the backend ")
        assert text in refusal.detail
