"""A span for each HTTP request. Import it only if `otel` is on.

The span is a child of the caller's span (`traceparent`) and current during the request, so that the spans of nodes are
its children. Probes of health and metrics have no span.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable
from typing import Any, Final

from opentelemetry import context, trace
from starlette.types import Scope

from tidelog.cluster import trace_contexts
from tidelog_gateway.publishing.trace_context import TraceHeaders, trace_in
from tidelog_proto.process.telemetry import Telemetry, traceparent_of

_WITHOUT: Final = frozenset({"/livez", "/readyz", "/metrics"})
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestSpan:
    """The span of one request."""

    def __init__(self, span: trace.Span, caller: TraceHeaders | None) -> None:
        self._span = span
        self._caller = caller
        self._token = context.attach(trace.set_span_in_context(span, context.Context()))

    @property
    def record_headers(self) -> TraceHeaders | None:
        """The trace context of published records; None if the caller sent none."""
        parent = traceparent_of(self._span)
        if self._caller is None or not parent:
            return self._caller
        return [("traceparent", parent.encode()), *self._caller[1:]]

    def end(self, *, method: str, route: str, status: int, request_id: str) -> None:
        """End the span with the answer's attributes."""
        context.detach(self._token)
        known_method = method if method in _METHODS else "_OTHER"
        self._span.update_name(f"{known_method} {route}" if route != "none" else known_method)
        self._span.set_attributes({
            "http.request.method": known_method,
            "http.route": route,
            "http.response.status_code": status,
            "tidelog.request_id": request_id,
        })  # fmt: skip
        if status >= 500:
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()


class RequestSpans:
    """Begins spans; owns the exporter.

    Args:
        collect: collects the gateway's metrics; called by a thread.
    """

    def __init__(self, collect: Callable[[], Iterable[Any]]) -> None:
        instance = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._telemetry = Telemetry("tidelog-gateway", instance=instance, collect=collect)
        trace_contexts.use(lambda: traceparent_of(trace.get_current_span()))

    def begin(self, scope: Scope) -> RequestSpan | None:
        """Begin the span of a request; None for a route without spans."""
        if scope["path"] in _WITHOUT:
            return None
        caller = trace_in(scope["headers"])
        contexts = [] if caller is None else [(caller[0][1] or b"").decode()]
        return RequestSpan(self._telemetry.begin("HTTP", kind=trace.SpanKind.SERVER, contexts=contexts), caller)

    def close(self) -> None:
        """Export the remaining spans."""
        trace_contexts.use(None)
        self._telemetry.close()
