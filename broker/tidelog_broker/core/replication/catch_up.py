"""Catch-up: fetching what this copy of the open epoch lacks, from the owner, or for an end that is to be accepted.

One pull is under way at most. It ends once this copy has all that its source had written, or the owner pushes again
what continues it; a promise to somebody else, and a decision, end it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog_broker.core.replication.acceptor import Opening
from tidelog_broker.core.replication.log_tail import BrokenRunError, check_run
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.pull import Pull
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_proto import broker_pb2 as pb

NO_END = Position(2**63, 0)


class CatchUp:
    """The open epoch of one replica, as far as it is fetched and not pushed."""

    def __init__(
        self,
        state: ReplicaState,
        *,
        acknowledge: Callable[[int], None],
        reopen: Callable[[Opening, int], None],
        raise_log_start: Callable[[int, int], None],
    ) -> None:
        """Callbacks: fetched batches are durable; an OPEN_EPOCH has its log; a source has deleted what lies below."""
        self._state = state
        self._acknowledge = acknowledge
        self._reopen = reopen
        self._raise_log_start = raise_log_start
        self._pull: Pull | None = None
        self._opening: Opening | None = None

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        return self._pull.deadline_ms if self._pull is not None else None

    def tick(self, now_ms: int) -> None:
        """Ask again, or somebody else."""
        if self._pull is not None and self._pull.overdue(now_ms):
            self._ask(self._pull, now_ms)

    def stop(self) -> None:
        """Fetch no more of the open epoch: it is promised to a higher ballot, or decided."""
        self._pull = None
        self._opening = None

    def begin(self, now_ms: int) -> None:
        """Fetch from the owner what this copy of the open epoch lacks."""
        state = self._state
        if self._pull is None and not state.promised:
            self._pull = Pull(state.key, state.active.epoch, [state.active.owner], state.timing)
            self._ask(self._pull, now_ms)

    def fetch_for(self, opening: Opening, end: Position, now_ms: int) -> None:
        """Fetch what an OPEN_EPOCH needs from those who hold it."""
        state = self._state
        if self._opening is not None and self._opening.message.ballot == opening.message.ballot:
            return
        holders = [node for node in opening.message.holders if node != state.node_id]
        if holders:
            self._opening = opening
            self._pull = Pull(state.key, state.active.epoch, holders, state.timing, end=end)
            self._ask(self._pull, now_ms)

    def _take(self, pull: Pull, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> None:
        state, opening = self._state, self._opening
        promised = state.fence.promised if state.fence is not None else None
        if promised is not None and (opening is None or promised != opening.message.ballot):
            self.stop()  # promised to somebody else meanwhile: nothing more enters this log
            return
        state.note_commit(reply.commit_offset)
        end = pull.end or NO_END
        wanted = [batch for batch in batches if batch.header.end_offset <= end.offset]
        positions = check_run(
            wanted, epoch=pull.epoch, owner_incarnation=state.active.owner_incarnation, base=state.tail.queued
        )
        if not wanted:
            if pull.end is not None:
                pull.turned_down(now_ms)
            else:
                self._fetched(reply.source_end_offset, now_ms)
            return
        pull.answered_tail(now_ms)
        source_end = reply.source_end_offset

        def written(durable: Position, now_ms: int) -> None:
            if self._pull is not pull:
                return
            if opening is None:
                self._acknowledge(now_ms)
            if durable.offset < (pull.end.offset if pull.end is not None else source_end):
                self._ask(pull, now_ms)
            elif opening is not None:
                self.stop()
                self._reopen(opening, now_ms)
            else:
                self._fetched(source_end, now_ms)

        state.append([batch.data for batch in wanted], positions, written)

    def _fetched(self, source_end: int, now_ms: int) -> None:
        """What the owner has written is here, or it pushes the rest."""
        self.stop()
        self._state.fetched(source_end)
        self._acknowledge(now_ms)

    def pushed(self) -> None:
        """The owner pushes again what continues the tail: no need to pull."""
        if self._opening is None and not self._state.doubt:
            self._pull = None

    def on_reply(self, sender: str, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> bool:
        """Take what was fetched, if it is what was asked for and continues what is here; False: another's business."""
        pull = self._pull
        if pull is None or not pull.expects(sender, reply, self._state.tail.queued):
            return False
        self._raise_log_start(reply.log_start_offset, now_ms)
        try:
            if reply.status != pb.HELD:
                pull.turned_down(now_ms)
            else:
                self._take(pull, reply, batches, now_ms)
        except BrokenRunError:
            pull.turned_down(now_ms)  # the source is wrong, or this copy is
        return True

    def _ask(self, pull: Pull, now_ms: int) -> None:
        self._state.send(pull.source, pull.ask(self._state.tail.queued, now_ms))
