"""Mutual authentication of two nodes of a cluster, without I/O.

The messages of a handshake:

    caller                                answerer
    PEER_HELLO (identity, nonce)      ->
                                      <-  PEER_HELLO_REPLY (identity, nonce, proof)
    PEER_PROOF (proof)                ->
                                      <-  PEER_WELCOME

A proof is HMAC-SHA256, keyed with the cluster secret, over a label for the role, the cluster id, and node id,
incarnation and nonce of both sides. Each part is prefixed with its length, so that different handshakes never produce
the same bytes. The label prevents reflection of a proof to its sender. Proofs are compared in constant time.

Protocol version, cluster id, bootstrap file and node ids are compared before the proofs, in plain text and with
specific errors, because a mismatch is a configuration mistake.

The handshake authenticates nodes; TLS, if nodes use it, protects the data that follows. With `needs_certificate` both
sides also present certificates with their node names, so that the secret alone does not admit a node. Rejected:
sending the secret, which would disclose it to any process at a mistyped address.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog_broker.core.cluster_secrets import ClusterSecrets
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import NODE_ID_BYTES_MAX, PEER_NONCE_BYTES, PROTOCOL_VERSION

_ANSWERER: Final = b"server"
_CALLER: Final = b"client"
_LENGTH: Final = struct.Struct("<I")
_INCARNATION: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of this node towards other nodes.

    Attributes:
        cluster_id: 16 bytes, the same on every node of a cluster.
        node_id: 1 to 128 bytes.
        incarnation: incarnation of this start.
        bootstrap_hash: SHA-256 of the bootstrap file; empty for a node that joined later.
        needs_certificate: whether nodes must present certificates with their names.
    """

    cluster_id: bytes
    node_id: str
    incarnation: int
    secrets: ClusterSecrets = field(repr=False)
    bootstrap_hash: bytes = b""
    software: str = ""
    needs_certificate: bool = False

    def __post_init__(self) -> None:
        assert 1 <= len(self.node_id.encode()) <= NODE_ID_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Challenge:
    """The identity that a caller has to prove, and the proofs that the answerer accepts."""

    node_id: str
    incarnation: int
    _proofs: Mapping[bytes, bytes] = field(repr=False)
    """Expected proof by secret."""

    def check(self, proof: bytes) -> bytes:
        """Verify a PEER_PROOF, and return the secret that it was made with.

        Raises:
            ProtocolError: UNAUTHENTICATED.
        """
        for secret, right in self._proofs.items():
            if hmac.compare_digest(proof, right):
                return secret
        raise _wrong_secret(self.node_id)


def hello_of(own: Identity, nonce: bytes) -> pb.PeerHello:
    """Return the caller's first message; `nonce` is 32 fresh random bytes."""
    assert len(nonce) == PEER_NONCE_BYTES
    return pb.PeerHello(
        version=PROTOCOL_VERSION,
        cluster_id=own.cluster_id,
        node_id=own.node_id,
        incarnation=own.incarnation,
        bootstrap_hash=own.bootstrap_hash,
        nonce=nonce,
        software=own.software,
    )


def answer_hello(own: Identity, hello: pb.PeerHello, nonce: bytes) -> tuple[pb.PeerHelloReply, Challenge]:
    """Return the answerer's reply, including its proof, and the challenge for the caller.

    Raises:
        ProtocolError: UNSUPPORTED_VERSION, INVALID_REQUEST, or FORBIDDEN with the cause.
    """
    assert len(nonce) == PEER_NONCE_BYTES
    _check(own, hello)
    reply = pb.PeerHelloReply(
        version=PROTOCOL_VERSION,
        cluster_id=own.cluster_id,
        node_id=own.node_id,
        incarnation=own.incarnation,
        bootstrap_hash=own.bootstrap_hash,
        nonce=nonce,
    )
    reply.proof = _proof(own.secrets.first, _ANSWERER, hello, reply)
    proofs = {secret: _proof(secret, _CALLER, hello, reply) for secret in own.secrets}
    return reply, Challenge(hello.node_id, hello.incarnation, proofs)


def check_reply(own: Identity, called: str, hello: pb.PeerHello, reply: pb.PeerHelloReply) -> pb.PeerProof:
    """Verify the reply to `hello` from the node `called`; return the caller's proof.

    Raises:
        ProtocolError: UNSUPPORTED_VERSION, INVALID_REQUEST, FORBIDDEN with the cause, or UNAUTHENTICATED.
    """
    _check(own, reply)
    if reply.node_id != called:
        raise ProtocolError(
            pb.FORBIDDEN,
            f"the address of node {called!r} belongs to node {reply.node_id!r}: correct the advertised address of one "
            "of them",
        )
    for secret in own.secrets:
        if hmac.compare_digest(reply.proof, _proof(secret, _ANSWERER, hello, reply)):
            return pb.PeerProof(proof=_proof(secret, _CALLER, hello, reply))
    raise _wrong_secret(reply.node_id)


def check_certificate(own: Identity, node_id: str, certified: Collection[str]) -> None:
    """Verify that a node's certificate names it.

    Args:
        own: this node.
        node_id: the other node.
        certified: node names in its certificate, whose signature was verified before.

    Raises:
        ProtocolError: UNAUTHENTICATED if certificates are required and this one does not name the node.
    """
    if own.needs_certificate and node_id not in certified:
        shown = f"a certificate for {', '.join(map(repr, sorted(certified)))}" if certified else "no node certificate"
        raise ProtocolError(
            pb.UNAUTHENTICATED,
            f"node {node_id!r} presented {shown}, but {own.node_id!r} requires a certificate for {node_id!r}: issue it "
            f"with `tidelog certs issue DIR node {node_id} --host HOST`, and set peer_auth = certificate on every node",
        )


def _check(own: Identity, other: pb.PeerHello | pb.PeerHelloReply) -> None:
    """Validate the other node's message, and compare its plain-text parts with this node's identity."""
    if other.version != PROTOCOL_VERSION:
        raise ProtocolError(
            pb.UNSUPPORTED_VERSION,
            f"node {other.node_id!r} uses protocol version {other.version}, {own.node_id!r} uses {PROTOCOL_VERSION}: "
            "install versions of Tidelog that share a protocol version",
        )
    if not 1 <= len(other.node_id.encode()) <= NODE_ID_BYTES_MAX or not other.node_id.isprintable():
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"a node id must be 1 to {NODE_ID_BYTES_MAX} bytes of printable text, got {other.node_id[:80]!r}",
        )
    if len(other.nonce) != PEER_NONCE_BYTES:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"the nonce of node {other.node_id!r} must have {PEER_NONCE_BYTES} bytes, got {len(other.nonce)}",
        )
    if other.cluster_id != own.cluster_id:
        raise ProtocolError(
            pb.FORBIDDEN,
            f"node {own.node_id!r} belongs to cluster {own.cluster_id.hex()}, node {other.node_id!r} to cluster "
            f"{other.cluster_id.hex()}: a data directory cannot change its cluster; correct the addresses in seeds, "
            "advertise_host or the bootstrap file",
        )
    if other.node_id == own.node_id:
        if other.incarnation == own.incarnation:
            raise ProtocolError(
                pb.FORBIDDEN,
                f"node {own.node_id!r} connected to itself: the address of another node leads to this one; "
                "correct that node's advertised address, or the bootstrap file",
            )
        raise ProtocolError(
            pb.FORBIDDEN,
            f"two nodes have the id {own.node_id!r}: if one uses a copy of the other's data directory, stop it; "
            "otherwise give one of them another node_id",
        )
    if own.bootstrap_hash and other.bootstrap_hash and own.bootstrap_hash != other.bootstrap_hash:
        raise ProtocolError(
            pb.FORBIDDEN,
            f"the bootstrap files of {own.node_id!r} and {other.node_id!r} differ: give every founder an identical "
            "copy of one file",
        )


def _proof(secret: bytes, label: bytes, hello: pb.PeerHello, reply: pb.PeerHelloReply) -> bytes:
    """Return the proof of one side; `_check` ensures that both messages have the same cluster id."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for part in (label, reply.cluster_id, *_side(hello), *_side(reply)):
        mac.update(_LENGTH.pack(len(part)))
        mac.update(part)
    return mac.digest()


def _side(message: pb.PeerHello | pb.PeerHelloReply) -> tuple[bytes, bytes, bytes]:
    return message.node_id.encode(), _INCARNATION.pack(message.incarnation), message.nonce


def _wrong_secret(node_id: str) -> ProtocolError:
    return ProtocolError(
        pb.UNAUTHENTICATED, f"node {node_id!r} has another cluster secret: configure the same one on every node"
    )
