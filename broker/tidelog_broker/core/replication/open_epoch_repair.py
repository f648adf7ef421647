"""Damage in the owner's copy of the open epoch: the owner ends the epoch, so that the copy can be repaired.

A damaged copy of a sealed epoch is fetched again from another node. The open epoch has only its owner as a source, so
damage in its copy cannot be repaired, and replicas that lack the damaged records would lag until the epoch ends. Once
the epoch is sealed, the owner and these replicas fetch the records from all replicas that have them.

The owner ends the epoch as planned (`planned_end`) once enough followers keep up to decide the end immediately. With
too few, ending it would fence the producers without benefit, because the followers lack records that only the owner
has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog_broker.core.replication.epoch_writer import Follower
from tidelog_broker.core.replication.replica_state import ReplicaState


class OpenEpochRepair:
    """Ends the open epoch if its owner's copy, on this node, is damaged, and then requests the repair of the copy.

    Args:
        followers: returns the followers.
        end: ends the epoch; called with the time in ms, and does nothing if the epoch is ending already.
        fetch: called after the end of the epoch with its number, the damage, and the time in ms.
    """

    def __init__(
        self,
        state: ReplicaState,
        *,
        followers: Callable[[], Sequence[Follower]],
        end: Callable[[int], None],
        fetch: Callable[[int, str, int], object],
    ) -> None:
        self._state = state
        self._followers = followers
        self._end = end
        self._fetch = fetch
        self._found_damage: tuple[int, str] | None = None
        """The damaged epoch, and a description of the damage; None while no damage is known."""
        self._look_ms = 0

    @property
    def deadline_ms(self) -> int | None:
        """Time in ms when `tick` has to be called; None if no damage is known."""
        return self._look_ms if self._found_damage is not None else None

    def note(self, epoch: int, reason: str, now_ms: int) -> bool:
        """Record damage in this node's copy of an epoch; return whether this node will end the epoch to repair it.

        False for an epoch that has ended, for an epoch of another owner, and for the only copy.
        """
        state = self._state
        if epoch != state.active.epoch or state.role != "owner" or len(state.active.placement) == 1:
            return False
        if self._found_damage is None or self._found_damage[0] != epoch:
            self._found_damage = (epoch, reason)
            self._look_ms = now_ms
            self.tick(now_ms)
        return True

    def entered(self, now_ms: int) -> None:
        """Schedule the repair of an ended epoch for the next tick."""
        self._look_ms = now_ms

    def tick(self, now_ms: int) -> None:
        """End the damaged epoch once enough followers keep up; once it has ended, request the repair of this copy.

        An attempt that fails is repeated after `peer_fetch_ms`.
        """
        if self._found_damage is None or now_ms < self._look_ms:
            return
        epoch, reason = self._found_damage
        self._look_ms = now_ms + self._state.timing.peer_fetch_ms
        if epoch != self._state.active.epoch:
            self._found_damage = None
            self._fetch(epoch, reason, now_ms)
        elif self._others_keep_up(now_ms):
            self._end(now_ms)

    def _others_keep_up(self, now_ms: int) -> bool:
        """Return whether enough followers for a quorum with this node keep up."""
        alive = self._state.cluster_hints.alive
        ready = [one for one in self._followers() if alive(one.node_id) and one.keeps_up(now_ms)]
        return len(ready) >= max(1, self._state.active.ack_quorum - 1)
