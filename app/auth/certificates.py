"""Client certificates: who a TLS connection says that it is.

Knows: the names in a certificate that the server has verified. Must never know: connections, what a name may
do.
"""

import re
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

IDENTITY_CHARS_MAX: Final = 500
IDENTITY_PATTERN: Final = r"^(uri|subject):[^\x00-\x1f\x7f]+$"
# RFC 4514, 3, and the common ones beside it.
_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_SPECIAL: Final = re.compile(r'[\\,+"<>;]|^[ #]| $')


class ClientCertificate(NamedTuple):
    """A verified certificate: `uri:…` for each URI of its alternative names, then `subject:…` as RFC 4514 has
    it. It ends at `expires_s`, in Unix time.
    """

    identities: tuple[str, ...]
    expires_s: float


def read(certificate: Mapping[str, Any]) -> ClientCertificate:
    """What `ssl.SSLObject.getpeercert` returns, which is of verified certificates alone."""
    uris = [f"uri:{value}" for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    # The most general name comes first in a certificate, and last in its text.
    parts = [
        "+".join(f"{_SHORT.get(name, name)}={_escape(value)}" for name, value in part)
        for part in reversed(certificate.get("subject", ()))
    ]
    subject = [f"subject:{','.join(parts)}"] if parts else []
    return ClientCertificate((*uris, *subject), ssl.cert_time_to_seconds(certificate["notAfter"]))


def _escape(value: str) -> str:
    """So that a value cannot look like another name: RFC 4514, 2.4."""
    return _SPECIAL.sub(lambda match: f"\\{match[0]}", value)
