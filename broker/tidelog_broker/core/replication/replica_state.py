"""State shared by the parts of a replica: chain, fence, tail, watermark, and queues of effects and writes.

`Replica` is composed of parts with one task each: `Acceptor` promises and accepts, `CatchUp` and `Backfill` fetch the
log, `Source` serves it, `Candidate` takes over, `Ownership` assigns offsets and replicates. They share only this state;
the `OffsetAssigner` and the `PushWindow` of an owned epoch belong to `Ownership`.

The end of the active epoch's log is a `LogTail`. A batch is *queued* once the core has decided to write it, and
*durable* once the write has completed: synced with `flush=always`, otherwise written, in the page cache or in the
engine's memory, which a crash of the machine may lose. Appends are checked against the queued end (`check_run`);
promises and acknowledgements report the durable end. Writes of a partition are executed in order, so the durable end
advances through the queued positions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeVar

from tidelog_broker.core.replication.chain import EpochChain, decision_hash
from tidelog_broker.core.replication.effects import (
    Append,
    CommitMoved,
    Effect,
    Halted,
    PeerMessage,
    Send,
    Write,
    WriteFences,
)
from tidelog_broker.core.replication.epoch_writer import OffsetAssigner
from tidelog_broker.core.replication.fence import Fence
from tidelog_broker.core.replication.ports import Batch, ClusterHints, LogView, Position, Timing
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import digest_after

Doubt = Literal["", "short", "damaged"]
"""Why this copy of the open epoch may lack records that it has acknowledged: its machine crashed with a flush mode
other than ALWAYS, or its engine lost it in a restart (short), or it was truncated because of damage or rolled back
(damaged). The doubt ends when the copy reaches the end of the owner's log (`fetched`), as reported by the incarnation
of the owner that assigns the offsets, or when the next epoch begins (`enter`)."""

Participation = Literal["participating", "halted", "halted permanently"]
"""Whether this replica participates; see `PARTICIPATION_TRANSITIONS`."""

PARTICIPATION_TRANSITIONS: Final[Mapping[Participation, frozenset[Participation]]] = {
    "participating": frozenset({"participating", "halted", "halted permanently"}),
    "halted": frozenset({"participating", "halted", "halted permanently"}),
    "halted permanently": frozenset({"halted permanently"}),
}
"""Allowed transitions. The first reason of a halt is kept. The states are:

    participating       votes, and sends and accepts records
    halted              does neither in this epoch, because its copy is wrong; the next epoch ends this (`enter`)
    halted permanently  does neither in any epoch until an operator intervenes: a fork, or a damaged log
"""

Role = Literal["outsider", "follower", "opening", "owner", "retiring"]
"""Role of this node in the active epoch; see `ROLE_TRANSITIONS`."""

ROLE_TRANSITIONS: Final[Mapping[Role, frozenset[Role]]] = {
    "outsider": frozenset(),
    "follower": frozenset({"opening", "owner"}),
    "opening": frozenset({"owner"}),
    "owner": frozenset({"retiring"}),
    "retiring": frozenset(),
}
"""Allowed transitions within an epoch. After a decision the role is outsider or follower again (`enter`). The roles:

    outsider    not in the epoch's placement
    follower    in the placement: accepts appends of the owner, promises and accepts ballots
    opening     owner of the epoch, recovering the producer state
    owner       assigns offsets, unless a ballot is promised or the replica is halted; the first owner of a new
                partition skips `opening`
    retiring    owner of an epoch whose end is proposed, promised, or contested; assigns no more offsets
"""

Then = Callable[[bool, int], None]
"""Called when a write is durable or has failed for lack of disk space, with the time in ms."""

DECISIONS_MAX = 64
"""Maximum number of decisions in one METADATA_UPDATE; a node that lacks more decisions sends another request."""

_COMMIT_MOVED = CommitMoved()

MessageT = TypeVar("MessageT", bound=PeerMessage)


class ReplicaState:
    """State of one partition on one node. Times are milliseconds of a monotonic clock.

    Args:
        doubt: why the copy of the open epoch may lack acknowledged records.
        no_space: called with (tail, now_ms) after an append failed for lack of disk space; the failed append has
            already been removed from the tail.
    """

    only_replicated = False
    """Set at the end of a step of the owner that appended or acknowledged and did nothing else. Such a step changes no
    deadline but that of heartbeats; `Replica` clears this after each step."""

    def __init__(
        self,
        key: PartitionKey,
        *,
        node_id: str,
        incarnation: int,
        chain: EpochChain,
        log: LogView,
        cluster_hints: ClusterHints,
        timing: Timing,
        doubt: Doubt,
        no_space: Callable[[LogTail, int], None],
    ) -> None:
        self.key = key
        self.node_id = node_id
        self.incarnation = incarnation
        self.chain = chain
        self.active: pb.EpochDescriptor
        """Descriptor of the newest known epoch, whose end is not known to be decided."""
        self.is_member: bool
        """Whether this node is in the placement of the active epoch."""
        self.role: Role
        self.participation: Participation = "participating"
        self.halted: str | None
        """Reason of the halt; None if the replica participates."""
        self.doubt: Doubt
        self.doubt_ends: int | None
        """End of the owner's log, as in its answer to the last fetch; the doubt ends once the durable log reaches it.
        None until a fetch is complete."""
        self.log = log
        self.cluster_hints = cluster_hints
        """Which nodes seem to be alive, and plans of epochs; the driver's `neighbours` is the same object."""
        self.timing = timing
        self.owner: OffsetAssigner | None = None
        """Assigns the offsets of the active epoch; None if this node does not own it, or is still opening it."""
        self.fence: Fence | None = None
        self._refresh_active()
        self.enter()
        self.doubt = doubt
        self.tail = LogTail(self.active.epoch, self.active.start_offset, Position(self.active.start_offset, 0))
        self.high_watermark = 0
        self.log_start = 0
        """Start of the owner's log; earlier records need not be held."""
        self.deleted_below = 0
        """Effective delete offset: earlier records are not visible (`deletion`), nor are those below `log_start`."""
        self.commit_known = 0
        """Commit offset of the active epoch as known to this node, which may exceed the local durable end."""
        self.effects: list[Effect] = []
        """Pending effects, in order."""
        self.waiting_writes: deque[Then] = deque()
        """Callbacks of pending writes, in order.

        They are paired by position with the writes in `effects` and then in the driver's queue (`ReplicaDriver._queue`,
        without `RebuildProducers`): each write adds an effect and a callback, and `Replica.wrote` takes the oldest.
        """
        self.to_self: deque[PeerMessage] = deque()
        """Messages of this step that this node has sent to itself."""
        self._no_space = no_space
        self._asked_ms: dict[str, int] = {}

    def _refresh_active(self) -> None:
        self.active = self.chain.active
        self.is_member = self.node_id in self.active.placement

    def enter(self) -> None:
        """Enter the active epoch: reset the role, doubt, and a halt that is not permanent."""
        self.role = "follower" if self.is_member else "outsider"
        self._turn("participating")
        self.halted = None
        self.doubt = ""
        self.doubt_ends = None

    def become(self, role: Role) -> None:
        """Change the role within the active epoch, as allowed by `ROLE_TRANSITIONS`."""
        assert role in ROLE_TRANSITIONS[self.role], f"{self.role} of epoch {self.active.epoch} cannot become {role}"
        self.role = role

    def extend_chain(self, decision: bytes) -> pb.EpochDecision:
        """Add the decision about the active epoch and return it parsed; the epoch's successor becomes the active one.

        Raises:
            ChainError: as `EpochChain.extend`.
        """
        value = self.chain.extend(decision)
        self._refresh_active()
        return value

    @property
    def syncs_appends(self) -> bool:
        """Whether an append to the active epoch completes only once it is synced."""
        return syncs_appends(self.active)

    @property
    def is_volatile(self) -> bool:
        """Whether a restart of a replica loses its copy of the active epoch, because of the epoch's engine."""
        return self.log.is_volatile(self.active.epoch)

    def new_fence(self, stored: pb.FenceEntry | None = None) -> Fence:
        """Return a fence of the active epoch, from its entry in the journal if it has one."""
        return Fence(self.key, self.active, stored, is_volatile=self.is_volatile)

    @property
    def promised(self) -> bool:
        """Whether a ballot is promised for the active epoch, so that nothing is appended or acknowledged."""
        fence = self.fence
        return fence is not None and fence.entry.HasField("promised")

    @property
    def may_acknowledge(self) -> bool:
        """Whether this node owns the epoch and no ballot is promised, so that acknowledgements count."""
        fence = self.fence
        return self.owner is not None and (fence is None or not fence.entry.HasField("promised"))

    def position_of(self, epoch: int, offset: int) -> int | None:
        """Return the digest at an offset of an epoch; None if this node does not know it."""
        if epoch == self.tail.epoch:
            return self.tail.digest_at(offset, self.log)
        return 0 if offset == self.start_of(epoch) else self.log.digest_at(epoch, offset)

    def start_of(self, epoch: int) -> int:
        """Return the start offset of an epoch."""
        genesis = self.chain.genesis
        return genesis.start_offset if epoch == genesis.epoch else self.decision(epoch - 1).end_offset

    def decision(self, epoch: int) -> pb.EpochDecision:
        """Return the decision about an epoch."""
        return self.chain.decision(epoch)

    def ends_of(self, epoch: int) -> list[Position]:
        """Return the possible ends of a complete copy of a decided epoch: as decided, or compacted, newest last."""
        decision = self.decision(epoch)
        compactions = self.chain.compactions.get(epoch, ())
        digests = [decision.end_digest, *(each.terms.end_digest for each in compactions)]
        return [Position(decision.end_offset, digest) for digest in digests]

    def holders_of(self, epoch: int) -> list[str]:
        """Return the nodes that may hold a decided epoch: its replicas and those of later epochs, live nodes first.

        Replicas of later epochs have fetched it, or parts of it, and its own replicas may have left the cluster.
        """
        genesis = self.chain.genesis
        own = genesis.placement if epoch == genesis.epoch else self.decision(epoch - 1).next.placement
        later = [self.decision(at).next.placement for at in range(epoch, self.active.epoch)]
        nodes = dict.fromkeys(node for placement in (own, *later) for node in placement)
        return sorted(nodes, key=lambda node: not self.cluster_hints.alive(node))

    # --- effects ---------------------------------------------------------------------------------------

    def emit(self, *effects: Effect) -> None:
        """Emit effects other than writes."""
        self.effects += effects

    def write(self, effect: Write, then: Then | None = None) -> None:
        """Emit a write; `then` is called when it is durable, or has failed for lack of disk space (see `Then`)."""
        self.effects.append(effect)
        self.waiting_writes.append(then or _nothing)

    def queue_append(
        self, batches: Sequence[memoryview], positions: Sequence[Position], then: Callable[[int], None]
    ) -> None:
        """Queue an append of batches at the end of the active epoch; the driver executes it later.

        Args:
            then: called with the time once the batches are durable (see `LogTail`); not called if the write fails for
                lack of disk space, or if the epoch was decided meanwhile.
        """
        tail = self.tail
        base = tail.queued
        tail.extend(positions)
        fence = self.fence
        if fence is not None and tail.queued.offset > fence.ceiling:
            self.write(WriteFences([fence.raise_ceiling(tail.queued.offset)]))
        end, rewinds = tail.queued, tail.rewinds

        def wrote(ok: bool, now_ms: int) -> None:
            if not ok:
                if rewinds == tail.rewinds:  # Otherwise an earlier failed append has rewound the tail already.
                    # Batches queued after it no longer continue the log.
                    tail.rewind()
                    self._no_space(tail, now_ms)
                return
            tail.wrote(end)
            if tail is self.tail:
                if self.doubt:
                    self.end_doubt_if_whole()
                if self.commit_known > self.high_watermark:
                    self.note_commit(self.commit_known)
                then(now_ms)

        self.effects.append(Append(tail.epoch, tail.start_offset, base.offset, end.offset, batches))
        self.waiting_writes.append(wrote)

    def send(self, to: str, message: PeerMessage, batches: Sequence[memoryview] = ()) -> None:
        """Send a message to a node; messages to this node are processed at the end of the step."""
        if to == self.node_id:
            self.to_self.append(message)
        else:
            self.effects.append(Send((to,), message, batches))

    def about(self, message: MessageT, epoch: int) -> MessageT:
        """Set the partition and epoch of a message, and return the message."""
        message.topic_id, message.partition = self.key
        if not isinstance(message, pb.MetadataUpdate):
            message.epoch = epoch
        return message

    # --- exchange of the chain -------------------------------------------------------------------------

    def send_chain(self, to: str, epoch: int) -> None:
        """Send the first `DECISIONS_MAX` decisions from `epoch` on to a node; without decisions send no message."""
        at = epoch - self.chain.genesis.epoch
        decisions = self.chain.decisions[at : at + DECISIONS_MAX] if at >= 0 else []
        if decisions and to != self.node_id:
            update = pb.MetadataUpdate(genesis=self.chain.genesis, first_epoch=epoch, decisions=decisions)
            self.send(to, self.about(update, epoch))

    def request_chain(self, whom: str, now_ms: int) -> None:
        """Request the chain of a node that seems to know more, at most once per `Timing.ask_ms`."""
        last_ms = self._asked_ms.get(whom)
        if whom == self.node_id or (last_ms is not None and now_ms - last_ms < self.timing.ask_ms):
            return
        self._asked_ms[whom] = now_ms
        self.send(whom, self.chain_status())

    def chain_status(self) -> pb.EpochStatus:
        """Return the active epoch and the last hash of this chain, as a request for further decisions."""
        status = pb.EpochStatus(previous_hash=self.chain.previous_hash)
        return self.about(status, self.active.epoch)

    def hash_before(self, epoch: int) -> bytes:
        """Return the hash of the decision that opened an epoch; empty for the first epoch."""
        at = epoch - self.chain.genesis.epoch
        return decision_hash(self.chain.decisions[at - 1]) if at > 0 else b""

    def is_current(self, sender: str, epoch: int, now_ms: int, previous_hash: bytes = b"") -> bool:
        """Return whether a message is about the active epoch; otherwise exchange the chains with its sender.

        After a recovery without a quorum another chain may have an epoch with the same number. `previous_hash`, if
        set, distinguishes them, because their logs are unrelated.
        """
        current = self.chain.active.epoch
        if epoch == current:
            if not previous_hash or previous_hash == self.chain.previous_hash:
                return True
            self.request_chain(sender, now_ms)
            return False
        if epoch > current:
            self.request_chain(sender, now_ms)
        else:
            self.send_chain(sender, epoch)
        return False

    def forks(self, sender: str, epoch: int, reason: str) -> None:
        """Halt permanently because another node's chain differs before `epoch`, unless an unsafe decision explains it.

        One chain is wrong, and no quorum can decide which. But if this chain has an unsafe decision before `epoch`, an
        operator may have overruled the other node's decisions, in which case this replica continues. To find out, it
        requests the other decisions back to its first unsafe one; `differs` finds the fork and evaluates it.
        """
        first_unsafe = self.chain.first_unsafe
        if first_unsafe is None or epoch <= first_unsafe:
            self.halt(reason, permanently=True)
        elif not self.halted_permanently:
            earlier = max(first_unsafe, epoch - DECISIONS_MAX)
            self.send(sender, self.about(pb.EpochStatus(previous_hash=self.hash_before(earlier)), earlier))

    def differs(self, sender: str, epoch: int, other: pb.EpochDecision) -> None:
        """Decide which replica halts, because another node has a different decision about a decided epoch.

        If the chains fork at this epoch, and only this node's decision was made without a quorum, this node continues;
        the other one receives the decision, halts, and has to be replaced. Otherwise this one halts.
        """
        here = self.decision(epoch)
        if here.previous_hash != other.previous_hash:
            reason = f"node {sender!r} has other decisions about the epochs before {epoch}: the chains fork"
            self.forks(sender, epoch, reason)
            return
        if here.unsafe or not other.unsafe:
            self.send_chain(sender, epoch)  # The other node has to evaluate the fork, too.
        if here.unsafe and not other.unsafe:
            return
        how = ""
        if other.unsafe:
            how = (
                f"; DATA_LOSS: an operator ended the epoch at offset {other.end_offset} without a quorum; replace this "
                "replica"
            )
        reason = f"two decisions about epoch {epoch}, of this node and of node {sender!r}: the chains fork{how}"
        self.halt(reason, permanently=True)

    # --- commit ----------------------------------------------------------------------------------------

    def note_commit(self, offset: int) -> None:
        """Raise the commit offset of the active epoch; the high watermark follows it up to the local durable end."""
        known = self.commit_known
        if offset > known:
            known = self.commit_known = offset
        durable = self.tail.durable.offset
        if known > self.high_watermark < durable:
            self.high_watermark = min(known, durable)
            self.effects.append(_COMMIT_MOVED)

    def raise_watermark(self, offset: int) -> None:
        """Raise the high watermark to `offset`; it never decreases."""
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.effects.append(_COMMIT_MOVED)

    def commit_ends(self, offset: int, *, unsafe: bool) -> None:
        """Move the high watermark to the decided end of an epoch; only an unsafe end may lower it."""
        assert unsafe or offset >= self.high_watermark, "a decided end must not be below the high watermark"
        self.high_watermark = min(self.high_watermark, offset)
        self.raise_watermark(offset)

    def halt(self, reason: str, *, permanently: bool = False) -> None:
        """Stop participating in this epoch, or in any epoch until an operator intervenes."""
        self._turn("halted permanently" if permanently or self.halted_permanently else "halted")
        if self.halted is None:
            self.halted = reason
            self.emit(Halted(reason))

    @property
    def halted_permanently(self) -> bool:
        """Whether the next epoch does not end the halt."""
        return self.participation == "halted permanently"

    def _turn(self, participation: Participation) -> None:
        assert participation in PARTICIPATION_TRANSITIONS[self.participation], (
            f"{self.participation} cannot become {participation}"
        )
        self.participation = participation

    def fetched(self, owner_end: int) -> None:
        """Record that everything up to the owner's assigned end `owner_end` was fetched, durable or not yet."""
        self.doubt_ends = owner_end
        self.end_doubt_if_whole()

    def end_doubt_if_whole(self) -> None:
        """End the doubt once the durable log reaches the end that the owner's log had when this node asked for it."""
        if self.doubt and self.doubt_ends is not None and self.tail.durable.offset >= self.doubt_ends:
            self.doubt = ""


def syncs_appends(epoch: pb.EpochDescriptor) -> bool:
    """Return whether an append to an epoch completes only once it is synced."""
    return epoch.flush in {pb.ALWAYS, pb.FLUSH_UNSPECIFIED}


def _nothing(ok: bool, now_ms: int) -> None:
    del now_ms
    assert ok, "only appends may fail for lack of disk space"


RECENT_BATCHES: Final = 4096
"""Number of batch boundaries whose digests are kept in memory; digests of older ones are read from the log."""


class BrokenRunError(Exception):
    """Raised for received batches that are not contiguous or have wrong digests; none of them is accepted."""


class LogTail:
    """Queued and durable end of the local log of one epoch.

    *Durable* means as far as the epoch requires: without `flush=always`, written but perhaps not synced.
    """

    def __init__(self, epoch: int, start_offset: int, end: Position) -> None:
        assert end.offset >= start_offset
        self.epoch = epoch
        self.start_offset = start_offset
        self.queued = end
        self.durable = end
        self.rewinds = 0
        """Number of times that queued batches were discarded for lack of disk space."""
        self._recent: deque[Position] = deque([end], maxlen=RECENT_BATCHES)

    def extend(self, positions: Iterable[Position]) -> None:
        """Count batches that end at `positions` as queued."""
        for position in positions:
            assert position.offset > self.queued.offset
            self._recent.append(position)
            self.queued = position

    def wrote(self, end: Position) -> None:
        """Advance the durable end to `end`."""
        assert self.durable.offset <= end.offset <= self.queued.offset
        self.durable = end

    def rewind(self) -> None:
        """Discard queued batches that are not durable, because there was no disk space for them."""
        self.queued = self.durable
        self.rewinds += 1
        while self._recent and self._recent[-1].offset > self.durable.offset:
            self._recent.pop()
        if not self._recent:
            self._recent.append(self.durable)

    def digest_at(self, offset: int, log: LogView) -> int | None:
        """Return the digest of the queued log at an offset; None if that is not a batch boundary, or is unknown."""
        if offset == self.start_offset:
            return 0
        if offset > self.queued.offset:
            return None
        if offset < self._recent[0].offset:
            return log.digest_at(self.epoch, offset)
        for position in reversed(self._recent):
            if position.offset <= offset:
                return position.digest if position.offset == offset else None
        return None


def check_run(batches: Sequence[Batch], *, epoch: int, owner_incarnation: int, base: Position) -> list[Position]:
    """Return the end positions of `batches`, if they continue `base` in this epoch of this owner.

    Raises:
        BrokenRunError: a batch has another epoch or owner, is not contiguous, or has a wrong digest.
    """
    positions: list[Position] = []
    end = base
    for header, data in batches:
        if header.epoch != epoch or header.owner_incarnation != owner_incarnation:
            raise BrokenRunError(
                f"expected a batch of epoch {epoch} from owner incarnation {owner_incarnation:#x}, got one of epoch "
                f"{header.epoch} from owner incarnation {header.owner_incarnation:#x}"
            )
        if header.base_offset != end.offset:
            raise BrokenRunError(f"expected a batch at offset {end.offset}, got one at {header.base_offset}")
        if digest_after(data, 0, end.digest) != header.digest:
            raise BrokenRunError(
                f"digest mismatch in the batch from offset {end.offset} to {header.end_offset}: the logs differ at or "
                "before that batch"
            )
        end = Position(end.offset + header.last_offset_delta + 1, header.digest)
        positions.append(end)
    return positions
