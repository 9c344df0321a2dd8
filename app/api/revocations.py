"""Revocations: of a token, of a JWT, of all that a subject was issued before a time."""

from datetime import UTC, datetime
from typing import Annotated, Final

from msgspec.structs import asdict
from pydantic import Field

from app.auth import Action
from app.auth.revocations import VALUE_CHARS_MAX, Kind, Revocation
from app.auth.tokens import ID_PATTERN
from app.errors import invalid
from app.http.models import Count, Milliseconds, RequestModel, ResponseModel, Whole
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router

router: Final = Router("gateway")

_REVOCATIONS: Final = "/v1/admin/revocations"
# The year 9999.
_TIME_MS_MAX: Final = 253_402_300_000_000

Claim = Annotated[str, Field(min_length=1, max_length=VALUE_CHARS_MAX)]
Time = Annotated[int, Whole(0, _TIME_MS_MAX)]


class NewRevocation(RequestModel):
    """What to revoke: exactly one of `token`, `jti` and `subject`."""

    token: Annotated[str | None, Field(pattern=ID_PATTERN, description="the ID of a static token")] = None
    jti: Annotated[Claim | None, Field(description="the claim `jti` of one JWT")] = None
    subject: Annotated[
        Claim | None,
        Field(description="the claim `sub` of JWTs; or the `created_by` of tokens"),
    ] = None
    issued_before_ms: Annotated[
        Time | None,
        Field(description="of a subject: what was issued (`iat`) before this Unix time; by default now"),
    ] = None
    expires_at_ms: Annotated[
        Time | None,
        Field(
            description="when all of it has expired by itself, Unix time: the revocation is forgotten then"
        ),
    ] = None


class RevocationInfo(ResponseModel):
    """A revocation. Times are Unix times; null where it has none."""

    kind: Kind
    value: str
    revoked_at_ms: Milliseconds
    issued_before_ms: Milliseconds | None
    expires_at_ms: Milliseconds | None

    @classmethod
    def of(cls, revocation: Revocation) -> "RevocationInfo":
        """A revocation as it is kept."""
        return cls(
            kind=revocation.kind,
            value=revocation.value,
            revoked_at_ms=round(revocation.revoked_at.timestamp() * 1000),
            issued_before_ms=_unix_ms(revocation.issued_before),
            expires_at_ms=_unix_ms(revocation.expires_at),
        )


class MadeRevocation(RevocationInfo):
    """A revocation that was made, and what it has ended."""

    ended: Annotated[Count, Field(description="connections and waiting reads that were ended")]


class RevocationPage(ResponseModel):
    """Revocations, by kind and value."""

    revocations: list[RevocationInfo]


def _unix_ms(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


def _time(unix_ms: int | None) -> datetime | None:
    return None if unix_ms is None else datetime.fromtimestamp(unix_ms / 1000, UTC)


def _revocation(given: NewRevocation, now_ms: int) -> Revocation:
    """What is asked for. Raises `invalid`."""
    asked: list[tuple[Kind, str | None]] = [
        ("token", given.token),
        ("jti", given.jti),
        ("subject", given.subject),
    ]
    named = [(kind, value) for kind, value in asked if value is not None]
    if len(named) != 1:
        raise invalid("", "it names exactly one of token, jti and subject")
    kind, value = named[0]
    issued_before_ms = given.issued_before_ms
    if kind == "subject":
        issued_before_ms = now_ms if issued_before_ms is None else issued_before_ms
    elif issued_before_ms is not None:
        raise invalid("/issued_before_ms", "it goes with a subject")
    return Revocation(
        kind=kind,
        value=value,
        revoked_at=datetime.fromtimestamp(now_ms / 1000, UTC),
        issued_before=_time(issued_before_ms),
        expires_at=_time(given.expires_at_ms),
    )


@router.post(
    _REVOCATIONS,
    Action.ADMIN,
    status=201,
    model=MadeRevocation,
    refusals=("not_configured", "storage_failed"),
    central=True,
)
async def create_revocation(request: RequestParameter, given: NewRevocation) -> MadeRevocation:
    """Accept a token, a JWT, or all that a subject was issued before a time, no more.

    What waits, follows or is connected with it ends within a second. A restore of an older backup into the
    same directory keeps it.
    """
    gateway = request.gateway
    revocation = _revocation(given, gateway.clock.wall_ms())
    request.note_action("admin", "createRevocation", revoked=f"{revocation.kind}:{revocation.value}")
    ended = await gateway.access.tokens.revoke(gateway.engine, revocation)
    return MadeRevocation(**asdict(RevocationInfo.of(revocation)), ended=ended)


@router.get(_REVOCATIONS, Action.ADMIN, model=RevocationPage, refusals=("not_configured",), central=True)
def list_revocations(request: RequestParameter) -> RevocationPage:
    """List the revocations that still matter."""
    known = request.gateway.access.tokens.revocations
    return RevocationPage(revocations=[RevocationInfo.of(one) for one in known])
