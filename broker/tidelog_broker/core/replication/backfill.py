"""Backfill: fetching the history that this copy of a partition lacks, its sealed epochs, one at a time.

They are fetched newest first, so that the readable stretch grows backwards without a hole. What has come of one is its
fill, which lies beside the log; it counts only once it is whole and ends in the digest that was decided.

Retention may have deleted the front of a sealed epoch everywhere. A copy that ends below the log's start is left, and
one is begun there: the digest in front of it is taken on trust, since the one at the end proves all that follows.

Compaction may have changed what a sealed epoch holds, at one node sooner than at another. A source says which version
it has, by the digest at its end, and the newest that was decided is fetched. Ranges of two versions do not continue
each other, so a copy of another one is begun anew. An older version in the log is as good, as long as this node can
make the newest of it by itself (`can_compact`). Where it cannot, because it was away meanwhile, the epoch leaves the
log and is fetched: beside newer epochs from which compaction has taken tombstones, what these had deleted would come
back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog_broker.core.replication.effects import AppendFill, Demote, DropCopy, FinishFill, SetAside
from tidelog_broker.core.replication.log_tail import BrokenRunError, check_run
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.pull import Pull
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_proto import broker_pb2 as pb


class Missing(NamedTuple):
    """What a copy lacks of the history that it should hold.

    Attributes:
        epochs: how many sealed epochs are not whole.
        records: how many records that is, without those that are here already.
        epoch: the one that is being fetched, the newest of them.
        source: who is asked for it; "" while nobody is.
        nowhere: whether everybody who may hold it has said that it does not, or said nothing.
    """

    epochs: int
    records: int
    epoch: int
    source: str
    nowhere: bool


class Backfill:
    """The history of one replica, as far as it is not whole here."""

    def __init__(self, state: ReplicaState, *, whole: Callable[[], None]) -> None:
        """`whole` is called when nothing is missing any more."""
        self._state = state
        self._whole = whole
        self._pull: Pull | None = None
        self._at = Position(0, 0)
        self._start: tuple[int, int | None] = (0, 0)
        """Where the copy begins, and the digest there; None where a copy is there already that must have it."""
        self._has_front = False
        """Whether a part of it was here already when it was begun."""
        self._begun_anew = 0
        """Copies that turned out wrong: each time another source is asked first, the one before may be the cause."""
        self.incomplete: set[int] = set()
        """Decided epochs of which this node has no whole copy."""

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        return self._pull.deadline_ms if self._pull is not None else None

    def missing(self) -> Missing | None:
        """Return what this copy lacks; None when it is whole, or this node need not hold it."""
        state, pull = self._state, self._pull
        wanted = self._wanted() if state.is_member else []
        if not wanted:
            return None
        records = sum(
            state.decision(epoch).end_offset - max(state.start_of(epoch), state.log_start) for epoch in wanted
        )
        if pull is None:
            return Missing(len(wanted), records, max(wanted), "", nowhere=False)
        here = self._at.offset - max(state.start_of(pull.epoch), state.log_start)
        return Missing(len(wanted), records - max(here, 0), pull.epoch, pull.source, nowhere=pull.in_vain)

    @property
    def whole_from(self) -> int:
        """Where the stretch begins that is whole here: what lies before it and above the log's start is missing."""
        return max((self._state.decision(epoch).end_offset for epoch in self._wanted()), default=0)

    def _wanted(self) -> list[int]:
        """Return the epochs that are not whole and of which retention has left something."""
        state = self._state
        return [epoch for epoch in self.incomplete if state.decision(epoch).end_offset > state.log_start]

    def tick(self, now_ms: int) -> None:
        """Ask again, or somebody else."""
        pull = self._pull
        if pull is not None and pull.overdue(now_ms):
            is_where_it_was = pull.digest_unknown or self._filled_to(pull.epoch) == self._at.offset
            if is_where_it_was and self._state.is_member:
                self._ask(pull, now_ms)
            else:
                self._pull = None  # what was there could not be gone on with, or need not: the partition has moved
                self.go_on(now_ms)

    def go_on(self, now_ms: int) -> None:
        """Begin with the newest epoch that is not whole here, if this node is to hold the partition."""
        state = self._state
        self.incomplete = {epoch for epoch in self.incomplete if not self._is_whole(epoch)}
        self._leave_outdated()
        wanted = self._wanted()
        pull = self._pull
        if pull is not None and pull.deadline_ms is not None and self._is_overtaken(pull):
            pull = self._pull = None  # nothing of it is being written
        if pull is not None or not wanted or not state.is_member or state.halted is not None:
            return  # where something is damaged, what is to be kept is known once its epoch's end is decided
        epoch = max(wanted)
        decision = state.decision(epoch)
        sources = [node for node in state.holders_of(epoch) if node != state.node_id]
        if not sources:
            state.halt(f"epoch {epoch} is not whole here and nobody else holds it")
            return
        first = self._begun_anew % len(sources)
        sources = sources[first:] + sources[:first]
        start_offset = state.start_of(epoch)
        have = Position(*(state.log.fill_position(epoch) or (start_offset, 0)))
        self._pull = Pull(
            state.key,
            epoch,
            sources,
            state.timing,
            end=state.ends_of(epoch)[-1],  # of the newest version
            first_bytes=state.timing.backfill_bytes,
        )
        self._pull.digest_unknown = have.offset < state.log_start
        self._has_front = not self._pull.digest_unknown and have.offset > start_offset
        self._at = Position(state.log_start, 0) if self._pull.digest_unknown else have
        self._start = (start_offset, 0) if start_offset >= state.log_start else (state.log_start, None)
        if self._at.offset >= decision.end_offset:
            self._filled(self._pull)
        else:
            self._ask_in_turn(self._pull, now_ms)

    def _leave_outdated(self) -> None:
        """Let those epochs leave the log that are to be compacted otherwise than this node can do by itself."""
        state = self._state
        for epoch in sorted(state.chain.compactions, reverse=True):
            held, ends = state.log.epoch_end(epoch), state.ends_of(epoch)
            if held in ends and epoch not in self.incomplete and not self._is_whole(epoch):
                self.incomplete.add(epoch)
                state.write(Demote(epoch))

    def can_compact(self, epoch: int) -> bool:
        """Whether all is here of which an epoch's newest version is made: up to the horizon, and no newer itself."""
        state = self._state
        newest = state.chain.compactions[epoch][-1]
        for other in range(epoch, state.active.epoch):
            if state.start_of(other) >= newest.terms.horizon:
                break
            if state.start_of(other) < state.decision(other).end_offset and not self._is_before(other, newest.at):
                return False
        return True

    def _is_before(self, epoch: int, at: int) -> bool:
        """Whether an epoch is whole in the log, as it was decided at first or before the end of epoch `at`.

        As it was decided with that end it does not count: it may lack the tombstone of a value that an earlier epoch
        still has here.
        """
        state = self._state
        held, decision = state.log.epoch_end(epoch), state.decision(epoch)
        earlier = [each.terms.end_digest for each in state.chain.compactions.get(epoch, ()) if each.at < at]
        is_left = epoch in self.incomplete  # it is about to leave the log
        return (
            not is_left
            and held is not None
            and held[0] == decision.end_offset
            and held[1] in {decision.end_digest, *earlier}
        )

    def _is_whole(self, epoch: int) -> bool:
        """Whether the log has an epoch to its end: a copy that waited for one between comes in with that one."""
        held, ends = self._state.log.epoch_end(epoch), self._state.ends_of(epoch)
        return held == ends[-1] or (held in ends and self.can_compact(epoch))

    def _filled_to(self, epoch: int) -> int:
        """Return how far the copy of an epoch reaches here."""
        have = self._state.log.fill_position(epoch)
        return have[0] if have is not None else self._state.start_of(epoch)

    def raise_log_start(self, offset: int, now_ms: int) -> None:
        """Retention has deleted what lies below `offset`: that need not be held any more, and cannot be fetched."""
        state = self._state
        if offset <= state.log_start:
            return
        state.log_start = offset
        lacked = bool(self.incomplete)
        self.incomplete = {epoch for epoch in self.incomplete if state.decision(epoch).end_offset > state.log_start}
        pull = self._pull
        if pull is not None and (pull.epoch not in self.incomplete or self._at.offset < offset):
            self._pull = None
            self.go_on(now_ms)
        if lacked and not self.incomplete:
            self._whole()

    def _take(self, pull: Pull, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> None:
        state = self._state
        assert pull.end is not None
        if reply.HasField("epoch_digest"):
            pull.end = Position(pull.end.offset, reply.epoch_digest)
        end = pull.end
        wanted = [batch for batch in batches if batch.header.end_offset <= end.offset]
        if not wanted or end != state.ends_of(pull.epoch)[-1]:
            pull.turned_down(now_ms)
            return
        base = Position(reply.base_offset, reply.previous_digest) if pull.digest_unknown else self._at
        incarnation = wanted[0].header.owner_incarnation
        positions = check_run(wanted, epoch=pull.epoch, owner_incarnation=incarnation, base=base)
        at = positions[-1]
        if pull.digest_unknown:
            self._start = base
        more_bytes = sum(len(batch.data) for batch in batches) - pull.range_bytes
        if more_bytes > 0:  # a source gives a whole batch, however small the range
            state.surroundings.backfill_wait_ms(more_bytes)
        pull.answered()

        def written(ok: bool, now_ms: int) -> None:
            if self._pull is not pull:
                return
            if not ok:
                pull.not_kept(now_ms)
                self._ask_in_turn(pull, now_ms)  # links and the source's disk had to do with it all the same
                return
            self._at = at
            pull.digest_unknown = False
            if at.offset < end.offset:
                self._ask_in_turn(pull, now_ms)
            else:
                self._filled(pull)

        state.write(
            AppendFill(
                pull.epoch,
                self._start[0],
                base.offset,
                at.offset,
                [batch.data for batch in wanted],
                end.offset,
                end.digest,
                self._start[1],
            ),
            written,
        )

    def _ask_in_turn(self, pull: Pull, now_ms: int) -> None:
        """Ask for the next range of a sealed epoch when this node has room for it beside its other work.

        What the partition waits for is asked for at once, and takes its turn from what nobody waits for. A copy that
        this node is not to have any more takes none.
        """
        if not self._state.is_member or self._is_overtaken(pull):
            self._pull = None
            self.go_on(now_ms)
            return
        wait_ms = self._state.surroundings.backfill_wait_ms(pull.range_bytes)
        if self._is_waited_for(pull):
            wait_ms = 0
        if wait_ms or pull.deadline_ms is not None:
            pull.pause(now_ms + wait_ms)
        else:
            self._ask(pull, now_ms)

    def _is_overtaken(self, pull: Pull) -> bool:
        """Whether a newer epoch is wanted since it was begun, such as one that ended before its last records were here.

        An old one may take hours. It goes on where it is when the newer one is whole.
        """
        return max(self.incomplete, default=pull.epoch) > pull.epoch and max(self._wanted(), default=-1) > pull.epoch

    def _is_waited_for(self, pull: Pull) -> bool:
        """Whether this node is to own the partition and cannot yet, or does and lacks the end of the epoch before.

        At that end is whoever follows the partition; an owner that has nothing of that epoch is a new copy like others.
        """
        state, active = self._state, self._state.active
        if (active.owner, active.owner_incarnation) != (state.node_id, state.incarnation):
            return False
        return state.owner is None or (pull.epoch == active.epoch - 1 and self._has_front)

    def _filled(self, pull: Pull) -> None:
        """The copy is as long as decided: it counts if it is also the same."""
        state = self._state
        pull.answered()

        def finished(_ok: bool, now_ms: int) -> None:
            self._pull = None
            self.incomplete.discard(pull.epoch)
            self._note_left_behind(pull.epoch)
            self.go_on(now_ms)
            if not self._wanted():
                self._whole()

        if self._at == pull.end:
            state.write(FinishFill(pull.epoch), finished)
        else:
            self._begin_anew(pull, f"the copy of epoch {pull.epoch} ends in {self._at}, decided was {pull.end}")

    def _note_left_behind(self, epoch: int) -> None:
        """Older copies that waited for this one are in the log with it, but for one that turned out to be damaged."""
        state = self._state
        for older in range(epoch - 1, state.chain.genesis.epoch - 1, -1):
            end_offset = state.decision(older).end_offset
            if end_offset <= state.log_start:
                return
            if end_offset > state.start_of(older) and not self._is_whole(older):
                self.incomplete.add(older)
                return  # what is older still waits for that

    def _begin_anew(self, pull: Pull, reason: str) -> None:
        """Begin a sealed epoch anew, from nothing."""
        pull.answered()
        self._begun_anew += 1

        def set_aside(_ok: bool, now_ms: int) -> None:
            self._pull = None
            self.go_on(now_ms)

        is_compacted = pull.epoch in self._state.chain.compactions
        self._state.write(DropCopy(pull.epoch) if is_compacted else SetAside(pull.epoch, reason), set_aside)

    # --- answers ---------------------------------------------------------------------------------------

    def on_reply(self, sender: str, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> None:
        """Take what was fetched, if it is what was asked for and continues what is here."""
        pull = self._pull
        if pull is None or not pull.expects(sender, reply, self._at):
            return
        self.raise_log_start(reply.log_start_offset, now_ms)
        if self._pull is not pull:
            return  # what was asked for lies below that: it has been begun anew
        try:
            if reply.status == pb.DIVERGED:
                # One of the two is wrong, and only a copy that is whole can be held against the decision.
                self._begin_anew(pull, f"{sender} has epoch {reply.epoch} otherwise below {reply.base_offset}")
            elif reply.status != pb.HELD:
                pull.turned_down(now_ms)
            else:
                self._take(pull, reply, batches, now_ms)
        except BrokenRunError:
            self._begin_anew(pull, f"what {sender} holds of epoch {pull.epoch} does not continue this copy")

    def _ask(self, pull: Pull, now_ms: int) -> None:
        self._state.send(pull.source, pull.ask(self._at, now_ms))
