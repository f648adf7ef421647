"""The nodes of the cluster: what the records of nodes in `__meta` add up to.

A node is registered when its record stands in `__meta`, and stays so while it is down: how many copies there are
follows from who is registered, and gossip says only who is alive. As with topics the highest revision about one id
holds, so the order of a replay does not matter; a removal is final, and a node that comes back gets a new id. The
founders' records come from the bootstrap file with revision 0, because `__meta` cannot be written before some of
them have agreed who owns it.

A node writes about itself (address, zone, weight, roles, incarnation, features); an operator drains and removes.
`announced`, `drained` and `removed` make the next revision of each, for the owner of `__meta` to write. In `__meta` the
records of nodes are wrapped, see `MetaRecord`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from tidelog_broker.core.incarnation import is_foreign
from tidelog_broker.core.placement.placement import WEIGHT_MAX, NodeEntry, Role
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

NODES_MAX: Final = 1024
"""Nodes that are registered and not removed. Gossip and the rendezvous hash of each partition visit all of them."""

NODE_ID_CHARS_MAX: Final = 200
ZONE_CHARS_MAX: Final = 200
_HOST_CHARS_MAX: Final = 253
FEATURES_MAX: Final = 256
FEATURE_CHARS_MAX: Final = 100
DIRECTORY_ID_BYTES: Final = 16

_ROLES: Final = ((pb.INGESTION, Role.INGESTION), (pb.PERSISTENCE, Role.PERSISTENCE))


class NodeRegistry:
    """Nodes by id, as far as `__meta` has been applied."""

    def __init__(self) -> None:
        self.version = 0
        """Rises with every change."""
        self._by_id: dict[str, pb.NodeRecord] = {}
        self._entries: list[NodeEntry] | None = None

    def apply(self, record: pb.NodeRecord) -> bool:
        """Take a durable record, or a founder's; return whether it changed anything."""
        standing = self._by_id.get(record.node_id)
        if standing is not None and (standing.removed or standing.revision >= record.revision):
            return False
        kept = pb.NodeRecord()
        kept.CopyFrom(record)
        self._by_id[record.node_id] = kept
        self.version += 1
        self._entries = None
        return True

    def get(self, node_id: str) -> pb.NodeRecord | None:
        """Return a node's record, also when it was removed; None when there never was one."""
        return self._by_id.get(node_id)

    def live(self) -> list[pb.NodeRecord]:
        """Return the registered nodes by id, without those that were removed. Whether they run is another matter."""
        return [record for _, record in sorted(self._by_id.items()) if not record.removed]

    def records(self) -> Iterator[pb.NodeRecord]:
        """Yield everything that stands, removals included: a snapshot."""
        yield from self._by_id.values()

    def entries(self) -> Sequence[NodeEntry]:
        """Return the registered nodes as placement wants them; nodes with one host share a machine."""
        if self._entries is None:  # a thousand partitions that lose their owner ask a thousand times
            self._entries = [
                NodeEntry(
                    record.node_id,
                    record.zone,
                    record.weight,
                    roles_from(record.roles),
                    record.incarnation,
                    machine=record.host,
                )
                for record in self.live()
            ]
        return self._entries

    def available(self, alive: Collection[str]) -> frozenset[str]:
        """Return which of the nodes that are alive may get copies and ownership: registered and not draining."""
        return frozenset(record.node_id for record in self.live() if record.node_id in alive and not record.draining)

    def announced(self, said: pb.NodeRecord) -> pb.NodeRecord | None:
        """Return what to write when a node says this about itself; None when it stands already.

        Args:
            said: its `revision`, `removed` and `draining` are not the node's to say and count for nothing.

        Raises:
            ProtocolError: INVALID_REQUEST when a field cannot be, FORBIDDEN when the identity is not this node's
                (any more), OVERLOADED when there are as many nodes as there may be.
        """
        check_node(said)
        standing = self._by_id.get(said.node_id)
        if standing is None and len(self.live()) >= NODES_MAX:
            raise ProtocolError(pb.OVERLOADED, f"there are {NODES_MAX} nodes already; remove one first")
        fault = identity_fault(said.node_id, said.incarnation, said.directory_id, is_new=False, known=standing)
        if fault:
            raise ProtocolError(pb.FORBIDDEN, fault)
        record = pb.NodeRecord()
        record.CopyFrom(said)
        record.removed = False
        record.draining = standing.draining if standing is not None else False
        record.revision = standing.revision if standing is not None else 0
        if record == standing and record.revision > 0:
            return None
        record.revision += 1
        return record

    def drained(self, node_id: str, *, draining: bool) -> pb.NodeRecord:
        """Return the record by which a node is drained, or not any more.

        Raises:
            ProtocolError: INVALID_REQUEST when there is no such node.
        """
        record = self._next(node_id)
        record.draining = draining
        return record

    def removed(self, node_id: str) -> pb.NodeRecord:
        """Return the record by which a node leaves the cluster for good.

        Raises:
            ProtocolError: INVALID_REQUEST when there is no such node, or when no node that stores copies would be left.
        """
        record = self._next(node_id)
        rest = [entry for entry in self.entries() if entry.node_id != node_id]
        if not any(Role.PERSISTENCE in entry.roles for entry in rest):
            raise ProtocolError(pb.INVALID_REQUEST, f"{node_id!r} is the last node that stores copies")
        record.removed = True
        return record

    def _next(self, node_id: str) -> pb.NodeRecord:
        standing = self._by_id.get(node_id)
        if standing is None or standing.removed:
            known = ", ".join(record.node_id for record in self.live()[:20]) or "none"
            raise ProtocolError(pb.INVALID_REQUEST, f"there is no node {node_id!r}; there are: {known}")
        record = pb.NodeRecord()
        record.CopyFrom(standing)
        record.revision += 1
        return record


def removal(node_id: str) -> str:
    """Return what to say to a node that was removed."""
    return f"the node {node_id!r} was removed from the cluster; start with --replace in an empty directory"


def identity_fault(
    node_id: str, incarnation: int, directory_id: bytes, *, is_new: bool, known: pb.NodeRecord | None
) -> str:
    """Return why a node must not take part under this id, for its operator; empty when it may.

    This is how a wiped disk is found: its node has forgotten what it promised, and an answer from it could lose
    acknowledged records. So a node asks before its first vote and before it marks its directory as admitted.

    Args:
        node_id: what it calls itself.
        incarnation: this life of it.
        directory_id: of its data directory.
        is_new: its directory was made empty and no cluster has admitted it since.
        known: the cluster's record about that id; one from the bootstrap file has the incarnation 0, and one from
            before directories had ids has none: the node's next announcement adds it.
    """
    if known is None:
        return ""
    if known.removed:
        return removal(node_id)
    if known.directory_id and known.directory_id != directory_id:
        return _another_directory(node_id, is_new=is_new)
    if known.incarnation == 0:
        return ""
    if is_new and not known.directory_id and known.incarnation != incarnation:
        return _another_directory(node_id, is_new=True)
    if is_foreign(incarnation, known.incarnation):
        return (
            f"the cluster has seen a later life of the node {node_id!r}: another process runs under this id, or the "
            "data directory is an old copy; stop the other one, or start with --replace in an empty directory"
        )
    return ""


def _another_directory(node_id: str, *, is_new: bool) -> str:
    what = "is new, but the cluster knows" if is_new else "is not the one in which the cluster knows"
    return (
        f"the data directory {what} a node {node_id!r} with data: give it that node's directory, or start with "
        "--replace for a new id"
    )


def check_node(record: pb.NodeRecord) -> None:
    """Refuse a node that cannot be registered.

    Raises:
        ProtocolError: INVALID_REQUEST, naming the field.
    """
    _text("node_id", record.node_id, NODE_ID_CHARS_MAX)
    _text("host", record.host, _HOST_CHARS_MAX)
    _text("gossip_host", record.gossip_host, _HOST_CHARS_MAX)
    _text("zone", record.zone, ZONE_CHARS_MAX)
    _within("port", record.port, 1, 65535)
    _within("gossip_port", record.gossip_port, 1, 65535)
    _within("weight", record.weight, 1, WEIGHT_MAX)
    if not roles_from(record.roles) or [*record.roles] != roles_to(roles_from(record.roles)):
        raise ProtocolError(pb.INVALID_REQUEST, "a node's roles are ingestion, persistence or both, in that order")
    if record.incarnation == 0:
        raise ProtocolError(pb.INVALID_REQUEST, "the announcement of a node has no incarnation")
    if len(record.features) > FEATURES_MAX:
        raise ProtocolError(pb.INVALID_REQUEST, f"a node announces at most {FEATURES_MAX} features")
    for name in (*record.features, *([record.software] if record.software else [])):
        _text("a feature or version", name, FEATURE_CHARS_MAX)
    if len(record.directory_id) not in {0, DIRECTORY_ID_BYTES}:
        raise ProtocolError(pb.INVALID_REQUEST, f"a data directory's id has {DIRECTORY_ID_BYTES} bytes")


def roles_from(values: Collection[int]) -> Role:
    """Return the roles of a record; those of a later version count for nothing here."""
    roles = Role(0)
    for value, role in _ROLES:
        if value in values:
            roles |= role
    return roles


def roles_to(roles: Role) -> list[pb.NodeRole]:
    """Return roles as a record keeps them, ascending."""
    assert roles
    return [value for value, role in _ROLES if role in roles]


def wrapped(record: pb.NodeRecord) -> pb.MetaRecord:
    """Return a node's record as it is written to `__meta`."""
    return pb.MetaRecord(node=record)


def _text(name: str, value: str, chars_max: int) -> None:
    if not 1 <= len(value) <= chars_max or not value.isprintable():
        raise ProtocolError(pb.INVALID_REQUEST, f"{name} is 1 to {chars_max} printable characters, not {value[:80]!r}")


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ProtocolError(pb.INVALID_REQUEST, f"{name} is {value}; it lies between {low} and {high}")
