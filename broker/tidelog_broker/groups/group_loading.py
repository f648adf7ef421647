"""Loading of the positions of groups that this node has begun to coordinate, before a request needs them.

After a takeover the new owner of a partition of `__offsets` knows nothing of its groups until a request names one. A
group without running consumers gets no requests, but its growing lag must trigger an alert, and its expiry needs its
positions as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.groups.shards import GroupShards
from tidelog_broker.partition.partition import Partition
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)

LOAD_AGAIN_S: Final = 10.0


class GroupLoading:
    """Loads positions in the background.

    Args:
        find: returns a partition that this node stores and has opened.
    """

    def __init__(self, groups: GroupShards, find: Callable[[PartitionKey], Partition | None]) -> None:
        self._groups = groups
        self._find = find

    async def run(self) -> None:
        """Load positions every `LOAD_AGAIN_S` seconds, until cancelled."""
        while True:
            await asyncio.sleep(LOAD_AGAIN_S)
            await self.look()

    async def look(self) -> None:
        """Apply all commits of each partition of `__offsets` that this node owns and has opened, one at a time."""
        for key in self._groups.all_keys() if self._groups.is_founded() else ():
            partition = self._find(key)
            if partition is None or partition.state.assigner is None or partition.state.high_watermark == 0:
                continue
            try:
                await self._groups.at(key[1]).log.apply_committed()
            except ProtocolError as error:
                log.info(
                    "cannot load committed offsets from %s, retrying in %g s: %s", partition.name, LOAD_AGAIN_S, error
                )
