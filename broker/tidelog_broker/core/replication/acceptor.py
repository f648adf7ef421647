"""Acceptor of a takeover: answers pre-votes, promises ballots and accepts values. Counterpart of `candidate`.

A promise or an accept is durable before it is answered. A promise and the reported end of the log are one durable step:
the journal entry is queued after all earlier appends, and no append is accepted after the promise was made in memory,
so the reported end is final.

An accept states that this copy is durable up to the end. The accept is therefore written after pending appends, which
may still fail for lack of disk space, and after a sync of the log where appends are not synced. A sync may take
seconds, so the candidate is answered FETCHING first, which extends its timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidelog_broker.core.replication.effects import SyncLog, WriteFences
from tidelog_broker.core.replication.fence import RESERVED_ROUND
from tidelog_broker.core.replication.ports import Position
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_proto import broker_pb2 as pb


class Opening(NamedTuple):
    """An OPEN_EPOCH that waits until the missing records are fetched."""

    sender: str
    message: pb.OpenEpoch


class Acceptor:
    """Answers PRE_VOTE, SEAL and OPEN_EPOCH for one replica."""

    def __init__(
        self,
        state: ReplicaState,
        *,
        agrees: Callable[[str, int], bool],
        on_promise: Callable[[int], None],
        fetch: Callable[[Opening, Position, int], None],
    ) -> None:
        """Create the acceptor of a replica.

        Args:
            state: the state of the replica.
            agrees: returns whether this replica agrees to a takeover by a node; called with the node and the time.
            on_promise: called with the time when a ballot is promised.
            fetch: fetches the records that an OPEN_EPOCH needs; called with it, the end to reach, and the time.
        """
        self._state = state
        self._agrees = agrees
        self._on_promise = on_promise
        self._fetch = fetch

    def on_pre_vote(self, sender: str, ask: pb.PreVote, now_ms: int) -> None:
        """Answer whether this replica also considers the owner failed; nothing is promised."""
        state = self._state
        if not ask.probe and not state.is_current(sender, ask.epoch, now_ms, ask.previous_hash):
            return
        able = state.halted is None and state.doubt != "damaged"
        reply = pb.PreVoteReply(
            attempt=ask.attempt,
            agrees=able and not ask.probe and self._agrees(sender, now_ms),
            status=pb.HELD if able else pb.IN_LIMBO,
            promised=state.fence.promised if state.fence is not None else None,
        )
        state.send(sender, state.about(reply, ask.epoch))

    def on_seal(self, sender: str, ask: pb.Seal, now_ms: int) -> None:
        """Promise the ballot unless a higher one is promised, and report the durable end of the log."""
        state = self._state
        if not state.is_current(sender, ask.epoch, now_ms, ask.previous_hash):
            return
        if ask.ballot.round <= RESERVED_ROUND or ask.ballot.node_id != sender:
            return
        reply = pb.SealReply(ballot=ask.ballot, status=self._ability())
        fence = state.fence
        if fence is None or reply.status != pb.HELD:
            state.send(sender, state.about(reply, ask.epoch))
            return
        entry = fence.promise(ask.ballot)
        if entry is None:
            reply.status = pb.FENCED
            reply.promised.CopyFrom(fence.entry.promised)
            state.send(sender, state.about(reply, ask.epoch))
            return
        self._on_promise(now_ms)
        reply.promised.CopyFrom(ask.ballot)
        if fence.accepted is not None:
            reply.accepted.CopyFrom(fence.accepted)
            reply.accepted_value = fence.entry.accepted_value
        reply.short_log = state.doubt == "short"
        reply.ceiling = fence.entry.ceiling if state.doubt else 0
        reply.deleting_below = fence.entry.deleting_below
        tail = state.tail

        def promised(_ok: bool, _now_ms: int) -> None:
            if state.tail is tail and fence.is_promised(ask.ballot):
                reply.end_offset, reply.end_digest = tail.durable
                state.send(sender, state.about(reply, ask.epoch))

        state.write(WriteFences([entry]), promised)

    def on_open(self, sender: str, ask: pb.OpenEpoch, now_ms: int) -> None:
        """Accept the value if promises allow it and the log reaches the value's end; fetch missing records first."""
        state = self._state
        if not state.is_current(sender, ask.epoch, now_ms) or not self._fits(sender, ask):
            return
        reply = pb.OpenEpochReply(ballot=ask.ballot, status=self._ability())
        fence = state.fence
        if fence is not None and reply.status == pb.HELD and not fence.may_accept(ask.ballot, ask.value):
            reply.status = pb.FENCED
            if fence.promised is not None:
                reply.promised.CopyFrom(fence.promised)
        if fence is None or reply.status != pb.HELD:
            state.send(sender, state.about(reply, ask.epoch))
            return
        value = pb.EpochDecision.FromString(ask.value)
        end = Position(value.end_offset, value.end_digest)
        if state.tail.queued.offset < end.offset and not self._is_lost(ask):
            reply.status = pb.FETCHING
            self._promise_for(sender, ask, end, now_ms)
        elif state.tail.queued.offset >= end.offset and state.position_of(ask.epoch, end.offset) != end.digest:
            reply.status = pb.DIVERGED
            state.halt(f"this node's copy of epoch {ask.epoch} differs from the other replicas' at offset {end.offset}")
        else:
            self._accept(sender, ask, reply, now_ms)
            return
        state.send(sender, state.about(reply, ask.epoch))

    def _is_lost(self, ask: pb.OpenEpoch) -> bool:
        """Return whether no replica has the log up to the end of the proposed value: restarts have lost all copies.

        The value must be accepted all the same, because it may have been decided.
        """
        return not ask.holders and self._state.is_volatile

    def _accept(self, sender: str, ask: pb.OpenEpoch, reply: pb.OpenEpochReply, now_ms: int) -> None:
        """Accept the value once this copy is durable up to the value's end.

        A pending append may still fail for lack of disk space; the value is then not accepted.
        """
        state, fence = self._state, self._state.fence
        assert fence is not None
        self._on_promise(now_ms)
        tail = state.tail
        end_offset = pb.EpochDecision.FromString(ask.value).end_offset if not self._is_lost(ask) else 0

        def accepted(_ok: bool, _now_ms: int) -> None:
            if state.tail is tail:
                state.send(sender, state.about(reply, ask.epoch))

        def held(_ok: bool, _now_ms: int) -> None:
            if state.tail is not tail or not fence.may_accept(ask.ballot, ask.value):
                # The epoch was decided, or another candidate has a promise: the sender learns of it when it asks again.
                return
            # If the log does not reach the end, an append failed; the next OPEN_EPOCH fetches its records.
            if tail.durable.offset >= end_offset:
                state.write(WriteFences([fence.accept(ask.ballot, ask.value)]), accepted)

        # The promise blocks further delete offsets. It is kept in memory and written together with the accept.
        promise = fence.promise(ask.ballot)
        assert promise is not None
        is_synced = state.syncs_appends or tail.queued.offset == tail.start_offset
        if is_synced and tail.durable.offset >= end_offset:
            held(True, now_ms)
            return
        state.write(SyncLog(ask.epoch), held)
        wait = pb.OpenEpochReply(ballot=ask.ballot, status=pb.FETCHING)
        state.send(sender, state.about(wait, ask.epoch))

    def _promise_for(self, sender: str, ask: pb.OpenEpoch, end: Position, now_ms: int) -> None:
        """Promise the ballot, which fences lower ones, and fetch the missing records."""
        state, fence = self._state, self._state.fence
        assert fence is not None
        if not fence.is_promised(ask.ballot):
            entry = fence.promise(ask.ballot)
            assert entry is not None
            self._on_promise(now_ms)
            state.write(WriteFences([entry]))
        self._fetch(Opening(sender, ask), end, now_ms)

    def _ability(self) -> pb.ReplicaStatus:
        state = self._state
        if state.halted is not None or state.doubt == "damaged":
            return pb.IN_LIMBO
        return pb.HELD if state.fence is not None else pb.NOT_HELD

    def _fits(self, sender: str, ask: pb.OpenEpoch) -> bool:
        """Return whether a proposal is valid: from its sender, for this epoch, and with this chain's hash."""
        value = pb.EpochDecision.FromString(ask.value)
        return (
            ask.ballot.node_id == sender
            and value.epoch == ask.epoch
            and value.previous_hash == self._state.chain.previous_hash
            and value.end_offset >= self._state.active.start_offset
            and value.deleted_below <= value.end_offset
            and (not value.lost_until or value.lost_until > value.end_offset)
            and value.next.epoch == ask.epoch + 1
            and value.next.start_offset == value.end_offset
            and value.next.owner in value.next.placement
            and 1 <= value.next.ack_quorum <= len(value.next.placement)
        )
