"""All replicas of this node: made when a topic's partitions are opened, ticked when they are due, fed by other nodes.

One heap holds when each replica wants to be ticked and one timer of the event loop waits for the first of them. A
deadline that has moved earlier is pushed again; one that has moved later is found out when it comes up. After an append
or an acknowledgement nothing is due for a heartbeat's time. So a replica that is busy with those, and is not ticked
within that time anyway, has its deadline looked at every few milliseconds, together with others: to look at one with
every record cost as much as to store the record. A follower that is sent what continues its log has no reason to: that
moves no deadline to an earlier time (`Replica.receive`).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tidelog_broker.core.replication.outbox import LinkMessage
from tidelog_broker.core.replication.ownership import Ownership
from tidelog_broker.core.replication.ports import Batch, Timing
from tidelog_broker.core.replication.replica import Replica
from tidelog_broker.core.topics import META_TOPIC_ID, OFFSETS_TOPIC_ID, PartitionKey
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.driver_ports import Tools
from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_broker.storage.partition.log_start import load_log_start
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb

LOOK_MS: Final = 5
PORTION: Final = 16
"""So many replicas act on news, or on time, before the event loop sees to messages again."""
RECENTLY_MS: Final = 10_000
"""Somebody may be waiting for a partition that was written to so shortly ago."""
FIRST: Final = frozenset({META_TOPIC_ID, OFFSETS_TOPIC_ID})
"""Topics whose partitions hear of news before all others: without them nobody creates, joins or commits."""


def clock_ms(loop: asyncio.AbstractEventLoop) -> Callable[[], int]:
    """Return the clock that replicas live by: the event loop's, in whole milliseconds; it never goes back."""
    time_s = loop.time
    return lambda: int(time_s() * 1000)


class NewPartition(NamedTuple):
    """A partition as its topic's record names it: key, name for people, and its first epoch."""

    key: PartitionKey
    name: str
    genesis: pb.EpochDescriptor


class Replication:
    """See the module. All methods are for the event loop's thread.

    Args:
        node_id, incarnation: this node.
        tools: what the drivers work with.
        rebooted: whether the machine went down under this node since it last ran, unless it had stopped in order.
        timing: of the core.
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
        self._deleted: set[bytes] = set()
        self._due: list[tuple[int, int, ReplicaDriver]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._touched: list[ReplicaDriver] = []
        self._unaware: deque[ReplicaDriver] = deque()
        """Those that have not heard yet that who is alive has changed."""
        self._look_timer: asyncio.TimerHandle | None = None
        self._ringing = False
        self._closed = False
        self._adopt: Callable[[PartitionKey], None] | None = None

    # --- partitions ------------------------------------------------------------------------------------

    async def open(self, new: NewPartition, store: PartitionLog, io_key: int) -> ReplicaDriver:
        """Make the replica of a partition whose log is open; it does nothing before `ReplicaDriver.start`.

        Raises:
            StorageError: the disk failed while the log was healed.
        """
        key = new.key
        chain = self.chains.chain(key, new.genesis)

        def open_view() -> ReplicaLog:
            log_start = load_log_start(self._tools.fs, store.directory)
            return ReplicaLog.open(store, chain, node_id=self.node_id, log_start=log_start, rebooted=self._rebooted)

        view = await self._tools.io.call(io_key, open_view)
        replica = Replica(
            key,
            node_id=self.node_id,
            incarnation=self._incarnation,
            chain=chain,
            fence=self.chains.fence(key, chain.active.epoch),
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
        )
        self._drivers[key] = driver
        return driver

    def get(self, key: PartitionKey) -> ReplicaDriver | None:
        """Return what drives a partition's replica, None for a partition that is not known here."""
        return self._drivers.get(key)

    def all(self) -> list[ReplicaDriver]:
        """Return every driver."""
        return list(self._drivers.values())

    def pushing(self) -> list[Ownership]:
        """Return the ownership of every epoch that this node owns and others store."""
        return [driver.replica.ownership for driver in self._drivers.values() if driver.replica.followers]

    def drop(self, topic_id: bytes) -> None:
        """Stop the replicas of a deleted topic at once; whoever asks for them is told that it is gone."""
        self._deleted.add(topic_id)
        for key in [key for key in self._drivers if key[0] == topic_id]:
            self._drivers.pop(key).stop()

    async def forget(self, topic_id: bytes, partitions: int) -> None:
        """Forget what the journals hold of a deleted topic, whose replicas have been dropped."""
        self._deleted.add(topic_id)
        await self.chains.forget(topic_id, partitions)

    # --- the other nodes -------------------------------------------------------------------------------

    def take_part(self, adopt: Callable[[PartitionKey], None]) -> None:
        """Take messages of other nodes from now on; `adopt` is told whose replica is not here, and may become known."""
        self._adopt = adopt

    def receive(self, peer_id: str, message: LinkMessage, batches: Sequence[Batch]) -> None:
        """Take a one-way message of another node. One that nobody here can take is lost: it will come again."""
        if self._adopt is None:
            return
        key = (message.topic_id, message.partition)
        driver = self._drivers.get(key)
        if driver is not None:
            driver.receive(peer_id, _as_status(message) if isinstance(message, pb.ChainDigest) else message, batches)
        elif message.topic_id not in self._deleted:
            self._adopt(key)
        elif not isinstance(message, pb.MetadataUpdate):
            gone = pb.MetadataUpdate(topic_id=message.topic_id, partition=message.partition, deleted=True)
            self._tools.neighbours.send((peer_id,), gone, ())

    def liveness_changed(self) -> None:
        """Who is alive has changed: the replicas hear of it in portions, those of the broker's own topics first.

        Then come those that were written to recently: somebody is waiting for these, and for few of those that have
        been quiet. All nodes of a partition have seen the same writes, so they hear of it in about the same order. When
        a node with hundreds of partitions dies, the takeovers that have begun go on between those that begin; else all
        of them would be done as late as the last one.
        """
        waits = bool(self._unaware)
        since_ms = self._tools.now_ms() - RECENTLY_MS
        self._unaware = deque(
            sorted(self.all(), key=lambda driver: (driver.key[0] not in FIRST, driver.written_ms < since_ms))
        )
        if not waits:
            self._make_aware()

    def _make_aware(self) -> None:
        for _ in range(min(PORTION, len(self._unaware))):
            self._unaware.popleft().liveness_changed()
        if self._unaware and not self._closed:
            self._loop.call_soon(self._make_aware)

    def statuses(self) -> list[pb.EpochStatus]:
        """Return how long every chain is here, as questions to another node."""
        return [driver.replica.state.chain_status() for driver in self._drivers.values()]

    # --- time ------------------------------------------------------------------------------------------

    def _schedule(self, driver: ReplicaDriver) -> None:
        deadline_ms = driver.replica.deadline_ms
        if deadline_ms is None or (driver.scheduled_ms is not None and driver.scheduled_ms <= deadline_ms):
            return
        # Whatever is overdue waits a moment: a core that asked for the past again would have the loop to itself.
        deadline_ms = max(deadline_ms, self._tools.now_ms() + 1)
        driver.scheduled_ms = deadline_ms
        heapq.heappush(self._due, (deadline_ms, next(self._numbers), driver))
        if not self._ringing and (self._timer is None or deadline_ms < self._timer_ms):
            self._arm()

    def _schedule_later(self, driver: ReplicaDriver) -> None:
        assert not driver.is_touched
        driver.is_touched = True
        if driver.scheduled_ms is not None and driver.scheduled_ms <= self._tools.now_ms() + self._timing.heartbeat_ms:
            return  # nothing is due before that
        self._touched.append(driver)
        if self._look_timer is None and not self._closed:
            self._look_timer = self._loop.call_later(LOOK_MS / 1000, self._look)

    def _look(self) -> None:
        self._look_timer = None
        touched, self._touched = self._touched, []
        for driver in touched:
            driver.is_touched = False
            if not driver.stopped:
                self._schedule(driver)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due and not self._closed:
            self._timer_ms = self._due[0][0]
            delay_s = max(0, self._timer_ms - self._tools.now_ms()) / 1000
            self._timer = self._loop.call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now_ms = self._tools.now_ms()
        due: list[ReplicaDriver] = []
        while self._due and self._due[0][0] <= now_ms and len(due) < PORTION:
            at_ms, _, driver = heapq.heappop(self._due)
            if driver.scheduled_ms == at_ms:  # else it is scheduled for an earlier time, or was
                driver.scheduled_ms = None
                driver.is_touched = False
                due.append(driver)
        self._ringing = True
        for driver in due:
            driver.tick()
        self._ringing = False
        self._arm()

    async def close(self) -> None:
        """Stop everything; return when nothing of it is on its way to the journals."""
        self._closed = True
        self._arm()
        if self._look_timer is not None:
            self._look_timer.cancel()
        for driver in self._drivers.values():
            driver.stop()
        await self.chains.close()


def _as_status(digest: pb.ChainDigest) -> pb.EpochStatus:
    """Return what a digest asks: which of two nodes knows more of a chain."""
    return pb.EpochStatus(
        topic_id=digest.topic_id, partition=digest.partition, epoch=digest.epoch, previous_hash=digest.previous_hash
    )
