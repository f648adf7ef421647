"""A machine of the world of whole nodes: a disk that may be replaced, while the node keeps its name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from tests.broker.storage.sim_disk import SimDisk
from tests.simulation.whole.node_process import DATA, NodeProcess

from tidelog_broker.core.rollback_detection import IncarnationTick
from tidelog_broker.node.node import Node
from tidelog_broker.storage.node.node_dir import NodeDir

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

AGAIN_MS = 400
OLDER = "is an older copy of node"
IN_DOUBT = "start this node again"
"""In a refusal because of a start elsewhere that may still be withdrawn: it is not final."""
REPLACED_AFTER = 12
"""So often one that is refused is started once more before its operator gives it another name; see `refused`."""


class Snapshot(NamedTuple):
    """A machine's disk as it was."""

    disk: SimDisk
    incarnation: int
    """Of the incarnation that ran then, or had run before."""
    tick: int
    reboots: bool
    """Whether it is an image of the disk, taken under a system that ran, and not a copy of files."""


class Machine:
    """See the module. `first_id` is the name it is started under, `is_founder` whether the bootstrap file has it."""

    def __init__(self, world: World, number: int, *, is_founder: bool) -> None:
        self.world = world
        self.number = number
        self.first_id = f"n{number}"
        self.is_founder = is_founder
        self.is_replacement = False
        self.host = f"host{number}"
        self.port = 7000
        self.disk = SimDisk()
        self.process: NodeProcess | None = None
        self.slowness: float = world.clock.random.choice([1, 1, 1, 6])
        self.boot = 1
        self.wipes = 0
        self.refusals = 0
        self.directory_id = b""
        self.node_id = self.first_id
        self.is_copy = False
        """Whether it is a copy of another machine, started in parallel."""
        self.stops_as_it_takes_part = False
        """Whether a copy is killed as soon as it may take part."""
        self.copy_took_part = False
        self.has_copy = False
        """Whether a copy of this machine's disk was made and started."""
        """Since a copy of this machine's directory took part."""
        self.snapshots: list[Snapshot] = []
        self._put_back: Snapshot | None = None
        self._ended_at = IncarnationTick(0, 0)
        """The last incarnation, and its tick when it ended."""
        self.is_rolled_back = False
        """Since its disk was put back to an earlier state."""
        self._cut_means_power = False

    # ------------------------------------------------------------------------------------------ up

    def start(self) -> None:
        """Start the node on its disk, unless it runs, or is a joiner that finds no seed."""
        if self.process is not None:
            return
        joins = not self.is_founder or self.is_replacement
        if joins and not any(process.listens and process.node.dir.admitted for process in self.world.processes()):
            self.start_later(AGAIN_MS)
            return
        self.world.clock.note("start", self.first_id, checksum=self.boot)
        self.process = NodeProcess(self.world, self)
        self.process.begin()

    def start_later(self, mean_ms: float) -> None:
        """Start after a while."""
        self.world.clock.after(int(self.world.clock.random.uniform(0.5, 1.5) * mean_ms * 1000), self.start)

    def opened(self, directory: NodeDir) -> None:
        """The node has opened its directory."""
        self.node_id, self.directory_id = directory.node_id, directory.directory_id
        self.world.checks.opened(self, directory)

    # ------------------------------------------------------------------------------------------ down

    def stop(self, why: str) -> None:
        """End the process; its writes stay in the page cache."""
        self.world.clock.note("stop", self.first_id, why)
        if self.process is not None:
            broker = getattr(getattr(self.process, "node", None), "broker", None)
            if broker is not None:
                self._ended_at = broker.incarnations.own.now
            self.process.end()
            self.process = None
        if self.disk.is_off:
            self.disk.is_off = False
        self.unlock()
        self.disk = self.disk.restart()
        self.world.meetings.ended(self.node_id)

    def unlock(self) -> None:
        """Release the data directory's lock, as the end of a process does."""
        lock = DATA / "lock"
        if self.disk.exists(lock):
            self.disk.node(lock).locked = False

    def power_off(self, why: str) -> None:
        """Lose power: unsynced bytes are lost, torn or kept."""
        self.stop(why)
        self.disk = self.disk.power_cut(self.world.clock.random)
        self.boot += 1

    def crash_in_write(self, steps: int, *, power: bool) -> None:
        """Crash in the middle of the next writes, after this number of disk operations."""
        self.disk.cut_at = self.disk.steps + steps
        self._cut_means_power = power

    def power_was_cut(self) -> None:
        """The disk has reached the step at which it was to crash."""
        if self._cut_means_power:
            self.power_off("power cut in a write")
        else:
            self.stop("killed in a write")
        self.start_later(AGAIN_MS)

    def wipe(self) -> None:
        """Replace the disk by an empty one; the node is started under its old name."""
        self.world.checks.lost(self)
        self.stop("wiped")
        self.disk = SimDisk()
        self.directory_id = b""
        self.wipes += 1
        self.refusals = 0

    def take_snapshot(self) -> None:
        """Keep the disk as it is now."""
        node = getattr(self.process, "node", None)
        if node is None or not hasattr(node, "broker"):
            return
        random, registry = self.world.clock.random, node.broker.incarnations
        reboots = random.random() < 0.5
        disk = self.disk.power_cut(random) if reboots else self.disk.copy()
        self.snapshots.append(Snapshot(disk, registry.own.now.incarnation, registry.own.now.tick, reboots))

    def keep_stopped(self) -> Snapshot:
        """Return the disk of a node that has ended, as a copy of its files."""
        (incarnation, tick) = self._ended_at
        return Snapshot(self.disk.copy(), incarnation, tick, reboots=False)

    def roll_back(self, snapshot: Snapshot) -> None:
        """Put the disk back to an earlier state; the process has ended."""
        self.stop("rolled back")
        self.world.checks.rolled_back(self)
        self.disk = snapshot.disk.copy()
        self.unlock()
        self.boot += snapshot.reboots
        self.is_rolled_back, self._put_back = True, snapshot

    def cannot_start(self, why: str) -> None:
        """The disk fails while the node starts, or the node has no identity."""
        if (self.is_rolled_back or self.copy_took_part) and OLDER in why:
            self.replaced()
            return
        if self.is_copy:
            self.stop(f"cannot start: {why}")
            return
        self.stop(f"cannot start: {why}")
        self.start_later(AGAIN_MS)

    def refused(self, why: str) -> None:
        """The cluster knows this name as that of another directory.

        So it is started again a few times, because others may wait for it if it is a new founder, and could
        join under new ids only without it; then it is replaced.
        """
        self.world.clock.note("refused", self.first_id, why)
        if self.is_copy:
            self.stop("refused")
            return
        if self.is_rolled_back and OLDER in why:
            if self.world.clock.random.random() < 0.5:
                self.replaced()
            else:  # a supervisor starts it again while the nodes that know better are away
                self.stop("refused")
                assert self._put_back is not None
                self.world.faults.hide_who_knows(self, self._put_back)
                self.start_later(AGAIN_MS)
            return
        if self.copy_took_part and OLDER in why:
            self.replaced()
            return
        if self.has_copy and IN_DOUBT in why:  # of two equal directories this one ends first
            self.stop("refused in doubt")
            self.start_later(AGAIN_MS)
            return
        self.world.checks.refused(self)
        self.refusals += 1
        if self.refusals > REPLACED_AFTER and self.world.checks.needs_no_other_founder:
            self.wipe()
            self.is_replacement = True
            self.port += 1
        else:
            self.stop("refused")
        self.start_later(AGAIN_MS)

    def replaced(self) -> None:
        """The operator starts another node to replace one whose disk was rolled back, in an empty directory."""
        self.is_rolled_back = self.copy_took_part = False
        self.snapshots.clear()
        self.wipe()
        self.is_replacement = True
        self.port += 1
        self.start_later(AGAIN_MS)

    def gave_up(self, node: Node) -> None:
        """The node stops without a request."""
        if node.lifecycle.exit_code == os.EX_CONFIG:
            self.world.checks.gave_up(self, node.lifecycle.stop_reason)
        self.stop(f"gave up: {node.lifecycle.stop_reason}")
        self.start_later(AGAIN_MS)
