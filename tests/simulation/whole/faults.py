"""Faults in the world of whole nodes, and their schedule.

Fewer founders than a majority lose their disks in all; all other faults may hit any machine at any time. In some
worlds the order is fixed: a few founders begin, some of them lose their disks, and those that
remember are away while the others meet.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.whole.crashes_beside_copies import RESOLVED_US, CrashBesideCopy
from tests.simulation.whole.machine import Machine, Snapshot
from tests.simulation.whole.meetings import Heard

from tidelog_broker.core.membership.admission import binders_needed
from tidelog_broker.core.placement.placement import majority

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

LATE_MS = 6_000
ROLLING_BACK_US = 12_000_000
COPY_RUNS_US = 8_000_000
HEARSAY_US = 27_000_000
HEARSAY_SHARE = 0.3
"""Share of the worlds with a disk rollback that begin with an incarnation known from another node only."""
CRASH_SHARE = 0.5
"""So many of them begin with a copy that starts while its node crashes, and so many of later copies do."""


class Faults:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.clock.random
        self._stopped = False
        founders = [machine for machine in world.machines if machine.is_founder]
        self._may_lose = self._random.sample(founders, majority(len(founders)) - 1)
        """Founders whose disks may be lost, once or more often."""
        self._gap_ms = self._random.choice([100, 300, 1000]) if not world.churns else 500
        self._pauses_ms = [30, 300, 3000] if not world.churns else [30, 100, 300]
        self._wipes = self._random.choice([1, 2, 2, 3]) if not world.churns else 0
        self._rolls = self._random.choice(founders)
        """The machine whose disk is rolled back in such a world."""
        self._pauses_until_us = 0
        """Nothing else goes wrong while a disk that was rolled back is to be found out."""
        if world.rolls_back:
            self._wipes, self._gap_ms = 0, 700
        if world.sleeps or world.has_groups:
            self._wipes, self._gap_ms = 0, 500 if world.sleeps else 1500
        self.meets = world.kind == "meeting"

    def start(self) -> None:
        """Begin: some founders start, others come late, or when all is calm."""
        machines = self._world.machines
        if self.meets:
            self._begin_to_meet()
            return
        for machine in machines:
            fate = self._random.random()
            if (
                fate < 0.7
                or self._world.rolls_back
                or self._world.churns
                or self._world.sleeps
                or self._world.has_groups
            ):
                machine.start_later(100)
            elif fate < 0.9:
                machine.start_later(LATE_MS)
        if self._world.rolls_back:
            drawn = self._random.random()
            if drawn < HEARSAY_SHARE:
                self._world.clock.after(4_000_000, self._know_by_hearsay)
            elif drawn < HEARSAY_SHARE + CRASH_SHARE:
                self._world.clock.after(4_000_000, self._crash_beside_copy)
        if not self._world.hands_over:
            self._later(self._gap_ms, self._next)

    def stop(self) -> None:
        """Undo everything: all machines run, all links and disks are well."""
        self._stopped = True
        for machine in self._world.machines:
            self._heal(machine)
            machine.start()

    def _later(self, mean_ms: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if not self._stopped:
                action()

        self._world.clock.after(1000 + int(self._random.expovariate(1.0) * mean_ms * 1000), act)

    def _next(self) -> None:
        if self._world.clock.now_us < self._pauses_until_us:
            self._later(self._gap_ms, self._next)
            return
        kinds: dict[Callable[[], object], int] = {
            self._kill: 8,
            self._power_off: 6,
            self._crash_in_write: 12,
            self._crash_at_start: 8,
            self._isolate: 8,
            self._one_way: 4,
            self._loss: 4,
            self._disk_full: 3,
            self._disk_fails: 3,
            self._wipe: 3,
        }
        if self._world.rolls_back:
            for other in (self._disk_full, self._disk_fails, self._wipe):
                del kinds[other]
            kinds |= {self._snapshot: 20, self._roll_back: 12, self._start_copy_beside: 8}
        if (
            self._world.churns or self._world.sleeps
        ):  # a network that is well: else too little is made, and too little is deleted
            for cut in (self._isolate, self._one_way, self._loss):
                del kinds[cut]
        self._random.choices(list(kinds), list(kinds.values()))[0]()
        self._later(self._gap_ms, self._next)

    # ------------------------------------------------------------------------------------------ in an order

    def _begin_to_meet(self) -> None:
        """Let as many begin as can; then one loses its disk, and meets the founders that start late.

        No other node remembers it then. Shipped code must not need more than these.
        """
        random, founders = self._random, [machine for machine in self._world.machines if machine.is_founder]
        enough = (
            len(founders) - 1 - binders_needed(len(founders))
        )  # so many are not needed for all others to be admitted
        keepers = [machine for machine in founders if machine not in self._may_lose]
        late = random.sample(keepers, random.choice([enough, enough, 1]))
        first = [machine for machine in founders if machine not in late]
        lost = [machine for machine in first if machine in self._may_lose]
        for machine in first:
            machine.start_later(100)

        def part() -> None:
            if self._stopped:
                return
            for machine in first:
                machine.stop("all away")
            for machine in lost:
                machine.wipe()
            for machine in random.sample([*lost, *late], len(lost) + len(late)):
                machine.start_later(200)
            for machine in first:
                if machine not in lost and random.random() < 0.6:
                    machine.start_later(2_000)

        def look() -> None:
            """Cut the network a moment after one that loses its disk was admitted, mostly before `__meta` has it."""
            if any(machine.node_id in self._world.checks.admitted for machine in lost):
                self._world.clock.after(random.randrange(random.choice([50, 300, 2_000])) * 1000, part)
            elif not self._stopped:
                self._world.clock.after(5_000, look)

        if random.random() < 0.2:
            self._world.clock.after(random.choice([500, 2_500]) * 1000, part)
        else:
            look()
        self._world.clock.after(8_000_000, lambda: self._later(self._gap_ms, self._next))

    # ------------------------------------------------------------------------------------------ processes

    def _machine(self) -> Machine:
        return self._random.choice(self._world.machines)

    def _kill(self) -> None:
        machine = self._machine()
        machine.stop("killed")
        machine.start_later(self._random.choice(self._pauses_ms))

    def _power_off(self) -> None:
        for machine in self._random.sample(
            self._world.machines, self._random.choice([1, 1, 1, len(self._world.machines)])
        ):
            machine.power_off("power off")
            machine.start_later(self._random.choice(self._pauses_ms))

    def _crash_in_write(self) -> None:
        self._machine().crash_in_write(self._random.randrange(12), power=self._random.random() < 0.5)

    def _crash_at_start(self) -> None:
        """Restart a machine, and let it die while it opens its data, or asks to be admitted."""
        machine = self._machine()
        machine.stop("killed")
        machine.crash_in_write(self._random.randrange(40), power=self._random.random() < 0.5)
        machine.start_later(30)

    # ------------------------------------------------------------------------------------------ network

    def _isolate(self) -> None:
        one, others = self._machine(), self._world.machines
        self._cut([link for other in others if other is not one for link in ((one, other), (other, one))])

    def _one_way(self) -> None:
        one, other = self._random.sample(self._world.machines, 2)
        self._cut([(one, other)])

    def _cut(self, links: list[tuple[Machine, Machine]]) -> None:
        numbers = {(sender.number, receiver.number) for sender, receiver in links}
        self._world.cut |= numbers
        self._world.clock.note("cut", str(sorted(numbers)))

        def mend() -> None:
            self._world.cut -= numbers

        self._later(self._random.choice([200, 800, 3000]), mend)

    def _loss(self) -> None:
        before, self._world.loss = self._world.loss, 0.4

        def over() -> None:
            self._world.loss = min(before, self._world.loss)

        self._later(500, over)

    # ------------------------------------------------------------------------------------------ disks

    def _heal(self, machine: Machine) -> None:
        machine.disk.free_bytes = None
        machine.disk.fail = lambda operation, path: None
        machine.disk.cut_at = None

    def _disk_full(self) -> None:
        machine = self._machine()
        machine.disk.free_bytes = self._random.choice([0, 300, 2000, 10_000])
        self._world.clock.note("disk full", machine.first_id)
        self._later(600, lambda: self._heal(machine))

    def _disk_fails(self) -> None:
        """Let a sync fail, of a file or of a directory, soon."""
        machine, left = self._machine(), self._random.randrange(6)
        kinds = self._random.choice([{"sync"}, {"sync_dir"}, {"sync", "sync_dir", "rename"}])

        def fail(operation: str, path: Path) -> OSError | None:
            nonlocal left
            if operation not in kinds:
                return None
            left -= 1
            return OSError(errno.EIO, "the simulated disk fails") if left == -1 else None

        machine.disk.fail = fail
        self._world.clock.note("disk fails", machine.first_id)

    def _snapshot(self) -> None:
        self._rolls.take_snapshot()

    def _roll_back(self) -> None:
        """Put a machine's disk back where another node that runs knows better; perhaps only such nodes run then."""
        machine, random = self._rolls, self._random
        for snapshot in random.sample(machine.snapshots, len(machine.snapshots)):
            if knowing := self._knowing(machine, snapshot):
                break
        else:
            return
        self._pauses_until_us = self._world.clock.now_us + ROLLING_BACK_US
        self._let_nothing_else_happen()
        kept = {random.choice(knowing), *(other for other in self._world.machines if random.random() < 0.5)}
        for other in self._world.machines:
            if other is not machine and other not in kept:
                other.stop("away while a disk is rolled back")
                other.start_later(random.choice([1_000, 4_000, 12_000]))
        machine.roll_back(snapshot)
        machine.start()

    def _let_nothing_else_happen(self) -> None:
        """End what would keep nodes from answering, crashes that are still to come among them."""
        self._world.cut.clear()
        self._world.loss = 0.0
        for machine in self._world.machines:
            machine.disk.cut_at = None

    def _knowing(self, machine: Machine, snapshot: Snapshot) -> list[Machine]:
        """Return the machines whose nodes run and must know incarnations of a machine that a snapshot lacks."""
        meetings, heard = self._world.meetings, Heard(snapshot.incarnation, snapshot.tick)
        return [
            other
            for other in self._world.machines
            if other.process is not None
            and other.process.is_up
            and other is not machine
            and meetings.knows_more(other.node_id, machine.node_id, heard)
        ]

    def hide_who_knows(self, machine: Machine, snapshot: Snapshot) -> None:
        """Stop nodes that must know more than a snapshot: the refused request is not repeated."""
        for other in self._knowing(machine, snapshot):
            other.stop("away when a refused copy starts again")
            other.start_later(5_000)

    def _start_copy_beside(self) -> None:
        """Start a copy of a running node elsewhere: the copy is refused, and the node continues."""
        machine = self._rolls
        known = any(machine.node_id in self._world.meetings.known[other.node_id] for other in self._world.machines)
        if machine.process is None or not machine.process.is_up or not known:
            return
        if self._random.random() < CRASH_SHARE:
            self._crash_beside_copy()
            return
        self._pauses_until_us = self._world.clock.now_us + COPY_RUNS_US
        self._let_nothing_else_happen()
        running, copy = machine.process, self._world.make_copy(machine)

        def look() -> None:
            self._world.remove_copy(copy)
            if machine.process is not running:
                self._world.checks.fail(
                    "I31", f"{machine.node_id} ended because of a copy that was started in parallel"
                )

        self._world.clock.after(COPY_RUNS_US, look)
        copy.start()

    def _crash_beside_copy(self) -> None:
        """Start a copy of a node elsewhere, and crash the node a moment later, while all other nodes run."""
        if all(machine.process is not None and machine.process.is_up for machine in self._world.machines):
            self._pauses_until_us = self._world.clock.now_us + RESOLVED_US
            self._let_nothing_else_happen()
            machine = self._rolls
            CrashBesideCopy(self._world, machine, knowing=lambda disk: self._knowing(machine, disk)).begin()

    def _know_by_hearsay(self) -> None:
        """Let the only running node learn a machine's later incarnation from another node, which is away by then."""
        machine, world = self._rolls, self._world
        others = [other for other in world.machines if other is not machine and not other.is_copy]
        up = [other for other in others if other.process is not None and other.process.is_up]
        if machine.process is None or not machine.process.is_up or len(up) < 2:
            return
        asked, witness = self._random.sample(up, 2)
        self._pauses_until_us = world.clock.now_us + HEARSAY_US
        self._let_nothing_else_happen()
        machine.stop("killed before it is copied")
        for other in others:
            if other is not witness:
                other.stop("away while another node starts")
        snapshot = machine.keep_stopped()
        machine.start()

        def meet() -> None:
            machine.stop("killed after its later incarnation was recorded")
            asked.start()

        def look() -> None:
            witness.stop("away when the copy starts")
            if asked in self._knowing(machine, snapshot):
                machine.roll_back(snapshot)
            machine.start()
            for other in others:
                other.start_later(12_000)

        world.clock.after(HEARSAY_US // 3, meet)
        world.clock.after(HEARSAY_US * 2 // 3, look)

    def _wipe(self) -> None:
        """Take a founder's disk, or a joiner's; it comes back under its name."""
        machines = [*self._may_lose, *(machine for machine in self._world.machines if not machine.is_founder)]
        if self._wipes > 0 and machines:
            self._wipes -= 1
            machine = self._random.choice(machines)
            machine.wipe()
            machine.start_later(self._random.choice(self._pauses_ms))
