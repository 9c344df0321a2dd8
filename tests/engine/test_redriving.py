"""Dead letters go back to their source: once, whole, in one frame, and those of this group alone.

Knows: what a copy holds, what is passed over, what one turn takes. Must never know: APIs.
"""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from engine import entries, ids
from engine.commands import dead_letters, redriving
from engine.commands.execution import Execution, execute
from engine.commands.types import Claim, Cursor, Delete, IdempotencyKey, XAdd, XClaim, XReadGroup, XSetId
from engine.commands.weir_commands import EnsureGroup, EnsureStream, FindDeadLetters, Redrive, UpdateGroup
from engine.entries import Pairs
from engine.parts.idempotence import RememberAnswer
from engine.parts.keeping import Retention
from engine.records.changes import Append, Remove
from engine.records.payload import encode
from engine.replies import DeadLettersFound, Redriven
from tests.engine.house import House, adding, everywhere, id_of, replayed, state
from tests.turns import TURN_S_MAX, slowness

KEY = IdempotencyKey("k", b"digest")


def letter_body(source_id: str, *, source: str = "s", group: str = "g", own: Pairs = (("a", "1"),)) -> bytes:
    """A dead letter as `dead_letter` writes it."""
    values = (source, source_id, group, "c", "2", "max_deliveries")
    return entries.body([*own, *zip(dead_letters.LETTER_FIELDS, values, strict=True)])


def with_letters(house: House, letter_ids: Sequence[str], **more: Any) -> None:
    """A group, and dead letters of it with these IDs; each died under the same ID in the source."""
    policy = {"dead_letter_stream": "dead", "max_deliveries": 1}
    house.run(EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=policy))
    wanted = [id_of(words) for words in letter_ids]
    house.run(XAdd(stream="dead", bodies=[letter_body(one, **more) for one in letter_ids], ids=wanted))


def redrive(*letter_ids: str, **more: Any) -> Redrive:
    return Redrive(stream="s", group="g", letters="dead", ids=[id_of(one) for one in letter_ids], **more)


def test_a_letter_goes_back_as_a_new_entry(house: House) -> None:
    """Its own fields and where it is from; the letter is gone; the delivery count begins anew."""
    policy = {"dead_letter_stream": "dead", "max_deliveries": 1}
    house.run(EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=policy))
    house.run(adding("s", "5-0", "5-1", "5-2"))
    read = XReadGroup(group="g", consumer="c", streams=[("s", Cursor.NEW)])
    house.run(read)
    claim = Claim(ids=[id_of("5-1")], min_idle_ms=0)
    house.run(XClaim(stream="s", group="g", consumer="d", claim=claim))
    (dead,) = house.live("dead")
    answer = house.of(Redriven, redrive(dead))
    assert [ids.format(one) for one in answer.letters] == [dead]
    assert (answer.upto, answer.duplicate) == (None, False)
    assert house.live("dead") == []
    assert house.live("s")[:3] == ["5-0", "5-1", "5-2"], "the entry that died stays where it was"
    assert house.live("s")[3:] == [ids.format(one) for one in answer.copies]
    assert house.pairs("s")[3] == [("a", b"1"), ("weir-redriven-from", b"5-1")]
    assert {type(one) for one in house.turn.records} == {Append, Remove}, "both in one frame"
    assert "s" in house.turn.signalled, "waiting readers are woken"
    house.run(read)
    delivered = house.key("s").groups["g"].pending.get(answer.copies[0])
    assert delivered is not None
    assert delivered.delivery_count == 1


@pytest.mark.parametrize(
    "own",
    [
        [("a", "1"), ("a", "2"), ("b", "")],
        [("a", b"\xff\x00"), ("b", "text")],
        [("a", b"\xff"), ("a", "ü\U0001f600"), ("weir-source", "mine")],
        [("", ',{"id":"'), *zip(dead_letters.LETTER_FIELDS, ("s", "1-0", "h", "c", "2", "r"), strict=True)],
    ],
)
def test_a_copy_holds_the_entry_as_it_was(house: House, own: Pairs) -> None:
    """Repeated names, any bytes, names that look like a letter's: all in order."""
    with_letters(house, ["5-1"], own=own)
    house.of(Redriven, redrive("5-1"))
    raw = [(name, value.encode() if isinstance(value, str) else value) for name, value in own]
    assert house.pairs("s") == [[*raw, ("weir-redriven-from", b"5-1")]]


def test_a_copy_that_dies_again_keeps_where_it_was_from(house: House) -> None:
    """One field, with the ID that its producer was answered."""
    with_letters(house, ["9-0"], own=[("a", "1"), ("weir-redriven-from", "5-1")])
    house.of(Redriven, redrive("9-0"))
    assert house.pairs("s") == [[("a", b"1"), ("weir-redriven-from", b"5-1")]]


def test_letters_of_dead_letters_go_back_step_by_step(house: House) -> None:
    """What was redriven into a dead-letter stream is a dead letter there."""
    inner = [("a", "1"), *zip(dead_letters.LETTER_FIELDS, ("s", "5-1", "g", "c", "2", "r"), strict=True)]
    with_letters(house, ["6-0"])
    house.run(EnsureGroup(stream="dead", group="retry", start=0, policy={"dead_letter_stream": "deader"}))
    body = letter_body("6-1", source="dead", group="retry", own=inner)
    house.run(XAdd(stream="deader", bodies=[body], ids=[id_of("7-0")]))
    first = Redrive(stream="dead", group="retry", letters="deader", ids=[id_of("7-0")])
    (copy,) = house.of(Redriven, first).copies
    house.of(Redriven, redrive(ids.format(copy)))
    assert house.pairs("s") == [[("a", b"1"), ("weir-redriven-from", b"5-1")]]
    assert house.live("dead") == ["6-0"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (letter_body("5-1", group="h"), "another group's"),
        (letter_body("5-1", source="t"), "another stream's"),
        (entries.body([("a", "1")]), "no dead letter"),
        (entries.body([("weir-deliveries", "1")]), "a field of a dead letter alone"),
        (entries.body(list(zip(dead_letters.LETTER_FIELDS, "abcdef", strict=True))[1:]), "a field short"),
    ],
)
def test_only_dead_letters_of_this_group_are_touched(house: House, body: bytes, why: str) -> None:
    """The dead-letter stream is shared by groups and streams; neighbours stay."""
    with_letters(house, ["5-0", "5-2"])
    house.run(Delete(streams=["dead"]))
    bodies = [letter_body("5-0"), body, letter_body("5-2")]
    house.run(XAdd(stream="dead", bodies=bodies, ids=[id_of(one) for one in ("5-0", "5-1", "5-2")]))
    answer = house.of(Redriven, redrive("5-0", "5-1", "5-2"))
    assert list(answer.letters) == [id_of("5-0"), id_of("5-2")], why
    assert house.live("dead") == ["5-1"]
    assert house.of(Redriven, redrive("5-1")) == Redriven([], [], None)


def test_neighbours_of_a_named_letter_stay(house: House) -> None:
    with_letters(house, ["5-0", "5-1", "5-2"])
    assert list(house.of(Redriven, redrive("5-1", "5-1", "4-9", "5-3")).letters) == [id_of("5-1")]
    assert house.live("dead") == ["5-0", "5-2"]
    assert len(house.live("s")) == 1


def test_a_dry_run_changes_nothing(house: House) -> None:
    with_letters(house, ["5-0", "5-1"])
    before = state(house.keyspace)
    answer = house.of(Redriven, redrive("5-1", "5-0", "9-9", dry_run=True))
    assert answer == Redriven([id_of("5-0"), id_of("5-1")], [], None)
    assert not house.turn.records
    assert state(house.keyspace) == before


def test_a_repeated_call_answers_as_the_first_time(house: House) -> None:
    """Through a restart and a rewrite of the log too; another body under the key is refused."""
    with_letters(house, ["5-0", "5-1"])
    first = house.of(Redriven, redrive("5-0", upto=id_of("5-0"), idempotency=KEY))
    assert [type(one) for one in house.turn.records].count(RememberAnswer) == 1
    again = Redriven(first.letters, first.copies, id_of("5-0"), duplicate=True)
    for going_on in ("", "restart", "rewrite"):
        if going_on:
            getattr(house, going_on)()
        assert house.of(Redriven, redrive("5-1", upto=id_of("5-0"), idempotency=KEY)) == again
    other = IdempotencyKey("k", b"other")
    assert house.refused(redrive("5-1", idempotency=other)).code == "idempotency_mismatch"
    assert house.live("dead") == ["5-1"]
    house.now_ms += 24 * 3600 * 1000 + 1
    assert list(house.of(Redriven, redrive("5-1", idempotency=KEY)).letters) == [id_of("5-1")]


def test_that_there_was_nothing_is_remembered_too(house: House) -> None:
    """A repetition does not find what died in between."""
    with_letters(house, ["5-0"])
    assert house.of(Redriven, redrive("5-1", idempotency=KEY)) == Redriven([], [], None)
    assert house.of(Redriven, redrive("5-0", idempotency=KEY)) == Redriven([], [], None, duplicate=True)
    assert house.live("dead") == ["5-0"]


@pytest.mark.parametrize("beside", [-1, 0, 1])
def test_one_turn_looks_at_so_many(house: House, beside: int) -> None:
    """The others are left for the next call, with the place to go on."""
    most = redriving.TURN_REDRIVEN_MAX
    names = [f"5-{number}" for number in range(1, most + beside + 1)]
    with_letters(house, names)
    answer = house.of(Redriven, redrive(*names))
    assert len(answer.letters) == min(most, most + beside)
    assert answer.upto == (id_of(f"5-{most}") if beside > 0 else None)
    assert len(house.live("dead")) == max(0, beside)
    assert len(house.live("s")) == len(answer.letters)


def test_one_frame_takes_so_many_bytes(house: House) -> None:
    large = "x" * (1 << 20)
    names = [f"5-{number}" for number in range(1, 8)]
    with_letters(house, names, own=[("a", large)])
    upto: int | None = 0
    for kept in (4, 1, 0):
        answer = house.of(Redriven, redrive(*house.live("dead")))
        upto = answer.upto
        assert len(house.live("dead")) == kept
        assert len(house.payloads[-1]) < dead_letters.TURN_LETTERS_BYTES_MAX + (1 << 20)
        assert upto == (answer.letters[-1] if kept else None)
    assert [pairs[1][1] for pairs in house.pairs("s")] == [name.encode() for name in names], "in order"


def test_ids_at_the_end_of_their_range(house: House) -> None:
    """A dead letter has the last ID there is; the source has one ID left, then none."""
    last, before = ids.format(ids.ID_MAX), ids.format(ids.ID_MAX - 1)
    with_letters(house, [before, last])
    house.run(XSetId(stream="s", last_id=ids.ID_MAX - 1))
    assert house.refused(redrive(before, last)).code == "stream_exhausted"
    assert house.live("dead") == [before, last]
    assert list(house.of(Redriven, redrive(last)).copies) == [ids.ID_MAX]
    assert house.refused(redrive(before)).code == "stream_exhausted"
    assert house.live("dead") == [before]


def test_the_source_was_deleted_or_made_again(house: House) -> None:
    """Its group went with it; a letter knows its source by name, and goes to the stream of that name."""
    with_letters(house, ["5-0"])
    house.run(Delete(streams=["s"]))
    assert house.refused(redrive("5-0")).code == "no_group"
    house.run(EnsureGroup(stream="s", group="g", start=0, mkstream=True))
    assert len(house.of(Redriven, redrive("5-0")).copies) == 1
    assert house.run(Delete(streams=["dead"])) == 1
    assert house.of(Redriven, redrive("5-0")) == Redriven([], [], None), "no dead-letter stream, no letters"


def test_a_stream_may_hold_its_own_letters(house: House) -> None:
    """Its retention counts what is left after the letters are gone."""
    with_letters(house, ["5-0"])
    house.run(UpdateGroup(stream="s", group="g", policy={"dead_letter_stream": "s"}))
    house.run(EnsureStream(stream="s", retention=Retention(max_len=2)))
    house.run(
        XAdd(stream="s", bodies=[letter_body("1-0"), letter_body("1-1")], ids=[id_of("5-0"), id_of("5-1")])
    )
    answer = house.of(Redriven, Redrive(stream="s", group="g", letters="s", ids=[id_of("5-0"), id_of("5-1")]))
    assert house.live("s") == [ids.format(one) for one in answer.copies]
    assert [pairs[1][1] for pairs in house.pairs("s")] == [b"1-0", b"1-1"]


def test_every_prefix_of_the_log_has_each_entry_once(house: House) -> None:
    """After a crash at any point an entry is a dead letter or back in the source, never both."""
    names = ["5-0", "5-1", "5-2"]
    with_letters(house, names)
    outcome: Execution = execute(house.keyspace, redrive("5-0", "5-1"), house.now_ms)
    house.payloads.append(encode(outcome.turn.records))
    house.of(Redriven, redrive("5-2", idempotency=KEY))
    for length in range(2, len(house.payloads) + 1):
        kept = House()
        kept.keyspace = replayed(house.payloads[:length])
        dead = set(kept.live("dead")) if "dead" in kept.keyspace.keys else set()
        back = [dict(pairs)["weir-redriven-from"].decode() for pairs in kept.pairs("s")]
        assert not dead & set(back)
        if length > len(house.payloads) - 3:
            assert sorted([*dead, *back]) == names


# --- looking for them


def find(start: str = "0-0", end: str = "", count: int = 100, **more: Any) -> FindDeadLetters:
    upper = id_of(end) if end else ids.ID_MAX
    return FindDeadLetters(
        stream="s", group="g", letters="dead", start=id_of(start), end=upper, count=count, **more
    )


@everywhere
@pytest.mark.parametrize(
    ("wanted", "found", "upto"),
    [
        (find(), ["5-0", "5-1", "5-2"], None),
        (find("5-1"), ["5-1", "5-2"], None),
        (find("5-2"), ["5-2"], None),
        (find("5-3"), [], None),
        (find(end="5-1"), ["5-0", "5-1"], None),
        (find(end="5-0"), ["5-0"], None),
        (find(end="4-9"), [], None),
        (find(count=1), ["5-0"], "5-0"),
        (find(count=2), ["5-0", "5-1"], "5-1"),
        (find(count=3), ["5-0", "5-1", "5-2"], None),
        (find(count=4), ["5-0", "5-1", "5-2"], None),
        (find(end="5-1", count=2), ["5-0", "5-1"], None),
        (find(consumer="c"), ["5-0", "5-1", "5-2"], None),
        (find(consumer="d"), [], None),
        (find(reason="max_deliveries"), ["5-0", "5-1", "5-2"], None),
        (find(reason="max"), [], None),
    ],
)
def test_a_search_goes_up_to_its_bounds(
    house: House, wanted: FindDeadLetters, found: list[str], upto: str | None
) -> None:
    with_letters(house, ["5-0", "5-1", "5-2"])
    answer = house.of(DeadLettersFound, wanted)
    assert [ids.format(one) for one in answer.ids] == found
    assert answer.upto == (None if upto is None else id_of(upto))
    assert not house.turn.records


def test_a_search_passes_over_others_and_stops(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """One turn looks at a limited number of entries, of all groups; the next one goes on behind the last."""
    monkeypatch.setattr(redriving, "TURN_LOOKS_MAX", 2)
    with_letters(house, ["5-0"])
    others = [letter_body("1-0", group="h"), letter_body("1-0", source="t"), entries.body([("a", "1")])]
    wanted = [id_of(one) for one in ("5-1", "5-2", "5-3", "5-4", str((1 << 64) - 1))]
    house.run(XAdd(stream="dead", bodies=[*others, letter_body("1-0"), letter_body("1-1")], ids=wanted))
    start, seen = 0, []
    while True:
        page = house.of(DeadLettersFound, find(ids.format(start)))
        seen.append([ids.format(one) for one in page.ids])
        if page.upto is None:
            break
        start = page.upto + 1
    assert seen == [["5-0"], [], ["5-4", f"{(1 << 64) - 1}-0"]]
    assert house.of(DeadLettersFound, find("5-0")).upto == id_of("5-1")


# --- at the limit


def packed_letters(house: House, count: int) -> list[str]:
    """This number of dead letters, whose nodes have gone cold; their IDs."""
    policy = {"dead_letter_stream": "dead", "max_deliveries": 1}
    house.run(EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=policy))
    names = [f"5-{number}" for number in range(1, count + 1)]
    bodies = [letter_body(name, own=[("a", "x" * 100), ("n", name)]) for name in names]
    house.run(XAdd(stream="dead", bodies=bodies, ids=[id_of(name) for name in names]))
    for text in house.keyspace.cold:
        text.keep_packed(text.compress())
    house.keyspace.cold.clear()
    return names


def best_s(house: House, commands: Sequence[Redrive | FindDeadLetters]) -> float:
    """The processor time of the fastest of these turns, in seconds of the machine of the limits."""
    times = []
    for command in commands:
        began = time.thread_time()
        execute(house.keyspace, command, house.now_ms)
        times.append((time.thread_time() - began) / slowness())
    return min(times)


@pytest.mark.paired
def test_no_turn_takes_long() -> None:
    """Also where each dead letter has to be unpacked from a node of its own, and repacked without it."""
    house, most = House(), redriving.TURN_REDRIVEN_MAX
    nodes = most + 10
    names = packed_letters(house, nodes * 200)
    scattered = [redrive(*names[place :: len(names) // most][:most]) for place in range(3)]
    together = [redrive(*names[place * 1_000 :][:most]) for place in (2, 3, 4)]
    looks = [find(names[place * 3_000], reason="another") for place in (3, 4, 5)]
    assert best_s(house, looks) < TURN_S_MAX
    assert best_s(house, together) < TURN_S_MAX
    assert best_s(house, scattered) < TURN_S_MAX
    assert len(house.live("s")) > 5 * most
    assert len(house.live("s")) + len(house.live("dead")) == len(names)
