"""What implementers get wrong about reads: edge cases 31 to 53 of docs/semantics.md.

Those that need a reader that waits (33, 35, 37, 54 to 57) are in `test_blocking`.
"""

import pytest

from tests.engine.world import ID_MAX, INVALID_ID, World

NO_GROUP = "-NOGROUP No such key 'no' or consumer group 'g' in XREADGROUP with GROUP option"


@pytest.fixture
def three(world: World) -> World:
    """1-0 to 3-0 in `s`, and a group `g` that has read none."""
    world.add("s", "1-0", "2-0", "3-0")
    world.call("XGROUP", "CREATE", "s", "g", "0")
    return world


def entry(entry_id: str) -> list[object]:
    return [entry_id, ["a", "1"]]


def test_nothing_is_null_for_a_read_and_empty_for_a_range(three: World) -> None:
    """Edge 31: and null for a range of COUNT 0 where the stream exists."""
    assert three.call("XREAD", "STREAMS", "s", "3-0") is None
    assert three.call("XRANGE", "s", "4-0", "+") == []
    assert three.call("XRANGE", "s", "-", "+", "COUNT", 0) is None
    assert three.call("XREVRANGE", "s", "+", "-", "COUNT", -5) is None
    assert three.call("XRANGE", "no", "-", "+", "COUNT", 0) == []


@pytest.mark.parametrize("count", [0, -1])
def test_count_zero_is_no_limit_for_a_read(three: World, count: int) -> None:
    """Edge 32: or a negative one."""
    assert three.call("XREAD", "COUNT", count, "STREAMS", "s", "0") == [
        ["s", [entry("1-0"), entry("2-0"), entry("3-0")]]
    ]


def test_count_is_for_each_stream(three: World) -> None:
    """Edge 32: not for all of them together."""
    three.add("t", "7-0", "8-0")
    assert three.call("XREAD", "COUNT", 1, "STREAMS", "s", "t", "0", "0") == [
        ["s", [entry("1-0")]],
        ["t", [entry("7-0")]],
    ]


def test_maxcount_is_for_all_streams(three: World) -> None:
    """Edge 32: the first streams have it, the others are left out, and their entries stay undelivered."""
    three.add("t", "7-0", "8-0")
    three.add("u", "9-0")
    three.call("XGROUP", "CREATE", "t", "g", "0")
    three.call("XGROUP", "CREATE", "u", "g", "0")
    of_three = [["s", [entry("1-0"), entry("2-0")]], ["t", [entry("7-0")]]]
    options = ("COUNT", 2, "MAXCOUNT", 3)
    assert three.call("XREAD", *options, "STREAMS", "s", "t", "u", "0", "0", "0") == of_three
    streams = ("STREAMS", "s", "t", "u", ">", ">", ">")
    assert three.call("XREADGROUP", "GROUP", "g", "c", *options, *streams) == of_three
    assert three.call("XPENDING", "u", "g") == [0, None, None, None]
    held = ("STREAMS", "s", "t", "u", "0", "0", "0")
    assert three.call("XREADGROUP", "GROUP", "g", "c", "MAXCOUNT", 2, *held) == of_three[:1]
    three.now_ms += 1_000
    claims = three.call("XREADGROUP", "GROUP", "g", "d", "MAXCOUNT", 4, "CLAIM", 0, *streams)
    assert claims == [
        ["s", [["1-0", ["a", "1"], 1_000, 2], ["2-0", ["a", "1"], 1_000, 2], ["3-0", ["a", "1"], 0, 0]]],
        ["t", [["7-0", ["a", "1"], 1_000, 1]]],
    ]


def test_maxsize_is_the_bytes_of_all_streams(three: World) -> None:
    """Edge 32: of the stored texts; one entry is always given."""
    three.add("t", "7-0", "8-0")
    three.call("XGROUP", "CREATE", "t", "g", "0")
    size = len('{"id":"1-0","fields":{"a":"1"}},')
    of_two = [["s", [entry("1-0"), entry("2-0")]]]
    streams = ("STREAMS", "s", "t", "0", "0")
    assert three.call("XREAD", "MAXSIZE", 1, *streams) == [["s", [entry("1-0")]]]
    assert three.call("XREAD", "MAXSIZE", 2 * size, *streams) == of_two
    assert three.call("XREAD", "MAXSIZE", 2 * size + size // 2, *streams) == of_two
    assert three.call("XREAD", "MAXSIZE", 4 * size, "COUNT", 2, *streams) == [
        *of_two,
        ["t", [entry("7-0"), entry("8-0")]],
    ]
    new = ("STREAMS", "s", "t", ">", ">")
    assert three.call("XREADGROUP", "GROUP", "g", "c", "MAXSIZE", 2 * size, *new) == of_two


def test_plus_is_the_last_live_entry(three: World) -> None:
    """Edge 34: with any COUNT; after the top was deleted the one below; nothing where nothing is."""
    assert three.call("XREAD", "COUNT", 5, "STREAMS", "s", "+") == [["s", [entry("3-0")]]]
    three.call("XDEL", "s", "3-0")
    assert three.call("XREAD", "STREAMS", "s", "+") == [["s", [entry("2-0")]]]
    three.call("XTRIM", "s", "MAXLEN", 0)
    assert three.call("XREAD", "STREAMS", "s", "+") is None
    assert three.call("XREAD", "STREAMS", "no", "+") is None


def test_a_stream_that_ran_dry_has_nothing(three: World) -> None:
    """Edge 36: what counts is the last live entry, not the last ID."""
    three.call("XDEL", "s", "3-0")
    assert three.call("XREAD", "STREAMS", "s", "2-0") is None
    assert three.call("XREAD", "STREAMS", "s", "1-0") == [["s", [entry("2-0")]]]


def test_a_stream_may_be_named_twice(three: World) -> None:
    """Edge 38: each with its own ID, both in the reply."""
    assert three.call("XREAD", "COUNT", 1, "STREAMS", "s", "s", "0", "2") == [
        ["s", [entry("1-0")]],
        ["s", [entry("3-0")]],
    ]


def test_names_may_be_words_of_commands(world: World) -> None:
    """Edge 38: behind STREAMS and GROUP they are names."""
    world.add("STREAMS", "1-0")
    world.add("COUNT", "1-0")
    assert world.call("XREAD", "STREAMS", "STREAMS", "COUNT", "0", "0") == [
        ["STREAMS", [entry("1-0")]],
        ["COUNT", [entry("1-0")]],
    ]
    world.call("XGROUP", "CREATE", "STREAMS", "COUNT", "0")
    for consumer in ("STREAMS", "COUNT", "BLOCK"):
        world.call("XREADGROUP", "GROUP", "COUNT", consumer, "STREAMS", "STREAMS", ">")
    assert world.consumers("STREAMS", "COUNT") == ["BLOCK", "COUNT", "STREAMS"]


def test_history_is_decided_stream_by_stream(three: World) -> None:
    """Edge 39: `> 0` reads new entries of the one and history of the other."""
    three.add("t", "7-0")
    three.call("XGROUP", "CREATE", "t", "g", "0")
    reply = three.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", "t", ">", "0")
    assert reply == [["s", [entry("1-0"), entry("2-0"), entry("3-0")]], ["t", []]]


@pytest.mark.parametrize("words", [("GROUP", "g", "a"), ("NOACK",), ("CLAIM", "5")])
def test_a_plain_read_says_which_option_is_not_its_own(three: World, words: tuple[str, ...]) -> None:
    """Edge 41: in a sentence of its own."""
    refusal = f"-ERR The {words[0]} option is only supported by XREADGROUP. You called XREAD instead."
    assert three.call("XREAD", *words, "STREAMS", "s", "0") == refusal


def test_history_is_what_the_consumer_holds(three: World) -> None:
    """Edge 42: not what the stream has."""
    three.read("g", "a", "s", ">", "COUNT", 1)
    three.read("g", "b", "s", ">", "COUNT", 1)
    assert three.read("g", "a", "s", "0") == [["s", [entry("1-0")]]]
    assert three.read("g", "b", "s", "0") == [["s", [entry("2-0")]]]
    assert three.read("g", "b", "s", "2-0") == [["s", []]]


def test_an_empty_history_is_not_null(three: World) -> None:
    """Edge 43: the stream is in the reply, with nothing."""
    assert three.read("g", "a", "s", "0") == [["s", []]]
    assert three.consumers("s", "g") == ["a"]


def test_a_deleted_entry_of_the_history_is_null(three: World) -> None:
    """Edge 44: it stays pending, and its count stays."""
    three.read("g", "a", "s")
    three.call("XDEL", "s", "2-0")
    three.pass_ms(10)
    assert three.read("g", "a", "s", "0") == [["s", [entry("1-0"), ["2-0", None], entry("3-0")]]]
    assert three.pending("s", "g") == [["1-0", "a", 0, 2], ["2-0", "a", 10, 1], ["3-0", "a", 0, 2]]


def test_history_counts_as_a_delivery(three: World) -> None:
    """Edge 45: count and time both; the consumer is seen, but not active."""
    three.read("g", "a", "s", ">", "COUNT", 1)
    three.pass_ms(50)
    three.read("g", "a", "s", "0", "COUNT", 1)
    assert three.pending("s", "g") == [["1-0", "a", 0, 2]]
    consumer = three.consumer("s", "g", "a")
    assert (consumer["idle"], consumer["inactive"]) == (0, 50)


@pytest.mark.parametrize("option", [("BLOCK", "0"), ("NOACK",), ("CLAIM", "0")])
def test_history_ignores_what_is_for_new_entries(three: World, option: tuple[str, ...]) -> None:
    """Edge 46: it never waits, never forgets, never claims."""
    three.read("g", "b", "s", ">", "COUNT", 1)
    assert three.read("g", "a", "s", "0", *option) == [["s", []]]
    assert three.read("g", "b", "s", "0", *option) == [["s", [entry("1-0")]]]
    assert three.pending("s", "g") == [["1-0", "b", 0, 2]]


def test_groups_of_one_name_are_different_on_different_streams(three: World) -> None:
    """Edge 47: everything is per stream and group."""
    three.add("t", "2-0")
    three.call("XGROUP", "CREATE", "t", "g", "0")
    three.read("g", "a", "t")
    assert three.group("s", "g")["last-delivered-id"] == "0-0"
    assert three.call("XACK", "s", "g", "2-0") == 0
    assert three.call("XACK", "t", "g", "2-0") == 1


@pytest.mark.parametrize(
    ("streams", "refusal"),
    [
        (("s", "no", ">", ">"), NO_GROUP),
        (("s", "s", ">", "bad"), INVALID_ID),
        (("no", "s", "$", ">"), NO_GROUP),
    ],
)
def test_everything_is_checked_before_anything_is_delivered(
    three: World, streams: tuple[str, ...], refusal: str
) -> None:
    """Edge 48: no consumer is made on the good stream either; NOGROUP comes before `$`."""
    assert three.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", *streams) == refusal
    assert three.consumers("s", "g") == []
    assert three.group("s", "g")["last-delivered-id"] == "0-0"


@pytest.mark.parametrize(
    ("words", "made"),
    [
        ("XREADGROUP GROUP g new STREAMS s >", True),
        ("XREADGROUP GROUP g new STREAMS s 0", True),
        ("XREADGROUP GROUP g new BLOCK 5 STREAMS s >", True),
        ("XCLAIM s g new 0 9-0", True),
        ("XCLAIM s g new 0 FORCE", True),
        ("XAUTOCLAIM s g new 0 0", True),
        ("XPENDING s g - + 5 new", False),
        ("XACK s g 1-0", False),
        ("XNACK s g FAIL IDS 1 1-0", False),
        ("XINFO CONSUMERS s g", False),
    ],
)
def test_who_makes_consumers(three: World, words: str, made: bool) -> None:  # noqa: FBT001 - a table
    """Edge 49: even empty reads and empty claims; and what is shown once survives (the fixture restarts)."""
    three.call("XGROUP", "SETID", "s", "g", "3-0")
    three.call(*words.split())
    assert three.consumers("s", "g") == (["new"] if made else [])


def test_a_read_without_acknowledgement_leaves_nothing_pending(three: World) -> None:
    """Edge 50: the group moves on all the same; the consumer is seen, not active."""
    three.read("g", "a", "s", ">", "NOACK")
    assert three.call("XPENDING", "s", "g") == [0, None, None, None]
    group, consumer = three.group("s", "g"), three.consumer("s", "g", "a")
    assert (group["last-delivered-id"], group["entries-read"]) == ("3-0", 3)
    assert (consumer["pending"], consumer["inactive"]) == (0, -1)


def test_delivering_again_begins_the_count_again(three: World) -> None:
    """Edge 51: after SETID back a pending entry goes to the one that reads it, with count 1."""
    three.read("g", "a", "s")
    three.read("g", "a", "s", "0")
    three.call("XGROUP", "SETID", "s", "g", "1-0")
    three.read("g", "b", "s", ">", "COUNT", 1)
    assert three.pending("s", "g") == [["1-0", "a", 0, 2], ["2-0", "b", 0, 1], ["3-0", "a", 0, 2]]
    assert [three.consumer("s", "g", name)["pending"] for name in "ab"] == [2, 1]


def test_entries_read_is_held_down_to_what_was_added(three: World) -> None:
    """Edge 52: CREATE and SETID alike; below -1 is refused, -1 is unknown."""
    three.call("XGROUP", "CREATE", "s", "h", "0", "ENTRIESREAD", 100)
    assert three.group("s", "h")["entries-read"] == 3
    three.call("XGROUP", "SETID", "s", "h", "0", "ENTRIESREAD", 99)
    assert three.group("s", "h")["entries-read"] == 3
    three.call("XGROUP", "SETID", "s", "h", "0", "ENTRIESREAD", -1)
    assert three.group("s", "h")["entries-read"] is None
    refusal = "-ERR value for ENTRIESREAD must be positive or -1"
    assert three.call("XGROUP", "CREATE", "s", "i", "0", "ENTRIESREAD", -2) == refusal


def test_a_bad_id_wins_over_a_group_that_exists(three: World) -> None:
    """Edge 53: and makes no stream."""
    assert three.call("XGROUP", "CREATE", "s", "g", "bad") == INVALID_ID
    assert three.call("XGROUP", "CREATE", "s", "g", "0") == "-BUSYGROUP Consumer Group name already exists"
    assert three.call("XGROUP", "CREATE", "no", "g", "bad", "MKSTREAM") == INVALID_ID
    assert three.call("EXISTS", "no") == 0


def test_the_highest_id_written_out_reads_new_entries(three: World) -> None:
    """Beside edge 42: Redis can't tell it from `>`."""
    assert three.read("g", "a", "s", ID_MAX, "COUNT", 1) == [["s", [entry("1-0")]]]


def test_what_only_groups_understand_is_refused_to_them_in_words(three: World) -> None:
    """Beside edge 48: `$` and `+` mean nothing to a group."""
    for word in ("$", "+"):
        assert str(three.read("g", "a", "s", word)).startswith(
            f"-ERR The {word} ID is meaningless in the context"
        )
    assert str(three.call("XREAD", "STREAMS", "s", ">")).startswith(
        "-ERR The > ID can be specified only when"
    )
