"""Fetching what this copy lacks, and serving what it has: catch-up, the fetch before an accept, and backfill.

At most two ranges are on their way: one of the open epoch (the tail that a follower lacks, or what an OPEN_EPOCH
asks to hold) and one of a sealed epoch. Sealed epochs are filled newest first, so that the readable stretch grows
backwards without a hole; a copy counts only once it is whole and ends in the digest that was decided.

Retention may have deleted the front of a sealed epoch everywhere. A copy that ends below the log's start is left, and
one is begun there: the digest in front of it is taken on trust, since the one at the end proves all that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog_broker.core.replication.acceptor import Opening
from tidelog_broker.core.replication.effects import AppendFill, FinishFill, ReadLog, RebuildProducers, SetAside
from tidelog_broker.core.replication.log_tail import BrokenRunError, check_run
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.pull import Pull
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_proto import broker_pb2 as pb

NO_END = Position(2**63, 0)


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


class History:
    """The log of one replica, towards the other replicas."""

    def __init__(
        self,
        state: ReplicaState,
        *,
        acknowledge: Callable[[int], None],
        reopen: Callable[[Opening, int], None],
        resume: Callable[[str, int, int], bool],
        whole: Callable[[], None],
    ) -> None:
        """Take the callbacks.

        Fetched batches are durable; an OPEN_EPOCH has its log; push to a node again from an offset; nothing is missing
        any more.
        """
        self._state = state
        self._acknowledge = acknowledge
        self._reopen = reopen
        self._resume = resume
        self._whole = whole
        self._tail_pull: Pull | None = None
        self._opening: Opening | None = None
        self._fill_pull: Pull | None = None
        self._fill_at = Position(0, 0)
        self._fill_start: tuple[int, int | None] = (0, 0)
        """Where the copy begins, and the digest there; None where a copy is there already that must have it."""
        self._fill_has_front = False
        """Whether a part of it was here already when it was begun."""
        self._refills = 0
        """Copies that turned out wrong: each time another source is asked first, the one before may be the cause."""
        self.incomplete: set[int] = set()
        """Decided epochs of which this node has no whole copy."""

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        pulls = (self._tail_pull, self._fill_pull)
        return min((pull.deadline_ms for pull in pulls if pull and pull.deadline_ms is not None), default=None)

    def missing(self) -> Missing | None:
        """Return what this copy lacks; None when it is whole, or this node need not hold it."""
        state, pull = self._state, self._fill_pull
        wanted = self._wanted() if state.is_member else []
        if not wanted:
            return None
        records = sum(
            state.decision(epoch).end_offset - max(state.start_of(epoch), state.log_start) for epoch in wanted
        )
        if pull is None:
            return Missing(len(wanted), records, max(wanted), "", nowhere=False)
        here = self._fill_at.offset - max(state.start_of(pull.epoch), state.log_start)
        return Missing(len(wanted), records - max(here, 0), pull.epoch, pull.source, nowhere=pull.in_vain)

    @property
    def whole_from(self) -> int:
        """Where the stretch begins that is whole here: what lies before it and above the log's start is missing."""
        return max((self._state.decision(epoch).end_offset for epoch in self._wanted()), default=0)

    def _wanted(self) -> list[int]:
        """Return the epochs that are not whole and of which retention has left something."""
        state = self._state
        return [epoch for epoch in self.incomplete if state.decision(epoch).end_offset > state.log_start]

    def forget_tail(self) -> None:
        """Stop fetching the open epoch: it is promised to a higher ballot, or decided."""
        self._tail_pull = None
        self._opening = None

    def tick(self, now_ms: int) -> None:
        """Ask again, or somebody else."""
        tail_pull, fill_pull = self._tail_pull, self._fill_pull
        if tail_pull is not None and tail_pull.overdue(now_ms):
            self._ask(tail_pull, now_ms)
        if fill_pull is not None and fill_pull.overdue(now_ms):
            is_where_it_was = fill_pull.digest_unknown or self._filled_to(fill_pull.epoch) == self._fill_at.offset
            if is_where_it_was and self._state.is_member:
                self._ask(fill_pull, now_ms)
            else:
                self._fill_pull = None  # what was there could not be gone on with, or need not: the partition has moved
                self.fill(now_ms)

    # --- the open epoch --------------------------------------------------------------------------------

    def fetch_tail(self, now_ms: int) -> None:
        """Fetch from the owner what this copy of the open epoch lacks."""
        state = self._state
        if self._tail_pull is None and not state.promised:
            self._tail_pull = Pull(state.key, state.active.epoch, [state.active.owner], state.timing)
            self._ask(self._tail_pull, now_ms)

    def fetch_for(self, opening: Opening, end: Position, now_ms: int) -> None:
        """Fetch what an OPEN_EPOCH needs from those who hold it."""
        state = self._state
        if self._opening is not None and self._opening.message.ballot == opening.message.ballot:
            return
        holders = [node for node in opening.message.holders if node != state.node_id]
        if holders:
            self._opening = opening
            self._tail_pull = Pull(state.key, state.active.epoch, holders, state.timing, end=end)
            self._ask(self._tail_pull, now_ms)

    def _take_tail(self, pull: Pull, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> None:
        state, opening = self._state, self._opening
        promised = state.fence.promised if state.fence is not None else None
        if promised is not None and (opening is None or promised != opening.message.ballot):
            self.forget_tail()  # promised to somebody else meanwhile: nothing more enters this log
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
                self._tail_fetched(reply.source_end_offset, now_ms)
            return
        pull.answered_tail(now_ms)
        source_end = reply.source_end_offset

        def written(durable: Position, now_ms: int) -> None:
            if self._tail_pull is not pull:
                return
            if opening is None:
                self._acknowledge(now_ms)
            if durable.offset < (pull.end.offset if pull.end is not None else source_end):
                self._ask(pull, now_ms)
            elif opening is not None:
                self.forget_tail()
                self._reopen(opening, now_ms)
            else:
                self._tail_fetched(source_end, now_ms)

        state.append([batch.data for batch in wanted], positions, written)

    def _tail_fetched(self, source_end: int, now_ms: int) -> None:
        """What the owner has written is here, or it pushes the rest."""
        self.forget_tail()
        self._state.fetched(source_end)
        self._acknowledge(now_ms)

    def pushed(self) -> None:
        """The owner pushes again what continues the tail: no need to pull."""
        if self._opening is None and not self._state.doubt:
            self._tail_pull = None

    # --- sealed epochs ---------------------------------------------------------------------------------

    def fill(self, now_ms: int) -> None:
        """Begin to fill the newest epoch that is not whole here, if this node is to hold the partition."""
        state = self._state
        self.incomplete = {epoch for epoch in self.incomplete if not self._is_whole(epoch)}
        wanted = self._wanted()
        pull = self._fill_pull
        if pull is not None and pull.deadline_ms is not None and self._is_overtaken(pull):
            pull = self._fill_pull = None  # nothing of it is being written
        if pull is not None or not wanted or not state.is_member or state.halted is not None:
            return  # where something is damaged, what is to be kept is known once its epoch's end is decided
        epoch = max(wanted)
        decision = state.decision(epoch)
        sources = [node for node in state.holders_of(epoch) if node != state.node_id]
        if not sources:
            state.halt(f"epoch {epoch} is not whole here and nobody else holds it")
            return
        first = self._refills % len(sources)
        sources = sources[first:] + sources[:first]
        start_offset = state.start_of(epoch)
        have = Position(*(state.log.fill_position(epoch) or (start_offset, 0)))
        self._fill_pull = Pull(
            state.key,
            epoch,
            sources,
            state.timing,
            end=Position(decision.end_offset, decision.end_digest),
            first_bytes=state.timing.fill_bytes,
        )
        self._fill_pull.digest_unknown = have.offset < state.log_start
        self._fill_has_front = not self._fill_pull.digest_unknown and have.offset > start_offset
        self._fill_at = Position(state.log_start, 0) if self._fill_pull.digest_unknown else have
        self._fill_start = (start_offset, 0) if start_offset >= state.log_start else (state.log_start, None)
        if self._fill_at.offset >= decision.end_offset:
            self._filled(self._fill_pull)
        else:
            self._ask_in_turn(self._fill_pull, now_ms)

    def _is_whole(self, epoch: int) -> bool:
        """Whether the log has an epoch to its end: a copy that waited for one between comes in with that one."""
        decision = self._state.decision(epoch)
        return self._state.log.epoch_end(epoch) == (decision.end_offset, decision.end_digest)

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
        pull = self._fill_pull
        if pull is not None and (pull.epoch not in self.incomplete or self._fill_at.offset < offset):
            self._fill_pull = None
            self.fill(now_ms)
        if lacked and not self.incomplete:
            self._whole()

    def _take_fill(self, pull: Pull, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> None:
        state = self._state
        end = pull.end
        assert end is not None
        wanted = [batch for batch in batches if batch.header.end_offset <= end.offset]
        if not wanted:
            pull.turned_down(now_ms)
            return
        base = Position(reply.base_offset, reply.previous_digest) if pull.digest_unknown else self._fill_at
        incarnation = wanted[0].header.owner_incarnation
        positions = check_run(wanted, epoch=pull.epoch, owner_incarnation=incarnation, base=base)
        at = positions[-1]
        if pull.digest_unknown:
            self._fill_start = base
        more_bytes = sum(len(batch.data) for batch in batches) - pull.range_bytes
        if more_bytes > 0:  # a source gives a whole batch, however small the range
            state.surroundings.fill_wait_ms(more_bytes)
        pull.answered()

        def written(ok: bool, now_ms: int) -> None:
            if self._fill_pull is not pull:
                return
            if not ok:
                pull.not_kept(now_ms)
                self._ask_in_turn(pull, now_ms)  # links and the source's disk had to do with it all the same
                return
            self._fill_at = at
            pull.digest_unknown = False
            if at.offset < end.offset:
                self._ask_in_turn(pull, now_ms)
            else:
                self._filled(pull)

        state.write(
            AppendFill(
                pull.epoch,
                self._fill_start[0],
                base.offset,
                at.offset,
                [batch.data for batch in wanted],
                end.offset,
                end.digest,
                self._fill_start[1],
            ),
            written,
        )

    def _ask_in_turn(self, pull: Pull, now_ms: int) -> None:
        """Ask for the next range of a sealed epoch when this node has room for it beside its other work.

        What the partition waits for is asked for at once, and takes its turn from what nobody waits for. A copy that
        this node is not to have any more takes none.
        """
        if not self._state.is_member or self._is_overtaken(pull):
            self._fill_pull = None
            self.fill(now_ms)
            return
        wait_ms = self._state.surroundings.fill_wait_ms(pull.range_bytes)
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
        return state.owner is None or (pull.epoch == active.epoch - 1 and self._fill_has_front)

    def _filled(self, pull: Pull) -> None:
        """The copy is as long as decided: it counts if it is also the same."""
        state = self._state
        pull.answered()

        def finished(_ok: bool, now_ms: int) -> None:
            self._fill_pull = None
            self.incomplete.discard(pull.epoch)
            self._note_left_behind(pull.epoch)
            self.fill(now_ms)
            if not self._wanted():
                self._whole()

        if self._fill_at == pull.end:
            state.write(FinishFill(pull.epoch), finished)
        else:
            self._refill(pull, f"the copy of epoch {pull.epoch} ends in {self._fill_at}, decided was {pull.end}")

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

    def _refill(self, pull: Pull, reason: str) -> None:
        """Begin a sealed epoch anew, from nothing."""
        pull.answered()
        self._refills += 1

        def set_aside(_ok: bool, now_ms: int) -> None:
            self._fill_pull = None
            self.fill(now_ms)

        self._state.write(SetAside(pull.epoch, reason), set_aside)

    # --- both ------------------------------------------------------------------------------------------

    def _ask(self, pull: Pull, now_ms: int) -> None:
        at = self._state.tail.queued if pull is self._tail_pull else self._fill_at
        self._state.send(pull.source, pull.ask(at, now_ms))

    def on_reply(self, sender: str, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> None:
        """Take what was fetched, if it is what was asked for and continues what is here."""
        tail_pull, fill_pull = self._tail_pull, self._fill_pull
        try:
            if tail_pull is not None and tail_pull.expects(sender, reply, self._state.tail.queued):
                self.raise_log_start(reply.log_start_offset, now_ms)
                if reply.status != pb.HELD:
                    tail_pull.turned_down(now_ms)
                else:
                    self._take_tail(tail_pull, reply, batches, now_ms)
            elif fill_pull is not None and fill_pull.expects(sender, reply, self._fill_at):
                self.raise_log_start(reply.log_start_offset, now_ms)
                if self._fill_pull is not fill_pull:
                    return  # what was asked for lies below that: it has been begun anew
                if reply.status == pb.DIVERGED:
                    # One of the two is wrong, and only a copy that is whole can be held against the decision.
                    self._refill(fill_pull, f"{sender} has epoch {reply.epoch} otherwise below {reply.base_offset}")
                elif reply.status != pb.HELD:
                    fill_pull.turned_down(now_ms)
                else:
                    self._take_fill(fill_pull, reply, batches, now_ms)
        except BrokenRunError:
            # The source is wrong or this copy is.
            if tail_pull is not None and reply.epoch == tail_pull.epoch:
                tail_pull.turned_down(now_ms)
            elif fill_pull is not None:
                self._refill(fill_pull, f"what {sender} holds of epoch {fill_pull.epoch} does not continue this copy")

    # --- serving ---------------------------------------------------------------------------------------

    def on_backfill(self, sender: str, ask: pb.Backfill, now_ms: int) -> bool:
        """Serve a stretch of the log, or the producers' state at an epoch's end; return whether it is pushed again."""
        state = self._state
        status = self._may_serve(ask)
        if status == pb.HELD and ask.producers:
            state.emit(RebuildProducers(ask.epoch, ask.from_offset, sender))
            return False
        end = state.tail.durable.offset
        is_open = status == pb.HELD and ask.epoch == state.tail.epoch
        resumed = is_open and self._resume(sender, ask.from_offset, now_ms)
        if resumed:
            end = ask.from_offset  # what follows is on its way as appends
        if status == pb.HELD and ask.epoch != state.tail.epoch:
            end = state.decision(ask.epoch).end_offset
        if status == pb.HELD and ask.from_offset < end:
            limit = min(end, ask.end_offset or end)
            is_tail = ask.epoch == state.tail.epoch
            bytes_max = min(ask.max_bytes, state.timing.tail_bytes if is_tail else state.timing.pull_bytes)
            state.emit(ReadLog(sender, ask.epoch, ask.from_offset, limit, bytes_max))
            return False
        at = Position(ask.from_offset, ask.from_digest)
        self.reply(ReadLog(sender, ask.epoch, ask.from_offset, end, 0), (), at, at, status)
        return resumed

    def _may_serve(self, ask: pb.Backfill) -> pb.ReplicaStatus:
        state = self._state
        if state.halted is not None:
            return pb.IN_LIMBO
        if ask.epoch > state.active.epoch:
            return pb.BEHIND
        if ask.epoch in self.incomplete or (ask.epoch == state.tail.epoch and not state.is_member):
            return pb.NOT_HELD
        if ask.epoch < state.chain.genesis.epoch:
            return pb.NOT_HELD
        digest = state.position_of(ask.epoch, ask.from_offset)
        if digest is None:
            return pb.NOT_HELD
        return pb.HELD if ask.producers or ask.digest_unknown or digest == ask.from_digest else pb.DIVERGED

    def reply(
        self, to: ReadLog, batches: Sequence[memoryview], base: Position, end: Position, status: pb.ReplicaStatus
    ) -> None:
        """Send what was read."""
        state = self._state
        is_open = to.epoch == state.tail.epoch
        # An owner has given out offsets that it has not written yet: who asks is not done before it has them, too.
        sealed = not is_open and status == pb.HELD
        source_end = state.decision(to.epoch).end_offset if sealed else state.tail.queued.offset
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
        )
        state.send(to.to, state.about(reply, to.epoch), batches)
