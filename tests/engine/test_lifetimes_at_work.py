"""Streams expire at their time: waiting readers learn it, and a restart changes nothing.

Knows: the real engine on a modelled disk, under a clock that stands still.
Must never know: how it notices that a time is over.
"""

from typing import Final

from engine.storage.memory import MemoryStorage
from tests.engine.clocks import settle
from tests.engine.conversation import Conversation, SlowDisk, read_of, talk_of
from tests.engine.images import image
from tests.engine.running import keyspace_of

NO_GROUP: Final = "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"


talk = talk_of(("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM"))


async def test_a_group_reader_is_refused_at_the_millisecond(talk: Conversation) -> None:
    """As by DEL. It need not wait for housekeeping."""
    reader = await talk.begin("XREADGROUP", "GROUP", "g", "a", "BLOCK", "60000", "STREAMS", "s", ">")
    await talk.call("PEXPIRE", "s", "200")
    await talk.pass_ms(199)
    assert not reader.done()
    await talk.pass_ms(1)
    assert await reader == NO_GROUP
    assert talk.engine.figures().streams == 0


async def test_a_plain_reader_goes_on_waiting(talk: Conversation) -> None:
    """For the stream that comes after, from its beginning or from where it was."""
    readers = [await talk.begin("XREAD", "BLOCK", "60000", "STREAMS", "s", at) for at in ("0", "5-0")]
    await talk.call("PEXPIRE", "s", "200")
    await talk.pass_ms(200)
    assert talk.engine.figures().streams == 0
    assert not any(reader.done() for reader in readers)
    await talk.add("s", "5-0", "5-1")
    assert [await reader for reader in readers] == [read_of("s", "5-0"), read_of("s", "5-1")]


async def test_an_earlier_time_is_kept(talk: Conversation) -> None:
    """And a later one: the stream stays until then."""
    await talk.call("PEXPIRE", "s", "500")
    await talk.call("PEXPIRE", "s", "200")
    await talk.call("PEXPIRE", "s", "300")
    await talk.pass_ms(299)
    assert talk.engine.figures().streams == 1
    await talk.pass_ms(1)
    assert talk.engine.figures().streams == 0


async def test_a_wall_clock_that_is_set_forward_is_noticed(talk: Conversation) -> None:
    """Within a second of the other clock."""
    await talk.call("EXPIRE", "s", "3600")
    await talk.pass_ms(3_600_000, 0)
    await talk.pass_ms(0, 1_000)
    assert talk.engine.figures().streams == 0


async def test_a_wall_clock_that_goes_back_keeps_the_stream(talk: Conversation) -> None:
    """Its time has not come."""
    await talk.call("PEXPIRE", "s", "200")
    await talk.pass_ms(-1_000, 200)
    assert talk.engine.figures().streams == 1
    await talk.pass_ms(1_199)
    assert talk.engine.figures().streams == 1
    await talk.pass_ms(1)
    assert talk.engine.figures().streams == 0


async def test_many_go_in_several_turns(talk: Conversation) -> None:
    """More than one turn removes; commands come between."""
    for number in range(450):
        await talk.call("XADD", f"s{number}", "1-0", "a", "1")
        await talk.call("PEXPIRE", f"s{number}", "200")
    await talk.pass_ms(200)
    await settle()
    assert talk.engine.figures().streams == 1


async def test_what_expired_while_the_engine_was_down_goes_at_start() -> None:
    """By a record in the log, so that reading it again needs no clock."""
    storage = MemoryStorage()
    async with Conversation(storage, fsync="always") as talk:
        await talk.add("s", "5-0")
        await talk.add("t", "5-0")
        await talk.call("PEXPIRE", "s", "200")
    async with Conversation(storage.crash(), fsync="always") as talk:
        assert talk.engine.figures().streams == 2
        await talk.pass_ms(200)
        assert await talk.call("XLEN", "s", synced=True) == 0
        disk = talk.storage
        assert isinstance(disk, MemoryStorage)
        crashed, before = disk.crash(), image(keyspace_of(talk.engine))
        talk.clock.pass_ms(-10_000)
    # By a clock that says another time.
    async with Conversation(crashed, fsync="always") as talk:
        assert image(keyspace_of(talk.engine)) == before


async def test_a_restart_in_which_the_time_is_over_answers_at_once_without_the_stream() -> None:
    """Before the timer had a turn."""
    storage = MemoryStorage()
    async with Conversation(storage, fsync="always") as talk:
        await talk.add("s", "5-0")
        await talk.call("PEXPIRE", "s", "200")
    late = Conversation(storage.crash(), fsync="always")
    late.clock.pass_ms(200)
    async with late as talk:
        assert await talk.call("XLEN", "s") == 0


async def test_a_rewrite_keeps_lifetimes() -> None:
    """In the base, as the log had them."""
    storage = MemoryStorage()
    async with Conversation(storage) as talk:
        await talk.add("s", "5-0")
        await talk.call("PEXPIRE", "s", "5000")
        await talk.engine.rewrite()
        disk, before = storage.crash(), image(keyspace_of(talk.engine))
    async with Conversation(disk) as talk:
        assert image(keyspace_of(talk.engine)) == before
        assert await talk.call("PTTL", "s") == 5000


class TestEvents:
    """What happens to streams is reported to its subscribers, once it is safe."""

    async def test_each_turn_reports_what_it_changed(self, talk: Conversation) -> None:
        """In order, with Redis's names; reads are no events."""
        events: list[tuple[str, str]] = []
        talk.engine.events.changed = events.extend
        for words in (
            "XADD s 1-0 a 1",
            "XADD s MAXLEN 1 2-0 a 1",
            "XDEL s 2-0",
            "XTRIM s MAXLEN 0",
            "XSETID s 9-0",
            "XGROUP CREATE t g $ MKSTREAM",
            "XGROUP SETID t g 1-0",
            "XGROUP CREATECONSUMER t g a",
            "XREADGROUP GROUP g b STREAMS t >",
            "XGROUP DELCONSUMER t g a",
            "XGROUP DESTROY t g",
            "PEXPIRE t 1000",
            "PERSIST t",
            "XRANGE s - +",
            "DEL t",
            "PEXPIRE s 0",
        ):
            await talk.call(*words.split())
        assert events == [
            ("xadd", "s"),
            *(("xadd", "s"), ("xtrim", "s")),
            ("xdel", "s"),
            ("xsetid", "s"),
            *(("new", "t"), ("xgroup-create", "t")),
            ("xgroup-setid", "t"),
            ("xgroup-createconsumer", "t"),
            ("xgroup-createconsumer", "t"),
            ("xgroup-delconsumer", "t"),
            ("xgroup-destroy", "t"),
            ("expire", "t"),
            ("persist", "t"),
            ("del", "t"),
            ("del", "s"),
        ]

    async def test_an_expiry_is_reported_when_it_happens(self, talk: Conversation) -> None:
        """By the timer, or by the command that found the stream expired."""
        events: list[tuple[str, str]] = []
        talk.engine.events.changed = events.extend
        await talk.call("PEXPIRE", "s", "200")
        await talk.pass_ms(200)
        await talk.add("t", "1-0")
        await talk.call("PEXPIRE", "t", "200")
        talk.clock.pass_ms(200)
        await talk.call("XADD", "t", "1-0", "a", "1")
        assert events == [
            *(("expire", "s"), ("expired", "s")),
            *(("new", "t"), ("xadd", "t"), ("expire", "t")),
            *(("expired", "t"), ("new", "t"), ("xadd", "t")),
        ]

    async def test_nothing_is_reported_before_it_is_safe(self) -> None:
        """While the disk has not synced it a crash may take it back."""
        disk = SlowDisk()
        async with Conversation(disk, fsync="always") as talk:
            events: list[tuple[str, str]] = []
            talk.engine.events.changed = events.extend
            disk.hold()
            answer = await talk.begin("XADD", "s", "1-0", "a", "1")
            assert events == []
            disk.let_go()
            assert await answer == "1-0"
            assert events == [("new", "s"), ("xadd", "s")]

    async def test_who_asks_no_more_is_told_nothing(self, talk: Conversation) -> None:
        """And turns note nothing."""
        events: list[tuple[str, str]] = []
        talk.engine.events.changed = events.extend
        talk.engine.events.changed = None
        await talk.add("s", "1-0")
        assert events == []
        assert not keyspace_of(talk.engine).notifies
