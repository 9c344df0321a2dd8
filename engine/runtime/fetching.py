"""Reads runs from the disk in a thread, for commands that wait for them.

Knows: which commands wait for which runs, how many may, in which order a disk likes to be asked.
Must never know: what a command does with them.

    a command selects what it would do, and looks into a run that is not in memory
        → the command waits; a thread reads all that is wanted by now, in order of its place
        → the command runs again, and holds what was read until it is done
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Final

from engine import errors
from engine.commands.execution import Missing
from engine.errors import EngineError
from engine.runs import (
    DamagedRunError,
    HeldRuns,
    LoadedRun,
    Place,
    Run,
    Runs,
    refuse,
    unreadable,
    verify,
)

# Commands that wait for runs, of all and of one caller; and what they hold and wait for together, as a
# multiple of what is kept of the runs read last. One alone may have more, which is bounded by what a turn may
# look at.
_WAITING_MAX: Final = 64
_WAITING_OF_CALLER_MAX: Final = 16
_HELD_CACHES_MAX: Final = 2
# Bytes of one read: runs that stand side by side are read together. And of what is read before the first of
# those that wait go on.
_READ_BYTES_MAX: Final = 2 << 20
_TOGETHER_BYTES_MAX: Final = 16 << 20
# In the place of a caller's name. No caller has it.
_UNASKED: Final = "\0"

# Reads bytes of a file: its number, an offset, a length. Blocks; raises OSError.
ReadFile = Callable[[int, int, int], bytes]


class Fetcher:
    """The reads of one engine, on its event loop."""

    def __init__(self, runs: Runs, read: ReadFile) -> None:
        self._runs = runs
        self._read = read
        self._waiting: list[tuple[Missing, str, Callable[[], None]]] = []
        self._by_caller: Counter[str] = Counter()
        self._reading: asyncio.Task[None] | None = None
        self._count = self._held_bytes = 0
        self._held_bytes_max = _HELD_CACHES_MAX * runs.bytes_max
        self._thread = ThreadPoolExecutor(1, "weir-fetch")

    def __len__(self) -> int:
        return self._count

    def expect_room(self, missing: Missing, caller: str) -> None:
        """Refuse one more command that waits if there are too many, of all or of its caller, or if they hold
        too much.
        """
        asked = len(self) - self._by_caller[_UNASKED]
        is_too_much = asked and self._held_bytes + _held_bytes(missing) > self._held_bytes_max
        has_part = not caller or self._by_caller[caller] < _WAITING_OF_CALLER_MAX
        if asked >= _WAITING_MAX or is_too_much or not has_part:
            raise errors.too_many_waiters()

    def wait_unasked(self, missing: Missing, go_on: Callable[[], None]) -> None:
        """As `wait`, of what the engine has to do: it is never refused, and takes no part of the callers'."""
        self.wait(missing, _UNASKED, go_on)

    def wait(self, missing: Missing, caller: str, go_on: Callable[[], None]) -> None:
        """Call back once the runs were read, or found damaged."""
        self._count += 1
        self._by_caller[caller] += 1
        self._held_bytes += _held_bytes(missing)
        self._waiting.append((missing, caller, go_on))
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read_on())

    async def close(self) -> None:
        """Wait for the thread."""
        if self._reading is not None:
            await asyncio.wait((self._reading,))
        self._thread.shutdown(wait=False)

    async def _read_on(self) -> None:
        try:
            while self._waiting:
                waiting = self._take_waiting()
                read = await self._read_all({run.place: run for one, *_ in waiting for run in one.runs})
                self._count -= len(waiting)
                self._held_bytes -= sum([_held_bytes(one) for one, *_ in waiting])
                self._by_caller -= Counter([caller for _, caller, _ in waiting])
                for one, _, go_on in waiting:
                    one.held.update({run.place: read[run.place] for run in one.runs})
                    try:
                        go_on()
                    except Exception as error:  # noqa: BLE001 - the others go on in any case
                        _report("a command that waited for stored entries failed", error)
        finally:
            self._reading = None

    def _take_waiting(self) -> Sequence[tuple[Missing, str, Callable[[], None]]]:
        """The first ones, as many as are read together."""
        size, most = 0, min(_TOGETHER_BYTES_MAX, self._runs.bytes_max)
        for place, (missing, *_) in enumerate(self._waiting):
            size += sum([run.length for run in missing.runs])
            if size > most and place:
                taken, self._waiting = self._waiting[:place], self._waiting[place:]
                return taken
        taken, self._waiting = self._waiting, []
        return taken

    async def _read_all(self, wanted: Mapping[Place, Run]) -> HeldRuns:
        """What the thread gives. Where that fails in a way that no disk does, what waits is refused."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._fetch, list(wanted.values()))
            kept = {place: self._runs.keep(wanted[place], loaded) for place, loaded in found.items()}
        except EngineError as refusal:
            return dict.fromkeys(wanted, refusal)
        except Exception as error:  # noqa: BLE001 - each command gets an answer in any case
            _report("reading stored entries failed", error)
            return {place: errors.internal() for place in wanted}
        return {place: loaded or refuse(wanted[place]) for place, loaded in kept.items()}

    def _fetch(self, runs: Sequence[Run]) -> dict[Place, LoadedRun | DamagedRunError]:
        """In the thread."""
        found: dict[Place, LoadedRun | DamagedRunError] = {}
        for together in _side_by_side(sorted(runs, key=lambda run: run.place)):
            start, end = together[0].offset, together[-1].offset + together[-1].length
            try:
                content = self._read(together[0].file, start, end - start)
            except OSError as error:
                if len(together) > 1:
                    # The others are not refused for the one that cannot be read.
                    for run in together:
                        found |= self._fetch([run])
                else:
                    found[together[0].place] = unreadable(error)
                continue
            for run in together:
                part = content[run.offset - start : run.offset - start + run.length]
                found[run.place] = verify(run, part)
        return found


def _report(message: str, error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


def _held_bytes(missing: Missing) -> int:
    """What a command holds, and what it waits for."""
    held = sum([loaded.length for loaded in missing.held.values() if isinstance(loaded, LoadedRun)])
    return held + sum([run.length for run in missing.runs])


def _side_by_side(runs: Sequence[Run]) -> list[list[Run]]:
    """Ascending runs, those that may be read at once together."""
    groups: list[list[Run]] = []
    for _, of_file in groupby(runs, key=lambda run: run.file):
        fresh = True
        for run in of_file:
            last = groups[-1] if groups and not fresh else None
            if (
                last is not None
                and last[-1].offset + last[-1].length == run.offset
                and run.offset + run.length - last[0].offset <= _READ_BYTES_MAX
            ):
                last.append(run)
            else:
                groups.append([run])
            fresh = False
    return groups
