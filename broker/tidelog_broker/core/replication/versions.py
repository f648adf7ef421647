"""The versions of compacted epochs: which one the log has, which one it is to have, and what that is made with.

A version is made of an older one of the same epoch and of the later epochs up to the horizon of its round, each in a
version that the round had before it: one of a later round may lack the tombstone of a value that is here still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog_broker.core.replication.replica_state import ReplicaState


class Versions:
    """See the module. All of them look at the log as it is now."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state

    def is_held(self, epoch: int) -> bool:
        """Whether the log has a decided epoch to its end, in any version."""
        return self._state.log.epoch_end(epoch) in self._state.ends_of(epoch)

    def is_whole(self, epoch: int) -> bool:
        """Whether the log has the newest version of a decided epoch, or an older one of which this node can make it."""
        held, ends = self._state.log.epoch_end(epoch), self._state.ends_of(epoch)
        return held == ends[-1] or (held in ends and self.can_make(epoch))

    def can_make(self, epoch: int) -> bool:
        """Whether all is here of which an epoch's newest version is made."""
        return self._has_front(epoch) and self.has_later(epoch)

    def _has_front(self, epoch: int) -> bool:
        """Whether the copy here begins where a pass does: with its round, or with the epoch.

        Where retention has deleted its front meanwhile, the version of that round is fetched, or another round comes.
        """
        state, begins = self._state, self._state.log.copy_start(epoch)
        floor = state.chain.compactions[epoch][-1].terms.floor
        return begins is not None and begins <= max(floor, state.start_of(epoch))

    def has_later(self, epoch: int) -> bool:
        """Whether the log has an epoch and all later ones that its newest version depends on, as the round had them."""
        state = self._state
        if epoch not in state.chain.compactions:
            return True
        newest = state.chain.compactions[epoch][-1]
        for other in range(epoch, state.active.epoch):
            if state.start_of(other) >= newest.terms.horizon:
                break
            if state.start_of(other) < state.decision(other).end_offset and not self._is_before(other, newest.at):
                return False
        return True

    def behind(self) -> list[int]:
        """Return the epochs of which this log should have the newest compacted version, and has not; oldest first."""
        state, found = self._state, []
        for epoch, compactions in sorted(state.chain.compactions.items()):
            end, below = state.ends_of(epoch)[-1], max(state.log_start, compactions[-1].terms.floor)
            if max(state.start_of(epoch), below) < end.offset and state.log.epoch_end(epoch) != end:
                found.append(epoch)
        return found

    def is_base_of(self, epoch: int, older: int) -> bool:
        """Whether the copy of `epoch` in the log is one with which the newest version of an older epoch is made."""
        state = self._state
        newest = state.chain.compactions[older][-1]
        return state.start_of(epoch) < newest.terms.horizon and self._is_before(epoch, newest.at)

    def _is_before(self, epoch: int, at: int) -> bool:
        """Whether an epoch is whole in the log, as it was decided at first or before the end of epoch `at`."""
        state = self._state
        held, decision = state.log.epoch_end(epoch), state.decision(epoch)
        earlier = [each.terms.end_digest for each in state.chain.compactions.get(epoch, ()) if each.at < at]
        return held is not None and held[0] == decision.end_offset and held[1] in {decision.end_digest, *earlier}
