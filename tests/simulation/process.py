"""One life of a node: from its start on what its disk holds to the moment it is killed, powered off or fails.

A paused process is frozen: what happens to it meanwhile waits, and is worked off when it goes on, which may be long
after the others have given it up. Its monotonic clock stands still or has gone on, both occur.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tests.broker.storage.sim_disk import PowerCutError
from tests.simulation.driver import PartitionDriver
from tests.simulation.journals import JournalWorker, NodeJournals
from tests.simulation.store import SEGMENT_BYTES, SEGMENT_BYTES_SMALL, Store
from tests.simulation.surroundings import LOOK_US, Neighbours, Seen

from tidelog_broker.core import effects as fx
from tidelog_broker.core.chain import EpochChain
from tidelog_broker.core.ports import Batch, PartitionKey
from tidelog_broker.core.replica import Replica
from tidelog_broker.storage.errors import DamagedError, StorageError
from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.world import World

_T = TypeVar("_T")

COMPARE_US = 1_000_000


class Process:
    """See the module. Made by `Machine.start`."""

    def __init__(self, world: World, machine: Machine, *, incarnation: int, rebooted: bool) -> None:
        self.world = world
        self.machine = machine
        self.node_id = machine.node_id
        self.incarnation = incarnation
        self.rebooted = rebooted
        self.dead = False
        self.paused = False
        self._backlog: list[Callable[[], None]] = []
        self._clock_shift_us = world.clock.random.randrange(10**9) - world.clock.now_us
        self.journals = NodeJournals.open(machine.disk)
        self.fence_worker = JournalWorker(self, self.journals.fences.append)
        self.chain_worker = JournalWorker(self, self.journals.chains.append)
        self.neighbours = Neighbours(self.node_id, world.clock, world.scenario, lambda: world.registered)
        self.partitions: dict[PartitionKey, PartitionDriver] = {}

    # ------------------------------------------------------------------------------------------ time

    @property
    def now_ms(self) -> int:
        """This process's monotonic clock."""
        return (self.world.clock.now_us + self._clock_shift_us) // 1000

    @property
    def wall_us(self) -> int:
        """This machine's wall clock, which may be wrong and jump."""
        return self.world.clock.now_us + self.machine.wall_error_us

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Call `action` in this process, unless it is dead by then; later if it is paused."""
        self.world.clock.after(delay_us, lambda: self.run(action))

    def at_ms(self, due_ms: int, action: Callable[[], None]) -> None:
        """Call `action` when this process's clock shows `due_ms`, or soon after."""
        self.after(max(0, due_ms - self.now_ms) * 1000 + 10, action)

    def run(self, action: Callable[[], None]) -> None:
        """Call `action` now, or when the pause is over; not at all in a dead process."""
        if self.dead:
            return
        if self.paused:
            self._backlog.append(action)
            return
        try:
            action()
        except PowerCutError:
            # A look into the log, in the middle of a step, has rebuilt an index.
            self.machine.power_was_cut()

    def write_us(self) -> int:
        """Draw how long a write takes."""
        return 10 + int(self.world.clock.random.expovariate(1.0) * self.machine.slowness * self.world.write_ms * 1000)

    def read_us(self) -> int:
        """Draw how long a read takes."""
        return 10 + int(self.world.clock.random.expovariate(1.0) * 500)

    def tell_us(self) -> int:
        """Draw how long it takes until the core hears of a write that is on the disk."""
        return self.world.clock.random.randint(1, 200)

    # ------------------------------------------------------------------------------------------ life

    def open_partitions(self) -> None:
        """Open every partition that the cluster has.

        Raises:
            StorageError: the disk failed, or the journals are damaged.
        """
        self.world.checks.booted(self)
        chains = self.journals.chains.load()
        for key, genesis in self.world.genesis.items():
            chain = EpochChain(genesis)
            for entry in chains.get(key, []):
                if entry.WhichOneof("entry") == "decision":
                    chain.extend(entry.decision)
            small = self.world.scenario.retention_bytes > 0
            segment_bytes = SEGMENT_BYTES_SMALL if small else SEGMENT_BYTES
            store = Store.open(
                self.machine.disk,
                key,
                chain,
                node_id=self.node_id,
                rebooted=self.rebooted,
                segment_bytes=segment_bytes,
            )
            replica = Replica(
                key,
                node_id=self.node_id,
                incarnation=self.incarnation,
                chain=chain,
                fence=self.journals.fences.get(key, chain.active.epoch),
                log=store.view,
                surroundings=self.neighbours,
                timing=self.world.timing,
                doubt=store.doubt,
                now_ms=self.now_ms,
            )
            self.partitions[key] = PartitionDriver(self, key, store, replica)
        for driver in list(self.partitions.values()):
            self.world.checks.started(driver)
            driver.pump()
        self.after(self.world.clock.random.randrange(LOOK_US), self._look)
        self.after(self.world.clock.random.randrange(COMPARE_US), self._compare_chains)

    def pause(self) -> None:
        """Freeze."""
        self.paused = True

    def resume(self, paused_us: int, *, clock_stood_still: bool) -> None:
        """Go on with what has gathered meanwhile."""
        self.paused = False
        if clock_stood_still:
            self._clock_shift_us -= paused_us
        self.neighbours.wake()
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self.run(action)

    def on_disk(self, operation: Callable[[], _T]) -> _T | None:
        """Do something on the disk; None when this was the end of the process."""
        try:
            return operation()
        except PowerCutError:
            self.machine.power_was_cut()
        except StorageError as error:
            self.machine.stop(f"storage failed: {error.message}")
        return None

    # ------------------------------------------------------------------------------------------ others

    def send(self, key: PartitionKey, effect: fx.Send) -> None:
        """Put a message on the network."""
        self.world.checks.sent(self.partitions[key], effect)
        self.world.network.send(self.node_id, effect.to, effect.message, effect.batches)

    def deliver(self, sender: str, message: fx.PeerMessage, batches: Sequence[Batch]) -> None:
        """Take a message from the network."""
        driver = self.partitions.get((message.topic_id, message.partition))
        assert driver is not None, "every node knows every partition"
        self.run(lambda: driver.receive(sender, message, batches))

    def _look(self) -> None:
        if self.neighbours.look(self._see, calm=self.world.calm):
            for driver in self.partitions.values():
                driver.neighbours_changed()
        self.after(LOOK_US, self._look)

    def _compare_chains(self) -> None:
        """Ask some node whether it knows more of some partition's chain, as anti-entropy does."""
        random = self.world.clock.random
        driver = random.choice(list(self.partitions.values()))
        others = [node_id for node_id in self.world.registered if node_id != self.node_id]
        self.send(driver.key, fx.Send(random.choice(others), driver.replica.chain_status()))
        self.after(random.randrange(COMPARE_US), self._compare_chains)

    def _see(self, node_id: str) -> Seen:
        other = self.world.machine_of(node_id)
        process = other.process if other is not None else None
        network = self.world.network
        if other is None or process is None:
            return Seen(answers=False, refuses=other is not None and other.powered, incarnation=0)
        reached = network.reaches(self.node_id, node_id) and network.reaches(node_id, self.node_id)
        return Seen(answers=reached and not process.paused, refuses=False, incarnation=process.incarnation)

    def limbo_of(self, key: PartitionKey) -> str | None:
        """Why a partition is damaged here."""
        return self.partitions[key].store.limbo()


def damaged(error: Exception) -> bool:
    """Whether a start failed because something that was durable is not there any more."""
    return isinstance(error, DamagedError)


def descriptor_flush(descriptor: pb.EpochDescriptor) -> pb.Flush:
    """Return what "durable" means in an epoch."""
    return descriptor.flush or pb.ALWAYS
