"""Clients that speak "Redis over REST" work when pointed at the command API: Python's and npm's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from upstash_redis import Redis

from tests.server import Server, server_of
from tests.waiting import completed

HERE = Path(__file__).parent


server = server_of("module")


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with Redis(url=f"{server.url}/v1/commands", token="none", allow_telemetry=False) as client:
        client.delete("fruit")
        yield client


def test_the_python_client_publishes_and_reads(client: Any) -> None:
    """upstash-redis appends, counts, reads ranges both ways, reads on from an ID, deletes and trims."""
    first = client.xadd("fruit", "1-1", {"name": "äpfel", "n": 1})
    assert first == "1-1"
    assert client.xadd("fruit", "*", {"name": "pear"}) > first
    assert client.xlen("fruit") == 2
    assert client.xrange("fruit")[0] == ["1-1", ["name", "äpfel", "n", "1"]]
    assert client.xrevrange("fruit", count=1)[0][1] == ["name", "pear"]
    assert client.xread({"fruit": "1-1"}, count=10)[0][0] == "fruit"
    assert client.xdel("fruit", "1-1") == 1
    assert client.xtrim("fruit", maxlen=0, approximate=False) == 1
    assert client.xadd("missing", "*", {"a": "b"}, nomkstream=True) is None


def test_the_python_client_works_off_a_group(client: Any) -> None:
    """upstash-redis reads as a group, looks at what is pending, claims, acknowledges and shows errors."""
    ids = [client.xadd("fruit", f"{number}-0", {"n": number}) for number in range(1, 5)]
    assert client.xgroup_create("fruit", "g", "0") == "OK"
    delivered = client.xreadgroup("g", "alice", {"fruit": ">"}, count=3)
    assert [entry_id for entry_id, _ in delivered[0][1]] == ids[:3]
    assert client.xpending("fruit", "g") == [3, "1-0", "3-0", [["alice", "3"]]]
    assert client.xack("fruit", "g", "1-0") == 1
    assert client.xclaim("fruit", "g", "bob", 0, "2-0")[0][0] == "2-0"
    assert client.xautoclaim("fruit", "g", "carol", 0, "0-0", justid=True)[1] == ["2-0", "3-0"]
    assert client.xackdel("fruit", "g", "2-0", option="DELREF") == [1]
    assert client.xinfo_groups("fruit")[0][:2] == ["name", "g"]
    assert client.xgroup_delconsumer("fruit", "g", "carol") == 1
    with pytest.raises(Exception, match="BUSYGROUP"):
        client.xgroup_create("fruit", "g", "0")


def test_the_python_client_pipelines(client: Any) -> None:
    """A pipeline and a transaction of upstash-redis answer command by command."""
    pipeline = client.pipeline()
    pipeline.xadd("fruit", "1-0", {"a": "b"})
    pipeline.xlen("fruit")
    assert pipeline.exec() == ["1-0", 1]
    transaction = client.multi()
    transaction.xadd("fruit", "2-0", {"a": "b"})
    transaction.xlen("fruit")
    assert transaction.exec() == ["2-0", 2]


def test_the_npm_client_works(server: Server) -> None:
    """@upstash/redis does the same in JavaScript: the script asserts, and says so at its end."""
    ran = completed(["node", str(HERE / "upstash.mjs"), f"{server.url}/v1/commands"], timeout=60)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["all agree"]), ran.stderr
