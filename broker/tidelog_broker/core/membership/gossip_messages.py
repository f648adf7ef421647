"""The datagrams of membership: encoding within a size limit, and strict decoding.

A datagram with any field out of range is rejected as a whole: it was authenticated, so its sender is defective or runs
another version, and its other fields cannot be trusted either. Lengths are checked before parsing. Texts are bounded so
that every datagram has room for at least one record.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, cast

from google.protobuf.message import DecodeError

from tidelog_broker.core.membership.members import Address, Member, MemberState
from tidelog_broker.core.placement.placement import WEIGHT_MAX, Role
from tidelog_proto import gossip_pb2 as pb
from tidelog_proto.limits import CLUSTER_ID_BYTES, NODE_ID_BYTES_MAX

DATAGRAM_BYTES_MAX: Final = 1200
"""Maximum size of a datagram, which avoids fragmentation on any path: the minimum MTU of IPv6 is 1280 bytes, headers
included."""
AUTH_BYTES: Final = 1 + 32
"""Size of the version byte and the authentication tag, which the caller prepends."""
PAYLOAD_BYTES_MAX: Final = DATAGRAM_BYTES_MAX - AUTH_BYTES
HOST_BYTES_MAX: Final = 255
ZONE_BYTES_MAX: Final = 200
_U32_MAX: Final = 2**32 - 1
_RECORD_OVERHEAD_BYTES: Final = 3
"""Size of the tag and length of a record within the datagram: records are shorter than 16 KiB."""


class MalformedGossipError(Exception):
    """A datagram that violates the format."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Requests an Ack with this sequence number from `target`; an empty target matches any node at that address."""

    sequence: int
    target: str = ""


@dataclass(frozen=True, slots=True)
class PingRequest:
    """Asks the receiver to ping `target` and to forward its Ack, or to send a Nack."""

    sequence: int
    target: str


@dataclass(frozen=True, slots=True)
class Ack:
    """The target of the ping or ping request with this sequence number has answered."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Nack:
    """The receiver of the ping request is alive, but has no answer from the target."""

    sequence: int


Body = Ping | PingRequest | Ack | Nack


@dataclass(frozen=True, slots=True)
class Datagram:
    """A decoded datagram with every field in range."""

    cluster_id: bytes
    sender: str
    incarnation: int
    counter: int
    digest: int
    body: Body | None
    members: tuple[Member, ...]


class DatagramWriter:
    """Builds one datagram: `add` records while they fit, then `finish`."""

    def __init__(
        self, *, cluster_id: bytes, sender: str, incarnation: int, counter: int, digest: int, body: Body | None
    ) -> None:
        self._message = pb.Gossip(
            cluster_id=cluster_id, sender=sender, incarnation=incarnation, counter=counter, digest=digest
        )
        match body:
            case Ping():
                self._message.ping.sequence = body.sequence
                self._message.ping.target = body.target
            case PingRequest():
                self._message.ping_request.sequence = body.sequence
                self._message.ping_request.target = body.target
            case Ack():
                self._message.ack.sequence = body.sequence
            case Nack():
                self._message.nack.sequence = body.sequence
            case None:
                pass
        if body is not None and not body.sequence:  # an empty submessage would not be sent
            raise AssertionError("sequences begin at 1")
        self._room_bytes = PAYLOAD_BYTES_MAX - self._message.ByteSize()
        self._node_ids = set[str]()

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._node_ids

    def add(self, member: Member) -> bool:
        """Add a record. Return False if it does not fit or a record of that node is already included."""
        if member.node_id in self._node_ids:
            return False
        packed = _packed(member)
        size_bytes = packed.ByteSize() + _RECORD_OVERHEAD_BYTES
        if size_bytes > self._room_bytes:
            return False
        self._room_bytes -= size_bytes
        self._node_ids.add(member.node_id)
        self._message.members.append(packed)
        return True

    def finish(self) -> bytes:
        """Return the payload, at most PAYLOAD_BYTES_MAX bytes."""
        payload = self._message.SerializeToString()
        assert len(payload) <= PAYLOAD_BYTES_MAX
        return payload


def check_member(member: Member) -> None:
    """Reject a record that cannot be sent.

    Raises:
        ValueError: a text is empty or too long, a number is out of range, or the gossip host is not an IP address.
    """
    _check_text("node id", member.node_id, NODE_ID_BYTES_MAX)
    _check_text("host", member.host, HOST_BYTES_MAX)
    _check_text("zone", member.zone, ZONE_BYTES_MAX)
    if not 0 < member.incarnation < 2**64:
        raise ValueError(f"node {member.node_id!r}: incarnation must be 1 to 2^64 - 1, got {member.incarnation}")
    if not 0 <= member.refutation <= _U32_MAX:
        raise ValueError(f"node {member.node_id!r}: refutation must be 0 to {_U32_MAX}, got {member.refutation}")
    if ipaddress.ip_address(member.gossip.host).is_unspecified:
        raise ValueError(
            f"node {member.node_id!r}: the gossip host must be an address that other nodes can reach, got "
            f"{member.gossip.host}"
        )
    for port in (member.port, member.gossip.port):
        if not 0 < port < 2**16:
            raise ValueError(f"node {member.node_id!r}: a port must be 1 to 65535, got {port}")
    if not 0 < member.weight <= WEIGHT_MAX:
        raise ValueError(f"node {member.node_id!r}: weight must be 1 to {WEIGHT_MAX}, got {member.weight}")
    if not member.roles:
        raise ValueError(f"node {member.node_id!r} must have at least one role, got none")


def decode(payload: bytes) -> Datagram:
    """Parse a datagram's payload.

    Raises:
        MalformedGossipError: the payload is too long, not a message, or has a field out of range.
    """
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise MalformedGossipError(
            f"the payload of a gossip datagram may have at most {PAYLOAD_BYTES_MAX} bytes, got {len(payload)}"
        )
    try:
        message = pb.Gossip.FromString(payload)
        if len(message.cluster_id) != CLUSTER_ID_BYTES:
            raise MalformedGossipError(
                f"a cluster id must have {CLUSTER_ID_BYTES} bytes, got {len(message.cluster_id)}"
            )
        _check_text("sender", message.sender, NODE_ID_BYTES_MAX)
        if message.incarnation == 0 or message.counter == 0:
            raise MalformedGossipError(
                f"the sender's incarnation and counter must be >= 1, got {message.incarnation} and {message.counter}"
            )
        return Datagram(
            cluster_id=message.cluster_id,
            sender=message.sender,
            incarnation=message.incarnation,
            counter=message.counter,
            digest=message.digest,
            body=_body(message),
            members=tuple(_unpacked(packed.SerializeToString()) for packed in message.members),
        )
    except (DecodeError, ValueError) as error:
        raise MalformedGossipError(str(error)) from error


def _body(message: pb.Gossip) -> Body | None:
    kind = message.WhichOneof("body")
    if kind is None:
        return None
    sequence = getattr(message, kind).sequence
    if not sequence:
        raise MalformedGossipError(f"the sequence number of a {kind} must be >= 1, got 0")
    if kind == "ping":
        _check_text("target", message.ping.target or "-", NODE_ID_BYTES_MAX)
        return Ping(sequence, message.ping.target)
    if kind == "ping_request":
        _check_text("target", message.ping_request.target, NODE_ID_BYTES_MAX)
        return PingRequest(sequence, message.ping_request.target)
    return Ack(sequence) if kind == "ack" else Nack(sequence)


@lru_cache(maxsize=4096)
def _packed(member: Member) -> pb.GossipMember:
    """Return a record as a message; it is cached and must not be modified."""
    return pb.GossipMember(
        node_id=member.node_id,
        incarnation=member.incarnation,
        refutation=member.refutation,
        state=cast("pb.GossipState", int(member.state)),
        host=member.host,
        port=member.port,
        gossip_host=member.gossip.host,
        gossip_port=member.gossip.port,
        zone=member.zone,
        roles=member.roles.value,
        weight=member.weight,
    )


@lru_cache(maxsize=4096)
def _unpacked(record: bytes) -> Member:
    """Parse and check a record; the results are cached, because most datagrams repeat records."""
    packed = pb.GossipMember.FromString(record)
    member = Member(
        node_id=packed.node_id,
        incarnation=packed.incarnation,
        host=packed.host,
        port=packed.port,
        gossip=Address(packed.gossip_host, packed.gossip_port),
        zone=packed.zone,
        roles=Role(packed.roles),
        weight=packed.weight,
        refutation=packed.refutation,
        state=MemberState(packed.state),
    )
    check_member(member)
    return member


def _check_text(what: str, text: str, bytes_max: int) -> None:
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if not 1 <= size_bytes <= bytes_max or not text.isprintable():
        raise ValueError(
            f"{what} must be 1 to {bytes_max} bytes of printable text, got {size_bytes} bytes: {text[:80]!r}"
        )
