"""Redriving dead letters on the wire: which ones, and which entries they have become.

Knows: the shapes of POST …/dead-letters/redrive. Must never know: statuses, sockets, how it is done.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from app import names
from app.api.pending import REASON_CHARS_MAX
from app.errors import invalid
from app.http import members, query
from app.http.entry_bodies import digest_of
from app.http.members import Members
from engine import ids
from engine.commands import FindDeadLetters, IdempotencyKey, Redrive
from engine.replies import GroupInfo, Redriven, Reply

MEMBERS: Final = ("ids", "filter", "count", "dry_run")
_FILTER: Final = ("start", "end", "consumer", "reason")
_COUNT_DEFAULT: Final = 100


class Selection(msgspec.Struct, frozen=True):
    """Which dead letters of a group are meant: those named, or (None) those that pass the filter."""

    named: Sequence[int] | None = None
    start: int = ids.ID_MIN
    end: int = ids.ID_MAX
    consumer: str | None = None
    reason: str | None = None
    count: int = _COUNT_DEFAULT
    dry_run: bool = False

    def search(self, stream: str, group: str, letters: str, start: int, count: int) -> FindDeadLetters:
        """The command that looks for them, from `start` on."""
        return FindDeadLetters(
            stream=stream,
            group=group,
            letters=letters,
            start=start,
            end=self.end,
            count=count,
            consumer=self.consumer,
            reason=self.reason,
        )

    def digest(self, group: str) -> bytes:
        """What tells this request from others under the same idempotency key."""
        return digest_of(repr(("redrive", group, self)).encode())


def parse(given: Members, key: str | None, ids_max: int, count_max: int) -> Selection:
    """POST …/dead-letters/redrive: IDs, or a filter with a count; without both, all of the group's."""
    dry_run = members.boolean(given, "dry_run")
    if dry_run and key is not None:
        raise invalid("Idempotency-Key", "it does not go with dry_run, which changes nothing")
    if "ids" in given:
        for name in ("filter", "count"):
            if name in given:
                raise invalid(f"/{name}", "it does not go with ids")
        return Selection(members.entry_ids(given, ids_max), dry_run=dry_run)
    count = members.integer(given, "count", least=1, most=count_max)
    wanted = members.inner(given, "filter", _FILTER) or {}
    return Selection(
        start=_bound(wanted, "start", "-", upper=False),
        end=_bound(wanted, "end", "+", upper=True),
        consumer=_consumer(wanted),
        reason=_reason(wanted),
        count=_COUNT_DEFAULT if count is None else count,
        dry_run=dry_run,
    )


def _bound(wanted: Members, name: str, default: str, *, upper: bool) -> int:
    if wanted.get(name) is None:
        return query.bound(default, name, upper=upper)
    text = members.text(wanted, name, "it is '-', '+', an ID, or '(' and an ID", where="/filter")
    return query.bound(text, f"/filter/{name}", upper=upper)


def _consumer(wanted: Members) -> str | None:
    """The empty one held what had been given back when it died."""
    if wanted.get("consumer") is None:
        return None
    text = members.text(wanted, "consumer", "it is a string", where="/filter")
    return names.check_text(text, "consumer name") if text else text


def _reason(wanted: Members) -> str | None:
    if wanted.get("reason") is None:
        return None
    text = members.text(wanted, "reason", "it is a string", where="/filter")
    if len(text) > REASON_CHARS_MAX:
        raise invalid("/filter/reason", f"it has at most {REASON_CHARS_MAX} characters")
    return text


def dead_letter_stream(info: Reply) -> str:
    """The group's dead-letter stream. Raises `invalid` where it has none."""
    assert isinstance(info, GroupInfo), "describing a group answers the group"
    if info.dead_letter_stream is None:
        raise invalid("", "the group has no dead-letter stream: set the group's dead_letter first")
    return info.dead_letter_stream


def command(
    stream: str,
    group: str,
    letters: str,
    selection: Selection,
    key: str | None,
    found: Sequence[int],
    upto: int | None,
) -> Redrive:
    """The command that redrives what was found."""
    return Redrive(
        stream=stream,
        group=group,
        letters=letters,
        ids=found,
        upto=upto,
        dry_run=selection.dry_run,
        idempotency=None if key is None else IdempotencyKey(key, selection.digest(group)),
    )


def redriven(reply: Reply, letters: str) -> bytes:
    """Which dead letters have become which entries; of a dry run the entries are null."""
    assert isinstance(reply, Redriven), "redriving answers what was redriven"
    copies = map(ids.text, reply.copies)
    rows = [
        {"dead_letter_id": ids.text(letter), "id": next(copies) if reply.copies else None}
        for letter in reply.letters
    ]
    return msgspec.json.encode(
        {
            "stream": letters,
            "redriven": len(rows),
            "entries": rows,
            "next": None if reply.upto is None else ids.text(reply.upto),
            "duplicate": reply.duplicate,
        }
    )
