"""`weir import`: streams from a running Redis into Weir.

Knows: which streams are meant, when to try again, when to stop, and what to say about the outcome.
Must never know: how a stream is copied, how either server is spoken to.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from app.cli.progress import Progress
from weir.cli import options, output
from weir.cli.failure import Failure

if TYPE_CHECKING:
    from stamina import Attempt

    from app.cli.migration.copying import Copy, Outcome

_REDIS_DEFAULT: Final = "redis://127.0.0.1:6379"
_COLUMNS: Final = ("stream", "entries", "renumbered", "deleted", "groups", "pending")
_FOUND: Final = ("stream", "length", "groups", "pending", "in_weir")
# How long one wait for new entries lasts.
_WAIT_MS: Final = 1_000
# How often Redis is asked for all its keys, to find new streams.
_LOOK_S: Final = 10.0
# Between attempts while a server is away.
_PAUSE_S_MIN: Final = 0.1
_PAUSE_S_MAX: Final = 5.0


def migrate(  # noqa: PLR0913 - a command's options are its parameters
    streams: Annotated[
        list[str] | None, typer.Argument(help="these streams; without: all of them", show_default=False)
    ] = None,
    *,
    redis: Annotated[
        str, typer.Option(envvar="REDIS_URL", help="where they are: redis://, rediss:// or unix://")
    ] = _REDIS_DEFAULT,
    match: Annotated[str, typer.Option(metavar="PATTERN", help="only names like this, as KEYS has it")] = "*",
    follow: Annotated[
        bool, typer.Option("--follow", help="then copy what is new, until Ctrl-C; the import stays open")
    ] = False,
    in_use: Annotated[
        bool, typer.Option("--in-use", help="others work on them in Weir already: add entries, touch nothing")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only tell what would be copied")] = False,
    as_json: options.Json = False,
    patience_ms: options.Patience = 60_000,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
) -> None:
    """Copy streams from a running Redis: entries with their IDs, groups, consumers, what is pending.

    When it was cut off, the same again goes on. What cannot be copied is told, and the exit code is 1.
    """
    if streams and match != "*":
        raise typer.BadParameter("names, or a pattern: not both", param_hint="--match")
    found = Import(redis, url, token_file, patience_ms, in_use=in_use)
    try:
        chosen = [os.fsencode(name) for name in streams or ()]
        if dry_run:
            rows = [found.plan(name) for name in chosen or found.names(match)]
            output.rows(rows, _FOUND, as_json=as_json)
        elif follow:
            _follow(found, chosen, match)
        else:
            for name in chosen or found.names(match):
                found.copy(name, is_last=True)
    except KeyboardInterrupt:
        found.show(as_json=as_json)
        output.say("stopped before the end: the same again goes on")
        raise typer.Exit(1) from None
    finally:
        found.close()
    if not dry_run:
        found.show(as_json=as_json)
    if found.has_problems:
        raise typer.Exit(1)


class Import:
    """An import of streams: its two connections, its copies, and what became of each stream."""

    def __init__(
        self, redis: str, url: str, token_file: Path | None, patience_ms: int, *, in_use: bool
    ) -> None:
        from app.cli.migration.peers import Door, Origin
        from weir.cli.gateway import connect

        self._patience_ms = patience_ms
        self._progress = Progress()
        self._in_use = in_use
        self.origin: Origin = Origin(redis)
        self._connected = ExitStack()
        client = self._connected.enter_context(connect(url, token_file, say=self._progress.say))
        self.target: Door = Door(client)
        self.copies: dict[bytes, Copy] = {}
        self._outcomes: dict[bytes, Outcome] = {}

    def close(self) -> None:
        """Hang up both."""
        self._progress.clear()
        self.origin.close()
        self._connected.close()

    def say(self, line: str) -> None:
        """A line that stays, beside what is shown of the progress."""
        self._progress.say(line)

    @property
    def has_problems(self) -> bool:
        return any(outcome.problems for outcome in self._outcomes.values())

    def names(self, match: str) -> list[bytes]:
        """The streams of Redis whose names are like that."""
        from app.cli.migration import reading

        return sorted(reading.streams(self.origin, os.fsencode(match)))

    def new_names(self, chosen: list[bytes], match: str) -> list[bytes]:
        """Those chosen, or else those like that, which nothing has become of yet."""
        return [name for name in chosen or self.names(match) if name not in self._outcomes]

    def outcome(self, stream: bytes) -> "Outcome":
        """What has become of a stream."""
        from app.cli.migration.copying import Outcome

        shown = output.plain(stream.decode(errors="backslashreplace"))
        return self._outcomes.setdefault(stream, Outcome(shown, self._progress.say, self._progress.show))

    def copy(self, stream: bytes, *, is_last: bool) -> None:
        """Copy a stream, trying again while patience lasts; `is_last` ends the import of it."""
        from app.cli.migration.copying import unfit
        from app.cli.migration.peers import Away

        outcome = self.outcome(stream)
        wrong = unfit(stream, "stream")
        if wrong is not None:
            self._give_up(stream, f"it was skipped: {wrong}")
            return
        try:
            for attempt in self._attempts():
                with attempt:
                    self.copies[stream] = self._copied(stream, outcome, is_last=is_last)
        except Away as away:
            raise Failure(f"{away}; the same again goes on") from None
        except Failure as failure:
            self._give_up(stream, str(failure))

    def _copied(self, stream: bytes, outcome: "Outcome", *, is_last: bool) -> "Copy":
        from app.cli.migration.copying import Copy

        copy = Copy(self.origin, self.target, stream, outcome, in_use=self._in_use)
        copy.begin()
        copy.settle(copy.advance())
        if is_last:
            copy.finish()
        return copy

    def _attempts(self) -> "Iterable[Attempt]":
        """Attempts while a server is away, for as long as patience lasts."""
        import stamina

        from app.cli.migration.peers import Away

        return stamina.retry_context(
            on=Away,
            attempts=None if self._patience_ms else 1,
            timeout=self._patience_ms / 1000 or None,
            wait_initial=_PAUSE_S_MIN,
            wait_max=_PAUSE_S_MAX,
            wait_jitter=_PAUSE_S_MIN,
        )

    def advance(self, stream: bytes) -> None:
        """Copy what is new."""
        from app.cli.migration.peers import Away

        try:
            self.copies[stream].advance()
        except Away:
            self.copy(stream, is_last=False)
        except Failure as failure:
            self._give_up(stream, str(failure))

    def _give_up(self, stream: bytes, sentence: str) -> None:
        self.copies.pop(stream, None)
        self.outcome(stream).trouble(sentence)

    def fresh(self) -> list[bytes]:
        """The streams that have new entries in Redis, after waiting for them for a while."""
        from app.cli.migration import reading

        if not self.copies:
            time.sleep(_WAIT_MS / 1000)
            return []
        for attempt in self._attempts():
            with attempt:
                positions = {stream: copy.position for stream, copy in self.copies.items()}
                return reading.grown(self.origin, positions, _WAIT_MS)
        raise AssertionError("an attempt returns or raises")

    def plan(self, stream: bytes) -> dict[str, object]:
        """What a stream has, and how far it is in Weir."""
        from app.cli.migration import reading
        from app.cli.migration.copying import unfit
        from engine import ids

        outcome, wrong = self.outcome(stream), unfit(stream, "stream")
        view = reading.view(self.origin, stream, ids.ID_MAX, 1)
        if view is None or wrong is not None:
            outcome.trouble(f"it was skipped: {wrong}" if wrong else "there is no such stream in Redis")
            return {"stream": outcome.stream, "problems": outcome.problems}
        copy = reading.view(self.target, stream, ids.ID_MAX, 1)
        return {
            "stream": outcome.stream,
            "length": view.length,
            "last_id": ids.format(view.last_id),
            "groups": len(view.groups),
            "pending": sum(group.pending for group in view.groups),
            "in_weir": None if copy is None else ids.format(copy.last_id),
        }

    def show(self, *, as_json: bool) -> None:
        """What became of the streams."""
        self._progress.clear()
        if self._outcomes:
            output.rows([one.row() for one in self._outcomes.values()], _COLUMNS, as_json=as_json)


def _follow(found: Import, chosen: list[bytes], match: str) -> None:
    with until_told() as told:
        try:
            _copy_what_comes(found, chosen, match, told)
        except KeyboardInterrupt:
            # It may have come in the midst of a reply.
            found.origin.close()
            found.say("the last of it, with groups and what is pending; again with --follow goes on")
            for name in [*found.copies, *found.new_names(chosen, match)]:
                found.copy(name, is_last=False)


def _copy_what_comes(found: Import, chosen: list[bytes], match: str, told: Event) -> NoReturn:
    looked_s = time.monotonic()
    for name in found.new_names(chosen, match):
        found.copy(name, is_last=False)
    found.say("caught up; copying what comes until Ctrl-C")
    # A library in whose code the signal came may have dropped what it raised.
    while not told.is_set():
        for name in found.fresh():
            found.advance(name)
        if time.monotonic() - looked_s > _LOOK_S:
            for name in found.new_names(chosen, match):
                found.copy(name, is_last=False)
            looked_s = time.monotonic()
    raise KeyboardInterrupt


@contextmanager
def until_told() -> Iterator[Event]:
    """Ctrl-C and SIGTERM end it in order, also where a shell in the background had them ignored. The event is
    set once either has come.
    """
    told = Event()

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        told.set()
        raise KeyboardInterrupt

    before = [(number, signal.signal(number, interrupt)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield told
    finally:
        for number, handler in before:
            signal.signal(number, handler)
