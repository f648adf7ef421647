"""The scrubber reads the node's logs again and again, slowly: what has rotted is found while it can be mended.

What others hold is set aside and fetched from them. Of the only copy nothing is taken: a line in the log says where it
is damaged. The open segment is left out: whoever starts the node reads it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.storage.io.workers import WorkersFullError
from tidelog_broker.storage.partition.scrub import Part, Scrubbed, is_held, parts_of, scrub
from tidelog_proto.limits import MIB

log = logging.getLogger(__name__)

FIRST_S: Final = 600.0
"""How long after its start a node begins: what it does then is more urgent."""

PAUSE_S: Final = 1.0
"""How long it waits where a segment cannot be opened."""

SLICE_BYTES: Final = MIB


class Scrubber:
    """See the module. All methods are for the event loop's thread.

    Args:
        partitions: what is open on this node.
        tools: the node's.
        slice_bytes: about how much is read at a time; then others have their turn.
    """

    def __init__(
        self, partitions: Callable[[], Iterable[Partition]], tools: PartitionTools, slice_bytes: int = SLICE_BYTES
    ) -> None:
        self._partitions = partitions
        self._tools = tools
        self._slice_bytes = slice_bytes

    async def run(self) -> None:
        """Read all logs at the pace that is configured, for as long as the node runs."""
        settings = self._tools.settings
        if not settings.scrub_bytes_per_s:
            return
        await asyncio.sleep(min(FIRST_S, settings.scrub_interval_s))
        while True:
            began_s = self._tools.loop.time()
            await self.run_once()
            await asyncio.sleep(max(0.0, began_s + settings.scrub_interval_s - self._tools.loop.time()))

    async def run_once(self) -> int:
        """Read all logs once; return how many segments are damaged."""
        damaged = 0
        for partition in list(self._partitions()):
            for part in parts_of(partition.log):
                damaged += await self._read(partition, part)
        self._tools.metrics.scrub_passes.inc()
        return damaged

    async def _read(self, partition: Partition, part: Part) -> bool:
        """Read a segment; return whether it is damaged."""
        one = Scrubbed(None, 0, is_done=False)
        while not one.is_done:
            if partition.state.refusal is not None or not is_held(partition.log, part):
                return False
            at = one.end
            try:
                one = await self._slice(partition, part, one)
                if one.damage:
                    one = await self._slice(partition, part, Scrubbed(at, 0, is_done=False))  # memory may err, too
            except (OSError, WorkersFullError) as error:
                if not isinstance(error, FileNotFoundError):
                    log.warning("%s: %s is not read again this time: %s", partition.name, part.path, error)
                    await asyncio.sleep(PAUSE_S)  # too many open files, perhaps
                return False
            await asyncio.sleep(one.size_bytes / (self._tools.settings.scrub_bytes_per_s or MIB))
        if not one.damage or not is_held(partition.log, part):
            return False
        self._tools.metrics.scrub_damaged.inc()
        mending = partition.driver.damaged(part.epoch, one.damage)
        is_open = part.epoch == partition.replica.state.active.epoch
        if mending == "fetched":
            what = "it is fetched from another node, if one has it"
        elif mending == "once ended":
            what = "its epoch is open and is to end once enough nodes keep up: then they are asked for it"
        elif is_open:
            what = "its epoch is open: once that has ended, other nodes are asked for it"
        else:
            what = "no other node is to have it; see tidelog log verify"
        log.error("%s: %s; %s", partition.name, one.damage, what)
        return True

    async def _slice(self, partition: Partition, part: Part, before: Scrubbed) -> Scrubbed:
        fs = self._tools.disk.fs
        one = await self._tools.readers.call(partition.io_key, scrub, fs, part, before.end, self._slice_bytes)
        self._tools.metrics.scrubbed_bytes.inc(one.size_bytes)
        return one
