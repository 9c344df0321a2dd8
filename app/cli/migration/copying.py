"""One stream's way from Redis to Weir.

Knows: in which order things are copied, so that a copy may be cut off at any moment and goes on; what makes a
stream in Weir the copy of this one; what cannot be copied.
Must never know: sockets, how the outcome is shown.

Entries come first, in turns of up to 1 000, each with its own ID: the last ID of the copy is where to go on.
Then comes what may change behind them: groups, pending entries, deletions, counters. A pending entry whose
entry was deleted gets one for a moment, within one turn: claiming by force needs it.

While a copy is not finished, its stream in Weir has a group MARK. It says that everything in this stream is
Redis's, so that what Redis deleted may be deleted here. Once others publish to Weir (`in_use`), entries are
added and nothing else is touched; then the mark's last-delivered ID is how far Redis's have been copied.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from app import names
from app.cli.migration import reading
from app.cli.migration.appending import TOO_SMALL, append
from app.cli.migration.peers import TURN_BYTES_MAX, Command, CommandApi, Peer, RefusedReply, Reply, TooLarge
from app.cli.migration.reading import Pending, SourceEntry, SourceGroup, View
from engine import EngineError, ids
from engine.commands.turn import TURN_COMMANDS_MAX
from weir.cli.failure import Failure
from weir.cli.output import plain

MARK: Final = b"weir:import"
# A consumer of that group's: since then entries are only added.
_IN_USE: Final = b"in-use"
# Of one transaction, which ends with XLEN: an entry that is gone takes two commands.
_COMMANDS_MAX: Final = (TURN_COMMANDS_MAX - 1) // 2
_WINDOW_ENTRIES: Final = 100
# What two clocks' readings may be apart; below it a pending entry has not been delivered again.
_CLOCK_MS_MAX: Final = 50
_SHOWN_IDS_MAX: Final = 10
# Entries that are looked for in one turn: each may be as long as an entry may be.
_LOOKS_MAX: Final = 4

T = TypeVar("T")


@dataclass
class CopyReport:
    """What was done for a stream. `pending` counts what is pending in Weir; `problems` are sentences, each
    printed at once. `show` gets how far the copy is.
    """

    stream: str
    say: Callable[[str], None]
    show: Callable[[str], None]
    entries: int = 0
    renumbered: int = 0
    deleted: int = 0
    groups: int = 0
    pending: int = 0
    problems: list[str] = field(default_factory=list)

    def trouble(self, sentence: str) -> None:
        """Remember what could not be done, once."""
        if sentence not in self.problems:
            self.problems.append(sentence)
            self.say(f"{self.stream}: {sentence}")

    def advanced(self, length: int) -> None:
        """Show how far the copy of a stream of this length is."""
        self.show(f"{self.stream}: {self.entries:,} entries copied, Redis has {length:,}")

    def row(self) -> dict[str, object]:
        """Its members by name."""
        return {name: value for name, value in vars(self).items() if name not in ("say", "show")}


class PendingClaim(NamedTuple):
    """A pending entry of a group."""

    group: bytes
    pending: Pending


class Item(NamedTuple):
    """What a stream has under an ID: its entry, or else the claims on the entry that was deleted.

    `is_trimmed` where Redis has nothing up to this ID.
    """

    id: int
    entry: SourceEntry | None
    claims: list[PendingClaim]
    is_trimmed: bool


class StreamCopy:
    """A stream being copied: `begin`, then `advance` as often as there is more, `settle`, `finish`.

    `position` is the last ID of Redis that has been dealt with. Any of the methods raises Away with the copy
    in a state that a new `begin` goes on from, and Failure where this stream cannot be copied.
    """

    def __init__(
        self, origin: Peer, target: CommandApi, stream: bytes, outcome: CopyReport, *, in_use: bool
    ) -> None:
        self._origin = origin
        self._target = target
        self._stream = stream
        self.outcome = outcome
        self._in_use = in_use
        self.position = 0
        # How many entries the copy has, as far as is known.
        self._length = 0
        # Whether all that the stream in Weir has is from Redis, by its mark.
        self._is_ours = True
        self._groups: set[bytes] = set()
        self._left_alone: set[bytes] = set()
        self._not_taken: list[int] = []

    def begin(self) -> None:
        """Find out where to go on. Raises Failure where the stream in Weir is not a copy of Redis's."""
        source = self._source(ids.ID_MAX, 1)
        copied = reading.view(self._target, self._stream, ids.ID_MAX, 1)
        groups = {} if copied is None else {group.name: group for group in copied.groups}
        is_marked = copied is None or MARK in groups
        users = reading.consumers(self._target, self._stream, MARK) if MARK in groups else []
        if self._in_use:
            if not is_marked:
                raise Failure(
                    "no import of it is under way: --in-use continues an import that began without it"
                )
            self.position = groups[MARK].last_delivered_id if MARK in groups else 0
        elif _IN_USE in users:
            raise Failure("it was continued with --in-use before: only --in-use adds to it")
        elif copied is not None:
            self._recognise(source, copied, is_marked=is_marked)
            self.position = copied.last_id
        self._is_ours = is_marked
        if copied is not None:
            self._length = copied.length
        self._mark(copied, users)
        self._groups = set(groups) - {MARK}
        for group in source.groups:
            copy = groups.get(group.name)
            if copy is not None and copy.last_delivered_id > group.last_delivered_id and not self._in_use:
                self._left_alone.add(group.name)
                shown = _shown(group.name)
                self.outcome.trouble(
                    f"group {shown} is ahead in Weir and was left as it is: workers are at it"
                )

    def advance(self) -> View:
        """Copy entries until there are no more; the stream at the moment when there were none."""
        count = reading.PAGE_ENTRIES_FIRST
        while True:
            view = self._source(self.position, count)
            if not self._in_use:
                self._add_groups(view)
            is_all = len(view.page) < count
            upto = max(self.position, view.last_id) if is_all else view.page[-1].id
            if self._in_use:
                self._append(view.page, upto)
            else:
                for items in _turns(self._items(view, upto)):
                    if self._is_ours and self._length and items[0].is_trimmed:
                        self._trim(view)
                    self._store(items)
            self.position = upto
            self.outcome.advanced(view.length)
            if is_all:
                return view
            count = reading.fitting(count, view.page)

    def settle(self, view: View) -> None:
        """Make groups, pending entries, deletions and counters what they are in Redis."""
        if self._in_use:
            return
        groups = [group for group in view.groups if self._takes(group.name)]
        self.outcome.groups, self.outcome.pending = len(groups), 0
        for group in groups:
            self._copy_consumers(group)
            self.outcome.pending += self._copy_pending(group, ids.ID_MAX)
            self._remove_consumers(group)
        self._delete(view)
        self._copy_counters(view, groups)

    def finish(self) -> None:
        """Take the mark away: from now on the stream is Weir's, and expires as it would have in Redis. Until
        then it does not: what prolongs a lifetime in Redis may not have come here yet.
        """
        commands: list[Command] = [("XGROUP", "DESTROY", self._stream, MARK)]
        at_ms = None if self._in_use else reading.expires_at_ms(self._origin, self._stream)
        if at_ms is not None:
            commands.append(("PEXPIREAT", self._stream, at_ms))
        self._run(commands)

    # Where to begin

    def _source(self, after: int, count: int) -> View:
        view = reading.view(self._origin, self._stream, after, count)
        if view is None:
            raise Failure("there is no such stream in Redis")
        return view

    def _mark(self, copied: View | None, users: Sequence[bytes]) -> None:
        commands: list[Command] = []
        if copied is None or all(group.name != MARK for group in copied.groups):
            commands.append(("XGROUP", "CREATE", self._stream, MARK, ids.format(self.position), "MKSTREAM"))
        if self._in_use and _IN_USE not in users:
            commands.append(("XGROUP", "CREATECONSUMER", self._stream, MARK, _IN_USE))
        self._run(commands)

    def _recognise(self, source: View, copied: View, *, is_marked: bool) -> None:
        """Raise Failure unless the stream in Weir is the beginning of Redis's: both ends are compared."""
        if copied.last_id > source.last_id:
            raise Failure(
                f"its last ID is {ids.format(copied.last_id)} in Weir "
                f"and {ids.format(source.last_id)} in Redis: "
                "others publish to it in Weir already"
            )
        newest = reading.newest(self._target, self._stream, _WINDOW_ENTRIES)
        windows = [newest]
        if copied.length > len(newest):
            windows.insert(0, list(_first(self._target, self._stream)))
        in_common = sum(self._compare_window(window, is_marked=is_marked) for window in windows if window)
        if copied.length and not in_common and not is_marked:
            raise Failure(f"{_FOREIGN}: they have no entry in common")

    def _compare_window(self, window: list[SourceEntry], *, is_marked: bool) -> int:
        """How many of these entries Redis has; Failure where it has others."""
        mine = reading.entries(self._origin, self._stream, window[0].id, window[-1].id)
        in_common = 0
        for entry_id, entry, copy in reading.joined(mine, iter(window)):
            if entry is not None and copy is not None:
                if entry != copy:
                    raise Failure(f"{_FOREIGN}: {ids.format(entry_id)} differs")
                in_common += 1
            elif entry is None and not is_marked:
                raise Failure(f"{_FOREIGN}: Redis has no {ids.format(entry_id)}")
        return in_common

    # Groups

    def _takes(self, group: bytes) -> bool:
        return group in self._groups and group not in self._left_alone

    def _add_groups(self, view: View) -> None:
        """Make the groups that are new, where they stand: a worker that comes early does not begin anew."""
        for group in view.groups:
            if group.name in self._groups or group.name in self._left_alone:
                continue
            wrong = unfit(group.name, "group") or (
                "its name is the import's own" if group.name == MARK else None
            )
            if wrong is not None:
                self._left_alone.add(group.name)
                self.outcome.trouble(f"group {_shown(group.name)} was skipped: {wrong}")
                continue
            start = ids.format(group.last_delivered_id)
            self._run([("XGROUP", "CREATE", self._stream, group.name, start)])
            self._groups.add(group.name)

    def _copy_consumers(self, group: SourceGroup) -> None:
        commands: list[Command] = []
        for consumer in reading.consumers(self._origin, self._stream, group.name):
            wrong = unfit(consumer, "consumer")
            if wrong is None:
                commands.append(("XGROUP", "CREATECONSUMER", self._stream, group.name, consumer))
            else:
                where = f"consumer {_shown(consumer)} of group {_shown(group.name)}"
                self.outcome.trouble(f"{where} was skipped, what is pending there was released: {wrong}")
        for some in _chunks(commands):
            self._run(some)

    def _remove_consumers(self, group: SourceGroup) -> None:
        """Remove those that Redis has removed; what was pending there has been seen to."""
        if not self._is_ours:
            return
        mine = set(reading.consumers(self._origin, self._stream, group.name))
        gone = set(reading.consumers(self._target, self._stream, group.name)) - mine
        for some in _chunks(
            ("XGROUP", "DELCONSUMER", self._stream, group.name, name) for name in sorted(gone)
        ):
            self._run(some)

    def _copy_pending(self, group: SourceGroup, upto: int) -> int:
        """Make the pending entries the same; how many there are. One that was copied, and whose entry is
        gone, stays as it was copied: to claim it anew would take it out.
        """
        mine = self._pending(group, 0, upto)
        theirs = reading.pending(self._target, self._stream, group.name, 0, upto)
        count = lost = 0
        for some in _pieces(reading.joined(mine, theirs), lambda _: (1, len(self._stream + group.name))):
            count += sum(pending is not None for _, pending, _ in some)
            changed = [
                (one, copy)
                for _, one, copy in some
                if one is not None and (copy is None or not _same(one, copy))
            ]
            there = self._present([one.id for one, copy in changed if copy is not None])
            claims = [
                claiming(self._stream, PendingClaim(group.name, one))
                for one, copy in changed
                if copy is None or one.id in there
            ]
            lost += sum(reply in ([], 0) for reply in self._run(claims))
            settled = (ids.format(entry_id) for entry_id, pending, _ in some if pending is None)
            self._run([("XACK", self._stream, group.name, one) for one in settled])
        if lost:
            self.outcome.trouble(
                f"{lost} pending entries of group {_shown(group.name)} are gone with their entries"
            )
        return count - lost

    def _present(self, entry_ids: Sequence[int]) -> set[int]:
        """Those of which Weir has the entry."""
        found = set[int]()
        for some in _pieces(entry_ids, lambda _: (_COMMANDS_MAX // _LOOKS_MAX, 0)):
            looks = [("XRANGE", self._stream, ids.format(one), ids.format(one)) for one in some]
            found |= {one for one, reply in zip(some, self._run(looks), strict=True) if reply}
        return found

    def _pending(self, group: SourceGroup, first: int, last: int) -> Iterator[Pending]:
        """A consumer that Weir does not take cannot own anything."""
        if not group.pending:
            return
        for pending in reading.pending(self._origin, self._stream, group.name, first, last):
            owner = pending.consumer
            is_released = owner is not None and unfit(owner, "consumer") is not None
            yield Pending(pending.id, None, 0, pending.deliveries) if is_released else pending

    # Entries of a stream that only this import writes to

    def _items(self, view: View, upto: int) -> Iterator[Item]:
        """What the page has, and what is pending there and deleted, in order of the IDs."""
        first_id = view.first_id or ids.ID_MAX
        things: list[Iterator[tuple[int, SourceEntry | PendingClaim]]] = [
            iter([(entry.id, entry) for entry in view.page])
        ]
        things += [
            self._claims(group, upto) for group in view.groups if group.pending and self._takes(group.name)
        ]
        for entry_id, alike in reading.merged(*things):
            entry = next((thing for thing in alike if isinstance(thing, SourceEntry)), None)
            if entry is None:
                claims = [thing for thing in alike if isinstance(thing, PendingClaim)]
                yield Item(entry_id, None, claims, is_trimmed=entry_id < first_id)
            elif self._is_fit(entry):
                yield Item(entry_id, entry, [], is_trimmed=False)

    def _claims(self, group: SourceGroup, upto: int) -> Iterator[tuple[int, PendingClaim]]:
        for pending in self._pending(group, self.position + 1, upto):
            yield pending.id, PendingClaim(group.name, pending)

    def _is_fit(self, entry: SourceEntry) -> bool:
        try:
            for name in entry.flat[::2]:
                name.decode()
        except UnicodeDecodeError:
            self._refuse(entry.id, "a field's name is not UTF-8")
            return False
        return True

    def _refuse(self, entry_id: int, reason: str) -> None:
        self._not_taken.append(entry_id)
        if len(self._not_taken) <= _SHOWN_IDS_MAX:
            self.outcome.trouble(f"entry {ids.format(entry_id)} was skipped: {reason}")
        elif len(self._not_taken) == _SHOWN_IDS_MAX + 1:
            self.outcome.trouble("more entries were skipped")

    def _store(self, items: list[Item]) -> None:
        """Store in one turn; by halves where it is too many bytes together."""
        commands = [words for item in items for words in self._commands(item)]
        try:
            *replies, length = self._target.together([*commands, ("XLEN", self._stream)])
        except TooLarge as error:
            if len(items) == 1:
                self._refuse(items[0].id, str(error))
                return
            for half in (items[: len(items) // 2], items[len(items) // 2 :]):
                self._store(half)
            return
        entries = [item.entry for item in items if item.entry is not None]
        answers = [reply for reply, words in zip(replies, commands, strict=True) if _is_entry(words)]
        stored = self._count(entries, answers)
        assert isinstance(length, int), "XLEN counts"
        if length > self._length + stored:
            raise Failure("others publish to it in Weir: --in-use continues beside them")
        self._length = length

    def _commands(self, item: Item) -> list[Command]:
        entry_id = ids.format(item.id)
        if item.entry is not None:
            return [("XADD", self._stream, entry_id, *item.entry.flat)]
        removal: Command = ("XDEL", self._stream, entry_id)
        if item.is_trimmed and not self._length:
            # It may have been trimmed in Redis: unlike XDEL that leaves no trace in max-deleted-entry-id.
            removal = ("XTRIM", self._stream, "MINID", "=", ids.format(item.id + 1))
        claims = [claiming(self._stream, claim) for claim in item.claims]
        return [("XADD", self._stream, entry_id, *_PLACEHOLDER), *claims, removal]

    def _count(self, entries: Sequence[SourceEntry], replies: Sequence[Reply]) -> int:
        """Returns how many were stored; the others are reported."""
        stored = 0
        for entry, reply in zip(entries, replies, strict=True):
            if not isinstance(reply, RefusedReply):
                stored += 1
            elif reply.text.startswith(TOO_SMALL):
                raise Failure("others publish to it in Weir: --in-use continues beside them")
            else:
                self._refuse(entry.id, reply.text)
        self.outcome.entries += stored
        return stored

    def _trim(self, view: View) -> None:
        """Trim what Redis has trimmed since it was copied, but not before what is pending of it."""
        for group in view.groups:
            if self._takes(group.name):
                self._copy_pending(group, self.position)
        self._trim_to(view)

    # Entries of a stream that others write to as well

    def _append(self, page: list[SourceEntry], upto: int) -> None:
        """Add what is not there yet."""
        entries = [entry for entry in page if self._is_fit(entry)]
        added = append(self._target, self._stream, MARK, entries, self._refuse)
        self.outcome.entries += added.entries
        self.outcome.renumbered += added.renumbered
        self._run([("XGROUP", "SETID", self._stream, MARK, ids.format(upto))])

    # What changes behind the entries

    def _delete(self, view: View) -> None:
        """Delete what Redis has deleted or trimmed since it was copied."""
        if self._is_ours:
            self._trim_to(view)
        if self._count_copies() == view.length:
            return
        gone = self._gone(view.last_id)
        for some in _chunks(("XDEL", self._stream, ids.format(entry_id)) for entry_id in gone):
            self.outcome.deleted += sum(reply == 1 for reply in self._run(some))
        self._count_copies()

    def _trim_to(self, view: View) -> None:
        first_id = view.first_id or view.last_id + 1
        if first_id <= ids.ID_MAX:
            trimmed = self._run([("XTRIM", self._stream, "MINID", "=", ids.format(first_id))])[0]
            self.outcome.deleted += trimmed if isinstance(trimmed, int) else 0
        self._count_copies()

    def _count_copies(self) -> int:
        length = self._run([("XLEN", self._stream)])[0]
        assert isinstance(length, int), "XLEN counts"
        self._length = length
        return length

    def _gone(self, last_id: int) -> Iterator[int]:
        """The IDs that Redis has no more, by comparing all."""
        mine = reading.entries(self._origin, self._stream, 0, last_id)
        theirs = reading.entries(self._target, self._stream, 0, last_id)
        missing = 0
        for entry_id, entry, copy in reading.joined(mine, theirs):
            if entry is not None and copy is not None and entry != copy:
                raise Failure(f"{_FOREIGN}: {ids.format(entry_id)} differs")
            if entry is None and not self._is_ours:
                raise Failure(f"{_FOREIGN}: Redis has no {ids.format(entry_id)}")
            if entry is None:
                yield entry_id
            missing += copy is None and entry_id not in self._not_taken
        if missing:
            self.outcome.trouble(
                f"{missing} entries are not in Weir: trimmed or deleted there, or skipped before"
            )

    def _copy_counters(self, view: View, groups: Sequence[SourceGroup]) -> None:
        """IDs and counters last: they stand for everything that has been done before."""
        added = view.length if view.entries_added is None else view.entries_added
        counters: list[Command] = [("XSETID", self._stream, ids.format(view.last_id), "ENTRIESADDED", added)]
        if view.max_deleted_id:
            counters = [(*counters[0], "MAXDELETEDID", ids.format(view.max_deleted_id))]
        if view.idmp is not None and self._knows_idmp():
            duration_s, entries = view.idmp
            counters.append(("XCFGSET", self._stream, "IDMP-DURATION", duration_s, "IDMP-MAXSIZE", entries))
        for group in groups:
            read = -1 if group.entries_read is None else group.entries_read
            start = ids.format(group.last_delivered_id)
            counters.append(("XGROUP", "SETID", self._stream, group.name, start, "ENTRIESREAD", read))
        counters.append(("XGROUP", "SETID", self._stream, MARK, ids.format(view.last_id)))
        for some in _chunks(counters):
            self._run(some)

    def _knows_idmp(self) -> bool:
        """Whether the target has such a setting: over a backend it may not."""
        theirs = reading.view(self._target, self._stream, ids.ID_MAX, 1)
        return theirs is not None and theirs.idmp is not None

    def _run(self, commands: Sequence[Command]) -> list[Reply]:
        """Commands that must not fail. Raises Failure."""
        replies = self._target.together(commands) if commands else []
        for reply in replies:
            if isinstance(reply, RefusedReply):
                raise Failure(reply.text)
        return replies


_FOREIGN: Final = (
    "the stream of this name in Weir is another one (delete it there, or leave it out of the import)"
)
_PLACEHOLDER: Final = ("deleted", "")


def claiming(stream: bytes, claim: PendingClaim) -> Command:
    """The command that makes an entry pending just so."""
    group, (entry_id, consumer, time_ms, deliveries) = claim
    if consumer is None:
        options: Command = ("IDS", 1, ids.format(entry_id), "RETRYCOUNT", deliveries, "FORCE")
        return ("XNACK", stream, group, "FAIL", *options)
    options = (ids.format(entry_id), "TIME", time_ms, "RETRYCOUNT", deliveries, "FORCE", "JUSTID")
    return ("XCLAIM", stream, group, consumer, 0, *options)


def unfit(name: bytes, what: str) -> str | None:
    """Why Weir does not take a name, None where it does."""
    try:
        names.check(name, f"{what} name")
    except EngineError as refusal:
        return refusal.detail
    return None


def _same(one: Pending, other: Pending) -> bool:
    is_same = (one.consumer, one.deliveries) == (other.consumer, other.deliveries)
    return is_same and abs(one.time_ms - other.time_ms) <= _CLOCK_MS_MAX


def _first(peer: Peer, stream: bytes) -> Iterator[SourceEntry]:
    entries = reading.entries(peer, stream, 0, ids.ID_MAX)
    return (entry for _, entry in zip(range(_WINDOW_ENTRIES), entries, strict=False))


def _is_entry(words: Command) -> bool:
    return words[0] == "XADD" and words[3:] != _PLACEHOLDER


def _shown(name: bytes) -> str:
    return repr(plain(name.decode(errors="backslashreplace")))


def _turns(items: Iterable[Item]) -> Iterator[list[Item]]:
    return _pieces(items, lambda item: (1 + len(item.claims), 0 if item.entry is None else item.entry.size))


def _chunks(commands: Iterable[Command]) -> Iterator[list[Command]]:
    return _pieces(commands, lambda words: (1, sum(len(word) for word in words if isinstance(word, bytes))))


def _pieces(things: Iterable[T], cost: Callable[[T], tuple[int, int]]) -> Iterator[list[T]]:
    """What goes into one turn together; `cost` says the commands and bytes of each."""
    some, count, size = list[T](), 0, 0
    for thing in things:
        commands, length = cost(thing)
        if some and (count + commands > _COMMANDS_MAX or size + length > TURN_BYTES_MAX):
            yield some
            some, count, size = [], 0, 0
        some.append(thing)
        count += commands
        size += length
    if some:
        yield some
