"""Deleting groups that nobody uses: without members, and nothing committed or changed for `group_retention_ms`.

Only the node that coordinates groups looks, now and then. How old something is says the steady clock, as it does of
records (ADR 0071): a clock that jumps deletes nothing early, nor does a time in which the node was off while that is
not sure yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.core.groups.positions import GroupOffsets
from tidelog_broker.core.groups.records import GroupRecords
from tidelog_broker.groups.coordinator import Coordinator
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)

LOOK_S: Final = 60.0
_AT_ONCE: Final = 2_000
"""Positions that are looked at before others have their turn."""


class Expiry:
    """See the module.

    Args:
        coordinator: of groups, at this node.
        groups, positions: what `__offsets` says.
        clock: what ages go by.
        retention_ms: so long a group is kept that nobody uses; 0: for ever.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        groups: GroupRecords,
        positions: GroupOffsets,
        clock: SteadyClock,
        retention_ms: int,
    ) -> None:
        self._coordinator = coordinator
        self._records = groups
        self._positions = positions
        self._clock = clock
        self._retention_us = retention_ms * 1000
        self._newest_at_first_us: int | None = None

    async def run(self) -> None:
        """Look again and again."""
        while self._retention_us:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except ProtocolError as error:
                log.info("groups that nobody uses are looked for again later: %s", error)

    async def look(self) -> list[str]:
        """Delete what nobody has used for so long; return which groups that was.

        Raises:
            ProtocolError: another node coordinates by now, or nothing can be written.
        """
        if not self._coordinator.owns_log:
            return []
        await self._coordinator.ready(confirmed=True)
        used = await self._used(sorted(self._coordinator.descriptions.names()))
        if self._newest_at_first_us is None:
            self._newest_at_first_us = max(used.values(), default=0)
        before_us = self._clock.stamped_before_us(self._retention_us, self._newest_at_first_us)
        return await self._delete((name for name, at_us in used.items() if at_us <= before_us), before_us)

    async def _delete(self, names: Iterable[str], before_us: int) -> list[str]:
        deleted: list[str] = []
        for name in names:
            if not self._is_unused(name, before_us):  # looked at again: some time has passed
                continue
            await self._coordinator.delete(name)
            log.info("the group %r is deleted: nobody has used it for long", name)
            deleted.append(name)
        return deleted

    def _is_unused(self, name: str, before_us: int) -> bool:
        if self._coordinator.has_members(name) or self._positions.is_committing(name):
            return False
        return 0 < self._used_us(name) <= before_us

    async def _used(self, names: Iterable[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        looked = 0
        for name in names:
            found[name] = self._used_us(name)
            looked += 10 + self._positions.count_of(name)
            if looked > _AT_ONCE:
                looked = 0
                await asyncio.sleep(0)
        return found

    def _used_us(self, name: str) -> int:
        """Return when a group was used last, in µs since 1970; 0 if nothing says so."""
        record = self._records.get(name)
        return max(self._positions.last_commit_us(name), 0 if record is None else record.changed_us)
