"""Signatures of webhooks: in which headers they are, what is signed, and whether a secret has made one.

Knows: the schemes of senders, as data. Must never know: where secrets are kept, what a body says.

    github              X-Hub-Signature-256: sha256=<hex>                      of the body
    shopify             X-Shopify-Hmac-Sha256: <base64>                        of the body
    stripe              Stripe-Signature: t=<time>,v1=<hex>,v1=<hex>           of "<time>.<body>"
    standard-webhooks   webhook-signature: v1,<base64> v1,<base64>             of "<id>.<time>.<body>"
    svix                the same as svix-signature, svix-id and svix-timestamp

The library of Standard Webhooks asks a clock of its own and takes text alone, so all schemes are one HMAC of
the standard library.
"""

import hmac
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

# Of one header: a sender signs with each secret that is live.
_SIGNATURES_MAX: Final = 16
_NAMES: Final = re.compile(r"\{(\w*)\}")
_SECONDS: Final = re.compile(rb"[0-9]{1,12}")

HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")]
_Text = Annotated[str, Field(max_length=64)]


class Signing(BaseModel):
    """How a sender signs. `separator` stands between several signatures, each with the `prefix`; with
    `time_prefix` the time is one of them. `signed` names what is signed: `{body}`, `{time}`, `{id}`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    header: HeaderName
    prefix: _Text = ""
    separator: Literal["", " ", ","] = ""
    algorithm: Literal["sha1", "sha256", "sha384", "sha512"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    signed: _Text = "{body}"
    time_header: HeaderName | None = None
    time_prefix: _Text = ""
    id_header: HeaderName | None = None

    @model_validator(mode="after")
    def _check(self) -> "Signing":
        names = _NAMES.findall(self.signed)
        known = {"body": True, "time": bool(self.time_header), "id": bool(self.id_header)}
        if names.count("body") != 1 or not all(known.get(name) for name in names):
            raise ValueError(
                "signed has {body} once, {time} with a time_header, {id} with an id_header, and nothing else "
                "in braces"
            )
        if self.time_header is not None and "time" not in names:
            raise ValueError("signed has no {time}: a time that is not signed says nothing")
        return self

    def is_signed(
        self,
        headers: Mapping[bytes, bytes],
        body: bytes,
        secrets: Sequence[bytes],
        *,
        now_s: float,
        tolerance_s: int,
    ) -> bool:
        """Whether one of the secrets has signed this body, and lately, where a time is signed.

        Takes as long for a wrong signature as for a right one.
        """
        pieces = self._pieces(headers.get(_lower(self.header), b""))
        time = self._time(headers, pieces)
        values = {"time": time, "id": headers.get(_lower(self.id_header or ""), b"")}
        before, after = (_filled(part, values) for part in self.signed.split("{body}"))
        prefix = self.prefix.encode()
        given = [piece.removeprefix(prefix) for piece in pieces if piece.startswith(prefix)]
        found = [
            hmac.compare_digest(self._signature(secret, before, body, after), one)
            for secret in secrets
            for one in given[:_SIGNATURES_MAX]
        ]
        return any(found) and (not self.time_header or _is_near(time, now_s, tolerance_s))

    def _pieces(self, header: bytes) -> Sequence[bytes]:
        return [one.strip() for one in header.split(self.separator.encode())] if self.separator else [header]

    def _time(self, headers: Mapping[bytes, bytes], pieces: Sequence[bytes]) -> bytes:
        if not self.time_prefix:
            return headers.get(_lower(self.time_header or ""), b"")
        prefix = self.time_prefix.encode()
        return next((one.removeprefix(prefix) for one in pieces if one.startswith(prefix)), b"")

    def _signature(self, secret: bytes, before: bytes, body: bytes, after: bytes) -> bytes:
        made = hmac.new(secret, before, self.algorithm)
        made.update(body)
        made.update(after)
        if self.encoding == "hex":
            return made.hexdigest().encode()
        return b64encode(made.digest())


def _lower(name: str) -> bytes:
    return name.lower().encode()


def _filled(part: str, values: Mapping[str, bytes]) -> bytes:
    pieces = _NAMES.split(part)
    return b"".join(values[text] if place % 2 else text.encode() for place, text in enumerate(pieces))


def _is_near(time: bytes, now_s: float, tolerance_s: int) -> bool:
    return _SECONDS.fullmatch(time) is not None and abs(now_s - int(time)) <= tolerance_s


def _standard(prefix: str) -> Signing:
    return Signing(
        header=f"{prefix}-signature",
        prefix="v1,",
        separator=" ",
        encoding="base64",
        signed="{id}.{time}.{body}",
        time_header=f"{prefix}-timestamp",
        id_header=f"{prefix}-id",
    )


SCHEMES: Final = {
    "github": Signing(header="X-Hub-Signature-256", prefix="sha256="),
    "shopify": Signing(header="X-Shopify-Hmac-Sha256", encoding="base64"),
    "stripe": Signing(
        header="Stripe-Signature", separator=",", prefix="v1=", signed="{time}.{body}",
        time_header="Stripe-Signature", time_prefix="t=",
    ),
    "standard-webhooks": _standard("webhook"),
    "svix": _standard("svix"),
}  # fmt: skip
