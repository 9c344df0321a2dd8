"""How far a group is behind, and what XPENDING shows: edge cases 58 to 60 of docs/semantics.md.

The histories are the worked examples of docs/semantics.md, Lag.
"""

import pytest

from tests.engine.world import World

Known = tuple[int | None, int | None]


def behind(world: World, group: str = "g") -> Known:
    """`entries-read` and `lag`."""
    values = world.group("s", group)
    read, lag = values["entries-read"], values["lag"]
    assert read is None or isinstance(read, int)
    assert lag is None or isinstance(lag, int)
    return read, lag


@pytest.fixture
def five(world: World) -> World:
    """1-0 to 5-0 and a group at 0."""
    world.add("s", *(f"{number}-0" for number in range(1, 6)))
    world.call("XGROUP", "CREATE", "s", "g", "0")
    return world


def read_one(world: World, group: str = "g") -> Known:
    world.read(group, "a", "s", ">", "COUNT", 1)
    return behind(world, group)


def test_a_group_counts_what_it_reads(five: World) -> None:
    """Edge 58: unknown at first, though the lag is known; then both, through to the end and on."""
    assert behind(five) == (None, 5)
    assert read_one(five) == (1, 4)
    five.read("g", "a", "s")
    assert behind(five) == (5, 0)
    five.add("s", "6-0")
    assert behind(five) == (5, 1)


def test_a_tombstone_ahead_makes_it_unknown(world: World) -> None:
    """Edge 58: until the group has passed it, or a trim has."""
    world.add("s", *(f"{number}-0" for number in range(1, 6)))
    world.call("XDEL", "s", "3-0")
    for group in ("g", "h"):
        world.call("XGROUP", "CREATE", "s", group, "0")
    assert behind(world) == (None, None)
    assert [read_one(world) for _ in range(4)] == [(None, None), (None, None), (None, None), (5, 0)]
    world.add("s", "6-0")
    assert behind(world) == (5, 1)
    world.call("XTRIM", "s", "MINID", "3")
    assert (behind(world), behind(world, "h")) == ((5, 1), (None, 3))


def test_a_trim_beyond_the_tombstone_makes_the_lag_known(world: World) -> None:
    """Edge 58: a group before the first entry has all of them to read, once no tombstone is among them."""
    world.add("s", *(f"{number}-0" for number in range(1, 7)))
    world.call("XDEL", "s", "3-0")
    world.call("XGROUP", "CREATE", "s", "h", "0")
    world.call("XTRIM", "s", "MINID", "4")
    assert behind(world, "h") == (None, 3)
    world.call("XTRIM", "s", "MINID", "5")
    assert behind(world, "h") == (None, 2)


def test_deleting_what_was_read_brings_the_lag_back(world: World) -> None:
    """Edge 58: rule 3: behind the first entry with no tombstone after it."""
    world.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    world.add("s", "1-0")
    read_one(world)
    world.add("s", "2-0", "3-0")
    world.call("XDEL", "s", "2-0")
    assert behind(world) == (1, None)
    world.call("XDEL", "s", "1-0")
    assert behind(world) == (1, 1)
    assert read_one(world) == (3, 0)


def test_trimming_ahead_of_a_group_shortens_its_lag(five: World) -> None:
    """Edge 58: what is gone need not be read; nothing left is no lag."""
    assert read_one(five) == (1, 4)
    five.call("XTRIM", "s", "MAXLEN", 1)
    assert behind(five) == (1, 1)
    assert read_one(five) == (5, 0)
    five.add("s", "6-0")
    assert behind(five) == (5, 1)
    five.call("XTRIM", "s", "MAXLEN", 0)
    assert behind(five) == (5, 0)


def test_setting_the_id_forgets_the_count(five: World) -> None:
    """Edge 58: unless it is given; beyond the last ID nothing is known."""
    five.read("g", "a", "s")
    five.call("XGROUP", "SETID", "s", "g", "2-0")
    assert behind(five)[0] is None
    five.call("XGROUP", "SETID", "s", "g", "2-0", "ENTRIESREAD", 2)
    assert behind(five) == (2, 3)
    five.call("XGROUP", "SETID", "s", "g", "9-0")
    assert behind(five) == (None, None)


def test_all_deleted_is_no_lag(five: World) -> None:
    """Edge 58: though tombstones are all there is."""
    five.call("XDEL", "s", *(f"{number}-0" for number in range(1, 6)))
    assert behind(five) == (None, 0)


def test_the_summary_counts_in_text(five: World) -> None:
    """Edge 59: only consumers that hold something, by name."""
    for consumer in ("b", "a", "c"):
        five.read("g", consumer, "s", ">", "COUNT", 1)
    five.read("g", "idle", "s", "0")
    five.call("XACK", "s", "g", "3-0")
    assert five.call("XPENDING", "s", "g") == [2, "1-0", "2-0", [["a", "1"], ["b", "1"]]]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("-", "+", 9), ["1-0", "2-0", "3-0"]),
        (("-", "2", 9), ["1-0", "2-0"]),
        (("(1", "(3-0", 9), ["2-0"]),
        (("(1", "(3", 9), ["2-0", "3-0"]),
        (("-", "+", 2), ["1-0", "2-0"]),
        (("-", "+", 0), []),
        (("-", "+", -1), []),
        (("-", "+", 9, "nobody"), []),
        (("-", "+", 9, "a", "and more"), ["1-0"]),
        (("3", "1", 9), []),
    ],
)
def test_the_list_is_bounded_inclusively(five: World, words: tuple[str | int, ...], found: list[str]) -> None:
    """Edge 59: an unknown consumer and a count of nothing give an empty list."""
    for consumer in ("a", "b", "c"):
        five.read("g", consumer, "s", ">", "COUNT", 1)
    reply = five.call("XPENDING", "s", "g", *words)
    assert isinstance(reply, list)
    assert [row[0] for row in reply] == found


def test_idle_time_is_never_negative(five: World) -> None:
    """Edge 60: a clock that goes back makes it 0; the filter takes what has just that much."""
    read_one(five)
    five.pass_ms(10)
    read_one(five)
    assert [row[0] for row in _rows(five, 10)] == ["1-0"]
    assert _rows(five, 11) == []
    five.pass_ms(-100)
    assert [row[2] for row in _rows(five, 0)] == [0, 0]


def _rows(world: World, idle_ms: int) -> list[list[object]]:
    reply = world.call("XPENDING", "s", "g", "IDLE", idle_ms, "-", "+", 9)
    assert isinstance(reply, list)
    return reply
