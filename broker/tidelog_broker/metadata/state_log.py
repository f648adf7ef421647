"""State that is a log: the topics and nodes in `__meta`, the groups' positions in `__offsets`.

Both are partitions like any other, written by their owners through their pipelines. Their records carry a revision
each and the highest holds, so the order of a replay does not matter, and a snapshot is nothing but the live records
written once more. After a snapshot the segments before it are not needed and retention deletes them; a crash between
the two only leaves more to replay.

Every node that stores the log applies what is committed, as it becomes committed: `applied` says how far. What is not
committed is never applied, so nothing ever has to be taken back. An owner answers from this state only once it has
applied all that was committed before it became the owner (`ready`).

A record that was computed from the state is appended in the epoch in which the state was read, or not at all (ADR
0123): `ready` returns the epoch and `write` requires it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.groups.positions import GroupOffsets
from tidelog_broker.core.groups.records import GroupRecords, group_in
from tidelog_broker.core.groups.records import wrapped as wrapped_group
from tidelog_broker.core.placement.registry import NodeRegistry, wrapped
from tidelog_broker.core.replication.producers import StoredBatch
from tidelog_broker.core.security.registry import SecurityRegistry, wrapped_security
from tidelog_broker.core.topics import TopicRegistry
from tidelog_broker.core.unknown_fields import unknown_fields
from tidelog_broker.metadata.features import FeatureGate
from tidelog_broker.metadata.levels import wrapped_level
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.pipeline import PendingPublish
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch import RecordBatch, columns_of, encode_batch, iter_batches
from tidelog_proto.errors import NATURE, ProtocolError
from tidelog_proto.header import unpack_header
from tidelog_proto.limits import KIB, MIB

log = logging.getLogger(__name__)

SNAPSHOT_AFTER_BYTES: Final = 16 * MIB
"""A snapshot is written when the log has grown by this much, and by four times its own size, since the last."""

_READ_BYTES: Final = 256 * KIB
"""What is applied at once: others have their turn in between."""
WRITE_TIMEOUT_S: Final = 20.0
_READY_TIMEOUT_S: Final = 5.0
RECORDS_PER_BATCH: Final = 10_000


class StateRecord(Protocol):
    """A protobuf message that is a record's value."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Return the message's bytes."""
        ...


class StateLog:
    """Writes and replays one such partition.

    Args:
        tasks: the node's.
        find: the partition as it is stored here; raises ProtocolError where it is not.
        apply: takes a record's value.
        live: gives what a snapshot needs.
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
        """Everything committed below this offset is in the state."""
        self._bytes_since_snapshot = 0
        self._snapshot_bytes = 0
        self._snapshotting = False
        self._unsettled = 0
        """Pending changes, those included whose writers have stopped waiting. Records of a snapshot do not count."""
        self._reading: asyncio.Future[Exception | None] | None = None
        """The reading that is under way. Where a log comes here, all who ask wait for it, and go on in the same turn of
        the event loop: one after the other, each would wait for a turn of a node that is busy with takeovers.
        """
        self._barring = 0
        """Those of them that take something back: a snapshot begun now would say it once more behind them."""

    @property
    def _partition(self) -> Partition:
        return self._find()

    async def ready(self, *, confirmed: bool = False) -> int:
        """Make sure that this node owns the log and that the state is exact: all is applied that is committed.

        Args:
            confirmed: ask the replicas, too, whether this node still owns it. For answers that are not written: what
                is written is confirmed by that.

        Returns:
            The epoch in which that is so, for `write`. It is the active one when this returns.

        Raises:
            ProtocolError: another node owns it, nobody does, or the log is damaged: half of a state is none.
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
                            pb.EPOCH_CHANGING, f"{partition.name} is still being fetched here; send again"
                        )
                    if partition.state.epoch == epoch:
                        return epoch
        except TimeoutError:
            raise ProtocolError(pb.EPOCH_CHANGING, f"{partition.name} has no owner yet; send again") from None

    async def apply_committed(self) -> None:
        """Apply what is committed here and is not applied yet.

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
            reading.cancel()  # unless it has a result: who waits ends with this node

    async def _apply_rest(self) -> None:
        partition = self._partition
        if self.applied < partition.state.log_start:
            self.forget()  # what was taken back since is not in the snapshot that the log begins with now
        offset = max(self.applied, partition.state.log_start)
        while offset < partition.state.high_watermark:
            buffers = await partition.reader.read_log(offset, _READ_BYTES)
            if not buffers:
                return
            for buffer in buffers:
                offset = max(offset, self.take(buffer))

    def forget(self) -> None:
        """Forget what was applied, if a snapshot alone does not outdate it."""

    def take(self, buffer: memoryview) -> int:
        """Apply committed batches, wherever they were read; return the offset behind them."""
        for view in iter_batches(buffer):
            batch = RecordBatch.parse(view)
            if batch.end_offset > self.applied:
                self._apply_all(batch.values())
                self.applied = batch.end_offset
                self._bytes_since_snapshot += len(view)
        return self.applied

    async def write(self, records: Sequence[StateRecord], *, epoch: int) -> None:
        """Write records, wait until they are durable, apply them.

        Args:
            records: all computed from one state.
            epoch: that in which the state was read, as `ready` returned it.

        Raises:
            ProtocolError: they were refused, or their outcome is unknown; EPOCH_CHANGING (definite): the epoch has
                ended, and the records have to be computed again.
        """
        for start in range(0, len(records), RECORDS_PER_BATCH):
            values = [record.SerializeToString() for record in records[start : start + RECORDS_PER_BATCH]]
            self._bytes_since_snapshot += await self._append(values, epoch=epoch)
        self._begin_snapshot_if_due(epoch)

    async def take_back(self, record: StateRecord, *, epoch: int) -> None:
        """Write a record after which something stands no longer that no revision of its own outdates.

        Raises:
            ProtocolError: as `write`; EPOCH_CHANGING while a snapshot is written, which might have it still.
        """
        if self._snapshotting:
            raise ProtocolError(pb.EPOCH_CHANGING, f"{self._partition.name} is being written anew; send again")
        self._bytes_since_snapshot += await self._append([record.SerializeToString()], epoch=epoch, bars=True)

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

    async def _append(self, values: list[bytes], *, epoch: int, bars: bool = False, changes: bool = True) -> int:
        """Append values and apply them in the moment in which they are durable; return the bytes written.

        Nothing is appended in another epoch than `epoch`. `bars`: no snapshot begins before that. `changes`: whether
        the values are new; those of a snapshot are not.
        """
        encoded = encode_batch(columns_of(values), now_us=time.time_ns() // 1000, control=True)
        data = memoryview(bytearray(encoded.to_bytes()))
        settled: asyncio.Future[None] = self._tasks.loop.create_future()

        def settle(outcome: StoredBatch | ProtocolError, duplicate: bool) -> None:
            assert not duplicate, "the broker's own batches carry no producer id"
            self._unsettled -= changes
            self._barring -= bars
            if not isinstance(outcome, ProtocolError):
                # Here and not after the wait: a snapshot that begins in between must hold all below the end.
                self._apply_all(values)
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
        self._partition.pipeline.submit(PendingPublish(data, unpack_header(data), settle, epoch=epoch))
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await settled
        except TimeoutError:
            raise ProtocolError(
                pb.TIMED_OUT, f"{self._partition.name} was not written in time: too few of its replicas answer"
            ) from None
        return len(data)

    async def snapshot(self, epoch: int) -> None:
        """Write everything that stands, then let go of what lies before it.

        Does neither after `epoch` has ended: another owner may have deleted a group since.
        """
        try:
            start = self.applied
            size_bytes = 0
            live = list(self._live())
            for first in range(0, len(live), RECORDS_PER_BATCH):
                values = [record.SerializeToString() for record in live[first : first + RECORDS_PER_BATCH]]
                size_bytes += await self._append(values, epoch=epoch, changes=False)
            self._snapshot_bytes, self._bytes_since_snapshot = size_bytes, 0
            await self._partition.retention.delete_before(start, epoch=epoch)
        except ProtocolError as error:
            # Nothing is lost: the old records are all there, and the next write tries again.
            log.warning("no snapshot of %s: %s", self._partition.name, error)
        finally:
            self._snapshotting = False


class MetaLog(StateLog):
    """`__meta`: the topics, the nodes, and who may do what.

    Args:
        tasks, find: as `StateLog`.
        topics, nodes, security: the state.
        features: judge what records need.
        follow: is awaited with a topic's newest record after it has changed, so that its partitions do.
        unsupported: is called with the reason when a record was read that this build cannot apply.
        nodes_changed: is called after a node's record has changed.
        security_changed: is called after an identity or a rule has changed.
    """

    def __init__(
        self,
        tasks: Tasks,
        find: Callable[[], Partition],
        *,
        topics: TopicRegistry,
        nodes: NodeRegistry,
        security: SecurityRegistry,
        features: FeatureGate,
        follow: Callable[[pb.TopicRecord], Coroutine[Any, Any, object]],
        unsupported: Callable[[str], None],
        nodes_changed: Callable[[], None] = lambda: None,
        security_changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(tasks, find, apply=self.apply_value, live=self.standing)
        self._topics = topics
        self._nodes = nodes
        self._features = features
        self._follow = follow
        self._unsupported = unsupported
        self._nodes_changed = nodes_changed
        self._security = security
        self._security_changed = security_changed
        self._changed: dict[bytes, None] = {}
        self._following = asyncio.Lock()

    def standing(self) -> Iterator[StateRecord]:
        """Yield all that holds now; `__meta` itself stands nowhere in its own log."""
        yield from (record for record in self._topics.records() if record.revision)
        for record in self._nodes.records():
            if record.revision:
                yield wrapped(record)
        yield from map(wrapped_security, self._security.records())
        if self._features.level.record.revision:
            yield wrapped_level(self._features.level.record)

    def apply_value(self, value: bytes) -> None:
        """Apply a committed record; `follow_changes` is to be awaited after it."""
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
            case "level":
                if self._features.level.apply(meta.level):
                    self._refuse_unsupported(self._features.fault_of_level(meta.level))
                return
        record = pb.TopicRecord.FromString(value)
        if not record.topic_id:
            unknown = ", ".join(unknown_fields(meta)) or "no field that it knows"
            self._unsupported(f"a record of __meta has {unknown}: start the node with a newer build")
            return
        if self._topics.apply(record):
            self._refuse_unsupported(self._features.fault_of_record(record))
            self._changed[record.topic_id] = None

    def _refuse_unsupported(self, fault: str) -> None:
        if fault:
            self._unsupported(fault)

    async def follow_changes(self) -> None:
        """Let the partitions follow the topics that have changed.

        Raises:
            ProtocolError: a log cannot be opened; what has not been followed is tried again with the next change.
        """
        async with self._following:
            while self._changed:
                topic_id = next(iter(self._changed))
                record = self._topics.get(topic_id)
                assert record is not None, "a topic that has changed is known"
                await self._follow(record)
                if self._topics.get(topic_id) is record:
                    self._changed.pop(topic_id, None)

    async def ready_to_change(self, *, confirmed: bool = False) -> int:
        """As `ready`, and require that every earlier change has an outcome: a change is computed from the state.

        Raises:
            ProtocolError: as `ready`; EPOCH_CHANGING while a change before it has no outcome.
        """
        epoch = await self.ready(confirmed=confirmed)
        self._one_at_a_time()
        return epoch

    async def write_node(self, record: pb.NodeRecord, *, epoch: int) -> None:
        """Make a node's new revision durable and apply it.

        Raises:
            ProtocolError: as `write_topic`.
        """
        self._one_at_a_time()
        await self.write([wrapped(record)], epoch=epoch)

    async def write_security(self, *records: pb.SecurityRecord, epoch: int) -> None:
        """Make new revisions of identities or rules durable, all at once, and apply them.

        Raises:
            ProtocolError: as `write_topic`.
        """
        self._one_at_a_time()
        for record in records:
            self._features.admit(record)
        await self.write(list(map(wrapped_security, records)), epoch=epoch)

    async def write_level(self, record: pb.ClusterLevel, *, epoch: int) -> None:
        """Make the level of the cluster durable and apply it.

        Raises:
            ProtocolError: as `write_topic`.
        """
        self._one_at_a_time()
        await self.write([wrapped_level(record)], epoch=epoch)

    async def write_topic(self, record: pb.TopicRecord, *, epoch: int, level: pb.ClusterLevel | None = None) -> None:
        """Make a topic's new revision durable, apply it, and let the partitions follow.

        Args:
            record: the topic.
            epoch: of the state that the record was computed from.
            level: is written in one batch with it.

        Raises:
            ProtocolError: as `StateLog.write`; EPOCH_CHANGING while a change before it has no outcome.
        """
        self._one_at_a_time()
        self._features.admit(record)
        await self.write([record] if level is None else [record, wrapped_level(level)], epoch=epoch)
        await self.follow_changes()

    def _one_at_a_time(self) -> None:
        """Two changes made of one state have one revision, so the second would be lost if the first came about."""
        if self._unsettled:
            raise ProtocolError(pb.EPOCH_CHANGING, "a change before this one has no outcome yet; send again")


class OffsetsLog(StateLog):
    """A partition of `__offsets`: where its groups stand, and who their members are.

    Args:
        tasks, find: as `StateLog`.
        positions, groups: the state.
        is_gone: tells of a topic id that its topic was deleted.
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
        super().__init__(tasks, find, apply=self._take, live=self._standing)
        self._positions = positions
        self._groups = groups
        self._is_gone = is_gone

    def forget(self) -> None:
        """See `StateLog.forget`: groups are deleted for good, and no revision of theirs outdates that."""
        self._positions.forget_all()
        self._groups.forget_all()

    def _standing(self) -> Iterator[StateRecord]:
        yield from self._positions.records()
        for record in self._groups.records():
            yield wrapped_group(record)

    def _take(self, value: bytes) -> None:
        group = group_in(value)
        if group is not None:
            if self._groups.apply(group) and group.deleted:
                self._positions.forget_group(group.group)
            return
        record = pb.OffsetRecord.FromString(value)
        if not self._is_gone(record.topic_id):  # else the topic was deleted while this was on its way
            self._positions.apply(record)

    async def write_group(self, record: pb.GroupRecord, *, epoch: int) -> None:
        """Make a group's new record durable and apply it; one that deletes takes the group's positions with it.

        Raises:
            ProtocolError: as `StateLog.write`, or `take_back`.
        """
        if record.deleted:
            await self.take_back(wrapped_group(record), epoch=epoch)
        else:
            await self.write([wrapped_group(record)], epoch=epoch)

    async def write_offsets(
        self, records: list[pb.OffsetRecord], *, epoch: int, made: pb.GroupRecord | None = None
    ) -> None:
        """Make prepared positions durable and apply them.

        Args:
            records: the positions.
            epoch: as in `write`.
            made: of the group that comes about by them: who has made it.

        Raises:
            ProtocolError: as `StateLog.write`; records of which it is certain that they were not written are withdrawn.
                Others may come about, so what follows them gets a higher revision.
        """
        try:
            await self.write(records if made is None or not records else [wrapped_group(made), *records], epoch=epoch)
        except ProtocolError as error:
            if NATURE[error.code].definite:
                for record in records:
                    self._positions.withdraw(record)
            raise
