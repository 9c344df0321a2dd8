"""Entries for later over a server: how one is kept, what is asked of them, what appends those that are due.

Knows: the scripts' arguments and replies, and how `lua/scheduling.lua` keeps an entry.
Must never know: connections, when it is looked for what is due, how rules say when.

    due ──► name, head, rule ──► the next time by the rule ──► fire: nothing unless each head is as it was

So of several gateways the one that comes first appends an entry; the others look again.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

from engine.clock import Clock
from engine.cluster.origins import unnumbered
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.scripts import (
    FIELDS_MAX,
    ScriptCall,
    Word,
    WriteOrigin,
    adding,
    checked,
    script,
    stream_keys,
    too_many_fields,
)
from engine.cluster.stored import body_of, words_of
from engine.cluster.words import by_script, sends
from engine.commands.schedule_commands import ListSchedules
from engine.commands.scheduling import PAGE_BYTES_MAX, PAGE_MAX
from engine.parts.schedules import PutSchedule
from engine.recurrence import Rule, rule_of
from engine.replies import ScheduleInfo, SchedulePage

Run = Callable[[BackendRequest], Awaitable[Any]]

# Of runs that are not counted.
_UNCOUNTED: Final = "-"
# How long the next times of what is due may hold the loop up: what remains is for the next turn.
_TURN_S: Final = 0.005


# --- keeping


def put_words(record: PutSchedule) -> list[Word]:
    """A schedule as `lua/scheduling.lua` keeps it: name, time, what is left, whether it recurs, rule, entry.
    Raises EngineError.
    """
    rule, left = rule_of(record.rule, record.at_ms), _UNCOUNTED if record.left is None else record.left
    return [record.name, record.at_ms, left, int(rule.recurs), record.rule, _packed(words_of(record.text))]


def _packed(entry: Sequence[bytes]) -> bytes:
    if len(entry) > 2 * FIELDS_MAX:
        raise too_many_fields()
    return b"%b\n%b" % (b" ".join(b"%d" % len(word) for word in entry), b"".join(entry))


# --- asking


@sends(ListSchedules)
def _list(command: ListSchedules, _: WriteOrigin) -> BackendRequest:
    after_ms, after = command.after
    bounds: list[Word] = ["time", after_ms, after, "" if command.before_ms is None else command.before_ms]
    if command.by_name:
        before = "+" if command.before is None else f"({command.before}"
        bounds = ["name", f"({after}" if after else "-", before]
    return _page(command.stream, min(command.limit, PAGE_MAX), bounds)


def _page(stream: str, most: int, bounds: Sequence[Word]) -> BackendRequest:
    def decode(reply: Any) -> SchedulePage:  # noqa: ANN401 - as the server sent it
        _, more, *rows = checked(reply)
        schedules = [info_of(name, value) for name, value in zip(rows[::2], rows[1::2], strict=True)]
        return SchedulePage(schedules, more=bool(more))

    words = [most, PAGE_BYTES_MAX, *bounds]
    call = ScriptCall(script("page_schedules", "scheduling"), stream_keys(stream)[:2], words, decode)
    return by_script(stream, call, Lane.READ)


def info_of(name: bytes, value: bytes) -> ScheduleInfo:
    """A schedule by what is kept of it."""
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
    """What is left of each schedule behind its run, and its rule, whose pause is over; of at least one."""
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
        yield from (int(not is_missed), rule.definition.text)
        if clock.monotonic() > ends_at:
            return


def _decode_fired(reply: Any) -> int:  # noqa: ANN401 - as the server sent it
    _, count = checked(reply)
    return int(count)
