"""Catch-up: fetching missing records of the open epoch, from its owner or before accepting its end.

Sealed epochs are fetched by `backfill`. At most one `peer_fetch` is active. It ends when this copy has everything that
its source had written, when the owner pushes the continuation again, when a ballot is promised to another candidate, or
when the epoch is decided.

After an append that failed for lack of disk space nothing is requested or appended for `Timing.peer_fetch_ms`.
Otherwise the replica would try again with each message: the owner answers a request with its whole push window, the
first group fails again, and the second one causes the next request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog_broker.core.replication.acceptor import Opening
from tidelog_broker.core.replication.peer_fetch import PeerFetch
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.replica_state import BrokenRunError, ReplicaState, check_run
from tidelog_proto import broker_pb2 as pb

NO_END = Position(2**63, 0)
"""Upper bound of a fetch that continues to the end of the source's log."""


class CatchUp:
    """Fetches records of the open epoch for one replica."""

    def __init__(
        self,
        state: ReplicaState,
        *,
        acknowledge: Callable[[int], None],
        reopen: Callable[[Opening, int], None],
        raise_log_start: Callable[[int, int], None],
    ) -> None:
        """Create an idle catch-up.

        Args:
            acknowledge: called when fetched batches are durable.
            reopen: called when the records that an OPEN_EPOCH needs have been fetched.
            raise_log_start: called with the log start of a source.
        """
        self._state = state
        self._acknowledge = acknowledge
        self._reopen = reopen
        self._raise_log_start = raise_log_start
        self.fetch: PeerFetch | None = None
        """The active fetch; None if nothing is being fetched."""
        self._opening: Opening | None = None
        self._full_until_ms = 0

    @property
    def deadline_ms(self) -> int | None:
        """Time in ms when `tick` has to be called; None if no timer is running."""
        return self.fetch.deadline_ms if self.fetch is not None else None

    def tick(self, now_ms: int) -> None:
        """Send a request that timed out to the next source."""
        if self.fetch is not None and self.fetch.overdue(now_ms):
            self._ask(self.fetch, now_ms)

    def stop(self) -> None:
        """Stop fetching, because a higher ballot was promised or the epoch was decided."""
        self.fetch = None
        self._opening = None

    def no_space(self, now_ms: int) -> None:
        """Stop fetching for `Timing.peer_fetch_ms`, because the disk had no space for an append."""
        self.stop()
        self._full_until_ms = now_ms + self._state.timing.peer_fetch_ms

    def waits_for_space(self, now_ms: int) -> bool:
        """Return whether an append failed recently for lack of disk space, so that none is tried now."""
        return now_ms < self._full_until_ms

    def begin(self, now_ms: int) -> None:
        """Start fetching from the owner, unless a fetch is active, a ballot is promised or the disk was just full."""
        state = self._state
        if self.fetch is None and not state.promised and not self.waits_for_space(now_ms):
            self.fetch = PeerFetch(state.key, state.active.epoch, [state.active.owner], state.timing)
            self._ask(self.fetch, now_ms)

    def fetch_for(self, opening: Opening, end: Position, now_ms: int) -> None:
        """Fetch the records that an OPEN_EPOCH needs from the replicas that hold them."""
        state = self._state
        if self._opening is not None and self._opening.message.ballot == opening.message.ballot:
            return
        holders = [node for node in opening.message.holders if node != state.node_id]
        if holders and not self.waits_for_space(now_ms):
            self._opening = opening
            self.fetch = PeerFetch(state.key, state.active.epoch, holders, state.timing, end=end)
            self._ask(self.fetch, now_ms)

    def _take(self, fetch: PeerFetch, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> None:
        state, opening = self._state, self._opening
        promised = state.fence.promised if state.fence is not None else None
        if promised is not None and (opening is None or promised != opening.message.ballot):
            self.stop()  # A ballot is promised to another candidate, so no record may be appended.
            return
        state.note_commit(reply.commit_offset)
        end = fetch.end or NO_END
        usable = [batch for batch in batches if batch.header.end_offset <= end.offset]
        positions = check_run(
            usable, epoch=fetch.epoch, owner_incarnation=state.active.owner_incarnation, base=state.tail.queued
        )
        if not usable:
            if fetch.end is not None:
                fetch.declined(now_ms)
            else:
                self._finish(reply.source_end_offset, now_ms)
            return
        fetch.answered_tail(now_ms)
        source_end = reply.source_end_offset

        def written(now_ms: int) -> None:
            if self.fetch is not fetch:
                return
            if opening is None:
                self._acknowledge(now_ms)
            if state.tail.durable.offset < (fetch.end.offset if fetch.end is not None else source_end):
                self._ask(fetch, now_ms)
            elif opening is not None:
                self.stop()
                self._reopen(opening, now_ms)
            else:
                self._finish(source_end, now_ms)

        state.queue_append([batch.data for batch in usable], positions, written)

    def _finish(self, source_end: int, now_ms: int) -> None:
        """Stop, because this copy has all records that the owner had written, or the owner pushes the later ones."""
        self.stop()
        self._state.fetched(source_end)
        self._acknowledge(now_ms)

    def pushed(self) -> None:
        """Stop fetching, because the owner pushes the next records."""
        if self._opening is None and not self._state.doubt:
            self.fetch = None

    def on_reply(self, sender: str, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> bool:
        """Append the batches of an expected reply that continues the log; return False if it answers another fetch."""
        fetch = self.fetch
        if fetch is None or not fetch.expects(sender, reply, self._state.tail.queued):
            return False
        self._raise_log_start(reply.log_start_offset, now_ms)
        try:
            if reply.status != pb.HELD:
                fetch.declined(now_ms)
            else:
                self._take(fetch, reply, batches, now_ms)
        except BrokenRunError:
            fetch.declined(now_ms)  # The source's log or this copy is wrong; another source may show which.
        return True

    def _ask(self, fetch: PeerFetch, now_ms: int) -> None:
        self._state.send(fetch.source, fetch.ask(self._state.tail.queued, now_ms))
