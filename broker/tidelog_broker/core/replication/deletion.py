"""Logical deletion of records below an offset: agreed by a quorum of replicas and carried by decisions.

Physical deletion depends on each copy's segment boundaries (`ReplicaState.log_start`); visibility to readers does not.
The owner proposes a delete offset, which each replica durably stores in its fence. An offset that an ack quorum has
stored is *effective*: readers no longer see records below it, and files may be deleted. A replica stores no delete
offset after it has promised a ballot, and its promise reports the one that it has stored. A candidate therefore learns
every effective offset from its seal quorum, and its decision carries the highest one. So an effective offset remains
effective in all later epochs, with any owner, and no copy shows deleted records again.

An offset that fewer replicas have stored may become effective later or never, like an unacknowledged record. Every
delete offset is at most the high watermark, so a quorum never decides an end below it. An end that was decided without
a quorum may be lower; the delete offset is then limited to it, because new records would otherwise be deleted
immediately.

Rejected: a planned end of the epoch for each deletion, because retention would extend the chain with every segment; a
file beside the log that replicas exchange, because the next owner may not have received it; a record in `__meta`,
because the owner of a partition may not have applied it yet.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog_broker.core.replication.effects import RecordsDeleted, WriteFences
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_proto import broker_pb2 as pb


class Deletion:
    """Delete offsets of one replica.

    Args:
        tell: called with the proposed and the effective offset, to send them to the other replicas.
        acknowledge: called when an offset is durably stored on this node.
    """

    def __init__(
        self, state: ReplicaState, *, tell: Callable[[int, int], None], acknowledge: Callable[[int], None]
    ) -> None:
        self._state = state
        self._tell = tell
        self._acknowledge = acknowledge
        self.noted = 0
        """The offset that is durable in this node's fence of the active epoch."""
        self._noted_by: dict[str, int] = {}

    def load(self) -> None:
        """Load the offsets from the chain and this node's fence. With a single copy, the stored offset is effective."""
        state, fence = self._state, self._state.fence
        state.deleted_below = state.chain.deleted_below
        self.noted = fence.entry.deleting_below if fence is not None else 0
        if list(state.active.placement) == [state.node_id]:
            state.deleted_below = max(state.deleted_below, self.noted)

    def enter(self, value: pb.EpochDecision) -> None:
        """Enter the next epoch with the delete offset of its decision; other stored offsets are void."""
        self.noted = 0
        self._noted_by.clear()
        self._state.deleted_below = value.deleted_below

    @property
    def proposed(self) -> int:
        """The highest known delete offset, effective or only stored, which a decision has to carry."""
        fence = self._state.fence
        return max(self._state.chain.deleted_below, fence.entry.deleting_below if fence is not None else 0)

    # --- the owner -------------------------------------------------------------------------------------

    def propose(self, offset: int) -> None:
        """Propose an offset, at most the high watermark, to the replicas.

        Does nothing if the offset was proposed already, or this node may not acknowledge as the owner.
        """
        state = self._state
        assert offset <= state.high_watermark, f"delete offset {offset} exceeds high watermark {state.high_watermark}"
        if not state.may_acknowledge or offset <= self.proposed:
            return
        self._note(offset)
        self._tell(self.proposed, state.deleted_below)

    def on_ack(self, sender: str, deleting_below: int) -> None:
        """Record a delete offset that a replica has stored in this epoch; it takes effect once an ack quorum has it."""
        if deleting_below > self._noted_by.get(sender, 0):
            self._noted_by[sender] = deleting_below
            self._count()

    def _count(self) -> None:
        state = self._state
        if not state.may_acknowledge:
            return
        active = state.active
        noted = sorted(self._noted_by.get(node, 0) for node in active.placement)[-active.ack_quorum]
        if self._counts(noted):
            self._tell(self.proposed, noted)

    # --- all replicas ----------------------------------------------------------------------------------

    def heard(self, append: pb.AppendBatch) -> None:
        """Store the owner's proposed delete offset, and apply its effective one."""
        if append.deleting_below > self.proposed:
            self._note(append.deleting_below)
        self._counts(append.deleted_below)

    def _note(self, offset: int) -> None:
        state, fence = self._state, self._state.fence
        entry = fence.delete_below(offset) if fence is not None else None
        if entry is None:
            # Not stored: the epoch is ending (a ballot is promised), the offset is stored, or this is not a replica.
            return

        def noted(_ok: bool, now_ms: int) -> None:
            if state.fence is not fence:
                return
            self.noted = max(self.noted, offset)
            self.on_ack(state.node_id, offset)
            self._acknowledge(now_ms)

        state.write(WriteFences([entry]), noted)

    def _counts(self, offset: int) -> bool:
        """Make a delete offset effective; return whether it changed."""
        state = self._state
        if offset <= state.deleted_below:
            return False
        state.deleted_below = offset
        state.emit(RecordsDeleted())
        return True
