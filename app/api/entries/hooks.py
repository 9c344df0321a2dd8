"""Incoming webhooks: a request with a valid signature is stored in the stream of its hook.

head ─► too many failures from this address? ─► body ─► signed? ─► challenge, or entries ─► the engine
                                                        └─► 401, the same text for all that is wrong
"""

from collections.abc import Mapping
from functools import partial
from hmac import compare_digest
from typing import Annotated, ClassVar, Final, NamedTuple, NoReturn
from urllib.parse import parse_qs

import orjson
from fastapi import Depends
from pydantic import Field

from app.auth import Access, Action
from app.errors import RefusalError, invalid
from app.hooks.file import IN_BODY, OF_CLOUDEVENT, Hook
from app.http import strict_json
from app.http.asks import Ask
from app.http.entries import cloud_events
from app.http.entries.entry_bodies import digest_of
from app.http.entries.publishing import Added, added
from app.http.entries.stored_entries import ParsedEntries, check_size, store_pairs
from app.http.media import is_event
from app.http.models import ABSENT, Count, NameType, ResponseModel
from app.http.operations.binder import Body, RequestParameter, request_of
from app.http.operations.router import Router
from app.http.request_bodies import BodyReading, receive
from app.http.requests import Request
from app.http.responses import Response
from app.limits import EntryLimits
from app.metrics.counters import HookCounts, HookResult
from engine import EngineError, ids, replies
from engine.commands.types import IdempotencyKey, XAdd
from engine.replies import Reply

router: Final = Router("gateway")

HookName = Annotated[str, NameType("hook name")]
_REFUSALS: Final = ("unauthenticated", "rate_limited")
_OF_SIGNED: Final = (*_REFUSALS, "entry_too_large", "starting")
_TEXT: Final = {"content": {"text/plain": {"schema": {"type": "string"}}}}

# Senders have a few; a longer text is no challenge.
_CHALLENGE_CHARS_MAX: Final = 1_024
# Of an object on the way to a key.
_MEMBERS_MAX: Final = 1_024
_PARAMETERS_MAX: Final = 16
_IS_QUESTION: Final = b"url_verification"
_WRONG: Final = (
    "the webhook is not accepted: its name, its secret, its signature or its time is wrong; "
    "docs/webhooks-in.md says what a hook looks at"
)


class _HookBody(Body):
    """What a sender sends, byte for byte."""

    content: ClassVar = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

    async def receive(self) -> bytes:
        """All of it. Raises as `request_bodies.receive`."""
        return await receive(self.request)


class _Webhook(NamedTuple):
    """A signed webhook: its entries, and the key by which it is known again; or the answer to a challenge."""

    entries: ParsedEntries | None
    key: str | None = None
    challenge: str | None = None


class HookState(ResponseModel):
    """A hook, and what came for it since the gateway started."""

    name: str
    stream: str
    scheme: str
    stored: Count
    duplicates: Annotated[Count, Field(description="redeliveries, which are stored once")]
    refused: Annotated[Count, Field(description="401: the signature or the time was wrong")]
    rejected: Annotated[Count, Field(description="signed, and not stored: a limit, a full disk")]
    last_at: Annotated[str, Field(description="when the last signed one came")] = ABSENT


class HookStates(ResponseModel):
    """The hooks of the gateway."""

    hooks: list[HookState]
    unknown: Annotated[Count, Field(description="refused: there is no hook of their name")]


@router.get("/v1/hooks", Action.ADMIN, model=HookStates, central=True)
async def list_hooks(request: RequestParameter) -> HookStates:
    """List the hooks, with what came for each."""
    gateway = request.gateway
    report = gateway.operator.report().with_all(await gateway.operator.processes.reports())
    unknown = report.hooks.get("", HookCounts()).results["refused"]
    return HookStates([_state(hook, report.hooks.get(hook.name)) for hook in gateway.hooks.all], unknown)


def _state(hook: Hook, counts: HookCounts | None) -> HookState:
    counts = counts or HookCounts()
    found = counts.results
    return HookState(
        hook.name, hook.stream, hook.scheme,
        found["stored"], found["duplicate"], found["refused"], found["rejected"],
        last_at=ids.rfc3339(counts.last_ms) if counts.last_ms else ABSENT,
    )  # fmt: skip


@router.get("/v1/hooks/{hook}", Access.OPEN, refusals=_REFUSALS, answers=_TEXT)
def confirm_hook(request: RequestParameter, hook: HookName) -> Response:
    """Answer the question by which Meta makes sure of a hook.

    It is `hub.challenge` of the query, where `hub.verify_token` is right.
    """
    found = request.gateway.hooks.find(hook)
    query = parse_qs(request.query.decode("latin-1")) if request.query.count(b"&") < _PARAMETERS_MAX else {}
    given, challenge = (query.get(f"hub.{word}", [""])[0] for word in ("verify_token", "challenge"))
    is_right = compare_digest(given.encode(), found.verify_token) and found.challenge == "meta"
    with request.counting_failures():
        if not is_right or not 0 < len(challenge) <= _CHALLENGE_CHARS_MAX:
            raise _refused(request, found, hook)
    _note(request, found, "challenge")
    return Response(200, challenge.encode(), media_type=b"text/plain; charset=utf-8")


@router.post("/v1/hooks/{hook}", Access.OPEN, writes=True, model=Added, refusals=_OF_SIGNED)
async def receive_hook(
    request: RequestParameter, hook: HookName, body: Annotated[_HookBody, Depends(request_of)]
) -> Ask | Response:
    """Take a webhook, whose signature is its credentials.

    It becomes an entry as by `addRawEntry`, with the headers that the hook keeps as fields `h-<name>`;
    CloudEvents become entries as by `addEntries`. Always 200, for some senders take no other status for
    success: with `duplicate` where its key was stored in the last 24 hours. A challenge is answered with
    `{"challenge": …}`. All that makes a signature wrong is the same 401.
    """
    gateway, found = request.gateway, request.gateway.hooks.find(hook)
    reader = partial(
        _read, hook=found, headers=request.headers,
        now_s=gateway.clock.wall_ms() / 1000, limits=gateway.limits.entries,
    )  # fmt: skip
    # An address with too many failures is refused before its body is read. While a body comes it holds
    # nothing of that rate: a sender may have many deliveries under way.
    with request.counting_failures():
        pass
    sent = await body.receive()
    with request.counting_failures():
        webhook = await BodyReading(reader).read(request, sent)
        if webhook is None:
            raise _refused(request, found, hook)
    request.principal = found.principal
    try:
        if isinstance(webhook, RefusalError):
            raise webhook
        request.take_request()
        request.check_ready()
        if webhook.entries is None:
            _note(request, found, "challenge")
            return Response(200, orjson.dumps({"challenge": webhook.challenge}))
        request.take_more(len(webhook.entries.bodies))
    except (RefusalError, EngineError):
        _note(request, found, "rejected")
        raise
    return _store(request, found, webhook.entries, webhook.key)


def _store(request: Request, hook: Hook, published: ParsedEntries, key: str | None) -> Ask:
    """What stores it. What comes again may be written otherwise: it is known by its key alone."""
    known = None if key is None else IdempotencyKey(key, digest_of(key.encode()))
    command = XAdd(stream=hook.stream, bodies=published.bodies, idempotency=known)

    def answer(reply: Reply) -> Response:
        assert isinstance(reply, replies.Added), "it makes the stream"
        _note(request, hook, "duplicate" if reply.duplicate else "stored")
        return request.respond(200, added(reply, batch=published.batch, trims=False, ids_wanted=True))

    def refused(refusal: EngineError) -> NoReturn:
        _note(request, hook, "rejected")
        raise refusal

    return Ask([command], answer, request.preferences.synced, joins=True, publishes=True, refused=refused)


def _refused(request: Request, hook: Hook, name: str) -> RefusalError:
    """401, counted and in the audit log."""
    request.note_action("hook", request.plan.operation.operation_id, hook=name)
    _note(request, hook, "refused")
    return RefusalError("unauthenticated", _WRONG, headers={"www-authenticate": "Signature"})


def _note(request: Request, hook: Hook, result: HookResult) -> None:
    request.gateway.reports.counters.note_hook(hook.name, result, request.gateway.clock.wall_ms())


# ---- what it says


def _read(
    body: bytes, *, hook: Hook, headers: Mapping[bytes, bytes], now_s: float, limits: EntryLimits
) -> _Webhook | RefusalError | None:
    """None for a wrong signature; a refusal of what is signed."""
    if not hook.is_signed(headers, body, now_s):
        return None
    try:
        if hook.challenge == "slack" and (challenge := _slack_challenge(body)) is not None:
            return _Webhook(None, challenge=challenge)
        return _entries(body, hook, headers, limits)
    except RefusalError as refusal:
        return refusal


def _slack_challenge(body: bytes) -> str | None:
    if _IS_QUESTION not in body:
        return None
    found = [_at(body, name) for name in ("type", "challenge")]
    is_question = found[0] == _IS_QUESTION.decode() and len(found[1] or "") <= _CHALLENGE_CHARS_MAX
    return found[1] if is_question else None


def _entries(body: bytes, hook: Hook, headers: Mapping[bytes, bytes], limits: EntryLimits) -> _Webhook:
    kept = [(field, headers[name].decode("latin-1")) for name, field in hook.kept if name in headers]
    media = headers.get(b"content-type", b"").decode("latin-1").strip()
    media_name = media.partition(";")[0].strip().lower()
    if is_event(media_name, headers):
        events = cloud_events.read(body, media_name, headers, limits, kept)
        if hook.key == OF_CLOUDEVENT:
            return _Webhook(events.entries, events.key)
        published = events.entries
    else:
        kind = [("content-type", media)] if media else []
        check_size(len(body), limits)
        published = ParsedEntries([store_pairs([("data", body), *kind, *kept], "", limits)])
    return _Webhook(published, None if hook.key is None else _key(hook, hook.key, body, headers))


def _key(hook: Hook, where: str, body: bytes, headers: Mapping[bytes, bytes]) -> str:
    if where.startswith(IN_BODY):
        value = _at(body, *where.removeprefix(IN_BODY).split("/"))
    else:
        value = headers.get(where.lower().encode(), b"").decode("latin-1")
    if not value:
        raise invalid(
            where.removeprefix("body:"),
            f"the hook takes its key from here: send it, or change `key` of {hook.name}",
        )
    return f"hook:{hook.name}:{digest_of(value.encode()).hex()}"


def _at(body: bytes, *steps: str) -> str | None:
    """A string or a number at this place of a JSON object, None where there is none."""
    for name in steps:
        body = strict_json.members_of(body, _MEMBERS_MAX).get(name, b"null")
    value = orjson.loads(body)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
