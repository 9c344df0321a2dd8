"""The steps that a Redis command takes, the same for the command API and for the port of Redis clients.

    words ─► parse: limits of what it carries ─► first_missing: may it? ─► bound: limits of what it may get
          ─► the engine ─► write: encoded by itself ─► counted, audited, traced

Knows: their order; that a reply which cannot be written fails alone; when replies are written in a thread.
Must never know: sockets, statuses, media types, who has asked and how it is answered.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

from app import logs, redis
from app.errors import CODES, RefusalError
from app.live.turns import slice_of
from app.redis.parsers.table import changing
from app.redis.request import CommandRequest, Visible
from app.redis.resp import Resp
from app.redis.rights import within_rights
from app.redis.runs import Parsed, RunResult
from app.work import Work, dropped
from engine import Call, EngineError, How, ask, errors
from engine.replies import Reply

_LOADING: Final = "LOADING Redis is loading the dataset in memory"
_ANSWER: Final = "answer_bytes_max"

Words = Sequence[bytes]


class Room(NamedTuple):
    """The most bytes that a reply may take as text, and the setting that says so."""

    bytes_max: int
    name: str = _ANSWER


class Codec(Protocol):
    """How replies are encoded; `frame_bytes` stand around each that has text of its own."""

    frame_bytes: ClassVar[int]

    def refusal(self, refusal: EngineError) -> bytes:
        """Encode a refusal."""

    def immediate(self, answer: Resp) -> bytes:
        """Encode the answer of a command that needs no engine."""

    def reply(self, parsed: CommandRequest, reply: Reply | EngineError, visible: Visible) -> bytes:
        """Encode the engine's reply; names of streams that are not visible are left out. Raises EngineError:
        the reply itself, or what Redis reports after it has found the key.
        """

    def entry_id(self, entry_id: int) -> bytes:
        """Encode the reply of a plain XADD."""


class CommandSteps:
    """The steps of the commands of one piece of work."""

    def __init__(self, work: Work, codec: Codec) -> None:
        self.work = work
        self._codec = codec
        gateway = work.gateway
        self.limits: Final = gateway.limits.commands
        self.room: Final = Room(gateway.settings.answer_bytes_max)
        self._clock = gateway.clock

    # ---- before it runs

    def parse(self, words: Words) -> Parsed:
        """The command within the limits of what it carries, or why it is invalid. A thread may do it."""
        try:
            return within_rights(redis.checked(redis.parse(words), self.limits), self.work.principal)
        except EngineError as invalid:
            row = changing(words) if self.work.gateway.access.audit.is_on else None
            if row is not None:
                action, name = row
                self._audit({"action": action, "operation": name}, invalid)
            return invalid

    def bound(self, parsed: CommandRequest, room: Room | None = None) -> CommandRequest:
        """The command within the limits of what it may get."""
        if self.work.principal.may_see_all:
            parsed = redis.seeing_all(parsed)
        bytes_max, name = room or self.room
        return redis.within(parsed, bytes_max, self.limits, name)

    async def probe(self, parsed: CommandRequest, room: Room | None = None) -> None:
        """Check the size of a reply that is not limited in advance. Raises EngineError if it is too long."""
        bytes_max, name = room or self.room
        probes = redis.probes(parsed, bytes_max)
        if probes:
            replies = await ask(self.work.engine, Call(probes, How.TOGETHER, origin=self.work.request_id))
            redis.check_probed(parsed, replies, bytes_max, self.limits, name)

    # ---- what it is answered

    async def write_each(
        self,
        outcomes: Sequence[RunResult],
        take_turn: Callable[[], Awaitable[None]],
        room: Room | None = None,
    ) -> list[bytes]:
        """The replies of commands that ran together: in a thread if some are long, else in slices of time
        between which others have their turn.
        """
        if redis.is_laborious(
            [outcome[1] for outcome in outcomes if isinstance(outcome, tuple) and outcome[1] is not None]
        ):
            return await self.write_in_thread(outcomes, room)
        rest = iter(outcomes)
        written, is_done = self.write_some(rest, room)
        while not is_done:
            await take_turn()
            some, is_done = self.write_some(rest, room)
            written += some
        return written

    async def write_in_thread(self, outcomes: Iterable[RunResult], room: Room | None = None) -> list[bytes]:
        """The replies of commands of which some are long."""
        kept = [*outcomes]
        written = await asyncio.to_thread(lambda: [self._written(outcome, room) for outcome in kept])
        return [*map(self._note, kept, written)]

    def write_some(self, outcomes: Iterator[RunResult], room: Room | None = None) -> tuple[list[bytes], bool]:
        """The next replies, as many as a slice of time takes; and whether these were all."""
        has_time = slice_of(self._clock.monotonic)
        written: list[bytes] = []
        added = added_bytes = 0
        is_done = True
        for outcome in outcomes:
            if type(outcome) is int:
                text = self._codec.entry_id(outcome)
                added += 1
                added_bytes += len(text)
            else:
                text = self.write(outcome, room)
            written.append(text)
            if not has_time():
                is_done = False
                break
        if added:
            self.work.note_end("xadd", number=added, sent_bytes=added_bytes)
        return written, is_done

    def write(self, outcome: RunResult, room: Room | None = None) -> bytes:
        """The reply of one command. It fails alone: the other commands have run too, and have theirs."""
        return self._note(outcome, self._written(outcome, room))

    def encode(self, parsed: CommandRequest, reply: Reply | None, room: Room | None = None) -> bytes:
        """The reply of one command, of which nothing is kept. Raises EngineError."""
        if parsed.command is None:
            return self._codec.immediate(parsed.immediate(self._clock.wall_ms() * 1000))
        written = self._codec.reply(parsed, reply, self.work.principal.may_see)
        bytes_max, name = room or self.room
        redis.check_written(parsed, len(written) - self._codec.frame_bytes, bytes_max, name)
        return written

    def _written(self, outcome: RunResult, room: Room | None) -> bytes | EngineError:
        """The reply, or why there is none; a thread may write it."""
        if isinstance(outcome, int):
            return self._codec.entry_id(outcome)
        if isinstance(outcome, EngineError):
            return outcome
        parsed, reply = outcome
        if isinstance(reply, EngineError):
            return reply
        try:
            return self.encode(parsed, reply, room)
        except EngineError as refusal:
            return refusal
        except Exception as error:  # noqa: BLE001 - as `write` says
            logs.note_fault(error, self.work.request_id)
            return errors.internal()

    # ---- what is kept of it

    def _note(self, outcome: RunResult, written: bytes | EngineError) -> bytes:
        refusal, name = None, ""
        if isinstance(written, EngineError):
            refusal, written = written, self._codec.refusal(written)
        if isinstance(outcome, tuple):
            parsed, reply = outcome
            name = parsed.name
            self.audit(parsed, refusal, reply)
            if refusal is None and reply is not None and not isinstance(reply, EngineError):
                self.work.note_reply(parsed.command, reply)
        elif refusal is None:
            name = "xadd"
        self.work.note_end(name, refusal, sent_bytes=len(written))
        return written

    def audit(
        self, parsed: CommandRequest, refusal: EngineError | None, reply: Reply | EngineError | None = None
    ) -> None:
        """Have the audit log say what was done to streams, groups or the gateway, or was refused."""
        audited = parsed.audited_by(reply) if self.work.gateway.access.audit.is_on else None
        if audited is not None:
            action, names = audited
            self._audit({"action": action, "operation": parsed.name, **names, **dropped(reply)}, refusal)

    def _audit(self, facts: dict[str, object], refusal: EngineError | None) -> None:
        code = "" if refusal is None else refusal.code
        self.work.audit(facts, status=CODES[code].status if code else 200, code=code)


def in_words_of_redis(refusal: RefusalError) -> EngineError:
    """The gateway's refusal; while the log is read, clients of Redis wait at the word LOADING."""
    if refusal.code in {"starting", "restarting"}:
        return EngineError(refusal.code, _LOADING, refusal.detail)
    return EngineError(refusal.code, f"ERR {refusal.detail}", refusal.detail)
