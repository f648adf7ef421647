"""Reading a partition, on its owner and on every other replica: up to what is known to be committed, no further.

A reader that asks past that waits; it is never told that an offset which another node may have committed does not
exist. What lies below what this copy holds is on another replica, or deleted by retention everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog_broker.core.ring import HotRing, RingEntry
from tidelog_broker.partition.partition_node import PartitionNode
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.storage.io.errors import NotHeldError
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch import RecordBatch, iter_batches
from tidelog_proto.errors import ProtocolError

RETRY_AFTER_MS = 20
FETCHED_AFTER_MS = 500
"""How soon to ask again for what is being fetched from another node."""
CONFIRM_TIMEOUT_S = 2.0


class PartitionReads:
    """What readers need of a partition. The base of `Partition`, which holds what is shared."""

    def __init__(
        self, node: PartitionNode, record: pb.TopicRecord, index: int, driver: ReplicaDriver, io_key: int
    ) -> None:
        self.node = node
        self.topic = record
        self.index = index
        self.driver = driver
        self.replica = driver.replica
        self.log: PartitionLog = driver.view.store
        self.io_key = io_key
        self.name = f"{record.name}/{index}"
        self.ring = HotRing(bytes_max=node.settings.ring_bytes, start_offset=self.log.end_offset)
        self.listeners: set[Callable[[], None]] = set()
        self.refusal: ProtocolError | None = None
        """Why it serves nothing any more: deleted or failed."""
        self._looked_at: pb.EpochDescriptor | None = None
        self._is_alone = False
        self._waiters: dict[asyncio.Future[None], None] = {}
        """In the order in which they came."""
        self._confirmations: dict[int, asyncio.Future[None]] = {}

    # --- state -----------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The active epoch's number."""
        return self.replica.active.epoch

    @property
    def is_alone(self) -> bool:
        """Whether this node holds the only copy."""
        active = self.replica.active
        if active is not self._looked_at:  # asked with every publish, and looking through a message takes its time
            self._looked_at, self._is_alone = active, list(active.placement) == [self.node.node_id]
        return self._is_alone

    @property
    def high_watermark(self) -> int:
        """The end of what is committed, as far as is known here; of a lone copy in LIMBO, the end of what is good."""
        if self.replica.halted is not None and self.is_alone:
            return self.log.end_offset
        return self.replica.high_watermark

    @property
    def readable_end(self) -> int:
        """The end of what is committed and in the log here, and is going to stay there."""
        end, cut_offset = min(self.high_watermark, self.log.end_offset), self.driver.cut_offset
        return end if cut_offset is None else min(end, cut_offset)

    @property
    def log_start(self) -> int:
        """The first offset that retention has left, here or on a node that this one is still fetching from."""
        whole_alone = self.is_alone and not self.replica.history.incomplete
        return self.log.start_offset if whole_alone else self.replica.log_start

    def is_changing(self, epoch: int) -> bool:
        """Whether `epoch` is over here, or about to be."""
        return self.epoch != epoch or self.replica.promised or self.replica.retiring

    def not_owner(self) -> ProtocolError:
        """Return the error that sends a client to the owner."""
        active = self.replica.active
        return ProtocolError(
            pb.NOT_OWNER,
            f"{self.name} is owned by {active.owner or 'nobody yet'} in epoch {active.epoch}",
            retry_after_ms=RETRY_AFTER_MS,
            epoch=active.epoch,
        )

    def limbo_error(self) -> ProtocolError:
        """Return the error of a halted replica."""
        return ProtocolError(
            pb.LIMBO, f"{self.name} takes no records here: {self.replica.halted}; see `tidelog log verify`"
        )

    # --- waiting ---------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Tell everybody who waits that there may be something new."""
        for listener in list(self.listeners):
            listener()

    def changed(self, error: ProtocolError | None = None) -> None:
        """Let those go on who wait for the replica to change, or fail them."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)

    async def change(self) -> None:
        """Wait until the replica has changed.

        Raises:
            ProtocolError: DISK_FULL: what would change it finds no space.
        """
        waiter: asyncio.Future[None] = self.node.loop.create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    async def ensure_active(self) -> None:
        """Return when this node may give out offsets, beginning an epoch of a lone copy first if need be.

        Raises:
            ProtocolError: NOT_OWNER, LIMBO, QUORUM_LOST, STORAGE_FAILED, DISK_FULL, or the topic is gone.
        """
        while True:
            error = self.unwritable()
            if error is not None:
                raise error
            if self.replica.can_append:
                return
            self.driver.want_owner()
            if self._must_wait():
                await self.change()

    def _must_wait(self) -> bool:
        return not self.replica.can_append and self.unwritable() is None

    async def ensure_readable(self) -> None:
        """Make sure that this node serves readers. A lone partition in LIMBO is readable up to its damage.

        Raises:
            ProtocolError: NOT_OWNER where there is no copy, STORAGE_FAILED, DISK_FULL, or the topic is gone.
        """
        if self.refusal is not None:
            raise self.refusal
        if not self.replica.is_member:
            raise self.not_owner()
        if self.is_alone and self.replica.halted is None:
            await self.ensure_active()

    async def confirm_owner(self) -> None:
        """Make sure that this node owned the active epoch after this was called: nobody has committed more elsewhere.

        Raises:
            ProtocolError: NOT_OWNER, or what `ensure_active` raises; QUORUM_LOST when too few replicas answer.
        """
        await self.ensure_readable()
        if self.is_alone:
            return
        await self.ensure_active()
        confirmed: asyncio.Future[None] = self.node.loop.create_future()
        number = self.replica.ownership.confirm()
        self._confirmations[number] = confirmed
        self.driver.pump()
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                await confirmed
        except TimeoutError:
            raise ProtocolError(
                pb.QUORUM_LOST, f"{self.name}: too few replicas answer", retry_after_ms=RETRY_AFTER_MS
            ) from None
        finally:
            self._confirmations.pop(number, None)

    def owner_confirmed(self, number: int) -> None:
        """A quorum knows of no later epoch than this node's; see `driver.Listener`."""
        for asked, waiter in self._confirmations.items():
            if asked <= number and not waiter.done():
                waiter.set_result(None)

    def not_confirmed(self) -> None:
        """The epoch is over: whoever waits for its confirmation is sent on."""
        for waiter in self._confirmations.values():
            if not waiter.done():
                waiter.set_exception(self.not_owner())

    def unwritable(self) -> ProtocolError | None:
        """Why nothing can be written here and waiting makes no sense; None while it does, or can be."""
        raise NotImplementedError

    # --- reading ---------------------------------------------------------------------------------------

    def check_offset(self, offset: int) -> None:
        """Refuse an offset that is gone, not in this copy, or, where nobody else could know it, was never given out.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE with the bounds, NOT_OWNER, EPOCH_CHANGING while it is being fetched.
        """
        owner = self.replica.owner
        end = (owner.next_offset if owner is not None else self.high_watermark) if self.is_alone else None
        if offset < self.log_start or (end is not None and offset > end):
            raise ProtocolError(
                pb.OFFSET_OUT_OF_RANGE,
                f"{self.name}: offset {offset} is not in {self.log_start}..{self.high_watermark}",
                log_start_offset=self.log_start,
                high_watermark=self.high_watermark,
            )
        if self._is_missing(offset) or (offset < self.log.start_offset and not self.is_alone):
            raise self.not_here(offset)

    def _is_missing(self, offset: int) -> bool:
        """Whether a record lies in an epoch that has not come here yet."""
        history = self.replica.history
        if not history.incomplete or self.log.start_offset <= offset < self.log.end_offset:
            return False
        return offset < history.whole_from

    def not_here(self, offset: int) -> ProtocolError:
        """Return the error for a committed record that this copy lacks: the owner has it, or is fetching it itself."""
        missing = self.replica.history.missing()
        if missing is None or self.replica.active.owner != self.node.node_id:
            return self.not_owner()
        what = f"{self.name}: offset {offset} is not here yet, {missing.records:,} older records are missing"
        if missing.nowhere:
            where = f"no node that stored epoch {missing.epoch} since has it or answers; start the one that has it"
        else:
            where = f"epoch {missing.epoch} is being fetched from {missing.source or 'another node'}"
        return ProtocolError(pb.EPOCH_CHANGING, f"{what}: {where}", retry_after_ms=FETCHED_AFTER_MS)

    def read_hot(self, offset: int, bytes_max: int, records_max: int | None = None) -> list[RingEntry] | None:
        """Return committed batches from memory; None when `offset` lies before the ring."""
        end = self.readable_end
        if offset >= end:
            return []
        found = self.ring.read(offset, bytes_max, records_max)
        while found and found[-1].end_offset > end:
            found.pop()
        return found

    async def read_log(self, offset: int, bytes_max: int) -> list[memoryview]:
        """Read committed batches from the log, at least one, about `bytes_max` bytes.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE when retention was faster, STORAGE_FAILED when the disk fails,
                LIMBO where the log is damaged, NOT_OWNER where another replica has it, EPOCH_CHANGING while it is
                being fetched.
        """
        limit = self.readable_end
        if offset >= limit:
            return []
        try:
            read = await self.node.readers.call(self.io_key, self.log.read, offset, bytes_max, limit_offset=limit)
        except NotHeldError as error:
            raise self.not_here(offset) from error
        except ProtocolError as error:
            raise self._why(error) from error
        return read.batches

    def _why(self, error: ProtocolError) -> ProtocolError:
        """Return why a read failed: the log was closed under it when its topic was deleted."""
        return self.refusal if self.refusal is not None else error

    async def find_by_time(self, timestamp_us: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first committed record that is at least that late, or None.

        Raises:
            ProtocolError: as `read_log`.
        """
        try:
            offset = await self.node.readers.call(self.io_key, self.log.find_by_time, timestamp_us)
        except ProtocolError as error:
            raise self._why(error) from error
        if self.replica.history.incomplete and (offset is None or offset <= self.replica.history.whole_from):
            raise self.not_here(self.log_start)  # an older one may be the first
        if offset is None or offset >= self.readable_end:
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
