"""Failure detection of an epoch's owner by its replicas.

The evidence is one of:

    gossip      reports the node dead, or restarted
    resignation the owner reports that it no longer participates: its log is damaged or has diverged
    silence     nothing was received from it since the epoch, or this node, started

An idle owner sends nothing either, because heartbeats of a thousand idle partitions would be too many messages. But it
starts its epoch, and greets each returning replica, with an empty append that it repeats until the replica acknowledges
it. Silence therefore counts only for a replica that has never received an append of the owner in this epoch. Silence is
weak evidence: the node is alive according to gossip and may be slow. The candidate therefore includes the owner in the
pre-vote, and waits for its answer until the pre-vote times out.

Any evidence only justifies the attempt of a takeover; the pre-vote and the seal decide.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.core.replication.replica_state import ReplicaState

FIRST_EPOCH_FACTOR: Final = 10
"""Factor of the silence timeout in a partition's first epoch, because a node may create many partitions at once."""


class OwnerMonitor:
    """Monitors the owner of the active epoch on behalf of another replica."""

    def __init__(self, state: ReplicaState, now_ms: int) -> None:
        self._state = state
        self._entered_ms = now_ms
        self._silent_from_ms = now_ms
        self.heard_ms: int | None = None
        """When this replica last received an append from the owner in this epoch; None if it never did."""
        self._resigned = False

    def entered(self, now_ms: int) -> None:
        """Start monitoring a new epoch."""
        self._entered_ms = self._silent_from_ms = now_ms
        self.heard_ms = None
        self._resigned = False

    def answered(self, now_ms: int) -> None:
        """Restart the silence timeout: the owner answered, so it is alive but not ready."""
        self._silent_from_ms = now_ms

    def resigned(self) -> None:
        """Record that the owner resigned in this epoch."""
        self._resigned = True

    def misses(self, now_ms: int) -> bool:
        """Return whether the owner seems to have failed."""
        if self._resigned:
            return now_ms >= self._grace_until_ms()
        if self.heard_ms is not None and now_ms < self.heard_ms + self._state.timing.heard_ms:
            return False
        return self.has_failure_evidence() or (self.heard_ms is None and now_ms >= self._silence_ms())

    def has_failure_evidence(self) -> bool:
        """Return whether there is evidence other than silence."""
        active, hints = self._state.active, self._state.cluster_hints
        newer = hints.incarnation(active.owner) > active.owner_incarnation
        return self._resigned or newer or not hints.alive(active.owner)

    def reconsider_ms(self) -> int | None:
        """Return when the owner may be considered failed without further input; None if only input can change it."""
        if self._resigned:
            return self._grace_until_ms()
        if self.has_failure_evidence():
            # An owner that was never heard failed before this replica or epoch started, so no change will be reported.
            return (self.heard_ms or 0) + self._state.timing.heard_ms
        return self._silence_ms() if self.heard_ms is None else None

    def _grace_until_ms(self) -> int:
        """Return when a resignation justifies a takeover.

        A successor may have the same fault and resign, too; the minimum age of an epoch limits such takeovers.
        """
        return self._entered_ms + self._state.timing.grace_ms

    def _silence_ms(self) -> int:
        state = self._state
        is_first = state.active.epoch == state.chain.genesis.epoch
        return self._silent_from_ms + state.timing.silent_ms * (FIRST_EPOCH_FACTOR if is_first else 1)
