"""Backfill: fetching the history that this copy of a partition lacks, its sealed epochs, one at a time.

They are fetched newest first, so that the readable stretch grows backwards without a hole. What has come of one is its
fill, which lies beside the log; it counts only once it is whole and ends in the digest that was decided.

Retention may have deleted the front of a sealed epoch everywhere. A copy that ends below the log's start is left, and
one is begun there: the digest in front of it is taken on trust, since the one at the end proves all that follows. Where
compaction has made one batch of what lies on both sides of the log's start, the copy begins with that batch.

Compaction may have changed what a sealed epoch holds, at one node sooner than at another. A source says which version
it has, by the digest at its end, and ranges of two versions do not continue each other. The newest that was decided is
fetched; where nobody has it, any that was decided, if there is none in the log.

An older version in the log is as good as long as this node can make the newest of it by itself (`versions`). Where
it cannot, because a later epoch came here as it was compacted meanwhile, consumers do not read it any more: what the
later one's tombstones had deleted would come back. The newest version is filled beside it, and takes its place when it
is whole. Until then others may fetch the older one: they may be able to do what this node cannot. Nowhere does a copy
leave before all older ones are at their newest versions that are made with it. So of each epoch there is
always the newest version, or all that it is made of, as long as the copies of a quorum are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog_broker.core.replication.copied_producers import CopiedProducers
from tidelog_broker.core.replication.effects import AppendFill, DropCopy, FinishFill, SetAside
from tidelog_broker.core.replication.log_tail import BrokenRunError, check_run
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.pull import Pull
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_broker.core.replication.versions import Versions
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
        """`whole` is called when nothing is missing any more, or more is known of producers."""
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
        self.producers = CopiedProducers(state, ended=whole)
        self.versions = Versions(state)
        self._rotten: dict[int, str] = {}
        """Epochs of the log that have rotted, and how: a copy is set aside when another one is whole beside it."""
        self.incomplete: set[int] = set()
        """Decided epochs of which this node has no whole copy."""

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        deadlines = (self._pull.deadline_ms if self._pull is not None else None, self.producers.deadline_ms)
        return min((at_ms for at_ms in deadlines if at_ms is not None), default=None)

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

    @property
    def outdated_below(self) -> int:
        """The end of the newest epoch that consumers may not read although it is in the log; 0 without one."""
        outdated = (
            epoch for epoch in self.incomplete if self._is_outdated(epoch) and not self.versions.has_later(epoch)
        )
        return max((self._state.decision(epoch).end_offset for epoch in outdated), default=0)

    @property
    def is_lacking(self) -> bool:
        """Whether something is missing that a pass of compaction needs; not what only differs by its front."""
        state, versions = self._state, self.versions
        return state.is_member and any(
            not self._is_outdated(one) or not versions.has_later(one) for one in self._wanted()
        )

    def _is_outdated(self, epoch: int) -> bool:
        """Whether an epoch that is not whole here is in the log as an older version of it."""
        return epoch in self.incomplete and self.versions.is_held(epoch)

    def _is_rotten(self, epoch: int) -> bool:
        """Whether an epoch of the log is to be fetched again."""
        is_kept = self._state.decision(epoch).end_offset > self._state.log_start
        return epoch in self._rotten and is_kept and self.versions.is_held(epoch)

    def _is_beside(self, epoch: int) -> bool:
        """Whether what is fetched of an epoch lies beside a copy of it in the log."""
        return epoch in self._rotten or self._is_outdated(epoch)

    def _wanted(self) -> list[int]:
        """Return the epochs that are not whole and of which retention has left something."""
        state = self._state
        return [epoch for epoch in self.incomplete if state.decision(epoch).end_offset > state.log_start]

    def tick(self, now_ms: int) -> None:
        """Ask again, or somebody else."""
        self.producers.tick(now_ms)
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
        self.incomplete = {epoch for epoch in self.incomplete if not self.versions.is_whole(epoch)}
        self._note_outdated()
        self._rotten = {epoch: why for epoch, why in self._rotten.items() if self._is_rotten(epoch)}
        wanted = [*self._wanted(), *self._rotten]
        pull = self._pull
        is_over = pull is not None and (pull.epoch not in wanted or self._is_overtaken(pull))
        if pull is not None and pull.deadline_ms is not None and is_over:
            pull = self._pull = None  # nothing of it is being written
        if pull is not None or not wanted or not state.is_member or state.halted is not None:
            return  # where something is damaged, what is to be kept is known once its epoch's end is decided
        epoch = self._next(wanted)
        if epoch is None:
            return
        decision = state.decision(epoch)
        sources = [node for node in state.holders_of(epoch) if node != state.node_id]
        if not sources:
            state.halt(f"epoch {epoch} is not whole here and nobody else holds it")
            return
        first = self._begun_anew % len(sources)
        sources = sources[first:] + sources[:first]
        start_offset = state.start_of(epoch)
        have = Position(*(self._have(epoch) or (start_offset, 0)))
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
        if self._at.offset < decision.end_offset:
            self._ask_in_turn(self._pull, now_ms)
            return
        self._filled(self._pull)

    def _next(self, wanted: Sequence[int]) -> int | None:
        """Return the epoch to be fetched next: what the log lacks, newest first, then what has rotted or is outdated.

        Of those the oldest first. None while compaction has something to do here first: what is outdated is what an
        older one is made with.
        """
        lacking = [epoch for epoch in wanted if not self._is_beside(epoch)]
        if lacking:
            return max(lacking)
        if self._rotten:
            return min(self._rotten)
        epoch = min(wanted)
        waits = any(older < epoch and self.versions.is_base_of(epoch, older) for older in self.versions.behind())
        return None if waits else epoch

    def _note_outdated(self) -> None:
        """Note which epochs of the log are to be compacted otherwise than this node can do by itself."""
        for epoch in self._state.chain.compactions:
            if self.versions.is_held(epoch) and not self.versions.is_whole(epoch):
                self.incomplete.add(epoch)

    def _filled_to(self, epoch: int) -> int:
        """Return how far the copy of an epoch reaches here."""
        have = self._have(epoch)
        return have[0] if have is not None else self._state.start_of(epoch)

    def _have(self, epoch: int) -> tuple[int, int] | None:
        log = self._state.log
        return log.position_beside(epoch) if self._is_beside(epoch) else log.fill_position(epoch)

    def begin_again(self, epoch: int, reason: str, now_ms: int) -> bool:
        """Fetch a sealed epoch again that has rotted in the log; return whether others may have it.

        The copy here stays, and is read where it is sound, until another is whole beside it: that may have rotted, too.
        """
        state = self._state
        is_decided = state.chain.genesis.epoch <= epoch < state.active.epoch
        others = is_decided and any(node != state.node_id for node in state.holders_of(epoch))
        if not others or not state.is_member or state.halted is not None or not self.versions.is_held(epoch):
            return False
        self._rotten[epoch] = reason
        self.go_on(now_ms)
        return True

    def raise_log_start(self, offset: int, now_ms: int) -> None:
        """Retention has deleted what lies below `offset`: that need not be held any more, and cannot be fetched."""
        state = self._state
        if offset <= state.log_start:
            return
        state.log_start = offset
        state.log.raise_log_start(offset)
        lacked = self.incomplete
        self.incomplete = {epoch for epoch in lacked if state.decision(epoch).end_offset > state.log_start}
        if lacked != self.incomplete and state.log.newest_epoch() is not None:
            self.producers.want(max(lacked - self.incomplete), now_ms)  # what was sent into it is not told here
        pull = self._pull
        is_over = pull is not None and not {pull.epoch} & {*self.incomplete, *filter(self._is_rotten, self._rotten)}
        if pull is not None and (is_over or self._at.offset < offset):
            self._pull = None
            self.go_on(now_ms)
        if lacked and not self.incomplete:
            self._whole()

    def _take(self, pull: Pull, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> None:
        state = self._state
        assert pull.end is not None
        end = pull.end
        if reply.HasField("epoch_digest"):
            end = Position(pull.end.offset, reply.epoch_digest)
        wanted = [batch for batch in batches if batch.header.end_offset <= end.offset]
        if not wanted or not self._takes(pull, end):
            pull.turned_down(now_ms)
            return
        pull.end = end
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

    def _takes(self, pull: Pull, end: Position) -> bool:
        """Whether a source's version is taken: the newest, or another one where there is none and nobody has that."""
        ends = self._state.ends_of(pull.epoch)
        if end == ends[-1]:
            return True
        return not self._is_outdated(pull.epoch) and (end == pull.end or (end in ends and pull.in_vain))

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
        if max(self.incomplete, default=pull.epoch) <= pull.epoch:
            return False
        return any(epoch > pull.epoch and not self._is_beside(epoch) for epoch in self._wanted())

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
        if self._at in state.ends_of(pull.epoch) and not self._is_outdated(pull.epoch):
            pull.end = self._at  # another version is better than none

        def finished(_ok: bool, now_ms: int) -> None:
            self._pull = None
            self._rotten.pop(pull.epoch, None)
            if self._is_here(pull.epoch):
                self.incomplete.discard(pull.epoch)
            self._note_left_behind(pull.epoch)
            if decided is not None or 0 < state.log_start >= state.start_of(pull.epoch):
                self.producers.want(pull.epoch, now_ms)  # compacted, or retention has deleted what lies in front
            self.go_on(now_ms)
            if not self._wanted():
                self._whole()

        if self._at == pull.end:
            digests = {each.terms.end_digest: each.at for each in state.chain.compactions.get(pull.epoch, ())}
            decided = digests.get(self._at.digest)
            rot = self._rotten.pop(pull.epoch, None)
            if rot is not None:
                self.incomplete.add(pull.epoch)
                state.write(SetAside(pull.epoch, rot))
            state.write(FinishFill(pull.epoch, decided), finished)
        else:
            self._begin_anew(pull, f"the copy of epoch {pull.epoch} ends in {self._at}, decided was {pull.end}")

    def _is_here(self, epoch: int) -> bool:
        """Whether there is a copy, which may wait for newer ones; an epoch without records needs none."""
        state = self._state
        is_empty = state.start_of(epoch) == state.decision(epoch).end_offset
        return is_empty or self.versions.is_held(epoch) or state.log.fill_position(epoch) is not None

    def _note_left_behind(self, epoch: int) -> None:
        """Older copies that waited for this one are in the log with it, but for one that turned out to be damaged."""
        state = self._state
        for older in range(epoch - 1, state.chain.genesis.epoch - 1, -1):
            end_offset = state.decision(older).end_offset
            if end_offset <= state.log_start:
                return
            if end_offset > state.start_of(older) and not self.versions.is_whole(older):
                self.incomplete.add(older)
                return  # what is older still waits for that

    def _begin_anew(self, pull: Pull, reason: str) -> None:
        """Begin a sealed epoch anew, from nothing."""
        pull.answered()
        self._begun_anew += 1

        def set_aside(_ok: bool, now_ms: int) -> None:
            self._pull = None
            self.go_on(now_ms)

        state, end_offset = self._state, self._state.decision(pull.epoch).end_offset
        is_compacted = pull.epoch in state.chain.compactions
        state.write(DropCopy(pull.epoch, end_offset) if is_compacted else SetAside(pull.epoch, reason), set_aside)

    # --- answers ---------------------------------------------------------------------------------------

    def on_reply(self, sender: str, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> None:
        """Take what was fetched, if it is what was asked for and continues what is here."""
        if self.producers.on_reply(sender, reply, now_ms):
            return
        pull = self._pull
        if pull is None or not pull.expects(sender, reply, self._at):
            return
        self.raise_log_start(reply.log_start_offset, now_ms)
        if self._pull is not pull:
            return  # what was asked for lies below that: it has been begun anew
        try:
            if reply.status == pb.DIVERGED:
                # One of the two is wrong, and only a copy that is whole can be held against the decision. Or the source
                # has a version of which this node does not know yet.
                end = Position(self._state.decision(pull.epoch).end_offset, reply.epoch_digest)
                if reply.HasField("epoch_digest") and end not in self._state.ends_of(pull.epoch):
                    pull.turned_down(now_ms)
                    return
                begins_earlier = self._state.start_of(pull.epoch) <= reply.base_offset < self._at.offset
                if pull.digest_unknown and begins_earlier:
                    self._at = Position(reply.base_offset, 0)
                    pull.begins_elsewhere(now_ms)
                    return
                self._begin_anew(pull, f"{sender} has epoch {reply.epoch} otherwise below {reply.base_offset}")
            elif reply.status != pb.HELD:
                pull.turned_down(now_ms)
            else:
                self._take(pull, reply, batches, now_ms)
        except BrokenRunError:
            self._begin_anew(pull, f"what {sender} holds of epoch {pull.epoch} does not continue this copy")

    def _ask(self, pull: Pull, now_ms: int) -> None:
        self._state.send(pull.source, pull.ask(self._at, now_ms))
