"""One life of a node: from its start on what its disk holds to the moment it is killed, powered off or fails.

It is the node around the shipped partitions, replicas and journals: their event loop, workers, clocks and neighbours,
and the few lines of `broker`, `partitions` and `node` that open and connect them.

A paused process is frozen: its events wait and are processed when it continues, which may be long
after the others have given it up. Its monotonic clock has stopped or has advanced, both occur.
"""

from __future__ import annotations

import asyncio
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Coroutine, Sequence
from inspect import CORO_CREATED, getcoroutinestate
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tests.broker.storage.sim_disk import PowerCutError
from tests.simulation.copies import Copy
from tests.simulation.journals import META, open_journals
from tests.simulation.loop import VirtualLoop
from tests.simulation.scenario import IN_MEMORY_ASYNC
from tests.simulation.surroundings import LOOK_US, Neighbours, Seen
from tests.simulation.workers import SimHeadStarts, SimWorkers

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.offload import Offload
from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.cluster.route_watch import RouteWatch
from tidelog_broker.core.hot_ring import RingBudget
from tidelog_broker.core.replication.ports import Batch
from tidelog_broker.core.replication.producer_budget import ProducerBudget
from tidelog_broker.core.schemas import SchemaRegistry
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.node import reboot_mark
from tidelog_broker.partition.compaction_progress import ProgressClock
from tidelog_broker.partition.full_disk_refusals import FullDiskRefusals
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.scrubber import Scrubber
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.replication.driver_ports import Tools
from tidelog_broker.replication.grouped_syncs import GroupedSyncs
from tidelog_broker.replication.journals import Chains
from tidelog_broker.replication.log_writer import InlineWrites
from tidelog_broker.replication.replicas import NewPartition, Replication
from tidelog_broker.replication.takeover_log import TakeoverLog
from tidelog_broker.storage.commit_log.commit_log import Sizes
from tidelog_broker.storage.commit_log.shared_engine import SharedEngine
from tidelog_broker.storage.engine.store import SEGMENT, SHARED
from tidelog_broker.storage.engines.stores import engine_named
from tidelog_broker.storage.io.errors import StorageError, StorageFailedError
from tidelog_broker.storage.memory.file_copy import FileCopy
from tidelog_broker.storage.memory.memory_engine import MemoryEngine
from tidelog_broker.storage.memory.memory_store import MEMORY
from tidelog_broker.storage.memory.write_behind import WriteBehindEngine
from tidelog_broker.storage.node.node_dir import NodeDir
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.active_files import ActiveFiles
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.wire.budget import Budget
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.topic_settings import MEMORY_ASYNC

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.world import World

    from tidelog_broker.core.replication.effects import PeerMessage

T = TypeVar("T")

HOME = Path("/partitions")
COMMIT_LOG = Path("/commit-log")
COMMIT_LOG_SIZES = Sizes(file_bytes=2048, chunk_bytes=1024, log_bytes_min=6144, tail_bytes_max=1024)
"""Small, so that tails are written to segments and copied, and files are deleted, in a short run."""
MAPPED = 0.5
"""How many processes map the files that they read, or write."""
COMPARE_US = 1_000_000
SETTLE_S = 3600
"""No world lasts so long: a clock that jumps is never believed in one."""
RETENTION_US = 30_000
COMPACTION_US = 200_000
SCRUB_US = 400_000
SCRUBBED_BYTES = 300
"""About two batches at a time."""
WRITTEN_US = 20_000
"""Mean time until records in memory are written in the background."""
FAILED_US_MAX = 20_000
"""How long a node runs after its disk has failed: it stops gracefully."""


class Inline(InlineWrites):
    """The policy without a clock: small batches may be written on the event loop, or none."""

    def __init__(self, allowed: bool) -> None:
        super().__init__()
        self._allowed = allowed

    def allows(self, size_bytes: int, now_s: float) -> bool:
        return self._allowed and super().allows(size_bytes, 0.0)

    def took(self, size_bytes: int, seconds: float, now_s: float, *, sleeps_before: int) -> None:
        """No write is slow here."""


class SimWriter:
    """Writes records in memory to files, as the thread of `write_behind`; each write and each sync may come late."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._random = Random(f"writer {process.world.scenario.seed} {process.node_id} {process.incarnation}")

    def wake(self, copy: FileCopy) -> None:
        """Write a part of the copy later."""
        if not copy.is_due:
            copy.is_due = True
            self._process.after(int(self._random.expovariate(1.0) * WRITTEN_US), lambda: self._write(copy))

    def _write(self, copy: FileCopy) -> None:
        copy.is_due = False
        is_left = copy.write(self._random.choice((1, 400, 4000)))
        if self._random.random() < 0.5:
            copy.sync()
        if is_left or self._random.random() < 0.3:
            self.wake(copy)


class Process:
    """See the module. Made by `Machine.start`."""

    replication: Replication

    def __init__(self, world: World, machine: Machine, *, incarnation: int) -> None:
        random = world.clock.random
        self.world = world
        self.machine = machine
        self.node_id = machine.node_id
        self.incarnation = incarnation
        self.settings = world.settings
        self.dead = False
        self.is_opening = True
        self.paused = False
        self.partitions: dict[PartitionKey, Copy] = {}
        self._backlog: list[Callable[[], None]] = []
        self._clock_shift_us = random.randrange(10**9) - world.clock.now_us
        self.clock = SteadyClock(
            SETTLE_S,
            wall_ns=lambda: self.wall_us * 1000,
            steady_ns=lambda: world.clock.now_us * 1000,
            tolerance_us=world.clock_tolerance_us,
        )
        self._topic = world.topic
        self._coroutines: dict[asyncio.Task[Any], Coroutine[Any, Any, Any]] = {}
        self.loop = VirtualLoop(self).as_loop
        self.sim_disk = machine.disk
        # Without the thread, searches create the indexes.
        indexer = (
            SimHeadStarts(SimWorkers(self, 1, self.write_us)) if world.scenario.indexed and incarnation % 2 else None
        )
        mapped = Random(f"mapped {world.scenario.seed} {self.node_id} {incarnation}")
        # Every other life has files for one log only: the others give theirs up and open them again.
        self.disk = Disk(
            fs=machine.disk,
            active_files=ActiveFiles(1 if incarnation % 2 else None),
            indexer=indexer,
            maps_reads=mapped.random() < MAPPED,
            maps_writes=mapped.random() < MAPPED,
        )
        self.disk.engines[SHARED] = SharedEngine(self.disk, COMMIT_LOG, COMMIT_LOG_SIZES)
        if world.scenario.mixture == IN_MEMORY_ASYNC:
            memory, files = engine_named(self.disk, MEMORY), engine_named(self.disk, SEGMENT)
            assert isinstance(memory, MemoryEngine)
            writer = SimWriter(self)
            self.disk.engines[MEMORY_ASYNC] = WriteBehindEngine(machine.disk, memory.budget, files, writer)
        self.io = self._workers(2, self.write_us)
        self.journals = self._workers(2, self.write_us)
        self.readers = self._workers(2, self.read_us)
        self.ahead = self._workers(1, self.write_us)
        self.notes = self._workers(1, self.write_us)
        self.compactor = self._workers(1, self.read_us)
        self.rings = RingBudget(self.settings.rings_bytes)
        self.metrics = NodeMetrics()
        self.taken_over = TakeoverLog()
        self.route_news = RouteWatch()
        self.inline_writes = Inline(random.random() < 0.5)
        self.cluster = Neighbours(
            self.node_id,
            world.clock,
            world.scenario,
            registered=lambda: world.registered,
            wishes=lambda: world.wishes,
            send=self.send,
        )

    def _workers(self, count: int, takes_us: Callable[[], int]) -> Offload:
        return Offload(SimWorkers(self, count, takes_us), self.loop)

    # ------------------------------------------------------------------------------------------ time

    @property
    def monotonic_us(self) -> int:
        """This process's monotonic clock."""
        return self.world.clock.now_us + self._clock_shift_us

    @property
    def wall_us(self) -> int:
        """This machine's wall clock, which may be wrong and jump."""
        return self.world.clock.now_us + self.machine.wall_error_us

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Call `action` in this process, unless it is dead by then; later if it is paused."""
        self.world.clock.after(delay_us, lambda: self.run(action))

    def run(self, action: Callable[[], None]) -> None:
        """Call `action` now, or when the pause is over; not at all in a dead process."""
        if self.dead:
            return
        if self.paused:
            self._backlog.append(action)
            return
        before = _get_running_loop()
        _set_running_loop(self.loop)
        try:
            action()
        except PowerCutError:
            pass  # seen below, as it is where the shipped code has taken it for an error
        finally:
            _set_running_loop(before)
        self._look_around()

    def _look_around(self) -> None:
        """Check the results of a step."""
        if self.dead:
            return
        if self.sim_disk.is_off:
            self.machine.power_was_cut()
            return
        for copy in self.partitions.values():
            self.world.checks.after_step(copy)

    def spawn(self, work: Coroutine[Any, Any, T], then: Callable[[T | None, BaseException | None], None]) -> None:
        """Run a coroutine; `then` gets its result or exception."""

        def ended(task: asyncio.Task[T]) -> None:
            del self._coroutines[task]
            error = task.exception()
            if error is not None and not isinstance(error, ProtocolError):
                raise error
            then(task.result() if error is None else None, error)

        task = self.loop.create_task(work)
        self._coroutines[task] = work
        task.add_done_callback(ended)

    def write_us(self) -> int:
        """Draw how long a write takes."""
        return 10 + int(self.world.clock.random.expovariate(1.0) * self.machine.slowness * self.world.write_ms * 1000)

    def read_us(self) -> int:
        """Draw how long a read takes."""
        return 10 + int(self.world.clock.random.expovariate(1.0) * 500)

    # ------------------------------------------------------------------------------------------ life

    def begin(self) -> None:
        """Open everything that the cluster has, and take part."""
        self.run(lambda: self.spawn(self._open(), self._opened))

    def end(self) -> None:
        """Nothing more is done."""
        self.dead = True
        for work in self._coroutines.values():
            if getcoroutinestate(work) == CORO_CREATED:
                work.close()

    async def _open(self) -> None:
        """Open the journals, then one partition after the other.

        Raises:
            StorageError: the disk failed, or the journals are damaged.
        """
        for path in (HOME, META):
            if not self.sim_disk.exists(path):
                self.sim_disk.make_dir(path)
                self.sim_disk.sync_dir(path.parent)
        self.replication = self._replication()
        self.replication.take_part(lambda _: None)
        for key in self.world.genesis:
            await self._open_partition(key)
            # A node knows its topics one by one, too, and may ask before it knows all of them.
            await reboot_mark.clear_reboot_mark(cast(NodeDir, self.machine), self.disk.fs, self.io, self._noted)

    def _noted(self) -> set[str]:
        return {copy.log.directory.name for copy in self.partitions.values() if copy.view.is_reboot_noted}

    def _opened(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            assert isinstance(error, StorageError)
            self.machine.cannot_start(error)
            return
        self.is_opening = False
        random = self.world.clock.random
        self.after(random.randrange(LOOK_US), self._look)
        self.after(random.randrange(COMPARE_US), self._compare_chains)
        if self.world.scenario.deletes:
            self.after(random.randrange(RETENTION_US), self._clean)
        if self.world.scenario.compacts:
            self.after(random.randrange(COMPACTION_US), self._compact)
        if self.world.scenario.scrubs:
            self.after(random.randrange(SCRUB_US), self._scrub)

    def _replication(self) -> Replication:
        meta, fences = open_journals(self)
        self.world.checks.booted(self, meta, fences)
        chains = Chains(
            meta,
            fences,
            offload=self.journals,
            failed=lambda error: self.storage_failed("the journals", error),
            full=self._journal_full,
        )
        tools = Tools(
            io=self.io,
            readers=self.readers,
            ahead=self.ahead,
            syncs=GroupedSyncs(self._workers(1, self.write_us)),
            fs=self.disk.fs,
            chains=chains,
            neighbours=self.cluster,
            inline_writes=self.inline_writes,
            peers_budget=Budget(self.settings.peers_in_flight_bytes),
            now_ms=lambda: self.monotonic_us // 1000,
            wall_us=self.clock.now_us,
            group_bytes=self.settings.group_bytes,
        )
        return Replication(
            self.node_id,
            self.incarnation,
            tools=tools,
            rebooted=self.machine.machine_rebooted,
            timing=self.world.timing,
        )

    async def _open_partition(self, key: PartitionKey) -> None:
        io_key = key[1]
        store = await self.io.call(io_key, self._open_log, key)
        founding = NewPartition(key, f"{self._topic.name}/{key[1]}", self.world.genesis[key])
        driver = await self.replication.open(founding, store, io_key)
        copy = Copy(self, key, driver)
        self.world.copies[driver.view] = copy
        self.world.checks.started(copy)
        self.partitions[key] = copy
        copy.partition = Partition(self._tools(), self._topic, key[1], driver, io_key)
        if self.world.clock.random.random() < 0.5:  # a reader follows, from memory
            copy.partition.changes.listeners.add(_listen)

    def _tools(self) -> PartitionTools:
        return PartitionTools(
            settings=self.settings,
            schemas=SchemaRegistry(),
            loop=self.loop,
            disk=self.disk,
            io=self.io,
            readers=self.readers,
            notes=self.notes,
            compactor=self.compactor,
            passes=ProgressClock(self.loop.time),
            clock=self.clock,
            contents=Budget(self.settings.deduplication_bytes),
            producers=ProducerBudget(),
            rings=self.rings,
            full_disk=FullDiskRefusals(),
            metrics=self.metrics,
            neighbours=self.cluster,
            taken_over=self.taken_over,
            route_news=self.route_news,
            may_differ=lambda _: None,
            storage_failed=self.storage_failed,
        )

    def _open_log(self, key: PartitionKey) -> PartitionLog:
        topic = self.world.topic
        return PartitionLog.open(
            self.disk,
            HOME,
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=key[1],
            segment_bytes=topic.config.segment_bytes,
        )

    def _journal_full(self, error: ProtocolError) -> None:
        for copy in self.partitions.values():
            copy.partition.no_space_for_fences(error)

    def storage_failed(self, name: str, error: BaseException) -> None:
        """The disk failed: the node ends soon, and its unaware parts continue until then.

        Raises:
            BaseException: it was not the disk.
        """
        if not isinstance(error, StorageError):
            raise error
        message = f"storage failed at {name}: {error.message}"
        self.after(self.world.clock.random.randrange(FAILED_US_MAX), lambda: self.machine.stop(message))

    @property
    def is_held(self) -> bool:
        """Whether this node knows that the topic is held."""
        return self._topic.config.hold

    def reconfigure(self, topic: pb.TopicRecord) -> None:
        """Hear of a revision of the topic."""
        if topic.revision > self._topic.revision:
            self._topic = topic
            for copy in self.partitions.values():
                copy.partition.reconfigure(topic)

    def pause(self) -> None:
        """Freeze."""
        self.paused = True

    def resume(self, paused_us: int, *, clock_stood_still: bool) -> None:
        """Process the events gathered during a pause."""
        self.paused = False
        if clock_stood_still:
            self._clock_shift_us -= paused_us
        self.cluster.wake()
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self.run(action)

    # ------------------------------------------------------------------------------------------ others

    def send(self, to: Sequence[str], message: PeerMessage, batches: Sequence[memoryview]) -> None:
        """Put a message on the network."""
        for node_id in to if not self.dead else ():
            self.world.checks.sent(self.partitions[message.topic_id, message.partition], node_id, message)
            self.world.network.send(self.node_id, node_id, message, batches)

    def deliver(self, sender: str, message: PeerMessage, batches: Sequence[Batch]) -> None:
        """Take a message from the network; lost if its partition is not open yet."""
        if self.partitions:
            self.run(lambda: self._receive(sender, message, batches))

    def _receive(self, sender: str, message: PeerMessage, batches: Sequence[Batch]) -> None:
        self.replication.receive(sender, message, batches)

    def _look(self) -> None:
        if self.cluster.look(self._see, calm=self.world.calm):
            for copy in self.partitions.values():
                copy.partition.state.forget_quorum()
            self.replication.liveness_changed()
            for copy in self.partitions.values():
                copy.partition.liveness_changed()
        self.after(LOOK_US, self._look)

    def _compare_chains(self) -> None:
        """Ask some node whether it knows more of some partition's chain, as anti-entropy does."""
        random = self.world.clock.random
        status = random.choice(self.replication.all()).replica.state.chain_status()
        others = [node_id for node_id in self.world.registered if node_id != self.node_id]
        if others:
            self.cluster.send((random.choice(others),), status, ())
        self.after(random.randrange(COMPARE_US), self._compare_chains)

    def _scrub(self) -> None:
        """Read sealed epochs again, as `Scrubber.run`."""
        scrubber = Scrubber(self._scrubbed, self._tools(), SCRUBBED_BYTES)
        self.spawn(scrubber.run_once(), lambda _, error: self._scrubbed_once(error))

    def _scrubbed(self) -> list[Partition]:
        return [copy.partition for copy in self.partitions.values()]

    def _scrubbed_once(self, error: BaseException | None) -> None:
        if error is not None:
            raise error
        self.after(self.world.clock.random.randrange(SCRUB_US), self._scrub)

    def _compact(self) -> None:
        """Start due compactions, as `Node._compact`."""
        self.spawn(self._compact_all(), lambda _, error: self._compacted(error))

    async def _compact_all(self) -> None:
        for copy in list(self.partitions.values()):
            if copy.partition.compaction.wants_check:
                await copy.partition.compaction.check()

    def _compacted(self, error: BaseException | None) -> None:
        if isinstance(error, StorageFailedError):
            self.storage_failed("compaction", error)
        elif error is not None:
            raise error
        else:
            self.after(self.world.clock.random.randrange(COMPACTION_US), self._compact)

    def _clean(self) -> None:
        """Delete expired records, as `Node._clean`."""
        self.spawn(self._retain(), lambda _, error: self._retained(error))

    async def _retain(self) -> None:
        for copy in list(self.partitions.values()):
            await copy.partition.retention.check()

    def _retained(self, error: BaseException | None) -> None:
        if isinstance(error, StorageFailedError):
            self.storage_failed("retention", error)
        elif error is not None:
            raise error
        else:
            self.after(RETENTION_US, self._clean)

    def _see(self, node_id: str) -> Seen:
        other = self.world.machine_of(node_id)
        process = other.process if other is not None else None
        network = self.world.network
        if other is None or process is None:
            return Seen(answers=False, refuses=other is not None and other.powered, incarnation=0)
        reached = network.reaches(self.node_id, node_id) and network.reaches(node_id, self.node_id)
        return Seen(answers=reached and not process.paused, refuses=False, incarnation=process.incarnation)


def _listen() -> None:
    """Be woken."""
