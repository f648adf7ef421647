"""Damage in the owner's copy of the open epoch: the owner ends the epoch, so that others can be asked for it.

A copy of a sealed epoch is fetched again from any node that has it. Of the open epoch the owner is everybody's only
source: what has rotted there is fetched by nobody, so a replica that lacks it would lag for as long as the epoch lasts,
and the owner would keep what has rotted. Once the epoch has ended, both ask all who have held it.

The end is planned, at a time when enough others keep up to decide it at once. Where too few do, it would fence the
writers for nothing: the others lack what only this node's copy holds. So the owner looks again until enough are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog_broker.core.replication.push import Follower
from tidelog_broker.core.replication.replica_state import ReplicaState


class OpenDamage:
    """What one replica knows of damage in its own copy of the open epoch, as its owner.

    Args:
        state: of the replica.
        followers: returns the other replicas as the owner sees them.
        end: called with the time in ms when the epoch is to end; it looks whether it is ending already.
        fetch: called with the epoch, once it has ended, what is damaged, and the time in ms.
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
        self._found: tuple[int, str] | None = None
        """The epoch, and what is damaged."""
        self._look_ms = 0

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has something to do; None while nothing is known to be damaged."""
        return self._look_ms if self._found is not None else None

    def note(self, epoch: int, reason: str, now_ms: int) -> bool:
        """Take it that this node's copy of an epoch is damaged; return whether the epoch is to end for that.

        False for an epoch that has ended, for one of another owner, and for the only copy.
        """
        state = self._state
        if epoch != state.active.epoch or state.role != "owner" or len(state.active.placement) == 1:
            return False
        if self._found is None or self._found[0] != epoch:
            self._found = (epoch, reason)
            self._look_ms = now_ms
            self.tick(now_ms)
        return True

    def entered(self, now_ms: int) -> None:
        """An epoch has ended, perhaps the damaged one: look at the next tick."""
        self._look_ms = now_ms

    def tick(self, now_ms: int) -> None:
        """Have the epoch end once enough others keep up, again later where that was dropped; fetch it when it has."""
        if self._found is None or now_ms < self._look_ms:
            return
        epoch, reason = self._found
        self._look_ms = now_ms + self._state.timing.pull_ms
        if epoch != self._state.active.epoch:
            self._found = None
            self._fetch(epoch, reason, now_ms)
        elif self._others_keep_up(now_ms):
            self._end(now_ms)

    def _others_keep_up(self, now_ms: int) -> bool:
        """Whether those that decide, this node and others, hold all that is older than a moment."""
        alive = self._state.surroundings.alive
        ready = [one for one in self._followers() if alive(one.node_id) and one.keeps_up(now_ms)]
        return len(ready) >= max(1, self._state.active.ack_quorum - 1)
