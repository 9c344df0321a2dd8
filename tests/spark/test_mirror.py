"""What a mirror sends does not come back to it, for then it would grow for ever."""

from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.errors import OptionError
from pyspark_weir.gateway import GatewayAccess, GatewayClient
from pyspark_weir.jobs.mirror import (
    LoopGuard,
    Mirror,
    Targets,
    check,
    is_same_gateway,
    loop_guard_of,
    query,
    settle,
)
from tests.server import Server

HERE = "http://127.0.0.1:8080"


def guard(to: list[str], target: str = HERE, **source: str) -> LoopGuard | None:
    given = {"gateway.urls": HERE, **source}
    return loop_guard_of(Mirror("unused", given, GatewayAccess("g0", target), Targets.parse(to)))


@pytest.mark.parametrize(
    ("source", "to"),
    [
        ({"subscribePattern": ".*"}, ["all"]),
        ({"subscribePattern": ".*"}, ["copy.{stream}"]),
        ({"subscribePattern": "a.*"}, []),
        ({"subscribePattern": "a|b"}, ["a=b", "b=a", "rest"]),
        ({"subscribe": "a,b"}, ["a=b", "b=a"]),
        ({"subscribe": "a,b"}, ["a=b", "b=c"]),
        ({"subscribePattern": "a|all"}, ["all=rest", "all"]),
        ({"subscribe": "a,all"}, ["all"]),
        ({"subscribe": "g0/a"}, []),
        ({"subscribe": "eu/a,eu/all"}, ["eu/all"]),
        ({"subscribe": "g0/eu/a"}, []),
        ({"assign": '{"g0": ["eu/a"]}'}, []),
        ({"assign": '{"g0": ["a"]}'}, []),
    ],
)
@pytest.mark.parametrize("target", [HERE, "http://localhost:8080", "http://127.0.0.2:8080/"])
def test_a_target_that_is_read_is_refused(source: dict[str, str], to: list[str], target: str) -> None:
    """The name of the target gateway does not matter."""
    with pytest.raises(OptionError, match="would go to itself"):
        guard(to, target, **source)


@pytest.mark.parametrize(
    ("source", "to"),
    [
        ({"subscribePattern": "(?!copy[.]).*"}, ["copy.{stream}"]),
        ({"subscribePattern": "a.?"}, ["all"]),
        ({"subscribe": "a,b"}, ["all"]),
        ({"subscribe": "eu/a,g0/us/a"}, ["a"]),
        ({"assign": '{"g0": ["eu/a"]}'}, ["a"]),
    ],
)
def test_a_stream_that_ends_elsewhere_is_mirrored(source: dict[str, str], to: list[str]) -> None:
    """One that the mirror does not read."""
    found = guard(to, **source)
    if found is not None:
        found.check(["a", "a1"])


def test_a_mirror_that_is_refused_settles_nothing(tmp_path: Path) -> None:
    """So that it can be put right under the same checkpoint."""
    given = {"gateway.urls": HERE, "subscribe": "a"}
    wrong = Mirror(str(tmp_path), given, GatewayAccess("g0", HERE))
    with pytest.raises(OptionError, match="would go to itself"):
        # Refused before Spark has a part in it.
        query(cast("SparkSession", None), wrong)
    assert list(tmp_path.iterdir()) == []


class TestWhereItBegins:
    """Settled before Spark is started, so that no start changes it."""

    def mirror(self, place: StateFolder, url: str, start: str = "earliest", **source: str) -> Mirror:
        return Mirror(
            place.address,
            {"gateway.urls": url, "subscribePattern": "begin.*", **source},
            GatewayAccess("g0", url),
            Targets.parse(["copy"]),
            start=start,
        )

    def test_is_the_earliest_entry_unless_the_source_says_so(self, tmp_path: Path) -> None:
        place, given = StateFolder.of(str(tmp_path)), StateFolder.of(str(tmp_path / "given"))
        assert settle(place, self.mirror(place, HERE), 2).starting == {"startingOffsets": "earliest"}
        asked = self.mirror(given, HERE, startingTimestamp="0")
        assert settle(given, asked, 2).starting == {}

    def test_may_be_the_latest_entry_of_its_first_start(self, tmp_path: Path, own_server: Server) -> None:
        """What comes before the first batch is sent, however often the job is killed until then."""
        place = StateFolder.of(str(tmp_path))
        with GatewayClient(GatewayAccess("g0", own_server.url)) as gateway:
            gateway.post("/v1/streams/begins/entries", {"entries": [{"id": "5-0", "fields": {"a": "1"}}]})
            first = settle(place, self.mirror(place, own_server.url, "latest"), 2)
            assert first.starting == {"startingOffsets": '{"g0/begins":"5-0"}'}
            gateway.post("/v1/streams/begins/entries", {"entries": [{"id": "6-0", "fields": {"a": "1"}}]})
            assert settle(place, self.mirror(place, own_server.url, "latest"), 2) == first

    def test_is_not_guessed_where_the_checkpoint_was_lost(self, tmp_path: Path) -> None:
        """The state says that entries were sent; Spark's files, which said how far, are gone."""
        place = StateFolder.of(str(tmp_path))
        asked = self.mirror(place, HERE)
        place.replace("metadata", b'{"id":"q"}')
        place.replace("offsets/0", b"")
        settle(place, asked, 2).begin(place, "q")
        assert settle(place, asked, 2).query == "q"
        for name in ("offsets/0", "metadata"):
            place.delete(name)
            with pytest.raises(OptionError, match="how far is lost: restore it"):
                settle(place, asked, 2)


def test_a_checkpoint_without_its_state_is_refused(tmp_path: Path) -> None:
    """Whether a batch that runs again is cut as before is not known."""
    place = StateFolder.of(str(tmp_path))
    place.replace("metadata", b'{"id":"q"}')
    given, here = {"gateway.urls": HERE, "subscribe": "a"}, GatewayAccess("g0", HERE)
    with pytest.raises(OptionError, match=r"weir-mirror\.json, .* is lost: restore it"):
        check(Mirror(place.address, given, here, Targets.parse(["copy"])))


def test_streams_are_looked_at_as_they_are_found() -> None:
    """Whether a pattern takes a copy is a matter of the name that is copied."""
    found = guard(["copy.{stream}"], subscribePattern=".*-orders")
    assert found is not None
    with pytest.raises(OptionError, match=r"copy\.the-orders, which is read too"):
        found.check(["the-orders"])


def test_another_gateway_may_have_streams_of_the_same_names() -> None:
    """One port of one machine is one gateway; an unknown name is another."""
    assert guard([], "http://127.0.0.1:8081", subscribePattern=".*") is None
    two = {"gateway.urls": f"x=http://127.0.0.1:8081,g0={HERE}", "subscribe": "x/a"}
    assert guard([], **two) is None
    one = GatewayAccess("g0", HERE)
    assert is_same_gateway(one, GatewayAccess("g1", "http://localhost:8080"))
    assert is_same_gateway(
        GatewayAccess("g0", "http://localhost"), GatewayAccess("g1", "http://127.0.0.1:80")
    )
    assert is_same_gateway(
        GatewayAccess("g0", "https://localhost"), GatewayAccess("g1", "https://127.0.0.1:443")
    )
    assert not is_same_gateway(
        GatewayAccess("g0", "https://localhost"), GatewayAccess("g1", "http://127.0.0.1:80")
    )
    assert not is_same_gateway(one, GatewayAccess("g1", "http://no-such-host.invalid:8080"))
    assert not is_same_gateway(one, GatewayAccess("g1", "http://192.0.2.1:8080"))
