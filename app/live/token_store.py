"""Tokens and revocations that are made while the gateway runs: kept in the log, and taken away at once.

Knows: the names under which the engine keeps them, that revocations are also in a file beside the log.
Must never know: routes, how a caller is recognised.

    token:<id>                 a token's hash, grants, end and label
    revoked:<kind>:<value>     a revocation
    drop-tokens                left by a restore that is to drop all tokens; gone once that was done
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from app import logs
from app.auth.grants import Grant
from app.auth.policy import TokenPolicy
from app.auth.revocation_file import RevocationFile
from app.auth.revocations import REVOCATIONS_MAX, Revocation
from app.auth.token_file import TOKENS_MAX
from app.auth.tokens import ROOT_ID, CreatedToken, Making, Token, create
from app.errors import RefusalError, invalid
from app.live.sessions import OpenSessions
from engine import Call, Clock, EngineError, EngineProtocol, How, ask, ask_one
from engine.commands.base import Command
from engine.commands.weir_commands import ListMetadata, PutMetadata
from engine.errors import OF_BACKEND
from engine.replies import MetadataPage, Reply

_ORIGIN: Final = "tokens"
_TOKEN: Final = "token:"  # noqa: S105 - the beginning of names
_REVOKED: Final = "revoked:"
_Row = TypeVar("_Row", bound=BaseModel)
DROP_TOKENS: Final = "drop-tokens"
# A backend that does not answer is asked again after this time.
_READ_AGAIN_S: Final = 1.0
# What has expired is removed with what is made, a few at a time.
_FORGOTTEN_MAX: Final = 100


class TokenStore:
    """The tokens and revocations of one gateway."""

    def __init__(self, policy: TokenPolicy, sessions: OpenSessions, clock: Clock) -> None:
        self._policy = policy
        self._sessions = sessions
        self._clock = clock
        self._file: RevocationFile | None = None
        # With fronts: have them accept a new token, and refuse what is revoked. The latter returns how many
        # connections and reads of theirs have ended.
        self.on_created: Callable[[Token], Awaitable[None]] | None = None
        self.on_revoked: Callable[[Revocation], Awaitable[int]] | None = None
        self._engine: EngineProtocol | None = None
        # Held while what the engine has and what is known here may differ.
        self._writing = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._look_again = False
        self._seen: Sequence[tuple[str, bytes]] = ()

    # ---- at start

    def load(self, engine: EngineProtocol, file: RevocationFile | None, done: Callable[[], None]) -> None:
        """Read what the log and the file hold, then call `done`. Until then no token is accepted. A backend
        that does not answer, or does not say them, is asked again.
        """
        self._engine, self._file = engine, file
        if file is not None:
            self._policy.revoke(file.kept)

        is_logged = False

        def listed(replies: Sequence[Reply | EngineError]) -> None:
            nonlocal is_logged
            page = replies[0]
            if isinstance(page, EngineError) and page.code in OF_BACKEND:
                if not is_logged:
                    logs.get().warning(
                        "the tokens cannot be read yet: this is tried again", reason=page.detail
                    )
                is_logged = True
                asyncio.get_running_loop().call_later(_READ_AGAIN_S, read)
                return
            if isinstance(page, EngineError):
                remedy = "restart the gateway: until then it refuses every token of the log"
                logs.get().critical("the tokens in the log cannot be read", reason=page.detail, remedy=remedy)
                return
            assert isinstance(page, MetadataPage), "a list of metadata answers a page"
            self._know(engine, page)
            done()

        def read() -> None:
            replies = engine.send(Call((ListMetadata(),), origin=_ORIGIN), listed)
            if replies is not None:
                listed(replies)

        read()

    def look(self) -> None:
        """Read them again, since another gateway may have changed them: what it has revoked ends here too."""
        self._look_again = True
        if self._looking is None and self._engine is not None:
            self._looking = asyncio.ensure_future(self._read_again(self._engine))
            self._looking.add_done_callback(self._looked)

    def _looked(self, _: object) -> None:
        self._looking = None
        if self._look_again:
            # Asked for between the last read and this.
            self.look()

    async def _read_again(self, engine: EngineProtocol) -> None:
        while self._look_again:
            self._look_again = False
            async with self._writing:
                try:
                    page = await ask_one(engine, Call((ListMetadata(),), origin=_ORIGIN))
                except EngineError:
                    self._look_again = False
                    # It is read again with the next look, which comes in a few seconds.
                    return
                assert isinstance(page, MetadataPage), "a list of metadata answers a page"
                if page.values != self._seen:
                    self._know(engine, page)
                    self._sessions.revoke(self._policy.is_revoked)

    def _know(self, engine: EngineProtocol, page: MetadataPage) -> None:
        self._seen = page.values
        dropped = any(name == DROP_TOKENS for name, _ in page.values)
        tokens = _read(Token, _TOKEN, page)
        self._policy.replace_stored(() if dropped else tokens)
        self._policy.revoke(_read(Revocation, _REVOKED, page))
        if dropped:
            # The marker goes with the tokens: a crash before leaves both.
            names = [DROP_TOKENS, *(_TOKEN + token.id for token in tokens)]
            drop = [PutMetadata(name=name, value=None) for name in names]
            engine.send(Call(drop, How.TOGETHER, origin=_ORIGIN), lambda _: None)
            logs.get().warning(
                "tokens in the log were dropped, as the restore was asked to", tokens=len(tokens)
            )

    # ---- tokens

    @property
    def tokens(self) -> list[Token]:
        """Every token that is good now, by ID."""
        now_s = self._sessions.wall_s()
        return sorted(
            (token for token in self._policy.tokens if not token.is_expired(now_s)),
            key=lambda token: token.id,
        )

    def find(self, token_id: str) -> Token:
        """The token. Raises `no_token`."""
        for token in self.tokens:
            if token.id == token_id:
                return token
        raise no_token(token_id)

    def is_configured(self, token: Token) -> bool:
        """Whether it comes from the settings, not from the log."""
        return not self._policy.is_stored(token)

    async def create(
        self,
        engine: EngineProtocol,
        grants: tuple[Grant, ...],
        *,
        label: str,
        expires_at: datetime | None,
        created_by: str,
        earlier: tuple[Making, ...] = (),
    ) -> CreatedToken:
        """Make a token; it is on disk when this returns. Raises EngineError, `invalid`."""
        now_s = self._sessions.wall_s()
        expired = [
            token
            for token in self._policy.tokens
            if token.is_expired(now_s) and self._policy.is_stored(token)
        ]
        if len(self._policy.tokens) - len(expired) >= TOKENS_MAX:
            raise invalid("", f"there are {TOKENS_MAX} tokens: revoke some")
        made = create(
            grants,
            label=label,
            expires_at=expires_at,
            created_at=self._now(),
            created_by=created_by,
            earlier=earlier,
        )
        gone = expired[:_FORGOTTEN_MAX]
        async with self._writing:
            await _run(
                engine,
                [
                    *(PutMetadata(name=_TOKEN + token.id, value=None) for token in gone),
                    PutMetadata(name=_TOKEN + made.token.id, value=_json(made.token)),
                ],
            )
            for token in gone:
                self._policy.remove(token)
            self._policy.add(made.token)
        if self.on_created is not None:
            await self.on_created(made.token)
        return made

    def accept(self, token: Token) -> None:
        """Accept a token that another process has made."""
        self._policy.add(token)

    def refuse(self, revocation: Revocation) -> int:
        """Refuse what another process has revoked. Returns how many connections and reads were ended."""
        policy = self._policy
        stored = [token for token in policy.tokens if policy.is_stored(token)]
        policy.revoke([revocation])
        for token in stored:
            if policy.revocations.has_token(token):
                policy.remove(token)
        return self._sessions.revoke(policy.is_revoked)

    # ---- revocations

    @property
    def revocations(self) -> list[Revocation]:
        """Every revocation that still matters, by kind and value."""
        return sorted(self._policy.revocations, key=lambda revocation: revocation.key)

    async def revoke_token(self, engine: EngineProtocol, token: Token) -> int:
        """Revoke a static token. Returns as `revoke` does."""
        return await self.revoke(
            engine,
            Revocation(kind="token", value=token.id, revoked_at=self._now(), expires_at=token.expires_at),
        )

    async def revoke(self, engine: EngineProtocol, revocation: Revocation) -> int:
        """Accept what it names no more, and end what that has opened. Returns how many connections and reads
        were ended. It is on disk when this returns.

        It holds at once, also where it cannot be kept. Raises `storage_failed`, EngineError, `invalid`.
        """
        policy = self._policy
        if revocation.key == ("token", ROOT_ID):
            raise invalid("", "the root token is a setting: change root_token, and restart")
        if revocation.key not in policy.revocations and len(policy.revocations) >= REVOCATIONS_MAX:
            detail = f"there are {REVOCATIONS_MAX} revocations, the maximum: give new ones an expires_at"
            raise invalid("", detail)
        stored = [token for token in policy.tokens if policy.is_stored(token)]
        over = policy.revocations.forget(_FORGOTTEN_MAX)
        policy.revoke([revocation])
        # With what an earlier one of the same key has revoked.
        kept = policy.revocations.get(revocation.key)
        ended = self._sessions.revoke(policy.is_revoked)
        if self.on_revoked is not None:
            ended += await self.on_revoked(kept)
        async with self._writing:
            await self._write_file()
            gone = [token for token in stored if policy.revocations.has_token(token)]
            await _run(
                engine,
                [
                    *(PutMetadata(name=_name(revocation), value=None) for revocation in over),
                    *(PutMetadata(name=_TOKEN + token.id, value=None) for token in gone),
                    PutMetadata(name=_name(revocation), value=_json(kept)),
                ],
            )
            for token in gone:
                policy.remove(token)
        return ended

    async def _write_file(self) -> None:
        if self._file is None:
            return
        try:
            await asyncio.to_thread(self._file.write, list(self._policy.revocations))
        except OSError as error:
            detail = f"the revocation holds until the gateway stops, but could not be kept: {error.strerror}"
            raise RefusalError("storage_failed", detail) from None

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ms() // 1000, UTC)


def no_token(token_id: str) -> RefusalError:
    """404: it is unknown, was revoked or has expired, or the caller may not see it."""
    return RefusalError("no_token", f"there is no token {token_id!r}, or it was revoked or has expired")


def _json(kept: Token | Revocation) -> bytes:
    return kept.model_dump_json(exclude_none=True).encode()


def _name(revocation: Revocation) -> str:
    return f"{_REVOKED}{revocation.kind}:{revocation.value}"


async def _run(engine: EngineProtocol, commands: Sequence[Command]) -> None:
    """Run them as one turn, on disk before this returns. Raises EngineError."""
    for reply in await ask(engine, Call(commands, How.TOGETHER, synced=True, origin=_ORIGIN)):
        if isinstance(reply, EngineError):
            raise reply


def _read(kind: type[_Row], prefix: str, page: MetadataPage) -> list[_Row]:
    """The rows of one kind. One that cannot be read is reported, and hides no other."""
    read = []
    for name, value in page.values:
        if name.startswith(prefix):
            try:
                read.append(kind.model_validate_json(value))
            except ValidationError as error:
                # Without the value, which is not for logs.
                reason = "; ".join(problem["msg"] for problem in error.errors(include_input=False))
                remedy = "create the token again, or revoke it again"
                logs.get().error(
                    "a token or revocation cannot be read", name=name, reason=reason, remedy=remedy
                )
    return read
