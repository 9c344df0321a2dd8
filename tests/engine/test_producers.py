"""Publishing in chunks: each is stored once, in the epochs of its producer; an older epoch is stale.

Knows: what is remembered, for how long, through restarts and rewrites. Must never know: APIs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import dedup, entries
from engine.commands.types import FlushAll, XAdd
from engine.commands.weir_commands import Chunk, Publish
from engine.records.payload import encode
from engine.records.snapshot import Capture
from engine.replies import Published, Republished
from tests import halves
from tests.engine.house import House, replayed, state
from tests.engine.images import image


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """An empty house, whose limits hold to the end. Then everything agrees with itself, and nothing would be
    lost by a restart.
    """
    house = House()
    yield house
    house.check()


def chunk(epoch: int, number: int, producer: str = "p", *, streams: tuple[str, ...] = ("s",)) -> Publish:
    bodies = [entries.body([("n", f"{producer}/{epoch}/{number}")])] * 2
    parts = [XAdd(stream=stream, bodies=bodies) for stream in streams]
    return Publish(parts=parts, chunk=Chunk(producer, epoch, number))


def publish(house: House, command: Publish) -> tuple[bool, list[tuple[str, int, int, int]]]:
    """Whether it was stored before, and what each stream got."""
    reply = house.run(command)
    if isinstance(reply, Republished):
        return True, [(one.stream, one.first_id, one.last_id, one.count) for one in reply.streams]
    assert isinstance(reply, Published)
    return False, [(name, one.ids[0], one.ids[-1], len(one.ids)) for name, one in reply.streams]


def test_a_chunk_is_stored_once_and_answered_twice(house: House) -> None:
    """With the same IDs, over all its streams, in one frame; also when the streams have gone on."""
    first = publish(house, chunk(0, 0, streams=("a", "b")))
    assert (len(house.payloads), first[0]) == (1, False)
    publish(house, chunk(0, 1, streams=("a",)))
    assert publish(house, chunk(0, 0, streams=("a", "b"))) == (True, first[1])
    assert len(house.payloads) == 2
    house.call("DEL", "a", "b")
    assert publish(house, chunk(0, 0, streams=("a", "b"))) == (True, first[1])
    assert house.keyspace.keys == {}


@pytest.mark.parametrize("gone_before", [False, True])
def test_who_removes_everything_removes_the_memory_of_it(house: House, *, gone_before: bool) -> None:
    """A chunk that comes again is stored again, in any epoch, also after a restart; one that is held by
    a snapshot stays in it.
    """
    publish(house, chunk(7, 0))
    before = image(house.keyspace)
    capture = Capture(house.keyspace)
    if gone_before:
        house.call("DEL", "s")
    house.run(FlushAll())
    assert image(replayed([encode([record]) for record in capture.records()])) == before
    assert (house.keyspace.producers.chunk_count, house.keyspace.producers.answer_bytes) == (0, 0)
    house.restart()
    assert publish(house, chunk(3, 0))[0] is False
    assert publish(house, chunk(7, 0))[0] is False


def test_a_repeated_chunk_with_other_entries_is_refused(house: House) -> None:
    """By their numbers and streams, in any order: its entries would be lost without a word. After a
    restart and in the epoch before too.
    """
    first = publish(house, chunk(1, 0, streams=("a", "b")))[1]
    publish(house, chunk(2, 0))
    body = entries.body([("n", "new")])
    others = [{"a": 2}, {"a": 2, "b": 3}, {"a": 2, "b": 2, "c": 1}, {"a": 2, "c": 2}, {}]
    for _ in range(2):
        for other in others:
            parts = [XAdd(stream=name, bodies=[body] * count) for name, count in other.items()]
            refused = house.refused(Publish(parts=parts, chunk=Chunk("p", 1, 0)))
            assert (refused.code, "chunk 0 of the producer 'p'" in refused.detail) == (
                "idempotency_mismatch",
                True,
            )
        assert publish(house, chunk(1, 0, streams=("b", "a"))) == (True, first)
        house.restart()


def test_the_epoch_before_is_remembered_too(house: House) -> None:
    """Numbers of epochs may have holes; of the one before that nothing is known."""
    first = publish(house, chunk(3, 0))[1]
    second = publish(house, chunk(7, 0))[1]
    assert publish(house, chunk(3, 0)) == (True, first)
    assert publish(house, chunk(7, 0)) == (True, second)
    publish(house, chunk(8, 5))
    assert publish(house, chunk(7, 0)) == (True, second)
    refused = house.refused(chunk(3, 0))
    assert (refused.code, refused.members["epoch"]) == ("stale_epoch", 8)


def test_an_older_epoch_stores_nothing_new(house: House) -> None:
    """A producer that publishes in it was replaced; another producer is not concerned."""
    publish(house, chunk(1, 0))
    publish(house, chunk(2, 0))
    for epoch in (0, 1):
        assert house.refused(chunk(epoch, 1)).code == "stale_epoch"
    assert publish(house, chunk(1, 1, "q"))[0] is False


def test_a_refused_chunk_may_come_again(house: House) -> None:
    """Nothing of it was stored, and its epoch has not begun."""
    body = entries.body([("a", "1")])
    wrong = Publish(
        parts=[XAdd(stream="s", bodies=[body]), XAdd(stream="t", bodies=[body], ids=[0])],
        chunk=Chunk("p", 9, 0),
    )
    assert house.refused(wrong).code == "id_not_increasing"
    assert publish(house, chunk(1, 0))[0] is False


def test_chunks_survive_a_restart_and_a_rewrite(house: House) -> None:
    """The answers of both epochs, and who published longest ago."""
    answers = [publish(house, chunk(epoch, number, "p"))[1] for epoch in (1, 2) for number in (0, 1)]
    publish(house, chunk(5, 0, "q"))
    for survive in (house.restart, house.rewrite):
        survive()
        again = [publish(house, chunk(epoch, number)) for epoch in (1, 2) for number in (0, 1)]
        assert again == [(True, one) for one in answers]
        assert list(house.keyspace.producers.producers) == ["p", "q"]
        assert house.refused(chunk(4, 0, "q")).code == "stale_epoch"


def test_a_snapshot_is_of_one_moment(house: House) -> None:
    """Chunks that come while it is read are not in it; the log behind it has them."""
    for number in range(3):
        publish(house, chunk(1, number))
    publish(house, chunk(1, 0, "q"))
    before = image(house.keyspace)
    capture = Capture(house.keyspace)
    frames = len(house.payloads)
    publish(house, chunk(1, 3))
    publish(house, chunk(2, 0))
    publish(house, chunk(3, 0))
    publish(house, chunk(1, 0, "new"))
    base = [encode([record]) for record in capture.records()]
    assert image(replayed(base)) == before
    assert image(replayed([*base, *house.payloads[frames:]])) == image(house.keyspace)


def test_who_published_longest_ago_is_forgotten_first(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit of producers; then its chunks are stored as new ones."""
    monkeypatch.setattr(dedup, "PRODUCERS_MAX", 2)
    for name in ("p", "q", "p", "r"):
        publish(house, chunk(1, len(house.payloads), name))
    assert list(house.keyspace.producers.producers) == ["p", "r"]
    assert publish(house, chunk(1, 1, "q"))[0] is False
    assert list(house.keyspace.producers.producers) == ["r", "q"]


def test_all_chunks_together_are_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whole producers; who publishes now stays."""
    monkeypatch.setattr(dedup, "CHUNKS_MAX", 3)
    for name, number in (("p", 0), ("p", 1), ("q", 0), ("q", 1)):
        publish(house, chunk(1, number, name))
    assert (list(house.keyspace.producers.producers), house.keyspace.producers.chunk_count) == (["q"], 2)


def test_all_answers_together_are_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes, for a chunk may be of a thousand streams with long names; a restart counts the same."""
    publish(house, chunk(1, 0))
    kept = 2 * house.keyspace.producers.answer_bytes
    monkeypatch.setattr(dedup, "ANSWER_BYTES_MAX", kept)
    publish(house, chunk(2, 0))
    assert list(house.keyspace.producers.producers) == ["p"]
    publish(house, chunk(1, 0, "q", streams=("s" * 300,)))
    assert list(house.keyspace.producers.producers) == ["q"], "a producer that publishes now stays"
    publish(house, chunk(1, 0))
    assert list(house.keyspace.producers.producers) == ["p"]
    house.restart()
    assert list(house.keyspace.producers.producers) == ["p"]
    publish(house, chunk(2, 0))
    assert house.keyspace.producers.answer_bytes == kept
    publish(house, chunk(3, 0))
    assert house.keyspace.producers.answer_bytes == kept, "what an epoch took is given back"


def test_an_epoch_has_so_many_bytes_of_answers(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """More are refused, those that are stored are still answered, and the next epoch has room again."""
    first = publish(house, chunk(1, 0))[1]
    monkeypatch.setattr(dedup, "EPOCH_BYTES_MAX", house.keyspace.producers.answer_bytes + 1)
    publish(house, chunk(1, 1))
    assert "bytes of their answers" in str(house.refused(chunk(1, 2)))
    assert publish(house, chunk(1, 0)) == (True, first)
    assert publish(house, chunk(2, 0))[0] is False


def test_an_epoch_has_so_many_chunks(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """More are refused, with what to do; those that are stored are still answered."""
    monkeypatch.setattr(dedup, "EPOCH_CHUNKS_MAX", 2)
    first = publish(house, chunk(1, 0))[1]
    publish(house, chunk(1, 1))
    assert house.refused(chunk(1, 2)).code == "invalid"
    assert publish(house, chunk(1, 0)) == (True, first)
    assert publish(house, chunk(2, 0))[0] is False


@dataclass
class ProducerModel:
    """What a producer is answered, in a simple form."""

    epochs: list[int] = field(default_factory=list)
    stored: dict[tuple[int, int], object] = field(default_factory=dict)


@settings(max_examples=halves.some(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from("pq")), max_size=40), st.data()
)
def test_any_order_of_chunks_is_answered_as_by_the_model(
    calls: list[tuple[int, int, str]], data: st.DataObject
) -> None:
    """Restarts and rewrites between them change nothing."""
    house = House()
    models = {"p": ProducerModel(), "q": ProducerModel()}
    for epoch, number, name in calls:
        model = models[name]
        if model.epochs and epoch < model.epochs[-1] and (epoch, number) not in model.stored:
            assert house.refused(chunk(epoch, number, name)).code == "stale_epoch"
            continue
        duplicate, answer = publish(house, chunk(epoch, number, name))
        assert duplicate == ((epoch, number) in model.stored)
        if duplicate:
            assert answer == model.stored[epoch, number]
            continue
        model.stored[epoch, number] = answer
        if epoch not in model.epochs:
            model.epochs.append(epoch)
        kept = model.epochs[-2:]
        model.stored = {key: one for key, one in model.stored.items() if key[0] in kept}
        data.draw(st.sampled_from([lambda: None, lambda: None, house.restart, house.rewrite]))()
    assert state(replayed(house.payloads)) == state(house.keyspace)
    house.check()
