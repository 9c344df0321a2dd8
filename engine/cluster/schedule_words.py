"""Entries for later over a server: the commands of schedules, and what appends the entries that are due.

Knows: the scripts' arguments and replies, and how `lua/scheduling.lua` keeps an entry.
Must never know: connections, when it is looked for what is due, how rules say when.

    due ──► name, head, rule ──► the next time by the rule ──► fire: nothing unless each head is as it was

So of several gateways the one that comes first appends an entry; the others look again.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from engine import errors
from engine.clock import Clock
from engine.cluster.origins import unnumbered
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.scripts import (
    FIELDS_MAX,
    ScriptCall,
    Word,
    WriteOrigin,
    add_words,
    adding,
    checked,
    form_of,
    ids_of,
    origin_words,
    requests_key,
    script,
    stream_keys,
    too_many_fields,
)
from engine.cluster.stored import body_of, words_of
from engine.cluster.words import by_script, check_add, numbered, sends
from engine.commands import schedule_commands
from engine.commands.scheduling import PAGE_BYTES_MAX, PAGE_MAX, check_later, check_name
from engine.commands.types import XAdd
from engine.errors import EngineError
from engine.keyspace import CAPS_DEFAULT
from engine.recurrence import Rule, rule_of
from engine.replies import Added, AddedScheduled, ScheduleInfo, SchedulePage, ScheduleSet

Run = Callable[[BackendRequest], Awaitable[Any]]

_MOST: Final = CAPS_DEFAULT.stream_schedules_max
# Of runs that are not counted.
_UNCOUNTED: Final = "-"
# How long the next times of what is due may hold the loop up: what remains is for the next turn.
_TURN_S: Final = 0.005


# --- setting


@sends(schedule_commands.SetSchedule)
def _set(command: schedule_commands.SetSchedule, origin: WriteOrigin) -> BackendRequest:
    stream, wanted = command.stream, command.schedule
    rule, entry = wanted.rule, words_of(wanted.body)
    when = _when(wanted, origin, recurring=command.recurring)
    words: list[Word] = [
        *origin_words(origin),
        *(int(command.only_new), int(command.recurring), _MOST, form_of([entry]), wanted.name, when),
        *(_UNCOUNTED if rule.count is None else rule.count, int(rule.recurs), rule.text, _packed(entry)),
        origin.schedules_left,
    ]

    def decode(reply: Any) -> ScheduleSet:  # noqa: ANN401 - as the server sent it
        _, text = checked(reply)
        # A gateway before this one may have kept it without the last word.
        at, left, created, changed, *recurred = text.split()
        at_ms = int(at)
        info = ScheduleInfo(wanted.name, at_ms, wanted.body, rule_of(rule.text, at_ms), _left(left))
        return ScheduleSet(
            info, created=created == b"1", changed=changed == b"1", replaced_recurring=recurred == [b"1"]
        )

    return _write("set_schedule", stream, words, decode, origin)


@sends(schedule_commands.AddScheduled)
def _add(command: schedule_commands.AddScheduled, origin: WriteOrigin) -> BackendRequest:
    check_later(command.later)
    stream, add = command.stream, command.add or XAdd(stream=command.stream, bodies=())
    check_add(add)
    entries = [words_of(one.body) for one in command.later]
    words: list[Word] = [
        *(*origin_words(origin), int(command.mkstream)),
        "" if command.cancel is None else f"+{command.cancel}",
        *(int(command.cancel_required), int(command.recurring), _MOST, form_of(entries), len(entries)),
        origin.schedules_left,
    ]
    for one, entry in zip(command.later, entries, strict=True):
        words += [one.name, _when(one, origin, recurring=command.recurring), _packed(entry)]
    words += add_words(add)

    def decode(reply: Any) -> AddedScheduled | None:  # noqa: ANN401 - as the server sent it
        if reply is None:
            return None
        word, text, removed, affected = checked(reply)
        given, done, times = text.split(b" ")
        cancelled, _, touched = done.partition(b":")
        added = None
        if command.add is not None:
            added = Added(ids_of(given), word == b"duplicate", removed, affected)
        names = [one.name for one in command.later]
        scheduled = list(zip(names, map(int, times.split(b",")), strict=True)) if times else ()
        named = [command.cancel or "", *names]
        places = map(int, touched.split(b",")) if touched else ()
        recurring = [*dict.fromkeys(named[place] for place in places)]
        return AddedScheduled(added, scheduled, cancelled=cancelled == b"1", recurring=recurring)

    only_cancels = command.add is None and not command.later
    return _write("add_scheduled", stream, words, decode, origin, makes_room=only_cancels)


@sends(schedule_commands.CancelSchedule)
def _cancel(command: schedule_commands.CancelSchedule, origin: WriteOrigin) -> BackendRequest:
    stream, name = command.stream, command.name
    cancel = schedule_commands.AddScheduled(
        stream=stream, cancel=name, cancel_required=True, mkstream=False, recurring=command.recurring
    )
    request = _add(cancel, origin)

    def decode(results: Sequence[Any]) -> bool:
        try:
            done = request.decode(results)
        except EngineError as refusal:
            raise errors.no_schedule(stream, name) if refusal.code == "schedule_gone" else refusal from None
        if done is None:
            raise errors.no_such_key(stream)
        return True

    return msgspec.structs.replace(request, decode=decode)


def _when(wanted: schedule_commands.NewSchedule, origin: WriteOrigin, *, recurring: bool) -> Word:
    """When it is due first. What counts from now counts by the server's clock."""
    rule = wanted.rule
    if rule.recurs and not recurring:
        raise errors.recurring_forbidden()
    check_name(wanted.name)
    at_ms = rule.first_ms(origin.now_ms)
    is_delay = rule.at_ms is None and rule.cron is None
    return f"+{at_ms - origin.now_ms}" if is_delay else at_ms


def _packed(entry: Sequence[bytes]) -> bytes:
    if len(entry) > 2 * FIELDS_MAX:
        raise too_many_fields()
    return b"%b\n%b" % (b" ".join(b"%d" % len(word) for word in entry), b"".join(entry))


def _write(
    name: str,
    stream: str,
    words: Sequence[Word],
    decode: Callable[[Any], Any],
    origin: WriteOrigin,
    *,
    makes_room: bool = False,
) -> BackendRequest:
    keys = [*stream_keys(stream), requests_key(stream, origin)]
    call = ScriptCall(adding(name, "scheduling", makes_room=makes_room), keys, words, decode)
    return numbered(by_script(stream, call), origin)


# --- asking


@sends(schedule_commands.DescribeSchedule)
def _describe(command: schedule_commands.DescribeSchedule, _: WriteOrigin) -> BackendRequest:
    stream, name = command.stream, command.name

    def decode(page: SchedulePage) -> ScheduleInfo:
        if not page.schedules:
            raise errors.no_schedule(stream, name)
        return page.schedules[0]

    bound = f"[{name}"
    page = _page(stream, 1, ["name", bound, bound])
    return msgspec.structs.replace(page, decode=lambda results: decode(page.decode(results)))


@sends(schedule_commands.ListSchedules)
def _list(command: schedule_commands.ListSchedules, _: WriteOrigin) -> BackendRequest:
    after_ms, after = command.after
    bounds: list[Word] = ["time", after_ms, after, "" if command.before_ms is None else command.before_ms]
    if command.by_name:
        before = "+" if command.before is None else f"({command.before}"
        bounds = ["name", f"({after}" if after else "-", before]
    return _page(command.stream, min(command.limit, PAGE_MAX), bounds)


def _page(stream: str, most: int, bounds: Sequence[Word]) -> BackendRequest:
    def decode(reply: Any) -> SchedulePage:  # noqa: ANN401 - as the server sent it
        _, more, *rows = checked(reply)
        schedules = [_info(name, value) for name, value in zip(rows[::2], rows[1::2], strict=True)]
        return SchedulePage(schedules, more=bool(more))

    words = [most, PAGE_BYTES_MAX, *bounds]
    call = ScriptCall(script("page_schedules", "scheduling"), stream_keys(stream)[:2], words, decode)
    return by_script(stream, call, Lane.READ)


def _info(name: bytes, value: bytes) -> ScheduleInfo:
    head, rule, lengths, text = value.split(b"\n", 3)
    _, at, left, _ = head.split()
    words, place = list[bytes](), 0
    for length in map(int, lengths.split()):
        words.append(text[place : place + length])
        place += length
    at_ms = int(at)
    return ScheduleInfo(name.decode(), at_ms, body_of(words), rule_of(rule.decode(), at_ms), _left(left))


def _left(word: bytes) -> int | None:
    return None if word == _UNCOUNTED.encode() else int(word)


# --- firing


@sends(schedule_commands.FireSchedule)
def _fire(command: schedule_commands.FireSchedule, origin: WriteOrigin) -> BackendRequest:
    words: list[Word] = [*origin_words(origin), command.name, int(command.recurring)]

    def decode(reply: Any) -> Added:  # noqa: ANN401 - as the server sent it
        _, given, *_ = checked(reply)
        return Added(ids_of(given))

    return _write("fire_schedule", command.stream, words, decode, origin)


async def fire_due(run: Run, stream: str, clock: Clock) -> tuple[int, int]:
    """Append what is due of a stream. Returns how many entries, and after how many ms the next schedule is
    due, negative for none. Raises EngineError.
    """
    due = ScriptCall(script("due_schedules", "scheduling"), stream_keys(stream)[:2], (), lambda reply: reply)
    fired = 0
    while isinstance(found := await run(by_script(stream, due, Lane.GROUP)), list):
        now_ms, *rows = found
        origin = unnumbered()
        words = [origin.generation, origin.primary, *_rests(rows, now_ms, clock)]
        call = ScriptCall(adding("fire_schedules", "scheduling"), stream_keys(stream), words, _decode_fired)
        fired += await run(by_script(stream, call, Lane.GROUP))
    return fired, found


def _rests(rows: Sequence[bytes], now_ms: int, clock: Clock) -> Iterator[Word]:
    """What is left of each schedule behind its run; of at least one."""
    ends_at = clock.monotonic() + _TURN_S
    for name, head, text in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        _, at, word, _ = head.split()
        at_ms, left = int(at), _left(word)
        rule: Rule = rule_of(text.decode(), at_ms)
        is_missed = rule.is_missed(at_ms, now_ms)
        next_ms = rule.next_ms(at_ms, now_ms)
        if left is not None:
            left -= int(not is_missed)
        then: Word = "" if next_ms is None or left == 0 else next_ms
        yield from (name, head, then, _UNCOUNTED if left is None else left)
        yield int(not is_missed)
        if clock.monotonic() > ends_at:
            return


def _decode_fired(reply: Any) -> int:  # noqa: ANN401 - as the server sent it
    _, count = checked(reply)
    return int(count)
