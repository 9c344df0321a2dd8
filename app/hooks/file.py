"""The file of hooks: who may send what into which stream, read at the start and with SIGHUP.

Knows: the form of the file and of secrets. Must never know: who reads it, what is sent.

    [github]
    stream = "repos/acme"
    scheme = "github"                       # or shopify, stripe, standard-webhooks, svix, hmac
    secrets = ["file:github.secret"]        # two while one replaces the other; beside this file
    keep_headers = ["X-GitHub-Event"]       # become the field h-x-github-event
    key = "X-GitHub-Delivery"               # or body:/id, or cloudevent: what comes again is stored once
    rate = "100/s burst 500"

    [slack]
    scheme = "hmac"                         # as `Signing` has it
    signing = {header = "X-Slack-Signature", prefix = "v0=", signed = "v0:{time}:{body}", time_header = "…"}
    challenge = "slack"                     # or meta, with its verify_token = "file:…"
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    model_validator,
)

from app import names
from app.auth.principal import Principal
from app.auth.rate_limits import Rates
from app.errors import RefusalError
from app.hooks.signing import SCHEMES, HeaderName, Signing
from app.settings import SettingsError, parse_rate, toml_of
from app.settings.values import CountRate
from engine import EngineError

HOOKS_MAX: Final = 1_000
KEPT_HEADERS_MAX: Final = 32
SECRETS_MAX: Final = 2
SECRET_BYTES_MAX: Final = 4 << 10
_TOLERANCE_S: Final = 300
_TOLERANCE_S_MAX: Final = 86_400
FILE: Final = "file:"
IN_BODY: Final = "body:/"
OF_CLOUDEVENT: Final = "cloudevent"
# Standard Webhooks writes secrets so; what follows is base64.
_ENCODED: Final = "whsec_"


def _stream(name: str) -> str:
    try:
        return names.check_text(name, "stream name")
    except (EngineError, RefusalError) as refusal:
        raise ValueError(refusal.detail) from None


class HookTable(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stream: Annotated[str, AfterValidator(_stream)]
    scheme: Literal["github", "shopify", "stripe", "standard-webhooks", "svix", "hmac"]
    signing: Signing | None = None
    secrets: Annotated[
        tuple[Annotated[str, Field(pattern="^file:.")], ...], Field(min_length=1, max_length=SECRETS_MAX)
    ]
    tolerance_s: Annotated[int, Field(ge=1, le=_TOLERANCE_S_MAX)] = _TOLERANCE_S
    keep_headers: Annotated[tuple[HeaderName, ...], Field(max_length=KEPT_HEADERS_MAX)] = ()
    key: HeaderName | Annotated[str, Field(pattern="^body:/.", max_length=256)] | None = None
    rate: CountRate = ""
    challenge: Literal["meta", "slack"] | None = None
    verify_token: Annotated[str, Field(pattern="^file:.")] | None = None

    @model_validator(mode="after")
    def _check(self) -> "HookTable":
        if (self.scheme == "hmac") is (self.signing is None):
            raise ValueError("signing goes with the scheme hmac, which needs it")
        if (self.challenge == "meta") is (self.verify_token is None):
            raise ValueError('verify_token goes with challenge = "meta", which needs it')
        return self


_FILE: Final = TypeAdapter(
    Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")], HookTable], Field(max_length=HOOKS_MAX)
    ]
)


class Hook:
    """One hook, with its secrets. `principal` may do nothing: a hook writes into its own stream alone."""

    def __init__(self, name: str, table: HookTable, secrets: Sequence[bytes], verify_token: bytes) -> None:
        self.name = name
        self.stream, self.scheme, self.challenge = table.stream, table.scheme, table.challenge
        self.verify_token = verify_token
        self.key = table.key
        # Header and field.
        self.kept = [(one.lower().encode(), f"h-{one.lower()}") for one in table.keep_headers]
        self.principal = Principal(f"hook:{name}", ())
        if table.rate:
            self.principal.rates = Rates.set_to(parse_rate(table.rate), (0, 0))
        self._signing = table.signing or SCHEMES[table.scheme]
        self._secrets, self._tolerance_s = secrets, table.tolerance_s

    def is_signed(self, headers: Mapping[bytes, bytes], body: bytes, now_s: float) -> bool:
        """Whether the sender has made this body, lately."""
        return self._signing.is_signed(
            headers, body, self._secrets, now_s=now_s, tolerance_s=self._tolerance_s
        )


def read(path: Path) -> Mapping[str, Hook]:
    """The hooks of a file, by their names. Raises SettingsError."""
    return {
        name: Hook(
            name,
            table,
            [_secret(path, name, secret, table) for secret in table.secrets],
            _text(path, name, table.verify_token) if table.verify_token else b"",
        )
        for name, table in tables(path).items()
    }


def tables(path: Path) -> Mapping[str, HookTable]:
    """What a file says of each hook. Raises SettingsError."""
    try:
        return toml_of(path, _FILE.validate_python)
    except SettingsError as error:
        raise SettingsError(f"hooks_file: {error}") from None


def _text(path: Path, name: str, where: str) -> bytes:
    file = path.parent / where.removeprefix(FILE)
    try:
        text = file.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"hooks_file: {name}: {file}: {error.strerror or error}") from None
    if not 0 < len(text) <= SECRET_BYTES_MAX:
        raise SettingsError(f"hooks_file: {name}: {file} has no secret of 1 to {SECRET_BYTES_MAX} bytes")
    return text


def _secret(path: Path, name: str, where: str, table: HookTable) -> bytes:
    text = _text(path, name, where)
    if table.scheme not in ("standard-webhooks", "svix"):
        return text
    try:
        return base64.b64decode(text.removeprefix(_ENCODED.encode()), validate=True)
    except binascii.Error:
        raise SettingsError(f"hooks_file: {name}: {where} is no {_ENCODED}<base64>") from None
