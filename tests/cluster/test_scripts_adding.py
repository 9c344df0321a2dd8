"""XADD as a script: all or nothing, idempotent, with the IDs and refusals of the engine in this process."""

import time

import pytest

from engine import entries, ids
from engine.cluster import scripts
from engine.cluster.keys import auxiliary_key
from engine.cluster.scripts import FIELDS_MAX, WriteOrigin
from engine.commands.types import AutoSequence, IdempotencyKey, Trim, XAdd
from engine.commands.weir_commands import AddEach
from engine.errors import EngineError
from tests.cluster.beside import GENERATION, Beside

BODIES = [entries.body([("n", str(number))]) for number in range(5)]
FAR_MS = 9_999_999_999_999


def at(ms: int, sequence: int = 0) -> int:
    return ids.make(ms, sequence)


def add(*given: object, stream: str = "s", **options: object) -> XAdd:
    """XADD of one entry for each of the IDs; without any, of two by the clock."""
    bodies = BODIES[: len(given) or 2]
    return XAdd(stream=stream, bodies=bodies, ids=given, **options)  # type: ignore[arg-type]


def test_entries_are_stored_as_they_were_sent(beside: Beside) -> None:
    """Bytes, repeated names, metadata, no field at all but empty names."""
    bodies = [
        entries.body([("a", "1"), ("b", b"\xff\x00")]),
        entries.body([("a", "1"), ("a", "2")]),
        entries.with_meta(entries.body([("", "")]), {"traceparent": "00-1"}),
        entries.body([("weir/meta", "no JSON")]),
        entries.body([("ü", '"\\\n')]),
    ]
    beside.add(XAdd(stream="ü {x}", bodies=bodies, ids=[at(5, n) for n in range(5)]))
    beside.add(XAdd(stream="ü {x}", bodies=bodies[:1]))


def test_ids_by_the_clock_follow_one_another(beside: Beside) -> None:
    """Also behind a last ID that is ahead of the clock, and where the sequence ends."""
    first = beside.add(add()).ids
    assert list(first) == [first[0], first[0] + 1]
    beside.add(add(None))
    beside.add(add(at(FAR_MS, ids.SEQUENCE_MAX - 1)))
    assert list(beside.add(add()).ids) == [at(FAR_MS, ids.SEQUENCE_MAX), at(FAR_MS + 1, 0)]


@pytest.mark.parametrize(
    "given",
    [
        (5 << 64 | 1, 5 << 64 | 2, 5 << 64 | 3),
        (5 << 64 | 1, 5 << 64 | 1),
        (5 << 64 | 2, 5 << 64 | 1),
        (AutoSequence(5), AutoSequence(5), AutoSequence(6)),
        (AutoSequence(5), AutoSequence(4)),
        (AutoSequence(0),),
        (0,),
        (1, 0),
        (at(5, ids.SEQUENCE_MAX), AutoSequence(5)),
        (at(5, ids.SEQUENCE_MAX), AutoSequence(6)),
        (at(9, ids.SEQUENCE_MAX), at(10)),
        (at(9_007_199_254_740_992, 1), at(9_007_199_254_740_993, 0)),
        (at(5, 9_007_199_254_740_993), at(5, 9_007_199_254_740_992)),
        (at(5, 9_007_199_254_740_991), AutoSequence(5), AutoSequence(5)),
        (at(5, 19_999_999_999_999_999), AutoSequence(5)),
        (ids.ID_MAX, None),
        (ids.ID_MAX, at(5)),
        (ids.ID_MAX - 1, None),
        (at(FAR_MS), None, None),
        (at(FAR_MS, ids.SEQUENCE_MAX), None),
    ],
)
def test_given_ids_ascend_or_nothing_is_stored(beside: Beside, given: tuple[object, ...]) -> None:
    """To the last digit, where Lua's numbers have lost theirs."""
    beside.add(add(*given))
    beside.add(add(*given))
    beside.add(add(at(5, 7)))
    beside.add(add(None, stream="t"))


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_a_run_of_plain_ones_takes_the_ids_that_are_left(beside: Beside, left: int) -> None:
    """Those for which there are none are refused one by one; a publish of as many is refused as a whole."""
    beside.add(add(ids.ID_MAX - left))
    beside.add(add(None, None, None, None))
    beside.both(scripts.add_each, AddEach(stream="s", bodies=BODIES[:2]))
    beside.same_entries("s")
    beside.both(scripts.add_each, AddEach(stream="new", bodies=BODIES[:2]))


@pytest.mark.parametrize("expected", [0, at(5), at(5, 1), at(5, 2)])
def test_a_last_id_that_is_expected(beside: Beside, expected: int) -> None:
    """0-0 is a stream that is empty or missing, also one that once had entries."""
    beside.add(add(at(5, 1), expected_last_id=0))
    beside.add(add(at(6), expected_last_id=expected))
    beside.add(add(at(7), trim=Trim(maxlen=0)))
    beside.add(add(at(8), expected_last_id=expected))


def test_a_missing_stream_that_is_not_to_be_made(beside: Beside) -> None:
    """The reply is none, and nothing is left."""
    assert beside.add(add(mkstream=False)) is None
    assert beside.server.call("DBSIZE") == 0
    beside.add(add(at(1)))
    beside.add(add(at(2), mkstream=False))


@pytest.mark.parametrize("given", [(), (at(5),), (at(5), at(7)), (AutoSequence(5),)])
def test_an_idempotency_key_is_answered_as_the_first_time(beside: Beside, given: tuple[int, ...]) -> None:
    """Another body under the key is refused; so is nothing else."""
    first = IdempotencyKey("a key", b"\x00 \n digest")
    beside.add(add(*given, idempotency=first))
    assert beside.add(add(*given, idempotency=first, expected_last_id=3)).duplicate
    refusal = beside.add(add(at(9), idempotency=IdempotencyKey("a key", b"\x00 \n other")))
    assert refusal.code == "idempotency_mismatch"
    beside.add(add(at(9), idempotency=IdempotencyKey("another", b"\x00 \n digest")))
    beside.add(add(at(9), stream="t", idempotency=first))


def test_what_is_refused_leaves_its_key_unused(beside: Beside) -> None:
    """It was not done."""
    key = IdempotencyKey("k", b"d")
    beside.add(add(at(5)))
    beside.add(add(at(4), idempotency=key))
    beside.add(add(at(6), idempotency=key))


def test_a_stream_that_is_made_again_has_no_old_answers(beside: Beside) -> None:
    """Also where another program removed the first one."""
    key = IdempotencyKey("k", b"d")
    beside.add(add(at(5), idempotency=key))
    beside.server.call("DEL", "s")
    beside.keyspace = type(beside.keyspace)()
    beside.add(add(at(5), idempotency=key))


def test_keys_beyond_the_most_are_forgotten_oldest_first(beside: Beside) -> None:
    """One that was used again counts from its last use."""
    answers, order = (auxiliary_key("s", kind) for kind in "iq")
    keys = [IdempotencyKey(f"k {number}", b"d") for number in range(3)]
    beside.add(add(at(1), idempotency=keys[0]))
    # As if its day were over.
    beside.server.call("HSET", answers, "k 0", "5 1 d1-0")
    beside.server.call("DEL", order)
    beside.server.call("RPUSH", order, "5 k 0")
    beside.there(scripts.add, add(at(2), idempotency=keys[0]))
    beside.server.call("RPUSH", order, *(f"{number} other" for number in range(9_998)))
    beside.there(scripts.add, add(at(3), idempotency=keys[1]))
    assert beside.server.call("HEXISTS", answers, "k 0")
    beside.there(scripts.add, add(at(4), idempotency=keys[2]))
    assert not beside.server.call("HEXISTS", answers, "k 0")
    assert beside.server.call("LLEN", order) == 10_000
    assert 86_000_000 < beside.server.call("PTTL", answers) <= 86_400_001


@pytest.mark.parametrize("length", [3, 4, 0])
def test_a_trim_goes_with_the_append(beside: Beside, length: int) -> None:
    """Exactly, at each length beside the stream's."""
    beside.add(add(at(1), at(2), at(3)))
    beside.add(add(at(4), trim=Trim(maxlen=length, count_pending=True)))
    beside.add(add(at(5), trim=Trim(minid=at(4))))
    beside.add(add(at(6), trim=Trim(minid=at(5, 1), count_pending=True)))


def test_an_approximate_trim_keeps_what_it_names(beside: Beside) -> None:
    """It removes nothing while there is little to remove; then all of it."""
    many = [entries.body([("n", "")])] * 109
    beside.there(scripts.add, XAdd(stream="s", bodies=many, trim=Trim(maxlen=10, approx=True)))
    assert beside.server.call("XLEN", "s") == 109
    reply = beside.there(scripts.add, add(None, trim=Trim(maxlen=10, approx=True)))
    assert (reply.trimmed, beside.server.call("XLEN", "s")) == (100, 10)


def test_a_request_that_is_sent_again_is_done_once(beside: Beside) -> None:
    """By the gateway, which had no reply; until it says that it has one."""
    beside.origin = WriteOrigin(GENERATION, front="f", number=7, settled=6)
    first = beside.there(scripts.add, add())
    assert beside.there(scripts.add, add()) == first
    beside.origin = WriteOrigin(GENERATION, front="g", number=7, settled=6)
    assert beside.there(scripts.add, add()).ids[0] > first.ids[-1]
    beside.origin = WriteOrigin(GENERATION, front="f", number=8, settled=7)
    assert beside.there(scripts.add, add()) != first
    beside.origin = WriteOrigin(GENERATION, front="f", number=7, settled=6)
    assert beside.there(scripts.add, add()).ids[0] > first.ids[-1]
    assert beside.server.call("XLEN", "s") == 8


def test_ids_by_the_clock_stay_above_the_floor_of_another_primary(beside: Beside) -> None:
    """Its clock may be behind, and its entries may be fewer."""
    beside.origin = WriteOrigin(GENERATION, primary="one")
    beside.there(scripts.add, add())
    replicated = beside.server.call("DUMP", "s")
    before = beside.there(scripts.add, add()).ids[-1]
    beside.server.call("RESTORE", "s", 0, replicated, "REPLACE")
    beside.origin = WriteOrigin(GENERATION, primary="two")
    after = beside.there(scripts.add, add()).ids[-1]
    assert ids.ms_of(after) - ids.ms_of(before) > 9_000
    assert beside.there(scripts.add, add()).ids[0] == after + 1


def test_primaries_that_change_often_do_not_run_ahead_of_the_clock(beside: Beside) -> None:
    """The floor is ahead of the clock, not of the floor before; IDs grow all the same."""
    last = 0
    for turn in range(40):
        beside.origin = WriteOrigin(GENERATION, primary=("one", "two")[turn % 2])
        given = beside.there(scripts.add, add()).ids
        assert given[0] > last
        last = given[-1]
    assert ids.ms_of(last) - time.time() * 1000 < 15_000


def test_entries_with_too_many_fields_are_refused(beside: Beside) -> None:
    """At the most they are stored."""
    most = [(f"f{number}", "") for number in range(FIELDS_MAX + 1)]
    beside.add(XAdd(stream="s", bodies=[entries.body(most[:-1])]))
    refusal = beside.there(scripts.add, XAdd(stream="s", bodies=[BODIES[0], entries.body(most)]))
    assert isinstance(refusal, EngineError)
    assert refusal.code == "invalid"
