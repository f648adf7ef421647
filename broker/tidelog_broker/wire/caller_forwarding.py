"""Forwarding of a request's caller: the other node learns whose request it is and checks that caller's permissions."""

from __future__ import annotations

from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb


def with_caller(request: Request, envelope: pb.Envelope) -> pb.Envelope:
    """Return `envelope` with the caller of `request` set, if callers are authenticated, and its trace contexts."""
    if request.envelope.trace_contexts and not envelope.trace_contexts:
        envelope.trace_contexts.extend(request.envelope.trace_contexts)
    session = request.session
    if session is not None:
        envelope.ClearField("on_behalf")  # this node has verified it; `caller` is the result
        envelope.caller.CopyFrom(session.caller())
    return envelope
