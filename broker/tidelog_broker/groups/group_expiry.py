"""Deletion of unused groups: without members, and without a commit or change for `group_retention_ms`.

Only a group's coordinator deletes it. Ages are measured with the steady clock, as for records (ADR 0071): a jump of the
wall clock does not count as age, nor does a downtime before the clock has settled.
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
"""Number of positions that are checked before the event loop serves other work."""


class GroupExpiry:
    """Deletes unused groups.

    Args:
        retention_ms: how long an unused group is kept; 0: for ever.
    """

    def __init__(self, shards: Iterable[GroupShard], *, clock: SteadyClock, retention_ms: int) -> None:
        self._shards = shards
        self._clock = clock
        self._retention_us = retention_ms * 1000
        self._newest_at_first_us: dict[PartitionKey, int] = {}

    async def run(self) -> None:
        """Delete unused groups every `LOOK_S` seconds, until cancelled; return at once if `retention_ms` is 0."""
        while self._retention_us:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> list[str]:
        """Delete the unused groups that this node coordinates; return their names."""
        deleted: list[str] = []
        for shard in self._shards:
            try:
                async for name in self._look(shard):
                    deleted.append(name)  # noqa: PERF401 - includes those that were deleted before an error
            except ProtocolError as error:
                log.info(
                    "deleting unused groups of partition %d of __offsets failed, and is retried in %d s: %s",
                    shard.key[1],
                    LOOK_S,
                    error,
                )
        return deleted

    async def _look(self, shard: GroupShard) -> AsyncIterator[str]:
        """Delete the unused groups of a partition, and yield their names.

        Raises:
            ProtocolError: another node coordinates, or a write failed.
        """
        if not shard.coordinator.owns_log:
            return
        await shard.coordinator.ready(confirmed=True)
        used = await _last_used_times(shard)
        newest_us = self._newest_at_first_us.setdefault(shard.key, max(used.values(), default=0))
        before_us = self._clock.stamped_before_us(self._retention_us, newest_us)
        for name, at_us in used.items():
            if at_us > before_us or not _is_unused(shard, name, before_us):  # rechecked, since this loop awaits
                continue
            await shard.coordinator.delete(name)
            log.info(
                "deleted group %r and its committed offsets: it had no members and no commits for %d s "
                "(group_retention_ms)",
                name,
                self._retention_us // 1_000_000,
            )
            yield name


def _is_unused(shard: GroupShard, name: str, before_us: int) -> bool:
    if shard.coordinator.has_members(name) or shard.positions.is_committing(name):
        return False
    return 0 < _used_us(shard, name) <= before_us


async def _last_used_times(shard: GroupShard) -> dict[str, int]:
    """Return when each group was last used."""
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
    """Return when a group was last used, in µs since 1970; 0 if unknown."""
    record = shard.records.get(name)
    return max(shard.positions.last_commit_us(name), 0 if record is None else record.changed_us)
