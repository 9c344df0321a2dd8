"""Tokens: making, listing, showing and revoking them; and what the caller may do."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from msgspec.structs import asdict
from pydantic import Field

from app.auth import Access, Action, Grant, Principal, Resource
from app.auth.principal import forbidden
from app.auth.rate_limits import NO_RATES, Rates
from app.auth.tokens import (
    GRANTS_MAX,
    HANDS_MAX,
    ID_PATTERN,
    LABEL_CHARS_MAX,
    Making,
    Token,
    check_prefixes,
)
from app.errors import RefusalError, invalid, locate
from app.http.models import RequestModel, ResponseModel, Whole
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.responses import Response
from app.live.token_store import no_token

router: Final = Router("gateway")

_TOKENS: Final = "/v1/admin/tokens"
_TOKEN: Final = _TOKENS + "/{token}"
# Longer ones are for ever, which is what leaving the time out means.
_EXPIRES_MS_MAX: Final = 100 * 366 * 86_400_000
_EXPIRES_HINT: Final = "when it expires, RFC 3339; null if it never does"
# Actions that make no stream and add nothing to one.
_ADDING_NOTHING: Final = frozenset((Action.READ, Action.ISSUE))

TokenId = Annotated[
    str,
    Field(pattern=ID_PATTERN, description="a token's ID, the middle of its text", examples=["Zb3kq0VJm2aX"]),
]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class NewToken(RequestModel):
    """A token to make. It may do what any one of its grants allows."""

    grants: Annotated[list[Grant], Field(min_length=1, max_length=GRANTS_MAX)]
    label: Annotated[str, Field(max_length=LABEL_CHARS_MAX, description="what it is for")] = ""
    expires_in_ms: Annotated[
        Annotated[int, Whole(1, _EXPIRES_MS_MAX)] | None,
        Field(description="for how long it is good; without it for as long as the caller's token is"),
    ] = None


class TokenInfo(ResponseModel):
    """A token, without its text, which is not kept."""

    id: TokenId
    grants: list[Grant]
    label: str
    created_at: Annotated[Time | None, Field(description="null for one of the settings")]
    created_by: Annotated[str | None, Field(description="the caller that has made it")]
    expires_at: Annotated[Time | None, Field(description=_EXPIRES_HINT)]
    source: Annotated[Literal["log", "settings"], Field(description="where it is kept")]

    @classmethod
    def of(cls, token: Token, prefix: str, *, is_configured: bool) -> "TokenInfo":
        """A token as it is kept, for a caller with this prefix."""
        return cls(
            id=token.id,
            grants=[grant.within(prefix) for grant in token.grants],
            label=token.label,
            created_at=_rfc3339(token.created_at),
            created_by=token.created_by,
            expires_at=_rfc3339(token.expires_at),
            source="settings" if is_configured else "log",
        )


class MadeToken(TokenInfo):
    """A token that was made. `token` is its text: this is the only copy."""

    token: Annotated[str, Field(description="what is sent as `Authorization: Bearer <token>`")]


class TokenPage(ResponseModel):
    """Tokens, by ID."""

    tokens: list[TokenInfo]


class Caller(ResponseModel):
    """Who the caller is to the gateway, and what it may do."""

    name: Annotated[str, Field(description="as in the audit log")]
    grants: list[Grant]
    expires_at: Annotated[Time | None, Field(description=_EXPIRES_HINT)]


def _rfc3339(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat().replace("+00:00", "Z")


@router.post(
    _TOKENS,
    Access.PER_TOKEN,
    status=201,
    model=MadeToken,
    headers={"Location": "where it is shown"},
    refusals=("not_configured",),
    audited="issue",
    central=True,
)
async def create_token(request: RequestParameter, given: NewToken) -> Response:
    """Make a token, which is shown this once.

    A caller with the action `admin` makes any. One with grants that have `issue` makes tokens whose grants
    these cover, with its own rate and quotas at most, and that live no longer than its own. A prefix of its
    own stands before theirs.
    """
    principal, gateway = request.principal, request.gateway
    grants = _grants(principal, given)
    if not _is_admin(principal):
        _require_issue(principal)
        limiter = gateway.limits.rates
        rates = NO_RATES if limiter is None else limiter.rates
        # Comparing patterns may take milliseconds each.
        await asyncio.to_thread(_check_covered, principal, grants, rates)
    made = await gateway.access.tokens.create(
        gateway.engine,
        grants,
        label=given.label,
        expires_at=_end(request, given.expires_in_ms),
        created_by=principal.name,
        earlier=_makings(principal),
    )
    info = TokenInfo.of(made.token, principal.prefix, is_configured=False)
    shown = MadeToken(**asdict(info), token=made.text)
    return Response(201, shown.json(), [(b"location", f"{_TOKENS}/{made.token.id}".encode())])


def _makings(principal: Principal) -> tuple[Making, ...]:
    """How the caller's own token was made. Raises `forbidden` where it went through too many hands."""
    makings = () if principal.token is None else principal.token.makings
    if len(makings) >= HANDS_MAX:
        raise forbidden(f"the caller's token was passed on {HANDS_MAX} times, and cannot be passed on again")
    return makings


def _grants(principal: Principal, given: NewToken) -> tuple[Grant, ...]:
    """The grants of a new token: a caller with a prefix passes on streams that begin with it."""
    try:
        return check_prefixes(tuple(grant.under(principal.prefix) for grant in given.grants))
    except ValueError as error:
        raise invalid("/grants", str(error)) from None


def _is_admin(principal: Principal) -> bool:
    return principal.may(Action.ADMIN, Resource())


def _require_issue(principal: Principal) -> None:
    """Raise `forbidden` unless the caller may make some tokens. A JWT without a subject passes nothing on:
    once it has expired, no token would be left that sees and revokes what it has made.
    """
    is_anybody = principal.jwt is not None and principal.jwt.subject is None
    if is_anybody or not principal.may_somewhere(Action.ISSUE):
        principal.require(Action.ADMIN, Resource())


def _check_covered(issuer: Principal, grants: Sequence[Grant], default: Rates) -> None:
    """Raise RefusalError (`forbidden`) unless the caller may make a token with these grants.

    `default` are the rates of tokens whose grants set none. Takes milliseconds for each pair of patterns.
    """
    own = [grant for grant in issuer.grants if Action.ISSUE in grant.actions]
    for place, grant in enumerate(grants):
        if not any(held.covers(grant) for held in own):
            raise _forbidden(
                f"/grants/{place}",
                "no grant of the caller with `issue` covers it, as far as its patterns show",
            )
    if not (issuer.rates or default).covers(Rates.of_grants(grants) or default):
        raise _forbidden("/grants", "the caller's own rate is lower: give a grant a `rate` within it")
    for limit in issuer.grants:
        if limit.has_quota and not _keeps(grants, limit):
            raise _forbidden(
                "/grants",
                f"the caller has a quota of {limit.streams!r}, and it would not hold: give a grant of this "
                "pattern a `streams_max` and `bytes_max` within it",
            )


def _keeps(grants: Sequence[Grant], limit: Grant) -> bool:
    """Whether a token with these grants stays within the quota of that grant."""
    return any(grant.limits(limit) for grant in grants) or not any(
        grant.actions - _ADDING_NOTHING and grant.may_share_streams(limit) for grant in grants
    )


def _forbidden(pointer: str, detail: str) -> RefusalError:
    return forbidden(f"{pointer}: {detail}", locate(pointer, detail))


def _end(request: RequestParameter, expires_in_ms: int | None) -> datetime | None:
    """When a token ends. One that a caller passes on ends with its own at the latest."""
    own_s = None if _is_admin(request.principal) else request.principal.expires_s
    if expires_in_ms is None:
        end_s = own_s
    else:
        end_s = request.gateway.access.sessions.wall_s() + expires_in_ms / 1000
        if own_s is not None and end_s > own_s:
            raise invalid("/expires_in_ms", f"the caller's own token ends at {request.principal.expires_at}")
    # Downwards: not a part of a second longer.
    return None if end_s is None else datetime.fromtimestamp(int(end_s), UTC)


@router.get(_TOKENS, Access.PER_TOKEN, model=TokenPage, refusals=("not_configured",), central=True)
def list_tokens(request: RequestParameter) -> TokenPage:
    """List the tokens that are good now: all for the action `admin`, else those that the caller has made."""
    _require_issue(request.principal)
    tokens = request.gateway.access.tokens
    shown = [
        TokenInfo.of(known, request.principal.prefix, is_configured=tokens.is_configured(known))
        for known in tokens.tokens
        if _is_visible(request.principal, known)
    ]
    return TokenPage(tokens=shown)


def _is_visible(principal: Principal, token: Token) -> bool:
    # Callers of two tenants may have the same name.
    is_own = token.created_by == principal.name and all(
        (grant.prefix or "").startswith(principal.prefix) for grant in token.grants
    )
    return is_own or _is_admin(principal)


def _find(request: RequestParameter, token_id: str) -> Token:
    """A token that the caller may see. Raises `no_token`, `forbidden`."""
    _require_issue(request.principal)
    token = request.gateway.access.tokens.find(token_id)
    if not _is_visible(request.principal, token):
        raise no_token(token_id)
    return token


@router.get(_TOKEN, Access.PER_TOKEN, model=TokenInfo, refusals=("no_token", "not_configured"), central=True)
def get_token(request: RequestParameter, token: TokenId) -> TokenInfo:
    """Show one token: what it allows, when it ends, who has made it."""
    known = _find(request, token)
    is_configured = request.gateway.access.tokens.is_configured(known)
    return TokenInfo.of(known, request.principal.prefix, is_configured=is_configured)


@router.delete(
    _TOKEN,
    Access.PER_TOKEN,
    status=204,
    refusals=("no_token", "not_configured"),
    audited="issue",
    central=True,
)
async def delete_token(request: RequestParameter, token: TokenId) -> Response:
    """Revoke a token. What waits, follows or is connected with it ends within a second.

    The tokens that it has made stay: revoke its subject, `token:<id>`, to take these away.
    """
    known, gateway = _find(request, token), request.gateway
    await gateway.access.tokens.revoke_token(gateway.engine, known)
    return Response(204)


@router.get("/v1/whoami", Access.PER_TOKEN, model=Caller)
def get_caller(request: RequestParameter) -> Caller:
    """Show who the caller is, and what it may do."""
    principal = request.principal
    grants = [grant.within(principal.prefix) for grant in principal.grants]
    return Caller(name=principal.name, grants=grants, expires_at=principal.expires_at)
