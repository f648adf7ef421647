"""Syncs of one partition's log that no write waits for: one at a time, on a separate worker.

A request during a sync waits for it; only the newest request of each node is kept, because its answer covers the
earlier ones. So a peer that requests constantly costs no memory, and at most one sync after another.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog_broker.base.offload import Offload
from tidelog_broker.core.replication.effects import SyncAhead
from tidelog_broker.replication.replica_log import ReplicaLog


class BackgroundSyncs:
    """Runs the background syncs of one log. For the event loop's thread.

    Args:
        done: called after each sync.
        failed: called if the disk fails; nothing is synced ahead after that.
    """

    def __init__(
        self,
        offload: Offload,
        key: int,
        view: ReplicaLog,
        *,
        done: Callable[[SyncAhead], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._offload = offload
        self._key = key
        self._view = view
        self._done = done
        self._failed = failed
        self._waiting: dict[str, SyncAhead] = {}
        self._is_syncing = False
        self._stopped = False

    def add(self, effect: SyncAhead) -> None:
        """Sync what was written until now; the sync may include later writes."""
        self._waiting[effect.to] = effect
        if not self._is_syncing:
            self._next()

    def stop(self) -> None:
        """Begin no more syncs; a running one is not reported."""
        self._stopped = True
        self._waiting.clear()

    def _next(self) -> None:
        self._is_syncing = True
        effect = self._waiting.pop(next(iter(self._waiting)))
        epoch, slack_bytes = effect.epoch, effect.slack_bytes
        self._offload.start(
            self._key,
            lambda: self._view.sync_ahead(epoch, slack_bytes),
            lambda _, error: self._ended(effect, error),
        )

    def _ended(self, effect: SyncAhead, error: BaseException | None) -> None:
        self._is_syncing = False
        if self._stopped:
            return
        if error is not None:
            self.stop()
            self._failed(error)
            return
        self._done(effect)
        if self._waiting and not self._is_syncing:
            self._next()
