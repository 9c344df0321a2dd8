"""`weir ack`, `weir nack`, `weir delete`, `weir groups create` and so on, `weir retention`: what changes.

Knows: streams before and after. Must never know: how a command asks for it.
"""

import re

import pytest

from tests.cli.command import fill, redis, weir, work

NO_TERMINAL = "There is no terminal to ask"


def pending_ids(url: str, stream: str) -> list[str]:
    return [row[0] for row in redis(url, "XPENDING", stream, "g", "-", "+", 10)]


def test_acknowledge_and_give_back(url: str, stream: str) -> None:
    work(url, stream)
    done = weir(url, "ack", stream, "g", "1-0", "9-0", "1-0")
    assert (done.code, done.out) == (0, "acknowledged 1 of 2: others were not pending\n")
    assert weir(url, "nack", stream, "g", "2-0", "--mode", "silent").out == "given back 1 of 1\n"
    assert weir(url, "nack", stream, "g", "2-0", "--json").objects == [{"given_back": 1}]
    assert weir(url, "nack", stream, "g", "2-0", "--delay", "3600").out == "given back 1 of 1\n"
    shown = weir(url, "pending", stream, "g", "--list").out.splitlines()
    assert (shown[0].split()[-2:], shown[1][-1], shown[2].split()[-1]) == (["deferred", "until"], "Z", "-")
    assert weir(url, "ack", stream, "g", "3-0", "--delete", "delete", "--json").objects == [
        {"acknowledged": 1}
    ]
    assert pending_ids(url, stream) == ["2-0"]
    assert redis(url, "XLEN", stream) == 4
    missing = weir(url, "ack", stream, "none", "1-0")
    assert (missing.code, "no group" in missing.err) == (1, True)


def test_of_a_consumer_what_it_holds_is_given_back(url: str, stream: str) -> None:
    work(url, stream)
    redis(url, "XCLAIM", stream, "g", "other", "0", "1-0", "JUSTID")
    said = weir(url, "nack", stream, "g", "1-0", "2-0", "--consumer", "other").out
    assert said == "given back 1 of 2: others were not pending, or not held by other\n"
    assert [row[1] for row in redis(url, "XPENDING", stream, "g", "-", "+", 1)] == [""]


def test_delete_entries(url: str, stream: str) -> None:
    work(url, stream)
    assert weir(url, "delete", stream, "1-0", "5-0", "8-0").out == "deleted 2 of 3: 1 absent\n"
    assert pending_ids(url, stream) == ["1-0", "2-0", "3-0"]
    assert weir(url, "delete", stream, "2-0", "--refs", "delete", "--json").objects == [{"2-0": "deleted"}]
    assert pending_ids(url, stream) == ["1-0", "3-0"]


def test_delete_a_stream_after_a_yes(url: str, stream: str) -> None:
    """Without a terminal it is not asked: nothing happens, and the way is named."""
    work(url, stream)
    refused = weir(url, "delete", stream)
    assert (refused.code, NO_TERMINAL in " ".join(refused.err.split())) == (2, True)
    assert redis(url, "XLEN", stream) == 5
    assert weir(url, "delete", stream, "--yes").out == "deleted 5 entries, 1 group\n"
    assert redis(url, "EXISTS", stream) == 0
    assert weir(url, "delete", stream, "--yes").code == 1


def test_groups_come_and_go(url: str, stream: str) -> None:
    fill(url, stream, 2)
    (made,) = weir(url, "groups", "create", stream, "late", "--json").objects
    assert (made["name"], made["lag"]) == ("late", 0)
    shown = [line.split() for line in weir(url, "groups", "create", stream, "g", "--start", "0").lines]
    assert ["name", "g"] in shown
    assert [row["name"] for row in weir(url, "groups", "--json", stream).objects] == ["g", "late"]
    redis(url, "XREADGROUP", "GROUP", "g", "c", "STREAMS", stream, ">")
    assert weir(url, "groups", "delete", stream, "g").code == 2
    assert weir(url, "groups", "delete", stream, "g", "--yes", "--json").objects == [
        {"deleted": True, "pending": 2}
    ]
    assert weir(url, "groups", "delete", stream, "late").out == "deleted\n"
    assert weir(url, "groups", "list", stream, "--json").out == ""


def test_a_group_is_made_with_an_order(url: str, stream: str) -> None:
    """Which the list shows, where a group has one."""
    fill(url, stream, 2)
    order = "--ordered-by", "n", "--in-flight-per-key", "2"
    (made,) = weir(url, "groups", "create", stream, "g", *order, "--json").objects
    assert (made["ordered_by"], made["in_flight_per_key"]) == ("n", 2)
    shown = weir(url, "groups", stream).lines
    assert shown[0].split()[-3:] == ["key", "passed", "over"]
    assert shown[1].split()[-3:] == ["n", "2", "0"]
    refused = weir(url, "groups", "create", stream, "h", "--in-flight-per-key", "2")
    assert (refused.code, "needs ordered_by" in refused.err) == (1, True)


def test_a_group_is_paused_and_resumed(url: str, stream: str) -> None:
    work(url, stream)
    assert weir(url, "groups", "pause", stream, "g").out == "paused\n"
    assert redis(url, "XREADGROUP", "GROUP", "g", "c", "STREAMS", stream, ">") is None
    assert "paused" in weir(url, "groups", stream).lines[1].split()
    (resumed,) = weir(url, "groups", "resume", stream, "g", "--json").objects
    assert (resumed["name"], resumed["paused"]) == ("g", False)
    missing = weir(url, "groups", "pause", stream, "none")
    assert (missing.code, "no group" in missing.err) == (1, True)


def test_a_stream_may_be_called_as_a_command(url: str) -> None:
    fill(url, "create", 1)
    redis(url, "XGROUP", "CREATE", "create", "g", "$")
    assert len(weir(url, "groups", "list", "create").lines) == 2
    redis(url, "DEL", "create")


def test_retention_is_shown_and_set(url: str, stream: str) -> None:
    fill(url, stream, 5)
    changed = weir(url, "retention", stream, "--maxlen", "10", "--max-bytes", "2g", "--yes", "--json")
    assert changed.objects[0]["max_len"] == 10
    assert changed.objects[0]["max_bytes"] == 2 << 30
    weir(url, "retention", stream, "--max-bytes", "none", "--keep-unacknowledged")
    shown = {
        tuple(re.split(r"  +", line)) for line in weir(url, "retention", stream).out.splitlines() if line
    }
    assert {("max len", "10"), ("max bytes", "-"), ("keep unacknowledged", "yes")} <= shown
    assert ("held by", "no group") in shown
    assert weir(url, "retention", stream, "--maxlen", "1").code == 0, "nothing goes until there is a group"
    assert redis(url, "XLEN", stream) == 5


@pytest.mark.parametrize(
    ("beside", "max_len"), [((), 0), (("--maxlen", "7"), 7), (("--max-age", "1d"), None)]
)
def test_what_is_acknowledged_goes_by_one_word(
    url: str, stream: str, beside: tuple[str, ...], max_len: int | None
) -> None:
    fill(url, stream, 5)
    (kept,) = weir(url, "retention", stream, "--acknowledged", *beside, "--yes", "--json").objects
    assert (kept["max_len"], kept["keep_unacknowledged"]) == (max_len, True)
    refused = weir(url, "retention", stream, "--acknowledged", "--no-keep-unacknowledged")
    assert (refused.code, redis(url, "XLEN", stream)) == (2, 5)


@pytest.mark.parametrize("option", [("--maxlen", "2"), ("--max-age", "1d")])
def test_a_limit_that_removes_entries_is_asked_for(url: str, stream: str, option: tuple[str, str]) -> None:
    work(url, stream)
    refused = weir(url, "retention", stream, *option)
    said = " ".join(refused.err.replace("│", " ").split())
    assert refused.code == 2
    assert f"remove {3 if option[0] == '--maxlen' else 5} entries at once; 3 of them pending" in said
    assert redis(url, "XLEN", stream) == 5
    assert weir(url, "retention", stream, *option, "--yes").code == 0


def test_what_is_no_longer_kept_is_asked_for(url: str, stream: str) -> None:
    """Limits that stay remove it at once; a switch that keeps more removes nothing."""
    work(url, stream)
    assert weir(url, "retention", stream, "--keep-unacknowledged").code == 0
    assert weir(url, "retention", stream, "--maxlen", "2", "--yes").code == 0
    refused = weir(url, "retention", stream, "--no-keep-unacknowledged")
    assert (refused.code, "remove 3 entries at once" in " ".join(refused.err.split())) == (2, True)
    assert redis(url, "XLEN", stream) == 5
    assert weir(url, "retention", stream, "--no-keep-unacknowledged", "--yes").code == 0


@pytest.mark.parametrize("option", [("--maxlen", "many"), ("--max-age", "5"), ("--max-bytes", "1x")])
def test_a_limit_that_is_none(url: str, stream: str, option: tuple[str, str]) -> None:
    assert weir(url, "retention", stream, *option).code == 2
