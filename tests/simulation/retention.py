"""Retention as `Partition` does it: owners delete their oldest segments past a bound, the others what they deleted.

A replica that lacks what is deleted cannot accept the end of its epoch, so that a quorum must be there besides it: no
machine loses anything for good in these runs, and all are back in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.driver import PartitionDriver
    from tests.simulation.world import World

INTERVAL_US = 30_000


class Retention:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bytes_max = world.scenario.retention_bytes

    def start(self) -> None:
        """Begin, if anything is to be deleted in this run."""
        if self._bytes_max:
            self._world.clock.after(self._world.clock.random.randrange(INTERVAL_US), self._look)

    def _look(self) -> None:
        for machine in self._world.machines:
            process = machine.running
            for driver in list(process.partitions.values()) if process is not None else ():
                if machine.process is process:
                    self._retain(driver)
        self._world.clock.after(INTERVAL_US, self._look)

    def _retain(self, driver: PartitionDriver) -> None:
        replica, store = driver.replica, driver.store
        if replica.halted is not None or driver.cuts():
            return  # a node deletes behind the cut, on the thread that cuts
        if replica.owner is None:
            if replica.log_start > store.start_offset:
                driver.process.on_disk(lambda: store.delete_oldest(replica.log_start, 0, replica.log_start))
            return
        if replica.history.incomplete:
            return
        before = store.start_offset
        driver.process.on_disk(lambda: store.delete_oldest(0, self._bytes_max, replica.high_watermark))
        if store.start_offset > before and not driver.process.dead:
            self._world.clock.note("retention", driver.name, store.start_offset)
            replica.raise_log_start(store.start_offset, driver.process.now_ms)
            driver.pump()
