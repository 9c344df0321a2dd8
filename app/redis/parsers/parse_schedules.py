"""Parses WEIR.SCHEDULE: entries for later.

Knows: its words, and the shapes of its replies. Must never know: when a rule is due.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from app import names
from app.redis.parsers.words import INTEGER_MAX, Words, integer_from, stream_name
from app.redis.request import CommandRequest, for_engine
from app.redis.resp import Pairs, Resp
from engine import entries, errors
from engine.commands import schedule_commands
from engine.recurrence import Rule
from engine.replies import Reply, ScheduleInfo, SchedulePage, ScheduleSet

_PAGE_MAX: Final = 1_000


def _ms(word: bytes) -> int:
    return integer_from(word, 0, INTEGER_MAX, "ERR a time of a schedule is a number of milliseconds")


def _text(word: bytes) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise errors.invalid("ERR a rule of a schedule is UTF-8") from None


def _missed(word: bytes) -> str:
    if word.upper() not in {b"ONCE", b"SKIP"}:
        raise errors.invalid("ERR MISSED is ONCE or SKIP")
    return word.decode().lower()


_OPTIONS: Final[Mapping[bytes, tuple[str, Callable[[bytes], object]]]] = {
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
    _, key, named = words.take_many(3)
    stream, name = stream_name(key), _name(named)
    given: dict[str, Any] = {}
    only_new = False
    while not words.took(b"FIELDS", values=2):
        if words.took(b"NX"):
            only_new = True
            continue
        option = _OPTIONS.get(words.option()) if words.left > 1 else None
        if option is None or option[0] in given:
            raise errors.syntax_error()
        given[option[0]] = option[1](words.take())
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
    _, key, named = words.take_many(3)
    stream, name = stream_name(key), _name(named)
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
    _, key, named = words.take_many(3)
    stream, name = stream_name(key), _name(named)
    recurring = words.took(b"RECURRING")
    if words.left:
        raise errors.syntax_error()
    request = for_engine(
        schedule_commands.CancelSchedule(stream=stream, name=name, recurring=recurring), lambda _: 1
    )
    return msgspec.structs.replace(request, actions=("manage",)) if recurring else request


def _name(word: bytes) -> str:
    return names.check_text(_text(word), "schedule name")


def _set(reply: Reply) -> Resp:
    assert isinstance(reply, ScheduleSet), "it answers the schedule"
    return reply.schedule.at_ms


def _shown(reply: Reply) -> Resp:
    """As a map: its name, when it is due next, its rule as JSON, its fields."""
    assert isinstance(reply, ScheduleInfo), "it answers the schedule"
    pairs = entries.pairs_of(entries.encode(0, reply.body))
    fields: list[Resp] = [part for name, value in pairs for part in (name.encode(), value)]
    rule = msgspec.json.encode(reply.rule)
    return Pairs(
        [
            *(b"name", reply.name.encode(), b"at-ms", reply.at_ms, b"rule", rule),
            *(b"left", reply.left, b"fields", fields),
        ]
    )


def _page(reply: Reply) -> Resp:
    assert isinstance(reply, SchedulePage), "listing answers a page"
    return [_shown(one) for one in reply.schedules]
