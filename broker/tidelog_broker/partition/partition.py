"""One partition of this node: its replica, its pipeline, its hot ring, and who waits for it.

The partition is the meeting place of the parts and holds little logic of its own: `pipeline` queues what producers
send, `driver` carries out what the replica in `core` decides and tells this class of news, `reader` serves
readers, who never see past the high watermark.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tidelog_broker.cluster.routes import Route, route_of
from tidelog_broker.core.replication.effects import Append, EpochDecided
from tidelog_broker.core.replication.epoch_writer import Candidate, Group, Owner
from tidelog_broker.core.ring import RingEntry
from tidelog_broker.partition.partition_node import PartitionNode
from tidelog_broker.partition.pipeline import Pipeline
from tidelog_broker.partition.reader import RETRY_AFTER_MS, PartitionReads
from tidelog_broker.partition.retention import Retention
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.header import unpack_header
from tidelog_proto.names import INTERNAL_PREFIX

log = logging.getLogger(__name__)

PRODUCER_SNAPSHOT_BATCHES = 4096
"""How many batches may lie behind the newest producer snapshot: the bound on what a takeover has to scan."""


class Partition(PartitionReads):
    """A partition that this node knows. All methods are for the event loop's thread."""

    def __init__(
        self, node: PartitionNode, record: pb.TopicRecord, index: int, driver: ReplicaDriver, io_key: int
    ) -> None:
        super().__init__(node, record, index, driver, io_key)
        self.offload = node.io
        self.pipeline = Pipeline(
            self, bytes_max=node.settings.partition_in_flight_bytes, group_bytes=node.settings.group_bytes
        )
        self.retention = Retention(self, self.failed)
        self._batches_since_snapshot = 0
        self._first_snapshot: tuple[int, int, int, bytes] | None = None
        self._sync_timer: asyncio.TimerHandle | None = None
        self._has_rolled = False
        self.is_internal = record.name.startswith(INTERNAL_PREFIX)
        """Whether clients may not write here."""
        self._quorum_known: tuple[pb.EpochDescriptor, ProtocolError | None] | None = None
        self._routed = self.replica.active
        self._route = route_of(self._routed)
        self._labels = (record.name, str(index))
        node.metrics.high_watermark.labels(*self._labels).set_function(lambda: self.high_watermark)
        self._log_start_gauge = node.metrics.log_start.labels(*self._labels)
        self._bytes_gauge = node.metrics.partition_bytes.labels(*self._labels)
        driver.start(self)

    # --- state -----------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """`active`, `sealed` (nobody owns it now, or not used since the start), `no quorum`, `limbo` or `failed`."""
        if self.refusal is not None:
            return "failed"
        if self.replica.halted is not None:
            return "limbo"
        if self.replica.is_member and self.quorum_lost() is not None:
            return "no quorum"
        active = self.replica.active
        if active.owner == self.node.node_id:
            return "active" if self.replica.can_append else "sealed"
        return "active" if self.node.cluster.alive(active.owner) else "sealed"

    @property
    def syncs_every_group(self) -> bool:
        """Whether an append to the active epoch is synced before it is acknowledged."""
        return self.driver.view.synced(self.epoch)

    @property
    def owner_id(self) -> str:
        """The node that owns the active epoch, as far as is known here."""
        return self.replica.active.owner

    @property
    def route(self) -> Route:
        """The active epoch, for who looks for its owner. Kept: METADATA asks for every partition at once."""
        active = self.replica.active
        if active is not self._routed:
            self._routed, self._route = active, route_of(active)
        return self._route

    def info(self) -> pb.PartitionInfo:
        """Return what TOPIC describe and CLUSTER_STATUS tell."""
        active = self.replica.active
        return pb.PartitionInfo(
            partition=self.index,
            owner=active.owner,
            epoch=active.epoch,
            placement=active.placement,
            log_start_offset=self.log_start,
            high_watermark=self.high_watermark,
            size_bytes=self.log.size_bytes,
            state=self.state,
        )

    # --- for the pipeline ------------------------------------------------------------------------------

    @property
    def writer(self) -> Owner | None:
        """The owner's state, while offsets may be given out."""
        return self.replica.owner if self.replica.can_append else None

    def unwritable(self) -> ProtocolError | None:
        """Why nothing can be written here and waiting makes no sense; None while it does, or can be."""
        if self.refusal is not None:
            return self.refusal
        replica = self.replica
        if replica.halted is not None:
            return self.limbo_error()
        if self.is_alone:
            return None
        active, node_id = replica.active, self.node.node_id
        if active.owner not in {node_id, ""}:
            if replica.is_member and not self.node.cluster.alive(active.owner):
                return self.quorum_lost() or ProtocolError(
                    pb.EPOCH_CHANGING,
                    f"{self.name}: {active.owner} is away, and nobody has taken over yet",
                    retry_after_ms=RETRY_AFTER_MS,
                )
            return self.not_owner()
        if not replica.is_member:
            return self.not_owner()
        return self.quorum_lost()

    def quorum_lost(self) -> ProtocolError | None:
        """Why no quorum can be had, None while one can. Kept until somebody comes or goes: every publish asks."""
        active, known = self.replica.active, self._quorum_known
        if known is None or known[0] is not active:
            known = self._quorum_known = (active, self._count_living(active))
        return known[1]

    def _count_living(self, active: pb.EpochDescriptor) -> ProtocolError | None:
        alive = self.node.cluster.alive
        away = [node for node in active.placement if node != self.node.node_id and not alive(node)]
        living = len(active.placement) - len(away)
        if living >= active.ack_quorum:
            return None
        return ProtocolError(
            pb.QUORUM_LOST,
            f"{self.name}: {living} of {len(active.placement)} replicas are there, {active.ack_quorum} are needed; "
            f"start {' or '.join(map(repr, away))} again",
            retry_after_ms=10 * RETRY_AFTER_MS,
        )

    def forget_quorum(self) -> None:
        """Count anew who is there: it has changed, and replicas are about to act on it."""
        self._quorum_known = None

    def want_owner(self) -> None:
        """Somebody wants to write here."""
        self.driver.want_owner()

    def reserve(self, candidates: Sequence[Candidate]) -> Group:
        """Give offsets to a group; `pump` sends and writes it."""
        return self.driver.reserve(candidates)

    def pump(self) -> None:
        """Carry out what `reserve` has ordered."""
        self.driver.go()

    def has_room(self, owner: Owner, needed_bytes: int) -> bool:
        """Whether a group can be appended without taking space or beginning a segment or an epoch first."""
        active = self.log.active
        return active is not None and active.epoch == owner.epoch and active.has_room(needed_bytes)

    def make_room(self, owner: Owner, needed_bytes: int) -> None:
        """Make sure of the space for a group; the owner's epoch begins in the log with its first one.

        Runs on an I/O worker.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the disk failed.
        """
        active = self.log.active
        if active is None or active.epoch != owner.epoch:
            self.log.start_epoch(owner.epoch, owner.next_offset)
        before = self.log.active
        segments = before.segment_count if before is not None else 0
        self.log.reserve(needed_bytes)
        after = self.log.active
        # Looked at on the loop once the group is there.
        self._has_rolled |= after is not None and after.segment_count > segments

    # --- news of the driver ----------------------------------------------------------------------------

    def appended(self, appends: Sequence[Append], *, seconds: float) -> None:
        """Batches are durable here: feed the ring, count, let the next group go."""
        metrics, group = self.node.metrics, self.pipeline.group
        metrics.append_seconds.observe(seconds)
        end_offset = appends[-1].end_offset
        for one in appends:
            self._batches_since_snapshot += len(one.batches)
        if appends[-1].epoch != self.replica.chain.active.epoch:
            pass  # decided meanwhile: the ring begins at its end, and what lies behind that is cut next
        elif group is not None and group.end_offset <= end_offset:
            for header, data in zip(group.headers, group.batches, strict=True):
                count = header.record_count
                metrics.records_in.value += count
                metrics.bytes_in.value += len(data)
                self._feed(
                    RingEntry(header.base_offset, header.base_offset + header.last_offset_delta + 1, count, data)
                )
        elif self.listeners:
            for data in (data for one in appends for data in one.batches):
                header = unpack_header(data)
                self._feed(RingEntry(header.base_offset, header.end_offset, header.record_count, data))
        else:
            self._restart_ring(end_offset)
        if self._first_snapshot is not None:
            snapshot, self._first_snapshot = self._first_snapshot, None
            self._save(snapshot)
        if self._batches_since_snapshot >= PRODUCER_SNAPSHOT_BATCHES:
            self.save_producers()
        if self._sync_timer is None and self.replica.active.flush == pb.INTERVAL:
            delay_s = self.topic.config.flush_interval_ms / 1000
            self._sync_timer = self.node.loop.call_later(delay_s, self._sync_now)
        if self._has_rolled:
            self._has_rolled = False
            self.retention.look_soon()
        elif group is None:
            self.retention.follow()
        self.pipeline.written(end_offset)
        if not self.is_alone:  # else the watermark has moved with it, which is told next
            self.pipeline.released()
        if self.listeners and self.high_watermark > appends[0].base_offset:
            self.wake()  # the other replicas were faster: it was committed before it was in the log here

    def filled(self) -> None:
        """More of the log is here: readers may have waited for it. It may begin where the owner's log did."""
        self.retention.note_log_start()
        self.wake()

    def _feed(self, entry: RingEntry) -> None:
        if entry.base_offset != self.ring.end_offset:
            self._restart_ring(entry.base_offset)
        self.node.rings.push(self.ring, entry)

    def _restart_ring(self, offset: int) -> None:
        if self.ring.size_bytes:
            self.node.rings.forget(self.ring)
        self.ring.restart(offset)

    def owner_ready(self) -> None:
        """Offsets may be given out."""
        owner = self.replica.owner
        assert owner is not None
        if owner.next_offset > 0 and len(owner.producers) and self.log.end_offset != owner.next_offset:
            # The log here does not tell what a peer has told: kept as soon as the epoch has a log.
            self._first_snapshot = (owner.epoch, owner.next_offset, 0, owner.producers.snapshot())
        self.node.taken_over.add(self.name, owner.epoch, owner.next_offset)
        self.changed()
        self.pipeline.go_on()

    def fenced(self) -> None:
        """Nothing more is appended to the active epoch here: what is queued waits for the next one."""
        if self.pipeline.waits_for_all:
            self.replica.candidate.wait_for_all()
        self.wake()

    def decided(self, news: EpochDecided) -> None:
        """An epoch has ended, and with it what was appended behind its end."""
        self._first_snapshot = None
        self._tell_of_loss(news)
        self.retention.note_log_start()  # it may have stood alone until now, and deleted without a note
        cut_offset = self.driver.cut_offset
        if self.ring.end_offset != news.end_offset or (cut_offset is not None and cut_offset < news.end_offset):
            self._restart_ring(news.end_offset)
        not_written = (
            ProtocolError(
                pb.EPOCH_CHANGING,
                f"{self.name}: epoch {news.epoch} ended before this was replicated; it is not stored, send it again",
                retry_after_ms=RETRY_AFTER_MS,
            )
            if news.successor == self.node.node_id
            else self.not_owner()
        )
        self.pipeline.decided(news.end_offset, not_written, held_by_all=news.held_by_all)
        self.node.route_news.changed(self.driver.key[0])
        self.not_confirmed()
        self.changed()
        self.wake()

    def _tell_of_loss(self, news: EpochDecided) -> None:
        if news.unsafe:
            log.warning(
                "DATA_LOSS: %s: an operator had epoch %d ended at offset %d without a quorum; what was acknowledged "
                "behind that is lost",
                self.name,
                news.epoch,
                news.end_offset,
            )
        elif news.short_logs and not self.node.cluster.is_alone:  # a node alone has said so of all at its start
            log.warning(
                "DATA_LOSS: %s: machines with copies of epoch %d went down, and flush=%s: it ends at offset %d, where "
                "the longest copy does; records acknowledged shortly before may be gone",
                self.name,
                news.epoch,
                pb.Flush.Name(self.driver.view.descriptor(news.epoch).flush).lower(),
                news.end_offset,
            )

    def commit_moved(self) -> None:
        """The high watermark is higher."""
        self.pipeline.released()
        if self.listeners:
            self.wake()

    def acknowledged(self) -> None:
        """Another replica has said how much it holds."""
        self.pipeline.acknowledged()

    def halted(self, reason: str) -> None:
        """The replica takes no further part, in this epoch or for good."""
        log.error("%s: %s", self.name, reason)
        self.pipeline.flush(self.limbo_error())
        self.changed()
        self.wake()

    def neighbours_changed(self) -> None:
        """Who is alive has changed: perhaps a quorum is gone, or is back."""
        self.changed()
        self.pipeline.go_on()

    def no_space_for_fences(self, error: ProtocolError) -> None:
        """A journal is full: what waits for a new epoch is refused, and may try again."""
        if not self.replica.can_append:
            self.pipeline.flush(error)
            self.changed(error)

    # --- producers -------------------------------------------------------------------------------------

    def save_producers(self) -> None:
        """Write a producer snapshot for the log as it stands, in the background."""
        if not self._batches_since_snapshot:
            return
        self._batches_since_snapshot = 0
        owner = self.replica.owner
        if owner is not None:
            self._save((owner.epoch, owner.next_offset, owner.digest, owner.producers.snapshot()))
            return
        tail, log_start = self.replica.tail, self.replica.log_start
        epoch, (offset, digest) = tail.epoch, tail.durable
        committed = self.high_watermark

        def rebuild_and_save() -> None:
            table, _ = self.driver.view.producers_at(offset, log_start=log_start)
            if table is not None:
                self.log.save_producer_snapshot(epoch, offset, digest, table.snapshot(), committed=committed)

        self.offload.start(self.io_key, rebuild_and_save, lambda _, error: self._snapshot_saved(error))

    def _save(self, snapshot: tuple[int, int, int, bytes]) -> None:
        committed = self.high_watermark
        self.offload.start(
            self.io_key,
            lambda: self.log.save_producer_snapshot(*snapshot, committed=committed),
            lambda _, error: self._snapshot_saved(error),
        )

    def _snapshot_saved(self, error: BaseException | None) -> None:
        if error is not None:
            # The log itself has everything; a start merely scans more of it.
            log.warning("%s: the producer snapshot was not written: %s", self.name, error)

    # --- timed syncs -----------------------------------------------------------------------------------

    def _sync_now(self) -> None:
        self._sync_timer = None
        self.offload.start(self.io_key, self._sync, lambda _, error: self._synced(error))

    def _sync(self) -> None:
        if self.log.active is not None and self.log.active.state == "active":
            self.log.sync()

    def _synced(self, error: BaseException | None) -> None:
        if error is not None:
            self.failed(error)

    # --- configuration and gauges ----------------------------------------------------------------------

    def reconfigure(self, record: pb.TopicRecord) -> None:
        """Take a new revision of the topic's configuration."""
        self.topic = record
        self.log.segment_bytes = record.config.segment_bytes

    def measure(self) -> None:
        """Bring the gauges up to date that no append moves."""
        self._log_start_gauge.set(self.log_start)
        self._bytes_gauge.set(self.log.size_bytes)

    # --- the end ---------------------------------------------------------------------------------------

    def refuse(self, error: ProtocolError) -> None:
        """Serve no more: its topic was deleted."""
        self.refusal = error
        self._cancel_sync()
        self.driver.stop()
        self.pipeline.abandon(error)
        self.changed()
        self.wake()

    def failed(self, error: BaseException) -> None:
        """The disk failed under this partition: the node stops, because a retried sync would lie."""
        log.critical("%s: the log cannot be written any more: %s", self.name, error)
        failure = ProtocolError(pb.STORAGE_FAILED, f"{self.name}: the log cannot be written any more: {error}")
        self.refusal = self.refusal or failure
        self._cancel_sync()
        self.driver.stop()
        self.pipeline.abandon(failure)
        self.changed()
        self.wake()
        self.node.storage_failed(self.name, error)

    def _cancel_sync(self) -> None:
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None

    async def remove(self) -> None:
        """Delete everything of a deleted topic's partition."""
        self.retention.close()
        await self.offload.call(self.io_key, self.log.delete)

    def hide(self) -> None:
        """Take the gauges away, before a new topic of the same name brings its own."""
        for gauge in (self.node.metrics.high_watermark, self.node.metrics.log_start, self.node.metrics.partition_bytes):
            gauge.remove(*self._labels)

    async def close(self) -> None:
        """Write the producer snapshot, sync what is not, close the files."""
        self._cancel_sync()
        self.retention.close()
        self.driver.stop()
        if self.refusal is None:
            self.save_producers()
        await self.offload.call(self.io_key, self.log.close)
