"""A certificate authority for tests: it issues certificates for servers and for clients.

Knows: X.509. Must never know: who uses a certificate.
"""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Pair(NamedTuple):
    """The files of a certificate and of its key."""

    certificate: Path
    key: Path


class Authority:
    """An authority with files in a folder."""

    def __init__(self, folder: Path, name: str = "Test CA") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        made = self._begin(self._name, self._key).add_extension(usage, critical=True)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.file = folder / f"{name.replace(' ', '-')}.pem"
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def trust(self, client: Pair | None = None) -> ssl.SSLContext:
        """What a client needs that trusts this authority alone; `client` is its own certificate."""
        context = ssl.create_default_context(cafile=str(self.file))
        if client is not None:
            context.load_cert_chain(*client)
        return context

    def issue(self, name: str, *, uri: str = "", organisation: str = "", days: float = 1) -> Pair:
        """A certificate for 127.0.0.1 and localhost, or for a client with this name and URI."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if organisation:
            parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)] if uri else []
        if not names:
            names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        made = self._begin(x509.Name(parts), key, days)
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(
            made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def _begin(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: float = 1
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=abs(days) + 1))
            .not_valid_after(now + timedelta(days=days))
        )
