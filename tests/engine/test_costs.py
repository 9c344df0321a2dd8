"""What commands cost in large streams: next to nothing more than in small ones.

Knows: how large a stream, a pending list and a crowd of groups may become.
Must never know: how the engine does it. Costs are counted in calls: no busy machine changes them.
"""

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Self

import pytest

from engine import entries, ids
from engine.commands import types
from engine.commands.base import Command
from engine.commands.execution import Blocked, is_ready
from engine.replies import GroupRead, PendingList, Trimmed
from engine.sealed import DECODED_BYTES_MAX, DECODED_NODES_MAX, PLAIN_NODES_MAX
from tests.engine.house import House

BODY = entries.body([("a", "1")])


class Calls:
    """How many calls there are between entering and leaving, functions of the interpreter's own included."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, _frame: FrameType, event: str, _arg: object) -> None:
        self.count += event in ("call", "c_call")


class Unpackings(Calls):
    """How many nodes are unpacked meanwhile."""

    def _count(self, _frame: FrameType, event: str, called: object) -> None:
        self.count += event == "c_call" and getattr(called, "__name__", "") == "decompress"


def cost(house: House, command: Command) -> int:
    """The calls that a command takes."""
    with Calls() as calls:
        house.run(command)
    return calls.count


def unpackings(house: House, command: Command) -> int:
    """The nodes that a command unpacks."""
    with Unpackings() as unpacked:
        house.run(command)
    return unpacked.count


def id_at(number: int) -> int:
    return number << 64


def filled(count: int, groups: Sequence[str] = ()) -> House:
    """A stream of this number of entries, all pending in each of the groups."""
    house = House()
    house.run(
        types.XAdd(stream="s", bodies=[BODY] * count, ids=[id_at(number) for number in range(1, count + 1)])
    )
    for group in groups:
        house.run(types.XGroupCreate(stream="s", group=group, start=0))
        house.run(types.XReadGroup(group=group, consumer="c", streams=[("s", types.Cursor.NEW)]))
    return house


def pack(house: House) -> None:
    """Compress what has gone cold, as the gateway does in a thread."""
    for text in house.keyspace.cold:
        text.keep_packed(text.compress())
    house.keyspace.cold.clear()


def appending(number: int, trim: types.Trim | None = None) -> types.XAdd:
    return types.XAdd(stream="s", bodies=[BODY], ids=[id_at(number)], trim=trim)


@pytest.mark.parametrize("count_pending", [False, True])
@pytest.mark.parametrize("hole", [False, True])
def test_trimming_on_append_costs_the_same_however_much_is_pending(
    *, hole: bool, count_pending: bool
) -> None:
    """Also above a deleted entry, and where the answer says how many of the pending are concerned."""
    costs = []
    for count in (1_000, 100_000):
        house = filled(count, ["g"])
        if hole:
            house.run(types.XDel(stream="s", ids=[id_at(count - 5)]))
        trim = types.Trim(maxlen=count - 2, count_pending=count_pending)
        house.run(appending(count + 1, trim))
        costs.append(cost(house, appending(count + 2, trim)))
    assert costs[1] <= costs[0] * 3, costs


def test_a_dry_run_over_holes_looks_at_nodes_rather_than_at_each_pending_entry() -> None:
    """10 000 pending entries below a deleted one: finding each of them by itself takes more."""
    house = filled(10_000, ["g"])
    house.run(types.XDel(stream="s", ids=[id_at(9_999)]))
    trim = types.XTrim(stream="s", trim=types.Trim(maxlen=0, count_pending=True), dry_run=True)
    assert house.of(Trimmed, trim).pending_affected == 9_999
    assert cost(house, trim) < 10_000 * 8


@pytest.mark.parametrize("refs", [types.Refs.ACKED, types.Refs.DELETE])
def test_trimming_with_regard_to_references_does_not_ask_each_group_about_each_entry(
    refs: types.Refs,
) -> None:
    """1 000 groups and 2 000 entries: two million questions, were they asked one by one."""
    house = filled(2_000)
    for number in range(1_000):
        house.run(types.XGroupCreate(stream="s", group=f"g{number}", start=id_at(2_000) if number else 0))
    house.run(types.XReadGroup(group="g0", consumer="c", streams=[("s", types.Cursor.NEW)]))
    left = 2_000 if refs is types.Refs.ACKED else 0
    assert cost(house, types.XTrim(stream="s", trim=types.Trim(maxlen=0, refs=refs))) < 500_000
    assert house.key("s").stream.length == left


@pytest.mark.parametrize("refs", [types.Refs.ACKED, types.Refs.DELETE])
def test_deleting_with_regard_to_references_does_not_ask_each_group_about_each_entry(
    refs: types.Refs,
) -> None:
    """1 000 groups and 500 entries: half a million questions, were they asked one by one."""
    house = filled(500)
    for number in range(1_000):
        house.run(types.XGroupCreate(stream="s", group=f"g{number}", start=id_at(500) if number else 0))
    house.run(types.XReadGroup(group="g0", consumer="c", streams=[("s", types.Cursor.NEW)]))
    wanted = [id_at(number) for number in range(1, 501)]
    assert cost(house, types.XDelEx(stream="s", ids=wanted, refs=refs)) < 100_000
    assert house.key("s").stream.length == (500 if refs is types.Refs.ACKED else 0)


def test_readers_that_wait_for_claims_share_one_look_at_what_is_gone() -> None:
    """900 pending entries without their entry: each of 100 waiting readers would walk over them."""
    house = filled(1_000, ["g"])
    house.run(types.XTrim(stream="s", trim=types.Trim(maxlen=100)))
    waiting = types.XReadGroup(
        group="g", consumer="d", streams=[("s", types.Cursor.NEW)], claim_min_idle_ms=60_000, block_ms=1_000
    )
    blocked = Blocked(waiting, ("s",), 1_000)
    with Calls() as calls:
        for _ in range(100):
            assert not is_ready(house.keyspace, blocked, house.now_ms)
    assert calls.count < 20_000


def test_keeping_an_exact_length_looks_for_one_place_in_the_first_node() -> None:
    """It does not read the IDs of a node's hundred entries again for each entry appended."""
    house = filled(1_000)
    for number in range(1_001, 1_031):
        house.run(appending(number, types.Trim(maxlen=1_000)))
    plain, exact = cost(house, appending(1_031)), cost(house, appending(1_032, types.Trim(maxlen=1_001)))
    assert exact - plain < 200, (plain, exact)


@pytest.mark.parametrize("hole", [False, True])
@pytest.mark.parametrize(
    ("command", "calls_max"),
    [
        (types.XRange(stream="s", start=0, end=ids.ID_MAX, count=2), 150),
        (types.XRange(stream="s", start=id_at(30), end=ids.ID_MAX, count=2), 150),
        (types.XRange(stream="s", start=0, end=id_at(230), count=2, reverse=True), 200),
        (types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)], count=2), 300),
    ],
    ids=["from its start", "from within a node", "backwards", "of a group"],
)
def test_a_few_entries_of_a_sealed_node_take_no_look_at_the_others(
    command: Command, calls_max: int, *, hole: bool
) -> None:
    """To read the IDs of all its hundred takes 200 calls."""
    house = filled(1_000)
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    if hole:
        house.run(types.XDel(stream="s", ids=[id_at(20), id_at(220)]))
    # The node is taken apart, and its texts are kept.
    house.run(command)
    assert cost(house, command) < calls_max


def test_describing_a_stream_does_not_walk_its_nodes() -> None:
    """How much memory it takes included, packed nodes as they are, from 10 nodes to 1 000."""
    costs = []
    for count in (1_000, 100_000):
        house = filled(count)
        pack(house)
        house.run(types.XInfoStream(stream="s"))
        costs.append(cost(house, types.XInfoStream(stream="s")))
    assert costs[1] <= costs[0] * 1.2, costs


def test_nodes_taken_apart_are_held_for_few_streams() -> None:
    """However many are looked at; the bytes are those of the texts, so large ones are fewer still."""
    house = House()
    large = entries.body([("a", "1" * 1_000_000)])
    for number in range(20):
        house.run(types.XAdd(stream=f"s{number}", bodies=[large] * 3, ids=[id_at(one) for one in (1, 2, 3)]))
        house.run(types.XRange(stream=f"s{number}", start=0, end=ids.ID_MAX, count=2, reverse=True))
    cache = house.key("s0").stream.node_cache
    assert cache is house.key("s19").stream.node_cache
    assert 1 <= len(cache) <= DECODED_BYTES_MAX / 1_000_000
    for number in range(200):
        house.run(types.XAdd(stream=f"t{number}", bodies=[BODY] * 101, ids=[id_at(n) for n in range(1, 102)]))
        house.run(types.XRange(stream=f"t{number}", start=0, end=ids.ID_MAX, count=2, reverse=True))
    assert len(cache) == DECODED_NODES_MAX


def test_readers_of_the_same_history_share_its_unpacked_nodes() -> None:
    """Up to a number of bytes; one that is larger stays until the next one comes."""
    house = filled(20_000)
    pack(house)
    cache, ranged = (
        house.key("s").stream.node_cache,
        types.XRange(stream="s", start=0, end=ids.ID_MAX, count=1_000),
    )
    first, again = unpackings(house, ranged), unpackings(house, ranged)
    assert (first, again) == (10, 0)
    few_bytes = cache.plain_bytes
    large = entries.body([("a", "1" * (DECODED_BYTES_MAX + 1))])
    house.run(types.XAdd(stream="s", bodies=[large] * 6))
    pack(house)
    house.run(types.XRange(stream="s", start=0, end=ids.ID_MAX))
    assert cache.plain_bytes > DECODED_BYTES_MAX
    assert unpackings(house, ranged) == 10
    assert cache.plain_bytes == few_bytes


@pytest.mark.parametrize("nodes", [PLAIN_NODES_MAX - 1, PLAIN_NODES_MAX, PLAIN_NODES_MAX + 1])
def test_unpacked_nodes_held_stay_bounded_where_nodes_are_small(nodes: int) -> None:
    """Four of the newest are not packed, and one is open."""
    house = House()
    house.run(types.ConfigSet(values=(("stream-node-max-entries", "1"),)))
    house.run(
        types.XAdd(
            stream="s", bodies=[BODY] * (nodes + 5), ids=[id_at(n) for n in range(10_000, 10_005 + nodes)]
        )
    )
    pack(house)
    for _ in range(2):
        house.run(types.XRange(stream="s", start=0, end=ids.ID_MAX))
        held_bytes = house.key("s").stream.node_cache.plain_bytes
        assert held_bytes == min(nodes, PLAIN_NODES_MAX) * len(entries.encode(id_at(10_000), BODY))


def test_bytes_held_of_unpacked_nodes_stay_bounded() -> None:
    """A walk over everything leaves the last nodes; one that is repacked is held no more."""
    house, body = House(), entries.body([("a", "1" * 60)])
    house.run(
        types.XAdd(stream="s", bodies=[body] * 60_000, ids=[id_at(number) for number in range(1, 60_001)])
    )
    pack(house)
    cache = house.key("s").stream.node_cache
    house.run(types.XRange(stream="s", start=0, end=ids.ID_MAX))
    assert DECODED_BYTES_MAX - 12_000 < cache.plain_bytes <= DECODED_BYTES_MAX
    before = cache.plain_bytes
    house.run(types.XDel(stream="s", ids=[id_at(number) for number in range(59_401, 59_460)]))
    assert cache.plain_bytes < before


def test_a_walk_entry_by_entry_over_cold_nodes_unpacks_each_once() -> None:
    """Also when walks over several streams take turns: no more calls than over nodes never packed."""
    costs = []
    for packed in (False, True):
        house = House()
        for number in range(10):
            new_ids = [id_at(one) for one in range(1, 1_001)]
            house.run(types.XAdd(stream=f"s{number}", bodies=[BODY] * 1_000, ids=new_ids))
        if packed:
            pack(house)
        with Calls() as calls:
            for place in range(1, 101):
                for number in range(10):
                    house.run(
                        types.XRange(stream=f"s{number}", start=id_at(place), end=id_at(place), count=1)
                    )
        costs.append(calls.count)
    assert costs[1] <= costs[0] * 1.05, costs


def test_entries_deleted_one_by_one_unpack_their_cold_node_once() -> None:
    """As by consumers that delete what they are done with; the next node is unpacked when its turn comes."""
    house = filled(1_000)
    pack(house)
    with Unpackings() as unpackings:
        for place in (10, 11, 12, 110, 111):
            assert house.run(types.XDel(stream="s", ids=(id_at(place),))) == 1
    assert unpackings.count == 2


def test_keeping_an_exact_length_costs_about_as_much_as_the_append() -> None:
    """In the middle of a node, and on the average over nodes that end and are packed anew."""
    house = filled(10_000)
    pack(house)
    costs = []
    for trim in (None, types.Trim(maxlen=10_000)):
        first = house.key("s").stream.length + 1
        with Calls() as calls:
            for number in range(first, first + 500):
                house.run(appending(number + (0 if trim is None else 500), trim))
        costs.append(calls.count)
        if trim is None:
            house.run(types.XTrim(stream="s", trim=types.Trim(maxlen=10_000)))
    assert costs[1] <= costs[0] * 2.5, costs


@pytest.mark.parametrize("consumer", [None, "c"])
@pytest.mark.parametrize("idle", [0, 5])
def test_a_look_for_idle_entries_costs_the_same_however_many_others_are_pending(
    consumer: str | None, idle: int
) -> None:
    """None is idle, or those with the highest IDs are: the others are passed over block by block."""
    costs = []
    for count in (10_000, 100_000):
        house = filled(count + idle)
        house.run(types.XGroupCreate(stream="s", group="g", start=0))
        while house.of(
            GroupRead, types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)])
        ).streams:
            pass
        house.pass_ms(1_000)
        group = house.key("s").groups["g"]
        for entry_id, _ in group.pending.page(0, count):
            group.own_run([entry_id], group.consumers["c"], house.now_ms, [1])
        look = types.XPendingRange(
            stream="s", group="g", start=0, end=ids.ID_MAX, count=9, min_idle_ms=1_000, consumer=consumer
        )
        found = house.of(PendingList, look)
        assert [one.id for one in found.entries] == [id_at(count + 1 + place) for place in range(idle)]
        costs.append(cost(house, look))
    # Some calls for each block of 512.
    assert costs[1] <= costs[0] + 90_000 // 512 * 40, costs
