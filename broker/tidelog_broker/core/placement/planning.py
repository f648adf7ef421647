"""What the next epoch of a partition should look like: its topic's wishes met by the nodes that there are.

Pure functions of the registry and of who is alive, so every node that has heard the same plans the same. A *takeover*
asks where an epoch should live if this node opens it: then this node owns it wherever it may, because another owner
would first have to hear of it. A *planned* move (draining, rebalancing) asks where placement wants it, whoever asks. A
node that *stops* asks who of the other replicas should own it, an owner whose replica *lags* for a spare node, and an
owner that only *stands in*, because it merely stores copies, for a replica that may own.

There are as many copies as the topic wants and registered nodes allow, never as many as are alive: a quorum that
shrank with each failure would promise nothing. But where too few of those live for a quorum of the next epoch, and
enough for one of this epoch, a takeover leaves the copies where they are: nodes that have none of them, and are gone,
must not take down what the others can go on with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from tidelog_broker.core.placement.placement import (
    BOTH_ROLES,
    NodeEntry,
    NoPersistenceError,
    PlacedPartition,
    Role,
    partition_key,
    place,
    rebalance_plan,
    successor,
    takeover_rank,
)
from tidelog_broker.core.replication.paxos import seal_quorum
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb


class Wishes(NamedTuple):
    """What a topic asks for each of its partitions. `ack_quorum` 0: a majority of the copies."""

    replication_factor: int
    ack_quorum: int
    flush: pb.Flush


def wishes_of(config: pb.TopicConfig) -> Wishes:
    """Return what a topic's configuration asks for."""
    return Wishes(max(config.replication_factor, 1), config.ack_quorum, config.flush or pb.ALWAYS)


def wishes_as_they_are(active: pb.EpochDescriptor) -> Wishes:
    """Return wishes under which nothing changes: those of a topic that is not known (any more)."""
    return Wishes(max(len(active.placement), 1), active.ack_quorum, active.flush or pb.ALWAYS)


def takeover_plan(
    node_id: str,
    key: PartitionKey,
    active: pb.EpochDescriptor,
    wishes: Wishes,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
) -> Plan:
    """Return where the epoch after `active` should live if `node_id` opens it.

    Args:
        node_id: this node.
        key: the partition.
        active: its newest epoch.
        wishes: its topic's.
        nodes: all registered ones.
        alive: those of them that may get copies and ownership now: living, not draining.
    """
    hashed = partition_key(*key)
    try:
        wanted = place(
            hashed, nodes, replication_factor=wishes.replication_factor, alive=alive, ack_quorum=wishes.ack_quorum
        )
    except NoPersistenceError:  # nothing is registered yet, or all was removed: what there is stays
        placement = tuple(active.placement) or (node_id,)
        owner = node_id if node_id in placement else placement[0]
        return Plan(owner, placement, min(max(active.ack_quorum, 1), len(placement)), wishes.flush)

    def owned(placement: Sequence[str], ack_quorum: int) -> Plan:
        roles = {node.node_id: node.roles for node in nodes}
        if node_id in placement and node_id in alive and Role.INGESTION in roles.get(node_id, Role(0)):
            owner = node_id
        else:
            owner = successor(hashed, nodes, alive=alive, placement=placement) or placement[0]
        return Plan(owner, tuple(placement), ack_quorum, wishes.flush)

    plan = owned(wanted.nodes, wanted.ack_quorum)
    if active.placement and not can_live(plan, alive=alive.__contains__):
        stays = owned(active.placement, min(max(active.ack_quorum, 1), len(active.placement)))
        if can_live(stays, alive=alive.__contains__):
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
    """Return how many living candidates stand before this node; one that is none goes last."""
    rank = takeover_rank(node_id, partition_key(*key), nodes, alive=alive, placement=active.placement)
    return len(active.placement) if rank is None else rank


def move_plan(
    key: PartitionKey,
    active: pb.EpochDescriptor,
    wishes: Wishes,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
) -> Plan | None:
    """Return where placement wants a partition; None when it is there, or its wanted nodes are all away.

    Args: as `takeover_plan`.
    """
    state = PlacedPartition(
        key[0],
        key[1],
        active.owner,
        tuple(active.placement),
        active.ack_quorum,
        wishes.replication_factor,
        wishes.ack_quorum,
    )
    try:
        moves = rebalance_plan([state], nodes, alive=alive)
    except NoPersistenceError:
        return None
    if moves:
        return Plan(moves[0].owner, moves[0].placement.nodes, moves[0].placement.ack_quorum, wishes.flush)
    if active.flush and active.flush != wishes.flush:
        return Plan(active.owner, tuple(active.placement), active.ack_quorum, wishes.flush)
    return None


def can_live(plan: Plan, *, alive: Callable[[str], bool]) -> bool:
    """Whether enough of a plan's nodes are there to write to its epoch, and to end it again.

    Args:
        plan: a planned move: the epoch that is there works as it is.
        alive: whether a node is there; one that is drained is, and stores its copy as ever.
    """
    needed = max(plan.ack_quorum, seal_quorum(len(plan.placement), plan.ack_quorum))
    return sum(1 for node in plan.placement if alive(node)) >= needed


def hand_over_plan(
    node_id: str,
    key: PartitionKey,
    active: pb.EpochDescriptor,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
    behind: Collection[str] = (),
) -> Plan | None:
    """Return the epoch by which `node_id`, which stops, gives its partition to another replica; None without one.

    The copies stay where they are: most nodes that stop are started again soon, and a copy elsewhere would cost the
    transfer of the whole log.

    Args:
        node_id: the node that stops.
        key: the partition.
        active: its newest epoch, which `node_id` owns.
        nodes: all registered ones.
        alive: nodes that may own something now.
        behind: replicas that lack some of the log; one of them is named only if there is no other.
    """
    hashed, heirs = partition_key(*key), frozenset(alive) - {node_id}
    for candidates in (heirs.difference(behind), heirs):
        owner = successor(hashed, nodes, alive=candidates, placement=active.placement)
        if owner is not None:
            return _owned_by(owner, active)
    return None


def preferred_owner_plan(
    key: PartitionKey, active: pb.EpochDescriptor, nodes: Sequence[NodeEntry], *, alive: Collection[str]
) -> Plan | None:
    """Return the epoch that the preferred one of the replicas owns; None when that is the owner, or nobody can.

    Args: as `takeover_plan`.
    """
    owner = successor(partition_key(*key), nodes, alive=alive, placement=active.placement)
    if owner in {None, active.owner}:
        return None
    assert owner is not None
    return _owned_by(owner, active)


def relief_plan(
    key: PartitionKey,
    active: pb.EpochDescriptor,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
    behind: Collection[str] = (),
) -> Plan | None:
    """Return the epoch by which an owner that merely stores copies gives a partition to a replica that may own.

    None when the owner may own by its role, or no such replica can take over at once. No copy moves.

    Args:
        key: the partition.
        active: its newest epoch.
        nodes: all registered ones.
        alive: nodes that may own something now.
        behind: replicas that lack some of the log.
    """
    able = _able(nodes)
    if active.owner in able:
        return None
    heir = successor(
        partition_key(*key), nodes, alive=able.intersection(alive).difference(behind), placement=active.placement
    )
    if heir is None:
        return None
    return _owned_by(heir, active)


def spare_plan(
    key: PartitionKey,
    active: pb.EpochDescriptor,
    wishes: Wishes,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
    without: str,
) -> Plan | None:
    """Return the epoch in which a spare node stands in the place of the replica `without`; None where there is none.

    Nothing else moves, and the owner stays.

    Args:
        key: the partition.
        active: its newest epoch.
        wishes: its topic's.
        nodes: all registered ones.
        alive: those of them that may get a copy now.
        without: one of the epoch's replicas, not its owner.
    """
    rest = frozenset(alive) - {without}
    try:
        wanted = place(
            partition_key(*key),
            nodes,
            replication_factor=max(wishes.replication_factor, 1 + len(active.placement)),
            alive=rest,
        )
    except NoPersistenceError:
        return None
    spare = next((node for node in wanted.nodes if node in rest and node not in active.placement), None)
    if spare is None:
        return None
    placement = tuple(spare if node == without else node for node in active.placement)
    return Plan(active.owner, placement, active.ack_quorum, wishes.flush)


def lacks_copies(
    active: pb.EpochDescriptor, wishes: Wishes, nodes: Sequence[NodeEntry], *, alive: Collection[str]
) -> bool:
    """Whether a partition has fewer copies than wanted, or than the cluster has nodes, and all of those could get one.

    Two copies for want of a third node are none that are missed: they would only make writing depend on both.
    """
    storing = [node.node_id for node in nodes if Role.PERSISTENCE in node.roles]
    wanted = min(wishes.replication_factor, len(storing))
    if wanted == 2 < wishes.replication_factor:
        return False
    return len(active.placement) < wanted <= sum(1 for node in storing if node in alive)


def lacks_owner(active: pb.EpochDescriptor, nodes: Sequence[NodeEntry], *, alive: Collection[str]) -> bool:
    """Whether no replica of a partition may own it by its role, dead or alive, and a node that may could get a copy."""
    able = _able(nodes)
    return able.isdisjoint(active.placement) and not able.isdisjoint(alive)


def first_epoch(
    key: PartitionKey,
    wishes: Wishes,
    nodes: Sequence[NodeEntry],
    *,
    alive: Collection[str],
    incarnation: Callable[[str], int],
) -> pb.EpochDescriptor:
    """Return epoch 0 of a new partition: spread over the nodes, owned by the first that is alive.

    Raises:
        NoPersistenceError: no registered node stores copies.
    """
    hashed = partition_key(*key)
    wanted = place(
        hashed, nodes, replication_factor=wishes.replication_factor, alive=alive, ack_quorum=wishes.ack_quorum
    )
    owner = successor(hashed, nodes, alive=alive, placement=wanted.nodes) or wanted.nodes[0]
    return pb.EpochDescriptor(
        epoch=0,
        owner=owner,
        owner_incarnation=incarnation(owner),
        placement=wanted.nodes,
        ack_quorum=wanted.ack_quorum,
        start_offset=0,
        flush=wishes.flush,
    )


def _able(nodes: Sequence[NodeEntry]) -> frozenset[str]:
    """Return the nodes that may own partitions by their roles."""
    return frozenset(node.node_id for node in nodes if node.roles == BOTH_ROLES)


def _owned_by(owner: str, active: pb.EpochDescriptor) -> Plan:
    """Return the epoch that another replica owns and in which nothing else changes."""
    return Plan(owner, tuple(active.placement), active.ack_quorum, active.flush or pb.ALWAYS)
