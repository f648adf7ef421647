"""PEER_HELLO and PEER_PROOF: authentication of another node of the cluster (see `core/peer_auth.py`).

INCARNATIONS: exchange of the known incarnations of nodes (see `core/rollback_detection.py`).
"""

from __future__ import annotations

import logging
import os
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.incarnation import boot_counter
from tidelog_broker.core.known_incarnations import known_incarnation
from tidelog_broker.core.peer_auth import Challenge, answer_hello, check_certificate
from tidelog_broker.core.rollback_detection import INCARNATIONS_PER_MESSAGE_MAX, IncarnationTick
from tidelog_broker.wire.connection import Request
from tidelog_broker.wire.peers import Peers
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FRAME_BYTES_MAX, PEER_NONCE_BYTES, PROTOCOL_VERSION

log = logging.getLogger(__name__)

IN_USE_TIMEOUT_S: Final = 1.0
"""Maximum time of waiting for the earlier incarnation of a starting node to prove that it is still running."""


def hello(broker: Broker, request: Request) -> None:
    """Handle PEER_HELLO. A joining node names no node and no cluster, and so asks for those of this node.

    Raises:
        ProtocolError: FORBIDDEN or UNSUPPORTED_VERSION with the cause, INVALID_REQUEST on a connection that has begun a
            handshake before.
    """
    message, connection = request.envelope.peer_hello, request.connection
    if not message.node_id and not message.cluster_id:
        claim = pb.PeerHelloReply(version=PROTOCOL_VERSION, node_id=broker.node_id, cluster_id=broker.cluster_id)
        request.reply(pb.Envelope(peer_hello_reply=claim))
        return
    peers = _peers(broker)
    if connection.greeted or connection.challenge is not None:
        raise ProtocolError(
            pb.INVALID_REQUEST, "this connection has begun a handshake before; open a new one for a peer handshake"
        )
    reply, challenge = answer_hello(peers.identity, message, os.urandom(PEER_NONCE_BYTES))
    try:
        check_certificate(peers.identity, message.node_id, connection.certified("node"))
    except ProtocolError as error:
        _refuse(request, message.node_id, error)
        return
    connection.challenge = challenge
    request.reply(pb.Envelope(peer_hello_reply=reply))


async def proof(broker: Broker, request: Request) -> None:
    """Handle PEER_PROOF. A wrong proof ends the connection: a challenge allows one attempt.

    The PEER_WELCOME tells a node to stop if it was removed, if it withdraws its incarnation, or if its directory is an
    older copy; an error would make it retry. Otherwise its incarnation is stored durably before the answer.

    Raises:
        ProtocolError: FORBIDDEN if this node does not belong to a cluster, INVALID_REQUEST without a preceding
            PEER_HELLO.
    """
    peers = _peers(broker)
    connection = request.connection
    challenge, connection.challenge = connection.challenge, None
    if challenge is None:
        raise ProtocolError(pb.INVALID_REQUEST, "PEER_PROOF needs a PEER_HELLO first")
    try:
        secret = challenge.check(request.envelope.peer_proof.proof)
        record = broker.nodes.get(challenge.node_id)
        if record is not None and record.removed:
            request.reply(pb.Envelope(peer_welcome=pb.PeerWelcome(removed=True)))
            connection.close()
            return
        offered = request.envelope.peer_proof.incarnations
        await broker.incarnations.begun()
        if await broker.incarnations.is_withdrawn(challenge.node_id, challenge.incarnation, offered):
            request.reply(pb.Envelope(peer_welcome=pb.PeerWelcome(withdrawn=True)))
            connection.close()
            return
        refusal = await _later_incarnation(broker, challenge, offered)
        if refusal is not None:
            what = (
                "a copy of the one that another, running process of the node uses"
                if refusal.in_use
                else "an older copy: the node has started later from another one"
            )
            log.warning("refusing node %r: its data directory is %s", challenge.node_id, what)
            request.reply(pb.Envelope(peer_welcome=refusal))
            connection.close()
            return
        await broker.incarnations.register(challenge.node_id, challenge.incarnation, offered)
        # If the connection was lost meanwhile, its loss is handled already, and nothing would remove it from the peers.
        if not connection.is_open:
            request.drop()
            return
        peers.welcome(connection, challenge, secret)
    except ProtocolError as error:
        _refuse(request, challenge.node_id, error)
        return
    incarnations = broker.incarnations.offer(challenge.node_id)
    request.reply(pb.Envelope(peer_welcome=pb.PeerWelcome(frame_bytes_max=FRAME_BYTES_MAX, incarnations=incarnations)))


async def _later_incarnation(
    broker: Broker, challenge: Challenge, offered: pb.PeerIncarnations
) -> pb.PeerWelcome | None:
    """Return the refusal of a node whose directory is an older copy, or a copy of a running node's; else None.

    The start of a copy looks like the next start of the original. So if an earlier incarnation is known, this node
    calls that node's address: if the earlier incarnation answers, it is running, and the new one is refused.

    Raises:
        ProtocolError: EPOCH_CHANGING if gossip reports the earlier incarnation as alive, but it does not answer.
    """
    node_id, incarnation = challenge.node_id, challenge.incarnation
    refutation = broker.incarnations.refutation(node_id, incarnation, offered)
    if refutation is not None:
        return pb.PeerWelcome(later_incarnation=refutation)
    earlier = broker.incarnations.predecessor(node_id, incarnation, offered)
    if not earlier:
        return None
    is_running = await broker.cluster.is_running(node_id, earlier, timeout_s=IN_USE_TIMEOUT_S)
    if is_running is None:
        raise ProtocolError(
            pb.EPOCH_CHANGING,
            f"gossip reports an earlier process of node {node_id!r} (start {boot_counter(earlier)}) as alive, but it "
            "does not answer at its address; stop that process, or wait until gossip reports it as dead",
        )
    if is_running:
        running = known_incarnation((node_id, offered.directory_id), IncarnationTick(earlier, 0))
        return pb.PeerWelcome(later_incarnation=running, in_use=True)
    return None


async def incarnations(broker: Broker, request: Request) -> None:
    """Handle INCARNATIONS: record the incarnations of nodes that another node knows, and answer with later ones.

    Withdrawals are durable before the answer, since a process that withdraws its incarnation ends when it gets the
    answer.

    Raises:
        ProtocolError: FORBIDDEN to a caller that is not a node, INVALID_REQUEST for too many entries.
    """
    peer_id, entries = request.connection.peer_id, request.envelope.incarnations.entries
    if peer_id is None:
        raise ProtocolError(pb.FORBIDDEN, "INCARNATIONS is accepted only from nodes of the cluster")
    if len(entries) > INCARNATIONS_PER_MESSAGE_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"INCARNATIONS may have at most {INCARNATIONS_PER_MESSAGE_MAX} entries, got {len(entries)}",
        )
    reply = broker.incarnations.learn(peer_id, entries)
    await broker.incarnations.keep_withdrawals(entries)
    request.reply(pb.Envelope(incarnations_reply=reply))


def _refuse(request: Request, node_id: str, error: ProtocolError) -> None:
    log.warning("refusing a connection that claims to be node %r: %s", node_id, error)
    request.fail(error)
    request.connection.close()


def _peers(broker: Broker) -> Peers:
    if broker.peers is None:
        raise ProtocolError(
            pb.FORBIDDEN, f"node {broker.node_id!r} does not belong to a cluster, so it accepts no other nodes"
        )
    return broker.peers
