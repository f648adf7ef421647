"""The W3C trace context that requests to nodes carry; in a gateway, that of the HTTP request being served.

A node creates a span for a request that carries a trace context. Requests carry none unless `use` has set a source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import TRACE_CONTEXTS_MAX

_source: Callable[[], str] | None = None


def use(source: Callable[[], str] | None) -> None:
    """Set the function that returns the `traceparent` of the current context; None to send none."""
    global _source  # noqa: PLW0603 - one per process, like the context variables that it reads
    _source = source


def current() -> str:
    """Return the current `traceparent`; "" without a current span or a source."""
    return "" if _source is None else _source()


def carry(envelope: pb.Envelope, contexts: Iterable[str]) -> None:
    """Attach trace contexts to a request; the first is the parent of the node's span, the others become links."""
    distinct = list(dict.fromkeys(context for context in contexts if context))[:TRACE_CONTEXTS_MAX]
    if distinct:
        envelope.trace_contexts.extend(distinct)


def carry_current(envelope: pb.Envelope) -> None:
    """Attach the current trace context to a request."""
    if _source is not None:
        carry(envelope, (_source(),))
