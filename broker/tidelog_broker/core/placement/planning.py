"""Plans of a partition's next epoch, from the settings of its topic and the registered nodes.

Pure functions of the registry and of liveness, so nodes with the same information make the same plan. A *takeover*
plans the epoch that this node opens after a failure; this node owns it if possible, because another owner would first
have to receive the decision. A *move* (draining, rebalancing) plans the placement that is computed from the registry.
`handover_plan` names the replica that follows a node that stops, `replacement_plan` replaces a lagging replica by a
spare node, and `ingestion_owner_plan` transfers ownership from a node that merely stores copies to a replica with
INGESTION.

The number of copies depends on the topic and the registered nodes, never on the live ones: a quorum that shrank with
every failure would guarantee nothing. If too few nodes of the computed placement are alive for a quorum, and enough of
the active placement are, a takeover keeps the active placement: dead nodes without a copy must not stop the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from tidelog_broker.core.placement.placement import (
    BOTH_ROLES,
    NodeEntry,
    NoPersistenceError,
    PlacedPartition,
    Role,
    partition_key,
    place,
    place_with_owner,
    rebalance_plan,
    successor,
    takeover_rank,
)
from tidelog_broker.core.replication.paxos import seal_quorum
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.topic_settings import DEFAULT_ENGINE, MEMORY_ASYNC, MEMORY_ENGINE, SHARED_FILES_ENGINE

BUILT_IN_ENGINES: Final = frozenset({"", DEFAULT_ENGINE, SHARED_FILES_ENGINE, MEMORY_ENGINE, MEMORY_ASYNC})
"""Engines that every node has, as in `pb.EpochDescriptor`. Nodes announce which others they have."""


class ReplicationSettings(NamedTuple):
    """Replication settings of a topic's partitions.

    Attributes:
        ack_quorum: 0: a majority of the copies.
        engine: as in `pb.EpochDescriptor`: empty for segments, with `flush=async` the variant of the memory engine.
    """

    replication_factor: int
    ack_quorum: int
    flush: pb.Flush
    engine: str = ""


def replication_settings(config: pb.TopicConfig) -> ReplicationSettings:
    """Return the replication settings in a topic's configuration."""
    engine = "" if config.engine == DEFAULT_ENGINE else config.engine
    if config.flush == pb.ASYNC:
        engine = MEMORY_ASYNC
    elif not engine and config.file_model == pb.SHARED:
        engine = SHARED_FILES_ENGINE
    return ReplicationSettings(max(config.replication_factor, 1), config.ack_quorum, config.flush or pb.ALWAYS, engine)


def current_replication_settings(active: pb.EpochDescriptor) -> ReplicationSettings:
    """Return replication settings equal to those of the active epoch, for a topic that is unknown or deleted."""
    return ReplicationSettings(
        max(len(active.placement), 1), active.ack_quorum, active.flush or pb.ALWAYS, active.engine
    )


def takeover_plan(
    node_id: str,
    key: PartitionKey,
    active: pb.EpochDescriptor,
    settings: ReplicationSettings,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
) -> Plan:
    """Return the epoch after `active` if `node_id` opens it.

    Args:
        alive: nodes that may get copies and ownership: live and not draining.
    """
    hashed = partition_key(*key)
    try:
        placed = place(
            hashed, nodes, replication_factor=settings.replication_factor, alive=alive, ack_quorum=settings.ack_quorum
        )
    except NoPersistenceError:  # No node with the role PERSISTENCE is registered, so the placement is kept.
        placement = tuple(active.placement) or (node_id,)
        owner = node_id if node_id in placement else placement[0]
        return Plan(
            owner, placement, min(max(active.ack_quorum, 1), len(placement)), settings.flush, engine=settings.engine
        )

    def owned(placement: Sequence[str], ack_quorum: int) -> Plan:
        roles = {node.node_id: node.roles for node in nodes}
        if node_id in placement and node_id in alive and Role.INGESTION in roles.get(node_id, Role(0)):
            owner = node_id
        else:
            owner = successor(hashed, nodes, alive=alive, placement=placement) or placement[0]
        return Plan(owner, tuple(placement), ack_quorum, settings.flush, engine=settings.engine)

    plan = owned(placed.nodes, placed.ack_quorum)
    if active.placement and not has_live_quorum(plan, alive=alive.__contains__):
        stays = owned(active.placement, min(max(active.ack_quorum, 1), len(active.placement)))
        if has_live_quorum(stays, alive=alive.__contains__):
            return stays
    return plan


def rank_of(
    node_id: str,
    key: PartitionKey,
    active: pb.EpochDescriptor,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
) -> int:
    """Return the number of live candidates before this node; a node that is not a candidate ranks last."""
    rank = takeover_rank(node_id, partition_key(*key), nodes, alive=alive, placement=active.placement)
    return len(active.placement) if rank is None else rank


def move_plan(
    key: PartitionKey,
    active: pb.EpochDescriptor,
    settings: ReplicationSettings,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
) -> Plan | None:
    """Return the epoch with the computed placement and the topic's settings; None if the active epoch has them already.

    If no node of the computed placement is alive, only changed settings are applied, to the active placement. None also
    if no registered node has PERSISTENCE. For the arguments see `takeover_plan`.
    """
    state = PlacedPartition(
        key[0],
        key[1],
        active.owner,
        tuple(active.placement),
        active.ack_quorum,
        settings.replication_factor,
        settings.ack_quorum,
    )
    try:
        moves = rebalance_plan([state], nodes, alive=alive)
    except NoPersistenceError:
        return None
    if moves:
        return Plan(
            moves[0].owner,
            moves[0].placement.nodes,
            moves[0].placement.ack_quorum,
            settings.flush,
            engine=settings.engine,
        )
    return settings_plan(active, settings)


def settings_plan(active: pb.EpochDescriptor, settings: ReplicationSettings) -> Plan | None:
    """Return the epoch with a topic's flush and engine on the nodes of the active one; None if that one has them."""
    if active.flush in {pb.FLUSH_UNSPECIFIED, settings.flush} and active.engine == settings.engine:
        return None
    return Plan(active.owner, tuple(active.placement), active.ack_quorum, settings.flush, engine=settings.engine)


def nodes_without_engine(
    active: pb.EpochDescriptor, settings: ReplicationSettings, has_engine: Callable[[str, str], bool]
) -> list[str]:
    """Return the nodes of the active epoch that could not store records of a topic's engine, another than it has.

    Args:
        has_engine: returns whether a node, given by its id, has an engine, given by its name.
    """
    engine = settings.engine
    if engine == active.engine or engine in BUILT_IN_ENGINES:
        return []
    return [node for node in active.placement if not has_engine(node, engine)]


def has_live_quorum(plan: Plan, *, alive: Callable[[str], bool]) -> bool:
    """Return whether enough nodes of a plan are alive to write to its epoch, and to seal it later.

    Args:
        alive: returns whether a node is alive; a draining node is, and keeps storing its copy.
    """
    needed = max(plan.ack_quorum, seal_quorum(len(plan.placement), plan.ack_quorum))
    return sum(1 for node in plan.placement if alive(node)) >= needed


def handover_plan(
    node_id: str,
    key: PartitionKey,
    active: pb.EpochDescriptor,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
    lagging: Collection[str] = (),
) -> Plan | None:
    """Return the epoch that transfers ownership from a stopping node to another replica; None if no replica can own it.

    The placement does not change: most nodes that stop restart soon, and a new copy would transfer the whole log.

    Args:
        node_id: the node that stops.
        active: the active epoch, owned by `node_id`.
        alive: nodes that may get ownership.
        lagging: replicas that lack records, used only if no other replica can own the partition.
    """
    hashed, heirs = partition_key(*key), frozenset(alive) - {node_id}
    for candidates in (heirs.difference(lagging), heirs):
        owner = successor(hashed, nodes, alive=candidates, placement=active.placement)
        if owner is not None:
            return _owned_by(owner, active)
    return None


def preferred_owner_plan(
    key: PartitionKey, active: pb.EpochDescriptor, nodes: Sequence[NodeEntry], *, alive: Collection[str]
) -> Plan | None:
    """Return the epoch in which the preferred replica owns the partition.

    None if that replica owns it already, or no replica can own it.

    For the arguments see `takeover_plan`.
    """
    owner = successor(partition_key(*key), nodes, alive=alive, placement=active.placement)
    if owner in {None, active.owner}:
        return None
    assert owner is not None
    return _owned_by(owner, active)


def ingestion_owner_plan(
    key: PartitionKey,
    active: pb.EpochDescriptor,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
    lagging: Collection[str] = (),
) -> Plan | None:
    """Return the epoch that transfers ownership from a node without INGESTION to a replica with that role.

    None if the owner has the role, or no such replica can take over immediately. The placement does not change.

    Args:
        alive: nodes that may get ownership.
        lagging: replicas that lack records.
    """
    able = _owner_capable(nodes)
    if active.owner in able:
        return None
    heir = successor(
        partition_key(*key), nodes, alive=able.intersection(alive).difference(lagging), placement=active.placement
    )
    if heir is None:
        return None
    return _owned_by(heir, active)


def replacement_plan(
    key: PartitionKey,
    active: pb.EpochDescriptor,
    settings: ReplicationSettings,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
    without: str,
) -> Plan | None:
    """Return the epoch in which a spare node replaces the replica `without`; None without a spare node.

    The owner and the other replicas do not change.

    Args:
        alive: nodes that may get a copy.
        without: one of the epoch's replicas, but not its owner.
    """
    rest = frozenset(alive) - {without}
    try:
        placed = place(
            partition_key(*key),
            nodes,
            replication_factor=max(settings.replication_factor, 1 + len(active.placement)),
            alive=rest,
        )
    except NoPersistenceError:
        return None
    spare = next((node for node in placed.nodes if node in rest and node not in active.placement), None)
    if spare is None:
        return None
    placement = tuple(spare if node == without else node for node in active.placement)
    return Plan(active.owner, placement, active.ack_quorum, settings.flush, engine=settings.engine)


def lacks_copies(
    active: pb.EpochDescriptor, settings: ReplicationSettings, nodes: Sequence[NodeEntry], *, alive: Collection[str]
) -> bool:
    """Return whether a partition has fewer copies than possible, and live nodes could store all of them.

    If the topic wants more than two copies, a second one without a third is not created: writes would depend on both.
    """
    storing = [node.node_id for node in nodes if Role.PERSISTENCE in node.roles]
    copies = min(settings.replication_factor, len(storing))
    if copies == 2 < settings.replication_factor:
        return False
    return len(active.placement) < copies <= sum(1 for node in storing if node in alive)


def lacks_owner(active: pb.EpochDescriptor, nodes: Sequence[NodeEntry], *, alive: Collection[str]) -> bool:
    """Return whether no replica, dead or alive, has the roles of an owner, and a live node has them."""
    able = _owner_capable(nodes)
    return able.isdisjoint(active.placement) and not able.isdisjoint(alive)


def first_epoch(
    key: PartitionKey,
    settings: ReplicationSettings,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
    incarnation: Callable[[str], int],
) -> pb.EpochDescriptor:
    """Return epoch 0 of a new partition, owned by the preferred live node of its placement, if one is alive.

    Raises:
        NoPersistenceError: no registered node stores copies.
    """
    (epoch,) = first_epochs(key[0], range(key[1], key[1] + 1), settings, nodes, alive=alive, incarnation=incarnation)
    return epoch


def first_epochs(
    topic_id: bytes,
    partitions: Sequence[int],
    settings: ReplicationSettings,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
    incarnation: Callable[[str], int],
) -> list[pb.EpochDescriptor]:
    """Return epoch 0 of new partitions of a topic, as `first_epoch` does.

    Partitions with equal placements and owners share one message, since a hundred thousand partitions have few distinct
    ones. A single node is not ranked again for each partition.

    Raises:
        NoPersistenceError: no registered node stores copies.
    """
    made: dict[tuple[tuple[str, ...], str], pb.EpochDescriptor] = {}
    epochs: list[pb.EpochDescriptor] = []
    for index in partitions:
        if len(nodes) == 1 and epochs:
            epochs.append(epochs[0])
            continue
        placed, owner = place_with_owner(
            partition_key(topic_id, index),
            nodes,
            replication_factor=settings.replication_factor,
            alive=alive,
            ack_quorum=settings.ack_quorum,
        )
        owner = owner or placed.nodes[0]
        epoch = made.get((placed.nodes, owner))
        if epoch is None:
            epoch = made[placed.nodes, owner] = pb.EpochDescriptor(
                epoch=0,
                owner=owner,
                owner_incarnation=incarnation(owner),
                placement=placed.nodes,
                ack_quorum=placed.ack_quorum,
                start_offset=0,
                flush=settings.flush,
                engine=settings.engine,
            )
        epochs.append(epoch)
    return epochs


def _owner_capable(nodes: Sequence[NodeEntry]) -> frozenset[str]:
    """Return the nodes with both roles, which may own partitions."""
    return frozenset(node.node_id for node in nodes if node.roles == BOTH_ROLES)


def _owned_by(owner: str, active: pb.EpochDescriptor) -> Plan:
    """Return a plan for the next epoch that changes only the owner of the active one."""
    return Plan(owner, tuple(active.placement), active.ack_quorum, active.flush or pb.ALWAYS, engine=active.engine)
