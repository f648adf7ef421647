"""One partition of this node: its log, its owner state, its hot ring, and who waits for it.

The partition is the meeting place of the parts and holds little logic of its own: `pipeline` writes,
`epochs` opens one for this incarnation of the node, `core` decides. Readers never see past the
high watermark. `owner` is None until the partition is first used after a start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidelog_broker.core.owner import Group, Owner
from tidelog_broker.core.ring import HotRing, RingEntry
from tidelog_broker.pipeline import Pipeline
from tidelog_broker.services import Services
from tidelog_broker.storage.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch import RecordBatch, iter_batches
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)

PRODUCER_SNAPSHOT_BATCHES = 4096
"""How many batches may lie behind the newest producer snapshot: the bound on what a start has to scan."""


class Partition:
    """A partition that this node stores. All methods are for the event loop's thread."""

    def __init__(self, node: Services, record: pb.TopicRecord, index: int, store: PartitionLog) -> None:
        self.node = node
        self.topic = record
        self.index = index
        self.log = store
        self.offload = node.io
        self.io_key = hash((record.topic_id, index)) & 0x7FFFFFFF
        self.name = f"{record.name}/{index}"
        self.owner: Owner | None = None
        self.ring = HotRing(bytes_max=0, start_offset=store.end_offset)
        self.pipeline = Pipeline(
            self,
            bytes_max=node.settings.partition_in_flight_bytes,
            group_bytes=node.settings.group_bytes,
            inline_writes=node.inline_writes,
        )
        self.listeners: set[Callable[[], None]] = set()
        self.refusal: ProtocolError | None = None
        self._activation: asyncio.Task[None] | None = None
        self._activation_error: ProtocolError | None = None
        self._batches_since_snapshot = 0
        self._sync_timer: asyncio.TimerHandle | None = None
        self._has_rolled = False
        self._labels = (record.name, str(index))
        node.metrics.high_watermark.labels(*self._labels).set_function(lambda: self.high_watermark)
        self._log_start_gauge = node.metrics.log_start.labels(*self._labels)
        self._bytes_gauge = node.metrics.partition_bytes.labels(*self._labels)

    # --- state -----------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """`active`, `sealed` (not used since the node started), `limbo` or `failed`."""
        if self.refusal is not None:
            return "limbo" if self.refusal.code == pb.LIMBO else "failed"
        return "active" if self.owner is not None else "sealed"

    @property
    def high_watermark(self) -> int:
        """The end of what is committed."""
        return self.owner.high_watermark if self.owner is not None else self.log.end_offset

    @property
    def log_start(self) -> int:
        """The first offset that is still there."""
        return self.log.start_offset

    async def ensure_readable(self) -> None:
        """Make sure that what is committed is known. A partition in LIMBO is readable up to its damage.

        Raises:
            ProtocolError: STORAGE_FAILED, DISK_FULL, or the topic is gone.
        """
        if self.refusal is None or self.refusal.code != pb.LIMBO:
            try:
                await self.ensure_active()
            except ProtocolError as error:
                if error.code != pb.LIMBO:
                    raise

    @property
    def epoch(self) -> int:
        """The active epoch's number, or the newest one that was stored."""
        return self.owner.epoch if self.owner is not None else self.node.epochs.active_epoch(self)

    @property
    def syncs_every_group(self) -> bool:
        """Whether an append is synced before it is acknowledged."""
        return self.topic.config.flush not in {pb.INTERVAL, pb.NEVER}

    def info(self) -> pb.PartitionInfo:
        """Return what TOPIC describe and CLUSTER_STATUS tell."""
        return pb.PartitionInfo(
            partition=self.index,
            owner=self.node.node_id,
            epoch=self.epoch,
            placement=[self.node.node_id],
            log_start_offset=self.log_start,
            high_watermark=self.high_watermark,
            size_bytes=self.log.size_bytes,
            state=self.state,
        )

    # --- becoming active -------------------------------------------------------------------------------

    def activate_soon(self) -> asyncio.Task[None]:
        """Begin to open an epoch for this incarnation, unless that is under way; the queue goes on after it."""
        if self._activation is None:
            self._activation = self.node.spawn(self._activate(), f"activate {self.name}")
        return self._activation

    async def ensure_active(self) -> Owner:
        """Return the owner state, opening an epoch first if need be.

        Raises:
            ProtocolError: LIMBO, STORAGE_FAILED or DISK_FULL when the partition cannot be served.
        """
        if self.owner is None and self.refusal is None:
            await asyncio.shield(self.activate_soon())
        if self.refusal is not None:
            raise self.refusal
        if self.owner is None:
            assert self._activation_error is not None
            raise self._activation_error
        return self.owner

    async def _activate(self) -> None:
        try:
            self.owner = await self.node.epochs.take_over(self)
        except ProtocolError as error:
            self._not_activated(error)
            return
        self.ring = HotRing(bytes_max=self.node.settings.ring_bytes, start_offset=self.owner.high_watermark)
        self.pipeline.go_on()

    def _not_activated(self, error: ProtocolError) -> None:
        """Answer whoever waited. A full disk may have room later; damage and a failed disk stay."""
        self._activation = None
        if self.refusal is not None:
            return  # deleted meanwhile: the files were taken away under the take-over
        if error.code == pb.STORAGE_FAILED:
            self.pipeline.refuse(error)
            self.failed(error)
        elif error.code == pb.LIMBO:
            self.refuse(error)
        else:
            self._activation_error = error
            self.pipeline.flush(error)

    # --- before an append ------------------------------------------------------------------------------

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

    # --- after an append -------------------------------------------------------------------------------

    def appended(self, group: Group, *, seconds: float) -> None:
        """A group is durable here: feed the ring, wake who waits, count."""
        metrics = self.node.metrics
        metrics.append_seconds.observe(seconds)
        deleted = self.refusal is not None  # nobody reads it, and nothing may reach its files any more
        push, ring = self.node.rings.push, self.ring
        for header, data in zip(group.headers, group.batches, strict=True):
            count = header.record_count
            metrics.records_in.value += count
            metrics.bytes_in.value += len(data)
            if not deleted:
                push(
                    ring, RingEntry(header.base_offset, header.base_offset + header.last_offset_delta + 1, count, data)
                )
        if deleted:
            return
        self._batches_since_snapshot += len(group.batches)
        if self._batches_since_snapshot >= PRODUCER_SNAPSHOT_BATCHES:
            self.save_producers()
        if self.topic.config.flush == pb.INTERVAL and self._sync_timer is None:
            delay_s = self.topic.config.flush_interval_ms / 1000
            self._sync_timer = self.node.loop.call_later(delay_s, self._sync_now)
        if self._has_rolled:
            self._has_rolled = False
            self._retain_soon()
        if self.listeners:
            self.wake()

    def save_producers(self) -> None:
        """Write a producer snapshot for the log as it stands, in the background."""
        owner = self.owner
        if owner is None or not self._batches_since_snapshot:
            return
        self._batches_since_snapshot = 0
        snapshot = (owner.epoch, owner.next_offset, owner.digest, owner.producers.snapshot())
        self.offload.start(
            self.io_key,
            lambda: self.log.save_producer_snapshot(*snapshot),
            lambda _, error: self._snapshot_saved(error),
        )

    def _snapshot_saved(self, error: BaseException | None) -> None:
        if error is not None:
            # The log itself has everything; a start merely scans more of it.
            log.warning("%s: the producer snapshot was not written: %s", self.name, error)

    def _sync_now(self) -> None:
        self._sync_timer = None
        self.offload.start(self.io_key, self.log.sync, lambda _, error: self._synced(error))

    def _synced(self, error: BaseException | None) -> None:
        if error is not None:
            self.pipeline.refuse(ProtocolError(pb.STORAGE_FAILED, f"{self.name}: {error}"))
            self.failed(error)

    # --- reading ---------------------------------------------------------------------------------------

    def check_offset(self, offset: int) -> None:
        """Refuse an offset that is gone or was never given out.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE with the bounds.
        """
        end = self.owner.next_offset if self.owner is not None else self.high_watermark
        if not self.log_start <= offset <= end:
            raise ProtocolError(
                pb.OFFSET_OUT_OF_RANGE,
                f"{self.name}: offset {offset} is not in {self.log_start}..{self.high_watermark}",
                log_start_offset=self.log_start,
                high_watermark=self.high_watermark,
            )

    def read_hot(self, offset: int, bytes_max: int, records_max: int | None = None) -> list[RingEntry] | None:
        """Return committed batches from memory; None when `offset` lies before the ring."""
        if offset >= self.high_watermark:
            return []
        return self.ring.read(offset, bytes_max, records_max)

    async def read_log(self, offset: int, bytes_max: int) -> list[memoryview]:
        """Read committed batches from the log, at least one, about `bytes_max` bytes.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE when retention was faster, STORAGE_FAILED when the disk fails,
                LIMBO where the log is damaged.
        """
        limit = self.high_watermark
        if offset >= limit:
            return []
        try:
            read = await self.node.readers.call(self.io_key, self.log.read, offset, bytes_max, limit_offset=limit)
        except ProtocolError as error:
            raise self._why(error) from error
        return read.batches

    def _why(self, error: ProtocolError) -> ProtocolError:
        """Return why a read failed: the log was closed under it when its topic was deleted."""
        gone = self.refusal is not None and self.refusal.code != pb.LIMBO
        return self.refusal if gone and self.refusal is not None else error

    def wake(self) -> None:
        """Tell everybody who waits that there may be something new."""
        for listener in list(self.listeners):
            listener()

    async def find_by_time(self, timestamp_us: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first committed record that is at least that late, or None.

        Raises:
            ProtocolError: as `read_log`.
        """
        try:
            offset = await self.node.readers.call(self.io_key, self.log.find_by_time, timestamp_us)
        except ProtocolError as error:
            raise self._why(error) from error
        if offset is None or offset >= self.high_watermark:
            return None
        for buffer in await self.read_log(offset, 1):
            for view in iter_batches(buffer):
                batch = RecordBatch.parse(view)
                for record_offset, stamp_us in zip(
                    range(batch.base_offset, batch.end_offset), batch.timestamps_us(), strict=True
                ):
                    if stamp_us >= timestamp_us:
                        return record_offset, stamp_us
        return None

    async def delete_before(self, offset: int) -> None:
        """Delete whole segments below `offset`."""
        await self.offload.call(self.io_key, self.log.delete_before, offset)

    async def retain(self) -> None:
        """Delete the oldest segments past the topic's bound."""
        bytes_max = self.topic.config.retention_bytes
        if self._is_past(bytes_max):
            await self.offload.call(self.io_key, self.log.retain, bytes_max)

    def _retain_soon(self) -> None:
        """As `retain`, when a segment has just begun: the bound holds at any rate, and the next one finds a file."""
        bytes_max = self.topic.config.retention_bytes
        if self._is_past(bytes_max):
            self.offload.start(self.io_key, lambda: self.log.retain(bytes_max), lambda _, error: self._retained(error))

    def _retained(self, error: BaseException | None) -> None:
        if error is not None:
            self.failed(error)

    def _is_past(self, bytes_max: int) -> bool:
        return bool(bytes_max) and self.log.size_bytes > bytes_max and self.refusal is None

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
        """Serve no more: deleted, in limbo or failed."""
        self.refusal = error
        self._cancel_sync()
        self.pipeline.refuse(error)
        self.wake()

    def failed(self, error: BaseException) -> None:
        """The disk failed under this partition: the node stops, because a retried sync would lie."""
        if self.refusal is None:
            self.refusal = ProtocolError(pb.STORAGE_FAILED, f"{self.name}: {error}")
        self.wake()
        self.node.storage_failed(self.name, error)

    def _cancel_sync(self) -> None:
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None

    async def remove(self) -> None:
        """Delete everything of a deleted topic's partition."""
        await self.offload.call(self.io_key, self.log.delete)

    def hide(self) -> None:
        """Take the gauges away, before a new topic of the same name brings its own."""
        for gauge in (self.node.metrics.high_watermark, self.node.metrics.log_start, self.node.metrics.partition_bytes):
            gauge.remove(*self._labels)

    async def close(self) -> None:
        """Write the producer snapshot, sync what is not, close the files."""
        self._cancel_sync()
        if self.refusal is None:
            self.save_producers()
        await self.offload.call(self.io_key, self.log.close)
