"""TLS: the server's certificate and its clients' authorities, read at the start and again on demand.

Knows: the files of the settings, how Python's `ssl` holds a certificate. Must never know: connections.
"""

import ssl
from typing import Any, Self

from app import logs
from app.settings import Settings, SettingsError


class ServerContext(ssl.SSLContext):
    """The context of listeners. A new connection gets the files that were read last.

    A context of `ssl` can only add authorities, so each reading makes a new one.
    """

    _current: ssl.SSLContext

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Read the files. Raises SettingsError."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._current = _read(settings)
        return context

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:  # noqa: ANN401 - of `ssl`, passed on
        """Begin a connection."""
        return self._current.wrap_bio(*arguments, **named)

    def reload(self, settings: Settings) -> bool:
        """Read the files again, for new connections. Broken files change nothing.

        Returns whether they could be read.
        """
        try:
            self._current = _read(settings)
        except SettingsError as error:
            remedy = (
                "the certificate that was read before stays in use: repair the files, and send SIGHUP again"
            )
            logs.get().error("the certificate was not read again", reason=str(error), remedy=remedy)
            return False
        logs.get().info("the certificate was read again")
        return True


def server_context(settings: Settings) -> ServerContext | None:
    """The context of the settings, None for plain http. Raises SettingsError."""
    if settings.tls_certificate:
        if settings.tls_client_ca and not settings.tokens_file:
            raise SettingsError("tls_client_ca: it needs tokens_file, which says what a certificate may do")
        return ServerContext.of(settings)
    for name in ("tls_key", "tls_client_ca"):
        if getattr(settings, name):
            raise SettingsError(f"{name}: it needs tls_certificate")
    return None


def _read(settings: Settings) -> ssl.SSLContext:
    # TLS 1.2 or newer, with Python's choice of ciphers.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password callback OpenSSL would ask the terminal for the key's passphrase.
        context.load_cert_chain(settings.tls_certificate, settings.tls_key or None, password=lambda: "")
    except OSError as error:
        files = " and ".join(name for name in (settings.tls_certificate, settings.tls_key) if name)
        raise SettingsError(f"tls_certificate: {files}: {error.strerror or error}") from None
    if settings.tls_client_ca:
        _ask_for_certificates(context, settings.tls_client_ca)
    return context


def _ask_for_certificates(context: ssl.SSLContext, authorities: str) -> None:
    """Verify the certificate of a client that has one; the others need a token."""
    context.verify_mode = ssl.CERT_OPTIONAL
    # A resumed session would keep a certificate whose authority is no longer trusted.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    try:
        context.load_verify_locations(authorities)
    except OSError as error:
        raise SettingsError(f"tls_client_ca: {authorities}: {error.strerror or error}") from None
