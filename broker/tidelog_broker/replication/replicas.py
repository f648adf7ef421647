"""The replicas of a node: created when partitions are opened, ticked when due, and given other nodes' messages.

A heap holds when each replica is due, and one timer of the event loop waits for the first. A deadline that has moved
earlier is pushed again; one that has moved later is detected when it expires. After an append or an acknowledgement
nothing is due for a heartbeat interval. So the deadline of a replica with such inputs, if it has no tick within that
interval anyway, is examined every few milliseconds, together with others: examining it for every record would cost as
much as storing the record. A follower that receives the continuation of its log is not examined, because no deadline
moves earlier (`Replica.receive`).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tidelog_broker.core.replication.ownership import Ownership
from tidelog_broker.core.replication.ports import Batch, Timing
from tidelog_broker.core.replication.replica import Replica
from tidelog_broker.core.topics import META_TOPIC_ID, OFFSETS_TOPIC_ID, PartitionKey
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.driver_ports import Tools
from tidelog_broker.replication.joint_append import JointAppend
from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_broker.storage.partition.log_start import has_log_start, load_log_start
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.wire.one_way import LinkMessage
from tidelog_proto import broker_pb2 as pb

LOOK_MS: Final = 5
"""Delay after an append or acknowledgement before its replica's deadline is examined, together with those of others."""
PORTION: Final = 16
"""Maximum number of replicas that handle changes or timers before the event loop handles messages again."""
RECENTLY_MS: Final = 10_000
"""A partition written within this time probably has waiting clients."""
FIRST: Final = frozenset({META_TOPIC_ID, OFFSETS_TOPIC_ID})
"""Topics whose partitions are handled first: creating topics, joining and committing depend on them."""


def clock_ms(loop: asyncio.AbstractEventLoop) -> Callable[[], int]:
    """Return the replicas' clock: the event loop's, in whole milliseconds; it never goes back."""
    time_s = loop.time
    return lambda: int(time_s() * 1000)


class NewPartition(NamedTuple):
    """A partition whose replica is to be opened: key, name for messages, and first epoch from the topic's record."""

    key: PartitionKey
    name: str
    genesis: pb.EpochDescriptor


class Replication:
    """Creates a node's replicas, runs their timers, and passes them the messages of other nodes.

    All methods are for the event loop's thread.

    Args:
        rebooted: whether the machine crashed since the node last ran.
    """

    def __init__(
        self,
        node_id: str,
        incarnation: int,
        *,
        tools: Tools,
        rebooted: bool,
        timing: Timing | None = None,
    ) -> None:
        self.chains = tools.chains
        self.node_id = node_id
        self._incarnation = incarnation
        self._tools = tools
        self._rebooted = rebooted
        self._timing = timing or Timing()
        self._loop = asyncio.get_running_loop()
        self._drivers: dict[PartitionKey, ReplicaDriver] = {}
        self._pushing: dict[ReplicaDriver, None] = {}
        """Every replica that owns an epoch with followers; it may also have replicas that no longer do."""
        self._deleted: set[bytes] = set()
        self._timers: list[tuple[int, int, ReplicaDriver]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._touched_replicas: list[ReplicaDriver] = []
        self._unaware: deque[ReplicaDriver] = deque()
        """Replicas that have not been notified yet of a changed set of live nodes."""
        self._look_timer: asyncio.TimerHandle | None = None
        self._ringing = False
        self._closed = False
        self._adopt: Callable[[PartitionKey], None] | None = None

    # --- partitions ------------------------------------------------------------------------------------

    async def open(self, new: NewPartition, store: PartitionLog, io_key: int) -> ReplicaDriver:
        """Create the replica of a partition whose log is open; it does nothing before `ReplicaDriver.start`.

        Raises:
            StorageError: the disk failed during repair of the log.
        """
        key = new.key
        chain = self.chains.chain(key, new.genesis)
        fence = self.chains.fence(key, chain.active.epoch)

        def open_view() -> ReplicaLog:
            fs, directory = self._tools.fs, store.directory
            return ReplicaLog.open(
                store,
                chain,
                node_id=self.node_id,
                log_start=load_log_start(fs, directory) if has_log_start(fs, directory) else None,
                deleted_below=fence.deleting_below if fence is not None else 0,
                rebooted=self._rebooted,
            )

        view = await self._tools.io.call(io_key, open_view)
        replica = Replica(
            key,
            node_id=self.node_id,
            incarnation=self._incarnation,
            chain=chain,
            fence=fence,
            log=view,
            cluster_hints=self._tools.neighbours,
            now_ms=self._tools.now_ms(),
            timing=self._timing,
            doubt=view.doubt,
        )
        driver = ReplicaDriver(
            key,
            new.name,
            io_key,
            replica=replica,
            view=view,
            tools=self._tools,
            schedule=self._schedule,
            schedule_later=self._schedule_later,
            owns=self._begins_to_push,
        )
        self._drivers[key] = driver
        return driver

    def get(self, key: PartitionKey) -> ReplicaDriver | None:
        """Return a partition's driver; None if the partition is not open on this node."""
        return self._drivers.get(key)

    def all(self) -> list[ReplicaDriver]:
        """Return the drivers of all open partitions."""
        return list(self._drivers.values())

    def pushing(self) -> list[Ownership]:
        """Return the ownership of every epoch that this node owns and others store."""
        for driver in [driver for driver in self._pushing if not driver.replica.followers]:
            del self._pushing[driver]
        return [driver.replica.ownership for driver in self._pushing]

    def drop(self, topic_id: bytes) -> None:
        """Stop the replicas of a deleted topic at once; later messages are answered with the deletion."""
        self._deleted.add(topic_id)
        for key in [key for key in self._drivers if key[0] == topic_id]:
            driver = self._drivers.pop(key)
            self._pushing.pop(driver, None)
            driver.stop()

    async def forget(self, topic_id: bytes, partitions: int) -> None:
        """Remove the journal entries of a deleted topic, whose replicas have been dropped."""
        self._deleted.add(topic_id)
        await self.chains.forget(topic_id, partitions)

    def joint_append(self) -> JointAppend:
        """Return an object that appends to several partitions with one write."""
        return JointAppend(self._tools)

    # --- the other nodes -------------------------------------------------------------------------------

    def take_part(self, adopt: Callable[[PartitionKey], None]) -> None:
        """Accept messages of other nodes; `adopt` is called with partitions that have no replica on this node."""
        self._adopt = adopt

    def receive(self, peer_id: str, message: LinkMessage, batches: Sequence[Batch]) -> None:
        """Handle a one-way message of another node.

        If the partition is not open here, the message is dropped and the sender repeats it; meanwhile the partition is
        opened, or the sender gets the answer that its topic was deleted.
        """
        if self._adopt is None:
            return
        key = (message.topic_id, message.partition)
        driver = self._drivers.get(key)
        if driver is not None:
            driver.receive(peer_id, _as_status(message) if isinstance(message, pb.ChainDigest) else message, batches)
        elif message.topic_id not in self._deleted:
            self._adopt(key)
        elif not isinstance(message, pb.MetadataUpdate):
            deletion = pb.MetadataUpdate(topic_id=message.topic_id, partition=message.partition, deleted=True)
            self._tools.neighbours.send((peer_id,), deletion, ())

    def liveness_changed(self) -> None:
        """Notify the replicas, in portions, that the set of live nodes has changed.

        Internal topics come first, then partitions written recently, which probably have waiting clients. All nodes of
        a partition have seen the same writes, so they use about the same order. When a node with hundreds of partitions
        dies, portions let begun takeovers proceed while others begin; otherwise all would finish as late as the last
        one.
        """
        waits = bool(self._unaware)
        since_ms = self._tools.now_ms() - RECENTLY_MS
        self._unaware = deque(
            sorted(self.all(), key=lambda driver: (driver.key[0] not in FIRST, driver.written_ms < since_ms))
        )
        if not waits:
            self._notify_replicas()

    def _notify_replicas(self) -> None:
        for _ in range(min(PORTION, len(self._unaware))):
            self._unaware.popleft().liveness_changed()
        if self._unaware and not self._closed:
            self._loop.call_soon(self._notify_replicas)

    # --- timers ----------------------------------------------------------------------------------------

    def _begins_to_push(self, driver: ReplicaDriver) -> None:
        if driver.replica.followers:
            self._pushing[driver] = None

    def _schedule(self, driver: ReplicaDriver) -> None:
        deadline_ms = driver.replica.deadline_ms
        if deadline_ms is None or (driver.scheduled_ms is not None and driver.scheduled_ms <= deadline_ms):
            return
        # Wait a moment even for a past deadline: a core that keeps requesting one would block the event loop.
        deadline_ms = max(deadline_ms, self._tools.now_ms() + 1)
        driver.scheduled_ms = deadline_ms
        heapq.heappush(self._timers, (deadline_ms, next(self._numbers), driver))
        if not self._ringing and (self._timer is None or deadline_ms < self._timer_ms):
            self._arm()

    def _schedule_later(self, driver: ReplicaDriver) -> None:
        assert not driver.is_touched
        driver.is_touched = True
        if driver.scheduled_ms is not None and driver.scheduled_ms <= self._tools.now_ms() + self._timing.heartbeat_ms:
            return  # The scheduled call is early enough.
        self._touched_replicas.append(driver)
        if self._look_timer is None and not self._closed:
            self._look_timer = self._loop.call_later(LOOK_MS / 1000, self._look)

    def _look(self) -> None:
        self._look_timer = None
        touched, self._touched_replicas = self._touched_replicas, []
        for driver in touched:
            driver.is_touched = False
            if not driver.stopped:
                self._schedule(driver)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._timers and not self._closed:
            self._timer_ms = self._timers[0][0]
            delay_s = max(0, self._timer_ms - self._tools.now_ms()) / 1000
            self._timer = self._loop.call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now_ms = self._tools.now_ms()
        due: list[ReplicaDriver] = []
        while self._timers and self._timers[0][0] <= now_ms and len(due) < PORTION:
            at_ms, _, driver = heapq.heappop(self._timers)
            # Otherwise the entry is stale: the replica was rescheduled for an earlier time.
            if driver.scheduled_ms == at_ms:
                driver.scheduled_ms = None
                driver.is_touched = False
                due.append(driver)
        self._ringing = True
        for driver in due:
            driver.tick()
        self._ringing = False
        self._arm()

    async def close(self) -> None:
        """Stop all replicas; return when no journal write is pending."""
        self._closed = True
        self._arm()
        if self._look_timer is not None:
            self._look_timer.cancel()
        for driver in self._drivers.values():
            driver.stop()
        await self.chains.close()


def _as_status(digest: pb.ChainDigest) -> pb.EpochStatus:
    """Convert a digest to a request for the missing part of the longer chain."""
    return pb.EpochStatus(
        topic_id=digest.topic_id, partition=digest.partition, epoch=digest.epoch, previous_hash=digest.previous_hash
    )
