"""Durable Streams in the engine: media types, producers that write each batch once, lifetimes that slide.

Knows: the rules, over restarts and rewrites too. Must never know: HTTP.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from engine import EngineError, entries, ids
from engine.commands import durable_commands
from engine.commands.base import Command
from engine.commands.types import (
    Copy,
    Delete,
    Expire,
    FlushAll,
    Rename,
    TimeToLive,
    XAdd,
    XDel,
    XInfoGroups,
    XLen,
)
from engine.commands.weir_commands import EnsureGroup, ExpireStreams
from engine.keyspace import Caps
from engine.parts.closing import Closed
from engine.parts.durable import (
    ORIGINS_MAX,
    PRODUCER_AGE_MS_MAX,
    PRODUCERS_MAX,
    AdvanceProducers,
    DurableStream,
    ProducerPlace,
)
from engine.records.changes import Append, Configure, Regenerate, RemoveStream, SetLifetime
from engine.records.payload import decode, encode, replay
from engine.replies import BatchesAppended, DurableAppended, DurableCreated, DurableInfo
from tests.engine.house import House, adding, everywhere, id_of, state

Again = Callable[[House], None]
# In one slot of a cluster.
F, G, H, T, X, Y = (f"{{s}}{name}" for name in "fghtxy")
_AGAIN = pytest.mark.parametrize("again", [House.check, House.restart, House.rewrite])


def body(data: str = "x") -> bytes:
    return entries.body([("data", data)])


def creating(media: str = "text/plain", **more: object) -> durable_commands.CreateDurable:
    return durable_commands.CreateDurable(**{"stream": "s", "media": media, **more})  # type: ignore[arg-type]


def appending(
    seq: int | None = None, epoch: int = 0, producer: str = "p", **more: object
) -> durable_commands.AppendDurable:
    batch = None if seq is None else durable_commands.ProducerBatch(producer, epoch, seq)
    given: dict[str, Any] = {"stream": "s", "bodies": [body()], "kind": "text/plain", "batch": batch, **more}
    return durable_commands.AppendDurable(**given)


@pytest.fixture
def made(house: House) -> House:
    """A house with a stream of text."""
    house.run(creating())
    return house


def how_far(reply: object) -> tuple[int | None, int | None, bool]:
    assert isinstance(reply, DurableAppended)
    return reply.epoch, reply.seq, reply.duplicate


# --- creating -----------------------------------------------------------------------------------------------


@_AGAIN
def test_a_stream_is_created_once(house: House, again: Again) -> None:
    """With its entries, in one frame; asked for once more it is found, and nothing is added."""
    wanted = creating(bodies=[body("a"), body("b")], config=b"c")
    first = house.of(DurableCreated, wanted)
    assert len(house.payloads) == 1
    again(house)
    second = house.of(DurableCreated, wanted)
    assert (first.created, second.created) == (True, False)
    assert second.info == first.info
    assert house.pairs("s") == [[("data", b"a")], [("data", b"b")]]


@pytest.mark.parametrize("other", [creating("text/html"), creating(config=b"other")])
def test_a_stream_that_was_made_otherwise_is_refused(
    made: House, other: durable_commands.CreateDurable
) -> None:
    assert made.refused(other).code == "stream_exists"
    assert not made.of(DurableCreated, creating("TEXT/plain; charset=utf-8")).created


def test_a_stream_of_others_is_none_of_its_own(house: House) -> None:
    """It can be described, neither created nor written."""
    house.run(adding("s", "5-0"))
    assert house.refused(creating()).code == "stream_exists"
    assert house.refused(appending()).code == "not_durable"
    assert house.of(DurableInfo, durable_commands.DescribeDurable(stream="s")).media is None
    assert house.run(durable_commands.DescribeDurable(stream="none")) is None
    assert (
        house.refused(durable_commands.AppendDurable(stream="none", bodies=[body()], kind="text/plain")).code
        == "no_stream"
    )


@everywhere
def test_others_write_what_its_readers_can_read(house: House) -> None:
    """One field, `data`; JSON into a stream of JSON; with what belongs to a trace too."""
    house.run(creating("application/json"))
    fits = entries.with_meta(body('{"a":1}'), {"traceparent": "00-1-1-00"})
    house.run(XAdd(stream="s", bodies=[fits]))
    fields = [("a", "1")], [("data", "1"), ("b", "2")], [("data", "1"), ("data", "2")]
    for wrong in (body("{"), body("NaN"), *map(entries.body, fields)):
        assert house.refused(XAdd(stream="s", bodies=[fits, wrong])).code == "invalid"
    assert house.run(XLen(stream="s")) == 1


# --- appending ----------------------------------------------------------------------------------------------


def test_what_is_appended_has_the_type_of_the_stream(made: House) -> None:
    assert made.refused(appending(kind="application/json")).code == "media_type_differs"
    assert how_far(made.run(appending())) == (None, None, False)


@_AGAIN
def test_sequences_of_writers_ascend_as_bytes(made: House, again: Again) -> None:
    made.run(appending(writer_seq=b"09"))
    again(made)
    for seq in (b"09", b"08", b""):
        assert made.refused(appending(writer_seq=seq)).code == "sequence_too_small"
    made.run(appending(writer_seq=b"10"))
    again(made)
    made.run(appending(writer_seq=b"2"))
    assert made.refused(appending(writer_seq=b"10")).code == "sequence_too_small"


@everywhere
@_AGAIN
def test_a_batch_is_stored_once(made: House, again: Again) -> None:
    """Its repetition gets how far the producer is."""
    for seq in range(3):
        assert how_far(made.run(appending(seq))) == (0, seq, False)
        again(made)
    for seq in (0, 2):
        assert how_far(made.run(appending(seq, writer_seq=b""))) == (0, 2, True)
    assert made.run(XLen(stream="s")) == 3
    assert how_far(made.run(appending(3))) == (0, 3, False)


@pytest.mark.parametrize("closes", [False, True])
def test_a_batch_its_sequence_and_the_end_are_one_frame(made: House, closes: bool) -> None:  # noqa: FBT001
    frames = len(made.payloads)
    made.run(appending(0, bodies=[body("a"), body("b")], closes=closes))
    assert len(made.payloads) == frames + 1


@pytest.mark.parametrize(("seq", "expected"), [(1, 0), (7, 0)])
def test_a_producer_begins_at_zero(made: House, seq: int, expected: int) -> None:
    refusal = made.refused(appending(seq))
    assert (refusal.code, refusal.members) == ("producer_gap", {"expected": expected, "received": seq})


@everywhere
@_AGAIN
def test_a_gap_is_refused_until_it_is_filled(made: House, again: Again) -> None:
    made.run(appending(0))
    again(made)
    assert made.refused(appending(2)).members == {"expected": 1, "received": 2}
    made.run(appending(1))
    made.run(appending(2))


@_AGAIN
def test_an_epoch_ends_the_one_before(made: House, again: Again) -> None:
    made.run(appending(0))
    assert made.refused(appending(1, epoch=1)).code == "malformed_header"
    assert how_far(made.run(appending(0, epoch=2))) == (2, 0, False)
    again(made)
    for epoch in (0, 1):
        refusal = made.refused(appending(0, epoch=epoch))
        assert (refusal.code, refusal.members) == ("producer_fenced", {"epoch": 2})
    assert how_far(made.run(appending(0, producer="other"))) == (0, 0, False)


def test_a_refused_sequence_moves_no_producer(made: House) -> None:
    made.run(appending(writer_seq=b"5"))
    assert made.refused(appending(0, writer_seq=b"4")).code == "sequence_too_small"
    assert how_far(made.run(appending(0, writer_seq=b"6"))) == (0, 0, False)


@_AGAIN
def test_a_producer_that_is_silent_for_a_week_is_forgotten(made: House, again: Again) -> None:
    made.run(appending(0, producer="old"))
    made.pass_ms(PRODUCER_AGE_MS_MAX)
    made.run(appending(0, producer="new"))
    assert how_far(made.run(appending(0, producer="old")))[2]
    made.pass_ms(1)
    made.run(appending(1, producer="new"))
    again(made)
    durable = DurableStream.of(made.key("s"))
    assert durable is not None
    assert list(durable.producers) == ["new"]
    made.check()


# --- batches of many producers


def batches(
    *batches: durable_commands.ProducerBatch, counts: Sequence[int] = (), **more: object
) -> durable_commands.AppendBatches:
    """A command of these batches, with an entry each where no counts are given."""
    counts = counts or [1] * len(batches)
    bodies = [body(f"{number}") for number in range(sum(counts))]
    command = {"stream": "s", "kind": "text/plain", "batches": batches, "counts": counts, "bodies": bodies}
    return durable_commands.AppendBatches(**{**command, **more})  # type: ignore[arg-type]


def one_by_one(house: House, command: durable_commands.AppendBatches) -> list[object]:
    """The replies to its batches, each asked by itself, None for a refusal."""
    found: list[object] = []
    for batch, own in zip(command.batches, command.bodies_of_each(), strict=True):
        try:
            alone = appending(bodies=own, kind=command.kind, batch=batch)
            found.append(house.run(alone))
        except EngineError:
            found.append(None)
    return found


@_AGAIN
@pytest.mark.parametrize("seed", range(20))
def test_batches_of_many_are_as_one_behind_the_other(made: House, again: Again, seed: int) -> None:
    """Stored, repeated, out of sequence, of an epoch that has ended: each has its own reply."""
    random, other = Random(seed), House()
    other.payloads = [*made.payloads]
    other.restart()
    for _ in range(20):
        found = [
            durable_commands.ProducerBatch(
                random.choice("pqr"), random.choice([0, 0, 0, 1]), random.choice([0, 1, 1, 2, 3])
            )
            for _ in range(random.randint(1, 8))
        ]
        command = batches(*found, counts=[random.randint(1, 3) for _ in found])
        assert made.of(BatchesAppended, command).replies == one_by_one(other, command)
        again(made)
        assert state(made.keyspace) == state(other.keyspace)
        ms = random.choice([0, 1, 1_000])
        for house in (made, other):
            house.pass_ms(ms)


def test_batches_and_their_sequences_are_one_frame(made: House) -> None:
    """Of two records; and where nothing is stored, there is none."""
    command = batches(*[durable_commands.ProducerBatch(f"p{number}", 0, 0) for number in range(100)])
    made.run(command)
    assert [type(record) for record in decode(made.payloads[-1])] == [Append, AdvanceProducers]
    frames = len(made.payloads)
    again = made.of(BatchesAppended, command)
    assert len(made.payloads) == frames
    assert {how_far(reply) for reply in again.replies} == {(0, 0, True)}


FULL = XAdd(stream="s", bodies=[body()], ids=[ids.ID_MAX - 1])
NEXT = (durable_commands.ProducerBatch("p", 0, 1), durable_commands.ProducerBatch("q", 0, 0))


@pytest.mark.parametrize(
    ("before", "command", "code"),
    [
        ([appending(closes=True)], batches(*NEXT), "stream_closed"),
        ([], batches(*NEXT, kind="application/json"), "media_type_differs"),
        ([Delete(streams=["s"])], batches(*NEXT), "no_stream"),
        (
            [creating("", stream="f", fork=durable_commands.ForkPoint("s")), Delete(streams=["s"])],
            batches(*NEXT),
            "stream_gone",
        ),
        ([Delete(streams=["s"]), adding("s", "5-0")], batches(*NEXT), "not_durable"),
        ([FULL], batches(*NEXT), "stream_exhausted"),
    ],
)
def test_batches_are_refused_together_where_a_stream_takes_none_or_not_all(
    made: House, before: Sequence[Command], command: durable_commands.AppendBatches, code: str
) -> None:
    """Each can be asked by itself then: of some there may be another answer."""
    made.run(appending(0))
    for one in before:
        made.run(one)
    assert made.refused(command).code == code


def test_a_clock_that_goes_back_forgets_the_same_when_the_log_is_read(made: House) -> None:
    for ms in (0, -2 * PRODUCER_AGE_MS_MAX, PRODUCER_AGE_MS_MAX):
        made.pass_ms(ms)
        made.run(appending(0, producer=f"p{ms}"))
        made.check()


def test_of_too_many_producers_the_one_that_wrote_longest_ago_goes() -> None:
    durable = DurableStream("text/plain", None, b"")
    for number in range(PRODUCERS_MAX):
        durable.advance({f"p{number}": ProducerPlace(0, 0, 1)})
    durable.advance({"p0": ProducerPlace(0, 1, 1)})
    assert len(durable.producers) == PRODUCERS_MAX
    durable.advance({"one more": ProducerPlace(0, 0, 1), "another": ProducerPlace(0, 0, 1)})
    assert len(durable.producers) == PRODUCERS_MAX
    assert {"p1", "p2"}.isdisjoint(durable.producers)
    assert "p0" in durable.producers


# --- lifetimes ----------------------------------------------------------------------------------------------


def test_a_stream_lives_on_for_its_time_after_each_use(house: House) -> None:
    """A description is no use; what a use costs the log is one record each time that its time comes."""
    house.run(creating(ttl_ms=10_000))
    house.pass_ms(9_000)
    frames = len(house.payloads)
    for _ in range(5):
        house.run(XLen(stream="s"))
    assert len(house.payloads) == frames
    house.pass_ms(5_000)
    house.run(durable_commands.DescribeDurable(stream="s"))
    assert [type(one) for one in decode(house.payloads[-1])] == [SetLifetime]
    house.check()
    house.pass_ms(5_200)
    assert house.run(durable_commands.DescribeDurable(stream="s")) is None
    assert decode(house.payloads[-1]) == [RemoveStream("s")]
    house.check()


def test_what_is_left_of_its_life_counts_from_the_last_use(house: House) -> None:
    """Within the tenth of a second that streams share; of a time that is set nothing slides."""
    house.run(creating(ttl_ms=10_000))
    house.pass_ms(5_000)
    house.run(appending())
    assert house.run(TimeToLive(stream="s")) == 10_100
    house.run(
        durable_commands.CreateDurable(stream="t", media="text/plain", expires_at_ms=house.now_ms + 10_000)
    )
    house.pass_ms(4_000)
    house.run(durable_commands.AppendDurable(stream="t", bodies=[body()], kind="text/plain"))
    assert house.run(TimeToLive(stream="t")) == 6_000


def test_an_unused_stream_goes_by_itself(house: House) -> None:
    house.run(creating(ttl_ms=10_000))
    house.pass_ms(10_200)
    house.run(ExpireStreams())
    assert not house.keyspace.keys


def test_a_used_stream_is_looked_at_again_when_it_may_be_over(house: House) -> None:
    house.run(creating(ttl_ms=10_000))
    house.pass_ms(5_000)
    house.run(appending())
    house.pass_ms(6_000)
    house.run(ExpireStreams())
    assert house.keyspace.lifetimes.next_ms == house.now_ms + 4_100
    house.pass_ms(4_100)
    house.run(ExpireStreams())
    assert not house.keyspace.keys


def test_after_a_restart_it_lives_on_from_there(house: House) -> None:
    house.run(creating(ttl_ms=10_000))
    house.pass_ms(60_000)
    house.restart()
    house.keyspace.opened_ms = house.now_ms
    assert house.run(durable_commands.DescribeDurable(stream="s")) is not None
    house.pass_ms(10_000)
    assert house.run(durable_commands.DescribeDurable(stream="s")) is None


@pytest.mark.parametrize("after_ms", [-1, 0])
def test_a_time_that_is_set_does_not_slide(house: House, after_ms: int) -> None:
    house.run(creating(expires_at_ms=house.now_ms + 10_000))
    house.pass_ms(10_000 + after_ms)
    assert (house.run(durable_commands.DescribeDurable(stream="s")) is None) == (after_ms == 0)


# --- forks --------------------------------------------------------------------------------------------------


def forking(
    stream: str,
    source: str = "s",
    *,
    upto: int | None = None,
    beyond: int = 0,
    generation: str = "",
    **more: object,
) -> durable_commands.CreateDurable:
    fork = durable_commands.ForkPoint(source, upto, beyond, generation)
    return durable_commands.CreateDurable(**{"stream": stream, "media": "", "fork": fork, **more})  # type: ignore[arg-type]


def texts(house: House, stream: str) -> list[str]:
    return [value.decode() for ((_, value),) in house.pairs(stream)]


@pytest.fixture
def filled(house: House) -> House:
    """A stream with 1-0 to 7-0, of which 3-0 is deleted, in nodes of three."""
    house.keyspace.settings["stream-node-max-entries"] = 3
    house.payloads.append(encode([Configure("stream-node-max-entries", 3)]))
    house.run(creating())
    for number in range(1, 8):
        house.run(XAdd(stream="s", bodies=[body(f"m{number}")], ids=[id_of(f"{number}-0")]))
    house.run(XDel(stream="s", ids=[id_of("3-0")]))
    return house


@everywhere
@pytest.mark.parametrize("upto", range(8))
@_AGAIN
def test_a_fork_begins_with_the_entries_up_to_a_place(filled: House, upto: int, again: Again) -> None:
    """Under their own IDs; what comes later on either side is not seen on the other."""
    place = upto << 64
    info = filled.of(DurableCreated, forking(F, upto=place)).info
    again(filled)
    filled.run(appending())
    filled.run(durable_commands.AppendDurable(stream=F, bodies=[body("mine")], kind="text/plain"))
    kept = [f"m{number}" for number in range(1, upto + 1) if number != 3]
    assert texts(filled, F) == [*kept, "mine"]
    assert texts(filled, "s")[-1] == "x"
    assert info.last_id == place
    filled.check()


def test_what_a_fork_begins_with_is_counted(monkeypatch: pytest.MonkeyPatch, filled: House) -> None:
    """Of parts too, as that of a copy is: here its end, which other forks do not have."""
    monkeypatch.setattr(Closed, "begin_fork", lambda closed: closed)
    filled.run(appending(closes=True))
    filled.run(forking("f"))
    filled.check()


@everywhere
def test_a_fork_has_nothing_else_of_its_source(filled: House) -> None:
    """Neither groups, nor producers, nor the end."""
    filled.run(EnsureGroup(stream="s", group="g", start=0))
    filled.run(appending(0, writer_seq=b"9", closes=True))
    assert not filled.of(DurableCreated, forking(F)).info.closed
    assert filled.run(XInfoGroups(stream=F)) == []
    fork = durable_commands.AppendDurable(
        stream=F,
        bodies=[body()],
        kind="text/plain",
        writer_seq=b"1",
        batch=durable_commands.ProducerBatch("p", 0, 0),
    )
    assert how_far(filled.run(fork)) == (0, 0, False)


@pytest.mark.parametrize(("beyond", "expected"), [(1, "m1 m2 m"), (2, "m1 m2 m4")])
def test_a_fork_may_have_a_part_of_the_next_entry(filled: House, beyond: int, expected: str) -> None:
    filled.run(forking(F, upto=id_of("2-0"), beyond=beyond, bodies=[body("!")]))
    assert " ".join(texts(filled, F)) == f"{expected} !"
    assert filled.refused(forking(G, upto=id_of("2-0"), beyond=3)).code == "malformed_header"
    assert filled.refused(forking(G, beyond=1)).code == "malformed_header"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (forking(F, "none"), "no_stream"),
        (forking(F, media="text/html"), "media_type_differs"),
        (forking(F, upto=id_of("7-1")), "malformed_header"),
        (forking(F, "native"), "not_durable"),
    ],
)
def test_a_fork_that_cannot_be_is_refused(
    filled: House, command: durable_commands.CreateDurable, code: str
) -> None:
    """And holds no name: its source goes for good."""
    filled.run(adding("native", "5-0"))
    assert filled.refused(command).code == code
    filled.run(Delete(streams=["s"]))
    assert filled.run(durable_commands.DescribeDurable(stream="s")) is None


@everywhere
@_AGAIN
def test_the_name_of_a_removed_source_is_taken_until_its_last_fork_is_gone(
    filled: House, again: Again
) -> None:
    """Over several levels; for other commands there is no such stream."""
    filled.run(forking(F))
    filled.run(forking(G, F))
    filled.run(Delete(streams=["s", F]))
    again(filled)
    for name in ("s", F):
        assert filled.refused(durable_commands.DescribeDurable(stream=name)).code == "stream_gone"
        assert (
            filled.refused(
                durable_commands.AppendDurable(stream=name, bodies=[body()], kind="text/plain")
            ).code
            == "stream_gone"
        )
        assert (
            filled.refused(durable_commands.CreateDurable(stream=name, media="text/plain")).code
            == "stream_exists"
        )
        assert filled.refused(forking(H, name)).code == "stream_exists"
        assert filled.run(XLen(stream=name)) == 0
    assert len(texts(filled, G)) == 6
    filled.check()
    filled.run(Delete(streams=[G]))
    again(filled)
    assert [filled.run(durable_commands.DescribeDurable(stream=name)) for name in ("s", F, G)] == [None] * 3
    filled.check()


@everywhere
def test_forks_that_expire_let_their_source_go(filled: House) -> None:
    """Over several levels; one that expires while it has forks keeps its name taken."""
    filled.run(forking(F, ttl_ms=200))
    filled.run(forking(G, F, ttl_ms=1_500))
    filled.run(Delete(streams=["s"]))
    filled.wait_ms(400)
    for name in ("s", F):
        assert filled.refused(durable_commands.DescribeDurable(stream=name)).code == "stream_gone"
        assert filled.refused(creating(stream=name)).code == "stream_exists"
    assert len(texts(filled, G)) == 6
    filled.wait_ms(1_500)
    for name in ("s", F, G):
        assert filled.run(durable_commands.DescribeDurable(stream=name)) is None
    filled.run(creating())


def test_names_that_are_taken_count_as_streams(house: House) -> None:
    """Forks of forks whose sources are removed are as many as streams may be."""
    house.keyspace.caps = Caps(streams_max=3)
    house.run(creating())
    house.run(forking("a"))
    house.run(Delete(streams=["s"]))
    house.run(forking("b", "a"))
    house.run(Delete(streams=["a"]))
    assert "streams_max" in house.refused(forking("c", "b")).detail
    house.run(Delete(streams=["b"]))
    house.run(creating())


@everywhere
@_AGAIN
def test_forks_follow_their_source_to_another_name(filled: House, again: Again) -> None:
    """And a copy of either is a stream of its own."""
    filled.run(forking(F))
    filled.run(Copy(stream="s", target=X, replace=False))
    filled.run(Copy(stream=F, target=Y, replace=False))
    filled.run(Rename(stream="s", target=T))
    filled.run(Rename(stream=F, target=G))
    again(filled)
    filled.run(Delete(streams=[T]))
    filled.run(Delete(streams=[X, Y]))
    for name in ("s", X):
        assert filled.run(durable_commands.DescribeDurable(stream=name)) is None
    assert filled.refused(durable_commands.DescribeDurable(stream=T)).code == "stream_gone"
    filled.run(Delete(streams=[G]))
    assert filled.run(durable_commands.DescribeDurable(stream=T)) is None
    filled.check()


@everywhere
@pytest.mark.parametrize(
    "take",
    [
        lambda house, name: house.run(Rename(stream=X, target=name)),
        lambda house, name: house.run(Copy(stream=X, target=name, replace=True)),
    ],
)
@_AGAIN
def test_another_stream_takes_the_name_of_one_that_has_forks(
    filled: House, take: Callable[[House, str], object], again: Again
) -> None:
    """Its own source is free then, its forks are forks of none, and the name goes with its new stream."""
    filled.run(forking(F))
    filled.run(forking(G, F))
    filled.run(Delete(streams=["s"]))
    filled.run(creating(stream=X))
    filled.run(forking(Y, X))
    take(filled, F)
    again(filled)
    assert filled.run(durable_commands.DescribeDurable(stream="s")) is None
    assert filled.keyspace.forks.source_of(G) is None
    assert len(texts(filled, G)) == 6
    filled.check()
    filled.run(Delete(streams=[X, Y]))
    filled.run(Rename(stream=F, target=H))
    filled.check()
    filled.run(Delete(streams=[H]))
    again(filled)
    assert [filled.run(durable_commands.DescribeDurable(stream=name)) for name in ("s", F, H, X, Y)] == [
        None
    ] * 5
    filled.check()


def anew(house: House, *before: Command) -> None:
    """Make the stream anew, after these commands."""
    for command in before:
        house.run(command)
    house.run(creating())


def let_it_expire(house: House, _: str) -> None:
    house.run(Expire(stream="s", ms=1, relative=True))
    house.pass_ms(1)
    anew(house)


@pytest.mark.parametrize(
    "take",
    [
        lambda house, _: anew(house, Delete(streams=["s"])),
        lambda house, _: anew(house, FlushAll()),
        let_it_expire,
        lambda house, name: house.run(Rename(stream=X, target=name)),
        lambda house, name: house.run(Copy(stream=X, target=name, replace=True)),
    ],
)
@_AGAIN
def test_a_position_of_an_earlier_stream_is_none_of_the_new_one(
    filled: House, take: Callable[[House, str], object], again: Again
) -> None:
    """Wherever it is: readers are shown that, and forks are refused."""
    known = filled.key("s").generation
    filled.run(creating(stream=X, bodies=[body("new")]))
    take(filled, "s")
    again(filled)
    for after in (0, id_of("2-0"), filled.key("s").stream.last_id):
        gap = filled.of(
            DurableInfo, durable_commands.DescribeDurable(stream="s", after=after, known=known)
        ).gap
        assert gap is not None
        assert (gap.reason in ("recreated", "replaced"), gap.goes_on_after) == (True, 0)
        assert filled.of(DurableInfo, durable_commands.DescribeDurable(stream="s", after=after)).gap is None
        assert filled.refused(forking(F, upto=after, generation=known)).code == "gap"
    own = filled.key("s").generation
    assert (
        filled.of(DurableInfo, durable_commands.DescribeDurable(stream="s", after=0, known=own)).gap is None
    )
    assert filled.of(DurableCreated, forking(F, upto=0, generation=own)).created


def is_in(house: House, stream: str, known: str, after: int) -> bool:
    """Whether a position of this generation is one of the stream."""
    return (
        house.of(DurableInfo, durable_commands.DescribeDurable(stream=stream, after=after, known=known)).gap
        is None
    )


@_AGAIN
def test_positions_of_a_source_are_those_of_its_forks_up_to_where_they_part(
    filled: House, again: Again
) -> None:
    """Through several forks, also after the source is gone, and over a restore; a copy is no fork."""
    known = filled.key("s").generation
    filled.run(forking(F, upto=id_of("5-0")))
    filled.run(forking(G, F, upto=id_of("4-0")))
    filled.run(forking(H, F))
    filled.run(Copy(stream=F, target="c", replace=False))
    filled.run(Rename(stream=H, target="i"))
    filled.run(Delete(streams=["s"]))
    again(filled)
    ends = {F: 5, G: 4, "i": 5, "c": 0}
    for _ in range(2):
        for name, end in ends.items():
            found = [is_in(filled, name, known, number << 64) for number in range(1, 8)]
            assert found == [number <= end for number in range(1, 8)], name
        filled.payloads.append(encode([Regenerate(b"salt" * 4)]))
        replay(filled.keyspace, filled.payloads[-1])
        filled.check()
    for name, end in ends.items():
        refused = forking(X, name, upto=(end + 1) << 64, generation=known)
        assert filled.refused(refused).code == "gap"
    filled.run(forking(X, G, upto=id_of("2-0"), generation=known))
    assert is_in(filled, X, known, id_of("2-0"))
    assert not is_in(filled, X, known, id_of("3-0"))


def test_a_fork_knows_so_many_of_the_streams_before_it(house: House) -> None:
    """Positions of one that is further away are those of another stream."""
    house.run(creating(stream="f0", bodies=[body()]))
    for number in range(ORIGINS_MAX + 1):
        house.run(forking(f"f{number + 1}", f"f{number}"))
    last, at = f"f{ORIGINS_MAX + 1}", house.key("f0").stream.last_id
    found = [is_in(house, last, house.key(f"f{number}").generation, at) for number in range(ORIGINS_MAX + 2)]
    assert found == [False, *[True] * (ORIGINS_MAX + 1)]
    house.check()


@_AGAIN
def test_a_fork_takes_the_name_of_its_source(filled: House, again: Again) -> None:
    filled.run(forking(F))
    filled.run(forking(G, F))
    filled.run(Rename(stream=F, target="s"))
    again(filled)
    assert [filled.keyspace.forks.source_of(name) for name in ("s", G)] == [None, "s"]
    filled.check()


@_AGAIN
def test_a_stream_of_redis_takes_a_hidden_name(filled: House, again: Again) -> None:
    filled.run(forking(F))
    filled.run(Delete(streams=["s"]))
    filled.run(adding("s", "9-0"))
    filled.run(Rename(stream="s", target=T))
    again(filled)
    assert filled.run(durable_commands.DescribeDurable(stream="s")) is None
    filled.check()


def test_a_fork_lives_as_long_as_its_source_unless_it_says(house: House) -> None:
    house.run(creating(ttl_ms=10_000))
    house.run(forking(F))
    house.run(forking(G, ttl_ms=1_000))
    house.run(forking(H, expires_at_ms=house.now_ms + 5))
    infos = [house.of(DurableInfo, durable_commands.DescribeDurable(stream=name)) for name in (F, G, H)]
    assert [(one.ttl_ms, (one.expires_at_ms or 0) - house.now_ms) for one in infos] == [
        (10_000, 10_000),
        (1_000, 1_000),
        (None, 5),
    ]
    house.pass_ms(60_000)
    house.run(ExpireStreams())
    assert not house.keyspace.keys
    assert not house.keyspace.forks.hidden


@_AGAIN
def test_a_fork_is_created_once(filled: House, again: Again) -> None:
    filled.run(forking(F, config=b"c"))
    again(filled)
    assert not filled.of(DurableCreated, forking(F, config=b"c")).created
    assert filled.refused(forking(F, config=b"d")).code == "stream_exists"


# --- the end ------------------------------------------------------------------------------------------------


@everywhere
@_AGAIN
def test_an_end_comes_with_what_it_ends_with(made: House, again: Again) -> None:
    assert made.of(DurableAppended, appending(0, bodies=[body("last")], closes=True)).closed
    again(made)
    assert made.of(DurableInfo, durable_commands.DescribeDurable(stream="s")).closed
    assert made.of(DurableAppended, appending(0, closes=True)).duplicate, "the one that closed it asks again"
    assert made.of(DurableAppended, appending(bodies=[], closes=True)).duplicate, "so does any"
    for wrong in (appending(), appending(1), appending(0, producer="other"), appending(closes=True)):
        assert made.refused(wrong).code == "stream_closed"
    assert made.refused(creating()).code == "stream_exists"
    assert not made.of(DurableCreated, creating(closes=True)).created


def test_who_is_fenced_hears_that_first(made: House) -> None:
    made.run(appending(0, epoch=1, closes=True))
    assert made.refused(appending(1)).code == "producer_fenced"
