"""`weir streams`, `weir info`, `weir trim`.

Knows: what is in the streams, and what must be printed about it. Must never know: routes.
"""

from urllib.parse import quote

import pytest

from tests.cli.command import cells, fill, multi, post, redis, weir, work


def test_streams_are_listed(url: str, stream: str) -> None:
    """By prefix; a table for people, an object a line for programs."""
    fill(url, f"{stream}-a", 2)
    fill(url, f"{stream}-b", 1)
    found = weir(url, "streams", "--prefix", stream, "--json").objects
    assert [(one["name"], one["length"], one["last_id"]) for one in found] == [
        (f"{stream}-a", 2, "2-0"),
        (f"{stream}-b", 1, "1-0"),
    ]
    heading, *rows = weir(url, "streams", "--prefix", stream).lines
    assert cells(heading)[:3] == ["name", "length", "groups"]
    assert [row.startswith(f"{stream}-") for row in rows] == [True, True]


def test_more_streams_than_a_page_are_all_listed(url: str, stream: str) -> None:
    """The list goes on where a page ends."""
    count = 1_203
    commands = [["XADD", f"{stream}-{number}", "1-0", "n", "1"] for number in range(count)]
    assert {"error"} not in [set(one) for one in multi(url, commands)]
    found = weir(url, "streams", "--prefix", f"{stream}-", "--json").objects
    assert len({one["name"] for one in found}) == len(found) == count


def test_a_stream_is_described(url: str, stream: str) -> None:
    """Everything that the gateway says of it, one member a line."""
    work(url, stream)
    result = weir(url, "info", stream, "--json").objects[0]
    assert (result["name"], result["length"], result["groups"], result["last_id"]) == (stream, 5, 1, "5-0")
    lines = weir(url, "info", stream).lines
    assert f"name {stream}" in [" ".join(line.split()) for line in lines]
    assert ["last", "id", "5-0"] in [cells(line) for line in lines]
    assert any(line.startswith("first entry") and line.endswith("1-0 n=1") for line in lines)


def test_a_trim_can_be_tried_first(url: str, stream: str) -> None:
    """--dry-run says what would go and removes nothing; without it, it goes."""
    fill(url, stream, 5)
    assert weir(url, "trim", stream, "--maxlen", "2", "--dry-run").out.startswith("would remove 3 entries")
    assert redis(url, "XLEN", stream) == 5
    assert weir(url, "trim", stream, "--maxlen", "2").out == "removed 3 entries; the first left is 4-0\n"
    assert weir(url, "trim", stream, "--minid", "5-0", "--json").objects[0]["deleted"] == 1
    assert weir(url, "trim", stream, "--older-than", "1d").out == "removed 1 entry; none is left\n"
    assert redis(url, "XLEN", stream) == 0


@pytest.mark.parametrize("words", [[], ["--maxlen", "1", "--minid", "5-0"]])
def test_a_trim_has_one_bound(url: str, stream: str, words: list[str]) -> None:
    assert weir(url, "trim", stream, *words).code == 2


def test_a_guarded_trim_stops_at_what_a_group_has_not_finished(url: str, stream: str) -> None:
    """It removes nothing then, and says why; pending entries that go are counted."""
    work(url, stream)
    done = weir(url, "trim", stream, "--maxlen", "1", "--guard")
    assert done.code == 1
    assert done.err.endswith("(trim_guarded)\n")
    assert redis(url, "XLEN", stream) == 5
    assert "3 of them pending" in weir(url, "trim", stream, "--maxlen", "1").out


def test_no_command_prints_what_would_turn_a_line_around(url: str, stream: str) -> None:
    """U+202E and the like are printed as escapes, wherever they stand."""
    turned = f"{stream} \u202egpj.exe"
    post(url, f"/v1/streams/{quote(turned, safe='')}/entries", {"fields": {"\u202e": "\u2066 \u200f"}})
    redis(url, "XGROUP", "CREATE", turned, turned, "0")
    redis(url, "XREADGROUP", "GROUP", turned, turned, "STREAMS", turned, ">")
    for words in (
        ["streams", "--prefix", turned],
        ["info", turned],
        ["groups", turned],
        ["pending", turned, turned],
        ["lag", turned, "--over", "0"],
        ["lag", f"{turned} missing", "--over", "0"],
        ["read", turned],
        ["trim", turned, "--maxlen", "x"],
        ["info", f"{turned}/"],
    ):
        for more in ([], ["--json"]):
            done = weir(url, *words, *more)
            printed = done.out + done.err
            assert printed, words
            assert printed.replace("\n", "").isprintable(), (words, more, printed)
