"""OpenTelemetry spans for requests that carry a trace context. Import it only if `otel` is on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from opentelemetry import trace

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import code_name
from tidelog_proto.process.telemetry import Telemetry

_CONTEXT_CHARS_MAX: Final = 128


class RequestSpan:
    """The span of one request."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def answered(self, answer: pb.Envelope) -> None:
        """End the span when its request is answered; an error answer becomes the span's status and `error.type`."""
        if answer.WhichOneof("kind") == "error":
            name = code_name(answer.error.code)
            self._span.set_attribute("error.type", name)
            self._span.set_status(trace.StatusCode.ERROR, name)
        self._span.end()


class RequestSpans:
    """Begins the spans of requests, and owns the exporter of spans and metrics.

    Args:
        node_id: the instance that the exported data names.
        collect: collects the node's metrics; called on another thread.
    """

    def __init__(self, node_id: str, collect: Callable[[], Iterable[Any]]) -> None:
        self._telemetry = Telemetry("tidelog-node", instance=node_id, collect=collect)
        self._node_id = node_id

    def begin(self, kind: str, contexts: Sequence[str]) -> RequestSpan:
        """Begin the span of a request of a kind, with the request's trace contexts as parent and links.

        Contexts of more than 128 characters are ignored.
        """
        contexts = [each for each in contexts if len(each) <= _CONTEXT_CHARS_MAX]
        attributes = {"rpc.system": "tidelog", "rpc.method": kind, "tidelog.node.id": self._node_id}
        span = self._telemetry.begin(kind, kind=trace.SpanKind.SERVER, contexts=contexts, attributes=attributes)
        return RequestSpan(span)

    def close(self) -> None:
        """Export the remaining spans."""
        self._telemetry.close()
