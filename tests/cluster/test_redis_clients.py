"""Redis clients with what they do by themselves, beside servers that fail: no write is done twice."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError, ResponseError
from redis.retry import Retry

from engine.cluster.keys import SLOTS, slot_of
from tests.cluster.clusters import primaries
from tests.cluster.servers import Backend, BackendServer
from tests.server import Server, free_port
from tests.waiting import until

WRITES: Final = 3
TIMEOUT_MS: Final = 200
# For so long that a client that repeats has done so.
HANGS_S: Final = 0.5


@contextmanager
def client(directory: Path, backend: Backend) -> Iterator[Any]:
    """redis-py as it comes, at the port of a gateway over the backend."""
    port = free_port()
    words = ("--resp-listen", str(port), "--backend", backend.url)
    settings = ("backend_durability=memory", f"backend_timeout_ms={TIMEOUT_MS}")
    with (
        Server(directory / "gateway", *words, *(word for one in settings for word in ("--set", one))),
        redis.Redis(host="127.0.0.1", port=port) as found,
    ):
        yield found


def without_retries(other: Any) -> Any:
    """A client of the same port that repeats nothing."""
    return redis.Redis(port=other.get_connection_kwargs()["port"], retry=Retry(NoBackoff(), 0))


def test_a_write_beside_a_hanging_server_is_stored_once(own_server: BackendServer, tmp_path: Path) -> None:
    """The client is told that it may have been done, and does not send it again by itself."""
    with client(tmp_path, own_server) as found, ThreadPoolExecutor(WRITES) as threads:
        found.xadd("s", {"n": "before"})
        own_server.pause()
        writes = [threads.submit(found.xadd, "s", {"n": str(number)}) for number in range(WRITES)]
        until(lambda: any(one.done() for one in writes))
        time.sleep(HANGS_S)
        own_server.resume()
        refusals = [one.exception() for one in writes]
        values = [fields[b"n"] for _, fields in found.xrange("s")]
    assert max(Counter(values).values()) == 1
    assert "may have been done" in str(next(filter(None, refusals)))


def test_what_was_not_done_is_sent_again(own_server: BackendServer, tmp_path: Path) -> None:
    """While a server is not there the client waits by itself, as for one that is loading."""
    with client(tmp_path, own_server) as found, ThreadPoolExecutor(1) as threads:
        found.xadd("s", {"n": "0"})
        own_server.kill()
        with without_retries(found) as once, pytest.raises(BusyLoadingError):
            once.xadd("s", {"n": "1"})
        again = threads.submit(found.xadd, "s", {"n": "2"})
        time.sleep(HANGS_S)
        own_server.start()
        assert again.result() == found.xrange("s")[0][0]
        assert found.xlen("s") == 1


def test_a_pipeline_is_not_repeated_for_one_of_its_commands(tmp_path: Path) -> None:
    """One of the primaries is away: what the others have stored, they have once. So it is with a command on
    several streams.
    """
    names, others = ["a", "b", "c", "d", "e", "f"], ["{a}2", "{b}2", "{c}2"]
    with primaries(tmp_path) as cluster, client(tmp_path, cluster) as found:
        for name in (*names, *others):
            found.xadd(name, {"n": "0"})
        gone = cluster.owner(names[0])
        gone.pause()
        # So that what comes next is refused before it is sent.
        with without_retries(found) as once, pytest.raises(RedisError):
            once.xadd(names[0], {"n": "maybe"})
        pipeline = found.pipeline(transaction=False)
        for name in names:
            pipeline.xadd(name, {"n": "1"})
        with pytest.raises(RedisError):
            pipeline.execute()
        with pytest.raises(ResponseError, match="may have been done"):
            found.delete(*others)
        gone.resume()
        places = {name: slot_of(name.encode()) * len(cluster.servers) // SLOTS for name in names}
        assert len(set(places.values())) > 1
        for name in names:
            stored = [fields[b"n"] for _, fields in found.xrange(name)]
            assert len(stored) == len(set(stored)), name
