"""What an answer promises: nothing is shown that could still be lost, and what was promised is there again.

Knows: the engine on a modelled disk whose syncs wait, fail or find no room.
Must never know: how threads are used for it.
"""

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable
from random import Random
from string import ascii_letters

import pytest

from engine import Engine, EngineError, Fsync, ids
from engine.commands.types import XInfoStream
from engine.log import Log
from engine.records.changes import Configure
from engine.records.payload import encode
from engine.replies import StreamInfo
from engine.storage.memory import MemoryStorage
from tests.engine.asking import reply_of, reply_to
from tests.engine.clocks import HandClock, let_threads_run, settle
from tests.engine.conversation import Conversation, SlowDisk, read_of
from tests.engine.images import image
from tests.engine.running import keyspace_of
from tests.engine.world import NOW_MS, pairs_of

FAILED = "-MISCONF Errors writing to the log: the gateway is read-only until it is restarted"
FULL = "-MISCONF No space left for the log: nothing was changed, reads go on"
WAIT_S_MAX = 10.0
# What only removes may use half of the reserve.
REFUSED = ("XADD s * a 1", "XREADGROUP GROUP g a COUNT 1 STREAMS s >", "XGROUP CREATE s h 0")
SHOWING = ("XLEN s", "XRANGE s - +", "XREAD STREAMS s 0", "XINFO STREAM s", "XPENDING s no", "DBSIZE")
POLICIES: tuple[Fsync, ...] = ("always", "everysec", "no")


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what a thread is doing."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not await true():
        assert time.monotonic() < deadline, "it did not happen"
        await let_threads_run()


class TestVisibleMeansSafe:
    async def test_an_answer_waits_for_its_sync(self) -> None:
        """Under `always`; and so does every answer that would show what is not safe: of that stream."""
        disk = SlowDisk()
        async with Conversation(disk, "always") as talk:
            await talk.add("other", "1-0")
            disk.hold()
            adding = await talk.begin("XADD", "s", "1-0", "a", "1")
            words = [
                "XLEN s",
                "XRANGE s - +",
                "XREAD STREAMS s 0",
                "XINFO STREAM s",
                "XPENDING s no",
                "DBSIZE",
            ]
            dependent = [await talk.begin(*each.split()) for each in words]
            assert [task.done() for task in (adding, *dependent)] == [False] * 7
            assert await talk.call("XLEN", "other") == 1
            assert await talk.call("XREAD", "STREAMS", "none", "0") is None
            disk.let_go()
            assert await adding == "1-0"
            replies = [await task for task in dependent]
            assert replies[:3] == [1, [["1-0", ["a", "1"]]], read_of("s", "1-0")]

    async def test_a_woken_reader_waits_for_the_sync(self) -> None:
        """Of the entry, and of its own delivery."""
        disk = SlowDisk()
        async with Conversation(disk, "always") as talk:
            await talk.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
            words = ("BLOCK", "1000", "STREAMS", "s")
            plain = await talk.begin("XREAD", *words, "$")
            reader = await talk.begin("XREADGROUP", "GROUP", "g", "a", *words, ">")
            disk.hold()
            adding = await talk.begin("XADD", "s", "1-0", "a", "1")
            assert [task.done() for task in (plain, reader, adding)] == [False] * 3
            assert talk.engine.figures().waiting == 0
            disk.let_go()
            assert await plain == await reader == read_of("s", "1-0")

    @pytest.mark.parametrize("fsync", ["everysec", "no"])
    async def test_without_always_an_answer_waits_only_where_it_is_asked_to(self, fsync: Fsync) -> None:
        """It leaves once the system has the frame; `synced` waits for the disk."""
        disk = SlowDisk()
        async with Conversation(disk, fsync) as talk:
            disk.hold()
            assert await talk.call("XADD", "s", "1-0", "a", "1") == "1-0"
            synced = asyncio.ensure_future(talk.call("XADD", "s", "2-0", "a", "1", synced=True))
            await settle()
            assert await talk.call("XLEN", "s") == 2
            assert not synced.done()
            disk.let_go()
            assert await synced == "2-0"
            assert disk.crash().size("segment-1.weir") > 0

    @pytest.mark.parametrize("operation", ["sync", "append"])
    async def test_after_a_failure_nothing_unsafe_is_shown(self, operation: str) -> None:
        """What did not reach the disk is refused, read or written; what is safe is read on."""
        storage = MemoryStorage()
        async with Conversation(storage, "always") as talk:
            await talk.add("old", "1-0")
            storage.fail(operation, errno.EIO)
            assert await talk.call("XADD", "s", "1-0", "a", "1") == FAILED
            assert await talk.call("XLEN", "s") == FAILED
            assert await talk.call("XRANGE", "old", "-", "+") == [["1-0", ["a", "1"]]]
            before = image(keyspace_of(talk.engine))
            for words in ("XADD old 2-0 a 1", "XDEL old 1-0", "DEL old", "XGROUP CREATE old g 0"):
                assert await talk.call(*words.split()) == FAILED
            assert image(keyspace_of(talk.engine)) == before
        async with Conversation(storage.crash(), "always") as again:
            assert await again.call("XLEN", "old") == 1
            assert await again.call("XADD", "s", "1-0", "a", "1") == "1-0"

    async def test_readers_that_wait_learn_of_the_failure(self) -> None:
        """What woke them can't be given to them."""
        storage = MemoryStorage()
        async with Conversation(storage, "always") as talk:
            await talk.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
            words = ("BLOCK", "1000", "STREAMS", "s")
            readers = [
                await talk.begin("XREAD", *words, "$"),
                await talk.begin("XREADGROUP", "GROUP", "g", "a", *words, ">"),
            ]
            storage.fail("sync", errno.EIO)
            assert await talk.call("XADD", "s", "1-0", "a", "1") == FAILED
            assert [await reader for reader in readers] == [FAILED, FAILED]

    async def test_a_transaction_is_safe_as_a_whole(self) -> None:
        """One frame, one sync; the refusals in it leave with it."""
        disk = SlowDisk()
        async with Conversation(disk, "always") as talk:
            disk.hold()
            words = ("XADD s 1-0 a 1", "XADD s 1-0 a 1", "XLEN s")
            pending = asyncio.ensure_future(talk.transaction(*words))
            await settle()
            assert not pending.done()
            lost = disk.crash()
            disk.let_go()
            assert [str(reply)[:4] for reply in await pending] == ["1-0", "-ERR", "1"]
        async with Conversation(lost, "always") as again:
            assert await again.call("EXISTS", "s") == 0


class TestCrashes:
    async def test_under_always_every_answer_survives_a_power_cut(self) -> None:
        """At any moment after it was given."""
        storage = MemoryStorage()
        async with Conversation(storage, "always") as talk:
            await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
            for number in range(1, 6):
                await talk.add("s", f"{number}-0")
                await talk.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
                before = image(keyspace_of(talk.engine))
                async with Conversation(storage.crash(), "always") as again:
                    assert image(keyspace_of(again.engine)) == before
                talk.clock.drive(asyncio.get_running_loop())

    @pytest.mark.parametrize("fsync", POLICIES)
    async def test_every_answer_survives_a_kill(self, fsync: Fsync) -> None:
        """The system has what was answered, under each policy."""
        storage = MemoryStorage()
        async with Conversation(storage, fsync) as talk:
            await talk.add("s", "1-0", "2-0")
            before = image(keyspace_of(talk.engine))
            killed = storage.kill()
        async with Conversation(killed, fsync) as again:
            assert image(keyspace_of(again.engine)) == before

    async def test_under_everysec_no_answer_leaves_while_older_ones_wait_for_a_disk_that_hangs(self) -> None:
        """1.9 seconds after the oldest frame that is not synced, answers wait for the disk; not a moment
        sooner, and only as long as it takes.
        """
        disk = SlowDisk()
        async with Conversation(disk, "everysec") as talk:
            await talk.add("other", "1-0")
            await talk.call("XADD", "s", "5-0", "a", "1", synced=True)
            disk.hold()
            await talk.add("s", "5-1")
            await talk.pass_ms(1_000)
            await talk.pass_ms(899)
            just_in_time = await talk.begin("XADD", "s", "5-2", "a", "1")
            assert just_in_time.done()
            await talk.pass_ms(2)
            late = await talk.begin("XADD", "s", "5-3", "a", "1")
            reading = await talk.begin("XLEN", "s")
            assert not late.done()
            assert not reading.done(), "it would show what waits"
            assert await talk.call("XLEN", "other") == 1, "nothing of this stream waits"
            disk.let_go()
            assert await late == "5-3"
            assert await reading == 4
            assert (await talk.begin("XADD", "s", "5-4", "a", "1")).done()

    async def test_under_everysec_what_was_written_during_a_sync_is_as_old_as_that_sync(self) -> None:
        """The next sync is its own, so its second does not begin anew with that one."""
        disk = SlowDisk()
        async with Conversation(disk, "everysec") as talk:
            disk.hold()
            await talk.add("other", "5-0")
            await talk.pass_ms(1_000)
            await talk.add("s", "5-1")
            await talk.pass_ms(500)
            disk.let_one_go()
            assert await talk.call("XLEN", "other", synced=True) == 1
            await talk.pass_ms(1_399)
            assert (await talk.begin("XADD", "s", "5-2", "a", "1")).done()
            await talk.pass_ms(2)
            late = await talk.begin("XADD", "s", "5-3", "a", "1")
            assert not late.done()
            disk.let_go()
            assert await late == "5-3"

    async def test_under_everysec_a_second_is_at_risk(self) -> None:
        """What was answered more than a second ago survives a power cut."""
        storage = MemoryStorage()
        async with Conversation(storage, "everysec") as talk:
            await talk.add("s", "1-0")
            before = image(keyspace_of(talk.engine))
            await talk.pass_ms(1_000)

            async def synced() -> bool:
                return any(operation == ("sync", "segment-1.weir") for operation in storage.operations[-1:])

            await until(synced)
            await talk.add("s", "2-0")
            lost = storage.crash()
        async with Conversation(lost, "everysec") as again:
            assert image(keyspace_of(again.engine)) == before

    async def test_ids_after_a_crash_stay_above_what_was_shown_after_a_clean_stop_too(self) -> None:
        """The stream that showed them may not have been published to since, and the clock may be behind."""
        storage = MemoryStorage()
        async with Conversation(storage, "everysec") as talk:
            await talk.call("XADD", "s", "*", "a", "1", synced=True)
            shown = await talk.call("XADD", "s", "*", "a", "2")
            disk = storage.crash()
        for _ in range(2):
            async with Conversation(disk, "everysec"):
                pass
        async with Conversation(disk, "everysec") as again:
            again.clock.pass_ms(-100_000, 0)
            assert milliseconds(await again.call("XADD", "s", "*", "a", "3")) > milliseconds(shown)

    @pytest.mark.parametrize("fsync", ["everysec", "no"])
    async def test_ids_after_a_crash_are_above_all_that_were_shown(self, fsync: Fsync) -> None:
        """Decision 8: though the entries are lost and the clock stands where it stood; in every stream."""
        storage = MemoryStorage()
        async with Conversation(storage, fsync) as talk:
            shown = [str(await talk.call("XADD", "s", "*", "a", "1")) for _ in range(3)]
            await talk.pass_ms(2_000)
            shown.append(str(await talk.call("XADD", "s", "*", "a", "1")))
            lost = storage.crash()
        async with Conversation(lost, fsync) as again:
            again.clock.pass_ms(2_000)
            for stream in ("s", "new"):
                given = str(await again.call("XADD", stream, "*", "a", "1"))
                assert ids.parse(given) > max(ids.parse(each) or 0 for each in shown)  # type: ignore[operator]

    async def test_a_clean_stop_leaves_no_jump(self) -> None:
        """The next ID is the one that would have come anyway."""
        storage = MemoryStorage()
        async with Conversation(storage, "everysec") as talk:
            assert await talk.call("XADD", "s", "*", "a", "1") == f"{NOW_MS}-0"
        async with Conversation(storage.kill(), "everysec") as again:
            assert again.engine.recovery.clean_stop
            assert await again.call("XADD", "s", "*", "a", "1") == f"{NOW_MS}-1"
            assert await again.call("XADD", "new", "*", "a", "1") == f"{NOW_MS}-0"

    @pytest.mark.parametrize("fsync", ["everysec", "no"])
    async def test_numbers_within_a_time_that_the_client_names_are_never_given_twice(
        self, fsync: Fsync
    ) -> None:
        """No floor covers them, so they are synced before they are shown."""
        storage = MemoryStorage()
        async with Conversation(storage, fsync) as talk:
            assert await talk.call("XADD", "s", "5-*", "a", "1") == "5-0"
            assert await talk.call("XADD", "s", "5-*", "a", "2") == "5-1"
            lost = storage.crash()
        async with Conversation(lost, fsync) as again:
            assert await again.call("XADD", "s", "5-*", "a", "3") == "5-2"

    async def test_ids_far_ahead_of_the_clock_are_synced_before_they_are_shown(self) -> None:
        """No floor can cover them without moving every other stream there."""
        storage = MemoryStorage()
        async with Conversation(storage, "everysec") as talk:
            await talk.add("s", f"{NOW_MS + 10**9}-0")
            given = await talk.call("XADD", "s", "*", "a", "1")
            assert given == f"{NOW_MS + 10**9}-1"
            lost = storage.crash()
        async with Conversation(lost, "everysec") as again:
            assert await again.call("XADD", "s", "*", "a", "1") == f"{NOW_MS + 10**9}-2"
            new = ids.parse(str(await again.call("XADD", "new", "*", "a", "1")))
            assert new is not None
            assert ids.ms_of(new) < NOW_MS + 60_000

    async def test_of_ids_far_ahead_each_leaves_with_its_own_sync(self) -> None:
        """Those that come during a sync do not hold up those that it covers."""
        disk = SlowDisk()
        async with Conversation(disk, "everysec") as talk:
            await talk.add("s", f"{NOW_MS + 10**9}-0")
            disk.hold()
            first = await talk.begin("XADD", "s", "*", "a", "1")
            second = await talk.begin("XADD", "s", "*", "a", "1")
            disk.let_one_go()
            assert await first == f"{NOW_MS + 10**9}-1"
            assert not second.done()
            disk.let_go()
            assert await second == f"{NOW_MS + 10**9}-2"

    async def test_the_first_automatic_id_waits_for_the_floor(self) -> None:
        """It is shown only once a crash could not give it again."""
        disk = SlowDisk()
        async with Conversation(disk, "everysec") as talk:
            disk.hold()
            adding = await talk.begin("XADD", "s", "*", "a", "1")
            assert not adding.done()
            disk.let_go()
            assert await adding == f"{NOW_MS}-0"


class TestFullDisk:
    async def test_a_full_disk_refuses_before_anything_changes(self) -> None:
        """Decision 5: reads go on, and writes do by themselves when there is room again."""
        storage = MemoryStorage(space_bytes=40 << 20)
        async with Conversation(storage, "always") as talk:
            await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
            # First much at a time, then little, until not even a small frame has room.
            # Text that is hardly shorter packed: else a rewrite would find room by itself.
            letters = "".join(Random(1).choices(ascii_letters, k=1 << 20))
            added = [await _fill(talk, letters[:size]) for size in (1 << 20, 1 << 10, 1)]
            assert added[0] > 5
            storage.space_bytes = (storage.space_bytes or 0) - (storage.free_bytes() or 0)
            before = image(keyspace_of(talk.engine))
            for words in REFUSED:
                assert await talk.call(*words.split()) == FULL
            assert image(keyspace_of(talk.engine)) == before
            assert await talk.call("XLEN", "s") == sum(added)
            assert await talk.call("XTRIM", "s", "MAXLEN", "2") == sum(added) - 2, "what removes goes on"
            storage.space_bytes = None
            assert await talk.call("XADD", "s", "*", "a", "1")
            assert await talk.call("XTRIM", "s", "MAXLEN", "1") == 2
            lost = storage.crash()
        async with Conversation(lost, "always") as again:
            assert await again.call("XLEN", "s") == 1

    async def test_an_expired_stream_is_neither_read_nor_removed(self) -> None:
        """Its removal is logged first, for which there is no room."""
        storage = MemoryStorage(space_bytes=20 << 20)
        async with Conversation(storage, "always") as talk:
            await talk.add("old", "1-0")
            await talk.call("PEXPIRE", "old", "200")
            for size in (1 << 20, 1 << 10, 1):
                await _fill(talk, "x" * size)
            while await talk.call("PEXPIRE", "old", "200") == 1:
                pass
            await talk.pass_ms(200, 0)
            assert await talk.call("XLEN", "old") == FULL
            assert talk.engine.figures().streams == 2
            storage.space_bytes = None
            assert await talk.call("XLEN", "old") == 0
            assert talk.engine.figures().streams == 1

    async def test_a_transaction_is_refused_whole(self) -> None:
        """Not the first commands of it done and the others not."""
        storage = MemoryStorage()
        async with Conversation(storage, "always") as talk:
            storage.space_bytes = 0
            with pytest.raises(EngineError) as refused:
                await talk.transaction("XADD s 1-0 a 1", "XLEN s")
            assert refused.value.code == "storage_full"
            assert await talk.call("EXISTS", "s") == 0


async def _fill(talk: Conversation, value: str) -> int:
    """Add entries until there is no more room; how many it were."""
    added = 0
    while (reply := await talk.call("XADD", "s", "*", "a", value)) != FULL:
        assert not str(reply).startswith("-"), reply
        added += 1
    return added


class TestHousekeeping:
    async def test_idempotency_keys_expire(self) -> None:
        """By themselves, within a second of their time; the log has it."""
        storage = MemoryStorage()
        async with Conversation(storage, "always") as talk:
            await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
            await talk.call("XCFGSET", "s", "IDMP-DURATION", "1")
            first = await talk.call("XADD", "s", "IDMP", "p", "i", "*", "a", "1")
            await talk.pass_ms(900)
            assert await talk.call("XADD", "s", "IDMP", "p", "i", "*", "a", "1") == first
            await talk.pass_ms(1_100)
            tracked = pairs_of(await talk.call("XINFO", "STREAM", "s"))
            assert (tracked["pids-tracked"], tracked["iids-tracked"], tracked["iids-added"]) == (0, 0, 1)
            assert await talk.call("XADD", "s", "IDMP", "p", "i", "*", "a", "1") != first
            before = image(keyspace_of(talk.engine))
            lost = storage.crash()
        async with Conversation(lost, "always") as again:
            assert image(keyspace_of(again.engine)) == before

    async def test_cold_nodes_are_compressed(self) -> None:
        """In the background; a range gives what it gave."""
        async with Conversation(MemoryStorage(), "no") as talk:
            for number in range(1, 3_001):
                await talk.call("XADD", "s", f"{number}-0", "field", "value " * 10)
            everything = await talk.call("XRANGE", "s", "-", "+")
            # Reckoned, not asked for: some may be compressed already.
            plain_bytes = 3_000 * len('{"id":"1-0","fields":{"field":""}}' + "value " * 10)
            await talk.pass_ms(1_000)

            async def packed() -> bool:
                return await _held_bytes(talk) * 2 < plain_bytes

            await until(packed)
            assert await talk.call("XRANGE", "s", "-", "+") == everything

    async def test_an_idle_log_is_marked(self) -> None:
        """After a second of idling recovery may know that all before is on disk; once, not each second."""
        storage = MemoryStorage()
        async with Conversation(storage, "everysec") as talk:
            await talk.add("s", "1-0")
            sizes: list[int] = []
            for _ in range(6):
                await talk.pass_ms(1_000)
                await talk.call("DBSIZE", synced=True)
                sizes.append(storage.size("segment-1.weir"))
            assert len(set(sizes[2:])) == 1
            assert sizes[-1] > sizes[0]


class TestClosing:
    async def test_closing_ends_all_waits(self) -> None:
        """With a refusal that says why; and nothing is taken afterwards."""
        async with Conversation() as talk:
            await talk.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
            readers = [
                await talk.begin("XREAD", "BLOCK", "1000", "STREAMS", "s", "$"),
                await talk.begin("XREADGROUP", "GROUP", "g", "a", "BLOCK", "1000", "STREAMS", "s", ">"),
            ]
            await talk.close()
            assert [await reader for reader in readers] == ["-ERR the gateway is shutting down"] * 2
            assert await talk.call("XADD", "s", "1-0", "a", "1") == "-ERR the gateway is shutting down"
            assert talk.engine.figures().waiting == 0

    async def test_answers_under_way_leave_before_the_end(self) -> None:
        """What was taken is written, synced and answered."""
        disk = SlowDisk()
        async with Conversation(disk, "always") as talk:
            disk.hold()
            adding = await talk.begin("XADD", "s", "1-0", "a", "1")
            closing = asyncio.ensure_future(talk.close())
            await settle()
            disk.let_go()
            await closing
            assert await adding == "1-0"
        async with Conversation(disk.crash(), "always") as again:
            assert await again.call("XLEN", "s") == 1

    async def test_what_an_answer_means_is_told(self) -> None:
        """`fsync` under always, else `os`."""
        for fsync, durability in (("always", "fsync"), ("everysec", "os"), ("no", "os")):
            async with Conversation(MemoryStorage(), fsync) as talk:  # type: ignore[arg-type]
                assert talk.engine.durability == durability


async def _held_bytes(talk: Conversation) -> int:
    info = await reply_of(talk.engine, StreamInfo, XInfoStream(stream="s"))
    return info.memory_bytes


async def test_a_refusal_has_a_code_of_its_own() -> None:
    """APIs go by the code, not by Redis's sentence."""
    storage = MemoryStorage()
    async with Conversation(storage, "always") as talk:
        storage.fail("sync", errno.EIO)
        assert await talk.call("XADD", "s", "1-0", "a", "1") == FAILED
        with pytest.raises(EngineError) as refused:
            await reply_to(talk.engine, XInfoStream(stream="s"))
        assert refused.value.code == "storage_failed"


def milliseconds(entry_id: object) -> int:
    return int(str(entry_id).partition("-")[0])


def test_opening_tells_how_far_it_is() -> None:
    """Checking and loading both come to the end of the log, in steps."""
    storage = MemoryStorage()
    log = Log.open(storage)
    for number in range(1, 9_001):
        log.stage(encode([Configure("stream-node-max-entries", number)]))
    log.close()
    result: list[tuple[str, int, int]] = []
    Engine.open(storage.kill(), clock=HandClock(), on_progress=lambda *one: result.append(one))
    assert list(dict.fromkeys(step for step, _, _ in result)) == ["checking", "loading"]
    for step in ("checking", "loading"):
        done = [(behind, total) for each, behind, total in result if each == step]
        assert len(done) >= 2
        assert done == sorted(done)
        assert all(0 < behind <= total <= log.written_upto for behind, total in done)
