"""Copies of epochs that begin after records that were not deleted, because a segment file is lost.

Nothing precedes the first segment of a log, so its storage cannot distinguish a lost file from a deleted one. Each
deletion is durable before files are removed, as the log start or as the delete offset (`deletion`): a copy that begins
after both has lost records (ADR 0194).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog_broker.core.replication.replica_state import ReplicaState


class MissingFronts:
    """The sealed epochs of one replica whose copies in the log lack their first records."""

    def __init__(self, state: ReplicaState, *, refetch: Callable[[int, str, int], bool]) -> None:
        """Create it without any epoch.

        Args:
            refetch: fetches an epoch again, see `Backfill.refetch`.
        """
        self._state = state
        self._refetch = refetch
        self._found: set[int] = set()

    @property
    def epochs(self) -> list[int]:
        """The epochs that `look` has found, and that still lack their first records."""
        return [epoch for epoch in self._found if self.lacks(epoch)] if self._found else []

    def is_restored(self, epoch: int) -> bool:
        """Return whether an epoch that `look` has found lacks nothing any more, or its first records were deleted."""
        return epoch in self._found and not self.lacks(epoch)

    def forget_restored(self) -> None:
        """Forget the epochs that lack nothing any more."""
        self._found.intersection_update(self.epochs)

    def look(self, epoch: int, now_ms: int) -> None:
        """Fetch a sealed epoch again if its copy lacks its first records; halt if no other node has the epoch.

        Does nothing if the node does not store the partition any more.
        """
        state = self._state
        if not state.is_member or state.halted is not None or not self.lacks(epoch):
            return
        is_fetched = self._refetch(epoch, self.reason(epoch), now_ms)
        self._found.add(epoch)
        if not is_fetched:
            self.halt(epoch)

    def halt(self, epoch: int) -> None:
        """Halt the replica, because no other node has the first records of an epoch."""
        self._state.halt(f"{self.reason(epoch)}, and no other node has them", permanently=True)

    def lacks(self, epoch: int) -> bool:
        """Return whether the log's copy of an epoch begins after records that were not deleted.

        An engine that loses its records in a restart is excepted.
        """
        begins = self._state.log.copy_start(epoch)
        return begins is not None and begins > self._front(epoch) and not self._state.log.is_volatile(epoch)

    def reason(self, epoch: int) -> str:
        """Describe the missing first records of an epoch."""
        begins = self._state.log.copy_start(epoch)
        return (
            f"this node's copy of epoch {epoch} begins at offset {begins}, but the records from offset "
            f"{self._front(epoch)} were not deleted: a segment file is missing"
        )

    def _front(self, epoch: int) -> int:
        """Return the first offset of an epoch that a copy of any version must have."""
        state = self._state
        floors = [each.terms.floor for each in state.chain.compactions.get(epoch, ())]
        return max(state.start_of(epoch), state.log_start, state.deleted_below, *floors)
