"""The node's figures for `/metrics`, read on another thread: disk, partitions, peers, groups.

These functions only read, and visit each open partition once. They do not call functions that cache a result for the
event loop, such as whether a quorum is reachable: a stale result stored by this thread would refuse publishes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from tidelog_broker.base.engine_gauges import EngineFigures
from tidelog_broker.base.management_answers import Health
from tidelog_broker.base.node_gauges import MEMBERSHIPS, ROLES, Bounded, GroupPosition, NodeFigures
from tidelog_broker.broker import Broker
from tidelog_broker.core.topics import TopicRegistry
from tidelog_broker.groups.shards import GroupShards
from tidelog_broker.partition.partition import Partition
from tidelog_broker.replication.engine_tallies import EngineTally
from tidelog_proto import broker_pb2 as pb


def watch_figures(broker: Broker, health: Health) -> None:
    """Register the sources of the node's gauges."""
    broker.metrics.node.watch(lambda: node_figures(broker, health))
    broker.metrics.engines.watch(lambda: engine_figures(broker))
    bound = broker.settings.metrics_positions_max
    broker.metrics.group_positions.watch(lambda: group_positions(broker.groups, broker.topics, bound))


def node_figures(broker: Broker, health: Health) -> NodeFigures:
    """Return the current figures of a node."""
    disk, cluster, partitions = os.statvfs(broker.dir.path), broker.cluster, broker.partitions
    now_ms, lag_ms_max = broker.now_ms(), broker.settings.replica_lag_ms
    registered = max(1, len(broker.nodes.live()))
    roles, lag = Counter[str](dict.fromkeys(ROLES, 0)), dict[str, int]()
    under_replicated = no_owner = failed = 0
    for partition in partitions.all():
        if partition.state.refusal is not None or partition.replica.state.halted is not None:
            failed += 1
        if partition.state.assigner is None:
            roles["replica"] += 1
            no_owner += partition.state.is_member and not cluster.alive(partition.state.owner_id)
            continue
        roles["owner"] += 1
        copies = min(registered, partition.state.topic.config.replication_factor)  # `__meta` has up to five copies
        current = current_copies(partition, cluster.alive, now_ms=now_ms, lag_ms_max=lag_ms_max)
        under_replicated += current < copies
        for follower in partition.replica.followers:
            missing = max(0, partition.log.end_offset - follower.held_offset)
            lag[follower.node_id] = max(lag.get(follower.node_id, 0), missing)
    roles["idle"] = len(partitions.closed)
    nodes = Counter[str](dict.fromkeys(MEMBERSHIPS, 0))
    nodes.update(cluster.membership(node.node_id) for node in cluster.nodes())
    return NodeFigures(
        node_id=broker.node_id,
        zone=broker.settings.zone,
        cluster_id=broker.cluster_id.hex(),
        is_ready=health.is_ready,
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
        disk_size_bytes=disk.f_blocks * disk.f_frsize,
        disk_full=health.disk_full,
        partitions=roles,
        under_replicated=under_replicated,
        no_quorum=len(health.no_quorum),
        no_owner=no_owner,
        failed=failed,
        nodes=nodes,
        replica_lag=lag,
        feature_level=broker.features.level.number,
        supported_feature_level=broker.features.supported_level,
    )


def engine_figures(broker: Broker) -> dict[str, EngineFigures]:
    """Return the figures of each engine that has counted appends, or that stores epochs of open partitions."""
    partitions, epochs, sizes = Counter[str](), Counter[str](), Counter[str]()
    tallies = dict(broker.engine_tallies.all())
    for partition in broker.partitions.all():
        stores = partition.log.epochs
        if stores:
            partitions[stores[-1].engine] += 1
        for store in stores:
            epochs[store.engine] += 1
            sizes[store.engine] += store.size_bytes
    found = dict[str, EngineFigures]()
    for engine in {*epochs, *tallies}:
        # An engine that only stores epochs of earlier processes has no tally; there are few of these.
        tally = tallies.get(engine) or EngineTally()
        found[engine] = EngineFigures(partitions[engine], epochs[engine], sizes[engine], tally.appends, tally.syncs)
    return found


def current_copies(partition: Partition, alive: Callable[[str], bool], *, now_ms: int, lag_ms_max: int) -> int:
    """Return how many copies of a partition that this node owns keep up, including the node's own copy.

    Args:
        alive: returns whether a node seems to be alive.
        now_ms: the time of the replicas' clock.
        lag_ms_max: for how long a copy may lag and still count as keeping up.
    """
    followers = partition.replica.followers
    return 1 + sum(alive(each.node_id) and each.lag_ms(now_ms) < lag_ms_max for each in followers)


def group_positions(groups: GroupShards, topics: TopicRegistry, positions_max: int) -> Bounded:
    """Return the positions of the groups that this node coordinates, by group, topic id and partition.

    Args:
        topics: the cluster's topics; positions in unknown topics have no series.
        positions_max: maximum number of series; further positions are only counted.
    """
    owned = [shard.positions for shard in groups if shard.coordinator.owns_log]
    names = sorted((name, number) for number, positions in enumerate(owned) for name in list(positions.names()))
    exported: list[GroupPosition] = []
    omitted = 0
    for name, number in names:
        room = positions_max - len(exported)
        omitted += max(0, owned[number].count_of(name) - room)
        exported += _positions(islice(owned[number].of_group(name), room), topics)
    return Bounded(exported, omitted)


def _positions(records: Iterable[pb.OffsetRecord], topics: TopicRegistry) -> Iterator[GroupPosition]:
    for record in records:
        topic = topics.get(record.topic_id)
        if topic is not None and not topic.deleted:
            yield GroupPosition(record.group, topic.name, record.partition, record.next_offset)
