"""Ending of sessions after another node has found that their identity is no longer valid.

Nodes learn of a revoked key or a deleted user one after the other. So the owner of a partition may refuse a forwarded
request while the client's connection to this node is still open.
"""

from __future__ import annotations

from tidelog_broker.core.security.tickets import ticket_refused
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


def client_error(request: Request, error: ProtocolError) -> ProtocolError:
    """Return the error to send to a client; an error that reports the end of its identity also closes its connection.

    The client then reconnects and presents its current credentials, which may be a new key; it would treat the error
    alone as final. A gateway gets TICKET_REFUSED and authenticates its caller again.
    """
    connection = request.connection
    if error.code != pb.UNAUTHENTICATED or request.session is None or connection.peer_id is not None:
        return error
    if request.session is not connection.session:
        return ticket_refused(error.message)
    connection.abort(error)
    return error
