"""`weir import --follow`, `--in-use` and `--cut-over`: a copy that keeps up while both servers are in use."""

import signal
import time

import pytest

from tests.cli.command import begun
from tests.cli.migrating import (
    MARK,
    WAIT_S_MAX,
    asked,
    assert_same,
    filled,
    following,
    full,
    imported,
    publish_story,
)
from tests.cluster.servers import BackendServer
from tests.waiting import until


def test_following_keeps_up_with_all_that_happens(url: str, origin: BackendServer) -> None:
    """Streams that live on while they are followed are the same once it ends: deletions and groups too."""
    stories = [publish_story(origin, seed, f"followed:{seed}", 100) for seed in range(100, 112)]
    for _ in range(2):
        with following(url, origin.url, "--match", "followed:*"):
            for _ in range(10):
                for story in stories:
                    origin.each(story.commands(15))
            publish_story(origin, 99, "followed:new")
        for seed in range(99, 112):
            stream = f"followed:{seed}" if seed > 99 else "followed:new"
            assert asked(url, "XGROUP", "DESTROY", stream, MARK) == 1
            assert_same(origin, url, stream, apart_ms=50)
            asked(url, "XGROUP", "CREATE", stream, MARK, "0")


def test_a_switch_without_a_pause(url: str, origin: BackendServer, stream: str) -> None:
    """Workers go first, publishers one by one: what an old one says is added, renumbered if need be."""
    ms = int(time.time() * 1000) - 60_000
    origin.call("XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
    for number in range(10):
        origin.call("XADD", stream, f"{ms + number}-0", "n", number)
    origin.call("XREADGROUP", "GROUP", "g", "anna", "COUNT", 4, "STREAMS", stream, ">")
    with following(url, origin.url, stream):
        pass
    assert asked(url, "XREADGROUP", "GROUP", "g", "bert", "STREAMS", stream, ">")[0][1][0][0] == b"%d-0" % (
        ms + 4
    )
    with following(url, origin.url, stream, "--in-use"):
        origin.call("XADD", stream, f"{ms + 10}-0", "n", 10)
        until(lambda: asked(url, "XLEN", stream) == 11)
        asked(url, "XADD", stream, "*", "n", "new")
        origin.call("XADD", stream, f"{ms + 11}-0", "n", 11)
        until(lambda: asked(url, "XLEN", stream) == 13)
    origin.call("XADD", stream, f"{ms + 12}-0", "n", 12)
    refused = imported(url, origin.url, stream)
    assert (refused.code, "only --in-use adds to it" in refused.err) == (1, True)
    done = imported(url, origin.url, stream, "--in-use", "--json")
    assert done.code == 0, done.err
    assert (done.objects[0]["entries"], done.objects[0]["renumbered"]) == (1, 1)
    found = asked(url, "XRANGE", stream, "-", "+")
    assert [flat[1].decode() for _, flat in found] == [*map(str, range(11)), "new", "11", "12"]
    assert [entry_id for entry_id, _ in found[:11]] == [b"%d-0" % (ms + number) for number in range(11)]
    assert asked(url, "XPENDING", stream, "g")[0] == 10
    assert [group[1] for group in asked(url, "XINFO", "GROUPS", stream)] == [b"g"]


def test_a_cut_over_compares_everything_before_it_finishes(
    url: str, origin: BackendServer, stream: str
) -> None:
    """The copy follows while publishers and workers go on; once they are stopped, it takes one short run."""
    story = publish_story(origin, 5, stream)
    with following(url, origin.url, stream):
        origin.each(story.commands(200))
    assert any(MARK in group for group in asked(url, "XINFO", "GROUPS", stream))
    done = imported(url, origin.url, stream, "--cut-over")
    assert done.code == 0, done.err
    pending = sum(
        group[b"pel-count"]
        for group in full(origin.call("XINFO", "STREAM", stream, "FULL"))[b"groups"].values()
    )
    entries = origin.call("XLEN", stream)
    assert f"the same in Redis and in Weir (entries {entries:,}, pending {pending:,})" in done.err
    assert_same(origin, url, stream)
    assert all(MARK not in group for group in asked(url, "XINFO", "GROUPS", stream))


def test_a_cut_over_says_what_differs(url: str, origin: BackendServer, stream: str) -> None:
    """A worker that has begun on Weir; the import stays open, and running it again goes on."""
    filled(origin, stream, 5)
    origin.call("XGROUP", "CREATE", stream, "g", "0")
    origin.call("XREADGROUP", "GROUP", "g", "ann", "COUNT", 2, "STREAMS", stream, ">")
    with following(url, origin.url, stream):
        pass
    asked(url, "XREADGROUP", "GROUP", "g", "ann", "COUNT", 1, "STREAMS", stream, ">")
    asked(url, "XCLAIM", stream, "g", "bob", 0, "1-0")
    done = imported(url, origin.url, stream, "--cut-over")
    assert done.code == 1
    for difference in (
        "the last-delivered ID of group 'g' is 2-0 in Redis and 3-0 in Weir",
        "pending entry 1-0 of group 'g' differs",
        "pending entry 3-0 of group 'g' is in Weir alone",
    ):
        assert difference in done.err
    assert any(MARK in group for group in asked(url, "XINFO", "GROUPS", stream))
    origin.call("XREADGROUP", "GROUP", "g", "ann", "COUNT", 1, "STREAMS", stream, ">")
    again = imported(url, origin.url, stream, "--cut-over")
    assert again.code == 0, again.err
    assert_same(origin, url, stream)


@pytest.mark.parametrize("beside", ["--follow", "--in-use", "--dry-run"])
def test_a_cut_over_is_by_itself(url: str, origin: BackendServer, beside: str) -> None:
    """It is the last run."""
    done = imported(url, origin.url, "--cut-over", beside)
    assert (done.code, "it goes without --follow, --in-use and --dry-run" in done.err) == (2, True)


def test_going_on_beside_others_adds_nothing_twice(url: str, origin: BackendServer, stream: str) -> None:
    """--in-use killed at any moment: each entry of Redis is in Weir once, and so is each of the others."""
    filled(origin, stream, 2_000)
    with following(url, origin.url, stream):
        pass
    asked(url, "XADD", stream, "100000-0", "n", "new")
    filled(origin, stream, 6_000, first=2_001)
    for _ in range(3):
        length = asked(url, "XLEN", stream)
        process = begun(url, "import", "--redis", origin.url, stream, "--in-use")
        until(lambda length=length: asked(url, "XLEN", stream) > length)
        process.kill()
        process.communicate()
    assert imported(url, origin.url, stream, "--in-use").code == 0
    numbers = [flat[1].decode() for _, flat in asked(url, "XRANGE", stream, "-", "+")]
    assert numbers == [*map(str, range(1, 2_001)), "new", *map(str, range(2_001, 8_001))]


def test_what_was_added_before_its_place_was_noted_is_not_added_again(
    url: str, origin: BackendServer, stream: str
) -> None:
    """An end between the two, in a state that a kill leaves now and then."""
    filled(origin, stream, 5)
    with following(url, origin.url, stream):
        pass
    asked(url, "XGROUP", "SETID", stream, MARK, "3-0")
    filled(origin, stream, 1, first=6)
    done = imported(url, origin.url, stream, "--in-use", "--json")
    assert (done.code, done.objects[0]["entries"], done.objects[0]["renumbered"]) == (0, 1, 0), done.err
    found = [entry_id for entry_id, _ in asked(url, "XRANGE", stream, "-", "+")]
    assert found == [b"%d-0" % number for number in range(1, 7)]


def test_what_was_given_up_stays_so(url: str, origin: BackendServer, stream: str) -> None:
    """Neither what comes afterwards nor the end touches it again; the other stream is followed."""
    other = f"{stream}.other"
    for name in (stream, other):
        filled(origin, name, 1)
    process = begun(url, "import", "--redis", origin.url, "--follow", stream, other)
    assert process.stderr is not None
    assert "caught up" in process.stderr.readline()
    asked(url, "XADD", stream, "9-0", "a", "b")
    filled(origin, stream, 1, first=2)
    assert "others publish to it in Weir" in process.stderr.readline()
    asked(url, "DEL", stream)
    filled(origin, stream, 1, first=3)
    filled(origin, other, 1, first=2)
    until(lambda: asked(url, "XLEN", other) == 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S_MAX)
    assert (process.returncode, asked(url, "EXISTS", stream)) == (1, 0)


def test_order_is_kept_beside_busy_publishers(url: str, origin: BackendServer, stream: str) -> None:
    """While others publish to Weir all the time, Redis's entries come in Redis's order, each once."""
    origin.call("XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
    with following(url, origin.url, stream):
        pass
    with following(url, origin.url, stream, "--in-use"):
        for number in range(400):
            origin.call("XADD", stream, "*", "old", number, b"x", b"\xff", "x", "")
            if number % 3:
                asked(url, "XADD", stream, "*", "new", number)
    found = [flat for _, flat in asked(url, "XRANGE", stream, "-", "+")]
    old = [b"old", b"x", b"x"]
    assert [flat[1] for flat in found if flat[0] == b"old"] == [b"%d" % number for number in range(400)]
    assert all(flat[::2] == old and flat[3::2] == [b"\xff", b""] for flat in found if flat[0] == b"old")
    assert len(found) == 400 + 266


def test_lifetimes_come_along_once_the_import_is_over(url: str, origin: BackendServer, stream: str) -> None:
    """While it follows a stream stays: its lifetime may be prolonged in Redis. One without stays without."""
    other = f"{stream}.other"
    at_ms = time.time_ns() // 1_000_000 + 3_600_000
    for name in (stream, other):
        filled(origin, name, 3)
    origin.call("PEXPIREAT", stream, at_ms)
    with following(url, origin.url, stream, other):
        assert asked(url, "PTTL", stream) == -1
    assert imported(url, origin.url, stream, other).code == 0
    assert abs(asked(url, "PEXPIRETIME", stream) - at_ms) <= 2
    assert asked(url, "PEXPIRETIME", other) == -1
    assert asked(url, "XINFO", "GROUPS", stream) == []


def test_a_deleted_entry_that_was_delivered_again_stays_pending(
    url: str, origin: BackendServer, stream: str
) -> None:
    """To claim it would take it out, in Weir as in Redis: it stays as it was copied."""
    origin.call("XADD", stream, "1-0", "n", 1)
    origin.call("XGROUP", "CREATE", stream, "g", "0")
    origin.call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", stream, ">")
    origin.call("XDEL", stream, "1-0")
    with following(url, origin.url, stream):
        pass
    assert asked(url, "XPENDING", stream, "g")[0] == 1
    origin.call("XSETID", stream, "0-1")
    origin.call("XADD", stream, "1-0", "n", 1)
    origin.call("XCLAIM", stream, "g", "bob", 0, "1-0")
    origin.call("XDEL", stream, "1-0")
    with following(url, origin.url, stream):
        pass
    (row,) = asked(url, "XPENDING", stream, "g", "-", "+", 10)
    assert (row[0], row[1], row[3]) == (b"1-0", b"ann", 1)
