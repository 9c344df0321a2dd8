"""Reads that wait: who is woken, in which order, with what, and until when.

Edge cases 33 to 37, 40, 54 to 57 and 73 of docs/semantics.md.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from engine.commands.types import Cursor, XAdd, XReadGroup
from engine.replies import GroupRead
from engine.runtime.waits import WAITERS_MAX
from tests.engine.asking import submit, submit_each, turn_of
from tests.engine.clocks import settle
from tests.engine.conversation import Begun, Conversation, SlowDisk, read_of, talk_of
from tests.engine.test_costs import BODY, Calls

# Coverage would make it three times as long, and other tests cover the same lines.
pytestmark = pytest.mark.no_cover

NO_GROUP = "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"


talk = talk_of(("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM"))


def group_read(consumer: str, *options: str, stream: str = "s") -> tuple[str, ...]:
    return ("XREADGROUP", "GROUP", "g", consumer, "BLOCK", "1000", *options, "STREAMS", stream, ">")


PLAIN = ("XREAD", "BLOCK", "1000", "STREAMS", "s", "$")


async def test_each_entry_goes_to_one_reader_of_a_group(talk: Conversation) -> None:
    """Edge 54: to the one that has waited longest; the others go on waiting."""
    readers = [await talk.begin(*group_read(name)) for name in "abc"]
    await talk.add("s", "1-0")
    await settle()
    assert [reader.done() for reader in readers] == [True, False, False]
    await talk.add("s", "2-0")
    assert await readers[0] == read_of("s", "1-0")
    assert await readers[1] == read_of("s", "2-0")
    assert talk.engine.figures().waiting == 1


async def test_readers_of_one_transaction_share_in_order(talk: Conversation) -> None:
    """Three entries at once and readers of one each: the first gets the first, the second the second."""
    readers = [await talk.begin(*group_read(name, "COUNT", "1")) for name in "ab"]
    await talk.transaction("XADD s 1-0 a 1", "XADD s 2-0 a 1", "XADD s 3-0 a 1")
    assert [await reader for reader in readers] == [read_of("s", "1-0"), read_of("s", "2-0")]
    assert await talk.call("XPENDING", "s", "g") == [2, "1-0", "2-0", [["a", "1"], ["b", "1"]]]


async def test_every_plain_reader_gets_every_entry(talk: Conversation) -> None:
    """There is no owner."""
    readers = [await talk.begin(*PLAIN) for _ in range(3)]
    await talk.add("s", "1-0")
    assert [await reader for reader in readers] == [read_of("s", "1-0")] * 3


async def test_a_reader_of_two_streams_gets_both(talk: Conversation) -> None:
    """Where one transaction filled both; and is forgotten by both."""
    reader = await talk.begin("XREAD", "BLOCK", "1000", "STREAMS", "s", "t", "$", "$")
    await talk.transaction("XADD t 1-0 a 1", "XADD s 1-0 a 1")
    assert await reader == [*read_of("s", "1-0"), *read_of("t", "1-0")]
    assert talk.engine.figures().waiting == 0


async def test_a_reader_of_two_streams_is_woken_by_either(talk: Conversation) -> None:
    """And gets what there is of that one."""
    await talk.call("XGROUP", "CREATE", "t", "g", "$", "MKSTREAM")
    words = ("XREADGROUP", "GROUP", "g", "a", "BLOCK", "1000", "STREAMS", "s", "t", ">", ">")
    reader = await talk.begin(*words)
    await talk.add("t", "1-0")
    assert await reader == read_of("t", "1-0")


async def test_a_reader_does_not_wait_for_its_count(talk: Conversation) -> None:
    """Edge 33: one entry is enough."""
    reader = await talk.begin("XREAD", "COUNT", "10", "BLOCK", "1000", "STREAMS", "s", "$")
    await talk.add("s", "1-0")
    assert await reader == read_of("s", "1-0")


@pytest.mark.parametrize("stream", ["s", "none"])
async def test_a_reader_of_the_last_entry_waits_for_the_first(talk: Conversation, stream: str) -> None:
    """Edge 34: on an empty stream and on a missing one."""
    reader = await talk.begin("XREAD", "BLOCK", "1000", "STREAMS", stream, "+")
    assert not reader.done()
    await talk.add(stream, "1-0")
    assert await reader == read_of(stream, "1-0")


async def test_the_end_is_where_it_was_when_the_read_began(talk: Conversation) -> None:
    """Edge 35: `$` is resolved once: what came and went, and what comes below, is nothing."""
    await talk.add("s", "5-0")
    reader = await talk.begin(*PLAIN)
    await talk.transaction("XADD s 6-0 a 1", "XDEL s 6-0")
    await talk.call("DEL", "s")
    await talk.add("s", "1-0", "5-0")
    await settle()
    assert not reader.done()
    await talk.add("s", "6-0")
    assert await reader == read_of("s", "6-0")


async def test_a_stream_that_ran_dry_wakes_nobody(talk: Conversation) -> None:
    """Edge 36: neither a group's reader nor another, though the last ID is above theirs."""
    readers = [await talk.begin(*PLAIN), await talk.begin(*group_read("a"))]
    await talk.transaction("XADD s 1-0 a 1", "XDEL s 1-0")
    await talk.call("XADD", "s", "MAXLEN", "0", "2-0", "a", "1")
    await settle()
    assert [reader.done() for reader in readers] == [False, False]


async def test_being_woken_for_nothing_does_not_put_off_the_deadline(talk: Conversation) -> None:
    """Edge 37: it stays where it was; the answer at the end is null."""
    readers = [await talk.begin(*PLAIN), await talk.begin(*group_read("a", "CLAIM", "5000"))]
    await talk.pass_ms(600)
    await talk.transaction("XADD s 1-0 a 1", "XDEL s 1-0")
    await talk.pass_ms(399)
    assert [reader.done() for reader in readers] == [False, False]
    await talk.pass_ms(1)
    assert [await reader for reader in readers] == [None, None]
    assert talk.engine.figures().waiting == 0


async def test_deadlines_go_by_the_clock_that_never_jumps(talk: Conversation) -> None:
    """The wall clock may be set meanwhile."""
    reader = await talk.begin(*PLAIN)
    await talk.pass_ms(3_600_000, monotonic=999)
    assert not reader.done()
    await talk.pass_ms(-3_600_000, monotonic=1)
    assert await reader is None


async def test_nothing_waits_in_a_transaction(talk: Conversation) -> None:
    """Edge 40: with any BLOCK."""
    replies = await talk.transaction(
        "XREAD BLOCK 0 STREAMS s $", "XREADGROUP GROUP g a BLOCK 1000 STREAMS s >", "XADD s 1-0 a 1"
    )
    assert replies == [None, None, "1-0"]


@pytest.mark.parametrize("words", ["XGROUP DESTROY s g", "DEL s", "FLUSHALL"])
async def test_a_group_that_goes_tells_its_readers(talk: Conversation, words: str) -> None:
    """Edge 55: at once, every one of them, in the sentence of XREADGROUP."""
    readers = [await talk.begin(*group_read(name)) for name in "ab"]
    await talk.call(*words.split())
    assert [await reader for reader in readers] == [NO_GROUP, NO_GROUP]


@pytest.mark.parametrize("words", ["DEL s", "FLUSHALL"])
async def test_a_stream_that_goes_leaves_its_plain_readers(talk: Conversation, words: str) -> None:
    """Edge 55: they wait for the next of that name."""
    reader = await talk.begin(*PLAIN)
    await talk.call(*words.split())
    await settle()
    assert not reader.done()
    await talk.add("s", "1-0")
    assert await reader == read_of("s", "1-0")


async def test_another_group_may_go(talk: Conversation) -> None:
    """Edge 56: it has no effect."""
    await talk.call("XGROUP", "CREATE", "s", "h", "$")
    reader = await talk.begin(*group_read("a"))
    await talk.call("XGROUP", "DESTROY", "s", "h")
    await settle()
    assert not reader.done()


async def test_a_group_made_again_in_the_same_turn_is_the_group(talk: Conversation) -> None:
    """Edge 56: its readers wait on, and are served by the new one."""
    reader = await talk.begin(*group_read("a"))
    await talk.transaction("XGROUP DESTROY s g", "XGROUP CREATE s g $")
    await settle()
    assert not reader.done()
    await talk.add("s", "1-0")
    assert await reader == read_of("s", "1-0")
    assert await talk.call("XPENDING", "s", "g") == [1, "1-0", "1-0", [["a", "1"]]]


@pytest.mark.parametrize(
    "words",
    [
        "XGROUP SETID s g 0",
        "XSETID s 9-0",
        "XGROUP CREATE s h $",
        "XGROUP DELCONSUMER s g a",
        "XDEL s 1-0",
        "XTRIM s MAXLEN 0",
    ],
)
async def test_what_brings_no_entry_wakes_nobody(talk: Conversation, words: str) -> None:
    """Section 1.10: not even where the group could now read what it has read before."""
    await talk.add("s", "1-0")
    await talk.call("XGROUP", "SETID", "s", "g", "1-0")
    reader = await talk.begin(*group_read("a"))
    await talk.call(*words.split())
    await settle()
    assert not reader.done()


async def test_a_consumer_removed_while_it_waits_is_made_again(talk: Conversation) -> None:
    """Section 1.10: when an entry comes for it."""
    reader = await talk.begin(*group_read("a"))
    assert await talk.call("XGROUP", "DELCONSUMER", "s", "g", "a") == 0
    await talk.add("s", "1-0")
    assert await reader == read_of("s", "1-0")
    assert await talk.call("XPENDING", "s", "g") == [1, "1-0", "1-0", [["a", "1"]]]


async def test_a_reader_that_read_does_not_wake_itself(talk: Conversation) -> None:
    """Edge 57: served once, and not in a circle with others that wait on the same stream."""
    readers = [await talk.begin(*group_read(name, "CLAIM", "5000")) for name in "ab"]
    await talk.add("s", "1-0")
    await settle()
    assert [reader.done() for reader in readers] == [True, False]


async def test_a_claim_comes_due_by_itself(talk: Conversation) -> None:
    """Section 1.10: when the entry that is idle longest has been so for long enough, to the millisecond."""
    await talk.add("s", "1-0")
    await talk.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    await talk.pass_ms(100)
    reader = await talk.begin(*group_read("b", "CLAIM", "500"))
    await talk.pass_ms(399)
    assert not reader.done()
    await talk.pass_ms(1)
    assert await reader == [["s", [["1-0", ["a", "1"], 500, 1]]]]


async def test_a_claim_does_not_wait_for_what_is_gone(talk: Conversation) -> None:
    """Edge 73: deleted entries set no timer."""
    await talk.add("s", "1-0")
    await talk.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    await talk.pass_ms(100)
    await talk.add("s", "2-0")
    await talk.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    await talk.call("XDEL", "s", "1-0")
    reader = await talk.begin(*group_read("b", "CLAIM", "500"))
    await talk.pass_ms(400)
    assert not reader.done()
    await talk.pass_ms(100)
    assert await reader == [["s", [["2-0", ["a", "1"], 500, 1]]]]


async def test_a_claim_of_what_another_just_took_finds_it_later(talk: Conversation) -> None:
    """Of two that come due together the first claims; the second waits for it to be idle again."""
    await talk.add("s", "1-0")
    await talk.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    readers = [await talk.begin(*group_read(name, "CLAIM", "400")) for name in "bc"]
    await talk.pass_ms(400)
    assert await readers[0] == [["s", [["1-0", ["a", "1"], 400, 1]]]]
    assert not readers[1].done()
    await talk.pass_ms(400)
    assert await readers[1] == [["s", [["1-0", ["a", "1"], 400, 2]]]]


async def test_a_released_entry_wakes_who_claims(talk: Conversation) -> None:
    """Section 1.12: and no other."""
    await talk.add("s", "1-0")
    await talk.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    other, reader = await talk.begin(*group_read("c")), await talk.begin(*group_read("b", "CLAIM", "9000"))
    await talk.call("XNACK", "s", "g", "FAIL", "IDS", "1", "1-0")
    reply = await reader
    assert reply == [["s", [["1-0", ["a", "1"], talk.clock.wall_ms(), 1]]]]
    assert not other.done()


async def test_claiming_without_idle_time_does_not_run_in_circles(talk: Conversation) -> None:
    """A read with CLAIM 0 and nothing pending looks again at most ten times a second."""
    reader = await talk.begin(*group_read("a", "CLAIM", "0"))
    frames = await _frames(talk)
    for _ in range(20):
        await talk.pass_ms(10)
    assert await _frames(talk) - frames <= 2
    assert not reader.done()


async def _frames(talk: Conversation) -> int:
    operations = getattr(talk.storage, "operations", [])
    return sum(operation == "append" for operation, _ in operations)


async def test_a_reader_that_gives_up_gets_nothing(talk: Conversation) -> None:
    """It leaves no trace: the entry goes to the next, though both happen in one turn of the loop."""
    first, second = await talk.begin(*group_read("a")), await talk.begin(*group_read("b"))
    await first.give_up()
    await talk.add("s", "1-0")
    assert await second == read_of("s", "1-0")
    assert await talk.call("XPENDING", "s", "g") == [1, "1-0", "1-0", [["b", "1"]]]
    assert talk.engine.figures().waiting == 0


async def test_what_was_delivered_before_the_reader_gave_up_is_undone(talk: Conversation) -> None:
    """As long as its answer waits for the log: the next one reads it as new."""
    reader = await talk.begin(*group_read("a"))
    adding = asyncio.ensure_future(talk.call("XADD", "s", "1-0", "a", "1"))
    await asyncio.sleep(0)
    await reader.give_up()
    await adding
    assert reader.task.cancelled()
    assert await talk.call("XPENDING", "s", "g", "-", "+", "9") == []
    reply = await talk.call("XREADGROUP", "GROUP", "g", "b", "CLAIM", "0", "STREAMS", "s", ">")
    assert reply == [["s", [["1-0", ["a", "1"], 0, 0]]]]


async def test_who_waits_again_waits_where_it_waited(talk: Conversation) -> None:
    """Readers keep their order over an entry that the first of them took."""
    first = await talk.begin(*group_read("a"))
    second, third = await talk.begin(*group_read("b")), await talk.begin(*group_read("c"))
    await talk.add("s", "1-0")
    await first
    fourth = await talk.begin(*group_read("a"))
    await talk.add("s", "2-0", "3-0", "4-0")
    replies = [await reader for reader in (second, third, fourth)]
    assert replies == [read_of("s", "2-0"), read_of("s", "3-0"), read_of("s", "4-0")]


async def test_the_number_of_readers_is_bounded(talk: Conversation) -> None:
    """One more is refused, and none of the others disturbed."""
    readers = [asyncio.ensure_future(talk.call(*PLAIN)) for _ in range(WAITERS_MAX)]
    await settle()
    assert talk.engine.figures().waiting == WAITERS_MAX
    assert await talk.call(*PLAIN) == "-ERR too many blocked reads"
    await talk.add("s", "1-0")
    replies = await asyncio.gather(*readers)
    assert replies == [read_of("s", "1-0")] * WAITERS_MAX


# ---- many at once

MANY = 3_000


async def many_readers(talk: Conversation) -> list[Begun]:
    readers = [await talk.begin(*PLAIN) for _ in range(MANY)]
    while talk.engine.figures().waiting < MANY:
        await settle()
    return readers


def _note(done: list[int], place: int, _: object) -> None:
    done.append(place)


async def test_many_readers_are_answered_a_few_a_turn_and_in_order(talk: Conversation) -> None:
    """Between two hundred of them all others have a turn; all get all that is published meanwhile."""
    readers = await many_readers(talk)
    done: list[int] = []
    for place, reader in enumerate(readers):
        reader.task.add_done_callback(partial(_note, done, place))
    await talk.add("s", "1-0")
    most, turns = 0, 0
    while len(done) < MANY:
        before = len(done)
        await asyncio.sleep(0)
        most, turns = max(most, len(done) - before), turns + 1
        if turns == 2:
            await talk.add("s", "2-0")
    assert most <= 200
    assert done == list(range(MANY))
    assert await readers[0] == read_of("s", "1-0")
    assert await readers[-1] == read_of("s", "1-0", "2-0")
    assert talk.engine.figures().waiting == 0


async def test_readers_that_were_put_off_may_leave(talk: Conversation) -> None:
    """They are passed over; and what was deleted before their turn came wakes no reader."""
    readers = await many_readers(talk)
    await talk.add("s", "1-0")
    await readers[-1].give_up()
    await talk.call("XDEL", "s", "1-0")
    await settle()
    await settle()
    assert sum(reader.done() for reader in readers[:-1]) < MANY - 1
    await talk.add("s", "2-0")
    while talk.engine.figures().waiting:
        await settle()
    assert await readers[-2] == read_of("s", "2-0")


async def test_a_stop_answers_those_who_were_put_off(talk: Conversation) -> None:
    """With what they were woken for: who asked for what is new and is refused instead would miss it."""
    readers = await many_readers(talk)
    await talk.add("s", "1-0")
    talk.engine.end_waits()
    for reader in (readers[0], readers[-1]):
        assert await reader == read_of("s", "1-0")


async def test_readers_that_were_put_off_wait_for_the_log_too() -> None:
    """Their answers show no more than others' do."""
    disk = SlowDisk()
    async with Conversation(disk, "always") as talk:
        readers = await many_readers(talk)
        disk.hold()
        adding = await talk.begin("XADD", "s", "1-0", "a", "1")
        for _ in range(20):
            await settle()
        assert not any(reader.done() for reader in readers)
        disk.let_go()
        await adding
        assert await readers[-1] == read_of("s", "1-0")


# ---- a group's many readers


async def many_group_readers(talk: Conversation, count: int, *options: str) -> list[Begun]:
    await talk.call("XGROUP", "CREATECONSUMER", "s", "g", "c")
    readers = [await talk.begin(*group_read("c", "COUNT", "1", *options)) for _ in range(count)]
    while talk.engine.figures().waiting < count:
        await settle()
    return readers


@pytest.mark.parametrize("options", [(), ("CLAIM", "5000")])
async def test_an_entry_costs_the_same_however_many_wait_for_it(
    talk: Conversation, options: tuple[str, ...]
) -> None:
    """Whom it is not for is not asked."""
    costs = []
    for count in (10, 500):
        await many_group_readers(talk, count - talk.engine.figures().waiting, *options)
        with Calls() as calls:
            submit(talk.engine, [XAdd(stream="s", bodies=[BODY])], lambda _: None)
        costs.append(calls.count)
        await settle()
    assert costs[1] < 2 * costs[0], costs


async def test_a_batch_is_shared_out_a_few_at_a_time_and_in_order(talk: Conversation) -> None:
    """Between a hundred of them everybody else has a turn; who comes to read meanwhile comes behind them."""
    readers = await many_group_readers(talk, MANY)
    done: list[int] = []
    for place, reader in enumerate(readers):
        reader.task.add_done_callback(partial(_note, done, place))
    ids = [number << 64 for number in range(1, MANY + 2)]
    submit(talk.engine, [XAdd(stream="s", bodies=[BODY] * (MANY + 1), ids=ids)], lambda _: None)
    assert talk.engine.figures().waiting == MANY - 100
    late = [await talk.begin(*group_read(name, "COUNT", "1")) for name in "xy"]
    most = 0
    while len(done) < MANY:
        before = len(done)
        await asyncio.sleep(0)
        most = max(most, len(done) - before)
        assert not any(one.done() for one in late)
    assert most <= 200
    assert [await reader for reader in readers] == [
        read_of("s", f"{number}-0") for number in range(1, MANY + 1)
    ]
    assert await late[0] == read_of("s", f"{MANY + 1}-0")
    assert not late[1].done()


async def test_readers_within_a_transaction_come_behind_too(talk: Conversation) -> None:
    """However many are served before it: none of them finds less for it."""
    await many_group_readers(talk, 300)
    bodies = [BODY] * 300
    answers: list[object] = []
    fresh = XReadGroup(group="g", consumer="x", streams=[("s", Cursor.NEW)])
    submit(talk.engine, [XAdd(stream="s", bodies=bodies)], lambda _: None)
    transaction = asyncio.ensure_future(turn_of(talk.engine, [fresh]))
    submit(talk.engine, [fresh], answers.append)
    assert (talk.engine.figures().waiting, answers) == (200, [])
    while not answers:
        await settle()
    assert answers == [[GroupRead([], [])]]
    assert await transaction == [GroupRead([], [])]


async def test_reads_that_came_behind_are_let_in_as_they_came(talk: Conversation) -> None:
    """Alone or in a run: the first one has what is left, and none of them is a task."""
    await many_group_readers(talk, 300)
    fresh = XReadGroup(group="g", consumer="x", streams=[("s", Cursor.NEW)], count=1)
    submit(talk.engine, [XAdd(stream="s", bodies=[BODY] * 302)], lambda _: None)
    answers, tasks = dict[str, Sequence[object]](), asyncio.all_tasks()
    submit_each(talk.engine, [fresh], partial(answers.__setitem__, "first"))
    submit(talk.engine, [fresh], partial(answers.__setitem__, "second"))
    submit_each(talk.engine, [fresh], partial(answers.__setitem__, "third"))
    assert asyncio.all_tasks() == tasks
    while len(answers) < 3:
        await settle()
    found = [[len(read.streams) for read in answers[name] if isinstance(read, GroupRead)] for name in answers]
    assert (list(answers), found) == (["first", "second", "third"], [[1], [1], [0]])


async def test_readers_that_may_claim_look_again_as_one(talk: Conversation) -> None:
    """What comes due is the first one's; the others cost nothing, and have it when it is due again."""
    await talk.add("s", "1-0")
    await talk.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    readers = await many_group_readers(talk, 2_000, "CLAIM", "400")
    for place in range(2):
        before = await _frames(talk)
        await talk.pass_ms(399)
        assert not readers[place].done()
        await talk.pass_ms(1)
        assert await readers[place] == [["s", [["1-0", ["a", "1"], 400, place + 1]]]]
        assert await _frames(talk) - before < 10
    assert talk.engine.figures().waiting == 1_998


async def test_waits_that_end_together_end_a_few_at_a_time(talk: Conversation) -> None:
    """All of them, with nothing."""
    readers = await many_group_readers(talk, 1_000)
    await talk.pass_ms(1_000)
    while talk.engine.figures().waiting:
        await settle()
    assert [await reader for reader in readers] == [None] * 1_000
