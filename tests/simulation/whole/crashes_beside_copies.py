"""A node that crashes at the moment in which a copy of its directory starts elsewhere.

Some of the other nodes find that the node runs and refuse the copy; others find that it does not, and note the copy's
start. Afterwards the node must run again, unless the copy took part. Nodes that have noted the copy's start may crash,
or an older state of the node's disk is put back, which must still be found out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.whole.machine import Machine, Snapshot
    from tests.simulation.whole.world import World

LOOK_US = 200
CRASH_WITHIN_DELAYS = 8
"""So many mean delays of a message after the copy begins to call other nodes: they ask the node's address meanwhile."""
TICKS_US = 5_000_000
"""After an older state of the disk was kept: the node's tick is raised, and the other nodes learn it."""
RESOLVED_US = 21_000_000


class CrashBesideCopy:
    """See the module. One crash of one machine; `begin` starts the copy.

    Args:
        knowing: returns the machines whose nodes must know more than a state of the machine's disk.
    """

    def __init__(self, world: World, machine: Machine, *, knowing: Callable[[Snapshot], list[Machine]]) -> None:
        self._world = world
        self._random = world.clock.random
        self._machine = machine
        self._knowing = knowing
        self._copy = machine
        self._older: Snapshot | None = None
        """The state of the disk that is put back after the crash."""

    def begin(self) -> None:
        """Start a copy of the running node, and crash the node a moment later."""
        if self._random.random() < 0.3:
            self._machine.take_snapshot()
            self._older = self._machine.snapshots[-1]
            self._world.clock.after(TICKS_US, self._start_copy)
        else:
            self._start_copy()

    def _start_copy(self) -> None:
        self._copy = self._world.make_copy(self._machine)
        self._copy.stops_as_it_takes_part = True
        self._copy.start()
        self._world.clock.after(LOOK_US, self._wait_for_calls)
        self._world.clock.after(RESOLVED_US - TICKS_US, self._look)

    def _wait_for_calls(self) -> None:
        process = self._copy.process
        broker = getattr(getattr(process, "node", None), "broker", None)
        if process is not None and (broker is None or not broker.incarnations.offered_to):
            self._world.clock.after(LOOK_US, self._wait_for_calls)
            return
        within_us = int(self._world.delay_ms * 1000 * CRASH_WITHIN_DELAYS)
        self._world.clock.after(self._random.randrange(within_us), self._crash)
        self._world.clock.after(LOOK_US, self._wait_for_end)

    def _crash(self) -> None:
        self._machine.stop("crashed as a copy of it starts")
        if self._older is None:
            self._machine.start_later(self._random.choice([30, 400, 3_000]))
        else:
            self._world.clock.after(4_000_000, self._roll_back)

    def _roll_back(self) -> None:
        """Put an older disk back while those nodes run alone that have dropped the copy's start and know better."""
        machine, older = self._machine, self._older
        assert older is not None
        knowing = [other for other in self._knowing(older) if other.process is not None and self._dropped_copy(other)]
        if self._copy.process is None and not machine.copy_took_part and knowing:
            for other in self._others:
                if other not in knowing:
                    other.stop("away while a disk is rolled back")
                    other.start_later(12_000)
            machine.roll_back(older)
        machine.start()

    @property
    def _others(self) -> list[Machine]:
        return [one for one in self._world.machines if one is not self._machine and one is not self._copy]

    def _dropped_copy(self, other: Machine) -> bool:
        assert other.process is not None
        directory = (self._machine.node_id, self._machine.directory_id)
        starts = other.process.node.broker.incarnations.starts(directory)
        return bool(starts[1])

    def _wait_for_end(self) -> None:
        """Crash another node as soon as the copy has ended, so that it may miss the withdrawal."""
        if self._copy.process is not None and not self._copy.process.is_refused:
            self._world.clock.after(LOOK_US, self._wait_for_end)
            return
        if self._machine.copy_took_part or self._older is not None or self._random.random() < 0.5:
            return
        other = self._random.choice(self._others)

        def crash() -> None:
            other.stop("crashed after a copy has ended")
            other.start_later(self._random.choice([30, 400, 6_000]))

        self._world.clock.after(self._random.randrange(self._random.choice([2_000, 100_000])), crash)

    def _look(self) -> None:
        machine, took_part = self._machine, self._machine.copy_took_part
        self._world.remove_copy(self._copy)
        if machine.is_rolled_back or machine.is_replacement:
            return
        if not took_part and (machine.process is None or not machine.process.is_up):
            self._world.checks.fail("I31", f"{machine.node_id} ended because of a copy that was started in parallel")
