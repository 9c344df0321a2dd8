"""A damaged part of a stream in the way of a group: what goes on, and what a refusal says to do."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.storage.memory import MemoryStorage
from tests.engine.running import keyspace_of
from tests.engine.test_runs import Stored, hold_reads

_NEW = "XREADGROUP GROUP g b COUNT 1 STREAMS s >"
_HELD = "XREADGROUP GROUP g a STREAMS s 0"
_CLAIM = "XREADGROUP GROUP g b BLOCK 60000 CLAIM 500 STREAMS s >"


class Damaged(Stored):
    """A thousand entries in two runs, the first of which, 1-0 to 640-0, cannot be read. A group has some of
    both pending, those of the first for longer.
    """

    async def ask(self, words: str) -> Any:
        return await self.call(*words.split())

    async def damage(self) -> None:
        await self.fill(1_000)
        await self.ask("XGROUP CREATE s g 0")
        for first, count in ((0, 3), (638, 2), (640, 2), (997, 2)):
            await self.ask(f"XGROUP SETID s g {first}-0")
            await self.ask(f"XREADGROUP GROUP g a COUNT {count} STREAMS s >")
            await self.pass_ms(10)
        assert await self.store() == 2
        self.fetcher = self.engine._fetcher  # noqa: SLF001 - the disk is damaged
        self.runs = keyspace_of(self.engine).runs
        self.read = read = self.fetcher._read  # noqa: SLF001

        def give(file: int, offset: int, length: int) -> bytes:
            if not offset:
                raise OSError(errno.EIO, "a bad block")
            return read(file, offset, length)

        self.fetcher._read = give  # noqa: SLF001
        self.runs.read = lambda run: give(run.file, run.offset, run.length)

    def heal(self) -> None:
        self.fetcher._read = self.read  # noqa: SLF001
        self.runs.read = lambda run: self.read(run.file, run.offset, run.length)
        self.runs.damaged.clear()


@asynccontextmanager
async def damaged() -> AsyncIterator[Damaged]:
    async with Damaged(MemoryStorage()) as talk:
        await talk.damage()
        try:
            yield talk
        finally:
            talk.heal()


def ids_of(rows: list[Any]) -> list[str]:
    return [row[0] for row in rows]


def given(reply: Any) -> list[Any]:
    """The rows of the one stream."""
    ((_, rows),) = reply
    return list(rows)


@pytest.mark.parametrize("wait_ms", [600, 0])
async def test_claims_pass_over_what_cannot_be_read(wait_ms: int) -> None:
    """It stays pending; entries elsewhere are claimed, also by a reader that waits until they are free."""
    sound = ["641-0", "642-0", "998-0", "999-0"]
    async with damaged() as talk:
        await talk.ask("XGROUP SETID s g $")
        await talk.pass_ms(wait_ms)
        waiting = await talk.begin(*_CLAIM.split())
        if not wait_ms:
            assert not waiting.done()
            await talk.pass_ms(600)
        assert ids_of(given(await waiting)) == sound
        _, rows, gone = await talk.ask("XAUTOCLAIM s g c 0 0")
        assert (ids_of(rows), gone) == (sound, [])
        assert ids_of(await talk.ask("XCLAIM s g d 0 1-0 641-0")) == ["641-0"]
        assert (await talk.ask("XPENDING s g"))[0] == 9


async def test_a_reader_waits_although_all_that_is_free_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks ten times a second at most."""
    async with damaged() as talk:
        await talk.ask("XGROUP SETID s g $")
        await talk.ask("XACK s g 641-0 642-0 998-0 999-0")
        waiting = await talk.begin(*_CLAIM.split())
        ran: list[object] = []
        turns = talk.engine._turns  # noqa: SLF001 - to count
        run = turns.run_commands

        def count(*commands: Any, **more: Any) -> Any:
            ran.append(commands)
            return run(*commands, **more)

        monkeypatch.setattr(turns, "run_commands", count)
        for _ in range(200):
            await talk.pass_ms(10)
        assert not waiting.done()
        assert len(ran) < 30
        assert await talk.ask("XADD s 2000-0 n 1") == "2000-0"
        assert ids_of(given(await waiting)) == ["2000-0"]


@pytest.mark.parametrize("words", ["XTRIM MINID", "XGROUP SETID"])
async def test_the_refusal_of_what_cannot_be_read_says_how_to_go_on(words: str) -> None:
    """Give it up, or let the group read on behind it."""
    async with damaged() as talk:
        await talk.ask("XGROUP SETID s g 3-0")
        refusal = str(await talk.ask(_NEW))
        assert refusal.startswith("-MISCONF")
        entry_id = refusal.partition(words)[2].split()[0]
        remedy = f"XTRIM s MINID {entry_id}" if words == "XTRIM MINID" else f"XGROUP SETID s g {entry_id}"
        assert not str(await talk.ask(remedy)).startswith("-")
        assert ids_of(given(await talk.ask(_NEW))) == ["641-0"]


async def test_what_a_consumer_holds_and_cannot_be_read_goes_by_xack() -> None:
    """As the refusal says."""
    async with damaged() as talk:
        assert "XACK" in str(await talk.ask(_HELD))
        await talk.ask("XACK s g 1-0 2-0 3-0 639-0 640-0")
        assert ids_of(given(await talk.ask(_HELD))) == ["641-0", "642-0", "998-0", "999-0"]


@pytest.mark.parametrize("remedy", ["FLUSHALL", "DEL s", "XTRIM s MINID 641-0"])
@pytest.mark.parametrize("reads", ["before", "meanwhile"])
async def test_no_damage_is_known_of_files_that_are_gone(remedy: str, reads: str) -> None:
    """Also where the disk says so after its part of the stream has gone."""
    async with damaged() as talk:
        gate = hold_reads(talk.engine)
        begun = await talk.begin("XRANGE", "s", "1-0", "1-0")
        if reads == "before":
            gate.set()
            assert str(await begun).startswith("-MISCONF")
            assert talk.runs.damaged
        await talk.ask(remedy)
        gate.set()
        await begun
        await talk.ask("DEL s")
        assert not talk.runs.files
        assert not talk.runs.damaged
