"""Below which offset records are deleted, for every reader and for good: noted by a quorum, and carried by decisions.

Where files end is a matter of each copy's segments (`ReplicaState.log_start`); what readers see is not. The owner has
an offset noted by the epoch's replicas, each in its fence, durably. Once an ack quorum has noted it, it counts: readers
are told that what lies below is gone, and files may go. Nobody notes anything after a promise, and a promise tells what
was noted before, so that whoever ends the epoch hears of all that counts from its seal quorum; the decision carries the
highest. So what has counted once counts in every later epoch, whoever owns it, and no copy shows again what is deleted.

An offset that was noted and did not get its quorum may count later or never, as a record that was not acknowledged. It
is at most the high watermark, so no decision of a quorum ends an epoch below it; an end without a quorum may, and then
it counts up to there only, or new records would be born deleted.

Rejected: a planned end of the epoch for each deletion, whose decision would do all of this; retention would add a
decision to the chain for every segment. A note beside the log, told to the others now and then: the next owner may be
one that has not heard, and shows what was deleted. A record in `__meta`: the owner of a partition may lag behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog_broker.core.replication.effects import RecordsDeleted, WriteFences
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_proto import broker_pb2 as pb


class Deletion:
    """One replica's part in it, as the owner of the active epoch or as another one.

    Args:
        state: of the replica.
        tell: called when the other replicas are to hear what is to be noted, and what counts.
        acknowledge: called when something is noted here, to tell the owner.
    """

    def __init__(
        self, state: ReplicaState, *, tell: Callable[[int, int], None], acknowledge: Callable[[int], None]
    ) -> None:
        self._state = state
        self._tell = tell
        self._acknowledge = acknowledge
        self.noted = 0
        """What is durable in this node's fence of the active epoch."""
        self._noted_by: dict[str, int] = {}

    def load(self) -> None:
        """Take up what the chain and this node's fence say. A copy that nobody else has is its own quorum."""
        state, fence = self._state, self._state.fence
        state.deleted_below = state.chain.deleted_below
        self.noted = fence.entry.deleting_below if fence is not None else 0
        if list(state.active.placement) == [state.node_id]:
            state.deleted_below = max(state.deleted_below, self.noted)

    def enter(self, value: pb.EpochDecision) -> None:
        """The epoch has ended: what its decision says counts, and what was only noted does not."""
        self.noted = 0
        self._noted_by.clear()
        self._state.deleted_below = value.deleted_below

    @property
    def proposed(self) -> int:
        """What is to be deleted, or is: what a decision has to carry, as far as is known here."""
        fence = self._state.fence
        return max(self._state.chain.deleted_below, fence.entry.deleting_below if fence is not None else 0)

    # --- the owner -------------------------------------------------------------------------------------

    def propose(self, offset: int) -> None:
        """Have an offset noted by the replicas; at most the high watermark, and nothing where it is noted already."""
        state = self._state
        assert offset <= state.high_watermark, f"{offset} is not committed, {state.high_watermark} is"
        if not state.may_acknowledge or offset <= self.proposed:
            return
        self._note(offset)
        self._tell(self.proposed, state.deleted_below)

    def on_ack(self, sender: str, deleting_below: int) -> None:
        """Another replica has noted an offset in this epoch."""
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
        """The owner of the active epoch says what is to be noted, and what counts."""
        if append.deleting_below > self.proposed:
            self._note(append.deleting_below)
        self._counts(append.deleted_below)

    def _note(self, offset: int) -> None:
        state, fence = self._state, self._state.fence
        entry = fence.delete_below(offset) if fence is not None else None
        if entry is None:
            return  # it is promised: whoever was promised to ends the epoch

        def noted(_ok: bool, now_ms: int) -> None:
            if state.fence is not fence:
                return
            self.noted = max(self.noted, offset)
            self.on_ack(state.node_id, offset)
            self._acknowledge(now_ms)

        state.write(WriteFences([entry]), noted)

    def _counts(self, offset: int) -> bool:
        """Take it that what lies below `offset` is deleted; return whether that is news."""
        state = self._state
        if offset <= state.deleted_below:
            return False
        state.deleted_below = offset
        state.emit(RecordsDeleted())
        return True
