"""Schedules: entries that are appended at a time of their own, once or again and again.

Knows: what is refused, which definition is the same, and how much fires in one turn.
Must never know: when turns come, wire formats.

    orders   "reminder" {"text":"pay"} due at 17:00                    is dropped
             9-0 text=pay                                              is appended

Both changes are in the same frame, and so is the next time of what recurs: after a crash there are both or
neither, and no run is lost or comes twice.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from engine import errors
from engine.commands import types
from engine.commands.entries import (
    PreparedEntries,
    Repeated,
    check_bodies,
    expect_open,
    prepare,
    store,
)
from engine.commands.registry import DUE, Steps, runs
from engine.commands.schedule_commands import (
    AddScheduled,
    CancelSchedule,
    DescribeSchedule,
    FireDueSchedules,
    FireSchedule,
    ListSchedules,
    NewSchedule,
    Pause,
    PauseSchedule,
    SetSchedule,
)
from engine.commands.turn import Turn
from engine.errors import EngineError
from engine.keyspace import Key
from engine.parts.schedules import DropSchedule, PutSchedule, Schedule, ScheduleIndex, StreamSchedules
from engine.record import Record
from engine.recurrence import Rule, rule_of
from engine.replies import Added, AddedScheduled, ScheduleInfo, SchedulePage, ScheduleSet

# What one turn fires: entries, and bytes of the log, where what recurs is written twice. It draws on the
# log's reserve.
TURN_FIRED_MAX: Final = 1_000
TURN_FIRED_BYTES_MAX: Final = 4 << 20
# Streams that one turn looks at, and schedules that it takes between two looks at the clock.
_TURN_LOOKS_MAX: Final = 500
_RUN_MAX: Final = 100
# A stream that takes no entries is tried again after this time; others do not wait for it.
_RETRY_MS: Final = 1_000
# Entries for later in one publication: 4 µs each.
LATER_MAX: Final = 2_000
# Schedules of one page.
PAGE_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 8 << 20
NAME_BYTES_MAX: Final = 512


@runs(SetSchedule)
def set_schedule(turn: Turn, command: SetSchedule) -> ScheduleSet:
    stream, wanted = command.stream, command.schedule
    before = _find(turn, stream, wanted.name)
    if before is not None:
        if command.only_new:
            raise errors.schedule_exists(wanted.name)
        _expect_right(before, recurring=command.recurring)
        if (before.text, _rule(before).definition) == (wanted.body, wanted.rule):
            return _pause(turn, stream, wanted.name, before, command.pause)
    record = _prepare(turn, stream, wanted, recurring=command.recurring)
    pause = command.pause or _pause_of(turn, before)
    if pause is not None and pause.on:
        record = _paused(turn, record, pause)
    _expect_room(turn, stream, int(before is None))
    _put(turn, stream, [record])
    recurred = before is not None and _recurs(before)
    return ScheduleSet(_now(turn, stream, wanted.name), before is None, replaced_recurring=recurred)


@runs(PauseSchedule)
def pause_schedule(turn: Turn, command: PauseSchedule) -> ScheduleSet:
    stream, name = command.stream, command.name
    schedule = _get(turn, stream, name)
    _expect_right(schedule, recurring=command.recurring)
    return _pause(turn, stream, name, schedule, command.pause)


def _pause(turn: Turn, stream: str, name: str, schedule: Schedule, pause: Pause | None) -> ScheduleSet:
    """Pause or resume a schedule, whose definition stays; without `pause` it stays as it is."""
    before = _record(stream, name, schedule)
    record = before if pause is None else _paused(turn, before, pause)
    if record == before:
        return ScheduleSet(_info(name, schedule), created=False, changed=False)
    turn.emit(record)
    return ScheduleSet(_now(turn, stream, name), created=False)


def _paused(turn: Turn, record: PutSchedule, pause: Pause) -> PutSchedule:
    rule = rule_of(record.rule, record.at_ms)
    if pause.on:
        rule, at_ms = rule.pause(record.at_ms, pause.until_ms, turn.now_ms)
    else:
        rule, at_ms = rule.resume(record.at_ms, turn.now_ms)
    return replace(record, rule=rule.text, at_ms=at_ms)


def _pause_of(turn: Turn, schedule: Schedule | None) -> Pause | None:
    """The pause of a schedule that goes on."""
    if schedule is None or not (rule := _rule(schedule)).is_paused(turn.now_ms):
        return None
    return Pause(until_ms=rule.paused_until_ms)


def check_later(schedules: Sequence[NewSchedule]) -> dict[str, NewSchedule]:
    """The schedules of one publication by name. Raises `invalid`."""
    later = {one.name: one for one in schedules}
    if len(schedules) > LATER_MAX:
        raise errors.invalid_schedule(
            f"delay_ms: at most {LATER_MAX} entries for later together: use several requests"
        )
    if len(later) < len(schedules):
        raise errors.invalid_schedule("schedule: each name once in a publication")
    return later


@runs(AddScheduled)
def add_scheduled(turn: Turn, command: AddScheduled) -> Steps[AddedScheduled | None]:
    stream, later = command.stream, check_later(command.later)
    if turn.keyspace.find(stream) is None and not command.mkstream:
        return None
    prepared = None if command.add is None else prepare(turn, command.add)
    if isinstance(prepared, Repeated):
        # The first time has done all of it.
        yield
        return AddedScheduled(store(turn, prepared))
    cancelled = None if command.cancel is None else _find(turn, stream, command.cancel)
    if cancelled is None and command.cancel is not None and command.cancel_required:
        raise errors.schedule_gone(command.cancel)
    known = {name: _find(turn, stream, name) for name in later}
    touched = {command.cancel or "": cancelled, **known}
    recurring = [name for name, one in touched.items() if one is not None and _recurs(one)]
    if recurring and not command.recurring:
        raise errors.recurring_forbidden()
    # How long they wait is needed no more once they are stored: a time is all that is kept.
    puts = [
        replace(_prepare(turn, stream, one, recurring=command.recurring), rule="") for one in command.later
    ]
    _expect_room(turn, stream, sum(one is None for one in known.values()))
    yield
    if command.cancel is not None and cancelled is not None:
        turn.emit(DropSchedule(stream, command.cancel))
    added = None if prepared is None else store(turn, prepared)
    _put(turn, stream, puts)
    each = [(one.name, one.at_ms) for one in puts]
    return AddedScheduled(added, each, cancelled=cancelled is not None, recurring=recurring)


@runs(CancelSchedule)
def cancel_schedule(turn: Turn, command: CancelSchedule) -> bool:
    schedule = _get(turn, command.stream, command.name)
    _expect_right(schedule, recurring=command.recurring)
    turn.emit(DropSchedule(command.stream, command.name))
    return True


@runs(FireSchedule)
def fire_schedule(turn: Turn, command: FireSchedule) -> Added:
    stream, name = command.stream, command.name
    schedule = _get(turn, stream, name)
    _expect_right(schedule, recurring=command.recurring)
    prepared = prepare(turn, types.XAdd(stream=stream, bodies=[schedule.text]))
    assert isinstance(prepared, PreparedEntries), "the stream exists, and the entry has no key to repeat"
    next_ms = schedule.at_ms if _recurs(schedule) else None
    turn.emit(_rest(stream, name, schedule, next_ms))
    return store(turn, prepared)


@runs(DescribeSchedule)
def describe_schedule(turn: Turn, command: DescribeSchedule) -> ScheduleInfo:
    return _info(command.name, _get(turn, command.stream, command.name))


@runs(ListSchedules)
def list_schedules(turn: Turn, command: ListSchedules) -> SchedulePage:
    schedules = StreamSchedules.of(turn.key(command.stream))
    most = min(command.limit, PAGE_MAX)
    if schedules is None:
        return SchedulePage([], more=False)
    if command.by_name:
        found = schedules.page_by_name(command.after[1], command.before, most + 1)
    else:
        before_ms = 1 << 63 if command.before_ms is None else command.before_ms
        found = schedules.page_by_time(command.after, before_ms, most + 1)
    page: list[ScheduleInfo] = []
    size = 0
    for name, schedule in found[:most]:
        size += len(name) + len(schedule.text) + len(schedule.rule)
        if page and size > PAGE_BYTES_MAX:
            break
        page.append(_info(name, schedule))
    return SchedulePage(page, more=len(page) < len(found))


# --- what is due --------------------------------------------------------------------------------------------


class _Budget:
    """What one turn may still fire."""

    __slots__ = ("bytes_left", "fired_left", "has_time")

    def __init__(self, command: FireDueSchedules) -> None:
        self.fired_left = TURN_FIRED_MAX
        self.bytes_left = TURN_FIRED_BYTES_MAX
        self.has_time = command.has_time

    def spent(self) -> bool:
        return self.fired_left <= 0 or self.bytes_left <= 0 or not self.has_time()


@runs(FireDueSchedules)
def fire_due_schedules(turn: Turn, command: FireDueSchedules) -> bool:
    times, budget = turn.keyspace.due_times[StreamSchedules], _Budget(command)
    for name in times.due(turn.now_ms, _TURN_LOOKS_MAX):
        turn.expire(name)
        key = turn.keyspace.find(name)
        while (schedules := _schedules(key)) and (first_ms := schedules.due_ms or 0) <= turn.now_ms:
            if not _fire_run(turn, name, schedules, budget):
                times.delay(name, first_ms, turn.now_ms + _RETRY_MS)
                break
            if budget.spent():
                return True
        else:
            times.replace(name, schedules.due_ms if schedules else None)
    return times.is_due(turn.now_ms)


DUE[StreamSchedules] = lambda has_time: FireDueSchedules(has_time=has_time)


def _schedules(key: Key | None) -> StreamSchedules | None:
    return None if key is None else StreamSchedules.of(key)


def _fire_run(turn: Turn, stream: str, schedules: StreamSchedules, budget: _Budget) -> bool:
    """Fire the first of a stream's schedules that are due; False where it takes no entries."""
    bodies: list[bytes] = []
    rest: list[Record] = []
    for name, schedule in schedules.due(turn.now_ms, min(_RUN_MAX, budget.fired_left)):
        rule = _rule(schedule)
        is_missed = rule.is_missed(schedule.at_ms, turn.now_ms)
        if not is_missed:
            bodies.append(schedule.text)
        next_ms = rule.next_ms(schedule.at_ms, turn.now_ms)
        # A pause is over with the first run behind it.
        going_on = schedule if rule.held_ms is None else replace(schedule, rule=rule.definition.text)
        rest.append(_rest(stream, name, going_on, next_ms, runs=int(not is_missed)))
        budget.fired_left -= 1
        budget.bytes_left -= len(schedule.text) * (1 if next_ms is None else 2)
        if budget.spent():
            break
    if bodies:
        try:
            prepared = prepare(turn, types.XAdd(stream=stream, bodies=bodies))
        except EngineError:
            return False
        assert isinstance(prepared, PreparedEntries), "the stream exists, and entries have no key to repeat"
        store(turn, prepared)
    for record in rest:
        turn.emit(record)
    return True


def _rest(stream: str, name: str, schedule: Schedule, next_ms: int | None, *, runs: int = 1) -> Record:
    """What is left of a schedule behind a run of it."""
    left = None if schedule.left is None else schedule.left - runs
    if next_ms is None or left == 0:
        return DropSchedule(stream, name)
    return replace(_record(stream, name, schedule), at_ms=next_ms, left=left)


def _record(stream: str, name: str, schedule: Schedule) -> PutSchedule:
    return PutSchedule(stream, name, schedule.text, schedule.rule, schedule.at_ms, schedule.left)


# --- what is asked ------------------------------------------------------------------------------------------


def _find(turn: Turn, stream: str, name: str) -> Schedule | None:
    schedules = _schedules(turn.keyspace.find(stream))
    return None if schedules is None else schedules.get(name)


def _get(turn: Turn, stream: str, name: str) -> Schedule:
    turn.key(stream)
    schedule = _find(turn, stream, name)
    if schedule is None:
        raise errors.no_schedule(stream, name)
    return schedule


def _expect_right(schedule: Schedule, *, recurring: bool) -> None:
    """Refuse to touch what recurs, where that takes another right."""
    if not recurring and _recurs(schedule):
        raise errors.recurring_forbidden()


def _rule(schedule: Schedule) -> Rule:
    return rule_of(schedule.rule, schedule.at_ms)


def _recurs(schedule: Schedule) -> bool:
    return _rule(schedule).recurs


def _prepare(turn: Turn, stream: str, wanted: NewSchedule, *, recurring: bool) -> PutSchedule:
    """Check everything but how many there are."""
    rule = wanted.rule
    if rule.recurs and not recurring:
        raise errors.recurring_forbidden()
    check_name(wanted.name)
    key = turn.keyspace.find(stream)
    expect_open(turn, stream, key, for_good=True)
    if key is not None:
        check_bodies(key, [wanted.body])
    at_ms = rule.first_ms(turn.now_ms)
    return PutSchedule(stream, wanted.name, wanted.body, rule.text, at_ms, rule.count)


def check_name(name: str) -> None:
    """Raise `invalid` for a name that is empty or too long."""
    if not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
        raise errors.invalid_schedule(f"schedule: a name has between 1 and {NAME_BYTES_MAX} bytes")


def _expect_room(turn: Turn, stream: str, new: int) -> None:
    """Refuse new schedules if there are too many, of the stream or of all; and a new stream for them."""
    keyspace, key = turn.keyspace, turn.keyspace.find(stream)
    caps = keyspace.caps
    have = len(_schedules(key) or ())
    if new and have + new > caps.stream_schedules_max:
        raise errors.too_many_schedules(caps.stream_schedules_max, "stream_schedules_max", stream)
    if new and ScheduleIndex.of(keyspace).count + new > caps.schedules_max:
        raise errors.too_many_schedules(caps.schedules_max, "schedules_max")
    if key is None:
        turn.expect_room(1)


def _put(turn: Turn, stream: str, puts: Sequence[PutSchedule]) -> None:
    if puts and turn.keyspace.find(stream) is None:
        turn.create_stream(stream)
    for record in puts:
        turn.emit(record)


def _info(name: str, schedule: Schedule) -> ScheduleInfo:
    return ScheduleInfo(name, schedule.at_ms, schedule.text, _rule(schedule), schedule.left)


def _now(turn: Turn, stream: str, name: str) -> ScheduleInfo:
    return _info(name, _get(turn, stream, name))
