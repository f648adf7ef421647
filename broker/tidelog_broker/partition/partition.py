"""One partition of this node: composes its parts, and passes them the events of its replica's driver.

The parts:

state          its readable range, and why it cannot be read or written
access         waits until the partition may be served
reader         reads committed records, from memory or from the log
filtered       reads records that match a filter
projected      reads some columns, or a time range
pipeline       handles publishes until they are committed
changes        notifies readers and waiters
retention      deletes old records
compaction     compacts sealed epochs
deduplication  drops records that the partition already has
snapshots      writes producer state beside the log
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

from tidelog_broker.base.partition_gauges import PartitionFigures
from tidelog_broker.core.hot_ring import HotRing, RingEntry
from tidelog_broker.core.replication.effects import Append, EpochDecided, EpochLost
from tidelog_broker.partition.access import Access
from tidelog_broker.partition.change_notifier import ChangeNotifier
from tidelog_broker.partition.compaction import Compaction
from tidelog_broker.partition.deduplication import Deduplication
from tidelog_broker.partition.filtered_reader import FilteredReader, indexed_columns
from tidelog_broker.partition.pipeline import Pipeline
from tidelog_broker.partition.producer_snapshots import SnapshotWriter
from tidelog_broker.partition.projected_reader import ProjectedReader
from tidelog_broker.partition.reader import PartitionReader
from tidelog_broker.partition.record_deletion import RecordDeletion
from tidelog_broker.partition.retention import Retention
from tidelog_broker.partition.state import RETRY_AFTER_MS, PartitionState
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, unpack_header
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)


class Partition:
    """One partition of this node, and the `Listener` of its replica's driver.

    All methods are for the event loop's thread.

    Args:
        record, index: the topic's current record, and the partition's number.
        driver: its replica's driver, not started yet.
    """

    def __init__(
        self, tools: PartitionTools, record: pb.TopicRecord, index: int, driver: ReplicaDriver, io_key: int
    ) -> None:
        self.driver = driver
        self.replica = driver.replica
        self.log = driver.view.store
        self.ring = HotRing(bytes_max=tools.settings.ring_bytes, start_offset=self.log.end_offset)
        self.state = PartitionState(record, index, driver, tools.neighbours)
        self.name = self.state.name
        self.changes = ChangeNotifier(tools.loop)
        self.access = Access(self.state, self.changes, driver)
        self.reader = PartitionReader(self.state, self.ring, tools.readers, io_key)
        self.filtered = FilteredReader(self.state, self.reader, tools.readers, io_key)
        self.projected = ProjectedReader(self.state, self.reader, tools.readers, io_key)
        self.log.indexes.switch(indexed_columns(record.config))
        self.compaction = Compaction(
            self.state,
            self.changes,
            driver,
            tools=tools,
            io_key=io_key,
            replaced=partial(tools.rings.drop_below, self.ring),  # Readers then get the compacted records.
        )
        self.requires_keys = self.compaction.is_configured
        """Whether the topic is compacted, so that each record must have a key."""
        self.schemas = tools.schemas.of(record.topic_id) if record.config.typed else None
        """The topic's schemas; None if it is not typed."""
        self.snapshots = SnapshotWriter(self.state, driver.view, tools.io, io_key)
        self.pipeline = Pipeline(self.state, driver, tools=tools, io_key=io_key, failed=self.failed)
        self.deduplication = Deduplication(
            self.state, driver, tools=tools, io_key=io_key, check_offset=self.reader.check_held
        )
        self._screen()
        self.deletion = RecordDeletion(self.state, self.changes, driver, self.access)
        self.retention = Retention(
            self.state,
            self.changes,
            driver,
            tools=tools,
            io_key=io_key,
            deletion=self.deletion,
            roll=self.pipeline.roll,
            failed=self.failed,
        )
        self.tools = tools
        self.io_key = io_key
        self._sync_timer: asyncio.TimerHandle | None = None
        driver.start(self)

    # --- events of the driver --------------------------------------------------------------------------

    def appended(self, appends: Sequence[Append], *, seconds: float) -> None:
        """Add durable batches to the ring, count them, and let the pipeline write the next group."""
        group, end_offset = self.pipeline.group, appends[-1].end_offset
        durations = self.tools.metrics.append_seconds
        durations.counts[bisect_left(durations.bounds_s, seconds)] += 1
        durations.sum_s += seconds
        if appends[-1].epoch != self.replica.state.chain.active.epoch:
            # Not added: the epoch's end was decided meanwhile. The ring begins there; batches after it are truncated.
            pass
        elif group is not None and group.end_offset <= end_offset:
            metrics = self.tools.metrics
            for header, data in zip(group.headers, group.batches, strict=True):
                count = header.record_count
                metrics.records_in.value += count
                metrics.bytes_in.value += len(data)
                base_offset = header.base_offset
                if base_offset != self.ring.end_offset:
                    self._restart_ring(base_offset)
                entry = RingEntry(base_offset, base_offset + header.last_offset_delta + 1, count, data)
                self.tools.rings.push(self.ring, entry)
        elif self.changes.listeners:
            for data in (data for one in appends for data in one.batches):
                header = unpack_header(data, typed=True)
                self._feed(RingEntry(header.base_offset, header.end_offset, header.record_count, data))
        else:
            self._restart_ring(end_offset)
        snapshots = self.snapshots
        for one in appends:
            snapshots.batches += len(one.batches)
        if snapshots.batches >= snapshots.due_batches:
            snapshots.write_due()
        if self._sync_timer is None and self.replica.state.active.flush == pb.INTERVAL:
            delay_s = self.state.topic.config.flush_interval_ms / 1000
            self._sync_timer = self.tools.loop.call_later(delay_s, self._sync_now)
        # These calls precede those that may carry out effects: a moved watermark starts the next group.
        pipeline = self.pipeline
        pipeline.written(end_offset)
        if pipeline.has_rolled:
            pipeline.has_rolled = False
            self.retention.check_soon()
        elif group is None:
            self.retention.follow()
        waiting = pipeline.waiting
        is_awaited = pipeline.queued_bytes or pipeline.waiting_for_idle or waiting.one or waiting.all
        if is_awaited and not self.state.is_alone:  # Otherwise the driver reports the moved watermark next.
            pipeline.released()
        if self.changes.listeners and self.state.high_watermark > appends[0].base_offset:
            self.changes.wake()  # The other replicas were faster: the record was committed before it was in this log.

    def appended_jointly(self, header: BatchHeader, data: memoryview, *, seconds: float, is_current: bool) -> None:
        """Add a durable batch to the ring, count it, and settle it; see `Pipeline.submit_jointly`."""
        metrics = self.tools.metrics
        durations = metrics.append_seconds
        durations.counts[bisect_left(durations.bounds_s, seconds)] += 1
        durations.sum_s += seconds
        if is_current:
            metrics.records_in.value += header.record_count
            metrics.bytes_in.value += len(data)
            base_offset = header.base_offset
            self._feed(RingEntry(base_offset, base_offset + header.last_offset_delta + 1, header.record_count, data))
        snapshots = self.snapshots
        snapshots.batches += 1
        if snapshots.batches >= snapshots.due_batches:
            snapshots.write_due()
        self.pipeline.written_jointly()
        if self.changes.listeners:
            self.changes.wake()

    def backfilled(self) -> None:
        """Wake readers: this log has more epochs, and may now begin at the owner's log start."""
        self.retention.note_log_start()
        self.changes.wake()

    def _feed(self, entry: RingEntry) -> None:
        if entry.base_offset != self.ring.end_offset:
            self._restart_ring(entry.base_offset)
        self.tools.rings.push(self.ring, entry)

    def _restart_ring(self, offset: int) -> None:
        if self.ring.size_bytes:
            self.tools.rings.forget(self.ring)
        self.ring.restart(offset)

    def owner_ready(self) -> None:
        """Start the pipeline: this node may assign offsets."""
        owner = self.replica.state.owner
        assert owner is not None
        self.snapshots.begin_epoch(owner)
        owner.producers.share(self.tools.producers)
        self._count_beginning(owner.epoch)
        self.tools.taken_over.add(self.name, owner.epoch, owner.next_offset)
        self.changes.changed()
        self.changes.wake()  # Readers that wait beyond the end can be refused now.
        self.tools.may_differ(self.driver.key)
        self.pipeline.start_next_group()

    def _count_beginning(self, epoch: int) -> None:
        chain, metrics = self.replica.state.chain, self.tools.metrics
        metrics.epochs_begun.inc()
        # The first epoch of a chain, or one that follows an epoch of this node, does not change the owner.
        if epoch > chain.genesis.epoch and chain.descriptor(epoch - 1).owner != self.replica.state.node_id:
            metrics.owner_changes.inc()

    def owner_confirmed(self, number: int) -> None:
        """Resume requests that waited for confirmation `number` of the ownership."""
        self.access.owner_confirmed(number)

    def fenced(self) -> None:
        """Stop appending to the active epoch: queued batches wait for the next one."""
        if self.pipeline.waits_for_all:
            self.replica.candidate.wait_for_all()
        self.changes.wake()

    def decided(self, news: EpochDecided) -> None:
        """Handle the end of an epoch, and the truncation of what was appended after it."""
        self._log_data_loss(news)
        self.retention.note_log_start()  # A single copy may have deleted records without storing the log start.
        cut_offset = self.driver.cut_offset
        if self.ring.end_offset != news.end_offset or (cut_offset is not None and cut_offset < news.end_offset):
            self._restart_ring(news.end_offset)
        handed_over = news.successor != self.replica.state.node_id
        not_written = (
            ProtocolError(
                pb.EPOCH_CHANGING,
                f"{self.name}: epoch {news.epoch} ended before the batch was replicated; it is not stored, send again",
                retry_after_ms=RETRY_AFTER_MS,
            )
            if not handed_over
            else self.state.not_owner()
        )
        self.deduplication.forget()
        self.retention.ages.reset_expired()
        self.pipeline.decided(news.end_offset, not_written, held_by_all=news.held_by_all, handed_over=handed_over)
        self.tools.route_news.changed(*self.driver.key)
        self.access.not_confirmed()
        self.changes.changed()
        self.changes.wake()

    def _log_data_loss(self, news: EpochDecided) -> None:
        if news.lost_until:
            log.warning(
                "DATA_LOSS: %s: replicas that had records only in memory restarted; epoch %d ends at offset %d, the "
                "end of the longest copy; any records from there to offset %d are lost",
                self.name,
                news.epoch,
                news.end_offset,
                news.lost_until,
            )
        if news.unsafe:
            log.warning(
                "DATA_LOSS: %s: an operator ended epoch %d at offset %d without a quorum; acknowledged records "
                "after that offset are lost",
                self.name,
                news.epoch,
                news.end_offset,
            )
        elif news.short_logs and not self.tools.neighbours.is_alone:  # A single node logs a loss at its start.
            ended = self.replica.state.chain.descriptor(news.epoch)
            if self.driver.view.is_volatile(news.epoch):
                return  # For copies in memory, `lost_until` bounds the loss exactly, and a loss was logged above.
            log.warning(
                "DATA_LOSS: %s: machines with copies of epoch %d crashed, and flush=%s; the epoch ends at offset %d, "
                "the end of its longest copy; records acknowledged shortly before the crash may be lost",
                self.name,
                news.epoch,
                pb.Flush.Name(ended.flush).lower(),
                news.end_offset,
            )

    def epoch_lost(self, news: EpochLost) -> None:
        """Log the loss, and wake readers, which get an error with the bounds."""
        log.warning(
            "DATA_LOSS: %s: no node still has epoch %d, because all nodes with a copy in memory restarted; its "
            "records from offset %d to %d are lost, and readers continue at offset %d",
            self.name,
            news.epoch,
            news.start_offset,
            news.end_offset,
            self.state.resume_offset(news.start_offset),
        )
        self.changes.wake()

    def commit_moved(self) -> None:
        """Answer publishes: the high watermark has advanced."""
        self.pipeline.released()
        if self.changes.listeners:
            self.changes.wake()

    def records_deleted(self) -> None:
        """Wake readers: no reader may see records below the log start any more."""
        self.retention.records_deleted()
        self.changes.changed()
        self.changes.wake()

    def acknowledged(self) -> None:
        """Answer publishes that wait for all replicas."""
        if self.pipeline.waiting.all:
            self.pipeline.acknowledged()

    def halted(self, reason: str) -> None:
        """Refuse publishes: the replica no longer participates, in this epoch or permanently."""
        log.error("%s: this node's copy no longer accepts records: %s", self.name, reason)
        self.pipeline.flush(self.state.limbo_error())
        self.changes.changed()
        self.changes.wake()

    # --- events of the node ----------------------------------------------------------------------------

    def liveness_changed(self) -> None:
        """Recheck the quorum: the set of live nodes has changed."""
        self.changes.changed()
        self.pipeline.start_next_group()

    def no_space_for_fences(self, error: ProtocolError) -> None:
        """Refuse the requests that wait for a new epoch: the disk of the journals is full; clients may retry."""
        if not self.replica.can_append:
            self.pipeline.flush(error)
            self.changes.changed(error)

    def reconfigure(self, record: pb.TopicRecord) -> None:
        """Apply a new revision of the topic's configuration."""
        self.state.topic = record
        self.requires_keys = self.compaction.is_configured
        self.log.segment_bytes = record.config.segment_bytes
        self.log.indexes.switch(indexed_columns(record.config))
        self.deduplication.configure()
        self._screen()
        self.tools.may_differ(self.driver.key)

    def _screen(self) -> None:
        self.pipeline.screen_by(self.deduplication if self.deduplication.is_on else None)

    @property
    def figures(self) -> PartitionFigures:
        """Figures for the metrics. Thread-safe."""
        state = self.state
        return PartitionFigures(
            state.topic.name,
            state.index,
            state.high_watermark,
            state.log_start,
            self.log.size_bytes,
            self.deduplication.window_records,
        )

    # --- timed syncs -----------------------------------------------------------------------------------

    def _sync_now(self) -> None:
        self._sync_timer = None
        self.tools.io.start(self.io_key, self._sync, lambda _, error: self._synced(error))

    def _sync(self) -> None:
        if self.log.active is not None and self.log.active.state == "active":
            self.log.sync()

    def _synced(self, error: BaseException | None) -> None:
        if error is not None:
            self.failed(error)

    def _cancel_sync(self) -> None:
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None

    # --- failure and removal ---------------------------------------------------------------------------

    def refuse(self, error: ProtocolError) -> None:
        """Stop serving: the topic was deleted."""
        self.state.refusal = error
        self._end(error)

    def failed(self, error: BaseException) -> None:
        """Stop serving: the disk has failed. The node stops, because a retried sync would report a false success."""
        log.critical("%s: writing the log failed, the node stops: %s", self.name, error)
        failure = ProtocolError(pb.STORAGE_FAILED, f"{self.name}: writing the log failed: {error}")
        self.state.refusal = self.state.refusal or failure
        self._end(failure)
        self.tools.storage_failed(self.name, error)

    def _end(self, error: ProtocolError) -> None:
        self._cancel_sync()
        self.driver.stop()
        self.deduplication.forget()
        self.pipeline.abandon(error)
        self.changes.changed()
        self.changes.wake()

    async def remove(self) -> None:
        """Delete all files: the topic was deleted."""
        self.retention.close()
        await self.compaction.close()
        await self.tools.io.call(self.io_key, self.log.delete)

    async def close(self) -> None:
        """Write the producer snapshot, sync, and close the files."""
        self._cancel_sync()
        self.retention.close()
        await self.compaction.close()
        self.driver.stop()
        self.deduplication.forget()
        if self.state.refusal is None:
            self.snapshots.save()
        await self.tools.io.call(self.io_key, self.log.close)
