"""What producers have sent that copies from other nodes do not tell: it is asked of them, and kept.

Compaction leaves of a batch no word of its producer; who compacts keeps a snapshot of that (`KeepProducers`), and so
does who deletes the front of the log. A copy that was fetched compacted, or behind such a front, comes without one. If
its node owned the partition later, and whoever knew were gone for good, retries would be stored twice. So the snapshot
is fetched right behind the copy, of the newest such epoch: it covers what lies in front, and the epochs behind it tell
of themselves. Who held that epoch may be no replica any more when this node comes to own the partition, so an owner
forgets nothing as long as they are asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog_broker.core.replication.effects import KeepProducers
from tidelog_broker.core.replication.ports import Position
from tidelog_broker.core.replication.producers import known_from
from tidelog_broker.core.replication.pull import Pull
from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tidelog_broker.core.replication.replica_state import ReplicaState


class CopiedProducers:
    """See the module."""

    def __init__(self, state: ReplicaState, *, ended: Callable[[], None]) -> None:
        """`ended` is called when what was asked for is kept here, or nobody knows it."""
        self._state = state
        self._ended = ended
        self._pull: Pull | None = None
        self._asked_to = 0
        """The end of what was asked for since this node has started."""

    @property
    def is_asking(self) -> bool:
        """Whether others may know more than this log: what it knows behind that has to stay as it is until then."""
        return self._pull is not None

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        return self._pull.deadline_ms if self._pull is not None else None

    def want(self, epoch: int, now_ms: int) -> None:
        """Ask for what producers had sent by the end of a decided epoch, unless it was asked for, or for more."""
        state = self._state
        end_offset = state.decision(epoch).end_offset
        sources = [node for node in state.holders_of(epoch) if node != state.node_id]
        if end_offset <= self._asked_to or not sources or not state.is_member or state.halted is not None:
            return
        self._asked_to = end_offset
        self._pull = Pull(state.key, epoch, sources, state.timing, producers=True)
        self._ask(self._pull, now_ms)

    def tick(self, now_ms: int) -> None:
        """Ask again, or somebody else."""
        pull = self._pull
        if pull is None or not pull.overdue(now_ms):
            return
        if self._state.is_member:
            self._ask(pull, now_ms)
        else:
            self._pull, self._asked_to = None, 0

    def on_reply(self, sender: str, reply: pb.BackfillReply, now_ms: int) -> bool:
        """Take what was asked for; False when the reply is about something else."""
        pull = self._pull
        if pull is None or reply.length or not pull.expects(sender, reply, self._end(pull)):
            return False
        if reply.status != pb.HELD or known_from(reply.producers):  # it knows no more than was sent since then
            pull.turned_down(now_ms)
            if pull.refused(self._state.surroundings.alive):
                self._pull = None  # nobody knows: it is forgotten, as what retention has deleted
                self._ended()
            return True
        pull.answered()

        def kept(ok: bool, now_ms: int) -> None:
            if self._pull is not pull:
                return
            if ok:
                self._pull = None
                self._ended()
            else:
                pull.not_kept(now_ms)

        decision = self._state.decision(pull.epoch)
        place = (pull.epoch, decision.end_offset, decision.end_digest)
        if reply.HasField("producers_epoch"):
            place = (reply.producers_epoch, reply.end_offset, reply.end_digest)
        self._state.write(KeepProducers(pull.epoch, *place, reply.producers), kept)
        return True

    def _end(self, pull: Pull) -> Position:
        return Position(self._state.decision(pull.epoch).end_offset, 0)

    def _ask(self, pull: Pull, now_ms: int) -> None:
        ask = pull.ask(self._end(pull), now_ms)
        ask.producers_or_later = True  # who knows more since may not know any more what it knew then
        self._state.send(pull.source, ask)
