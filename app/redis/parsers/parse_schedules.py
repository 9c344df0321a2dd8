"""Parses WEIR.SCHEDULE: entries for later.

Knows: its words, and the shapes of its replies. Must never know: when a rule is due.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from app import names
from app.redis.parsers.words import INTEGER_MAX, Options, Words, integer_from, stream_name, take_option, text
from app.redis.request import CommandRequest, for_engine
from app.redis.resp import Pairs, Resp
from engine import entries, errors
from engine.commands import schedule_commands
from engine.commands.base import StreamCommand
from engine.recurrence import NEVER_MS, Rule
from engine.replies import Reply, ScheduleInfo, SchedulePage, ScheduleSet

_PAGE_MAX: Final = 1_000


def _ms(word: bytes) -> int:
    return integer_from(word, 0, INTEGER_MAX, "ERR a time of a schedule is a number of milliseconds")


_text: Final = partial(text, what="a rule of a schedule")


def _missed(word: bytes) -> str:
    if word.upper() not in {b"ONCE", b"SKIP"}:
        raise errors.invalid("ERR MISSED is ONCE or SKIP")
    return word.decode().lower()


_OPTIONS: Final[Options] = {
    b"AT": ("at_ms", _ms),
    b"IN": ("in_ms", _ms),
    b"EVERY": ("every_ms", _ms),
    b"CRON": ("cron", _text),
    b"TZ": ("tz", _text),
    b"UNTIL": ("until_ms", _ms),
    b"COUNT": ("count", _ms),
    b"MISSED": ("missed", _missed),
    b"EXPIRES": ("expires_in_ms", _ms),
}


def set_schedule(words: Words) -> CommandRequest:
    """WEIR.SCHEDULE SET key name [NX] <AT ms|IN ms|EVERY ms|CRON expression [TZ zone]> [UNTIL ms] [COUNT n]
    [MISSED ONCE|SKIP] [EXPIRES ms] FIELDS field value [field value …].
    """
    stream, name = _place(words)
    given: dict[str, Any] = {}
    only_new = False
    while not words.took(b"FIELDS", values=2):
        if words.took(b"NX"):
            only_new = True
            continue
        take_option(words, _OPTIONS, given)
    schedule = schedule_commands.NewSchedule(name, _body(words), Rule(**given))
    recurs = schedule.rule.recurs
    command = schedule_commands.SetSchedule(
        stream=stream, schedule=schedule, only_new=only_new, recurring=recurs
    )
    request = for_engine(command, _set)
    return msgspec.structs.replace(request, actions=("manage",)) if recurs else request


def _body(words: Words) -> bytes:
    rest = words.rest()
    if len(rest) % 2:
        raise errors.syntax_error()
    return entries.body([(_text(field), value) for field, value in zip(rest[::2], rest[1::2], strict=True)])


def get_schedule(words: Words) -> CommandRequest:
    """WEIR.SCHEDULE GET key name."""
    stream, name = _place(words)
    return for_engine(schedule_commands.DescribeSchedule(stream=stream, name=name), _shown)


def list_schedules(words: Words) -> CommandRequest:
    """WEIR.SCHEDULE LIST key [BYNAME] [AFTER milliseconds name] [COUNT count].

    With BYNAME those after the name.
    """
    _, key = words.take_many(2)
    stream, by_name, after, count = stream_name(key), False, (0, ""), 100
    while words.left:
        if words.took(b"BYNAME"):
            by_name = True
        elif words.took(b"AFTER", values=2):
            after = (_ms(words.take()), _text(words.take()))
        elif words.took(b"COUNT", values=1):
            count = integer_from(words.take(), 1, _PAGE_MAX, f"ERR COUNT is between 1 and {_PAGE_MAX}")
        else:
            raise errors.syntax_error()
    return for_engine(
        schedule_commands.ListSchedules(stream=stream, by_name=by_name, after=after, limit=count), _page
    )


def delete_schedule(words: Words) -> CommandRequest:
    """WEIR.SCHEDULE DEL key name [RECURRING]: what recurs takes that word, and the right to manage."""
    stream, name = _place(words)
    return _of_one(
        words,
        lambda recurring: schedule_commands.CancelSchedule(stream=stream, name=name, recurring=recurring),
        lambda _: 1,
    )


def pause_schedule(words: Words) -> CommandRequest:
    """WEIR.SCHEDULE PAUSE key name [UNTIL ms] [RECURRING]: with that word also what recurs."""
    return _pausing(words, on=True)


def resume_schedule(words: Words) -> CommandRequest:
    """WEIR.SCHEDULE RESUME key name [RECURRING]: the same."""
    return _pausing(words, on=False)


def _pausing(words: Words, *, on: bool) -> CommandRequest:
    stream, name = _place(words)
    until_ms = _ms(words.take()) if on and words.took(b"UNTIL", values=1) else None
    return _of_one(
        words,
        lambda recurring: schedule_commands.PauseSchedule(
            stream=stream, name=name, pause=schedule_commands.Pause(on, until_ms), recurring=recurring
        ),
        _set,
    )


def _of_one(
    words: Words, command: Callable[[bool], StreamCommand], shape: Callable[[Reply], Resp]
) -> CommandRequest:
    """A command on one schedule, of which nothing is left but RECURRING."""
    recurring = words.took(b"RECURRING")
    if words.left:
        raise errors.syntax_error()
    request = for_engine(command(recurring), shape)
    return msgspec.structs.replace(request, actions=("manage",)) if recurring else request


def _place(words: Words) -> tuple[str, str]:
    """The subcommand's key and name."""
    _, key, named = words.take_many(3)
    return stream_name(key), names.check_text(_text(named), "schedule name")


def _set(reply: Reply) -> Resp:
    assert isinstance(reply, ScheduleSet), "it answers the schedule"
    return _at_ms(reply.schedule)


def _at_ms(info: ScheduleInfo) -> int | None:
    return None if info.at_ms == NEVER_MS else info.at_ms


def _shown(reply: Reply) -> Resp:
    """As a map: its name, when it is due next (null in a pause without an end), its rule as JSON, its fields.
    A pause is in the rule: `held_ms`, when it was due as that began, and `paused_until_ms`.
    """
    assert isinstance(reply, ScheduleInfo), "it answers the schedule"
    pairs = entries.pairs_of(entries.encode(0, reply.body))
    fields: list[Resp] = [part for name, value in pairs for part in (name.encode(), value)]
    rule = msgspec.json.encode(reply.rule)
    return Pairs(
        [
            *(b"name", reply.name.encode(), b"at-ms", _at_ms(reply), b"rule", rule),
            *(b"left", reply.left, b"fields", fields),
        ]
    )


def _page(reply: Reply) -> Resp:
    assert isinstance(reply, SchedulePage), "listing answers a page"
    return [_shown(one) for one in reply.schedules]
