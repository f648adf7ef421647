"""Forwarding of requests together with their caller, whose permissions the other node checks."""

from __future__ import annotations

from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb


def with_caller(request: Request, envelope: pb.Envelope) -> pb.Envelope:
    """Return `envelope` with the trace contexts of `request` and, if callers are authenticated, its caller."""
    if request.envelope.trace_contexts and not envelope.trace_contexts:
        envelope.trace_contexts.extend(request.envelope.trace_contexts)
    session = request.session
    if session is not None:
        envelope.ClearField("on_behalf")  # This node has verified the caller; `caller` is the result.
        envelope.caller.CopyFrom(session.caller())
    return envelope
