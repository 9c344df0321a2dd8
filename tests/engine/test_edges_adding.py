"""What implementers get wrong about IDs, XADD and trimming: edge cases 1 to 19 of docs/semantics.md."""

from typing import Final

import pytest

from engine.records.changes import Cut
from engine.records.payload import decode
from tests.engine.world import ID_MAX, INVALID_ID, NOW_MS, World

U64: Final = 2**64 - 1
TOP_ITEM: Final = "-ERR The ID specified in XADD is equal or smaller than the target stream top item"
EXHAUSTED: Final = "-ERR The stream has exhausted the last possible ID, unable to add more items"
AUTO_ONLY: Final = "-ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"
IS_ZERO: Final = "-ERR The ID specified in XADD must be greater than 0-0"


def fill(world: World, stream: str, count: int) -> None:
    for number in range(1, count + 1):
        world.call("XADD", stream, f"{number}-0", "xitem", number)


@pytest.mark.parametrize(("lower", "higher"), [("9-0", "10-0"), ("1-9", "1-10"), ("2-0", "10-0")])
def test_ids_compare_as_numbers(world: World, lower: str, higher: str) -> None:
    """Edge 1: 9-0 is below 10-0, and 1-9 below 1-10."""
    world.add("s", lower, higher)
    assert world.call("XADD", "s", lower, "a", "1") == TOP_ITEM
    assert world.call("XRANGE", "s", higher, "+") == [[higher, ["a", "1"]]]


def test_a_clock_that_goes_back_keeps_the_last_milliseconds(world: World) -> None:
    """Edge 2: never an error; the sequence counts on."""
    assert world.call("XADD", "s", "*", "a", "1") == f"{NOW_MS}-0"
    world.pass_ms(-10_000)
    assert world.call("XADD", "s", "*", "a", "1") == f"{NOW_MS}-1"


def test_an_explicit_id_in_the_future_is_counted_on_from(world: World) -> None:
    """Edge 3: after 9999999999999-5 comes 9999999999999-6, with any clock."""
    world.add("s", "9999999999999-5")
    assert world.call("XADD", "s", "*", "a", "1") == "9999999999999-6"


def test_a_sequence_that_overflows_carries_for_a_star_alone(world: World) -> None:
    """Edge 4: `*` carries into the milliseconds, `ms-*` is refused."""
    world.add("s", f"9999999999999-{U64}")
    assert world.call("XADD", "s", "9999999999999-*", "a", "1") == TOP_ITEM
    assert world.call("XADD", "s", "*", "a", "1") == "10000000000000-0"


@pytest.mark.parametrize("words", ["*", "5-*", "1-1", ID_MAX, "0-1"])
def test_an_exhausted_stream_says_so_before_it_compares(world: World, words: str) -> None:
    """Edge 5: for every form of ID."""
    world.add("s", ID_MAX)
    assert world.call("XADD", "s", words, "a", "1") == EXHAUSTED


def test_the_last_possible_entry_can_be_read(world: World) -> None:
    """Edge 5: it is there, and a reader just below it gets it."""
    world.add("s", ID_MAX)
    below = f"{U64}-{U64 - 1}"
    assert world.call("XREAD", "STREAMS", "s", below) == [["s", [[ID_MAX, ["a", "1"]]]]]
    assert world.call("XRANGE", "s", f"({below}", "+") == [[ID_MAX, ["a", "1"]]]


@pytest.mark.parametrize("words", ["0-0", "0"])
def test_zero_is_refused_before_the_stream_is_made(world: World, words: str) -> None:
    """Edge 6: with any other options."""
    assert world.call("XADD", "s", "NOMKSTREAM", words, "a", "1") == IS_ZERO
    assert world.call("XADD", "s", words, "a", "1") == IS_ZERO
    assert world.call("EXISTS", "s") == 0


def test_the_sequence_of_zero_milliseconds_begins_at_one(world: World) -> None:
    """Edge 6: `0-*` on a new stream is 0-1."""
    assert world.call("XADD", "s", "0-*", "a", "1") == "0-1"
    assert world.call("XADD", "s", "0-*", "a", "1") == "0-2"


@pytest.mark.parametrize("remove", [("XDEL", "s", "5-0"), ("XTRIM", "s", "MAXLEN", "0")])
def test_an_id_once_given_is_never_given_again(world: World, remove: tuple[str, ...]) -> None:
    """Edge 7: what counts is the last ID generated, be its entry deleted, trimmed, or the stream empty."""
    world.add("s", "5-0")
    assert world.call(*remove) == 1
    assert world.call("XADD", "s", "5-0", "a", "1") == TOP_ITEM
    assert world.call("XADD", "s", "5-*", "a", "1") == "5-1"


def test_an_id_set_by_hand_counts_as_given(world: World) -> None:
    """Edge 7: XSETID moves what new IDs are compared with."""
    world.add("s", "1-0")
    assert world.call("XSETID", "s", "9-0") == "OK"
    assert world.call("XADD", "s", "9-0", "a", "1") == TOP_ITEM


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("*", "a"), "-ERR wrong number of arguments for 'xadd' command"),
        (("*", "a", "1", "b"), "-ERR wrong number of arguments for 'xadd' command"),
        (("x", "a", "1"), INVALID_ID),
        (("1-2-3", "a", "1"), INVALID_ID),
        (("KEEPREF", "ACKED", "*", "a", "1"), INVALID_ID),
        (("MAXLEN", "-1", "*", "a", "1"), "-ERR The MAXLEN argument must be >= 0."),
        (("MINID", "x", "*", "a", "1"), INVALID_ID),
        (("MAXLEN", "x", "*", "a", "1"), "-ERR value is not an integer or out of range"),
        (
            ("IDMP", "p", "i", "1-1", "a", "1"),
            "-ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs",
        ),
    ],
)
def test_an_add_that_fails_makes_no_stream(world: World, words: tuple[str, ...], refusal: str) -> None:
    """Edge 8: arguments are all looked at first."""
    assert world.call("XADD", "s", *words) == refusal
    assert world.call("EXISTS", "s") == 0


def test_nomkstream_answers_null_and_makes_nothing(world: World) -> None:
    """Edge 9: but an empty stream is a stream."""
    assert world.call("XADD", "s", "NOMKSTREAM", "*", "a", "1") is None
    assert world.call("EXISTS", "s") == 0
    world.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    assert world.call("XADD", "s", "NOMKSTREAM", "1-1", "a", "1") == "1-1"


def test_repeated_fields_stay_in_order(world: World) -> None:
    """Edge 10: a dict would lose them."""
    fields = ["a", "1", "b", "2", "a", "3", "a", "1"]
    world.call("XADD", "s", "1-0", *fields)
    assert world.call("XRANGE", "s", "-", "+") == [["1-0", fields]]


def test_maxlen_zero_removes_the_entry_just_added(world: World) -> None:
    """Edge 11: the reply is its ID all the same, and the last ID advances."""
    assert world.call("XADD", "s", "MAXLEN", "0", "7-0", "a", "1") == "7-0"
    assert world.info("s", "length", "last-generated-id", "entries-added") == [0, "7-0", 1]
    assert world.call("EXISTS", "s") == 1


def test_options_stand_in_any_order_before_the_id(world: World) -> None:
    """Edge 12: behind it everything is fields."""
    assert world.call("XADD", "s", "limit", "0", "MAXLEN", "~", "5", "NOMKSTREAM", "1-0", "a", "1") is None
    assert world.call("XADD", "s", "MAXLEN", "~", "5", "acked", "LIMIT", "0", "1-0", "MAXLEN", "5") == "1-0"
    assert world.call("XRANGE", "s", "-", "+") == [["1-0", ["MAXLEN", "5"]]]


def test_a_trim_may_take_the_new_entry(world: World) -> None:
    """Edge 13: readers are woken and find nothing; the reply is unchanged."""
    world.add("s", "1-0")
    assert world.call("XADD", "s", "MINID", "9-0", "2-0", "a", "1") == "2-0"
    assert world.signalled == ["s"]
    assert world.call("XREAD", "STREAMS", "s", "1-0") is None
    assert world.ids("s") == []


def test_exact_trims_stop_within_nodes_and_approximate_ones_between_them(world: World) -> None:
    """Edge 14: 1 000 entries in nodes of 100: 666, 555, 500 and 400, as Redis's own tests have it."""
    fill(world, "s", 1000)
    lengths = []
    for maxlen in (["666"], ["=", "555"], ["~", "444"], ["~", "400"]):
        world.call("XTRIM", "s", "MAXLEN", *maxlen)
        lengths.append(world.call("XLEN", "s"))
    assert lengths == [666, 555, 500, 400]


def test_a_node_is_trimmed_whole_or_not_at_all(world: World) -> None:
    """Edge 14: three entries in one node: `~ 1` takes nothing, `~ 0` all three."""
    fill(world, "s", 3)
    assert world.call("XTRIM", "s", "MAXLEN", "~", 1) == 0
    assert world.call("XTRIM", "s", "MAXLEN", "~", 0) == 3


def test_the_default_limit_is_a_hundred_nodes(world: World) -> None:
    """Edge 15: one entry a node, 102 of them: two are left."""
    world.call("CONFIG", "SET", "stream-node-max-entries", 1)
    fill(world, "s", 102)
    assert world.call("XTRIM", "s", "MAXLEN", "~", 1) == 100
    assert world.call("XLEN", "s") == 2


def test_limit_counts_by_whole_nodes(world: World) -> None:
    """Edge 15: a limit below the first node's number of entries removes nothing."""
    world.call("CONFIG", "SET", "stream-node-max-entries", 2)
    fill(world, "s", 3)
    assert world.call("XTRIM", "s", "MAXLEN", "~", 0, "LIMIT", 1) == 0
    assert world.call("XTRIM", "s", "MAXLEN", "~", 0, "LIMIT", 2) == 2


def test_the_limit_of_an_add_is_the_same(world: World) -> None:
    """Edge 15: 100 entries in nodes of 10: 71 are left, then 62."""
    world.call("CONFIG", "SET", "stream-node-max-entries", 10)
    fill(world, "s", 100)
    for number, left in ((101, 71), (102, 62)):
        world.call("XADD", "s", "MAXLEN", "~", 55, "LIMIT", 30, f"{number}-0", "a", "1")
        assert world.call("XLEN", "s") == left


def test_limit_zero_is_none(world: World) -> None:
    """Edge 15: everything may go at once."""
    world.call("CONFIG", "SET", "stream-node-max-entries", 1)
    fill(world, "s", 300)
    assert world.call("XTRIM", "s", "MAXLEN", "~", 0, "LIMIT", 0) == 300


@pytest.mark.parametrize("limit", ["0", "1"])
@pytest.mark.parametrize("mark", [(), ("=",)])
def test_limit_needs_the_tilde(world: World, limit: str, mark: tuple[str, ...]) -> None:
    """Edge 15: even where it is 0."""
    refusal = "-ERR syntax error, LIMIT cannot be used without the special ~ option"
    assert world.call("XTRIM", "s", "MAXLEN", *mark, "5", "LIMIT", limit) == refusal
    assert world.call("XADD", "s", "MAXLEN", *mark, "5", "LIMIT", limit, "*", "a", "1") == refusal


def test_an_approximate_minid_looks_at_a_nodes_last_entry_deleted_or_not(world: World) -> None:
    """Edge 16: 1-0 stays while the tombstone of 3-0 keeps the node's end at the threshold."""
    world.call("CONFIG", "SET", "stream-node-max-entries", 3)
    world.add("s", "1-0", "2-0", "3-0", "4-0")
    world.call("XDEL", "s", "3-0")
    assert world.call("XTRIM", "s", "MINID", "~", "3-0") == 0
    assert world.call("XTRIM", "s", "MINID", "~", "4-0") == 2
    assert world.ids("s") == ["4-0"]


def test_an_exact_minid_leaves_no_node_without_entries(world: World) -> None:
    """Beside edge 16, an open bug of Redis: all live entries lie below, the node's last, deleted one not."""
    world.add("s", "1-0", "2-0", "3-0")
    world.call("XDEL", "s", "3-0")
    assert world.call("XTRIM", "s", "MINID", "3-0") == 2
    assert world.info("s", "length", "radix-tree-keys", "recorded-first-entry-id") == [0, 0, "0-0"]


def test_the_log_has_the_cut_that_was_made(world: World) -> None:
    """Edge 17: not the threshold asked for: settings may be others when it is read again."""
    world.call("CONFIG", "SET", "stream-node-max-entries", 2)
    fill(world, "s", 5)
    world.call("XTRIM", "s", "MAXLEN", "~", 2)
    assert decode(world.payloads[-1]) == [Cut("s", (2 << 64) + 1)]


@pytest.mark.parametrize("refs", ["DELREF", "ACKED"])
def test_an_approximate_trim_with_references_goes_entry_by_entry(world: World, refs: str) -> None:
    """Edge 18: also through nodes that it could have dropped whole; and so stops exactly."""
    world.call("CONFIG", "SET", "stream-node-max-entries", 2)
    fill(world, "s", 5)
    world.call("XGROUP", "CREATE", "s", "g", "0")
    world.read("g", "a", "s", ">", "COUNT", 3)
    world.call("XACK", "s", "g", "2-0", "3-0")
    removed = world.call("XTRIM", "s", "MAXLEN", "~", 2, refs)
    kept = {"DELREF": (3, ["4-0", "5-0"]), "ACKED": (2, ["1-0", "4-0", "5-0"])}
    assert (removed, world.ids("s")) == kept[refs]
    assert len(world.pending("s", "g")) == (refs == "ACKED")


def test_acked_waits_for_groups_that_have_not_read(world: World) -> None:
    """Edge 19: pending lists are not enough; a group created at 0 later makes everything referenced again."""
    world.add("s", "1-0", "2-0")
    world.call("XGROUP", "CREATE", "s", "fast", "0")
    world.read("fast", "a", "s")
    world.call("XACK", "s", "fast", "1-0", "2-0")
    world.call("XGROUP", "CREATE", "s", "slow", "0")
    assert world.call("XDELEX", "s", "ACKED", "IDS", 2, "1-0", "2-0") == [2, 2]
    assert world.call("XTRIM", "s", "MAXLEN", 0, "ACKED") == 0
    assert world.call("XGROUP", "DESTROY", "s", "slow") == 1
    assert world.call("XDELEX", "s", "ACKED", "IDS", 1, "1-0") == [1]
    assert world.call("XTRIM", "s", "MAXLEN", 0, "ACKED") == 1


def test_without_groups_nothing_is_referenced(world: World) -> None:
    """Edge 19: ACKED deletes as any other."""
    world.add("s", "1-0")
    assert world.call("XDELEX", "s", "ACKED", "IDS", 1, "1-0") == [1]
