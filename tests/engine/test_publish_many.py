"""Publishing into many streams at once: all of it or nothing, and once under a key.

Knows: what is refused, what a repeated key answers, for how long, and for how many.
Must never know: APIs.
"""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from engine import Engine, EngineError, entries, ids
from engine.commands.types import IdempotencyKey, Trim, XAdd, XGroupCreate, XSetId
from engine.commands.weir_commands import EnsureStream, Publish
from engine.dedup import ANSWER_AGE_MS_MAX, ANSWERS_MAX
from engine.parts.keeping import Retention
from engine.replies import Published
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock
from tests.engine.house import House, adding, id_of, state


def key(name: str = "k", body: bytes = b"1") -> IdempotencyKey:
    return IdempotencyKey(name, body)


def part(stream: str, count: int = 1, **more: Any) -> XAdd:
    return XAdd(stream=stream, bodies=[entries.body([("a", "1")])] * count, **more)


def given(published: Published) -> dict[str, list[str]]:
    return {stream: [ids.format(one) for one in added.ids] for stream, added in published.streams}


def test_many_streams_get_theirs_in_one_frame(house: House) -> None:
    """Each its consecutive IDs of one reading of the clock; streams that are missing are made."""
    house.run(adding("b", f"{house.now_ms}-4"))
    frames = len(house.payloads)
    published = house.published(Publish(parts=[part("a", 2), part("b", 2)]))
    now = house.now_ms
    assert given(published) == {"a": [f"{now}-0", f"{now}-1"], "b": [f"{now}-5", f"{now}-6"]}
    assert not published.duplicate
    assert len(house.payloads) == frames + 1
    assert set(house.turn.signalled) == {"a", "b"}
    assert house.turn.auto_ms == now


BAD = {
    "an ID that is too small": (part("z", ids=[id_of("1-0")]), "id_not_increasing"),
    "an ID of zero": (part("z", ids=[0]), "id_not_increasing"),
    "a stream that must be there": (part("none", mkstream=False), "no_stream"),
    "another last ID than expected": (part("z", expected_last_id=id_of("4-0")), "last_id_mismatch"),
    "no IDs left": (part("full"), "stream_exhausted"),
    "a second of two IDs that does not ascend": (part("z", 2, ids=[id_of("9-0")] * 2), "id_not_increasing"),
    "a stream that occurs twice": (part("first"), "invalid"),
}


@pytest.mark.parametrize("why", BAD)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_refused_part_refuses_all(house: House, why: str, place: int) -> None:
    """Whichever part it is: nothing is stored in any stream, no stream is made, and the key stays free."""
    house.fill("z", 5)
    house.fill("full", 1)
    house.run(XSetId(stream="full", last_id=ids.ID_MAX))
    bad, code = BAD[why]
    parts = [part("first"), part("second", trim=Trim(maxlen=0))]
    parts.insert(place, bad)
    assert house.refused(Publish(parts=parts, idempotency=key())).code == code
    assert set(house.keyspace.keys) == {"z", "full"}
    assert not house.keyspace.answers
    good = Publish(parts=[part("first")], idempotency=key(body=b"2"))
    assert not house.published(good).duplicate


def test_each_part_trims_and_keeps_as_it_would_alone(house: House) -> None:
    house.run(EnsureStream(stream="kept", retention=Retention(max_len=100)))
    house.fill("kept", 250)
    house.fill("s", 4)
    house.run(XGroupCreate(stream="s", group="g", start=0))
    house.published(Publish(parts=[part("s", trim=Trim(maxlen=2)), part("kept")]))
    assert len(house.live("s")) == 2
    assert 100 <= len(house.live("kept")) < 200


@pytest.mark.parametrize("again", [None, House.restart, House.rewrite])
def test_a_repeated_key_answers_as_the_first_time(house: House, again: Any) -> None:
    """Nothing is stored again, over a restart too; `duplicate` says so."""
    asked = Publish(parts=[part("a", 2), part("b", ids=[id_of("7-3")])], idempotency=key())
    first = house.published(asked)
    if again is not None:
        again(house)
    house.pass_ms(ANSWER_AGE_MS_MAX)
    before = state(house.keyspace)
    second = house.published(asked)
    assert second.duplicate
    assert given(second) == given(first)
    assert state(house.keyspace) == before


def test_a_repeated_key_is_answered_when_a_stream_is_gone(house: House) -> None:
    """The answer is the first one's, even if the streams are gone."""
    asked = Publish(parts=[part("a"), part("b", mkstream=False)], idempotency=key())
    house.fill("b", 1)
    first = house.published(asked)
    house.call("DEL", "a", "b")
    assert given(house.published(asked)) == given(first)
    assert not house.keyspace.keys


@pytest.mark.parametrize("gone_before", [False, True])
def test_a_key_is_forgotten_with_everything(house: House, *, gone_before: bool) -> None:
    """By FLUSHALL, as those of single streams: what it was answered for is gone."""
    asked = Publish(parts=[part("a")], idempotency=key())
    house.published(asked)
    if gone_before:
        house.call("DEL", "a")
    house.call("FLUSHALL")
    house.restart()
    assert not house.published(asked).duplicate
    assert len(house.live("a")) == 1


def test_a_key_with_another_body_is_refused(house: House) -> None:
    house.published(Publish(parts=[part("a")], idempotency=key()))
    refusal = house.refused(Publish(parts=[part("a")], idempotency=key(body=b"2")))
    assert refusal.code == "idempotency_mismatch"
    house.restart()
    assert house.refused(Publish(parts=[], idempotency=key(body=b"2"))).code == "idempotency_mismatch"


def test_a_key_is_forgotten_after_a_day(house: House) -> None:
    """A millisecond beyond it the same request is a new one, with any body, and the key begins anew."""
    house.published(Publish(parts=[part("a")], idempotency=key()))
    house.pass_ms(ANSWER_AGE_MS_MAX + 1)
    assert not house.published(Publish(parts=[part("a")], idempotency=key(body=b"2"))).duplicate
    assert len(house.live("a")) == 2
    assert house.refused(Publish(parts=[], idempotency=key())).code == "idempotency_mismatch"
    house.pass_ms(ANSWER_AGE_MS_MAX + 1)
    house.published(Publish(parts=[part("a")], idempotency=key("other")))
    assert set(house.keyspace.answers) == {"other"}, "what is forgotten is not held either"


@pytest.mark.no_cover
def test_so_many_keys_are_kept(house: House) -> None:
    """The oldest goes when there is one too many."""
    house.published(Publish(parts=[part("a")], idempotency=key("first")))
    for number in range(ANSWERS_MAX - 1):
        house.published(Publish(parts=[], idempotency=key(f"k{number}")))
    assert house.published(Publish(parts=[part("a")], idempotency=key("first"))).duplicate
    house.published(Publish(parts=[], idempotency=key("last")))
    assert len(house.keyspace.answers) == ANSWERS_MAX
    assert not house.published(Publish(parts=[part("a")], idempotency=key("first"))).duplicate


def test_keys_of_many_streams_and_of_one_are_apart(house: House) -> None:
    house.published(Publish(parts=[part("a")], idempotency=key()))
    assert not house.added(part("a", idempotency=key(body=b"2"))).duplicate


@pytest.mark.parametrize(("streams", "entries_each"), [(1_500, 1), (1_000, 10)])
def test_a_publication_is_as_large_as_one_turn_allows(house: House, streams: int, entries_each: int) -> None:
    """One part more, and nothing of it is stored."""
    parts = [part(f"s{number}", entries_each) for number in range(streams)]
    assert house.refused(Publish(parts=[*parts, part("more", 5_000)])).code == "invalid"
    assert not house.keyspace.keys
    assert len(house.published(Publish(parts=parts)).streams) == streams


async def test_a_refusal_waits_for_what_it_tells() -> None:
    """That the key was used must not be said before that is on disk, though it was for other streams."""
    engine = Engine.open(None, clock=HandClock(), fsync="always")
    result: list[str] = []

    async def publish(name: str, body: bytes) -> None:
        with suppress(EngineError):
            await reply_to(engine, Publish(parts=[part(name)], idempotency=key(body=body)))
        result.append(name)

    await asyncio.gather(publish("a", b"1"), publish("b", b"2"))
    assert result == ["a", "b"]
    await engine.close()
