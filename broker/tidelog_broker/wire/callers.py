"""Handing a request on: another node is told for whom it is, and checks what that caller may do."""

from __future__ import annotations

from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb


def hand_on(request: Request, envelope: pb.Envelope) -> pb.Envelope:
    """Return `envelope`, changed to name the caller of `request`, where callers have names."""
    if request.envelope.trace_contexts and not envelope.trace_contexts:
        envelope.trace_contexts.extend(request.envelope.trace_contexts)
    session = request.session
    if session is not None:
        envelope.ClearField("on_behalf")  # this node has looked at it; the other one is told what came of that
        envelope.caller.CopyFrom(session.caller())
    return envelope
