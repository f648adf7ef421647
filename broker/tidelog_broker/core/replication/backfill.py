"""Backfill: fetching the sealed epochs that this copy of a partition lacks, one at a time.

Records of the open epoch are fetched by `catch_up`. Both request one range of records after another, with a
`peer_fetch`.

Epochs are fetched newest first, so that the readable range grows backwards without a hole. A *partial copy*, the part
of an epoch that was fetched so far, is stored beside the log. The copy becomes part of the log once it is complete and
its digest equals the decided one.

Retention may have deleted the front of a sealed epoch on all nodes. A partial copy that ends below the log start is
abandoned, and another one is started at the log start. The digest at the log start is not verified separately: the
decided digest at the end of the epoch covers all batches after the log start. If compaction has merged records on both
sides of the log start into one batch, the copy begins with that batch.

Compaction may change the content of a sealed epoch, at different times on different nodes. A source identifies its
version by the digest at the end, and ranges of two versions do not continue each other. The newest decided version is
fetched; if no node has it and the log has no version at all, any decided version is.

An older version in the log is sufficient while this node can compact it to the newest version itself
(`epoch_versions`). If it cannot, because a later epoch was fetched in a newer version, consumers cannot read the older
one, which would restore records that the later epoch's tombstones had deleted. The newest version is then fetched
beside it and replaces it when complete. Until then other nodes may fetch the older version, which may be usable there.
No node drops a copy before all older epochs that are compacted with it have reached their newest versions. So while a
quorum of copies exists, each epoch is available in its newest version or in all versions from which that is made.

An engine may keep an epoch only as long as its process runs. If every holder of such an epoch has answered repeatedly
that it has no records of the epoch, or no other node holds it, the epoch counts as lost: readers continue at its end, a
new owner opens the partition without the epoch's producer state, and the holders are asked only every `LOST_REST_MS`
(ADR 0189). Epochs before the lost one are fetched as usual. Their copies remain beside the log, because the log must
not have gaps, and readers read them from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tidelog_broker.core.replication.chain import LostRecords
from tidelog_broker.core.replication.effects import (
    AppendPartialCopy,
    DropCopy,
    EpochLost,
    FinishPartialCopy,
    SetAside,
)
from tidelog_broker.core.replication.epoch_versions import EpochVersions
from tidelog_broker.core.replication.missing_fronts import MissingFronts
from tidelog_broker.core.replication.peer_fetch import PeerFetch
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.producer_state_fetch import ProducerStateFetch
from tidelog_broker.core.replication.replica_state import BrokenRunError, ReplicaState, check_run
from tidelog_proto import broker_pb2 as pb

LOST_ROUNDS: Final = 2
"""Number of rounds in which every holder of an epoch must answer that it has no records of it, before it is lost.

One round is not sufficient: a holder may answer before it has fetched the epoch from a second holder, which then
restarts, loses the epoch, and answers, too."""
LOST_REST_MS: Final = 10_000
"""Pause before each round of requests for a lost epoch; one lost epoch is requested at a time."""


class MissingHistory(NamedTuple):
    """The sealed epochs that a copy should hold and lacks.

    Attributes:
        epochs: number of incomplete sealed epochs.
        records: number of records to fetch.
        epoch: the epoch that is being fetched, or will be next.
        source: the node from which `epoch` is being fetched; "" if no epoch is.
        is_unavailable: whether all possible sources were asked and none has provided the epoch.
    """

    epochs: int
    records: int
    epoch: int
    source: str
    is_unavailable: bool


class Backfill:
    """Tracks the incomplete sealed epochs of one replica, and fetches them from other nodes."""

    def __init__(self, state: ReplicaState, *, whole: Callable[[], None]) -> None:
        """Create the backfill of a replica.

        Args:
            whole: called when no epoch is missing any more, when one counts as lost, and when a search for producer
                state ends.
        """
        self._state = state
        self._whole = whole
        self._fetch: PeerFetch | None = None
        self._at = Position(0, 0)
        self._start: tuple[int, int | None] = (0, 0)
        """Start of the partial copy, and the digest there; None when a continued copy has the digest."""
        self._has_front = False
        """Whether the partial copy had records when its fetch was started."""
        self._restarts = 0
        """Number of discarded copies; it rotates the order of sources, because the previous source may be the cause."""
        self.producers = ProducerStateFetch(state, ended=whole)
        self.versions = EpochVersions(state)
        self._damaged: dict[int, str] = {}
        """Damaged epochs of the log, with the reason; a damaged copy is set aside once its replacement is complete."""
        self.fronts = MissingFronts(state, refetch=self.refetch)
        self.incomplete: set[int] = set()
        """Decided epochs of which this node has no complete copy."""
        self._lost: set[int] = set()
        """Epochs of `incomplete` that no holder has any more."""
        self._lost_ranges: tuple[LostRecords, ...] = ()
        """The offsets of the epochs in `_lost`, ascending."""
        self._lost_asked = 0
        """The lost epoch that was requested most recently; the next older one follows."""

    @property
    def deadline_ms(self) -> int | None:
        """Time in ms when `tick` has to be called; None if no timer is running."""
        deadlines = (self._fetch.deadline_ms if self._fetch is not None else None, self.producers.deadline_ms)
        return min((at_ms for at_ms in deadlines if at_ms is not None), default=None)

    def missing(self) -> MissingHistory | None:
        """Return what this copy lacks; None if it is complete or this node need not hold it."""
        state, fetch = self._state, self._fetch
        incomplete = {*self._awaited_epochs(), *self.fronts.epochs} if state.is_member else set[int]()
        if not incomplete:
            return None
        records = sum(
            state.decision(epoch).end_offset - max(state.start_of(epoch), state.log_start) for epoch in incomplete
        )
        if fetch is None or fetch.epoch in self._lost:
            return MissingHistory(len(incomplete), records, max(incomplete), "", is_unavailable=False)
        here = self._at.offset - max(state.start_of(fetch.epoch), state.log_start)
        return MissingHistory(
            len(incomplete), records - max(here, 0), fetch.epoch, fetch.source, is_unavailable=fetch.is_exhausted
        )

    @property
    def complete_from(self) -> int:
        """The end of the newest incomplete epoch, from which on nothing is missing; 0 if no epoch is incomplete."""
        epochs = [*self._retained_incomplete_epochs(), *self.fronts.epochs]
        return max((self._state.decision(epoch).end_offset for epoch in epochs), default=0)

    @property
    def lost_below(self) -> int:
        """The end of the newest epoch that no holder has any more; 0 without such an epoch."""
        return self.lost_ranges[-1].end if self.lost_ranges else 0

    @property
    def lost_ranges(self) -> tuple[LostRecords, ...]:
        """The offsets of the epochs that no holder has any more, ascending."""
        if not self._lost:
            return ()
        if not self._lost <= self.incomplete:
            self._lost &= self.incomplete
            self._note_lost()
        return self._lost_ranges

    def _note_lost(self) -> None:
        state = self._state
        self._lost_ranges = tuple(
            LostRecords(state.start_of(epoch), state.decision(epoch).end_offset) for epoch in sorted(self._lost)
        )

    @property
    def lacks_any(self) -> bool:
        """Whether an epoch is incomplete, or lacks its first records."""
        return bool(self.incomplete) or bool(self.fronts.epochs)

    @property
    def awaits_any(self) -> bool:
        """Whether an incomplete epoch is not lost."""
        return not self.incomplete <= self._lost

    @property
    def awaited_below(self) -> int:
        """The end of the newest epoch that this copy lacks and that is not lost; 0 without such an epoch."""
        epochs = [*self._awaited_epochs(), *self.fronts.epochs]
        return max((self._state.decision(epoch).end_offset for epoch in epochs), default=0)

    @property
    def outdated_below(self) -> int:
        """The end of the newest epoch whose version in the log consumers must not read; 0 without such an epoch."""
        outdated = (
            epoch for epoch in self.incomplete if self._is_outdated(epoch) and not self.versions.has_later(epoch)
        )
        return max((self._state.decision(epoch).end_offset for epoch in outdated), default=0)

    @property
    def is_lacking(self) -> bool:
        """Whether records that a compaction pass needs are missing, apart from a front deleted by retention."""
        state, versions = self._state, self.versions
        if not state.is_member:
            return False
        return bool(self.fronts.epochs) or any(
            not self._is_outdated(one) or not versions.has_later(one) for one in self._retained_incomplete_epochs()
        )

    def _is_outdated(self, epoch: int) -> bool:
        """Return whether the log has an older version of an incomplete epoch."""
        return epoch in self.incomplete and self.versions.is_held(epoch)

    def _is_damaged(self, epoch: int) -> bool:
        """Return whether a damaged epoch of the log should be fetched again."""
        is_kept = self._state.decision(epoch).end_offset > self._state.log_start
        is_awaited = is_kept and not self.fronts.is_restored(epoch)
        return epoch in self._damaged and is_awaited and self.versions.is_held(epoch)

    def _is_beside(self, epoch: int) -> bool:
        """Return whether the partial copy of an epoch is stored beside a copy in the log."""
        return epoch in self._damaged or self._is_outdated(epoch)

    def _retained_incomplete_epochs(self) -> list[int]:
        """Return the incomplete epochs that retention has not deleted."""
        state = self._state
        return [epoch for epoch in self.incomplete if state.decision(epoch).end_offset > state.log_start]

    def _awaited_epochs(self) -> list[int]:
        """Return the incomplete epochs that retention has not deleted and that are not lost."""
        return [epoch for epoch in self._retained_incomplete_epochs() if epoch not in self._lost]

    def tick(self, now_ms: int) -> None:
        """Send the next request if its pause is over; repeat a request that timed out, to the next source."""
        self.producers.tick(now_ms)
        fetch = self._fetch
        if fetch is not None and fetch.overdue(now_ms):
            is_where_it_was = fetch.digest_unknown or self._copied_to(fetch.epoch) == self._at.offset
            if is_where_it_was and self._state.is_member:
                self._ask(fetch, now_ms)
            else:
                self._fetch = None  # The copy cannot be continued, or the partition has moved to other nodes.
                self.go_on(now_ms)

    def go_on(self, now_ms: int) -> None:
        """Start fetching the next incomplete or damaged epoch (see `_next`), if this node is a replica.

        A fetch in progress continues, unless it is not needed any more or a newer epoch is missing. Halts the replica
        if no other node has the epoch.
        """
        state = self._state
        self.incomplete = {epoch for epoch in self.incomplete if not self.versions.is_complete(epoch)}
        self._note_outdated()
        self._damaged = {epoch: why for epoch, why in self._damaged.items() if self._is_damaged(epoch)}
        self.fronts.forget_restored()
        incomplete = [*self._retained_incomplete_epochs(), *self._damaged]
        fetch = self._fetch
        is_over = fetch is not None and (fetch.epoch not in incomplete or self._is_preempted(fetch))
        if fetch is not None and fetch.deadline_ms is not None and is_over:
            fetch = self._fetch = None  # no write of the fetch is pending
        if fetch is not None or not incomplete or not state.is_member or state.halted is not None:
            return  # Nothing to fetch now; damage in the open epoch is repaired once its end is decided.
        epoch = self._next([epoch for epoch in incomplete if epoch not in self._lost or self._sources_of(epoch)])
        if epoch is None:
            return
        decision, sources = state.decision(epoch), self._sources_of(epoch)
        start_offset = state.start_of(epoch)
        have = Position(*(self._have(epoch) or (start_offset, 0)))
        is_complete = have.offset == decision.end_offset
        if not sources and not is_complete and state.log.is_volatile(epoch):
            self._lose(epoch)
            self.go_on(now_ms)
            return
        if not sources and not is_complete:
            state.halt(
                f"epoch {epoch} is incomplete on this node and no other node has it; replace this node (--replace)"
            )
            return
        first = self._restarts % max(len(sources), 1)
        sources = sources[first:] + sources[:first] or [state.node_id]  # No node is asked for a complete copy.
        self._fetch = PeerFetch(
            state.key,
            epoch,
            sources,
            state.timing,
            end=state.ends_of(epoch)[-1],  # the copy is of the newest version
            first_bytes=state.timing.backfill_bytes,
        )
        self._fetch.digest_unknown = have.offset < state.log_start
        self._has_front = not self._fetch.digest_unknown and have.offset > start_offset
        self._at = Position(state.log_start, 0) if self._fetch.digest_unknown else have
        self._start = (start_offset, 0) if start_offset >= state.log_start else (state.log_start, None)
        if self._at.offset == decision.end_offset:
            self._add_complete(self._fetch)
        elif epoch in self._lost:
            self._lost_asked = epoch
            self._fetch.pause(now_ms + LOST_REST_MS)
        else:
            self._ask_within_budget(self._fetch, now_ms)

    def _sources_of(self, epoch: int) -> list[str]:
        """Return the other nodes that may have an epoch."""
        return [node for node in self._state.holders_of(epoch) if node != self._state.node_id]

    def _next(self, incomplete: Sequence[int]) -> int | None:
        """Return the epoch to fetch next: missing epochs, newest first, then damaged and outdated ones, oldest first.

        Lost epochs come last; they are requested cyclically, newest first. Returns None while local compaction still
        needs the outdated copy of the next epoch as input for an older epoch.
        """
        lacking = [epoch for epoch in incomplete if not self._is_beside(epoch) and epoch not in self._lost]
        if lacking:
            return max(lacking)
        if self._damaged:
            return min(self._damaged)
        outdated = [epoch for epoch in incomplete if epoch not in self._lost]
        if not incomplete:
            return None
        if not outdated:
            return max((epoch for epoch in incomplete if epoch < self._lost_asked), default=max(incomplete))
        epoch = min(outdated)
        waits = any(
            older < epoch and self.versions.is_base_of(epoch, older) for older in self.versions.outdated_epochs()
        )
        return None if waits else epoch

    def _note_outdated(self) -> None:
        """Mark epochs as incomplete if this node cannot make their newest version by compaction."""
        for epoch in self._state.chain.compactions:
            if self.versions.is_held(epoch) and not self.versions.is_complete(epoch):
                self.incomplete.add(epoch)

    def _copied_to(self, epoch: int) -> int:
        """Return the end of the partial copy of an epoch; without a copy, the start of the epoch."""
        have = self._have(epoch)
        return have[0] if have is not None else self._state.start_of(epoch)

    def _have(self, epoch: int) -> tuple[int, int] | None:
        log = self._state.log
        return log.position_beside(epoch) if self._is_beside(epoch) else log.copy_position(epoch)

    def refetch(self, epoch: int, reason: str, now_ms: int) -> bool:
        """Fetch a damaged sealed epoch of the log again; return False if that is impossible.

        Fetching is impossible if no other node has the epoch, or this node's log does not contain the epoch; or if this
        replica is halted, or this node does not store the partition any more.

        The intact part of the damaged copy stays readable until its replacement is complete and verified.
        """
        state = self._state
        is_decided = state.chain.genesis.epoch <= epoch < state.active.epoch
        others = is_decided and any(node != state.node_id for node in state.holders_of(epoch))
        if not others or not state.is_member or state.halted is not None or not self.versions.is_held(epoch):
            return False
        self._damaged[epoch] = reason
        self.go_on(now_ms)
        return True

    def raise_log_start(self, offset: int, now_ms: int) -> None:
        """Raise the log start to `offset`, below which retention has deleted records: they are not fetched any more."""
        state = self._state
        if offset <= state.log_start:
            return
        lacked, lacked_fronts = self.incomplete, self.fronts.epochs
        state.log_start = offset
        state.log.raise_log_start(offset)
        self.incomplete = {epoch for epoch in lacked if state.decision(epoch).end_offset > state.log_start}
        if lacked != self.incomplete and state.log.newest_epoch() is not None:
            self.producers.want(
                max(lacked - self.incomplete), now_ms
            )  # retention has deleted batches whose producer state this log never had
        fetch = self._fetch
        is_over = fetch is not None and not {fetch.epoch} & {*self.incomplete, *filter(self._is_damaged, self._damaged)}
        if fetch is not None and (is_over or self._at.offset < offset):
            self._fetch = None
            self.go_on(now_ms)
        if (lacked or lacked_fronts) and not self.lacks_any:
            self._whole()

    def _take(self, fetch: PeerFetch, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> None:
        state = self._state
        assert fetch.end is not None
        end = fetch.end
        if reply.HasField("epoch_digest"):
            end = Position(fetch.end.offset, reply.epoch_digest)
        usable = [batch for batch in batches if batch.header.end_offset <= end.offset]
        if not usable or not self._takes(fetch, end):
            fetch.declined(now_ms)
            return
        fetch.end = end
        base = Position(reply.base_offset, reply.previous_digest) if fetch.digest_unknown else self._at
        incarnation = usable[0].header.owner_incarnation
        positions = check_run(usable, epoch=fetch.epoch, owner_incarnation=incarnation, base=base)
        at = positions[-1]
        if fetch.digest_unknown:
            self._start = base
        more_bytes = sum(len(batch.data) for batch in batches) - fetch.range_bytes
        if more_bytes > 0:  # A source sends at least one batch, even a larger one; the excess counts in the budget.
            state.cluster_hints.backfill_wait_ms(more_bytes)
        fetch.answered()

        def written(ok: bool, now_ms: int) -> None:
            if self._fetch is not fetch:
                return
            if not ok:
                fetch.store_failed(now_ms)
                # The failed range used network and disk, so it counts in the budget.
                self._ask_within_budget(fetch, now_ms)
                return
            self._at = at
            fetch.digest_unknown = False
            if at.offset < end.offset:
                self._ask_within_budget(fetch, now_ms)
            else:
                self._add_complete(fetch)

        state.write(
            AppendPartialCopy(
                fetch.epoch,
                self._start[0],
                base.offset,
                at.offset,
                [batch.data for batch in usable],
                end.offset,
                end.digest,
                self._start[1],
            ),
            written,
        )

    def _takes(self, fetch: PeerFetch, end: Position) -> bool:
        """Return whether to accept the version of the epoch that a source offers.

        The newest is always accepted. An older one is accepted only if this log has no complete version of the epoch,
        and the fetch has that version as its target, or no source has a newer one.
        """
        ends = self._state.ends_of(fetch.epoch)
        if end == ends[-1]:
            return True
        return not self._is_outdated(fetch.epoch) and (end == fetch.end or (end in ends and fetch.is_exhausted))

    def _ask_within_budget(self, fetch: PeerFetch, now_ms: int) -> None:
        """Request the next range of a sealed epoch as soon as this node's backfill budget allows.

        A range that the partition waits for is requested immediately, at the expense of other partitions. A fetch that
        this node no longer needs is abandoned.
        """
        if not self._state.is_member or self._is_preempted(fetch):
            self._fetch = None
            self.go_on(now_ms)
            return
        wait_ms = self._state.cluster_hints.backfill_wait_ms(fetch.range_bytes)
        if self._is_urgent(fetch):
            wait_ms = 0
        if wait_ms or fetch.deadline_ms is not None:
            fetch.pause(now_ms + wait_ms)
        else:
            self._ask(fetch, now_ms)

    def _is_preempted(self, fetch: PeerFetch) -> bool:
        """Return whether an epoch newer than the fetched one is missing, so that it should be fetched first.

        An older epoch may take hours; its copy continues once the newer one is complete. Any missing epoch takes
        precedence over a lost one.
        """
        if fetch.epoch in self._lost:
            return bool(self._awaited_epochs())
        if max(self.incomplete, default=fetch.epoch) <= fetch.epoch:
            return False
        return any(epoch > fetch.epoch and not self._is_beside(epoch) for epoch in self._awaited_epochs())

    def _is_urgent(self, fetch: PeerFetch) -> bool:
        """Return whether producers, or readers near the end of the log, wait for the epoch.

        They wait only at the owner. Until the owner has opened its epoch, it needs every sealed epoch, because producer
        state is rebuilt from them. After that only the newest sealed epoch is urgent, if the owner had a part of its
        records before; an owner without any is an ordinary new copy, whose history is not urgent.
        """
        state, active = self._state, self._state.active
        if (active.owner, active.owner_incarnation) != (state.node_id, state.incarnation):
            return False
        return state.owner is None or (fetch.epoch == active.epoch - 1 and self._has_front)

    def _add_complete(self, fetch: PeerFetch) -> None:
        """Verify a copy that has reached the decided end, and make it part of the log."""
        state = self._state
        fetch.answered()
        if self._at in state.ends_of(fetch.epoch) and not self._is_outdated(fetch.epoch):
            fetch.end = self._at  # no source had the newest version, so this older one becomes part of the log

        def finished(_ok: bool, now_ms: int) -> None:
            self._fetch = None
            self._damaged.pop(fetch.epoch, None)
            if self._has_copy(fetch.epoch):
                self.incomplete.discard(fetch.epoch)
            self._mark_damaged_copy(fetch.epoch)
            if decided is not None or 0 < state.log_start >= state.start_of(fetch.epoch):
                self.producers.want(fetch.epoch, now_ms)  # the copy does not contain all producer state
            self.go_on(now_ms)
            if not self._retained_incomplete_epochs():
                self._whole()

        if self._at == fetch.end:
            digests = {each.terms.end_digest: each.at for each in state.chain.compactions.get(fetch.epoch, ())}
            decided = digests.get(self._at.digest)
            rot = self._damaged.pop(fetch.epoch, None)
            if rot is not None:
                self.incomplete.add(fetch.epoch)
                state.write(SetAside(fetch.epoch, rot))
            state.write(FinishPartialCopy(fetch.epoch, decided), finished)
        else:
            at, end = self._at, fetch.end
            assert end is not None
            reason = (
                f"the fetched copy of epoch {fetch.epoch} ends at offset {at.offset} with digest {at.digest:#x}, but "
                f"offset {end.offset} with digest {end.digest:#x} is decided"
            )
            self._restart_copy(fetch, reason)

    def _has_copy(self, epoch: int) -> bool:
        """Return whether an epoch has a copy in the log or beside it; an epoch without records needs none."""
        state = self._state
        is_empty = state.start_of(epoch) == state.decision(epoch).end_offset
        return is_empty or self.versions.is_held(epoch) or state.log.copy_position(epoch) is not None

    def _mark_damaged_copy(self, epoch: int) -> None:
        """Mark the next older epoch as incomplete if its copy turned out to be damaged when the log was extended to it.

        The storage adds waiting copies of older epochs to the log together with that of `epoch`.
        """
        state = self._state
        for older in range(epoch - 1, state.chain.genesis.epoch - 1, -1):
            end_offset = state.decision(older).end_offset
            if end_offset <= state.log_start:
                return
            if end_offset > state.start_of(older) and not self.versions.is_complete(older):
                self.incomplete.add(older)
                return  # Older epochs are not checked yet: their copies wait for this one.

    def _restart_copy(self, fetch: PeerFetch, reason: str) -> None:
        """Discard the partial copy of a sealed epoch and start it again, with another source first."""
        fetch.answered()
        self._restarts += 1

        def set_aside(_ok: bool, now_ms: int) -> None:
            self._fetch = None
            self.go_on(now_ms)

        state, end_offset = self._state, self._state.decision(fetch.epoch).end_offset
        is_compacted = fetch.epoch in state.chain.compactions
        state.write(DropCopy(fetch.epoch, end_offset) if is_compacted else SetAside(fetch.epoch, reason), set_aside)

    # --- answers ---------------------------------------------------------------------------------------

    def on_reply(self, sender: str, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> None:
        """Store the batches of a reply, if it is expected and continues the copy."""
        if self.producers.on_reply(sender, reply, now_ms):
            return
        fetch = self._fetch
        if fetch is None or not fetch.expects(sender, reply, self._at):
            return
        self.raise_log_start(reply.log_start_offset, now_ms)
        if self._fetch is not fetch:
            return  # The reply is ignored: the raised log start has ended its fetch.
        try:
            if reply.status == pb.DIVERGED:
                # Either copy may be wrong; the decided digest at the end of the epoch decides. Or the source has a
                # version that this node does not know yet.
                end = Position(self._state.decision(fetch.epoch).end_offset, reply.epoch_digest)
                if reply.HasField("epoch_digest") and end not in self._state.ends_of(fetch.epoch):
                    fetch.declined(now_ms)
                    return
                begins_earlier = self._state.start_of(fetch.epoch) <= reply.base_offset < self._at.offset
                if fetch.digest_unknown and begins_earlier:
                    self._at = Position(reply.base_offset, 0)
                    fetch.redirected(now_ms)
                    return
                self._restart_copy(
                    fetch,
                    f"node {sender!r} has other records of epoch {reply.epoch} below offset {reply.base_offset} than "
                    "this copy",
                )
            elif reply.status != pb.HELD:
                self._declined(fetch, reply.status, now_ms)
            else:
                self._take(fetch, reply, batches, now_ms)
        except BrokenRunError:
            reason = f"the batches of epoch {fetch.epoch} from node {sender!r} do not continue this copy"
            self._restart_copy(fetch, reason)

    def _declined(self, fetch: PeerFetch, status: pb.ReplicaStatus, now_ms: int) -> None:
        """Ask the next source.

        An epoch that its engine loses in a restart counts as lost once no holder has any records of it, see
        `LOST_ROUNDS`.
        """
        state, epoch = self._state, fetch.epoch
        fetch.declined(now_ms, is_without=status == pb.NOT_HELD)
        if epoch in self._lost:
            if fetch.is_exhausted:
                self._fetch = None
                self.go_on(now_ms)
        elif fetch.rounds_without >= LOST_ROUNDS and state.log.is_volatile(epoch):
            self._fetch = None
            self._lose(epoch)
            self.go_on(now_ms)

    def _lose(self, epoch: int) -> None:
        """Count an epoch as lost."""
        state = self._state
        self._lost.add(epoch)
        self._note_lost()
        state.emit(EpochLost(epoch, state.start_of(epoch), state.decision(epoch).end_offset))
        self._whole()

    def _ask(self, fetch: PeerFetch, now_ms: int) -> None:
        self._state.send(fetch.source, fetch.ask(self._at, now_ms))
