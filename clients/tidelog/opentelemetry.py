"""Trace propagation through topics: OpenTelemetry contexts in record headers.

    with tracer.start_as_current_span("order placed"):
        await producer.send(value, headers=with_context())

    async for record in consumer:
        with span_of(record):
            ...

OpenTelemetry's own propagators write and read the context: W3C `traceparent`, `tracestate` and `baggage` unless
OTEL_PROPAGATORS selects others. Without an SDK no span is recorded, but contexts are still passed on. Propagation is
opt-in for each record, because the fast paths do no work per record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidelog.model import Record
from tidelog_proto.batch.columns import Headers

try:
    from opentelemetry import context, propagate, trace
except ImportError as error:
    raise ImportError(
        "tidelog.opentelemetry needs the package opentelemetry-api; run: pip install 'tidelog[otel]'"
    ) from error

_TRACER: Final = "tidelog"


def with_context(headers: Headers = ()) -> list[tuple[str, bytes | None]]:
    """Return `headers` plus the current trace context, for a record to be published.

    Headers with the names of the context are replaced. Without a context, `headers` are returned unchanged.

    Args:
        headers: (name, value) pairs.
    """
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    other_headers = [(name, value) for name, value in headers if name.lower() not in carrier]
    return [*other_headers, *((name, value.encode()) for name, value in carrier.items())]


def context_of(record: Record) -> context.Context:
    """Return the current context extended by the one in a record's headers, if any."""
    carrier: dict[str, str] = {}
    for name, value in record.headers:
        if value is not None:
            carrier.setdefault(name.lower(), value.decode("utf-8", "replace"))
    return propagate.extract(carrier, context=context.get_current())


@contextmanager
def span_of(record: Record, name: str | None = None, *, tracer: trace.Tracer | None = None) -> Iterator[trace.Span]:
    """Enter a span for processing a record, as a child of the span in its headers, or else of the current span.

    An exception is recorded in the span and propagated.

    Args:
        record: the record being processed.
        name: the span's name; None for `process` and the topic.
        tracer: creates the span; None: a tracer of the global provider.
    """
    tracer = trace.get_tracer(_TRACER) if tracer is None else tracer
    token = context.attach(context_of(record))
    try:
        span = tracer.start_span(
            name or f"process {record.topic}",
            kind=trace.SpanKind.CONSUMER,
            attributes={
                "messaging.system": _TRACER,
                "messaging.operation.type": "process",
                "messaging.destination.name": record.topic,
                "messaging.destination.partition.id": str(record.partition),
                "messaging.tidelog.offset": record.offset,
            },
        )
        with trace.use_span(span, end_on_exit=True):
            yield span
    finally:
        context.detach(token)
