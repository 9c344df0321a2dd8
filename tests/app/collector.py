"""An OTLP collector on loopback: protobuf over HTTP, as exporters send it.

Knows: the protocol's messages. Must never know: who exports, and what.
"""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.waiting import until

WAIT_S_MAX = 20.0


class ReceivedSpan(NamedTuple):
    """One span, its IDs in hexadecimal digits; `links` are pairs of them."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    links: list[tuple[str, str]]
    attributes: dict[str, Any]
    is_error: bool


class Collector:
    """Keeps what it is sent, while it is open."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        keep = self._keep

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                assert self.headers["content-type"] == "application/x-protobuf"
                keep(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_for(self, is_wanted: Callable[[ReceivedSpan], bool]) -> ReceivedSpan:
        """The first span of this kind, as soon as it is there."""
        return until(lambda: next(filter(is_wanted, [*self.spans]), None), self.spans, WAIT_S_MAX)

    def _keep(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            about = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [_received(about["service.name"], span) for span in scope.spans]


def _received(service: str, span: Span) -> ReceivedSpan:
    values = {one.key: one.value for one in span.attributes}
    return ReceivedSpan(
        service,
        span.name,
        Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        {name: value.int_value or value.string_value for name, value in values.items()},
        span.status.code == Status.STATUS_CODE_ERROR,
    )
