"""Why a server cannot be the backend that the settings name, in words that say what to do.

Knows: what servers, and others in their place, say to a greeting. Must never know: connections, settings.
"""

import ssl
from typing import Any, Final

# Their mode as servers name it, and the scheme of a URL that is for it.
_SCHEMES: Final = {
    b"standalone": "it is a single server: say redis:// in `backend`",
    b"cluster": "it is a server of a cluster: say redis+cluster:// in `backend`",
    b"sentinel": "it is a Sentinel: say redis+sentinel://HOST:PORT/NAME in `backend`",
}
_TOO_OLD: Final = "it is older than the gateway can use: that needs Redis from 7.0, or Valkey"
_VERSION_MIN: Final = 7
# How refusals begin that no time cures, and what does.
_REFUSALS: Final = (
    (
        "ERR DB index is out of range",
        "name another database in `backend`, or raise `databases` at the server",
    ),
    ("ERR SELECT is not allowed in cluster mode", _SCHEMES[b"cluster"]),
    ("ERR This instance has cluster support disabled", _SCHEMES[b"standalone"]),
    ("ERR unknown command 'SENTINEL'", "it is no Sentinel: say redis:// in `backend`"),
    ("ERR unknown command 'HELLO'", _TOO_OLD),
    ("ERR unknown command `HELLO`", _TOO_OLD),
    ("NOPROTO", _TOO_OLD),
    ("WRONGPASS", "correct the user in `backend`, and `backend_password_file`"),
    ("NOAUTH", "it wants a password: name a file that has it in `backend_password_file`"),
    (
        "NOPERM",
        "let the user of the gateway run this command on any key, or name another one in `backend`",
    ),
)
# Redis, greeted so, hangs up without a word where it wants TLS, and waits for more where it has none.
MAYBE_TLS: Final = "If it speaks TLS, say rediss in the place of redis in `backend`"
MAYBE_NO_TLS: Final = "If it speaks no TLS, say redis in the place of rediss in `backend`"
_FULL: Final = "ERR max number of clients"
_TLS_ALERT: Final = b"\x15\x03"


class Misfit(str):
    """A reason that no time cures: the settings and the server do not go together."""

    __slots__ = ()


def of_greeting(hello: Any, mode: bytes, *, primary: bool = False) -> str | None:  # noqa: ANN401 - as it comes
    """What is wrong with a server by its reply to HELLO, if it is to be of this mode; of any, if that is
    empty. A replica may become a primary in time.
    """
    facts = hello if isinstance(hello, dict) else {}
    version, found = facts.get(b"version", b"").partition(b".")[0], facts.get(b"mode", mode)
    if mode and found != mode and found in _SCHEMES:
        return Misfit(_SCHEMES[found])
    if facts.get(b"server") == b"redis" and version.isdigit() and int(version) < _VERSION_MIN:
        return Misfit(f"it is Redis {facts[b'version'].decode()}: {_TOO_OLD}")
    return "it is no primary" if primary and facts.get(b"role") == b"replica" else None


def of_refusal(text: str) -> str:
    """A server's refusal, with what to do about it."""
    if text.startswith(_FULL):
        return f"{text}: raise `maxclients` at the server, or end other clients"
    remedy = next((remedy for begins, remedy in _REFUSALS if text.startswith(begins)), None)
    # The first clause says it: what follows is the command, or advice for other clients.
    return text if remedy is None else Misfit(f"{text.partition(',')[0].rstrip('.')}: {remedy}")


def of_bytes(data: bytes) -> Misfit:
    """What speaks no RESP."""
    if data.startswith(_TLS_ALERT):
        return Misfit("it speaks TLS, no RESP without it: say rediss in the place of redis in `backend`")
    if data.startswith(b"HTTP/"):
        return Misfit("it is an HTTP server, and speaks no RESP: name a Redis or Valkey server in `backend`")
    return Misfit("it speaks no RESP: name a Redis or Valkey server in `backend`")


def of_system(error: OSError) -> str:
    """Why there is no connection; where TLS will never come, with what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Misfit(
            f"its certificate is refused ({error.verify_message}): `backend_ca` has the authorities to "
            "trust, and `backend` must name the server as its certificate does"
        )
    if isinstance(error, ssl.SSLError) and error.reason is not None:
        if "CERTIFICATE_REQUIRED" in error.reason:
            return Misfit(
                "it wants a certificate of the gateway, which has none: set tls-auth-clients no there"
            )
        if "WRONG_VERSION_NUMBER" in error.reason or "RECORD_LAYER_FAILURE" in error.reason:
            return Misfit("it speaks no TLS: say redis in the place of rediss in `backend`")
    return error.strerror or str(error)
