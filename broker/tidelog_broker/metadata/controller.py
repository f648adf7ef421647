"""Changes of topics and nodes, one at a time, by the owner of `__meta`.

A change is a record of `__meta`: durable on its replicas before it is applied, and applied before the reply. Each is
computed from a state that contains every earlier commit (`StateLog.ready`), and bound to the epoch of that state: a
former owner that does not know its successor may read an old state, but no change computed from it can be
committed, not even after it has become the owner again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from typing import Final

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.cluster.routes import Routes
from tidelog_broker.core.placement.placement import NoPersistenceError
from tidelog_broker.core.placement.registry import NodeRegistry, identity_fault
from tidelog_broker.core.schema_rules import check_compactable, checked_floor, next_schema_of
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
from tidelog_broker.metadata.schema_changes import SchemaChanges
from tidelog_broker.metadata.state_log import MetaLog
from tidelog_broker.metadata.topic_engines import TopicEngines
from tidelog_broker.metadata.topic_quotas import TopicQuotas
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.content_hash import CONTENT_KEY_BYTES
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_BYTES_MAX, REPLICATION_FACTOR_MAX
from tidelog_proto.names import AUDIT_TOPIC, OFFSETS_TOPIC, check_topic_name
from tidelog_proto.schema.topic_schema import Schema

log = logging.getLogger(__name__)

PLACED_AT_ONCE: Final = 256
"""Maximum number of a topic's new partitions that are placed in one iteration of the event loop: a few milliseconds."""
RECORD_BYTES_MAX: Final = BATCH_BYTES_MAX // 2
"""Maximum size of a topic's record, which grows with partitions, copies and the length of node ids."""

UNAUTHENTICATED: Final = pb.Caller()
"""The caller of a request on a node without authentication."""


class Controller:
    """Changes topics and nodes. Every node has a controller; its writes are refused unless the node owns `__meta`.

    Args:
        partitions_max: maximum number of partitions of all topics together; each costs memory on every node, and files
            on its replicas.
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
        engines: TopicEngines,
        schemas: SchemaChanges,
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
        self._engines = engines
        self.schemas = schemas
        self._changing = asyncio.Lock()

    # --- topics ----------------------------------------------------------------------------------------

    async def create_topic(self, request: pb.TopicCreate, caller: pb.Caller = UNAUTHENTICATED) -> pb.TopicRecord:
        """Create a topic and return its record: id, configuration, creator, and the first epoch of each partition.

        Raises:
            ProtocolError: INVALID_TOPIC, TOPIC_EXISTS, INVALID_REQUEST, QUOTA_EXCEEDED, or the error of the write.
        """
        check_topic_name(request.name)
        refuse_unknown_fields(request)
        config = complete_config(
            self._with_storage(request), copies_default=self._usual_copies(), copies_max=self._copies_max
        )
        self._engines.check(config)
        schema = self.schemas.first(request, config)
        async with self._changing:
            epoch = await self._meta_log.ready_to_change()
            if self._topics.exists(request.name):
                epoch = await self._meta_log.ready_to_change(confirmed=True)
            if self._topics.exists(request.name):
                raise ProtocolError(
                    pb.TOPIC_EXISTS,
                    f"topic {request.name!r} already exists; use it, choose another name, or delete it first",
                )
            self._refuse_too_many(config.partitions)
            self._quotas.check(caller.principal, caller, topics=1, partitions=config.partitions)
            topic_id = uuid.uuid4().bytes
            return await self._write_new(
                request.name,
                topic_id,
                config,
                caller.principal,
                epoch=epoch,
                schema=None if schema is None else self.schemas.record(topic_id, schema, caller),
            )

    async def alter_topic(self, change: pb.TopicAlter, caller: pb.Caller = UNAUTHENTICATED) -> pb.TopicRecord:
        """Change a topic; new partitions get their first epochs, and count towards its creator's quota.

        Raises:
            ProtocolError: UNKNOWN_TOPIC, INVALID_REQUEST, QUOTA_EXCEEDED, or the error of the write.
        """
        refuse_unknown_fields(change)
        async with self._changing:
            epoch = await self._ready_for(change.name)
            current = self._topics.named(change.name)
            record = altered(current, change, copies_max=self._copies_max)
            self._engines.check(record.config)
            if record.config.typed and record.config.cleanup != current.config.cleanup:
                schemas = self.schemas.registry.of(record.topic_id)
                check_compactable(record.config.cleanup, schemas.schema(schemas.newest_number), record.name)
            first = current.config.partitions
            self._refuse_too_many(record.config.partitions - first)
            self._quotas.check(record.creator, caller, topics=0, partitions=record.config.partitions - first)
            record.first_epochs.extend(await self._first_epochs(record.topic_id, record.config, first))
            _with_content_key(record)
            _refuse_too_large(record)
            await self._meta_log.write_topic(record, epoch=epoch)
        return record

    async def change_schema(self, change: pb.SchemaChange, caller: pb.Caller = UNAUTHENTICATED) -> pb.SchemaChangeReply:
        """Register the next schema of a typed topic, change the lowest number for producers, or both.

        A change that an earlier attempt has made is not made again, and has the same answer.

        Raises:
            ProtocolError: UNKNOWN_TOPIC, INVALID_REQUEST, SCHEMA_MISMATCH, QUOTA_EXCEEDED, or the error of the write.
        """
        refuse_unknown_fields(change)
        async with self._changing:
            epoch = await self._ready_for(change.topic, change.topic_id)
            try:
                topic, schema = self._judged(change)
            except ProtocolError as error:
                if error.code != pb.SCHEMA_MISMATCH:
                    raise
                epoch = await self._meta_log.ready_to_change(confirmed=True)
                topic, schema = self._judged(change)
            return await self._write_schema(change, topic, schema, caller, epoch)

    def _judged(self, change: pb.SchemaChange) -> tuple[pb.TopicRecord, Schema | None]:
        """Return the topic that a change is about, and the schema that it registers, as `next_schema_of`."""
        topic = self._topics.named(change.topic)
        if change.topic_id and topic.topic_id != change.topic_id:
            raise _recreated(topic, change.topic_id)
        if not topic.config.typed:
            raise ProtocolError(
                pb.INVALID_REQUEST, f"topic {topic.name!r} is not typed; create a new topic with a schema"
            )
        schema = next_schema_of(change, self.schemas.registry.of(topic.topic_id))
        if schema is not None:
            check_compactable(topic.config.cleanup, schema, topic.name)
        return topic, schema

    async def _write_schema(
        self, change: pb.SchemaChange, topic: pb.TopicRecord, schema: Schema | None, caller: pb.Caller, epoch: int
    ) -> pb.SchemaChangeReply:
        schemas, floor = self.schemas.registry.of(topic.topic_id), topic.config.schema_floor
        number = schemas.newest_number if schema is None else schema.number
        if change.HasField("schema") and change.schema.number < number:
            # A later schema follows the one of a repeated request, whose floor may be outdated.
            return pb.SchemaChangeReply(schema=schemas.record(change.schema.number).schema, floor=floor)
        floor = checked_floor(change, floor, number)
        made = None if schema is None else self.schemas.record(topic.topic_id, schema, caller)
        if floor != topic.config.schema_floor:
            record = pb.TopicRecord()
            record.CopyFrom(topic)
            record.revision += 1
            record.config.schema_floor = floor
            await self._meta_log.write_topic(record, epoch=epoch, schema=made)
        elif made is not None:
            await self._meta_log.write_schema(made, epoch=epoch)
        return pb.SchemaChangeReply(schema=schemas.record(number).schema, floor=floor)

    async def delete_topic(self, name: str, topic_id: bytes = b"") -> None:
        """Delete a topic, which is final for its id.

        Args:
            topic_id: the only topic that may be deleted, so that a late or repeated request does not delete a newer
                topic of the same name; empty for any.

        Raises:
            ProtocolError: UNKNOWN_TOPIC, or the error of the write.
        """
        async with self._changing:
            epoch = await self._ready_for(name, topic_id)
            record = pb.TopicRecord()
            record.CopyFrom(self._topics.named(name))
            if topic_id and record.topic_id != topic_id:
                raise _recreated(record, topic_id)
            record.revision += 1
            record.deleted = True
            record.ClearField("first_epochs")  # Records of deleted topics are kept for ever, so they must be small.
            await self._meta_log.write_topic(record, epoch=epoch)

    async def create_audit_topic(self, requested: pb.TopicConfig) -> None:
        """Create `__audit` if it does not exist.

        Raises:
            ProtocolError: INVALID_REQUEST, or the error of the write.
        """
        config = complete_config(requested, copies_default=self._usual_copies(), copies_max=self._copies_max)
        async with self._changing:
            epoch = await self._meta_log.ready_to_change()
            if not self._topics.exists(AUDIT_TOPIC):
                await self._write_new(AUDIT_TOPIC, uuid.uuid4().bytes, config, epoch=epoch)
                log.info("created the internal topic %s", AUDIT_TOPIC)

    def _with_storage(self, request: pb.TopicCreate) -> pb.TopicConfig:
        """Return the requested configuration with the engine and the file model of the node, where it sets none.

        Raises:
            ProtocolError: a node does not support the engine, see `FeatureGate.check`.
        """
        config = pb.TopicConfig()
        config.CopyFrom(request.config)
        if self._engines.fill_in(config):
            self._features.check(pb.TopicRecord(name=request.name, config=config))
        return config

    def _usual_copies(self) -> int:
        storing = sum(1 for record in self._nodes.live() if pb.PERSISTENCE in record.roles)
        return min(self._copies_default, max(storing, 1))

    async def found_offsets(self, config: pb.TopicConfig, *, is_new: bool) -> None:
        """Create `__offsets`; if it exists with one copy and `config` has more, change it to have as many.

        Args:
            is_new: whether the cluster is new; the feature level of this build is then written together with the topic.

        Raises:
            ProtocolError: the error of the write.
        """
        if self._has_offsets(config):
            return
        async with self._changing:
            epoch = await self._meta_log.ready_to_change()
            existing = self._topics.get(OFFSETS_TOPIC_ID)
            if existing is None:
                level = self._features.founding_level() if is_new else None
                await self._write_new(OFFSETS_TOPIC, OFFSETS_TOPIC_ID, config, epoch=epoch, level=level)
                log.info("created %s with %d partitions", OFFSETS_TOPIC, config.partitions)
            elif not self._has_offsets(config):
                record = pb.TopicRecord()
                record.CopyFrom(existing)
                record.revision += 1
                record.config.replication_factor = config.replication_factor
                await self._meta_log.write_topic(record, epoch=epoch)

    def _has_offsets(self, config: pb.TopicConfig) -> bool:
        existing = self._topics.get(OFFSETS_TOPIC_ID)
        if existing is None:
            return False
        return existing.config.replication_factor > 1 or config.replication_factor == 1

    async def _ready_for(self, name: str, topic_id: bytes = b"") -> int:
        """Apply all commits and return the epoch of the state, see `StateLog.ready`.

        If the topic does not exist then, or has another id, the state is confirmed by the replicas first: a write
        confirms its base state, but a refusal does not, and a former owner's state may be outdated.
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
        schema: pb.SchemaRecord | None = None,
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
        await self._meta_log.write_topic(record, epoch=epoch, level=level, schema=schema)
        return record

    def _refuse_too_many(self, added: int) -> None:
        existing = self._topics.partitions
        if added and existing + added > self._partitions_max:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{added} more partitions would exceed partitions_max, {self._partitions_max}: the cluster has "
                f"{existing}; delete topics, or raise partitions_max on every node",
            )

    async def _first_epochs(self, topic_id: bytes, config: pb.TopicConfig, first: int) -> list[pb.EpochDescriptor]:
        """Return the first epochs of a topic's partitions from `first` on, yielding to the event loop in between."""
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
        """Register a node, or a change of its record.

        Registration admits a new node, so it is answered only by a confirmed owner of `__meta`. A new node may not use
        a founder's id, because this node does not know the directory of a founder that is not registered yet.

        Raises:
            ProtocolError: FORBIDDEN if the id belongs to another node or the node lacks a feature in use,
                INVALID_REQUEST, or the error of the write.
        """
        announced = announce.node
        async with self._changing:
            epoch = await self._meta_log.ready_to_change(confirmed=announce.is_new)
            known = self._nodes.get(announced.node_id)
            fault = identity_fault(
                announced.node_id, announced.incarnation, announced.directory_id, is_new=announce.is_new, known=known
            )
            fault = fault or self._features.fault_of(announced)
            if announce.is_new and not fault and self._is_unregistered_founder(announced.node_id, known):
                fault = f"{announced.node_id!r} is a founder; start it with the bootstrap file, or choose another id"
            if fault:
                raise ProtocolError(pb.FORBIDDEN, fault)
            record = self._nodes.announced(announced)
            if record is not None:
                await self._meta_log.write_node(record, epoch=epoch)
                log.info("registered the node %r at %s:%d", record.node_id, record.host, record.port)

    def _is_unregistered_founder(self, node_id: str, known: pb.NodeRecord | None) -> bool:
        """Return whether an id is that of a founder without a registered directory."""
        if known is not None:
            return known.incarnation == 0
        meta = self._topics.get(META_TOPIC_ID)  # This includes founders that are unknown to a joining node.
        return meta is not None and node_id in meta.first_epoch.placement

    async def change_node(self, change: pb.ClusterChange) -> None:
        """Drain a node, undrain it, or remove it.

        Raises:
            ProtocolError: INVALID_REQUEST, or the error of the write.
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
                    return  # a repeated request whose answer was lost
                case "remove":
                    self.refuse_while_it_stores(change.remove, accept_data_loss=change.accept_data_loss)
                    record = self._nodes.removed(change.remove)
                case _:
                    raise ProtocolError(
                        pb.INVALID_REQUEST, "a cluster change must name a node to drain, undrain or remove, got none"
                    )
            await self._meta_log.write_node(record, epoch=epoch)

    async def finalize(self) -> int:
        """Raise the feature level of the cluster to the highest of this build; return the level.

        Raises:
            ProtocolError: INVALID_REQUEST naming a registered node that does not support it, or the error of the write.
        """
        async with self._changing:
            epoch = await self._meta_log.ready_to_change()
            record = self._features.finalized()
            if record is not None:
                await self._meta_log.write_level(record, epoch=epoch)
                log.info("raised the feature level of the cluster to %d", record.level)
            return self._features.level.number

    def is_removed(self, node_id: str) -> bool:
        """Return whether a node was removed."""
        record = self._nodes.get(node_id)
        return record is not None and record.removed

    def _is_registered_and_alive(self, node_id: str) -> bool:
        """Return whether a node is alive and was not removed."""
        return self._cluster.alive(node_id) and not self.is_removed(node_id)

    def refuse_while_it_stores(self, node_id: str, *, accept_data_loss: bool = False) -> None:
        """Refuse to remove a node that stores partitions.

        A draining node may be removed with partitions that it does not own, if too few other nodes exist to replace
        its copies, and enough replicas stay alive for writes.

        Args:
            accept_data_loss: also allow to remove a draining node that is down with partitions that only it stores.

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
                draining = (record_of_node := self._nodes.get(node_id)) is not None and record_of_node.draining
                if accept_data_loss and draining and is_gone and route.placement == (node_id,):
                    continue  # No other node has the data: it is lost with the node, which the operator accepts.
                if not draining or others >= record.config.replication_factor or route.owner == node_id:
                    raise ProtocolError(
                        pb.INVALID_REQUEST,
                        f"node {node_id!r} still stores {record.name}/{index}; drain it with `tidelog cluster drain "
                        f"{node_id}`, and remove it when it stores nothing",
                    )
                needed = max(record.config.ack_quorum, len(route.placement) // 2 + 1)
                live_replicas = sum(
                    1 for node in route.placement if node != node_id and self._is_registered_and_alive(node)
                )
                if live_replicas < needed:
                    raise ProtocolError(
                        pb.INVALID_REQUEST,
                        f"without node {node_id!r} only {live_replicas} of {len(route.placement)} replicas of "
                        f"{record.name}/{index} would be alive, and writes need {needed}; start the other nodes that "
                        "are down, or let another node join first",
                    )


def _recreated(record: pb.TopicRecord, topic_id: bytes) -> ProtocolError:
    return ProtocolError(
        pb.UNKNOWN_TOPIC,
        f"topic {record.name!r} was recreated: it has id {record.topic_id.hex()}, not {topic_id.hex()}; refresh the "
        "metadata",
    )


def _with_content_key(record: pb.TopicRecord) -> None:
    """Set the hash key of a topic with deduplication, once, because stored hashes depend on it."""
    if deduplicates(record.config) and not record.content_key:
        record.content_key = secrets.token_bytes(CONTENT_KEY_BYTES)


def _refuse_too_large(record: pb.TopicRecord) -> None:
    if record.ByteSize() > RECORD_BYTES_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"the metadata record of topic {record.name!r} with {record.config.partitions} partitions and "
            f"replication_factor {record.config.replication_factor} has {record.ByteSize()} bytes, the limit is "
            f"{RECORD_BYTES_MAX}; use fewer partitions, a lower replication_factor or shorter node ids",
        )
