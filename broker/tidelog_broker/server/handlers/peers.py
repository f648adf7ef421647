"""PEER_HELLO and PEER_PROOF: another node proves that it belongs to this one's cluster (see `core/peer_auth.py`)."""

from __future__ import annotations

import logging
import os

from tidelog_broker.broker import Broker
from tidelog_broker.core.peer_auth import answer_hello, check_certificate
from tidelog_broker.wire.connection import Request
from tidelog_broker.wire.peers import Peers
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FRAME_BYTES_MAX, PEER_NONCE_BYTES, PROTOCOL_VERSION

log = logging.getLogger(__name__)


def hello(broker: Broker, request: Request) -> None:
    """Handle PEER_HELLO. Without any names in it, it asks whom it has reached: a node that has yet to join.

    Raises:
        ProtocolError: FORBIDDEN or UNSUPPORTED_VERSION with the cause, INVALID_REQUEST for one out of turn.
    """
    asked, connection = request.envelope.peer_hello, request.connection
    if not asked.node_id and not asked.cluster_id:
        claim = pb.PeerHelloReply(version=PROTOCOL_VERSION, node_id=broker.node_id, cluster_id=broker.cluster_id)
        request.reply(pb.Envelope(peer_hello_reply=claim))
        return
    peers = _peers(broker)
    if connection.greeted or connection.challenge is not None:
        raise ProtocolError(
            pb.INVALID_REQUEST, "this connection has been greeted; a peer handshake needs a new connection"
        )
    reply, challenge = answer_hello(peers.identity, asked, os.urandom(PEER_NONCE_BYTES))
    try:
        check_certificate(peers.identity, asked.node_id, connection.certified("node"))
    except ProtocolError as error:
        _refuse(request, asked.node_id, error)
        return
    connection.challenge = challenge
    request.reply(pb.Envelope(peer_hello_reply=reply))


def proof(broker: Broker, request: Request) -> None:
    """Handle PEER_PROOF. A wrong one ends the connection: there is one try for each challenge.

    A node that was removed is told so, and not by an error: it stops for that, as it does for nothing else it may hear.

    Raises:
        ProtocolError: INVALID_REQUEST without a PEER_HELLO before.
    """
    peers = _peers(broker)
    connection = request.connection
    challenge, connection.challenge = connection.challenge, None
    if challenge is None:
        raise ProtocolError(pb.INVALID_REQUEST, "PEER_HELLO comes first")
    try:
        secret = challenge.check(request.envelope.peer_proof.proof)
        record = broker.nodes.get(challenge.node_id)
        if record is not None and record.removed:
            request.reply(pb.Envelope(peer_welcome=pb.PeerWelcome(removed=True)))
            connection.close()
            return
        peers.welcome(connection, challenge, secret)
    except ProtocolError as error:
        _refuse(request, challenge.node_id, error)
        return
    request.reply(pb.Envelope(peer_welcome=pb.PeerWelcome(frame_bytes_max=FRAME_BYTES_MAX)))


def _refuse(request: Request, node_id: str, error: ProtocolError) -> None:
    log.warning("a caller that says it is node %r is refused: %s", node_id, error)
    request.fail(error)
    request.connection.close()


def _peers(broker: Broker) -> Peers:
    if broker.peers is None:
        raise ProtocolError(pb.FORBIDDEN, f"the node {broker.node_id!r} stands alone: it belongs to no cluster")
    return broker.peers
