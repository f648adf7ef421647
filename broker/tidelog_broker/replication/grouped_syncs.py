"""Syncs of logs that several partitions share: one at a time for each log, for all who wait for it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidelog_broker.base.offload import Offload
from tidelog_broker.replication.engine_tallies import EngineTally
from tidelog_broker.storage.engine.store import SyncGroup

log = logging.getLogger(__name__)

Done = Callable[[BaseException | None], None]


class GroupedSyncs:
    """Runs the syncs of `SyncGroup`s. Used on the event loop's thread.

    A sync covers everything that was appended before it began. Requests that arrive while one is running wait for the
    next, so thousands of partitions share it. An exception that one of them raises afterwards concerns only that one.

    Args:
        offload: runs the syncs.
        tally: counts the syncs that have succeeded.
    """

    def __init__(self, offload: Offload, tally: EngineTally | None = None) -> None:
        self._offload = offload
        self._tally = tally or EngineTally()
        self._waiting: dict[SyncGroup, list[Done]] = {}
        """For each group with a running sync, those who wait for the next."""

    def request(self, group: SyncGroup, done: Done) -> None:
        """Call `done` when everything that was appended to a group is durable, or with the error of its sync."""
        waiting = self._waiting.get(group)
        if waiting is None:
            self._waiting[group] = []
            self._begin(group, [done])
        else:
            waiting.append(done)

    def _begin(self, group: SyncGroup, served: list[Done]) -> None:
        self._offload.start(0, group.sync, lambda _, error: self._ended(group, served, error))

    def _ended(self, group: SyncGroup, served: list[Done], error: BaseException | None) -> None:
        following = self._waiting.pop(group)
        self._tally.syncs += error is None
        if following:
            self._waiting[group] = []
            self._begin(group, following)
        faults: list[Exception] = []
        for done in served:
            try:
                done(error)
            except Exception as fault:  # noqa: BLE001 - raised below, when the others have been called
                faults.append(fault)
        for other in faults[1:]:
            log.error("one of several partitions failed after a sync that they share", exc_info=other)
        if faults:
            raise faults[0]
