"""`weir import`: streams from a running Redis into Weir.

Knows: which streams are meant, when to try again, when to stop, and what to say about the outcome.
Must never know: how a stream is copied, how either server is spoken to.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, Self, TextIO, TypeVar

import typer

from app.cli.migration.stopping import Stop, Stopped
from weir.cli import options, output
from weir.cli.failure import Failure

if TYPE_CHECKING:
    from app.cli.migration.copying import CopyReport, StreamCopy

_T = TypeVar("_T")

_REDIS_DEFAULT: Final = "redis://127.0.0.1:6379"
_COLUMNS: Final = ("stream", "entries", "renumbered", "deleted", "groups", "pending")
_FOUND: Final = ("stream", "length", "groups", "pending", "in_weir")
# How long one wait for new entries lasts.
_WAIT_MS: Final = 1_000
# How often Redis is asked for all its keys, to find new streams.
_LOOK_S: Final = 10.0
# Between attempts while a server is away.
_PAUSE_S_MIN: Final = 0.1
_PAUSE_S_MAX: Final = 1.0
# How often it is shown how far it is: on a terminal, and in a log, which gets some hundred lines in an hour.
_TERMINAL_S: Final = 0.2
_LOG_S: Final = 10.0
_CLEAR: Final = "\r\x1b[K"


class Progress:
    """`show` what is under way as often as it changes; `say` what stays; `clear` at the end."""

    def __init__(self, target: TextIO = sys.stderr, now_s: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._now_s = now_s
        self._is_terminal = target.isatty()
        # A short command says nothing in a log, and at once how far it is on a terminal.
        self._next_s = now_s() + (0.0 if self._is_terminal else _LOG_S)
        self._is_shown = False

    def show(self, line: str) -> None:
        """Write how far it is, if it is time to."""
        now_s = self._now_s()
        if now_s < self._next_s:
            return
        if self._is_terminal:
            self._target.write(f"{_CLEAR}{output.plain(line)}")
            self._is_shown = True
        else:
            self._target.write(f"weir: {output.plain(line)}\n")
        self._target.flush()
        self._next_s = now_s + (_TERMINAL_S if self._is_terminal else _LOG_S)

    def say(self, line: str) -> None:
        """Write a line that stays."""
        self.clear()
        self._target.write(f"weir: {output.plain(line)}\n")
        self._target.flush()

    def clear(self) -> None:
        """Take away what is shown on a terminal."""
        if self._is_shown:
            self._target.write(_CLEAR)
            self._target.flush()
            self._is_shown = False


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What is imported, from where, and how far the import goes."""

    streams: Annotated[
        list[str] | None, typer.Argument(help="streams to copy; without: all", show_default=False)
    ] = None
    redis: Annotated[
        str, typer.Option(envvar="REDIS_URL", help="URL of the Redis: redis://, rediss:// or unix://")
    ] = _REDIS_DEFAULT
    match: Annotated[str, typer.Option(metavar="PATTERN", help="only names like this, as KEYS has it")] = "*"
    follow: Annotated[
        bool, typer.Option("--follow", help="then copy what is new, until Ctrl-C; the import stays open")
    ] = False
    in_use: Annotated[
        bool, typer.Option("--in-use", help="clients of Weir use them already: only add entries")
    ] = False
    cut_over: Annotated[
        bool, typer.Option("--cut-over", help="all clients of Redis are stopped: compare it all, then finish")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be copied")] = False
    as_json: options.Json = False
    patience_ms: options.Patience = 60_000
    url: options.Url = options.DEFAULT_URL
    token_file: options.TokenFile = None
    ca: options.Ca = None

    def __post_init__(self) -> None:
        """Raises typer.BadParameter for options that exclude each other."""
        if self.streams and self.match != "*":
            raise typer.BadParameter("it does not go with names of streams", param_hint="--match")
        if self.cut_over and (self.follow or self.in_use or self.dry_run):
            raise typer.BadParameter(
                "it goes without --follow, --in-use and --dry-run", param_hint="--cut-over"
            )


def migrate(given: ImportOptions) -> None:
    """Copy streams from a running Redis: entries with their IDs, groups, consumers, what is pending.

    After an interruption, run the same command again: it goes on. What cannot be copied is listed, and the
    exit code is 1.
    """
    stop = Stop()
    with stop.listening():
        running = Import(given, stop)
        try:
            with running:
                _run(running, given)
        except KeyboardInterrupt:
            stop.forget()
            running.show(as_json=given.as_json)
            output.say("stopped before the end: run the same command again to go on")
            raise typer.Exit(1) from None
    if not given.dry_run:
        running.show(as_json=given.as_json)
    if running.has_problems:
        raise typer.Exit(1)


def _run(running: "Import", given: ImportOptions) -> None:
    chosen = [os.fsencode(name) for name in given.streams or ()]
    if given.follow and not given.dry_run:
        _follow(running, chosen, given.match)
        return
    names = chosen or running.names(given.match)
    if given.dry_run:
        output.rows([running.plan(name) for name in names], _FOUND, as_json=given.as_json)
        return
    for name in names:
        running.copy(name, is_last=True)


class Import:
    """An import of streams: its two connections, its copies, and the outcome of each stream."""

    def __init__(self, given: ImportOptions, stop: Stop) -> None:
        from app.cli.migration.peers import CommandApi, SourceRedis
        from weir.cli.gateway import connect

        self._patience_ms = given.patience_ms
        self._progress = Progress()
        self._in_use = given.in_use
        self._verifies = given.cut_over
        self._stop = stop
        self.origin: SourceRedis = SourceRedis(given.redis, stop.check)
        self._connected = ExitStack()
        client = self._connected.enter_context(
            connect(given.url, given.token_file, given.ca, say=self._progress.say)
        )
        self.target: CommandApi = CommandApi(client, stop.check)
        self.copies: dict[bytes, StreamCopy] = {}
        self._given_up = set[bytes]()
        self._outcomes: dict[bytes, CopyReport] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Hang up both. An error may be another one afterwards, with a sentence about the options."""
        self._progress.clear()
        self.origin.close()
        return self._connected.__exit__(kind, error, trace)

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
        """Those chosen, or else those like that, of which there is no copy yet."""
        known = self.copies.keys() | self._given_up
        return [name for name in chosen or self.names(match) if name not in known]

    def outcome(self, stream: bytes) -> "CopyReport":
        """What has become of a stream."""
        from app.cli.migration.copying import CopyReport

        shown = output.plain(stream.decode(errors="backslashreplace"))
        return self._outcomes.setdefault(stream, CopyReport(shown, self._progress.say, self._progress.show))

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
            self.copies[stream] = self._patiently(lambda: self._copied(stream, outcome, is_last=is_last))
        except Away as away:
            raise Failure(f"{away}; run the same command again to go on") from None
        except Failure as failure:
            self._give_up(stream, str(failure))

    def _patiently(self, act: Callable[[], _T]) -> _T:
        """Act again while a server is away, for as long as patience lasts. Raises Away at its end."""
        from app.cli.migration.peers import Away

        deadline_s, pause_s = time.monotonic() + self._patience_ms / 1000, _PAUSE_S_MIN
        while True:
            try:
                return act()
            except Away as away:
                if time.monotonic() >= deadline_s:
                    raise
                if pause_s == _PAUSE_S_MIN:
                    self.say(f"{away}; trying again")
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _copied(self, stream: bytes, outcome: "CopyReport", *, is_last: bool) -> "StreamCopy":
        from app.cli.migration.copying import StreamCopy

        copy = StreamCopy(self.origin, self.target, stream, outcome, in_use=self._in_use)
        copy.begin()
        copy.settle(copy.advance())
        if is_last and (not self._verifies or self._is_same(stream, outcome)):
            copy.finish()
        return copy

    def _is_same(self, stream: bytes, outcome: "CopyReport") -> bool:
        """Compare all of a stream; what differs is a problem, and the import of it stays open."""
        from app.cli.migration.copying import MARK
        from app.cli.migration.verifying import Verification

        verified = Verification(self.origin, self.target, stream, MARK).run()
        for difference in verified.differences:
            outcome.trouble(difference)
        if not verified.differences:
            compared = f"(entries {verified.entries:,}, pending {verified.pending:,})"
            self.say(f"{outcome.stream}: the same in Redis and in Weir {compared}")
        return not verified.differences

    def advance(self, stream: bytes) -> None:
        """Copy what is new."""
        from app.cli.migration.peers import Away

        try:
            self.copies[stream].advance()
        except Away:
            self.copy(stream, is_last=False)
        except Failure as failure:
            self._give_up(stream, str(failure))

    def hurry(self) -> None:
        """From now on, do not wait for a server that is away."""
        self._patience_ms = 0

    def _give_up(self, stream: bytes, sentence: str) -> None:
        self.copies.pop(stream, None)
        self._given_up.add(stream)
        self.outcome(stream).trouble(sentence)

    def fresh(self) -> list[bytes]:
        """The streams that have new entries in Redis, after waiting for them for a while."""
        from app.cli.migration import reading

        if not self.copies:
            time.sleep(_WAIT_MS / 1000)
            self._stop.check()
            return []
        positions = {stream: copy.position for stream, copy in self.copies.items()}
        return self._patiently(lambda: reading.grown(self.origin, positions, _WAIT_MS))

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
        """Print the outcome of each stream."""
        self._progress.clear()
        if self._outcomes:
            output.rows([outcome.row() for outcome in self._outcomes.values()], _COLUMNS, as_json=as_json)


def _follow(running: Import, chosen: list[bytes], match: str) -> None:
    try:
        follow(running, chosen, match)
    except Stopped:
        running.say("copying the rest, with groups and pending entries; run it again with --follow to go on")
        running.hurry()
        for name in [*running.copies, *running.new_names(chosen, match)]:
            running.copy(name, is_last=False)


def follow(
    running: Import, chosen: list[bytes], match: str, now_s: Callable[[], float] = time.monotonic
) -> NoReturn:
    """Copy existing entries, and then new ones. Raises Stopped."""
    looked_s = now_s()
    for name in running.new_names(chosen, match):
        running.copy(name, is_last=False)
    running.say("caught up; copying what comes until Ctrl-C")
    while True:
        for name in running.fresh():
            running.advance(name)
        if now_s() - looked_s > _LOOK_S:
            for name in running.new_names(chosen, match):
                running.copy(name, is_last=False)
            looked_s = now_s()
