"""A key with a publication makes it happen once; an expected last ID makes it happen in its place.

Knows: keys per stream, for how long and how many; preconditions; how the two meet.
Must never know: APIs.
"""

from typing import Any

import pytest

from engine import entries, ids
from engine.commands.types import IdempotencyKey, ProducerKey, Trim, XAdd, XDel, XSetId, XTrim
from engine.dedup import ANSWER_AGE_MS_MAX, ANSWERS_MAX
from engine.parts.idempotence import idempotence_of
from tests.engine.house import House, id_of, state


def adding(name: str | None = "k", body: bytes = b"1", count: int = 1, **more: Any) -> XAdd:
    key = None if name is None else IdempotencyKey(name, body)
    return XAdd(stream="s", bodies=[entries.body([("a", "1")])] * count, idempotency=key, **more)


# --- keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [None, House.restart, House.rewrite])
@pytest.mark.parametrize("wanted", [[], [id_of("5-0"), id_of("7-1"), id_of("9-9")]])
def test_a_repeated_key_answers_as_the_first_time(house: House, again: Any, wanted: list[int]) -> None:
    """All IDs, in order, stored once; over a restart; also when the entries are gone by then."""
    asked = adding(count=3, ids=wanted)
    first = house.added(asked)
    house.run(XTrim(stream="s", trim=Trim(maxlen=1)))
    if again is not None:
        again(house)
    house.pass_ms(ANSWER_AGE_MS_MAX)
    before = state(house.keyspace)
    second = house.added(asked)
    assert (list(second.ids), second.duplicate, first.duplicate) == (list(first.ids), True, False)
    assert state(house.keyspace) == before


def test_a_key_with_another_body_is_refused(house: House) -> None:
    """Also after a restart; another key, or none, is another publication."""
    house.added(adding())
    assert house.refused(adding(body=b"2")).code == "idempotency_mismatch"
    house.rewrite()
    assert house.refused(adding(body=b"2")).code == "idempotency_mismatch"
    assert not house.added(adding("other", b"2")).duplicate
    assert not house.added(adding(None)).duplicate


def test_a_refused_publication_leaves_its_key_free(house: House) -> None:
    house.fill("s", 5)
    house.refused(adding(ids=[id_of("2-0")]))
    assert not house.added(adding(body=b"2", ids=[id_of("6-0")])).duplicate


def test_a_key_is_forgotten_after_a_day(house: House) -> None:
    house.added(adding())
    house.pass_ms(ANSWER_AGE_MS_MAX + 1)
    assert not house.added(adding(body=b"2")).duplicate
    assert house.refused(adding()).code == "idempotency_mismatch"
    house.pass_ms(ANSWER_AGE_MS_MAX + 1)
    house.added(adding("other"))
    assert set(idempotence_of(house.key("s")).answers) == {"other"}, "what is forgotten is not held either"


def test_a_clock_that_goes_back_forgets_nothing(house: House) -> None:
    house.added(adding())
    house.pass_ms(-2 * ANSWER_AGE_MS_MAX)
    house.added(adding("other"))
    assert house.added(adding()).duplicate
    assert house.added(adding("other")).duplicate


@pytest.mark.no_cover
def test_so_many_keys_are_kept(house: House) -> None:
    """The oldest goes when there is one too many; a key used again after that is a new one."""
    for number in range(ANSWERS_MAX):
        house.added(adding(f"k{number}"))
    assert house.added(adding("k0")).duplicate
    house.added(adding("last"))
    assert len(idempotence_of(house.key("s")).answers) == ANSWERS_MAX
    assert not house.added(adding("k0", b"2")).duplicate
    assert house.added(adding("k2")).duplicate


def test_keys_are_a_streams_own_and_go_with_it(house: House) -> None:
    house.added(adding())
    other = XAdd(stream="t", bodies=[entries.body([("a", "1")])], idempotency=IdempotencyKey("k", b"2"))
    assert not house.added(other).duplicate
    house.call("DEL", "s")
    assert not house.added(adding(body=b"3")).duplicate


def test_a_production_and_a_key_agree(house: House) -> None:
    """The producer's own table answers under a new key too."""
    producer_key = ProducerKey(b"p", b"i")
    first = house.added(adding(producer_key=producer_key))
    second = house.added(adding("other", producer_key=producer_key))
    assert (second.ids, second.duplicate) == (tuple(first.ids), True)
    assert house.info("s", "iids-duplicates") == 1


# --- the expected last ID -------------------------------------------------------------------------------


def test_it_is_the_last_id_ever_given(house: House) -> None:
    """Deleted or moved: what counts is where the next ID would begin."""
    house.fill("s", 3)
    for wrong in (0, id_of("2-0"), id_of("4-0")):
        refusal = house.refused(adding(None, expected_last_id=wrong))
        assert (refusal.code, refusal.members) == ("last_id_mismatch", {"last_id": "3-0"})
    house.run(XDel(stream="s", ids=[id_of("3-0")]))
    first = house.added(adding(None, expected_last_id=id_of("3-0")))
    house.run(XSetId(stream="s", last_id=first.ids[0] + 5))
    assert house.refused(adding(None, expected_last_id=first.ids[0])).code == "last_id_mismatch"
    house.added(adding(None, expected_last_id=first.ids[0] + 5))


def test_zero_is_an_empty_or_a_missing_stream(house: House) -> None:
    """With any former content."""
    house.added(adding(None, expected_last_id=0))
    assert house.refused(adding(None, expected_last_id=0)).code == "last_id_mismatch"
    house.run(XTrim(stream="s", trim=Trim(maxlen=0)))
    house.added(adding(None, expected_last_id=0))
    house.call("DEL", "s")
    house.added(adding(None, expected_last_id=0))


def test_a_missing_stream_has_no_other(house: House) -> None:
    refusal = house.refused(adding(None, expected_last_id=id_of("1-0")))
    assert (refusal.code, refusal.members) == ("last_id_mismatch", {"last_id": "0-0"})
    assert house.run(adding(None, expected_last_id=id_of("1-0"), mkstream=False)) is None
    assert not house.keyspace.keys


def test_a_repeated_request_is_answered_although_the_last_id_has_moved(house: House) -> None:
    """It was this very request that moved it: the client whose answer got lost learns what it did."""
    asked = adding(expected_last_id=0)
    first = house.added(asked)
    second = house.added(asked)
    assert (list(second.ids), second.duplicate) == (list(first.ids), True)
    assert house.refused(adding("other", expected_last_id=0)).code == "last_id_mismatch"
    assert house.added(adding("other", expected_last_id=first.ids[0])).ids[0] == first.ids[0] + 1
    assert ids.sequence_of(first.ids[0]) == 0
