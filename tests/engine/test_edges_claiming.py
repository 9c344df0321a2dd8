"""What implementers get wrong about claiming: edge cases 61 to 75 of docs/semantics.md."""

from typing import Final

import pytest

from tests.engine.world import INVALID_ID, NOW_MS, World, as_list

COUNT_MAX: Final = 2**63 - 1


@pytest.fixture
def held(world: World) -> World:
    """1-0 to 4-0, all held by consumer `a` of group `g` for 100 ms."""
    world.add("s", "1-0", "2-0", "3-0", "4-0")
    world.call("XGROUP", "CREATE", "s", "g", "0")
    world.read("g", "a", "s")
    world.pass_ms(100)
    return world


def entry(entry_id: str) -> list[object]:
    return [entry_id, ["a", "1"]]


def count_of(world: World, entry_id: str) -> object:
    return as_list(as_list(world.call("XPENDING", "s", "g", entry_id, entry_id, 1))[0])[3]


def test_claiming_a_deleted_entry_forgets_it(held: World) -> None:
    """Edge 61: it is no longer pending, and not in the reply."""
    held.call("XDEL", "s", "2-0")
    assert held.call("XCLAIM", "s", "g", "b", 0, "1-0", "2-0") == [entry("1-0")]
    assert [as_list(row)[0] for row in held.pending("s", "g")] == ["1-0", "3-0", "4-0"]


def test_claiming_by_itself_lists_what_it_forgets(held: World) -> None:
    """Edge 61: in the third element, however young it is."""
    held.call("XDEL", "s", "1-0", "3-0")
    assert held.call("XAUTOCLAIM", "s", "g", "b", 9999, "0") == ["0-0", [], ["1-0", "3-0"]]
    assert held.call("XAUTOCLAIM", "s", "g", "b", 0, "0", "JUSTID") == ["0-0", ["2-0", "4-0"], []]


def test_what_was_trimmed_is_forgotten_though_live_entries_are_below_it(world: World) -> None:
    """XSETID has lowered the last ID after the trim: where it was, newer entries have come."""
    world.add("s", "1-0", "5-0")
    world.call("XGROUP", "CREATE", "s", "g", "0")
    world.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    world.call("XTRIM", "s", "MAXLEN", 0)
    world.call("XSETID", "s", "4-0")
    world.add("s", "4-1", "6-0")
    claimed = world.call("XAUTOCLAIM", "s", "g", "b", 50_000, "0-0")
    assert claimed == ["0-0", [], ["1-0", "5-0"]]


@pytest.mark.parametrize(
    "moving", [("XINFO", "STREAM", "s"), ("COPY", "s", "t"), ("RENAME", "s", "t")], ids=lambda words: words[0]
)
def test_what_was_deleted_is_forgotten_though_xsetid_hides_it(
    world: World, moving: tuple[str | int, ...]
) -> None:
    """By a lower highest deleted ID; after a snapshot too, and in a copy or under another name."""
    world.add("s", "1-0", "5-0", "6-0")
    world.call("XGROUP", "CREATE", "s", "g", "0")
    world.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    world.call("XDEL", "s", "5-0")
    world.call("XSETID", "s", "7-0", "MAXDELETEDID", "1-0")
    world.call("XSETID", "s", "7-0", "MAXDELETEDID", "3-0")
    world.call(*moving)
    world.check()
    name = "s" if moving[0] == "XINFO" else "t"
    assert world.call("XAUTOCLAIM", name, "g", "b", 50_000, "0-0") == ["0-0", [], ["5-0"]]


def test_justid_resets_the_time_and_not_the_count(held: World) -> None:
    """Edge 62: a claim without it counts."""
    held.call("XCLAIM", "s", "g", "b", 0, "1-0", "JUSTID")
    held.call("XCLAIM", "s", "g", "b", 0, "2-0")
    assert held.pending("s", "g")[:2] == [["1-0", "b", 0, 1], ["2-0", "b", 0, 2]]


def test_retrycount_sets_exactly(held: World) -> None:
    """Edge 62: with or without JUSTID; a negative one is not given."""
    held.call("XCLAIM", "s", "g", "b", 0, "1-0", "RETRYCOUNT", 7)
    held.call("XCLAIM", "s", "g", "b", 0, "2-0", "RETRYCOUNT", 8, "JUSTID")
    held.call("XCLAIM", "s", "g", "b", 0, "3-0", "RETRYCOUNT", -1)
    assert [count_of(held, f"{number}-0") for number in (1, 2, 3)] == [7, 8, 2]


@pytest.mark.parametrize(("words", "count"), [((), 2), (("JUSTID",), 1), (("RETRYCOUNT", "5"), 5)])
def test_force_on_what_was_never_delivered(world: World, words: tuple[str, ...], count: int) -> None:
    """Edge 62: counts as delivered once before."""
    world.add("s", "1-0")
    world.call("XGROUP", "CREATE", "s", "g", "0")
    world.call("XCLAIM", "s", "g", "a", 9999, "1-0", "FORCE", *words)
    assert world.pending("s", "g") == [["1-0", "a", 0, count]]


def test_an_owner_may_claim_its_own(held: World) -> None:
    """Edge 63: which resets its time."""
    assert held.call("XCLAIM", "s", "g", "a", 100, "1-0") == [entry("1-0")]
    assert held.pending("s", "g")[0] == ["1-0", "a", 0, 2]


def test_only_what_exists_can_be_forced(held: World) -> None:
    """Edge 64: min-idle does not matter for what FORCE makes, and does for the others."""
    held.call("XACK", "s", "g", "1-0")
    reply = held.call("XCLAIM", "s", "g", "b", 5000, "1-0", "2-0", "9-0", "FORCE", "JUSTID")
    assert reply == ["1-0"]


def test_claiming_by_itself_comes_to_an_end(held: World) -> None:
    """Edge 65: the cursor is the next one to look at, inclusive, and 0-0 at the end."""
    seen: list[object] = []
    cursor = "0-0"
    for _ in range(2):
        reply = as_list(held.call("XAUTOCLAIM", "s", "g", "b", 0, cursor, "COUNT", 2, "JUSTID"))
        seen, cursor = [*seen, *as_list(reply[1])], str(reply[0])
    assert (seen, cursor) == (["1-0", "2-0", "3-0", "4-0"], "0-0")


def test_deleted_entries_count_against_the_count(held: World) -> None:
    """Edge 65: COUNT bounds what is claimed and what is deleted together."""
    held.call("XDEL", "s", "1-0")
    reply = held.call("XAUTOCLAIM", "s", "g", "b", 0, "0", "COUNT", 2, "JUSTID")
    assert reply == ["3-0", ["2-0"], ["1-0"]]


def test_looking_is_bounded_too(world: World) -> None:
    """Edge 65: at ten times COUNT, so that young entries end the scan and give a cursor."""
    world.add("s", *(f"{number}-0" for number in range(1, 25)))
    world.call("XGROUP", "CREATE", "s", "g", "0")
    world.read("g", "a", "s")
    assert world.call("XAUTOCLAIM", "s", "g", "b", 50, "0", "COUNT", 1) == ["11-0", [], []]
    assert world.call("XAUTOCLAIM", "s", "g", "b", 50, "(11-0", "COUNT", 1) == ["22-0", [], []]
    assert world.call("XAUTOCLAIM", "s", "g", "b", 50, "22-0", "COUNT", 1) == ["0-0", [], []]


@pytest.mark.parametrize("count", ["0", "-1", str(COUNT_MAX // 16 + 1), str(2**64)])
def test_a_count_beyond_reason_is_refused(held: World, count: str) -> None:
    """Edge 65: before anything is allocated for it."""
    assert held.call("XAUTOCLAIM", "s", "g", "b", 0, "0", "COUNT", count) == "-ERR COUNT must be > 0"
    assert held.call("XAUTOCLAIM", "s", "g", "b", 99, "0", "COUNT", COUNT_MAX // 16) == [
        "0-0",
        [entry(f"{number}-0") for number in range(1, 5)],
        [],
    ]


def test_the_two_claims_look_at_the_group_at_different_times(world: World) -> None:
    """Edge 66: XAUTOCLAIM at its arguments first, XCLAIM at the group."""
    no_group = "-NOGROUP No such key 's' or consumer group 'g'"
    assert (
        world.call("XAUTOCLAIM", "s", "g", "a", "x", "0")
        == "-ERR Invalid min-idle-time argument for XAUTOCLAIM"
    )
    assert world.call("XAUTOCLAIM", "s", "g", "a", 0, "x") == INVALID_ID
    assert world.call("XAUTOCLAIM", "s", "g", "a", 0, "0", "WHAT") == "-ERR syntax error"
    assert world.call("XAUTOCLAIM", "s", "g", "a", 0, "0") == no_group
    assert world.call("XCLAIM", "s", "g", "a", "x", "y") == no_group


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("x", "1-0"), "Invalid min-idle-time argument for XCLAIM"),
        (("0", "1-0", "IDLE", "x"), "Invalid IDLE option argument for XCLAIM"),
        (("0", "1-0", "TIME", "x"), "Invalid TIME option argument for XCLAIM"),
        (("0", "1-0", "RETRYCOUNT", "x"), "Invalid RETRYCOUNT option argument for XCLAIM"),
        (("0", "1-0", "IDLE"), "Unrecognized XCLAIM option 'IDLE'"),
        (("0", "1-0", "FORCE", "2-0"), "Unrecognized XCLAIM option '2-0'"),
        (("0", "1-0", "LASTID", "x"), "Invalid stream ID specified as stream command argument"),
    ],
)
def test_each_option_has_its_refusal(held: World, words: tuple[str, ...], refusal: str) -> None:
    """Edge 67: and nothing is claimed, no consumer made."""
    assert held.call("XCLAIM", "s", "g", "b", *words) == f"-ERR {refusal}"
    assert held.consumers("s", "g") == ["a"]


@pytest.mark.parametrize(
    ("words", "idle"),
    [
        (("IDLE", 30), 30),
        (("IDLE", -30), 0),
        (("IDLE", NOW_MS * 2), 0),
        (("TIME", NOW_MS + 60), 40),
        (("TIME", NOW_MS * 2), 0),
        (("TIME", -1), 0),
        (("IDLE", 30, "TIME", NOW_MS + 90), 10),
    ],
)
def test_a_time_that_cannot_be_is_now(held: World, words: tuple[str | int, ...], idle: int) -> None:
    """Edge 68: in the future, before 1970, or less than no idle time; the later word counts."""
    held.call("XCLAIM", "s", "g", "b", 0, "1-0", *words)
    assert held.pending("s", "g")[0] == ["1-0", "b", idle, 2]


def test_the_delivery_count_has_a_top(held: World) -> None:
    """Edge 69: after XNACK FATAL every further delivery stays there."""
    held.call("XNACK", "s", "g", "FATAL", "IDS", 1, "1-0")
    assert count_of(held, "1-0") == COUNT_MAX
    held.call("XCLAIM", "s", "g", "b", 0, "1-0")
    held.call("XAUTOCLAIM", "s", "g", "c", 0, "0", "COUNT", 1)
    held.read("g", "d", "s", ">", "CLAIM", 0, "COUNT", 1)
    held.read("g", "c", "s", "0")
    assert count_of(held, "1-0") == COUNT_MAX


def test_a_claiming_read_tells_what_was_before(held: World) -> None:
    """Edge 70: idle time and count before this delivery; new entries have none of either."""
    held.add("s", "5-0")
    held.call("XACK", "s", "g", "2-0", "3-0", "4-0")
    reply = held.read("g", "b", "s", ">", "CLAIM", 100)
    assert reply == [["s", [[*entry("1-0"), 100, 1], [*entry("5-0"), 0, 0]]]]
    assert held.pending("s", "g") == [["1-0", "b", 0, 2], ["5-0", "b", 0, 1]]


def test_a_claiming_read_goes_by_time_of_delivery(held: World) -> None:
    """Edge 71: released entries first, in order of their release, then those idle longest; not by ID."""
    held.call("XCLAIM", "s", "g", "a", 0, "1-0", "IDLE", 50, "JUSTID")
    held.call("XNACK", "s", "g", "FAIL", "IDS", 2, "4-0", "3-0")
    reply = as_list(as_list(held.read("g", "b", "s", ">", "CLAIM", 0))[0])
    assert [as_list(row)[0] for row in as_list(reply[1])] == ["4-0", "3-0", "2-0", "1-0"]


def test_a_claiming_read_with_no_idle_time_ends(held: World) -> None:
    """Edge 72: what it claims goes to the end of what it walks, and is not met again."""
    reply = as_list(as_list(held.read("g", "a", "s", ">", "CLAIM", 0))[0])
    assert len(as_list(reply[1])) == 4
    assert held.pending("s", "g") == [[f"{number}-0", "a", 0, 2] for number in range(1, 5)]


def test_deleted_entries_do_not_end_a_claiming_read(held: World) -> None:
    """Edge 73: they are passed over, not counted, and stay pending."""
    held.call("XDEL", "s", "1-0", "2-0")
    reply = held.read("g", "b", "s", ">", "CLAIM", 100, "COUNT", 1)
    assert reply == [["s", [[*entry("3-0"), 100, 1]]]]
    assert held.pending("s", "g")[:2] == [["1-0", "a", 100, 1], ["2-0", "a", 100, 1]]


def test_an_entry_forced_ahead_is_delivered_again_as_new(held: World) -> None:
    """Edge 74: the group has not read it; its count begins again."""
    held.add("s", "5-0")
    held.call("XCLAIM", "s", "g", "b", 0, "5-0", "FORCE")
    assert count_of(held, "5-0") == 2
    assert held.read("g", "a", "s") == [["s", [entry("5-0")]]]
    assert held.pending("s", "g")[-1] == ["5-0", "a", 0, 1]


def test_an_entry_forced_ahead_may_come_twice_in_one_reply(held: World) -> None:
    """Edge 74: claimed, and then as new."""
    held.call("XACK", "s", "g", "1-0", "2-0", "3-0", "4-0")
    held.add("s", "5-0")
    held.call("XNACK", "s", "g", "FAIL", "IDS", 1, "5-0", "FORCE")
    now = held.now_ms
    assert held.read("g", "a", "s", ">", "CLAIM", 0) == [
        ["s", [[*entry("5-0"), now, 0], [*entry("5-0"), 0, 0]]]
    ]
    assert held.pending("s", "g") == [["5-0", "a", 0, 1]]


def test_a_released_entry_belongs_to_nobody(held: World) -> None:
    """Edge 75: XACK works on it, its former owner's removal leaves it, the group's takes it along."""
    assert held.call("XNACK", "s", "g", "SILENT", "IDS", 2, "1-0", "2-0") == 2
    assert held.pending("s", "g")[:2] == [["1-0", "", -1, 0], ["2-0", "", -1, 0]]
    assert held.call("XGROUP", "DELCONSUMER", "s", "g", "a") == 2
    assert held.call("XPENDING", "s", "g") == [2, "1-0", "2-0", []]
    assert held.call("XACK", "s", "g", "1-0") == 1
    assert held.call("XGROUP", "DESTROY", "s", "g") == 1
    no_group = "-NOGROUP No such key 's' or consumer group 'g'"
    assert held.call("XNACK", "s", "g", "SILENT", "IDS", 1, "2-0") == no_group


def test_a_released_entry_is_claimed_whatever_the_idle_time(held: World) -> None:
    """Beside edge 75: by each of the three ways."""
    held.call("XNACK", "s", "g", "FAIL", "IDS", 3, "1-0", "2-0", "3-0")
    assert held.call("XCLAIM", "s", "g", "b", 9999, "1-0", "4-0", "JUSTID") == ["1-0"]
    assert held.call("XAUTOCLAIM", "s", "g", "b", 9999, "0", "COUNT", 1, "JUSTID") == ["3-0", ["2-0"], []]
    reply = as_list(as_list(held.read("g", "b", "s", ">", "CLAIM", 9999))[0])
    assert [as_list(row)[0] for row in as_list(reply[1])] == ["3-0"]


def test_lastid_only_raises(held: World) -> None:
    """Beside edge 74: and entries-read stays as it is."""
    held.call("XCLAIM", "s", "g", "b", 0, "1-0", "LASTID", "2-0")
    assert held.group("s", "g")["last-delivered-id"] == "4-0"
    held.call("XCLAIM", "s", "g", "b", 0, "LASTID", "9-0")
    group = held.group("s", "g")
    assert (group["last-delivered-id"], group["entries-read"]) == ("9-0", 4)
