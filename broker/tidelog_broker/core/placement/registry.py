"""The registered nodes of the cluster, as defined by the node records of `__meta`.

A node is registered while its record exists, also while it is down: the number of copies depends on the registered
nodes, gossip only reports which of them are alive. The highest revision of a node id wins, independent of the order of
replay. A removal is final; a node that returns needs a new id. Founders' records come from the bootstrap file with
revision 0, because `__meta` has no owner before the founders have agreed on one.

A node announces its own properties (address, zone, weight, roles, incarnation, engines, features); operators drain and
remove nodes. `announced`, `drained` and `removed` return the next revision for the owner of `__meta` to write. In
`__meta` the records are wrapped in `MetaRecord`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from tidelog_broker.core.incarnation import is_foreign
from tidelog_broker.core.placement.placement import WEIGHT_MAX, NodeEntry, Role
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

NODES_MAX: Final = 1024
"""Maximum number of registered nodes. Gossip, and the rendezvous hash of each partition, iterate over all of them."""

NODE_ID_CHARS_MAX: Final = 200
ZONE_CHARS_MAX: Final = 200
_HOST_CHARS_MAX: Final = 253
FEATURES_MAX: Final = 256
FEATURE_CHARS_MAX: Final = 100
ENGINES_MAX: Final = 64
ENGINE_CHARS_MAX: Final = 64
DIRECTORY_ID_BYTES: Final = 16

_ROLES: Final = ((pb.INGESTION, Role.INGESTION), (pb.PERSISTENCE, Role.PERSISTENCE))


class NodeRegistry:
    """Nodes by id, up to the applied position of `__meta`."""

    def __init__(self) -> None:
        self.version = 0
        """Incremented by every change."""
        self._by_id: dict[str, pb.NodeRecord] = {}
        self._entries: list[NodeEntry] | None = None

    def apply(self, record: pb.NodeRecord) -> bool:
        """Apply a durable record or a founder's record; return whether it changed anything."""
        current = self._by_id.get(record.node_id)
        if current is not None and (current.removed or current.revision >= record.revision):
            return False
        stored = pb.NodeRecord()
        stored.CopyFrom(record)
        self._by_id[record.node_id] = stored
        self.version += 1
        self._entries = None
        return True

    def get(self, node_id: str) -> pb.NodeRecord | None:
        """Return the record of a node, also of a removed one; None for an unknown id."""
        return self._by_id.get(node_id)

    def live(self) -> list[pb.NodeRecord]:
        """Return the registered nodes, running or not, sorted by id."""
        return [record for _, record in sorted(self._by_id.items()) if not record.removed]

    def records(self) -> Iterator[pb.NodeRecord]:
        """Yield all records, removals included, for a snapshot."""
        yield from self._by_id.values()

    def entries(self) -> Sequence[NodeEntry]:
        """Return the registered nodes for placement; nodes with the same host share a machine."""
        if self._entries is None:  # cached: called once per partition in a takeover
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
        """Return the live nodes that may get copies and ownership: registered and not draining."""
        return frozenset(record.node_id for record in self.live() if record.node_id in alive and not record.draining)

    def announced(self, announced: pb.NodeRecord) -> pb.NodeRecord | None:
        """Return the record to write for an announcement; None if it changes nothing.

        Args:
            announced: the announced record; `revision`, `removed` and `draining` are ignored.

        Raises:
            ProtocolError: INVALID_REQUEST for an invalid field, FORBIDDEN if the node was removed or its id belongs to
                another directory or process, OVERLOADED if there are too many nodes.
        """
        check_node(announced)
        current = self._by_id.get(announced.node_id)
        if current is None and len(self.live()) >= NODES_MAX:
            raise ProtocolError(
                pb.OVERLOADED,
                f"cannot register node {announced.node_id!r}: {NODES_MAX} nodes are registered, the maximum; remove "
                "one with: tidelog cluster remove NODE",
            )
        fault = identity_fault(
            announced.node_id, announced.incarnation, announced.directory_id, is_new=False, known=current
        )
        if fault:
            raise ProtocolError(pb.FORBIDDEN, fault)
        record = pb.NodeRecord()
        record.CopyFrom(announced)
        record.removed = False
        record.draining = current.draining if current is not None else False
        record.revision = current.revision if current is not None else 0
        if record == current and record.revision > 0:
            return None
        record.revision += 1
        return record

    def drained(self, node_id: str, *, draining: bool) -> pb.NodeRecord:
        """Return the record that sets the draining state of a node.

        Raises:
            ProtocolError: INVALID_REQUEST if the node does not exist.
        """
        record = self._next(node_id)
        record.draining = draining
        return record

    def removed(self, node_id: str) -> pb.NodeRecord:
        """Return the record that permanently removes a node.

        Raises:
            ProtocolError: INVALID_REQUEST if the node does not exist, or no other node stores copies.
        """
        record = self._next(node_id)
        rest = [entry for entry in self.entries() if entry.node_id != node_id]
        if not any(Role.PERSISTENCE in entry.roles for entry in rest):
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"cannot remove node {node_id!r}: no other node has the role persistence; add a node with that role "
                "first",
            )
        record.removed = True
        return record

    def _next(self, node_id: str) -> pb.NodeRecord:
        current = self._by_id.get(node_id)
        if current is None or current.removed:
            known = ", ".join(record.node_id for record in self.live()[:20]) or "none"
            raise ProtocolError(pb.INVALID_REQUEST, f"node {node_id!r} does not exist; registered nodes: {known}")
        record = pb.NodeRecord()
        record.CopyFrom(current)
        record.revision += 1
        return record


def removal(node_id: str) -> str:
    """Return the message for a node that was removed."""
    return f"node {node_id!r} was removed from the cluster; start it with --replace in an empty directory"


def identity_fault(
    node_id: str, incarnation: int, directory_id: bytes, *, is_new: bool, known: pb.NodeRecord | None
) -> str:
    """Return the reason, for the operator, why a node must not take part under this id; empty if it may.

    Detects a wiped disk: its node has lost promises, and its votes could lose acknowledged records. A node therefore
    asks before its first vote and before it marks its directory as admitted.

    Args:
        node_id: id that the node claims.
        is_new: the directory was created empty and has not been admitted since.
        known: the registered record of that id; None for a new id. A record of the bootstrap file has incarnation
            0, and one of an early version has an empty directory id until the node's next announcement.
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
            f"a later start of node {node_id!r} is registered: another process uses this id, or the data directory is "
            "an old copy; stop the other process, or start this one with --replace in an empty directory"
        )
    return ""


def _another_directory(node_id: str, *, is_new: bool) -> str:
    what = (
        f"new, but node {node_id!r} is registered with another one"
        if is_new
        else f"not the one with which node {node_id!r} is registered"
    )
    return (
        f"the data directory is {what}: start the node with the registered directory or, if that is lost, with "
        "--replace, which gives the node a new id"
    )


def check_node(record: pb.NodeRecord) -> None:
    """Refuse a record that cannot be registered.

    Raises:
        ProtocolError: INVALID_REQUEST, naming the field.
    """
    _text("node_id", record.node_id, NODE_ID_CHARS_MAX)
    node = f"node {record.node_id!r}"
    _text(f"host of {node}", record.host, _HOST_CHARS_MAX)
    _text(f"gossip_host of {node}", record.gossip_host, _HOST_CHARS_MAX)
    _text(f"zone of {node}", record.zone, ZONE_CHARS_MAX)
    _within(f"port of {node}", record.port, 1, 65535)
    _within(f"gossip_port of {node}", record.gossip_port, 1, 65535)
    _within(f"weight of {node}", record.weight, 1, WEIGHT_MAX)
    if not roles_from(record.roles) or [*record.roles] != roles_to(roles_from(record.roles)):
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"roles of {node} must be [{pb.INGESTION}] (ingestion), [{pb.PERSISTENCE}] (persistence) or "
            f"[{pb.INGESTION}, {pb.PERSISTENCE}] (both), got {[*record.roles]}",
        )
    if record.incarnation == 0:
        raise ProtocolError(pb.INVALID_REQUEST, f"incarnation of {node} must be > 0, got 0")
    if len(record.features) > FEATURES_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"{node} may announce at most {FEATURES_MAX} features, got {len(record.features)}"
        )
    for name in (*record.features, *([record.software] if record.software else [])):
        _text(f"a feature or version of {node}", name, FEATURE_CHARS_MAX)
    if len(record.engines) > ENGINES_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"{node} may announce at most {ENGINES_MAX} engines, got {len(record.engines)}"
        )
    for name in record.engines:
        _text(f"an engine of {node}", name, ENGINE_CHARS_MAX)
    if len(record.directory_id) not in {0, DIRECTORY_ID_BYTES}:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"directory_id of {node} must be empty or have {DIRECTORY_ID_BYTES} bytes, got {len(record.directory_id)}",
        )


def roles_from(values: Collection[int]) -> Role:
    """Return the roles of a record; unknown roles of a later version are ignored."""
    roles = Role(0)
    for value, role in _ROLES:
        if value in values:
            roles |= role
    return roles


def roles_to(roles: Role) -> list[pb.NodeRole]:
    """Return roles as stored in a record, in ascending order."""
    assert roles
    return [value for value, role in _ROLES if role in roles]


def wrapped(record: pb.NodeRecord) -> pb.MetaRecord:
    """Return a node record as a record of `__meta`."""
    return pb.MetaRecord(node=record)


def _text(name: str, value: str, chars_max: int) -> None:
    if not 1 <= len(value) <= chars_max or not value.isprintable():
        raise ProtocolError(
            pb.INVALID_REQUEST, f"{name} must be 1 to {chars_max} printable characters, got {value[:80]!r}"
        )


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ProtocolError(pb.INVALID_REQUEST, f"{name} must be {low} to {high}, got {value}")
