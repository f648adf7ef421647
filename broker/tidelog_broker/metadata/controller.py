"""What only the owner of `__meta` does: change topics and nodes, one change at a time.

A change is a record of `__meta`: durable on its replicas before it is applied, and applied before the reply. Each is
computed from a state that holds everything committed before (`StateLog.ready`), and bound to the epoch of that state: a
former owner that has not heard of its successor can read an old state here, but no change computed from that can be
committed, not even after it has become the owner again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from typing import Final

from tidelog_broker.base.config import REPLICATION_FACTOR_MAX
from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.cluster.routes import Routes
from tidelog_broker.core.placement.placement import NoPersistenceError
from tidelog_broker.core.placement.registry import NodeRegistry, identity_fault
from tidelog_broker.core.topics import (
    META_TOPIC_ID,
    OFFSETS_TOPIC_ID,
    TopicRegistry,
    altered,
    complete_config,
    deduplicates,
)
from tidelog_broker.core.unknown_fields import refuse_unknown_fields
from tidelog_broker.metadata.features import FeatureGate
from tidelog_broker.metadata.state_log import MetaLog
from tidelog_broker.metadata.topic_quotas import TopicQuotas
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.content_hash import CONTENT_KEY_BYTES
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_BYTES_MAX
from tidelog_proto.names import AUDIT_TOPIC, OFFSETS_TOPIC, check_topic_name

log = logging.getLogger(__name__)

PLACED_AT_ONCE: Final = 256
"""Partitions of a new topic that are placed in one turn of the event loop: some milliseconds."""
RECORD_BYTES_MAX: Final = BATCH_BYTES_MAX // 2
"""Of a topic's record, which is one record of `__meta`: many partitions on many nodes with long names."""

NOBODY: Final = pb.Caller()
"""Who asks where nobody has a name."""


class Controller:
    """Changes of `__meta`. Any node has one; its writes are refused wherever `__meta` is not owned.

    Args:
        meta_log: where changes are written.
        topics, nodes: the state that they change.
        cluster: for the places of new partitions.
        routes: for who stores what.
        copies_default: the replication factor of a topic whose creator says nothing.
        quotas: how much of that somebody may have.
        features: judge which nodes may be registered.
        partitions_max: of all topics; each costs every node some memory, and its replicas files, used or not.
    """

    def __init__(
        self,
        meta_log: MetaLog,
        *,
        topics: TopicRegistry,
        nodes: NodeRegistry,
        cluster: Cluster,
        routes: Routes,
        copies_default: int,
        partitions_max: int,
        quotas: TopicQuotas,
        features: FeatureGate,
    ) -> None:
        self._meta_log = meta_log
        self._topics = topics
        self._nodes = nodes
        self._cluster = cluster
        self._routes = routes
        self._copies_default = copies_default
        self._partitions_max = partitions_max
        self._quotas = quotas
        self._features = features
        self._changing = asyncio.Lock()

    # --- topics ----------------------------------------------------------------------------------------

    async def create_topic(self, asked: pb.TopicCreate, caller: pb.Caller = NOBODY) -> pb.TopicRecord:
        """Make a topic: its id, its configuration, the first epoch of each of its partitions. It is the caller's.

        Raises:
            ProtocolError: INVALID_TOPIC, TOPIC_EXISTS, INVALID_REQUEST, QUOTA_EXCEEDED, or what stopped the write.
        """
        check_topic_name(asked.name)
        refuse_unknown_fields(asked)
        config = complete_config(asked.config, copies_default=self._usual_copies(), copies_max=self._copies_max)
        async with self._changing:
            epoch = await self._meta_log.ready_to_change()
            if self._topics.exists(asked.name):
                epoch = await self._meta_log.ready_to_change(confirmed=True)
            if self._topics.exists(asked.name):
                raise ProtocolError(pb.TOPIC_EXISTS, f"there is a topic {asked.name!r} already")
            self._refuse_too_many(config.partitions)
            self._quotas.check(caller.principal, caller, topics=1, partitions=config.partitions)
            return await self._write_new(asked.name, uuid.uuid4().bytes, config, caller.principal, epoch=epoch)

    async def alter_topic(self, change: pb.TopicAlter, caller: pb.Caller = NOBODY) -> pb.TopicRecord:
        """Change a topic; new partitions get their first epochs, and count as its creator's.

        Raises:
            ProtocolError: UNKNOWN_TOPIC, INVALID_REQUEST, QUOTA_EXCEEDED, or what stopped the write.
        """
        refuse_unknown_fields(change)
        async with self._changing:
            epoch = await self._ready_for(change.name)
            standing = self._topics.named(change.name)
            record = altered(standing, change, copies_max=self._copies_max)
            first = standing.config.partitions
            self._refuse_too_many(record.config.partitions - first)
            self._quotas.check(record.creator, caller, topics=0, partitions=record.config.partitions - first)
            record.first_epochs.extend(await self._first_epochs(record.topic_id, record.config, first))
            _with_content_key(record)
            _refuse_too_large(record)
            await self._meta_log.write_topic(record, epoch=epoch)
        return record

    async def delete_topic(self, name: str, topic_id: bytes = b"") -> None:
        """Delete a topic: final for this id, whatever happens next.

        Args:
            name: the topic's name.
            topic_id: the only topic that is meant, so that a request that comes late or again spares a newer one of
                its name; empty for whichever has the name.

        Raises:
            ProtocolError: UNKNOWN_TOPIC, or what stopped the write.
        """
        async with self._changing:
            epoch = await self._ready_for(name, topic_id)
            record = pb.TopicRecord()
            record.CopyFrom(self._topics.named(name))
            if topic_id and record.topic_id != topic_id:
                raise ProtocolError(pb.UNKNOWN_TOPIC, f"the topic {name!r} is another one than the one to be deleted")
            record.revision += 1
            record.deleted = True
            record.ClearField("first_epochs")  # deletions are kept for ever, and nobody asks where it was
            await self._meta_log.write_topic(record, epoch=epoch)

    async def found_audit(self, asked: pb.TopicConfig) -> None:
        """Make `__audit`, unless it is there.

        Raises:
            ProtocolError: INVALID_REQUEST, or what stopped the write.
        """
        config = complete_config(asked, copies_default=self._usual_copies(), copies_max=self._copies_max)
        async with self._changing:
            epoch = await self._meta_log.ready_to_change()
            if not self._topics.exists(AUDIT_TOPIC):
                await self._write_new(AUDIT_TOPIC, uuid.uuid4().bytes, config, epoch=epoch)
                log.info("founded %s", AUDIT_TOPIC)

    def _usual_copies(self) -> int:
        storing = sum(1 for record in self._nodes.live() if pb.PERSISTENCE in record.roles)
        return min(self._copies_default, max(storing, 1))

    async def found_offsets(self, config: pb.TopicConfig, *, is_new: bool) -> None:
        """Make `__offsets`, unless it is there; one of a node that was alone gets the copies that others are to have.

        Args:
            config: of the topic.
            is_new: the cluster is new: with `__offsets` it gets the feature level of this build.

        Raises:
            ProtocolError: what stopped the write.
        """
        if self._has_offsets(config):
            return
        async with self._changing:
            epoch = await self._meta_log.ready_to_change()
            standing = self._topics.get(OFFSETS_TOPIC_ID)
            if standing is None:
                level = self._features.founding_level() if is_new else None
                await self._write_new(OFFSETS_TOPIC, OFFSETS_TOPIC_ID, config, epoch=epoch, level=level)
                log.info("founded %s with %d partitions", OFFSETS_TOPIC, config.partitions)
            elif not self._has_offsets(config):
                record = pb.TopicRecord()
                record.CopyFrom(standing)
                record.revision += 1
                record.config.replication_factor = config.replication_factor
                await self._meta_log.write_topic(record, epoch=epoch)

    def _has_offsets(self, config: pb.TopicConfig) -> bool:
        standing = self._topics.get(OFFSETS_TOPIC_ID)
        if standing is None:
            return False
        return standing.config.replication_factor > 1 or config.replication_factor == 1

    async def _ready_for(self, name: str, topic_id: bytes = b"") -> int:
        """Apply all that is committed; where there is no such topic then, only after the replicas were asked.

        What is written is confirmed by that. What is refused is not, and a former owner may know of an old state only.
        Returns the epoch of the state, see `StateLog.ready`.
        """
        epoch = await self._meta_log.ready_to_change()
        if not self._topics.exists(name) or (topic_id and self._topics.named(name).topic_id != topic_id):
            epoch = await self._meta_log.ready_to_change(confirmed=True)
        return epoch

    async def _write_new(
        self,
        name: str,
        topic_id: bytes,
        config: pb.TopicConfig,
        creator: str = "",
        *,
        epoch: int,
        level: pb.ClusterLevel | None = None,
    ) -> pb.TopicRecord:
        first_epochs = await self._first_epochs(topic_id, config, 0)
        record = pb.TopicRecord(
            name=name,
            topic_id=topic_id,
            config=config,
            revision=1,
            first_epoch=first_epochs[0],
            first_epochs=first_epochs,
            serial=self._topics.newest_serial + 1,
            creator=creator,
        )
        _with_content_key(record)
        _refuse_too_large(record)
        await self._meta_log.write_topic(record, epoch=epoch, level=level)
        return record

    def _refuse_too_many(self, added: int) -> None:
        there = sum(record.config.partitions for record in self._topics.live())
        if added and there + added > self._partitions_max:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{added} more partitions would make {there + added} in the cluster; at most {self._partitions_max} "
                "are allowed (partitions_max): delete topics, or raise it on every node",
            )

    async def _first_epochs(self, topic_id: bytes, config: pb.TopicConfig, first: int) -> list[pb.EpochDescriptor]:
        """Return the first epochs of a topic's partitions from `first` on; others have their turns meanwhile."""
        epochs: list[pb.EpochDescriptor] = []
        try:
            for start in range(first, config.partitions, PLACED_AT_ONCE):
                stop = min(start + PLACED_AT_ONCE, config.partitions)
                epochs += self._cluster.first_epochs(topic_id, config, range(start, stop))
                await asyncio.sleep(0)
        except NoPersistenceError as error:
            raise ProtocolError(pb.INVALID_REQUEST, str(error)) from error
        return epochs

    @property
    def _copies_max(self) -> int:
        return 1 if self._cluster.is_alone else REPLICATION_FACTOR_MAX

    # --- nodes -----------------------------------------------------------------------------------------

    async def announce(self, announce: pb.NodeAnnounce) -> None:
        """Register a node, or what has changed about it.

        A node that is new is admitted by that, so it is answered only by who certainly still owns `__meta`, and a
        founder's name is refused to it: what founders have promised before they are registered stands nowhere here.

        Raises:
            ProtocolError: FORBIDDEN when the id is another node's or a feature is in use that the node lacks,
                INVALID_REQUEST, or what stopped the write.
        """
        said = announce.node
        async with self._changing:
            epoch = await self._meta_log.ready_to_change(confirmed=announce.is_new)
            known = self._nodes.get(said.node_id)
            fault = identity_fault(
                said.node_id, said.incarnation, said.directory_id, is_new=announce.is_new, known=known
            )
            fault = fault or self._features.fault_of(said)
            if announce.is_new and not fault and self._is_unregistered_founder(said.node_id, known):
                fault = f"{said.node_id!r} is a founder: start it with the bootstrap file, or give this node another id"
            if fault:
                raise ProtocolError(pb.FORBIDDEN, fault)
            record = self._nodes.announced(said)
            if record is not None:
                await self._meta_log.write_node(record, epoch=epoch)
                log.info("registered the node %r at %s:%d", record.node_id, record.host, record.port)

    def _is_unregistered_founder(self, node_id: str, known: pb.NodeRecord | None) -> bool:
        """Whether an id is that of a founder of which no directory is registered."""
        if known is not None:
            return known.incarnation == 0
        meta = self._topics.get(META_TOPIC_ID)  # those that store it stand here, too, if a joiner knows no others
        return meta is not None and node_id in meta.first_epoch.placement

    async def change_node(self, change: pb.ClusterChange) -> None:
        """Drain a node, end that, or remove it.

        Raises:
            ProtocolError: INVALID_REQUEST, or what stopped the write.
        """
        refuse_unknown_fields(change)
        async with self._changing:
            epoch = await self._meta_log.ready_to_change()
            match change.WhichOneof("change"):
                case "drain":
                    record = self._nodes.drained(change.drain, draining=True)
                case "undrain":
                    record = self._nodes.drained(change.undrain, draining=False)
                case "remove" if self.is_removed(change.remove):
                    return  # asked again because the answer got lost: perhaps with the very node
                case "remove":
                    self.refuse_while_it_stores(change.remove, accept_data_loss=change.accept_data_loss)
                    record = self._nodes.removed(change.remove)
                case _:
                    raise ProtocolError(pb.INVALID_REQUEST, "the request names no node to drain, undrain or remove")
            await self._meta_log.write_node(record, epoch=epoch)

    async def finalize(self) -> int:
        """Raise the feature level of the cluster to the highest of this build; return the level.

        Raises:
            ProtocolError: INVALID_REQUEST naming a registered node that does not support it, or what stopped the write.
        """
        async with self._changing:
            epoch = await self._meta_log.ready_to_change()
            record = self._features.finalized()
            if record is not None:
                await self._meta_log.write_level(record, epoch=epoch)
                log.info("the cluster is at feature level %d", record.level)
            return self._features.level.number

    def is_removed(self, node_id: str) -> bool:
        """Whether a node was removed."""
        record = self._nodes.get(node_id)
        return record is not None and record.removed

    def _is_there(self, node_id: str) -> bool:
        """Whether a node can be counted on: a removed one may live on for a moment, until it is told."""
        return self._cluster.alive(node_id) and not self.is_removed(node_id)

    def refuse_while_it_stores(self, node_id: str, *, accept_data_loss: bool = False) -> None:
        """See that a node stores nothing: it is drained first. What nobody else can store leaves with the node's name.

        With `accept_data_loss` a drained node that is gone may take with it what it alone stored.

        Raises:
            ProtocolError: INVALID_REQUEST.
        """
        is_gone = self._cluster.membership(node_id) not in {"alive", "suspect"}
        others = sum(
            1
            for record in self._nodes.live()
            if record.node_id != node_id and not record.draining and pb.PERSISTENCE in record.roles
        )
        for record in self._topics.live():
            for index in range(record.config.partitions):
                route = self._routes.get((record.topic_id, index))
                if route is None or node_id not in route.placement:
                    continue
                draining = (standing := self._nodes.get(node_id)) is not None and standing.draining
                if accept_data_loss and draining and is_gone and route.placement == (node_id,):
                    continue  # nobody can move it: with its node it is lost, and the operator says so
                if not draining or others >= record.config.replication_factor or route.owner == node_id:
                    raise ProtocolError(
                        pb.INVALID_REQUEST, f"{node_id!r} still stores {record.name}/{index}; drain it and wait"
                    )
                needed = max(record.config.ack_quorum, len(route.placement) // 2 + 1)
                left = sum(1 for node in route.placement if node != node_id and self._is_there(node))
                if left < needed:
                    raise ProtocolError(
                        pb.INVALID_REQUEST,
                        f"without {node_id!r} only {left} of {len(route.placement)} replicas of {record.name}/{index} "
                        f"would be there, {needed} are needed to write; let another node join first",
                    )


def _with_content_key(record: pb.TopicRecord) -> None:
    """Give a topic that drops duplicates the key of its hashes, once: it stays what it is."""
    if deduplicates(record.config) and not record.content_key:
        record.content_key = secrets.token_bytes(CONTENT_KEY_BYTES)


def _refuse_too_large(record: pb.TopicRecord) -> None:
    if record.ByteSize() > RECORD_BYTES_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"{record.config.partitions} partitions with {record.config.replication_factor} copies on nodes with such "
            "long ids are too many for one topic; ask for fewer of either",
        )
