"""The file of static tokens: what `weir token create` prints, kept where an operator keeps configuration.

Knows: the form of the file. Must never know: who reads it, when it is read again.

    [[tokens]]
    id = "Zb3kq0VJm2aX"
    hash = "sha256:…"
    grants = ["read:orders.*", {actions = ["consume"], streams = "orders.*", groups = "billing-*"}]
    label = "billing"                       # optional
    expires_at = 2027-01-31T00:00:00Z       # optional

    [[certificates]]
    identity = "uri:spiffe://example.com/billing"   # or "subject:CN=billing,O=Example"
    grants = ["read:orders.*"]              # label and expires_at as above
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from app.auth import tokens
from app.auth.certificates import IDENTITY_CHARS_MAX, IDENTITY_PATTERN
from app.auth.tokens import GRANTS_MAX, LABEL_CHARS_MAX, GrantValue, Token
from app.settings import SettingsError, toml_of

TOKENS_MAX: Final = 10_000


class _Certificate(BaseModel):
    model_config = ConfigDict(extra="forbid")

    identity: Annotated[str, Field(max_length=IDENTITY_CHARS_MAX, pattern=IDENTITY_PATTERN)]
    grants: Annotated[tuple[GrantValue, ...], Field(min_length=1, max_length=GRANTS_MAX)]
    label: Annotated[str, Field(max_length=LABEL_CHARS_MAX)] = ""
    expires_at: AwareDatetime | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: Annotated[tuple[Token, ...], Field(max_length=TOKENS_MAX)] = ()
    certificates: Annotated[tuple[_Certificate, ...], Field(max_length=TOKENS_MAX)] = ()


def read(path: Path) -> tuple[Token, ...]:
    """The tokens of a file, and those that its certificates stand for. Raises SettingsError."""
    file = toml_of(path, _File.model_validate)
    certificates = [
        tokens.of_certificate(
            certificate.identity,
            certificate.grants,
            label=certificate.label,
            expires_at=certificate.expires_at,
        )
        for certificate in file.certificates
    ]
    known = (*file.tokens, *certificates)
    if len({token.id for token in known}) < len(known):
        raise SettingsError(f"{path}: two tokens have the same id, or two certificates the same identity")
    return known


def write(token: Token) -> str:
    """A token as a table of the file."""
    lines = ["[[tokens]]", f"id = {_toml(token.id)}", f"hash = {_toml(token.hash)}"]
    lines.append(f"grants = [{', '.join(_toml(grant.describe()) for grant in token.grants)}]")
    if token.label:
        lines.append(f"label = {_toml(token.label)}")
    if token.expires_at is not None:
        lines.append(f"expires_at = {token.expires_at.isoformat()}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:  # noqa: ANN401 - text, lists and tables
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml(member)}" for name, member in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # What JSON escapes, a basic string of TOML escapes alike; DEL it forbids.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
