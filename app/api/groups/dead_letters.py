"""Redrive: dead letters of a group go back to the stream that they came from."""

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from pydantic import AfterValidator, Field

from app.api.groups import group_calls
from app.api.groups.pending import REASON_CHARS_MAX
from app.auth import Action
from app.errors import invalid
from app.http.asks import Ask
from app.http.entries.entry_bodies import digest_of
from app.http.entries.publishing import KeyHeader
from app.http.models import (
    NAME_CHARACTERS,
    NOT_MISLEADING,
    Bound,
    Count,
    GroupName,
    Ids,
    IdText,
    NameText,
    RequestModel,
    ResponseModel,
    StreamName,
    UpperBound,
    Whole,
    check_name,
)
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.requests import Request
from app.http.responses import Response
from engine import ids
from engine.commands.redriving import TURN_REDRIVEN_MAX
from engine.commands.types import IdempotencyKey
from engine.commands.weir_commands import DescribeGroup, FindDeadLetters, Redrive
from engine.name_rules import NAME_BYTES_MAX
from engine.replies import DeadLettersFound, GroupInfo, Redriven, Reply

router: Final = Router("groups")

# Maximum turns in which one request searches a dead-letter stream that groups share; `next` continues there.
_SEARCHES_MAX: Final = 200
_COUNT_DEFAULT: Final = 100


class DeadLetterFilter(RequestModel):
    """Which dead letters of the group are meant: all that each given member fits."""

    start: Annotated[
        Bound | None,
        Field(description="first ID in the dead-letter stream; `(` and an answer's `next` goes on"),
    ] = None
    end: Annotated[UpperBound | None, Field(description="last ID in the dead-letter stream")] = None
    consumer: Annotated[
        Annotated[str, AfterValidator(lambda name: name and check_name(name, "consumer name"))] | None,
        Field(
            description="who held the entry last; empty: it had been given back",
            json_schema_extra={
                "maxLength": NAME_BYTES_MAX,
                "pattern": f"^({NOT_MISLEADING}{NAME_CHARACTERS}+)?$",
            },
        ),
    ] = None
    reason: Annotated[
        str | None,
        Field(
            max_length=REASON_CHARS_MAX,
            description="`max_deliveries`, or the reason given when it was moved by hand",
        ),
    ] = None


class RedriveWanted(RequestModel):
    """Dead letters to put back: `ids` of entries in the group's dead-letter stream, or at most `count` that a
    filter fits; without both the first `count` of the group.
    """

    ids: Annotated[
        Ids | None,
        Field(description="in the dead-letter stream; one call puts back 100 of them at most, see `next`"),
    ] = None
    filter: DeadLetterFilter | None = None
    count: Annotated[
        Annotated[int, Whole(1, "count_max")] | None,
        Field(
            description="100 by default; not with `ids`. One call puts back 100 at most, also where this is "
            "larger: `next` of the answer goes on"
        ),
    ] = None
    dry_run: Annotated[bool | None, Field(description="change nothing, and answer what would be done")] = None

    def selection(self) -> "DeadLetterSelection":
        """What is meant. Raises the refusal of members that do not go together."""
        if self.ids is not None:
            for name in ("filter", "count"):
                if getattr(self, name) is not None:
                    raise invalid(f"/{name}", "it does not go with ids")
            return DeadLetterSelection(self.ids, dry_run=bool(self.dry_run))
        wanted = self.filter or DeadLetterFilter()
        return DeadLetterSelection(
            start=ids.ID_MIN if wanted.start is None else wanted.start,
            end=ids.ID_MAX if wanted.end is None else wanted.end,
            consumer=wanted.consumer,
            reason=wanted.reason,
            count=self.count or _COUNT_DEFAULT,
            dry_run=bool(self.dry_run),
        )


class DeadLetterSelection(msgspec.Struct, frozen=True):
    """Which dead letters of a group are meant: those named, or (None) those that pass the filter."""

    named: Sequence[int] | None = None
    start: int = ids.ID_MIN
    end: int = ids.ID_MAX
    consumer: str | None = None
    reason: str | None = None
    count: int = _COUNT_DEFAULT
    dry_run: bool = False

    def digest(self, group: str) -> bytes:
        """What distinguishes this request from others under the same idempotency key. Logs hold it: its form
        does not change.
        """
        return digest_of(repr(("redrive", group, self)).encode())


class RedrivenEntry(ResponseModel):
    """A dead letter that was, and the entry that it has become; of a dry run null."""

    dead_letter_id: IdText
    id: IdText | None


class RedrivenEntries(ResponseModel):
    """What was put back from the dead-letter stream `stream`, as much as one call takes."""

    stream: NameText
    redriven: Count
    entries: list[RedrivenEntry]
    next: Annotated[
        IdText | None,
        Field(
            description="the last dead letter that was looked at, where there may be others: call again with "
            "`filter.start` `(<next>`, or with the `ids` behind `next`; null where there are none"
        ),
    ]
    duplicate: Annotated[bool, Field(description="answered as the first time under this key")]


_ALL: Final = RedriveWanted()


@router.post(
    "/v1/streams/{stream}/groups/{group}/dead-letters/redrive",
    Action.WRITE,
    model=RedrivenEntries,
    refusals=("malformed_id", "no_stream", "no_group", "stream_exhausted", "idempotency_mismatch"),
    writes=True,
)
def redrive_dead_letters(
    request: RequestParameter,
    stream: StreamName,
    group: GroupName,
    given: RedriveWanted = _ALL,
    idempotency_key: KeyHeader = None,
) -> Ask:
    """Put dead letters of a group back into its stream, as new entries, and delete the dead letters.

    Each copy is a new entry with the fields of the one that died, and `weir-redriven-from`, the ID of that
    one; its delivery count begins at 0, and every group of the stream reads it. The copies are appended and
    the dead letters deleted at once, so that none is lost or doubled. A call takes at most 100 dead letters
    and 4 MiB: where `next` is not null, call again with `filter.start` `(<next>`. Dead letters of other
    groups and streams are passed over.
    """
    if given.dry_run and idempotency_key is not None:
        raise invalid("Idempotency-Key", "it does not go with dry_run, which changes nothing")
    redriving = _Redriving(request, stream, group, given.selection(), idempotency_key)
    return group_calls.look(request, DescribeGroup(stream=stream, group=group), redriving.begin, lasts=False)


class _Redriving(NamedTuple):
    """What one request puts back. `letters` is where its dead letters are."""

    request: Request
    stream: str
    group: str
    selection: DeadLetterSelection
    key: str | None
    letters: str = ""

    def begin(self, info: Reply) -> Ask:
        """Find the dead letters that are meant."""
        letters = _dead_letter_stream(info)
        self.request.require(Action.WRITE, letters)
        group_calls.require_entries(self.request, letters)
        found = self._replace(letters=letters)
        named = self.selection.named
        return found.search([], self.selection.start, 1) if named is None else found.redrive(named, None)

    def search(self, found: Sequence[int], start: int, number: int) -> Ask:
        """Look for further ones from there on, as many as one turn takes; others come between two looks."""
        selection = self.selection
        most = min(selection.count, TURN_REDRIVEN_MAX)

        def answer(page: Reply) -> Ask:
            assert isinstance(page, DeadLettersFound), "looking for dead letters answers which there are"
            there = [*found, *page.ids]
            if page.upto is None or len(there) == most or number == _SEARCHES_MAX:
                return self.redrive(there, page.upto)
            return self.search(there, page.upto + 1, number + 1)

        search = FindDeadLetters(
            stream=self.stream,
            group=self.group,
            letters=self.letters,
            start=start,
            end=selection.end,
            count=most - len(found),
            consumer=selection.consumer,
            reason=selection.reason,
        )
        return Ask([search], answer, in_turn=number > 1)

    def redrive(self, found: Sequence[int], upto: int | None) -> Ask:
        """Put these back; `upto` is the last one that was looked at where there are others."""
        key, selection = self.key, self.selection
        command = Redrive(
            stream=self.stream,
            group=self.group,
            letters=self.letters,
            ids=found,
            upto=upto,
            dry_run=selection.dry_run,
            idempotency=None if key is None else IdempotencyKey(key, selection.digest(self.group)),
        )
        return group_calls.change(self.request, self._answer, command)

    def _answer(self, reply: Reply) -> Response:
        return self.request.respond(200, _redriven(reply, self.letters))


def _dead_letter_stream(info: Reply) -> str:
    """The group's dead-letter stream. Raises `invalid` where it has none."""
    assert isinstance(info, GroupInfo), "describing a group answers the group"
    if info.dead_letter_stream is None:
        raise invalid("", "the group has no dead-letter stream: set the group's dead_letter first")
    return info.dead_letter_stream


def _redriven(reply: Reply, letters: str) -> RedrivenEntries:
    """Which dead letters have become which entries; of a dry run the entries are null."""
    assert isinstance(reply, Redriven), "redriving answers what was redriven"
    copies = map(ids.format, reply.copies)
    rows = [
        RedrivenEntry(dead_letter_id=ids.format(letter), id=next(copies) if reply.copies else None)
        for letter in reply.letters
    ]
    return RedrivenEntries(
        stream=letters,
        redriven=len(rows),
        entries=rows,
        next=None if reply.upto is None else ids.format(reply.upto),
        duplicate=reply.duplicate,
    )
