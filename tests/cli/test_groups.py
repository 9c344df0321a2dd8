"""`weir groups`, `weir pending`, `weir claim`.

Knows: who was given what, and what must be printed about it. Must never know: routes.
"""

import shlex
from pathlib import Path
from typing import Final

import pytest

from app.api.groups.groups import GroupPolicy
from tests.cli.command import cells, multi, redis, weir, work

# Each member of a policy: an option, a line of a file, words of a command, and what the group has then.
POLICY: Final = {
    "dead_letter": (
        *("--dead-letter dead --max-deliveries 3", 'dead_letter = {stream = "dead", max_deliveries = 3}'),
        *("DEADLETTER dead MAXDELIVERIES 3", {"stream": "dead", "max_deliveries": 3}),
    ),
    "ack_timeout_ms": ("--ack-timeout 5m", 'ack_timeout = "5m"', "ACKTIMEOUT 300000", 300_000),
    "consumer_timeout_ms": (
        *("--consumer-timeout 1h", 'consumer_timeout = "1h"', "CONSUMERTIMEOUT 3600000", 3_600_000),
    ),
    "max_age_ms": ("--max-age 7ms", 'max_age = "7ms"', "MAXAGE 7", 7),
    "ordered_by": ("--ordered-by user", 'ordered_by = "user"', "ORDEREDBY user", "user"),
    "in_flight_per_key": (
        *("--ordered-by user --in-flight-per-key 2", 'ordered_by = "user"\nin_flight_per_key = 2'),
        *("ORDEREDBY user INFLIGHTPERKEY 2", 2),
    ),
}
# What takes an option of the command away, 0 where it is not said.
NONE: Final = {"DEADLETTER": "", "ORDEREDBY": "", "INFLIGHTPERKEY": "1"}


@pytest.mark.parametrize("member", POLICY)
def test_each_member_of_a_policy_is_set_at_each_door(
    url: str, stream: str, tmp_path: Path, member: str
) -> None:
    """A pause has commands of its own."""
    assert POLICY.keys() | {"paused"} == GroupPolicy.model_fields.keys()
    option, line, words, value = POLICY[member]
    file = tmp_path / "streams.toml"
    file.write_text(f'[streams."{stream}".groups.file]\n{line}\n')
    weir(url, "groups", "create", stream, "command", *str(option).split())
    weir(url, "apply", str(file))
    redis(url, "XGROUP", "CREATE", stream, "redis", "0")
    assert redis(url, "WEIR.GROUP", "SET", stream, "redis", *str(words).split()) == "OK"
    found = weir(url, "groups", stream, "--json").objects
    assert {one["name"]: one[member] for one in found} == dict.fromkeys(("command", "file", "redis"), value)
    assert weir(url, "apply", str(file)).out == "nothing to change\n"
    nothing = [word for name in str(words).split()[::2] for word in (name, NONE.get(name, "0"))]
    redis(url, "WEIR.GROUP", "SET", stream, "redis", *nothing)
    assert weir(url, "groups", stream, "--json").objects[-1].get(member) is None
    assert f"{member}: " in Path("app/console/groups/policy.js").read_text().partition("parsePolicy")[2]


def test_groups_are_listed_with_their_lag(url: str, stream: str) -> None:
    """How many consumers, how much is pending, how far behind."""
    work(url, stream)
    heading, row = weir(url, "groups", stream).lines
    assert heading.split("  ")[0] == "name"
    assert cells(row) == ["g", "running", "2", "3", "3-0", "3", "2"]
    assert weir(url, "groups", stream, "--json").objects[0]["lag"] == 2


@pytest.mark.parametrize("command", ["groups", "pending g", "claim g c", "info", "trim --maxlen 1"])
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


def test_a_group_is_made_and_changed_with_its_policy(url: str, stream: str) -> None:
    """Durations are printed as they are typed; `none` takes one away, and what is not named stays."""
    policy = ["--ack-timeout", "90s", "--max-age", "7d", "--max-deliveries", "3", "--dead-letter"]
    made = weir(url, "groups", "create", stream, "g", "--start", "0", *policy, f"{stream}-dead")
    shown = [cells(line) for line in made.lines]
    assert ["ack", "timeout", "90s"] in shown
    assert ["max", "age", "7d"] in shown
    (found,) = weir(url, "groups", "set", stream, "g", "--max-age", "none", "--json").objects
    assert (found["ack_timeout_ms"], found["max_age_ms"]) == (90_000, None)
    assert found["dead_letter"] == {"stream": f"{stream}-dead", "max_deliveries": 3}
    (found,) = weir(
        url, "groups", "set", stream, "g", "--dead-letter", "none", "--start", "5-0", "--json"
    ).objects
    assert (found["dead_letter"], found["last_delivered_id"]) == (None, "5-0")
    shown = [cells(line) for line in weir(url, "groups", "set", stream, "g").lines]
    assert ["ack", "timeout", "90s"] in shown
    for wrong in (["--ack-timeout", "5"], ["--max-deliveries", "3"], ["--max-age", "soon"]):
        assert weir(url, "groups", "set", stream, "g", *wrong).code == 2


def test_it_says_why_a_group_delivers_nothing(url: str, stream: str) -> None:
    """In words of the command line, which do what they say."""
    weir(url, "groups", "create", stream, "g", "--start", "0")
    weir(url, "publish", stream, "n=1")
    weir(url, "groups", "pause", stream, "g")
    said = weir(url, "why", stream, "g").out
    assert "the group is paused" in said
    assert "/v1/" not in said
    (remedy,) = [line for line in said.splitlines() if "weir groups resume" in line]
    weir(url, *shlex.split(remedy.partition("weir ")[2]))
    assert "paused" not in weir(url, "why", stream, "g", "c").out
    assert weir(url, "why", stream, "g", "c", "--json").objects[-1]["code"] == "no_consumer"
