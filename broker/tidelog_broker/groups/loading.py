"""Loading the positions of groups that this node has come to coordinate, before anything asks about them.

After a takeover nothing is known of a partition of `__offsets` at its new owner until a group of it is asked about. A
group whose consumers are all gone is not asked about, and its growing lag is what an alert is for; its expiry needs its
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
    """See the module.

    Args:
        groups: what is known of groups here.
        find: returns a partition that is stored here and open.
    """

    def __init__(self, groups: GroupShards, find: Callable[[PartitionKey], Partition | None]) -> None:
        self._groups = groups
        self._find = find

    async def run(self) -> None:
        """Look every few seconds, for as long as the node runs."""
        while True:
            await asyncio.sleep(LOAD_AGAIN_S)
            await self.look()

    async def look(self) -> None:
        """Apply what is committed of each partition of `__offsets` that is owned and open here, one after the other."""
        for key in self._groups.all_keys() if self._groups.is_founded() else ():
            partition = self._find(key)
            if partition is None or partition.state.writer is None or partition.state.high_watermark == 0:
                continue
            try:
                await self._groups.at(key[1]).log.apply_committed()
            except ProtocolError as error:
                log.info("%s: the positions of its groups are read again later: %s", partition.name, error)
