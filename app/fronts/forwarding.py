"""Operations that a front forwards to the engine's process, with the caller that it has authorised.

Knows: how a request, its caller and its response are carried. Must never know: single operations.
"""

from collections.abc import Mapping
from typing import Any, Final

from app.auth.certificates import ClientCertificate
from app.auth.principal import Packed, pack_principal, unpack_principal
from app.gateway import Gateway
from app.http.operations.operation import Operation
from app.http.plan import HeadPlan, OriginVerdict
from app.http.request_bodies import receive
from app.http.requests import Request
from app.http.responses import CERTIFICATE_EXTENSION, Exchange, Response

_OF_BODY: Final = (b"content-encoding", b"content-length")


async def pack_request(request: Request) -> Packed:
    """A request as it is carried, with its whole body. Raises as `receive`."""
    scope = request.scope
    certificate: ClientCertificate | None = request.exchange.extensions.get(CERTIFICATE_EXTENSION)
    body = await receive(request)
    # Its length and its coding were those of what was sent.
    headers = [header for header in scope["headers"] if header[0] not in _OF_BODY]
    return [
        scope["method"],
        scope["raw_path"],
        request.query,
        [*headers, (b"content-length", b"%d" % len(body))],
        scope.get("client"),
        request.request_id,
        request.is_stranger,
        None if certificate is None else (certificate.identities, certificate.expires_s),
        dict(request.names),
        pack_principal(request.principal),
        body,
    ]


def pack_response(response: Response) -> Packed:
    """A response as it is carried."""
    return [response.status_code, bytes(response.body), response.raw_headers, response.code]


def unpack_response(packed: Packed) -> Response:
    """A response that was carried."""
    status, body, headers, code = packed
    # Its headers have type and length already.
    response = Response(204, body)
    response.status_code, response.code = status, code
    response.raw_headers = [(name, value) for name, value in headers]
    return response


class Operations:
    """Runs what fronts forward, by the labels of the operations."""

    def __init__(self, gateway: Gateway, operations: Mapping[str, Operation]) -> None:
        self._gateway = gateway
        self._operations = operations

    async def run(self, label: str, packed: Packed) -> Packed:
        """Run one. Raises nothing."""
        method, path, query, headers, client, request_id, stranger, certificate, names, caller, body = packed
        if certificate is not None:
            certificate = ClientCertificate(tuple(certificate[0]), certificate[1])
        scope = {
            "type": "http",
            "method": method,
            "raw_path": path,
            "query_string": query,
            "headers": [(name, value) for name, value in headers],
            "client": None if client is None else tuple(client),
        }

        async def receive_whole() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        plan = HeadPlan(method, path, query, {})
        plan.names, plan.origin = names, OriginVerdict(is_stranger=stranger)
        exchange = Exchange(plan, request_id, {CERTIFICATE_EXTENSION: certificate})
        request = Request(self._gateway, scope, receive_whole, exchange)
        request.principal = unpack_principal(caller)
        return pack_response(await self._operations[label].run_for_front(request))
