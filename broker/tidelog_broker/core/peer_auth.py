"""How two nodes prove to each other that they belong to one cluster, without I/O.

    caller                                answerer
    PEER_HELLO (who I am, nonce)      ->
                                      <-  PEER_HELLO_REPLY (who I am, nonce, proof)
    PEER_PROOF (proof)                ->
                                      <-  PEER_WELCOME

A proof is HMAC-SHA256, keyed with the cluster's secret, over a label for the role, the cluster id, and both sides'
node id, incarnation and nonce, each with its length in front, so that no two conversations have the same bytes. The
label keeps one side's proof from being sent back to it as the other's. Proofs are compared in constant time.

What is compared in the open comes first and names its cause, because each of these is a mistake of configuration that
somebody must find: another protocol version, another cluster, another bootstrap file, one node id twice.

This keeps strangers and misconfigured nodes out; what follows on the connection is protected by TLS, where nodes speak
it. With `needs_certificate` both sides also show certificates that name their nodes, so that whoever has got hold of
the secret is no node yet. Rejected: sending the secret (whoever answers at a mistyped address would have it).
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
    """Who this node is to other nodes.

    Attributes:
        cluster_id: 16 bytes, the same on every node of a cluster.
        node_id: 1 to 128 bytes.
        incarnation: of this start.
        secrets: what every node of the cluster is given and nobody else.
        bootstrap_hash: SHA-256 of the bootstrap file; empty for a node that joined later.
        software: for logs.
        needs_certificate: nodes show certificates with their names, too.
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
    """What the answerer waits for: a caller that says it is this node, and the proof that it would have."""

    node_id: str
    incarnation: int
    _proofs: Mapping[bytes, bytes] = field(repr=False)
    """By secret, what proves that the caller has it."""

    def check(self, proof: bytes) -> bytes:
        """Judge a PEER_PROOF, and return the secret that it was made with.

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
    """Return the answerer's reply, with its proof, and what it then expects.

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


def check_reply(own: Identity, called: str | None, hello: pb.PeerHello, reply: pb.PeerHelloReply) -> pb.PeerProof:
    """Judge the answer to `hello` at the address of the node `called` (None: of any); return the caller's proof.

    Raises:
        ProtocolError: UNSUPPORTED_VERSION, INVALID_REQUEST, FORBIDDEN with the cause, or UNAUTHENTICATED.
    """
    _check(own, reply)
    if called is not None and reply.node_id != called:
        raise ProtocolError(
            pb.FORBIDDEN, f"the address of the node {called!r} is answered by {reply.node_id!r}: one address is wrong"
        )
    for secret in own.secrets:
        if hmac.compare_digest(reply.proof, _proof(secret, _ANSWERER, hello, reply)):
            return pb.PeerProof(proof=_proof(secret, _CALLER, hello, reply))
    raise _wrong_secret(reply.node_id)


def check_certificate(own: Identity, node_id: str, certified: Collection[str]) -> None:
    """Judge the certificate of a node that says its name.

    Args:
        own: this node.
        node_id: the other one.
        certified: the nodes that its certificate, which was verified, vouches for.

    Raises:
        ProtocolError: UNAUTHENTICATED, where certificates are needed and this one vouches for others.
    """
    if own.needs_certificate and node_id not in certified:
        shown = f"one of {', '.join(map(repr, sorted(certified)))}" if certified else "none of a node"
        raise ProtocolError(
            pb.UNAUTHENTICATED,
            f"the node {node_id!r} shows {shown}, and {own.node_id!r} asks for a certificate that names it: issue one "
            f"with `tidelog certs issue DIR node {node_id} --host HOST`, and give every node peer_auth = certificate",
        )


def _check(own: Identity, other: pb.PeerHello | pb.PeerHelloReply) -> None:
    """Compare what both sides say in the open."""
    if other.version != PROTOCOL_VERSION:
        raise ProtocolError(
            pb.UNSUPPORTED_VERSION,
            f"the node {other.node_id!r} speaks version {other.version} of the protocol, {own.node_id!r} speaks "
            f"{PROTOCOL_VERSION}: they need builds that share a version",
        )
    if not 1 <= len(other.node_id.encode()) <= NODE_ID_BYTES_MAX or not other.node_id.isprintable():
        raise ProtocolError(pb.INVALID_REQUEST, f"a node id has 1 to {NODE_ID_BYTES_MAX} bytes of printable text")
    if len(other.nonce) != PEER_NONCE_BYTES:
        raise ProtocolError(pb.INVALID_REQUEST, f"a nonce has {PEER_NONCE_BYTES} bytes, this one {len(other.nonce)}")
    if other.cluster_id != own.cluster_id:
        raise ProtocolError(
            pb.FORBIDDEN,
            f"two clusters told to join each other: {own.node_id!r} is of the cluster {own.cluster_id.hex()}, "
            f"{other.node_id!r} of {other.cluster_id.hex()}; a node's data directory belongs to one cluster for good",
        )
    if other.node_id == own.node_id:
        if other.incarnation == own.incarnation:
            raise ProtocolError(pb.FORBIDDEN, f"the node {own.node_id!r} has called itself: that address is its own")
        raise ProtocolError(
            pb.FORBIDDEN,
            f"two nodes are called {own.node_id!r}: either a data directory was copied, or one of the two needs "
            "another name",
        )
    if own.bootstrap_hash and other.bootstrap_hash and own.bootstrap_hash != other.bootstrap_hash:
        raise ProtocolError(
            pb.FORBIDDEN,
            f"the bootstrap files of {own.node_id!r} and {other.node_id!r} differ: founders need the same file, byte "
            "for byte",
        )


def _proof(secret: bytes, label: bytes, hello: pb.PeerHello, reply: pb.PeerHelloReply) -> bytes:
    """Return the proof of one side; both messages carry the same cluster id, which `_check` has seen to."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for part in (label, reply.cluster_id, *_side(hello), *_side(reply)):
        mac.update(_LENGTH.pack(len(part)))
        mac.update(part)
    return mac.digest()


def _side(said: pb.PeerHello | pb.PeerHelloReply) -> tuple[bytes, bytes, bytes]:
    return said.node_id.encode(), _INCARNATION.pack(said.incarnation), said.nonce


def _wrong_secret(node_id: str) -> ProtocolError:
    return ProtocolError(
        pb.UNAUTHENTICATED, f"the node {node_id!r} has another cluster secret: every node is given the same one"
    )
