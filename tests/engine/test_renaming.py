"""RENAME, RENAMENX and COPY: what goes along, who is woken, and what the log has of it."""

import time
from typing import Final

import pytest

from engine.commands.keys import COPY_COST_MAX
from engine.commands.weir_commands import UpdateStream
from engine.keyspace import Caps, Keyspace
from engine.parts.keeping import kept_of
from engine.records.changes import CopyStream, RenameStream
from engine.records.payload import encode, replay
from engine.records.snapshot import Capture
from engine.runtime.turns import Touched
from engine.runtime.unsynced import UnsyncedPositions
from tests.engine.clocks import settle
from tests.engine.conversation import Conversation, read_of
from tests.engine.images import image
from tests.engine.real_redis import RealRedis
from tests.engine.world import World

NO_GROUP: Final = "-NOGROUP No such key '{}' or consumer group 'g' in XREADGROUP with GROUP option"


def rich() -> World:
    """Sealed nodes, holes, a group, pending and released entries, an idempotent key, a lifetime."""
    world = World()
    world.call("CONFIG", "SET", "stream-node-max-entries", 3)
    world.add("s", *(f"{number}-0" for number in range(1, 20)))
    world.call("XDEL", "s", "2-0", "8-0")
    world.call("XTRIM", "s", "MINID", "4-0")
    world.call("XGROUP", "CREATE", "s", "g", "4-0", "ENTRIESREAD", 4)
    world.read("g", "a", "s", ">", "COUNT", 6)
    world.read("g", "idle", "s", "0")
    world.call("XNACK", "s", "g", "FATAL", "IDS", 2, "9-0", "6-0")
    world.call("XADD", "s", "IDMP", b"\x00", "i", "*", "a", b"\xff")
    world.call("PEXPIRE", "s", 5000)
    return world


def shown(world: World, name: str) -> dict[object, object]:
    """All that Redis shows of a stream, and its lifetime."""
    return {**world.map("XINFO", "STREAM", name, "FULL", "COUNT", 0), "ttl": world.call("PTTL", name)}


def test_a_rename_takes_everything_along() -> None:
    """Under the new name it is a new generation, of which nothing is archived."""
    world = rich()
    world.execute(UpdateStream(stream="s", archived_up_to=5 << 64))
    before, generation = shown(world, "s"), world.keyspace.keys["s"].generation
    assert world.call("RENAME", "s", "t") == "OK"
    assert world.signalled == ["s", "t"]
    assert shown(world, "t") == before
    key = world.keyspace.keys["t"]
    assert key.generation != generation
    assert kept_of(key).archived_up_to == 0
    assert key.stream.removed_upto == 3 << 64
    assert world.call("KEYS", "*") == ["t"]
    world.check()
    world.pass_ms(5000)
    assert world.call("EXISTS", "t") == 0


def test_a_rename_replaces_what_has_the_name() -> None:
    """RENAMENX does not."""
    world = rich()
    world.add("t", "5-0")
    world.call("PEXPIRE", "t", 100)
    assert world.call("RENAMENX", "s", "t") == 0
    before = shown(world, "s")
    assert world.call("RENAME", "s", "t") == "OK"
    assert shown(world, "t") == before
    world.pass_ms(100)
    assert world.call("EXISTS", "t") == 1
    world.check()


def test_a_copy_has_everything_and_shares_nothing() -> None:
    """What happens to one of them does not happen to the other."""
    world = rich()
    before = shown(world, "s")
    assert world.call("COPY", "s", "t") == 1
    assert shown(world, "t") == shown(world, "s") == before
    assert world.keyspace.keys["t"].generation != world.keyspace.keys["s"].generation
    world.check()
    world.call("XACK", "t", "g", "5-0", "6-0")
    world.call("XDEL", "t", "10-0", "19-0")
    world.call("XADD", "t", "IDMP", b"\x00", "j", "*", "a", "1")
    world.call("XCLAIM", "t", "g", "b", 0, "7-0")
    world.call("XTRIM", "t", "MINID", "12-0")
    assert shown(world, "s") == before
    changed = shown(world, "t")
    world.call("XTRIM", "s", "MAXLEN", 0)
    world.call("XGROUP", "DELCONSUMER", "s", "g", "a")
    world.call("DEL", "s")
    assert shown(world, "t") == changed
    world.check()


def test_a_copy_replaces_only_when_told() -> None:
    """REPLACE."""
    world = rich()
    world.add("t", "5-0")
    assert world.call("COPY", "s", "t") == 0
    assert world.call("XLEN", "t") == 1
    assert world.call("COPY", "s", "t", "REPLACE") == 1
    assert shown(world, "t") == shown(world, "s")
    world.check()


def test_an_expired_stream_is_neither_copied_nor_in_the_way() -> None:
    """Nor renamed."""
    world = World()
    world.add("s", "1-0")
    world.add("t", "2-0")
    world.call("PEXPIRE", "s", 10)
    world.call("PEXPIRE", "t", 5)
    world.pass_ms(5)
    assert world.call("RENAMENX", "s", "t") == 1
    world.pass_ms(5)
    assert world.call("COPY", "t", "u") == 0
    world.check()


def test_a_copy_beyond_the_limit_of_streams_is_refused() -> None:
    """A rename makes none."""
    world = World()
    world.keyspace = Keyspace(caps=Caps(streams_max=1))
    world.add("s", "1-0")
    assert str(world.call("COPY", "s", "t")).startswith("-ERR no room for another stream")
    assert world.call("RENAME", "s", "t") == "OK"
    world.check()


def test_a_copy_of_more_than_one_turn_may_copy_is_refused() -> None:
    """By nodes here; the last that may."""
    world = World()
    world.call("CONFIG", "SET", "stream-node-max-entries", 1)
    for number in range(1, COPY_COST_MAX + 1):
        world.call("XADD", "s", f"{number}-0", "a", "1")
    assert world.call("COPY", "s", "t") == 1
    for number in range(COPY_COST_MAX + 1, COPY_COST_MAX + 3):
        world.call("XADD", "s", f"{number}-0", "a", "1")
    assert str(world.call("COPY", "s", "u")).startswith("-ERR the stream is too large to copy")


def test_a_transaction_sees_names_as_they_become() -> None:
    """One after the other, in one frame."""
    world = World()
    world.add("s", "1-0")
    replies = world.transaction(
        ["COPY", "s", "t"],
        ["RENAME", "s", "u"],
        ["XADD", "s", "7-0", "a", "1"],
        ["RENAME", "u", "t"],
        ["XLEN", "t"],
    )
    assert replies == [1, "OK", "7-0", "OK", 1]
    assert world.call("KEYS", "*") == ["s", "t"]
    world.check()


def test_a_copy_may_be_taken_back_by_a_crash_as_a_whole() -> None:
    """Until its frame is on the disk; so may what has a new name."""
    unsynced = UnsyncedPositions()
    unsynced.note_staged([CopyStream("t", "s", "g"), RenameStream("a", "b", "g")], 100)
    assert [unsynced.lowest(name) for name in ("t", "b")] == [1, 1]
    assert unsynced.note_synced(100) == ["t", "b"]
    assert unsynced.lowest("t") > 1 << 127


def test_an_answer_about_either_name_depends_on_the_rename() -> None:
    """And about none else."""
    touched = Touched()
    touched.note([RenameStream("a", "b", "g")], 100)
    assert [touched.upto([name]) for name in "abc"] == [100, 100, 0]


class TestReadersThatWait:
    async def test_readers_of_the_new_name_get_what_comes_to_it(self) -> None:
        """Those of the old name are refused, or go on waiting."""
        async with Conversation() as talk:
            await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
            await talk.call("XGROUP", "CREATE", "t", "g", "0", "MKSTREAM")
            group_of = ("XREADGROUP", "GROUP", "g", "a", "BLOCK", "1000", "STREAMS")
            old = [
                await talk.begin(*group_of, "s", ">"),
                await talk.begin("XREAD", "BLOCK", "1000", "STREAMS", "s", "0"),
            ]
            new = [
                await talk.begin(*group_of, "t", ">"),
                await talk.begin("XREAD", "BLOCK", "1000", "STREAMS", "t", "0"),
            ]
            await talk.transaction("XADD u 1-0 a 1", "XGROUP CREATE u g 0", "RENAME u t", "RENAME s w")
            await settle()
            assert [await reader for reader in new] == [read_of("t", "1-0"), read_of("t", "1-0")]
            assert await old[0] == NO_GROUP.format("s")
            assert not old[1].done()
            await talk.add("s", "7-0")
            assert await old[1] == read_of("s", "7-0")

    async def test_a_copy_wakes_readers_of_its_name(self) -> None:
        """As an entry does."""
        async with Conversation() as talk:
            await talk.add("s", "1-0", "2-0")
            reader = await talk.begin("XREAD", "BLOCK", "1000", "STREAMS", "t", "1-0")
            await talk.call("COPY", "s", "t")
            assert await reader == read_of("t", "2-0")

    async def test_events_name_both(self) -> None:
        """In Redis's order."""
        async with Conversation() as talk:
            events: list[tuple[str, str]] = []
            await talk.add("s", "1-0")
            talk.engine.events.changed = events.extend
            await talk.call("RENAME", "s", "t")
            await talk.call("COPY", "t", "u")
            await talk.call("RENAME", "t", "t")
            assert events == [
                *(("new", "t"), ("rename_from", "s"), ("rename_to", "t")),
                *(("new", "u"), ("copy_to", "u")),
            ]


def test_a_rewrite_under_way_holds_what_is_renamed() -> None:
    """A snapshot that began before has the stream under its old name, and nothing of the copy."""
    world = rich()
    world.add("t", "5-0")
    expected = image(world.keyspace)
    capture = Capture(world.keyspace)
    world.call("COPY", "s", "u")
    world.call("RENAME", "s", "t")
    restored = Keyspace()
    for record in capture.records():
        replay(restored, encode([record]))
    assert image(restored) == expected


WORDS: Final = (
    *("RENAME", "RENAME s", "RENAME s t u", "RENAMENX s", "COPY s", "RENAME missing t", "RENAMENX missing t"),
    *("RENAME missing missing", "RENAMENX missing missing", "RENAME s s", "RENAMENX s s", "COPY s s"),
    *(
        "COPY missing missing",
        "COPY missing t",
        "COPY s s REPLACE",
        "COPY s s DB 0",
        "COPY s t DB",
        "COPY s t DB x",
    ),
    *("COPY s t DB 99999999999", "COPY s t DB 2147483648", "COPY s t DB 2147483647", "COPY s t DB -1"),
    *(
        "COPY s t REPLACE REPLACE",
        "COPY s t ZZ",
        "COPY s t ZZ DB x",
        "COPY s t DB 0 ZZ",
        "COPY s t DB 0 DB 0",
    ),
    *(
        "COPY s t",
        "COPY s o",
        "COPY s o replace",
        "RENAMENX s o",
        "RENAME s o",
        "RENAMENX s t",
        "COPY missing o REPLACE",
    ),
)


@pytest.mark.parametrize("words", WORDS)
def test_every_form_beside_redis(server: RealRedis, words: str) -> None:
    """Reply, and what there is afterwards."""
    server.empty()
    world = World(time.time_ns() // 1_000_000)

    def both(*words: str) -> None:
        reply, expected = world.call(*words), server.call(*words)
        assert (reply.replace("-ERR ", "-") if isinstance(reply, str) else reply) == expected, words

    for first in ("XADD s 5-0 a 1", "XADD o 7-0 b 2", "PEXPIREAT s 4102444800000", "XGROUP CREATE s g 0"):
        both(*first.split())
    both(*words.split())
    for name in "sto":
        both("XRANGE", name, "-", "+")
        both("PEXPIRETIME", name)
        both("XPENDING", name, "g")
