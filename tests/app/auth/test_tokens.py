"""Static tokens: their text, what is kept of them, and who is recognised by one."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from app.auth import Action, Grant, Resource, TokenPolicy, tokens
from app.auth.revocations import Revocation
from app.errors import RefusalError

READ = (Grant.parse("read:orders.*"),)
NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now.timestamp()


def bearer(text: str, **more: str) -> dict[bytes, bytes]:
    found = {b"authorization": f"Bearer {text}".encode()}
    return found | {name.encode(): value.encode() for name, value in more.items()}


async def refusal(policy: TokenPolicy, headers: dict[bytes, bytes]) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        await policy.authenticate(headers)
    assert caught.value.code == "unauthenticated"
    return caught.value


def test_a_token_has_a_form_that_scanners_find() -> None:
    text, token = tokens.create(READ, label="billing")
    assert re.fullmatch(r"weir_[0-9A-Za-z]{12}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}", text)
    assert tokens.id_of(text) == token.id
    assert token.hash == tokens.hash_of(text)
    assert text.split("_")[2] not in token.model_dump_json()
    assert tokens.create(READ).text != tokens.create(READ).text


def test_each_changed_character_is_seen_by_the_checksum() -> None:
    text = tokens.create(READ).text
    for at, character in enumerate(text):
        changed = text[:at] + ("x" if character != "x" else "y") + text[at + 1 :]
        assert tokens.id_of(changed) is None


def test_what_is_kept_can_be_written_and_read_again() -> None:
    _, token = tokens.create(READ, label="l", expires_at=NOW)
    assert tokens.Token.model_validate_json(token.model_dump_json()) == token
    assert '"read:orders.*"' in token.model_dump_json()


def test_labels_and_grants_have_limits() -> None:
    tokens.create(READ, label="x" * tokens.LABEL_CHARS_MAX)
    with pytest.raises(ValidationError):
        tokens.create(READ, label="x" * (tokens.LABEL_CHARS_MAX + 1))
    tokens.create(READ * tokens.GRANTS_MAX)
    with pytest.raises(ValidationError):
        tokens.create(READ * (tokens.GRANTS_MAX + 1))
    with pytest.raises(ValidationError):
        tokens.create(())


async def test_a_caller_is_recognised_at_the_second_time_without_looking_again() -> None:
    text, token = tokens.create(READ)
    policy = TokenPolicy([token], Clock())
    assert policy.recognise(bearer(text)) is None
    principal = await policy.authenticate(bearer(text))
    assert principal.name == f"token:{token.id}"
    assert text not in principal.name
    assert policy.recognise(bearer(text)) is principal
    assert principal.may(Action.READ, Resource("orders.eu"))
    assert not principal.may(Action.WRITE, Resource("orders.eu"))


async def test_only_those_are_looked_at_anew_whose_tokens_have_changed() -> None:
    """Of tokens that were revoked, are gone or have other grants, none is recognised; others are the same."""
    texts, known = zip(*[tokens.create(READ) for _ in range(4)], strict=True)
    policy = TokenPolicy(known, Clock())
    callers = [await policy.authenticate(bearer(text)) for text in texts]
    other = known[1].model_copy(update={"grants": (Grant.parse("read:other"),)})
    policy.replace_tokens([known[0], other, known[3]])
    policy.revoke([Revocation(kind="token", value=known[3].id, revoked_at=NOW)])
    for _ in range(2):
        assert [policy.recognise(bearer(text)) for text in texts] == [callers[0], None, None, None]
    assert not (await policy.authenticate(bearer(texts[1]))).may(Action.READ, Resource("orders"))
    for text in texts[2:]:
        await refusal(policy, bearer(text))


async def test_a_token_ends_when_it_says() -> None:
    clock = Clock()
    text, token = tokens.create(READ, expires_at=NOW + timedelta(seconds=10))
    policy = TokenPolicy([token], clock)
    clock.now = NOW + timedelta(seconds=9.999)
    await policy.authenticate(bearer(text))
    clock.now = NOW + timedelta(seconds=10)
    assert policy.recognise(bearer(text)) is None
    assert "expired" in (await refusal(policy, bearer(text))).detail


async def test_a_cut_token_is_told_from_an_unknown_one() -> None:
    policy = TokenPolicy([], Clock())
    text = tokens.create(READ).text
    assert "checksum" not in (await refusal(policy, bearer(text))).detail
    assert "checksum" in (await refusal(policy, bearer(text[:-1]))).detail
    assert "checksum" in (await refusal(policy, bearer("weir_"))).detail


@pytest.mark.parametrize(
    ("headers", "challenge"),
    [
        ({}, "Bearer"),
        ({b"authorization": b"Basic dTpw"}, 'Bearer error="invalid_request"'),
        ({b"authorization": b"Bearer"}, 'Bearer error="invalid_request"'),
        ({b"authorization": b"Bearer  "}, 'Bearer error="invalid_request"'),
        ({b"authorization": b"Bearer " + b"x" * (8 << 10)}, 'Bearer error="invalid_request"'),
        ({b"authorization": b"Bearer \xff"}, 'Bearer error="invalid_token"'),
        ({b"authorization": b"Bearer a.b.c"}, 'Bearer error="invalid_token"'),
        ({b"authorization": b"Bearer weir_x"}, 'Bearer error="invalid_token"'),
    ],
)
async def test_each_refusal_says_how_to_authenticate(headers: dict[bytes, bytes], challenge: str) -> None:
    refused = await refusal(TokenPolicy([], Clock()), headers)
    assert refused.headers == {"www-authenticate": challenge}


async def test_a_grant_for_pages_is_left_out_on_others() -> None:
    grants = (*READ, Grant(actions=frozenset([Action.WRITE]), origins=("https://shop.example",)))
    text, token = tokens.create(grants)
    policy = TokenPolicy([token], Clock())
    for origin, allowed in ((None, True), ("https://shop.example", True), ("https://evil.example", False)):
        headers = bearer(text) if origin is None else bearer(text, origin=origin)
        for _ in range(2):
            principal = await policy.authenticate(headers)
            assert principal.may(Action.READ, Resource("orders.eu"))
            assert principal.may(Action.WRITE, Resource("x")) is allowed, origin
