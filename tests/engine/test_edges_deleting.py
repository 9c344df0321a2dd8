"""What implementers get wrong about deletion and counters: edge cases 20 to 30 of docs/semantics.md."""

import pytest

from tests.engine.world import INVALID_ID, World


@pytest.fixture
def read_world(world: World) -> World:
    """1-0 to 5-0, all delivered to consumer `a` of group `g`."""
    world.add("s", *(f"{number}-0" for number in range(1, 6)))
    world.call("XGROUP", "CREATE", "s", "g", "0")
    world.read("g", "a", "s")
    return world


def test_a_deleted_entry_stays_pending(read_world: World) -> None:
    """Edge 20: XACK still works on it, and counts it."""
    assert read_world.call("XDEL", "s", "2-0") == 1
    assert len(read_world.pending("s", "g")) == 5
    assert read_world.call("XACK", "s", "g", "2-0") == 1


def test_an_empty_stream_is_still_a_stream(read_world: World) -> None:
    """Edge 21: it has a type, groups, and no first or last entry."""
    assert read_world.call("XTRIM", "s", "MAXLEN", 0) == 5
    assert read_world.call("EXISTS", "s") == 1
    assert read_world.call("TYPE", "s") == "stream"
    assert read_world.call("XLEN", "s") == 0
    assert read_world.info("s", "first-entry", "last-entry", "groups") == [None, None, 1]
    assert read_world.info("s", "radix-tree-keys", "last-generated-id") == [0, "5-0"]


@pytest.mark.parametrize(
    "delete", [("XDEL", "s"), ("XDELEX", "s", "IDS", 1), ("XACKDEL", "s", "g", "IDS", 1)]
)
def test_the_highest_deleted_id_never_falls(read_world: World, delete: tuple[str | int, ...]) -> None:
    """Edge 22: it is that of XDEL, XDELEX and XACKDEL; deleting a smaller one later changes nothing."""
    read_world.call(*delete, "3-0")
    assert read_world.info("s", "max-deleted-entry-id") == "3-0"
    read_world.call(*delete, "2-0")
    assert read_world.info("s", "max-deleted-entry-id") == "3-0"


@pytest.mark.parametrize("refs", ["KEEPREF", "DELREF", "ACKED"])
def test_trimming_is_no_deletion(read_world: World, refs: str) -> None:
    """Edge 22: no tombstone, with any option for the references."""
    read_world.call("XACK", "s", "g", "1-0", "2-0")
    assert read_world.call("XTRIM", "s", "MINID", "3-0", refs) == 2
    assert read_world.info("s", "max-deleted-entry-id", "entries-added") == ["0-0", 5]


def test_the_first_id_follows_every_removal_at_the_head(read_world: World) -> None:
    """Edge 23: 0-0 when nothing is left."""
    firsts = []
    for words in (("XDEL", "s", "1-0"), ("XDEL", "s", "4-0"), ("XTRIM", "s", "MINID", "3-0")):
        read_world.call(*words)
        firsts.append(read_world.info("s", "recorded-first-entry-id"))
    read_world.call("XDELEX", "s", "IDS", 2, "3-0", "5-0")
    firsts.append(read_world.info("s", "recorded-first-entry-id"))
    assert firsts == ["2-0", "2-0", "3-0", "0-0"]


def test_entries_added_never_falls_but_by_hand(read_world: World) -> None:
    """Edge 24: removals leave it; XSETID sets it."""
    read_world.call("XTRIM", "s", "MAXLEN", 1)
    read_world.call("XDEL", "s", "5-0")
    assert read_world.info("s", "entries-added") == 5
    read_world.call("XSETID", "s", "5-0", "ENTRIESADDED", 2)
    assert read_world.info("s", "entries-added") == 2


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("2-0",), "smaller than current max_deleted_entry_id"),
        (("4-0",), "smaller than the target stream top item"),
        (("9-0", "ENTRIESADDED", "1"), "smaller than the target stream length"),
        (("9-0", "MAXDELETEDID", "10-0"), "smaller than the provided max_deleted_entry_id"),
        (("9-0", "ENTRIESADDED", "-1"), "must be positive"),
    ],
)
def test_an_id_set_by_hand_may_not_contradict_the_entries(
    read_world: World, words: tuple[str, ...], refusal: str
) -> None:
    """Edge 25: neither the tombstones, nor the top entry, nor the length."""
    read_world.call("XDEL", "s", "3-0")
    assert str(read_world.call("XSETID", "s", *words)).endswith(refusal)
    assert read_world.info("s", "last-generated-id", "entries-added") == ["5-0", 5]


def test_lowering_entries_added_lowers_what_groups_have_read(read_world: World) -> None:
    """Edge 25: or the lag would be negative."""
    assert read_world.group("s", "g")["entries-read"] == 5
    read_world.call("XDEL", "s", "1-0", "2-0")
    read_world.call("XSETID", "s", "5-0", "ENTRIESADDED", 3)
    group = read_world.group("s", "g")
    assert (group["entries-read"], group["lag"]) == (3, 0)


def test_a_consumer_goes_with_its_pending_entries(read_world: World) -> None:
    """Edge 26: the group's totals drop as well."""
    read_world.add("s", "6-0")
    read_world.read("g", "b", "s")
    assert read_world.call("XGROUP", "DELCONSUMER", "s", "g", "a") == 5
    assert read_world.call("XPENDING", "s", "g") == [1, "6-0", "6-0", [["b", "1"]]]
    assert read_world.group("s", "g")["pending"] == 1


def test_counts_never_go_below_zero(read_world: World) -> None:
    """Edge 27: on repeated and foreign IDs, in each command."""
    read_world.call("XACK", "s", "g", "1-0", "1-0", "1-0", "9-0")
    read_world.call("XDEL", "s", "2-0", "2-0", "9-0")
    read_world.call("XCLAIM", "s", "g", "b", 0, "2-0", "2-0", "9-0")
    read_world.call("XAUTOCLAIM", "s", "g", "b", 0, "0")
    read_world.call("XACK", "s", "g", *(f"{number}-0" for number in range(1, 10)))
    assert read_world.call("XPENDING", "s", "g") == [0, None, None, None]
    assert [read_world.consumer("s", "g", name)["pending"] for name in "ab"] == [0, 0]
    assert read_world.call("XLEN", "s") == 4


def test_a_repeated_id_is_acknowledged_once(read_world: World) -> None:
    """Edge 28: the reply is 1."""
    assert read_world.call("XACK", "s", "g", "1-0", "1-0") == 1
    assert read_world.call("XACK", "s", "g", "1-0") == 0


@pytest.mark.parametrize(
    "words",
    [("XACK", "s", "g", "1-0", "x"), ("XDEL", "s", "1-0", "x"), ("XDELEX", "s", "IDS", "2", "1-0", "x")],
)
def test_one_bad_id_refuses_all(read_world: World, words: tuple[str, ...]) -> None:
    """Edge 29: IDs are looked at before anything is changed."""
    assert read_world.call(*words) == INVALID_ID
    assert len(read_world.pending("s", "g")) == 5
    assert read_world.call("XLEN", "s") == 5


def test_one_bad_id_refuses_a_claim(read_world: World) -> None:
    """Edge 29: there it is an unknown option; nothing is claimed."""
    refusal = "-ERR Unrecognized XCLAIM option 'x'"
    assert read_world.call("XCLAIM", "s", "g", "b", 0, "1-0", "x") == refusal
    assert read_world.consumers("s", "g") == ["a"]


NO_GROUP = "-NOGROUP No such key 'no' or consumer group 'g'"
KEY_REQUIRED = (
    "-ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the "
    "MKSTREAM option to create an empty stream automatically."
)


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        ("XACK no g 1-0", 0),
        ("XACK no g bad", 0),
        ("XDEL no 1-0", 0),
        ("XDEL no bad", 0),
        ("XDELEX no IDS 1 bad", [-1]),
        ("XACKDEL no g IDS 2 1-0 2-0", [-1, -1]),
        ("XTRIM no MAXLEN 0", 0),
        ("XLEN no", 0),
        ("XRANGE no - +", []),
        ("XRANGE no - + COUNT 0", []),
        ("XREAD STREAMS no 0", None),
        ("XPENDING no g", NO_GROUP),
        ("XPENDING no g - + 1", NO_GROUP),
        ("XCLAIM no g a 0 1-0", NO_GROUP),
        ("XAUTOCLAIM no g a 0 0", NO_GROUP),
        ("XNACK no g FAIL IDS 1 1-0", NO_GROUP),
        ("XREADGROUP GROUP g a STREAMS no >", f"{NO_GROUP} in XREADGROUP with GROUP option"),
        ("XINFO STREAM no", "-ERR no such key"),
        ("XINFO GROUPS no", "-ERR no such key"),
        ("XINFO CONSUMERS no g", "-ERR no such key"),
        ("XSETID no 1-0", "-ERR no such key"),
        ("XCFGSET no IDMP-MAXSIZE 5", "-ERR no such key"),
        ("XGROUP CREATE no g 0", KEY_REQUIRED),
        ("XGROUP SETID no g 0", KEY_REQUIRED),
        ("XGROUP DESTROY no g", KEY_REQUIRED),
        ("XGROUP CREATECONSUMER no g a", KEY_REQUIRED),
        ("XGROUP DELCONSUMER no g a", KEY_REQUIRED),
    ],
)
def test_each_command_has_its_answer_to_a_missing_stream(world: World, words: str, reply: object) -> None:
    """Edge 30: and none of them makes one."""
    assert world.call(*words.split()) == reply
    assert world.call("DBSIZE") == 0


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        ("XACK s no bad", 0),
        ("XACKDEL s no IDS 1 1-0", [-1]),
        ("XGROUP DESTROY s no", 0),
        ("XPENDING s no", "-NOGROUP No such key 's' or consumer group 'no'"),
        ("XCLAIM s no a bad 1-0", "-NOGROUP No such key 's' or consumer group 'no'"),
        ("XGROUP SETID s no 0", "-NOGROUP No such consumer group 'no' for key name 's'"),
        ("XGROUP CREATECONSUMER s no a", "-NOGROUP No such consumer group 'no' for key name 's'"),
        ("XGROUP DELCONSUMER s no a", "-NOGROUP No such consumer group 'no' for key name 's'"),
        ("XINFO CONSUMERS s no", "-NOGROUP No such consumer group 'no' for key name 's'"),
    ],
)
def test_each_command_has_its_answer_to_a_missing_group(read_world: World, words: str, reply: object) -> None:
    """Edge 30, for groups."""
    assert read_world.call(*words.split()) == reply
