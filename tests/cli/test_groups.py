"""`weir groups`, `weir pending`, `weir claim`.

Knows: who was given what, and what must be printed about it. Must never know: routes.
"""

import pytest

from tests.cli.command import cells, multi, redis, weir, work


def test_groups_are_listed_with_their_lag(url: str, stream: str) -> None:
    """How many consumers, how much is pending, how far behind."""
    work(url, stream)
    heading, row = weir(url, "groups", stream).lines
    assert heading.split("  ")[0] == "name"
    assert cells(row) == ["g", "2", "3", "3-0", "3", "2"]
    assert weir(url, "groups", stream, "--json").objects[0]["lag"] == 2


@pytest.mark.parametrize("command", ["groups", "pending g", "claim g c"])
def test_what_is_not_there_is_told_with_its_code(url: str, stream: str, command: str) -> None:
    """Exit code 1 and one line."""
    name, *others = command.split()
    done = weir(url, name, stream, *others)
    assert done.code == 1
    assert done.err.endswith("(no_stream)\n"), done.err
    assert done.err.count("\n") == 1


def test_pending_in_sum_and_entry_by_entry(url: str, stream: str) -> None:
    """The sum names the consumers; any option gives the list."""
    work(url, stream)
    assert weir(url, "pending", stream, "g").lines[0] == "3 entries pending, 1-0 to 3-0"
    assert [cells(line) for line in weir(url, "pending", stream, "g").lines[3:]] == [
        ["anna", "2"],
        ["bert", "1"],
    ]
    summary = weir(url, "pending", stream, "g", "--json").objects[0]
    assert summary["consumers"] == [{"name": "anna", "count": 2}, {"name": "bert", "count": 1}]
    listed = weir(url, "pending", stream, "g", "--list", "--json").objects
    assert [(one["id"], one["consumer"], one["delivery_count"]) for one in listed] == [
        ("1-0", "anna", 1),
        ("2-0", "anna", 1),
        ("3-0", "bert", 1),
    ]
    assert len(weir(url, "pending", stream, "g", "--consumer", "bert").lines) == 2
    assert weir(url, "pending", stream, "g", "--min-idle", "1h", "--json").out == ""
    first = weir(url, "pending", stream, "g", "--count", "1")
    assert len(first.lines) == 2
    assert "there are more: --start '(1-0' goes on" in first.err
    assert weir(url, "pending", stream, "g", "--start", "(1-0", "--json").objects == [
        one | {"idle_ms": pytest.approx(one["idle_ms"], abs=60_000)} for one in listed[1:]
    ]
    redis(url, "XACK", stream, "g", "1-0", "2-0", "3-0")
    assert weir(url, "pending", stream, "g").out == "nothing is pending\n"


def test_entries_are_claimed_by_id_or_by_idleness(url: str, stream: str) -> None:
    """Who is named takes over what has been idle for long enough; by default that is a minute."""
    work(url, stream)
    nothing = weir(url, "claim", stream, "g", "carl")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "weir: nothing to claim\n")
    assert weir(url, "claim", stream, "g", "carl", "2-0", "--min-idle", "0").out == "2-0 n=2 (delivery 2)\n"
    redis(url, "XDEL", stream, "1-0")
    rest = weir(url, "claim", stream, "g", "carl", "--min-idle", "0", "--just-ids")
    assert rest.lines == ["2-0", "3-0"]
    assert rest.err == "weir: 1 entry is deleted and no longer pending\n"
    assert weir(url, "pending", stream, "g", "--json").objects[0]["consumers"] == [
        {"name": "carl", "count": 2}
    ]
    claimed = weir(url, "claim", stream, "g", "dora", "--min-idle", "0", "--count", "1", "--json").objects
    assert [(one["id"], one["fields"]) for one in claimed] == [("2-0", {"n": "2"})]


def test_a_long_pending_list_is_claimed_in_one_go(url: str, stream: str) -> None:
    """--count is how many are claimed, however many one request gives."""
    commands = [["XADD", stream, f"{number}-0", "n", number] for number in range(1, 1_501)]
    commands.append(["XGROUP", "CREATE", stream, "g", "0"])
    commands.append(["XREADGROUP", "GROUP", "g", "anna", "COUNT", "2000", "STREAMS", stream, ">"])
    multi(url, commands)
    assert (
        len(weir(url, "claim", stream, "g", "b", "--min-idle", "0", "--count", "1200", "--just-ids").lines)
        == 1_200
    )
    named = [f"{number}-0" for number in range(1, 502)]
    assert weir(url, "claim", stream, "g", "c", *named, "--min-idle", "0", "--just-ids").lines == named
