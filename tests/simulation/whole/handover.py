"""Hands a log of the cluster's own state to another node and back, while its first owner has records to write.

The owner of `__meta` or `__offsets` gets a slow disk, so that records are pending in its pipeline while a write is in
progress. Then it is cut off, another node takes over, gets the same requests, and ends its epoch by a plan that names
the first owner. The first owner learns both decisions at once, or one by one, and still holds the pending records,
computed from a state that is two epochs old.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import META_KEY, OFFSETS_KEY, PartitionKey
from tidelog_broker.partition.partition import Partition

if TYPE_CHECKING:
    from tests.simulation.whole.machine import Machine
    from tests.simulation.whole.node_process import NodeProcess
    from tests.simulation.whole.world import World

FIRST_MS: Final = 5_000
GAP_MS: Final = 1_500
SLOW_WRITE_MS: Final = 1_000
"""So long a write of the owner's disk takes, in the mean."""
SLOW_MS: Final = (300, 800)
"""So long it stays connected with the slow disk."""
CUT_MS: Final = (200, 1_500)
"""How long the other node owns the log, in addition to the takeover."""
LOOK_US: Final = 20_000
COPIES_MIN: Final = 3
"""With fewer copies no other node can take over."""
PATIENCE_MS: Final = 6_000
"""Timeout of a step: all faults are healed then, and another round begins."""


class Handover:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.clock.random
        self._names = 0
        self.done = 0
        """How often a log came back to its first owner."""

    def start(self) -> None:
        """Begin."""
        self._world.clock.after(FIRST_MS * 1000, self._begin)

    def _begin(self) -> None:
        if self._world.calm:
            return
        key = self._random.choice([META_KEY, OFFSETS_KEY, OFFSETS_KEY])
        owner = self._owner(key)
        if owner is None:
            self._world.clock.after(GAP_MS * 1000, self._begin)
        else:
            _Round(self, self._world, key, owner).slow_down()

    def ended(self, *, came_back: bool) -> None:
        """A round is over."""
        self.done += came_back
        self._world.clock.after(GAP_MS * 1000, self._begin)

    def owner_but(self, key: PartitionKey, machine: Machine) -> NodeProcess | None:
        """Return a node that owns the log now, other than that on a machine."""
        return self._owner(key, machine)

    def names(self) -> list[str]:
        """Return names for topics that are asked for at both owners."""
        self._names += 2
        return [f"handed{number}" for number in (self._names - 1, self._names)]

    def _owner(self, key: PartitionKey, but: Machine | None = None) -> NodeProcess | None:
        for process in self._world.processes():
            found = partition_at(process, key) if process.machine is not but else None
            if found is not None and found.state.assigner and len(found.replica.state.active.placement) >= COPIES_MIN:
                return process
        return None


class _Round:
    """One hand-over of a log."""

    def __init__(self, handover: Handover, world: World, key: PartitionKey, owner: NodeProcess) -> None:
        self._handover = handover
        self._world = world
        self._random = world.clock.random
        self._key = key
        self._machine = owner.machine
        self._node_id = owner.node.node_id
        self._slowness = self._machine.slowness
        self._until_us = 0
        self._hears_each = self._random.random() < 0.3
        """Whether the first owner learns of all decisions in order."""
        self._names = handover.names() if key == META_KEY else []

    def slow_down(self) -> None:
        self._machine.slowness = SLOW_WRITE_MS / self._world.write_ms
        self._world.clock.note("slow disk", self._machine.first_id)
        self._ask_for_topics(lambda process: process.machine is self._machine)
        self._later(SLOW_MS, self._cut_off)

    def _cut_off(self) -> None:
        number = self._machine.number
        others = [machine.number for machine in self._world.machines if machine is not self._machine]
        self._world.cut |= {pair for other in others for pair in ((number, other), (other, number))}
        self._world.clock.note("cut off", self._machine.first_id)
        self._until_us = self._world.clock.now_us + PATIENCE_MS * 1000
        self._await_successor()

    def _await_successor(self) -> None:
        if self._handover.owner_but(self._key, self._machine) is None:
            self._again(self._await_successor)
            return
        self._ask_for_topics(lambda process: process.machine is not self._machine)
        self._later(CUT_MS, self._reconnect if self._hears_each else self._hand_back)

    def _hand_back(self) -> None:
        """End the successor's epoch by a plan that names the first owner."""
        successor = self._handover.owner_but(self._key, self._machine)
        found = None if successor is None else partition_at(successor, self._key)
        if successor is None or found is None:
            self._again(self._hand_back)
            return
        active, partition = found.replica.state.active, found
        stay = [node for node in active.placement if node != self._node_id]
        placement = (self._node_id, *stay[: len(active.placement) - 1])
        plan = Plan(self._node_id, placement, active.ack_quorum, active.flush)
        self._world.clock.note("hands back", successor.node.node_id)
        successor.run(lambda: partition.driver.roll_over(plan))
        epoch = active.epoch

        def ends() -> None:
            if partition.state.epoch == epoch and not successor.dead:
                self._again(ends)
            elif self._hears_each:
                self._await_return()
            else:
                self._reconnect()

        ends()

    def _reconnect(self) -> None:
        self._mend()
        if self._hears_each:
            self._later((100, 400), self._hand_back)
        else:
            self._await_return()

    def _await_return(self) -> None:
        process = self._machine.process
        found = None if process is None else partition_at(process, self._key)
        if found is None or found.state.assigner is None:
            self._again(self._await_return)
        else:
            self._end(came_back=True)

    def _ask_for_topics(self, is_asked: Callable[[NodeProcess], bool]) -> None:
        """Ask for the round's topics, one after the other, at the nodes that `is_asked` picks."""
        for number, name in enumerate(self._names):
            self._world.clock.after(1 + 30_000 * number, partial(self._world.topics.ask_for, name, is_asked))

    def _again(self, step: Callable[[], None]) -> None:
        """Try a step again soon, or give the round up."""
        if self._world.calm or self._world.clock.now_us > self._until_us:
            self._end(came_back=False)
        else:
            self._world.clock.after(LOOK_US, step)

    def _later(self, between_ms: tuple[int, int], step: Callable[[], None]) -> None:
        def act() -> None:
            if self._world.calm:
                self._end(came_back=False)
            else:
                step()

        self._world.clock.after(self._random.randint(*between_ms) * 1000, act)

    def _mend(self) -> None:
        number = self._machine.number
        self._world.cut = {pair for pair in self._world.cut if number not in pair}
        self._machine.slowness = self._slowness
        self._world.clock.note("reconnected", self._machine.first_id)

    def _end(self, *, came_back: bool) -> None:
        self._mend()
        self._handover.ended(came_back=came_back)


def partition_at(process: NodeProcess, key: PartitionKey) -> Partition | None:
    """Return a partition at a node that serves; None where it is not open there."""
    return process.node.broker.partitions.find(key) if process.is_up and not process.dead else None
