"""Deleting groups that nobody uses: without members, and nothing committed or changed for `group_retention_ms`.

Only the node that coordinates a group looks, now and then. How old something is says the steady clock, as it does of
records (ADR 0071): a clock that jumps deletes nothing early, nor does a time in which the node was off while that is
not sure yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Final

from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.groups.shards import GroupShard
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)

LOOK_S: Final = 60.0
_AT_ONCE: Final = 2_000
"""Positions that are looked at before others have their turn."""


class Expiry:
    """See the module.

    Args:
        shards: the partitions of `__offsets` at this node.
        clock: what ages go by.
        retention_ms: so long a group is kept that nobody uses; 0: for ever.
    """

    def __init__(self, shards: Iterable[GroupShard], *, clock: SteadyClock, retention_ms: int) -> None:
        self._shards = shards
        self._clock = clock
        self._retention_us = retention_ms * 1000
        self._newest_at_first_us: dict[PartitionKey, int] = {}

    async def run(self) -> None:
        """Look again and again."""
        while self._retention_us:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> list[str]:
        """Delete what nobody has used for so long, where this node coordinates; return which groups that was."""
        deleted: list[str] = []
        for shard in self._shards:
            try:
                async for name in self._look(shard):
                    deleted.append(name)  # noqa: PERF401 - what was deleted before an error counts, too
            except ProtocolError as error:
                log.info("groups that nobody uses are looked for again later: %s", error)
        return deleted

    async def _look(self, shard: GroupShard) -> AsyncIterator[str]:
        """Delete groups of a partition, and yield their names.

        Raises:
            ProtocolError: another node coordinates by now, or nothing can be written.
        """
        if not shard.coordinator.owns_log:
            return
        await shard.coordinator.ready(confirmed=True)
        used = await _used(shard)
        newest_us = self._newest_at_first_us.setdefault(shard.key, max(used.values(), default=0))
        before_us = self._clock.stamped_before_us(self._retention_us, newest_us)
        for name, at_us in used.items():
            if at_us > before_us or not _is_unused(shard, name, before_us):  # looked at again: some time has passed
                continue
            await shard.coordinator.delete(name)
            log.info("the group %r is deleted: nobody has used it for long", name)
            yield name


def _is_unused(shard: GroupShard, name: str, before_us: int) -> bool:
    if shard.coordinator.has_members(name) or shard.positions.is_committing(name):
        return False
    return 0 < _used_us(shard, name) <= before_us


async def _used(shard: GroupShard) -> dict[str, int]:
    """Return when each group was used last."""
    found: dict[str, int] = {}
    looked = 0
    for name in sorted(shard.coordinator.descriptions.names()):
        found[name] = _used_us(shard, name)
        looked += 10 + shard.positions.count_of(name)
        if looked > _AT_ONCE:
            looked = 0
            await asyncio.sleep(0)
    return found


def _used_us(shard: GroupShard, name: str) -> int:
    """Return when a group was used last, in µs since 1970; 0 if nothing says so."""
    record = shard.records.get(name)
    return max(shard.positions.last_commit_us(name), 0 if record is None else record.changed_us)
