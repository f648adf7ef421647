"""A cluster of whole nodes, from the bootstrap file on: founders and joiners that start, fail, and come back empty.

A node here is the shipped `Node` with all its parts. Its environment is replaced by links, gossip,
threads and disks of this world: `links`, `gossip`, `threads`' workers, `FileSystem`; and no clients' connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tests.simulation.clock import Clock
from tests.simulation.whole.checks import Checks
from tests.simulation.whole.faults import Faults
from tests.simulation.whole.groups import Groups
from tests.simulation.whole.handover import Handover
from tests.simulation.whole.machine import Machine
from tests.simulation.whole.meetings import Meetings
from tests.simulation.whole.records import Records
from tests.simulation.whole.topics import Topics
from tests.simulation.whole.typed import TypedTopic

from tidelog_broker.base.bootstrap import Bootstrap, Founder
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.wire.links import Address

if TYPE_CHECKING:
    from tests.simulation.whole.node_process import NodeProcess

CALM_MS = 60_000
POLL_US = 200_000
RARE_DELAY = 100
MEETING = "meeting"
"""Founders begin, lose their disks and meet others, in that order; see `faults`."""
CHURNING = "churning"
"""Topics are made and deleted all the time, and disks are not lost."""
MIXED = "mixed"
SLEEPY = "sleepy"
"""Partitions are opened when they are needed and not before, and hold records; disks are not lost."""
SLEEPY_SEEDS = 5
"""One of so many seeds is of this kind."""
GROUPED = "grouped"
"""Members of a consumer group come, die and are paused; disks are not lost."""
GROUPED_SEEDS = 5
"""One of so many seeds is of this kind."""
GROUPED_MS = 25_000
ROLLED_BACK = "rolled back"
"""The disk of one machine is put back to earlier states; records are published, and no disk is lost otherwise."""
ROLLED_BACK_SEEDS = 5
"""One of so many seeds is of this kind."""
ROLLED_BACK_MS = 30_000
COPIES = 100
"""Added to the number of a machine, the number of its copy."""
HANDED_OVER = "handed over"
"""Like `GROUPED`, and `__meta` and `__offsets` go to another node and back while records are pending at their owner."""
HANDED_OVER_SEEDS = 10
TYPED = "typed"
"""Kind of worlds with a typed topic whose schema changes."""
TYPED_SEEDS = 12
"""One of so many seeds is of this kind."""


class World:
    """See the module."""

    def __init__(self, seed: int, kind: str | None = None) -> None:
        self.clock = Clock(seed)
        random = self.clock.random
        count = random.choice([3, 3, 5])
        self.founders = [f"n{number}" for number in range(count)]
        self.bootstrap = Bootstrap(
            format_version=1,
            cluster_id=random.randbytes(16).hex(),
            name="simulated",
            nodes=tuple(
                Founder.model_validate({"node_id": name, "host": f"host{number}", "port": 7000})
                for number, name in enumerate(self.founders)
            ),
        )
        self.loss = random.choice([0.0, 0.02, 0.15])
        self.duplication = random.choice([0.0, 0.05, 0.2])
        self.delay_ms = random.choice([0.5, 3.0, 15.0])
        self.write_ms = random.choice([0.2, 2.0, 10.0])
        self.wrong_suspicions = random.choice([0.0, 0.02])
        self.kind = kind or random.choice([MEETING, MEETING, CHURNING, MIXED, MIXED])
        if kind is None and seed % SLEEPY_SEEDS == SLEEPY_SEEDS - 1:
            self.kind = SLEEPY
        if kind is None and seed % GROUPED_SEEDS == GROUPED_SEEDS - 3:
            self.kind = GROUPED
        if kind is None and seed % ROLLED_BACK_SEEDS == 0:
            self.kind = ROLLED_BACK
        self.rolls_back = self.kind == ROLLED_BACK
        if kind is None and seed % HANDED_OVER_SEEDS == HANDED_OVER_SEEDS - 4:
            self.kind = HANDED_OVER
        self.hands_over = self.kind == HANDED_OVER
        if kind is None and seed % TYPED_SEEDS == TYPED_SEEDS - 2:
            self.kind = TYPED
        self.churns = self.kind == CHURNING
        self.sleeps = self.kind == SLEEPY
        self.has_groups = self.kind in {GROUPED, HANDED_OVER}
        self.fault_ms = random.choice([4_000, 8_000, 12_000]) if self.kind == MIXED else 12_000
        if self.has_groups:
            self.fault_ms = GROUPED_MS
            self.loss, self.write_ms = min(self.loss, 0.02), min(self.write_ms, 2.0)
        if self.rolls_back:
            self.fault_ms = ROLLED_BACK_MS
            self.loss, self.write_ms = min(self.loss, 0.02), min(self.write_ms, 2.0)
        if self.hands_over:
            self.loss, self.delay_ms = 0.0, min(self.delay_ms, 3.0)
        if self.churns or self.sleeps or self.kind == TYPED:
            self.loss, self.delay_ms, self.write_ms = 0.0, min(self.delay_ms, 3.0), min(self.write_ms, 2.0)
        self.cut: set[tuple[int, int]] = set()
        self.calm = False
        joiners = random.choice([0, 1, 1])
        self.machines: list[Machine] = []
        self.machines += [Machine(self, number, is_founder=number < count) for number in range(count + joiners)]
        self.checks = Checks(self)
        self.faults = Faults(self)
        self.topics = Topics(self)
        self.records = Records(self)
        self.groups = Groups(self) if self.has_groups else None
        self.typed = TypedTopic(self) if self.kind == TYPED else None
        self.meetings = Meetings(self)
        self.handover = Handover(self) if self.hands_over else None

    # ------------------------------------------------------------------------------------------ nodes

    def processes(self) -> Iterator[NodeProcess]:
        """Yield the processes that run."""
        return (machine.process for machine in self.machines if machine.process is not None)

    def listening(self, address: Address) -> NodeProcess | None:
        """Return the process that takes connections at an address."""
        found = (
            process
            for process in self.processes()
            if (process.machine.host, process.machine.port) == address and process.listens
        )
        return next(found, None)

    def reaches(self, sender: NodeProcess, receiver: NodeProcess) -> bool:
        """Whether a message would get through now."""
        return (sender.machine.number, receiver.machine.number) not in self.cut

    def is_wrongly_suspected(self) -> bool:
        """Draw whether a live node is not heard."""
        return not self.calm and self.wrong_suspicions > 0 and self.clock.random.random() < self.wrong_suspicions

    def send(
        self,
        sender: NodeProcess,
        receiver: NodeProcess,
        arrive: Callable[[], None],
        *,
        surely: bool,
        once: bool = False,
    ) -> None:
        """Send something: it comes late, or twice, or not; `surely`: late only; `once`: not twice."""
        if sender.dead:  # a coroutine that is thrown away, whenever that is: it draws nothing from the seed
            return
        random = self.clock.random
        times = 1
        if not surely:
            times = 0 if random.random() < self.loss else 2 if random.random() < self.duplication and not once else 1

        def arrives() -> None:
            if self.reaches(sender, receiver):
                arrive()

        for _ in range(times):
            mean_us = self.delay_ms * 1000 * (RARE_DELAY if random.random() < 0.01 else 1)
            self.clock.after(20 + int(min(random.expovariate(1.0), 8.0) * mean_us), arrives)

    def make_copy(self, machine: Machine) -> Machine:
        """Return a machine elsewhere with a copy of another one's disk, to be started under the same name."""
        copy = Machine(self, machine.number + COPIES, is_founder=machine.is_founder)
        copy.first_id, copy.disk, copy.is_copy = machine.first_id, machine.disk.copy(), True
        copy.boot, copy.wipes = machine.boot, machine.wipes
        machine.has_copy = True
        copy.unlock()
        self.checks.journals.rolled_back(copy.number)
        self.machines.append(copy)
        return copy

    def copy_takes_part(self, copy: Machine) -> bool:
        """A copy of a machine is about to take part; return whether it is killed at that moment."""
        for machine in self.machines:
            if machine.number + COPIES == copy.number and machine.wipes == copy.wipes:  # else it was replaced
                machine.copy_took_part = True
        if copy.stops_as_it_takes_part:
            self.clock.after(0, lambda: copy.stop("killed as it takes part"))
        return copy.stops_as_it_takes_part

    def remove_copy(self, copy: Machine) -> None:
        """End a copy for good."""
        copy.stop("removed")
        self.machines.remove(copy)

    # ------------------------------------------------------------------------------------------ the run

    def run(self) -> None:
        """Inject faults, then heal everything, and check that the cluster forms.

        Raises:
            ViolationError: an invariant broke.
        """
        try:
            self.faults.start()
            self.topics.start()
            if self.sleeps or self.rolls_back:
                self.records.start()
            if self.rolls_back:
                self.meetings.start()
            if self.groups is not None:
                self.groups.start()
            if self.typed is not None:
                self.typed.start()
            if self.handover is not None:
                self.handover.start()
            self.clock.run_until(self.clock.now_us + self.fault_ms * 1000)
            self._calm_down()
            self._settle()
        finally:
            for process in self.processes():
                process.end()

    def _calm_down(self) -> None:
        self.clock.note("calm")
        self.calm = True
        self.loss = self.duplication = 0.0
        self.delay_ms = min(self.delay_ms, 1.0)
        self.write_ms = min(self.write_ms, 1.0)
        self.cut.clear()
        self.faults.stop()
        if self.groups is not None:
            self.groups.calm_down()

    def _settle(self) -> None:
        end_us = self.clock.now_us + CALM_MS * 1000
        while unsettled := self._unsettled():
            if not self.checks.can_live():
                return
            if self.clock.now_us >= end_us:
                self.checks.fail("I23", f"with enough founders, the cluster does not form: {unsettled}")
            self.clock.run_until(self.clock.now_us + POLL_US)

    def _unsettled(self) -> str:
        """Say what keeps the cluster from being whole; empty when nothing does."""
        for machine in self.machines:
            process = machine.process
            if process is None or not process.is_up:
                missing = (
                    ""
                    if process is None or not hasattr(getattr(process, "node", None), "broker")
                    else str(process.node.broker.cluster.linked)
                )
                return f"{machine.node_id} is not up; it is linked with {missing}"
        processes = list(self.processes())
        owners = {process.node.broker.routes.owner(META_KEY) for process in processes}
        if len(owners) != 1 or "" in owners:
            return f"__meta is owned by {owners}"
        for process in processes:
            for other in processes:
                record = process.node.broker.nodes.get(other.node.node_id)
                if record is None or record.revision == 0 or record.directory_id != other.node.dir.directory_id:
                    return f"{process.node.node_id} does not know {other.node.node_id}: {record}"
        return (
            self.topics.unsettled()
            or (self.records.unsettled() if self.sleeps or self.rolls_back else "")
            or (self.groups.unsettled() if self.groups is not None else "")
            or (self.typed.unsettled() if self.typed is not None else "")
        )
