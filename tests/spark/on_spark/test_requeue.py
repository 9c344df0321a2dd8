"""Dead letters go back to where their entries came from, each once."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pyspark_weir.errors import OptionError
from pyspark_weir.gateway import Access, Gateway
from pyspark_weir.jobs import requeue
from pyspark_weir.jobs.requeue import Found, Requeue
from tests.server import Server

WORK = "/v1/streams/rq.work"


@pytest.fixture
def gateway(shared_server: Server) -> Iterator[Gateway]:
    with Gateway(Access("g0", shared_server.url)) as opened:
        yield opened


def test_letters_go_back_once_as_they_were(spark: SparkSession, gateway: Gateway) -> None:
    """Of two groups' letters of an entry one is enough, and a second run adds nothing; bytes and repeated
    names stay; an entry that dies again can be put back again.
    """
    ids = [
        gateway.post(f"{WORK}/entries", body)["id"]
        for body in (
            {"fields": {"n": "0"}},
            {"fields": [["a", "/w=="], ["a", "MQ=="]], "encoding": "base64"},
            {"fields": {"n": "2"}},
        )
    ]
    for group, dead in (("one", ids[:2]), ("two", ids[1:])):
        gateway.post(f"{WORK}/groups", {"name": group, "start": "0"})
        gateway.patch(f"{WORK}/groups/{group}", {"dead_letter": {"stream": "rq.dead", "max_deliveries": 5}})
        gateway.post(f"{WORK}/groups/{group}/consumers/c/read", {"count": 10})
        gateway.post(f"{WORK}/groups/{group}/dead-letter", {"ids": dead, "reason": f"by {group}"})
    gateway.post("/v1/streams/rq.dead/entries", {"fields": {"no": "letter"}})
    asked = Requeue(gateway.access, ("rq.dead",))

    letters = requeue.chosen(spark, asked)
    assert requeue.counted(letters) == [
        Found("rq.dead", "rq.work", "by one", 2),
        Found("rq.dead", "rq.work", "by two", 2),
    ]
    assert gateway.get(WORK)["length"] == 3, "counting changes nothing"

    for _ in range(2):
        requeue.put_back(requeue.chosen(spark, asked), gateway.access)
    back = gateway.get(f"{WORK}/entries", {"after": ids[-1]})["entries"]
    assert len(back) == 3
    bodies = [{name: one[name] for name in one if name != "id"} for one in back]
    assert {"fields": {"n": "0"}} in bodies
    assert {"fields": {"n": "2"}} in bodies
    assert {"fields": {"a": "MQ=="}, "pairs": [["a", "/w=="], ["a", "MQ=="]], "encoding": "base64"} in bodies

    gateway.post(f"{WORK}/groups/one/consumers/c/read", {"count": 10})
    gateway.post(f"{WORK}/groups/one/dead-letter", {"ids": [back[0]["id"]], "reason": "again"})
    again = requeue.chosen(spark, Requeue(gateway.access, ("rq.dead",), reason="again"))
    requeue.put_back(again, gateway.access)
    assert gateway.get(WORK)["length"] == 7


def test_only_letters_that_were_put_back_are_removed(spark: SparkSession, gateway: Gateway) -> None:
    """What came later stays, and so does what was not chosen."""
    work = "/v1/streams/rm.work"
    gateway.post(f"{work}/groups", {"name": "g", "start": "0", "mkstream": True})
    gateway.patch(f"{work}/groups/g", {"dead_letter": {"stream": "rm.dead", "max_deliveries": 5}})

    def die(reason: str) -> None:
        entry_id = gateway.post(f"{work}/entries", {"fields": {"reason": reason}})["id"]
        gateway.post(f"{work}/groups/g/consumers/c/read", {"count": 10})
        gateway.post(f"{work}/groups/g/dead-letter", {"ids": [entry_id], "reason": reason})

    die("timeout")
    die("bad")
    letters = requeue.chosen(
        spark, Requeue(gateway.access, ("rm.dead",), where="fields['reason'] = 'timeout'")
    )
    die("timeout")
    requeue.put_back(letters, gateway.access)
    assert requeue.remove(letters, gateway.access) == 1
    left = gateway.get("/v1/streams/rm.dead/entries")["entries"]
    assert [one["fields"]["reason"] for one in left] == ["bad", "timeout"]
    assert gateway.get(work)["length"] == 4


def test_a_stream_of_letters_that_is_not_there_is_an_error(spark: SparkSession, gateway: Gateway) -> None:
    """A misspelt name would put nothing back, silently."""
    with pytest.raises(OptionError, match=r"no stream rq\.daed"):
        requeue.chosen(spark, Requeue(gateway.access, ("rq.daed",)))
