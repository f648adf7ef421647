"""Features of topic and security records, by which nodes of different builds know which records they can apply.

A feature is a setting, or a value of one, that an older build would ignore: for example, an older build would own a
partition and keep duplicates. Each node announces the features that it supports in its record; a build that announces
none supports the base set, whose features have no names. A record of `__meta` lists the features that a node needs to
apply it. So records reach only nodes that apply them correctly:

- The owner of `__meta` refuses a record that needs a feature which a registered node lacks.
- It refuses to register a node that lacks a feature which existing records need.
- A node that reads a record which needs a feature that it lacks stops, and does not serve the topic.
- The owner of `__meta` refuses a record that needs a feature of a higher level than the cluster's (`metadata.levels`).

Rejected: comparing versions, since builds between releases have the same one. Rejected: placing partitions only on
nodes with the features of their topic, since every node routes requests and enforces rules and quotas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from tidelog_broker.core.placement.registry import NodeRegistry
from tidelog_broker.core.security.registry import SecurityRegistry
from tidelog_broker.core.topics import TopicRegistry
from tidelog_broker.core.unknown_fields import unknown_fields
from tidelog_broker.metadata.levels import (
    GROUP_QUOTAS,
    IMPERSONATE,
    LEVELS,
    USERS,
    LevelState,
    features_up_to,
    supported_by,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.topic_settings import TYPED, needed_features

FEATURES: Final = features_up_to(LEVELS[-1].number)
"""The features that this build supports in addition to the base set."""

QUOTA_BASE: Final = frozenset({
    "quota_id",
    "subject",
    "produce_bytes",
    "consume_bytes",
    "requests",
    "connections",
    "in_flight_bytes",
    "topics",
    "partitions",
})  # fmt: skip
QUOTA_FEATURES: Final = {"groups": GROUP_QUOTAS}
SECURITY_BASE: Final = frozenset({"api_key", "rule", "quota"})
SECURITY_FEATURES: Final = {"user": USERS, "scram_secret": USERS}
OPERATION_FEATURES: Final = {pb.OP_IMPERSONATE: IMPERSONATE}

Record = pb.TopicRecord | pb.SecurityRecord | pb.SchemaRecord


def needed_by(record: Record) -> frozenset[str]:
    """Return the features that a node needs to apply a record; a deletion needs none.

    A field that this build does not know counts as a missing feature, named by its number.
    """
    if isinstance(record, pb.SchemaRecord):
        return frozenset({*record.features, *unknown_fields(record), TYPED})
    if record.deleted:
        return frozenset()
    needed = set(record.features)
    if isinstance(record, pb.TopicRecord):
        needed.update(unknown_fields(record.config))
        needed.update(needed_features(record.config))
        return frozenset(needed)
    needed.update(unknown_fields(record))
    what = record.WhichOneof("what")
    if what in SECURITY_FEATURES:
        needed.add(SECURITY_FEATURES[what])
    needed.update(name for field, name in QUOTA_FEATURES.items() if record.quota.HasField(field))
    needed.update(name for operation, name in OPERATION_FEATURES.items() if operation in record.rule.operations)
    return frozenset(needed)


class FeatureGate:
    """Checks the features that records of `__meta` need against those of this node and the registered nodes.

    Attributes:
        supported_level: the highest feature level that this node supports.
        level: the cluster's feature level.
    """

    def __init__(
        self, own: Collection[str], *, topics: TopicRegistry, nodes: NodeRegistry, security: SecurityRegistry
    ) -> None:
        self.own = frozenset(own)
        self.supported_level = supported_by(self.own)
        self.level = LevelState()
        self._topics = topics
        self._nodes = nodes
        self._security = security

    def in_use(self) -> dict[str, str]:
        """Return the features in use, each with the name of a record that needs the feature, for messages."""
        used = dict.fromkeys(self.level.record.features, f"feature level {self.level.number}")
        for record in self._existing_records():
            for name in sorted(needed_by(record)):
                used.setdefault(name, called(record))
        return used

    def admit(self, record: Record) -> None:
        """Set the features of a new revision, and check that every registered node supports them.

        Raises:
            ProtocolError: see `check`.
        """
        del record.features[:]
        record.features.extend(sorted(needed_by(record)))
        self.check(record)

    def check(self, record: Record) -> None:
        """Check that every registered node supports the features of a new revision.

        The node that receives a request checks them too, because the owner of `__meta` may be an older build that does
        not. Features of the current revision are not checked again, so that the record can still be changed.

        Raises:
            ProtocolError: INVALID_REQUEST with the node or the level; EPOCH_CHANGING for a founder that is not
                registered yet.
        """
        needed = needed_by(record)
        current = self._revision_before(record)
        added = needed if current is None else needed - needed_by(current)
        if not added:
            return
        self._refuse_unsupported(added, called(record))
        self._refuse_above_level(added, called(record))

    def finalized(self) -> pb.ClusterLevel | None:
        """Return the record that raises the level to the highest of this build; None if the level is not lower.

        Raises:
            ProtocolError: as `check`, about a node that does not support that level.
        """
        number = self.supported_level
        if number <= self.level.number:
            return None
        self._refuse_unsupported(features_up_to(number), f"feature level {number}")
        return self.level.raised_to(number)

    def founding_level(self) -> pb.ClusterLevel | None:
        """Return the record that sets a new cluster to the level of this build; None if that level needs no record."""
        number = self.supported_level
        return self.level.raised_to(number) if number > self.level.number else None

    def _refuse_above_level(self, added: frozenset[str], what: str) -> None:
        """Refuse features of a higher level than the cluster's, unless an existing record needs them already."""
        above = {name: each.number for each in LEVELS if each.number > self.level.number for name in each.features}
        refused = added & above.keys()
        if refused and (refused := refused - self.in_use().keys()):
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{what} needs {_joined(refused)} of feature level {max(above[name] for name in refused)}, and the "
                f"cluster is at level {self.level.number}: run `tidelog cluster finalize`; nodes cannot go back to an "
                "earlier build after that",
            )

    def _refuse_unsupported(self, added: frozenset[str], what: str) -> None:
        """Refuse features that a registered node lacks."""
        for node in self._nodes.live():
            lacked = added - frozenset(node.features)
            if not lacked:
                continue
            if node.incarnation == 0:
                raise ProtocolError(
                    pb.EPOCH_CHANGING,
                    f"{what} needs {_joined(lacked)}, and founder {node.node_id!r} has not announced its "
                    "features yet; start it, or remove it from the cluster",
                )
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{what} needs {_joined(lacked)}, which node {node.node_id!r} ({_software(node)}) does "
                "not support and would ignore; upgrade that node, or drain and remove it from the cluster",
            )

    def fault_of(self, announced: pb.NodeRecord) -> str:
        """Return why a node must not be registered, for its operator; empty if it supports the features in use."""
        in_use = self.in_use()
        lacked = in_use.keys() - announced.features
        if not lacked:
            return ""
        return (
            f"node {announced.node_id!r} ({_software(announced)}) does not support {_joined(lacked)}, in use by "
            f"{in_use[min(lacked)]}; start it with a newer build"
        )

    def fault_of_features(self, in_use: Collection[str]) -> str:
        """Return why this node must not join a cluster that uses features; empty if it supports them."""
        lacked = frozenset(in_use) - self.own
        if not lacked:
            return ""
        return (
            f"the cluster uses {_joined(lacked)}, which this build does not support; start the node with a newer build"
        )

    def fault_of_record(self, record: Record) -> str:
        """Return why this node must stop after reading a record; empty if it supports the record's features."""
        lacked = needed_by(record) - self.own
        if not lacked:
            return ""
        return (
            f"{called(record)} needs {_joined(lacked)}, which this build does not support; start the node with a newer "
            "build"
        )

    def fault_of_level(self, record: pb.ClusterLevel) -> str:
        """Return why this node must stop in a cluster of a level; empty if it supports the level's features."""
        lacked = frozenset(record.features) | frozenset(unknown_fields(record))
        lacked -= self.own
        if not lacked:
            return ""
        return (
            f"the cluster is at feature level {record.level}, which needs {_joined(lacked)}, and this build does not "
            "support that; start the node with a newer build"
        )

    def _existing_records(self) -> Iterator[Record]:
        yield from self._topics.live()
        yield from self._security.records()

    def _revision_before(self, record: Record) -> Record | None:
        if isinstance(record, pb.TopicRecord):
            return self._topics.get(record.topic_id)
        if isinstance(record, pb.SchemaRecord):
            return None
        return self._security.get(record.id)


def called(record: Record) -> str:
    """Return a record's name for messages, without principals."""
    if isinstance(record, pb.SchemaRecord):
        return f"schema {record.schema.number} of the topic with id {record.topic_id.hex()}"
    return f"topic {record.name!r}" if isinstance(record, pb.TopicRecord) else f"security record {record.id!r}"


def _software(node: pb.NodeRecord) -> str:
    return node.software or "an older build without a version"


def _joined(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
