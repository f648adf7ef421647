"""Answers to peer fetches: ranges of the log, and the producer state at an epoch's end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from tidelog_broker.core.replication.effects import ReadLog, RebuildProducers
from tidelog_broker.core.replication.ports import Position
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_proto import broker_pb2 as pb

UNKNOWN_END: Final = 2**63
"""End of the owner's log in an answer of a replica that is not the owner; a copy in doubt stays in doubt with it."""


class Source:
    """Serves one replica's log to other replicas."""

    def __init__(
        self,
        state: ReplicaState,
        *,
        incomplete: Callable[[], Collection[int]],
        resume: Callable[[str, int, int], bool],
    ) -> None:
        """Create the source of a replica.

        Args:
            state: the state of the replica.
            incomplete: returns the sealed epochs of which this copy lacks records.
            resume: resumes pushing to a node from an offset; returns False if those records are no longer in memory, or
                if this node does not push.
        """
        self._state = state
        self._incomplete = incomplete
        self._resume = resume

    def on_ask(self, sender: str, ask: pb.Backfill, now_ms: int) -> bool:
        """Serve a request; return whether pushing to its sender was resumed instead."""
        state = self._state
        status = self._may_serve(ask)
        if status == pb.HELD and ask.producers:
            state.emit(RebuildProducers(ask.epoch, ask.from_offset, sender, or_later=ask.producers_or_later))
            return False
        end = state.tail.durable.offset
        is_open = status == pb.HELD and ask.epoch == state.tail.epoch
        resumed = is_open and self._resume(sender, ask.from_offset, now_ms)
        if resumed:
            end = ask.from_offset  # The owner pushes the later records as appends.
        if status == pb.HELD and ask.epoch != state.tail.epoch:
            end = state.decision(ask.epoch).end_offset
        if status == pb.HELD and ask.from_offset < end:
            limit = min(end, ask.end_offset or end)
            is_tail = ask.epoch == state.tail.epoch
            bytes_max = min(ask.max_bytes, state.timing.tail_bytes if is_tail else state.timing.peer_fetch_bytes)
            state.emit(ReadLog(sender, ask.epoch, ask.from_offset, limit, bytes_max))
            return False
        at = Position(ask.from_offset, ask.from_digest)
        # Return the start of the batch that contains the offset: a compacted batch on this node may start before it.
        if status == pb.DIVERGED and ask.digest_unknown:
            start = state.log.batch_start(ask.epoch, ask.from_offset)
            at = Position(ask.from_offset if start is None else start, 0)
        self.reply(ReadLog(sender, ask.epoch, ask.from_offset, end, 0), (), at, at, status)
        return resumed

    def _may_serve(self, ask: pb.Backfill) -> pb.ReplicaStatus:
        state = self._state
        if state.halted is not None:
            return pb.IN_LIMBO
        if ask.epoch > state.active.epoch:
            return pb.BEHIND
        if ask.epoch < state.chain.genesis.epoch or (ask.epoch == state.tail.epoch and not state.is_member):
            return pb.NOT_HELD
        if ask.producers and ask.epoch < state.active.epoch and ask.from_offset == state.decision(ask.epoch).end_offset:
            # The log or its snapshots may also contain the producer state of deleted and missing epochs.
            return pb.HELD
        # An incomplete epoch is served only as an outdated version, which another node may need to make the newest one.
        if ask.epoch in self._incomplete() and state.log.epoch_end(ask.epoch) not in state.ends_of(ask.epoch):
            return pb.NOT_HELD
        digest = state.position_of(ask.epoch, ask.from_offset)
        if digest is None:
            # The offset may be a batch boundary only in another version of the epoch.
            return pb.DIVERGED if ask.epoch in state.chain.compactions else pb.NOT_HELD
        return pb.HELD if ask.producers or ask.digest_unknown or digest == ask.from_digest else pb.DIVERGED

    def reply(
        self, to: ReadLog, batches: Sequence[memoryview], base: Position, end: Position, status: pb.ReplicaStatus
    ) -> None:
        """Send the answer to a request: batches read from the log, or only a status."""
        state = self._state
        is_open = to.epoch == state.tail.epoch
        sealed = not is_open and status in {pb.HELD, pb.DIVERGED}
        source_end = state.decision(to.epoch).end_offset if sealed else self._open_end()
        held = state.log.epoch_end(to.epoch) if sealed else None
        reply = pb.BackfillReply(
            status=status,
            base_offset=base.offset,
            end_offset=end.offset,
            previous_digest=base.digest,
            end_digest=end.digest,
            commit_offset=state.high_watermark if is_open else 0,
            length=sum(map(len, batches)),
            source_end_offset=source_end,
            log_start_offset=state.log_start,
            epoch_digest=held[1] if held is not None else None,
        )
        state.send(to.to, state.about(reply, to.epoch), batches)

    def _open_end(self) -> int:
        """Return the end of the open epoch as assigned by its owner, written or not; `UNKNOWN_END` at other nodes.

        A restarted owner does not know that end: other replicas may have acknowledged records that this node had
        assigned and not written.
        """
        state = self._state
        return state.tail.queued.offset if state.owner is not None else UNKNOWN_END
