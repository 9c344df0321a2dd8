"""Traces, where OpenTelemetry is installed: requests belong to the current span, and the work on an entry is
linked to the span that published it.

Knows: OpenTelemetry's API, which the program sets up, or not. Must never know: how spans are exported.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from weir.entries import Entry


@cache
def _is_installed() -> bool:
    try:
        import opentelemetry.trace  # noqa: PLC0415 - it is not always installed
    except ImportError:
        return False
    return bool(opentelemetry.trace)


def headers() -> dict[str, str]:
    """The headers that make a request a part of the current trace; none without one."""
    found: dict[str, str] = {}
    if _is_installed():
        from opentelemetry import propagate  # noqa: PLC0415 - it is not always installed

        propagate.inject(found)
    return found


@contextmanager
def processing(entry: Entry, group: str, consumer: str) -> Iterator[None]:
    """Make a span of the work on an entry the current one, if the entry belongs to a trace."""
    if not entry.meta.get("traceparent") or not _is_installed():
        yield
        return
    from opentelemetry import trace  # noqa: PLC0415 - it is not always installed
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    published = TraceContextTextMapPropagator().extract(dict(entry.meta))
    attributes = {
        "messaging.system": "weir",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": entry.stream,
        "messaging.consumer.group.name": group,
        "messaging.client.id": consumer,
        "messaging.message.id": entry.id,
    }
    with trace.get_tracer("weir").start_as_current_span(
        f"process {entry.stream}",
        kind=trace.SpanKind.CONSUMER,
        links=[trace.Link(trace.get_current_span(published).get_span_context())],
        attributes=attributes,
    ):
        yield
