"""A machine: a disk, a boot counter, and at most one process. It loses power, its process dies, its disk goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.storage.sim_disk import SimDisk
from tests.simulation.process import HOME, Process

from tidelog_broker.storage.io.errors import StorageError

AGED_ERROR_US = 10_000
"""How wrong clocks are where ages are measured, unless they jump."""

if TYPE_CHECKING:
    from tests.simulation.world import World

NONCE_BITS = 24


class Machine:
    """See the module. `node_id` changes when the disk is replaced: an empty disk is another node."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.node_id = name
        self.disk = SimDisk()
        self.process: Process | None = None
        self.powered = True
        self.wall_error_us = world.clock.random.randint(-2_000_000, 2_000_000)
        if world.scenario.retention_ms:
            self.wall_error_us %= AGED_ERROR_US
        self.retired = False
        """The machine does not start any more, because the data on its disk is damaged."""
        self.slowness: float = world.clock.random.choice([1, 1, 1, 6])
        """How much longer its writes take."""
        self.lies = False
        """It serves other content of sealed epochs than was decided."""
        self._boots = 0
        self.machine_rebooted = False
        """It lost power since a node noted that, in all of its logs."""
        self.partitions = HOME
        self._cut_means_power = False
        self.next_incarnation = 0
        self._draw_incarnation()

    def _draw_incarnation(self) -> None:
        self._boots += 1
        self.next_incarnation = self._boots << NONCE_BITS | self.world.clock.random.randrange(1 << NONCE_BITS)

    @property
    def running(self) -> Process | None:
        """The process, if it runs and is not paused."""
        return self.process if self.process is not None and not self.process.paused else None

    # ------------------------------------------------------------------------------------------ up

    def start(self) -> None:
        """Start the node on its disk; it may end soon if the data is damaged or the disk fails."""
        if self.process is not None or self.retired:
            return
        self.powered = True
        if self.world.scenario.retention_ms and not 0 <= self.wall_error_us < AGED_ERROR_US:
            # A node must survive one start with a clock that is ahead; its timestamps are wrong then.
            if self.wall_error_us < 0 or self.world.began_wrong:
                self.wall_error_us = 0
            self.world.began_wrong = True
        incarnation = self.next_incarnation
        self._draw_incarnation()
        self.world.clock.note("start", self.node_id, incarnation, checksum=self.machine_rebooted)
        self.process = Process(self.world, self, incarnation=incarnation)
        self.process.begin()

    def cannot_start(self, error: StorageError) -> None:
        """The node refuses to start on its data, or the disk fails."""
        self.world.checks.refused_to_start(self, error)
        self.stop(f"cannot start: {error.message}")

    def mark_reboot_noted(self) -> None:
        """Every log has noted that power was lost."""
        self.machine_rebooted = False

    # ------------------------------------------------------------------------------------------ down

    def stop(self, why: str) -> None:
        """End the process; its writes stay in the page cache."""
        self.world.clock.note("stop", self.node_id, why)
        if self.process is not None:
            self.process.end()
            self.process = None
        self.disk = self.disk.restart()

    def power_off(self, why: str) -> None:
        """Lose power: unsynced bytes are lost, torn or kept."""
        self.stop(why)
        self.disk = self.disk.power_cut(self.world.clock.random)
        self.powered = False
        self.machine_rebooted = True

    def crash_in_write(self, steps: int, *, power: bool) -> None:
        """Crash in the middle of the next writes, after this number of disk operations."""
        self.disk.cut_at = self.disk.steps + steps
        self._cut_means_power = power

    def power_was_cut(self) -> None:
        """The disk has reached the step at which it was to crash."""
        if self._cut_means_power and (self.world.survives_power_cuts() or self.world.faults.may_lose(self)):
            self.power_off("power cut in a write")
        else:
            self.stop("killed in a write")

    def wipe(self) -> None:
        """Replace the disk by an empty one: a new node."""
        self.stop("wiped")
        number = int(self.node_id.partition("+")[2] or 0) + 1
        self.node_id = f"{self.name}+{number}"
        self.disk = SimDisk()
        self.retired = False
        self._boots = 0
        self.machine_rebooted = False
        self._draw_incarnation()
