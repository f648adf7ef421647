"""What becomes of a session when another node is the first to know that its caller is no longer who he was.

A key that is revoked, or an account that is deleted, is news that nodes hear one after the other. The owner of what is
asked for may have heard, and refuse a request, while the connection that it came by is open still at this node.
"""

from __future__ import annotations

from tidelog_broker.core.security.tickets import ticket_refused
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


def told(request: Request, error: ProtocolError) -> ProtocolError:
    """Return what a client is told of an error; one that says that his identity has ended ends his session.

    He connects again then, and shows what he has by now, which may be another key: an answer would be final to him. A
    gateway is told that its caller's ticket does not count, and asks again who that is.
    """
    connection = request.connection
    if error.code != pb.UNAUTHENTICATED or request.session is None or connection.peer_id is not None:
        return error
    if request.session is not connection.session:
        return ticket_refused(error.message)
    connection.abort(error)
    return error
