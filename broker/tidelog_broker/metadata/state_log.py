"""State in logs: the topics and nodes in `__meta`, the group positions in `__offsets`.

Both are regular partitions, written by their owners through their pipelines. Each record carries a revision and the
highest wins, so the order of a replay does not matter, and a snapshot consists of the live records written once more.
After a snapshot, retention deletes the segments before it; a crash in between only leaves more to replay.

Every node that stores the log applies records as they are committed, up to `applied`. Uncommitted records are never
applied, so nothing has to be rolled back. An owner answers from this state only after it has applied everything that
was committed before it became the owner (`ready`).

A record that was computed from the state is appended in the epoch in which the state was read, or not at all (ADR
0123): `ready` returns the epoch and `write` requires it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final

from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.groups.positions import GroupOffsets
from tidelog_broker.core.groups.records import GroupRecords, group_in
from tidelog_broker.core.groups.records import wrapped as wrapped_group
from tidelog_broker.core.placement.registry import NodeRegistry, wrapped
from tidelog_broker.core.replication.producers import PlacedBatch
from tidelog_broker.core.schemas import SchemaRegistry, wrapped_schema
from tidelog_broker.core.security.registry import SecurityRegistry, to_meta_record
from tidelog_broker.core.topics import TopicRegistry
from tidelog_broker.core.unknown_fields import unknown_fields
from tidelog_broker.metadata.features import FeatureGate
from tidelog_broker.metadata.levels import wrapped_level
from tidelog_broker.metadata.value_batches import StateRecord, value_batches
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.pipeline import QueuedBatch
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch, iter_batches
from tidelog_proto.errors import NATURE, ProtocolError
from tidelog_proto.limits import KIB, MIB

log = logging.getLogger(__name__)

SNAPSHOT_AFTER_BYTES: Final = 16 * MIB
"""A snapshot is written after the log has grown by more than this, and by more than four times the last snapshot."""

_READ_BYTES: Final = 256 * KIB
"""Maximum bytes that are applied before the event loop serves other work."""
WRITE_TIMEOUT_S: Final = 20.0
_READY_TIMEOUT_S: Final = 5.0
RECORDS_PER_BATCH: Final = 10_000


class StateLog:
    """Writes the state of one partition of an internal topic, and replays it.

    Args:
        find: returns this node's copy of the partition; raises ProtocolError if this node has no copy.
        apply: applies the value of a committed record to the state.
        live: returns the records of a snapshot.
    """

    def __init__(
        self,
        tasks: Tasks,
        find: Callable[[], Partition],
        *,
        apply: Callable[[bytes], None],
        live: Callable[[], Iterable[StateRecord]],
    ) -> None:
        self._tasks = tasks
        self._find = find
        self._apply = apply
        self._live = live
        self.applied = 0
        """The state contains everything committed below this offset."""
        self._bytes_since_snapshot = 0
        self._snapshot_bytes = 0
        self._snapshotting = False
        self._unsettled = 0
        """Number of written changes whose outcome is unknown yet, also if their callers have timed out; the records of
        a snapshot do not count."""
        self._reading: asyncio.Future[Exception | None] | None = None
        """The read in progress. All callers wait for the same read and continue in the same iteration of the event
        loop; reads of their own would run one after the other on a node that is busy with takeovers."""
        self._barring = 0
        """Number of pending deletions. No snapshot begins meanwhile, because it would follow a deletion in the log and
        restore the deleted group."""

    @property
    def _partition(self) -> Partition:
        return self._find()

    async def ready(self, *, confirmed: bool = False) -> int:
        """Ensure that this node owns the log and that the state contains every commit.

        Args:
            confirmed: also ask the replicas whether this node still owns it. Needed for answers without a write, since
                a write confirms ownership itself.

        Returns:
            The epoch in which that holds, for `write`. It is the active one when this returns.

        Raises:
            ProtocolError: another node owns the log; the log has no owner, or is damaged and the state would be
                incomplete; EPOCH_CHANGING if this node is not ready within some seconds.
        """
        partition = self._partition
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                while True:
                    await (partition.access.confirm_owner() if confirmed else partition.access.ensure_active())
                    epoch, end = partition.state.epoch, partition.state.high_watermark
                    await self.apply_committed()
                    if self.applied < end and partition.state.log_start < end:
                        raise ProtocolError(
                            pb.EPOCH_CHANGING, f"{partition.name} is still being fetched to this node; retry"
                        )
                    if partition.state.epoch == epoch:
                        return epoch
        except TimeoutError:
            raise ProtocolError(
                pb.EPOCH_CHANGING,
                f"{partition.name} was not ready within {_READY_TIMEOUT_S:g} s: no owner is confirmed, or its log is "
                "still being read; retry",
            ) from None

    async def apply_committed(self) -> None:
        """Apply all commits of this node's copy.

        Raises:
            ProtocolError: the log cannot be read.
        """
        partition = self._partition
        if partition.state.log_start <= self.applied >= partition.state.high_watermark:
            return
        reading = self._reading
        if reading is None or reading.done():
            reading = self._reading = self._tasks.loop.create_future()
            self._tasks.spawn(self._read_to_the_end(reading), f"reading {partition.name}")
        if (error := await asyncio.shield(reading)) is not None:
            raise error

    async def _read_to_the_end(self, reading: asyncio.Future[Exception | None]) -> None:
        try:
            await self._apply_rest()
            reading.set_result(None)
        except ProtocolError as error:
            reading.set_result(error)
        except Exception as error:
            reading.set_result(error)
            raise
        finally:
            # No effect if a result is set; otherwise this task was cancelled, and so are the callers that wait for it.
            reading.cancel()

    async def _apply_rest(self) -> None:
        partition = self._partition
        if self.applied < partition.state.log_start:
            self.forget()  # The snapshot at the start of the log omits state that was deleted meanwhile.
        offset = max(self.applied, partition.state.log_start)
        while offset < partition.state.high_watermark:
            buffers = await partition.reader.read_log(offset, _READ_BYTES)
            if not buffers:
                return
            for buffer in buffers:
                offset = max(offset, self.take(buffer))

    def forget(self) -> None:
        """Drop applied state that the snapshot would not replace."""

    def take(self, buffer: memoryview) -> int:
        """Apply committed batches from any source; return the offset after them."""
        for view in iter_batches(buffer):
            batch = RecordBatch.parse(view)
            if batch.end_offset > self.applied:
                self._apply_all(batch.values())
                self.applied = batch.end_offset
                self._bytes_since_snapshot += len(view)
        return self.applied

    async def write(self, records: Sequence[StateRecord], *, epoch: int) -> None:
        """Write records, wait until they are durable, and apply them.

        Args:
            records: records that were computed from one state.
            epoch: the epoch of that state, as `ready` returned it.

        Raises:
            ProtocolError: the records were refused, or the outcome is unknown; EPOCH_CHANGING (definite) if the epoch
                has ended, and the records have to be computed again.
        """
        for values in value_batches(records, RECORDS_PER_BATCH):
            written_bytes = await self._append(values, epoch=epoch)
            self._bytes_since_snapshot += written_bytes
        self._begin_snapshot_if_due(epoch)

    async def write_deletion(self, record: StateRecord, *, epoch: int) -> None:
        """Write a deletion, and begin no snapshot before its outcome.

        A deletion leaves no record whose revision outranks older records, so a snapshot after it could restore them.

        Raises:
            ProtocolError: see `write`; EPOCH_CHANGING while a snapshot is being written, which may still contain it.
        """
        if self._snapshotting:
            raise ProtocolError(pb.EPOCH_CHANGING, f"a snapshot of {self._partition.name} is being written; retry")
        written_bytes = await self._append([record.SerializeToString()], epoch=epoch, bars=True)
        self._bytes_since_snapshot += written_bytes

    def _begin_snapshot_if_due(self, epoch: int) -> None:
        if self._snapshotting or self._barring:
            return
        if self._bytes_since_snapshot > max(SNAPSHOT_AFTER_BYTES, 4 * self._snapshot_bytes):
            self._snapshotting = True
            self._tasks.spawn(self.snapshot(epoch), f"snapshot {self._partition.name}")

    def _apply_all(self, values: Iterable[bytes | None]) -> None:
        for value in values:
            if value is not None:
                self._apply(value)

    async def _append(
        self,
        values: list[bytes],
        *,
        epoch: int,
        bars: bool = False,
        changes: bool = True,
        applied: Callable[[], None] | None = None,
    ) -> int:
        """Append values, apply them as soon as they are durable, and return the bytes written.

        Args:
            epoch: the only epoch in which the values may be appended.
            bars: whether no snapshot may begin before the outcome.
            changes: whether the values are new, unlike those of a snapshot.
            applied: applies the values, for a caller that has them decoded.
        """
        encoded = encode_batch(columns_of(values), now_us=time.time_ns() // 1000, control=True)
        data = memoryview(bytearray(encoded.to_bytes()))
        settled: asyncio.Future[None] = self._tasks.loop.create_future()

        def settle(outcome: PlacedBatch | ProtocolError, duplicate: bool) -> None:
            assert not duplicate, "internal batches have no producer id"
            self._unsettled -= changes
            self._barring -= bars
            if not isinstance(outcome, ProtocolError):
                # Applied before the wait: a snapshot that begins during the wait must include the record.
                if applied is None:
                    self._apply_all(values)
                else:
                    applied()
                if self.applied == outcome.base_offset:
                    self.applied = outcome.end_offset
            if settled.done():
                return
            if isinstance(outcome, ProtocolError):
                settled.set_exception(outcome)
            else:
                settled.set_result(None)

        self._unsettled += changes
        self._barring += bars
        self._partition.pipeline.submit(QueuedBatch(data, unpack_header(data), settle, epoch=epoch))
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await settled
        except TimeoutError:
            raise ProtocolError(
                pb.TIMED_OUT,
                f"writing to {self._partition.name} timed out after {WRITE_TIMEOUT_S:g} s: no quorum of its replicas "
                "has acknowledged the records, which may still be stored; start the nodes that `tidelog cluster "
                "status` shows as down, or check the network between the nodes",
            ) from None
        return len(data)

    async def snapshot(self, epoch: int) -> None:
        """Write all live records, then delete the log before them.

        Stops if `epoch` has ended: another owner may have deleted a group since.
        """
        try:
            start = self.applied
            size_bytes = 0
            live = list(self._live())
            for values in value_batches(live, RECORDS_PER_BATCH):
                size_bytes += await self._append(values, epoch=epoch, changes=False)
            self._snapshot_bytes, self._bytes_since_snapshot = size_bytes, 0
            await self._partition.retention.delete_before(start, epoch=epoch)
        except ProtocolError as error:
            # No data is lost: the old records still exist, and the next write tries again.
            log.warning(
                "cannot write a snapshot of %s, retrying after the next write to it: %s",
                self._partition.name,
                error,
            )
        finally:
            self._snapshotting = False


class MetaLog(StateLog):
    """The log of `__meta`: topics, nodes, identities and rules.

    Args:
        tasks, find: see `StateLog`.
        follow: awaited with a topic's newest record after a change, so that its partitions follow.
        unsupported: called with the reason after a record was read that this build cannot apply.
    """

    def __init__(
        self,
        tasks: Tasks,
        find: Callable[[], Partition],
        *,
        topics: TopicRegistry,
        schemas: SchemaRegistry,
        nodes: NodeRegistry,
        security: SecurityRegistry,
        features: FeatureGate,
        follow: Callable[[pb.TopicRecord], Coroutine[Any, Any, object]],
        unsupported: Callable[[str], None],
        nodes_changed: Callable[[], None] = lambda: None,
        security_changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(tasks, find, apply=self.apply_value, live=self.current_records)
        self._topics = topics
        self._schemas = schemas
        self._nodes = nodes
        self._features = features
        self._follow = follow
        self._unsupported = unsupported
        self._nodes_changed = nodes_changed
        self._security = security
        self._security_changed = security_changed
        self._changed: dict[bytes, None] = {}
        self._following = asyncio.Lock()

    def current_records(self) -> Iterator[StateRecord]:
        """Yield all current records, schemas before their topics; the record of `__meta` itself is not part of it."""
        yield from self._schemas.records()
        yield from (record for record in self._topics.records() if record.revision)
        for record in self._nodes.records():
            if record.revision:
                yield wrapped(record)
        yield from map(to_meta_record, self._security.records())
        if self._features.level.record.revision:
            yield wrapped_level(self._features.level.record)

    def apply_value(self, value: bytes) -> None:
        """Apply a committed record; the caller awaits `follow_changes` after it."""
        meta = pb.MetaRecord.FromString(value)
        match meta.WhichOneof("what"):
            case "node":
                if self._nodes.apply(meta.node):
                    self._nodes_changed()
                return
            case "security":
                if self._security.apply(meta.security):
                    self._refuse_unsupported(self._features.fault_of_record(meta.security))
                    self._security_changed()
                return
            case "schema":
                self._apply_schema(meta.schema)
                return
            case "level":
                if self._features.level.apply(meta.level):
                    self._refuse_unsupported(self._features.fault_of_level(meta.level))
                return
        record = pb.TopicRecord.FromString(value)
        if not record.topic_id:
            unknown = ", ".join(unknown_fields(meta)) or "no known field"
            self._unsupported(f"a record of __meta has {unknown}, which this build does not support; use a newer build")
            return
        if self._topics.apply(record):
            if record.deleted:
                self._schemas.forget(record.topic_id)
            self._refuse_unsupported(self._features.fault_of_record(record))
            self._changed[record.topic_id] = None

    def _apply_schema(self, record: pb.SchemaRecord) -> None:
        if not self._topics.is_deleted(record.topic_id) and self._schemas.apply(record):
            self._refuse_unsupported(self._features.fault_of_record(record))

    def _refuse_unsupported(self, fault: str) -> None:
        if fault:
            self._unsupported(fault)

    async def follow_changes(self) -> None:
        """Apply changed topic records to the partitions.

        Raises:
            ProtocolError: a log cannot be opened; the remaining topics are retried with the next change.
        """
        async with self._following:
            while self._changed:
                for topic_id in list(self._changed):  # One iterator: each skips all deleted entries.
                    record = self._topics.get(topic_id)
                    assert record is not None, "a changed topic is known"
                    await self._follow(record)
                    if self._topics.get(topic_id) is record:
                        self._changed.pop(topic_id, None)

    async def ready_to_change(self, *, confirmed: bool = False) -> int:
        """Wait as `ready` does, and return the epoch; require that no earlier change is pending.

        Raises:
            ProtocolError: see `ready`; EPOCH_CHANGING while an earlier change has no outcome.
        """
        epoch = await self.ready(confirmed=confirmed)
        self._one_at_a_time()
        return epoch

    async def write_node(self, record: pb.NodeRecord, *, epoch: int) -> None:
        """Make a node's new revision durable and apply it.

        Raises:
            ProtocolError: see `write_topic`.
        """
        self._one_at_a_time()
        await self.write([wrapped(record)], epoch=epoch)

    async def write_security(self, *records: pb.SecurityRecord, epoch: int) -> None:
        """Make new revisions of identities or rules durable in one batch, and apply them.

        Raises:
            ProtocolError: see `write_topic`.
        """
        self._one_at_a_time()
        for record in records:
            self._features.admit(record)
        await self.write(list(map(to_meta_record, records)), epoch=epoch)

    async def write_level(self, record: pb.ClusterLevel, *, epoch: int) -> None:
        """Make the level of the cluster durable and apply it.

        Raises:
            ProtocolError: as `write_topic`.
        """
        self._one_at_a_time()
        await self.write([wrapped_level(record)], epoch=epoch)

    async def write_topic(
        self,
        record: pb.TopicRecord,
        *,
        epoch: int,
        level: pb.ClusterLevel | None = None,
        schema: pb.SchemaRecord | None = None,
    ) -> None:
        """Make a topic's new revision durable, apply it, and let the partitions follow.

        Args:
            record: the new revision.
            epoch: the epoch of the state from which the record was computed.
            level: a new level of the cluster, to be written in the same batch; None for no change.
            schema: a new schema of the topic, to be written before it in the same batch; None without a new schema.

        Raises:
            ProtocolError: see `StateLog.write`; EPOCH_CHANGING while an earlier change has no outcome.
        """
        self._one_at_a_time()
        self._features.admit(record)
        records: list[StateRecord] = [record]
        if schema is not None:
            self._features.admit(schema)
            records.insert(0, wrapped_schema(schema))
        if level is not None:
            records.append(wrapped_level(level))
        await self.write(records, epoch=epoch)
        await self.follow_changes()

    async def write_schema(self, record: pb.SchemaRecord, *, epoch: int) -> None:
        """Make a schema durable and apply it.

        Raises:
            ProtocolError: see `write_topic`.
        """
        self._one_at_a_time()
        self._features.admit(record)
        await self.write([wrapped_schema(record)], epoch=epoch)

    def _one_at_a_time(self) -> None:
        """Refuse concurrent changes: two changes of the same record get the same revision, and one would be lost."""
        if self._unsettled:
            raise ProtocolError(
                pb.EPOCH_CHANGING, "an earlier change of the cluster's metadata (__meta) is not committed yet; retry"
            )


class OffsetsLog(StateLog):
    """The log of one partition of `__offsets`: positions and members of its groups.

    Args:
        tasks, find: see `StateLog`.
        is_gone: returns whether the topic with an id was deleted.
    """

    def __init__(
        self,
        tasks: Tasks,
        find: Callable[[], Partition],
        *,
        positions: GroupOffsets,
        groups: GroupRecords,
        is_gone: Callable[[bytes], bool],
    ) -> None:
        super().__init__(tasks, find, apply=self._take, live=self._live_records)
        self._positions = positions
        self._groups = groups
        self._is_gone = is_gone

    def forget(self) -> None:
        """See `StateLog.forget`: deleted groups leave no record whose revision would outrank older ones."""
        self._positions.forget_all()
        self._groups.forget_all()

    def _live_records(self) -> Iterator[StateRecord]:
        yield from self._positions.records()
        for record in self._groups.records():
            yield wrapped_group(record)

    def _take(self, value: bytes) -> None:
        group = group_in(value)
        if group is not None:
            if self._groups.apply(group) and group.deleted:
                self._positions.forget_group(group.group)
            return
        self._take_positions([pb.OffsetRecord.FromString(value)])

    def _take_positions(self, records: Sequence[pb.OffsetRecord]) -> None:
        """Apply positions, except those of topics that were deleted while the commit was pending."""
        gone: dict[bytes, bool] = {}
        for record in records:
            topic_id = record.topic_id
            is_gone = gone.get(topic_id)
            if is_gone is None:
                is_gone = gone[topic_id] = self._is_gone(topic_id)
            if not is_gone:
                self._positions.apply(record)

    async def write_group(self, record: pb.GroupRecord, *, epoch: int) -> None:
        """Make a group's new record durable and apply it; a deletion also deletes the group's positions.

        Raises:
            ProtocolError: see `StateLog.write` and `write_deletion`.
        """
        if record.deleted:
            await self.write_deletion(wrapped_group(record), epoch=epoch)
        else:
            await self.write([wrapped_group(record)], epoch=epoch)

    async def write_offsets(
        self, records: list[pb.OffsetRecord], *, epoch: int, made: pb.GroupRecord | None = None
    ) -> None:
        """Make prepared positions durable and apply them.

        Args:
            records: at most `RECORDS_PER_BATCH` - 1; they are applied as they are, and do not change afterwards.
            epoch: see `write`.
            made: the record of a group that the commit creates, with its creator; None if the group exists.

        Raises:
            ProtocolError: see `StateLog.write`; records that were certainly not written are withdrawn. Others may
                still be committed, so later ones get a higher revision.
        """
        if not records:
            return
        values = [record.SerializeToString() for record in records]
        if made is not None:
            values.insert(0, wrapped_group(made).SerializeToString())
        assert len(values) <= RECORDS_PER_BATCH, "a commit is one batch"

        def apply() -> None:
            if made is not None:
                self._take(values[0])
            self._take_positions(records)

        try:
            written_bytes = await self._append(values, epoch=epoch, applied=apply)
            self._bytes_since_snapshot += written_bytes
            self._begin_snapshot_if_due(epoch)
        except ProtocolError as error:
            if NATURE[error.code].definite:
                for record in records:
                    self._positions.withdraw(record)
            raise
