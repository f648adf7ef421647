"""Producer state that copies fetched from other nodes do not contain: it is fetched separately and stored.

A compacted batch no longer contains its producer's data, so a node that compacts stores a snapshot of the producer
state (`KeepProducers`), as does retention when it deletes the front of the log. A copy that was fetched in compacted
form, or without its front, comes without a snapshot. If its node became the owner after the nodes with a snapshot were
lost, retries would be stored twice. So the snapshot of the newest such epoch is fetched directly after the copy; it
covers earlier epochs, and later ones contain their own producer data. The nodes that held the epoch may no longer be
replicas when this node becomes the owner, so an owner keeps unknown producers pending until they have answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog_broker.core.replication.effects import KeepProducers
from tidelog_broker.core.replication.peer_fetch import PeerFetch
from tidelog_broker.core.replication.ports import Position
from tidelog_broker.core.replication.producers import known_from
from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tidelog_broker.core.replication.replica_state import ReplicaState


class ProducerStateFetch:
    """Fetches the producer state that copies of one replica lack, for one position at a time."""

    def __init__(self, state: ReplicaState, *, ended: Callable[[], None]) -> None:
        """Create the fetch of a replica, which is idle until `want`.

        Args:
            ended: called when the requested state is stored, or when no node has it.
        """
        self._state = state
        self._ended = ended
        self._fetch: PeerFetch | None = None
        self._asked_to = 0
        """End offset of the newest request since this node has started."""

    @property
    def is_asking(self) -> bool:
        """Whether a request is outstanding, so that another node may have newer producer state than this log."""
        return self._fetch is not None

    @property
    def deadline_ms(self) -> int | None:
        """Time in ms when `tick` has to be called; None if no timer is running."""
        return self._fetch.deadline_ms if self._fetch is not None else None

    def want(self, epoch: int, now_ms: int) -> None:
        """Request the producer state at the end of a decided epoch, unless this or a later state was requested."""
        state = self._state
        end_offset = state.decision(epoch).end_offset
        sources = [node for node in state.holders_of(epoch) if node != state.node_id]
        if end_offset <= self._asked_to or not sources or not state.is_member or state.halted is not None:
            return
        self._asked_to = end_offset
        self._fetch = PeerFetch(state.key, epoch, sources, state.timing, producers=True)
        self._ask(self._fetch, now_ms)

    def tick(self, now_ms: int) -> None:
        """Send a request that timed out to the next source."""
        fetch = self._fetch
        if fetch is None or not fetch.overdue(now_ms):
            return
        if self._state.is_member:
            self._ask(fetch, now_ms)
        else:
            self._fetch, self._asked_to = None, 0

    def on_reply(self, sender: str, reply: pb.BackfillReply, now_ms: int) -> bool:
        """Store the fetched producer state, or ask the next node; return False if another request was answered."""
        fetch = self._fetch
        if fetch is None or reply.length or not fetch.expects(sender, reply, self._end(fetch)):
            return False
        # Ask the next node if the sender does not have the state, or only as incompletely as this node.
        if reply.status != pb.HELD or known_from(reply.producers):
            fetch.declined(now_ms)
            if fetch.refused(self._state.cluster_hints.alive):
                self._fetch = None  # no node has the state: it is lost, like that of deleted records
                self._ended()
            return True
        fetch.answered()

        def kept(ok: bool, now_ms: int) -> None:
            if self._fetch is not fetch:
                return
            if ok:
                self._fetch = None
                self._ended()
            else:
                fetch.store_failed(now_ms)

        decision = self._state.decision(fetch.epoch)
        place = (fetch.epoch, decision.end_offset, decision.end_digest)
        if reply.HasField("producers_epoch"):
            place = (reply.producers_epoch, reply.end_offset, reply.end_digest)
        self._state.write(KeepProducers(fetch.epoch, *place, reply.producers), kept)
        return True

    def _end(self, fetch: PeerFetch) -> Position:
        return Position(self._state.decision(fetch.epoch).end_offset, 0)

    def _ask(self, fetch: PeerFetch, now_ms: int) -> None:
        ask = fetch.ask(self._end(fetch), now_ms)
        ask.producers_or_later = True  # A node with later state may no longer have the state of the requested offset.
        self._state.send(fetch.source, ask)
