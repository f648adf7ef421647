"""Traces that go on through a topic: OpenTelemetry's context in the headers of records.

    with tracer.start_as_current_span("order placed"):
        await producer.send(value, headers=with_context())

    async for record in consumer:
        with span_of(record):
            ...

The context is written and read by OpenTelemetry's own propagators, which are W3C's `traceparent`, `tracestate` and
`baggage` unless OTEL_PROPAGATORS says otherwise. Without an SDK no span is recorded, and contexts are passed on
nevertheless. Nothing of this happens by itself: a record is nobody's concern on the fast paths, so whoever wants a
trace of one asks for it.
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
    """Return headers for a record that is published now: `headers`, and the current context.

    Where there is no context, they are `headers` alone; headers of the context's names are replaced by it.

    Args:
        headers: (name, value) pairs.
    """
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    kept = [(name, value) for name, value in headers if name.lower() not in carrier]
    return [*kept, *((name, value.encode()) for name, value in carrier.items())]


def context_of(record: Record) -> context.Context:
    """Return the current context with what the headers of a record say of its own; with nothing in them, as it is."""
    carrier: dict[str, str] = {}
    for name, value in record.headers:
        if value is not None:
            carrier.setdefault(name.lower(), value.decode("utf-8", "replace"))
    return propagate.extract(carrier, context=context.get_current())


@contextmanager
def span_of(record: Record, name: str | None = None, *, tracer: trace.Tracer | None = None) -> Iterator[trace.Span]:
    """Enter a span of a record's processing, a child of the one in which the record was published.

    An exception is recorded in the span, and raised on.

    Args:
        record: the one that is processed.
        name: the span's; None for `process` and the topic.
        tracer: makes the span; None for one of the global provider.
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
