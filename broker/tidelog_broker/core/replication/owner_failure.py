"""What a replica has heard of the owner of its epoch, and the evidence that the owner has failed.

    gossip     says that the node is dead, or that it has been started again
    the owner  says itself that it takes no further part: its log is damaged, or differs from the others'
    silence    since the epoch began, or since this node was started, nothing has come of it

An owner that has nothing to tell is silent, too: a thousand idle partitions must not cost a message a second each. But
it begins its epoch, and greets whoever comes back, with an empty append that it repeats until it is acknowledged. So
only who has never heard it in this epoch may count silence. Silence is weak: gossip says that the node is well, and it
may be slow. It is asked, along with the others, and has the whole time of a pre-vote to answer.

None of it is more than a reason to try a takeover; the pre-vote and the seal decide.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.core.replication.replica_state import ReplicaState

FIRST_EPOCH_FACTOR: Final = 10
"""How much longer the owner of a new partition may be silent: its node may have a thousand of them to make first."""


class OwnerWatch:
    """The owner of the active epoch, as one of its other replicas sees it."""

    def __init__(self, state: ReplicaState, now_ms: int) -> None:
        self._state = state
        self._entered_ms = now_ms
        self._silent_from_ms = now_ms
        self._heard_ms: int | None = None
        self._resigned = False

    def entered(self, now_ms: int) -> None:
        """A new epoch has begun here."""
        self._entered_ms = self._silent_from_ms = now_ms
        self._heard_ms = None
        self._resigned = False

    def heard(self, now_ms: int) -> None:
        """It has sent an append."""
        self._heard_ms = now_ms

    def answered(self, now_ms: int) -> None:
        """It has said that it is there, but not that it is ready."""
        self._silent_from_ms = now_ms

    def resigned(self) -> None:
        """It has said that it takes no further part in this epoch."""
        self._resigned = True

    def misses(self, now_ms: int) -> bool:
        """Whether it seems to be gone."""
        if self._resigned:
            return now_ms >= self._grace_until_ms()
        if self._heard_ms is not None and now_ms < self._heard_ms + self._state.timing.heard_ms:
            return False
        return self.seems_gone() or (self._heard_ms is None and now_ms >= self._silence_ms())

    def seems_gone(self) -> bool:
        """Whether there is evidence of failure beyond a timeout."""
        active, hints = self._state.active, self._state.surroundings
        newer = hints.incarnation(active.owner) > active.owner_incarnation
        return self._resigned or newer or not hints.alive(active.owner)

    def reconsider_ms(self) -> int | None:
        """When it may turn out to be missing although nothing is heard, from it or about it."""
        if self._resigned:
            return self._grace_until_ms()
        if self.seems_gone():
            # Never heard: it was gone before this replica, or this epoch, was there, and nobody will tell again.
            return (self._heard_ms or 0) + self._state.timing.heard_ms
        return self._silence_ms() if self._heard_ms is None else None

    def _grace_until_ms(self) -> int:
        """Return from when on a resignation counts: an owner that resigns at once may be no worse than the next one."""
        return self._entered_ms + self._state.timing.grace_ms

    def _silence_ms(self) -> int:
        state = self._state
        is_first = state.active.epoch == state.chain.genesis.epoch
        return self._silent_from_ms + state.timing.silent_ms * (FIRST_EPOCH_FACTOR if is_first else 1)
