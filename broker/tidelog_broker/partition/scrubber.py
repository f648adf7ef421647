"""Scrubbing of a node's logs: they are reread slowly in a loop, to find damage while other replicas can repair it.

A damaged epoch that other nodes hold is set aside and fetched from them. A single copy is left unchanged, and the
damage is logged. The active segment is skipped, because recovery reads it at the next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.storage.engine.reading import Scrubbed, ScrubPart
from tidelog_broker.storage.io.workers import WorkersFullError
from tidelog_broker.storage.partition.scrub import is_held, parts_of
from tidelog_proto.limits import MIB

log = logging.getLogger(__name__)

FIRST_S: Final = 600.0
"""Delay of the first pass after the node's start, whose work is more urgent."""

PAUSE_S: Final = 1.0
"""Pause after a segment that cannot be opened."""

SLICE_BYTES: Final = MIB


class Scrubber:
    """Rereads the logs of a node's partitions to find damage. All methods are for the event loop's thread.

    Args:
        slice_bytes: about how much is read at a time before other work may run.
    """

    def __init__(
        self, partitions: Callable[[], Iterable[Partition]], tools: PartitionTools, slice_bytes: int = SLICE_BYTES
    ) -> None:
        self._partitions = partitions
        self._tools = tools
        self._slice_bytes = slice_bytes

    async def run(self) -> None:
        """Read all logs repeatedly at the configured rate, until cancelled; return at once if the rate is 0."""
        settings = self._tools.settings
        if not settings.scrub_bytes_per_s:
            return
        await asyncio.sleep(min(FIRST_S, settings.scrub_interval_s))
        while True:
            began_s = self._tools.loop.time()
            await self.run_once()
            await asyncio.sleep(max(0.0, began_s + settings.scrub_interval_s - self._tools.loop.time()))

    async def run_once(self) -> int:
        """Read all logs once; return the number of damaged segments."""
        damaged = 0
        for partition in list(self._partitions()):
            for part in parts_of(partition.log):
                damaged += await self._read(partition, part)
        self._tools.metrics.scrub_passes.inc()
        return damaged

    async def _read(self, partition: Partition, part: ScrubPart) -> bool:
        """Read a segment; return whether it is damaged: False also if it cannot be read, or was deleted meanwhile."""
        one = Scrubbed(None, 0, is_done=False)
        while not one.is_done:
            if partition.state.refusal is not None or not is_held(partition.log, part):
                return False
            at = one.end
            try:
                one = await self._slice(partition, part, one)
                if one.damage:
                    # The portion is read again, to exclude an error of the machine's memory.
                    one = await self._slice(partition, part, Scrubbed(at, 0, is_done=False))
            except (OSError, WorkersFullError) as error:
                if not isinstance(error, FileNotFoundError):
                    log.warning(
                        "%s: %s was not checked for damage and is checked by the next scrub: %s",
                        partition.name,
                        part.path,
                        error,
                    )
                    await asyncio.sleep(PAUSE_S)  # The cause may be too many open files.
                return False
            await asyncio.sleep(one.size_bytes / (self._tools.settings.scrub_bytes_per_s or MIB))
        if not one.damage or not is_held(partition.log, part):
            return False
        self._tools.metrics.scrub_damaged.inc()
        mending = partition.driver.damaged(part.epoch, one.damage)
        is_open = part.epoch == partition.replica.state.active.epoch
        if mending == "fetched":
            what = "fetching it from another node, if one has it"
        elif mending == "once ended":
            what = "its open epoch ends once enough replicas keep up, then it is fetched from them"
        elif is_open:
            what = "its epoch is open; it is fetched from other nodes after the epoch has ended"
        else:
            what = f"no other node stores it; run: tidelog log verify {part.path}"
        log.error("%s: %s; %s", partition.name, one.damage, what)
        return True

    async def _slice(self, partition: Partition, part: ScrubPart, before: Scrubbed) -> Scrubbed:
        fs = self._tools.disk.fs
        one = await self._tools.readers.call(partition.io_key, part.scrub, fs, before.end, self._slice_bytes)
        self._tools.metrics.scrubbed_bytes.inc(one.size_bytes)
        return one
