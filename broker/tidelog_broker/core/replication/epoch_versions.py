"""Versions of compacted epochs: which one the log has, which one it should have, and its inputs.

A compaction round makes a new version of an epoch from an older version of it and from the later epochs up to the
horizon of the round, each in a version from before the round. A later version may lack the tombstone of a value that
the older epoch still contains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog_broker.core.replication.replica_state import ReplicaState


class EpochVersions:
    """The versions of one replica's sealed epochs, derived from its current log and chain at each call."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state

    def is_held(self, epoch: int) -> bool:
        """Return whether the log contains a decided epoch up to its end, in any version."""
        return self._state.log.epoch_end(epoch) in self._state.ends_of(epoch)

    def is_complete(self, epoch: int) -> bool:
        """Return whether the log has the newest version of a decided epoch, or an older one and all inputs for it."""
        held, ends = self._state.log.epoch_end(epoch), self._state.ends_of(epoch)
        return held == ends[-1] or (held in ends and self.can_make(epoch))

    def can_make(self, epoch: int) -> bool:
        """Return whether the log has all inputs of an epoch's newest version."""
        return self._has_front(epoch) and self.has_later(epoch)

    def _has_front(self, epoch: int) -> bool:
        """Return whether the log's copy starts no later than the newest version does.

        The newest version starts at the floor of its round, or at the start of the epoch if that is later.
        If retention has deleted the front of the copy meanwhile, the new version is fetched, or made by a later round.
        """
        state, begins = self._state, self._state.log.copy_start(epoch)
        floor = state.chain.compactions[epoch][-1].terms.floor
        return begins is not None and begins <= max(floor, state.start_of(epoch))

    def has_later(self, epoch: int) -> bool:
        """Return whether the log has every epoch from which the newest version of `epoch` is built.

        The versions of those epochs must be older than that version.
        """
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

    def outdated_epochs(self) -> list[int]:
        """Return the epochs whose newest compacted version this log should have but lacks, in ascending order."""
        state, found = self._state, []
        for epoch, compactions in sorted(state.chain.compactions.items()):
            end, below = state.ends_of(epoch)[-1], max(state.log_start, compactions[-1].terms.floor)
            if max(state.start_of(epoch), below) < end.offset and state.log.epoch_end(epoch) != end:
                found.append(epoch)
        return found

    def is_base_of(self, epoch: int, older: int) -> bool:
        """Return whether the copy of `epoch` is an input of the newest version of the `older` epoch."""
        state = self._state
        newest = state.chain.compactions[older][-1]
        return state.start_of(epoch) < newest.terms.horizon and self._is_before(epoch, newest.at)

    def _is_before(self, epoch: int, at: int) -> bool:
        """Return whether the log has an epoch as first decided, or in a version that an epoch before `at` decided."""
        state = self._state
        held, decision = state.log.epoch_end(epoch), state.decision(epoch)
        earlier = [each.terms.end_digest for each in state.chain.compactions.get(epoch, ()) if each.at < at]
        return held is not None and held[0] == decision.end_offset and held[1] in {decision.end_digest, *earlier}
