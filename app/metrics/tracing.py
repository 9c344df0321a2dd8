"""Traces: a span for what is published and for what a group reads, in the words of OpenTelemetry.

Knows: `traceparent` (W3C Trace Context), the semantic conventions for messaging, how spans are exported.
Must never know: routes, how entries are stored.

    publisher's span ─traceparent─► publish (PRODUCER) ─meta.traceparent of the entry─┐
                                         ▲                                            ▼
                                         └────────── link ──────── receive     the worker's own span

An entry keeps the context of the span that published it. A request without `traceparent`, or one that is not
sampled, gets no span: only sampled ones cost time.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Self

import msgspec

from app import VERSION
from engine import EngineError, entries
from engine.commands.durable_commands import AppendDurable
from engine.commands.schedule_commands import AddScheduled
from engine.commands.types import XAdd
from engine.commands.weir_commands import Close, Publish
from engine.replies import Reply

Done = Callable[[Sequence[Reply | EngineError]], None]
HEADER: Final = b"traceparent"
# The name of what an entry keeps.
META: Final = "traceparent"
_TRACEPARENT: Final = re.compile(rb"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED: Final = 1
# Backends show a few; a page of entries may have thousands of publishers.
LINKS_MAX: Final = 128
# What is not exported by then is given up when the gateway stops.
_FLUSH_MS_MAX: Final = 2_000

# The semantic conventions for messaging (OpenTelemetry 1.40), which may still change: here, and nowhere else.
ATTRIBUTES: Final = {
    "system": "messaging.system",
    "type": "messaging.operation.type",
    "name": "messaging.operation.name",
    "stream": "messaging.destination.name",
    "group": "messaging.consumer.group.name",
    "consumer": "messaging.client.id",
    "count": "messaging.batch.message_count",
}


Publishing = XAdd | AddScheduled | AppendDurable | Publish | Close


def valid(header: bytes | None) -> bytes | None:
    """A `traceparent` that can be followed, None for any other."""
    return header if header is not None and _TRACEPARENT.fullmatch(header) else None


def with_traceparent(command: Publishing, traceparent: str) -> Publishing:
    """The same command, whose entries keep this."""
    if isinstance(command, Publish):
        parts = [_with_traceparent(part, traceparent) for part in command.parts]
        return msgspec.structs.replace(command, parts=parts)
    if isinstance(command, Close):
        add = None if command.add is None else _with_traceparent(command.add, traceparent)
        return msgspec.structs.replace(command, add=add)
    if isinstance(command, AddScheduled):
        add = None if command.add is None else _with_traceparent(command.add, traceparent)
        later = [
            msgspec.structs.replace(one, body=bodies_with([one.body], traceparent)[0])
            for one in command.later
        ]
        return msgspec.structs.replace(command, add=add, later=later)
    bodies = bodies_with(command.bodies, traceparent)
    return msgspec.structs.replace(command, bodies=bodies)


def _parts(command: Publishing) -> Sequence[XAdd | AppendDurable]:
    if isinstance(command, Publish):
        return command.parts
    if isinstance(command, Close | AddScheduled):
        return [] if command.add is None else [command.add]
    return [command]


def _with_traceparent(command: XAdd, traceparent: str) -> XAdd:
    return msgspec.structs.replace(command, bodies=bodies_with(command.bodies, traceparent))


def bodies_with(bodies: Sequence[bytes], traceparent: str) -> list[bytes]:
    """Bodies of entries that keep this."""
    return [entries.with_meta(body, {META: traceparent}) for body in bodies]


def is_sampled(traceparent: bytes) -> bool:
    """Whether its trace is recorded."""
    return bool(int(traceparent[-2:], 16) & _SAMPLED)


class Tracer:
    """Spans of one gateway, exported as the environment says (`OTEL_EXPORTER_OTLP_ENDPOINT` and others)."""

    def __init__(self, provider: Any, api: Any) -> None:  # noqa: ANN401 - types of an optional package
        self._provider = provider
        self._api = api
        self._tracer = provider.get_tracer("weir", VERSION)

    @classmethod
    def create(cls) -> Self:
        """Begin to export. Raises ImportError without the packages of the extra `otel`."""
        from opentelemetry import trace  # noqa: PLC0415 - an extra
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        resource = Resource.create({"service.version": VERSION})
        # Unless OTEL_SERVICE_NAME has given it a name.
        if str(resource.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "weir"}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider, trace)

    def close(self) -> None:
        """Export what is left. Blocks for seconds if the collector does not answer."""
        self._provider.force_flush(_FLUSH_MS_MAX)
        self._provider.shutdown()

    @contextmanager
    def publishing(self, command: Publishing, traceparent: bytes) -> Iterator[Publishing]:
        """A span around a command that publishes; gives the command whose entries keep its context."""
        parts = _parts(command)
        count = sum(len(part.bodies) for part in parts)
        with self.sending({part.stream for part in parts}, count, traceparent) as kept:
            yield with_traceparent(command, kept)

    @contextmanager
    def sending(self, streams: Collection[str], count: int, traceparent: bytes) -> Iterator[str]:
        """A span around commands that publish this number of entries; gives the `traceparent` that they keep.

        It is not made the current one: a request without a task has no context of its own.
        """
        if not is_sampled(traceparent):
            yield traceparent.decode()
            return
        stream = next(iter(streams)) if len(streams) == 1 else ""
        context = self._api.set_span_in_context(self._api.NonRecordingSpan(self._context(traceparent)))
        attributes = _attributes("send", "publish", stream=stream, count=count)
        kind = self._api.SpanKind.PRODUCER
        name = f"publish {stream}".rstrip()
        span = self._tracer.start_span(name, context=context, kind=kind, attributes=attributes)
        own = span.get_span_context()
        try:
            yield f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
        except Exception as error:
            span.record_exception(error)
            span.set_status(self._api.StatusCode.ERROR)
            raise
        finally:
            span.end()

    def begin_publishing(
        self, command: Publishing, traceparent: bytes, done: Done
    ) -> tuple[Publishing, Done]:
        """The same for a command whose reply is a call of `done`: the span ends with it."""
        publishing = ExitStack()
        traced = publishing.enter_context(self.publishing(command, traceparent))

        def end(replies: Sequence[Reply | EngineError]) -> None:
            error = replies[0] if isinstance(replies[0], EngineError) else None
            publishing.__exit__(None if error is None else type(error), error, None)
            done(replies)

        return traced, end

    def note_read(self, stream: str, group: str, consumer: str, texts: Sequence[bytes | None]) -> None:
        """A span of its own for entries that a group is given, with links to those of their publishers."""
        kept = [meta.get(META, "").encode() for text in texts if text and (meta := entries.meta_of(text))]
        sampled = [one for one in dict.fromkeys(kept) if valid(one) and is_sampled(one)][:LINKS_MAX]
        if sampled:
            attributes = _attributes(
                "receive", "read", stream=stream, group=group, consumer=consumer, count=len(texts)
            )
            self._tracer.start_span(
                f"read {stream}",
                context=self._api.set_span_in_context(self._api.INVALID_SPAN),
                kind=self._api.SpanKind.CONSUMER,
                links=[self._api.Link(self._context(one)) for one in sampled],
                attributes=attributes,
            ).end()

    def _context(self, traceparent: bytes) -> Any:  # noqa: ANN401 - a SpanContext
        match = _TRACEPARENT.fullmatch(traceparent)
        assert match is not None, "it was checked when it came"
        trace_id, span_id, flags = (int(one, 16) for one in match.groups())
        return self._api.SpanContext(
            trace_id, span_id, is_remote=True, trace_flags=self._api.TraceFlags(flags & _SAMPLED)
        )


def _attributes(kind: str, name: str, **others: str | int) -> Mapping[str, str | int]:
    known = {"system": "weir", "type": kind, "name": name, **others}
    return {ATTRIBUTES[word]: value for word, value in known.items() if value != ""}
