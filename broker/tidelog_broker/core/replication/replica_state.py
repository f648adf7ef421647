"""What the parts of a replica share: chain, fence, tail, watermark, and the queues of effects and writes.

`Replica` is made of parts that each hold one idea: `Acceptor` promises and accepts, `CatchUp` and `Backfill` fetch the
log, `Source` serves it, `Candidate` takes over, `Pushes` replicates. They meet in this state and in nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeVar

from tidelog_broker.core.replication.chain import EpochChain, decision_hash
from tidelog_broker.core.replication.effects import Append, CommitMoved, Effect, Halted, PeerMessage, Send, Write
from tidelog_broker.core.replication.epoch_writer import Owner
from tidelog_broker.core.replication.fence import Fence
from tidelog_broker.core.replication.log_tail import Tail
from tidelog_broker.core.replication.ports import LogView, Position, Surroundings, Timing
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

Doubt = Literal["", "short", "damaged"]
"""Why this copy of the open epoch may lack what it once acknowledged: its machine went down with flush other than
ALWAYS (short), or damage was cut off it, or its owner counts acknowledgements of what is not here (damaged). It is over
once the copy reaches the end of the owner's log (`fetched`)."""

Standing = Literal["sound", "halted", "halted for good"]
"""Whether this replica takes part; see `TURNS`."""

TURNS: Final[Mapping[Standing, frozenset[Standing]]] = {
    "sound": frozenset({"sound", "halted", "halted for good"}),
    "halted": frozenset({"sound", "halted", "halted for good"}),
    "halted for good": frozenset({"halted for good"}),
}
"""What a standing turns into. The first reason for a halt stays the one that is told.

    sound            takes part
    halted           takes no part in this epoch, since this copy of it is wrong; the next epoch ends that (`enter`)
    halted for good  takes no part in any epoch until an operator helps: the chains fork, or the log is damaged
"""

Role = Literal["outsider", "follower", "opening", "owner", "retiring"]
"""What this node is to the active epoch; see `BECOMES`."""

BECOMES: Final[Mapping[Role, frozenset[Role]]] = {
    "outsider": frozenset(),
    "follower": frozenset({"opening", "owner"}),
    "opening": frozenset({"owner"}),
    "owner": frozenset({"retiring"}),
    "retiring": frozenset(),
}
"""What a role becomes within an epoch. A decision makes an outsider or a follower of each (`enter`).

    outsider    not in the epoch's placement
    follower    in it: takes what the owner sends, promises and accepts
    opening     the epoch's owner, which does not yet know what its producers have sent
    owner       gives out offsets, unless a ballot is promised or the replica is halted; a new partition's first owner
                has nothing to find out
    retiring    has given up the epoch: its end is proposed, promised, or contested; offsets are not given out again
"""

Then = Callable[[bool, int], None]
"""Called when a write is durable (or found no space), with the time in ms."""

DECISIONS_MAX = 64
"""Decisions in one METADATA_UPDATE; who lacks more asks again."""

_COMMIT_MOVED = CommitMoved()

MessageT = TypeVar("MessageT", bound=PeerMessage)


class ReplicaState:
    """One partition on one node. Times are milliseconds of a clock that never goes back.

    `no_space` is told of an append that found none, whose tail has been rewound.
    """

    def __init__(
        self,
        key: PartitionKey,
        *,
        node_id: str,
        incarnation: int,
        chain: EpochChain,
        log: LogView,
        surroundings: Surroundings,
        timing: Timing,
        doubt: Doubt,
        no_space: Callable[[Tail], None],
    ) -> None:
        self.key = key
        self.node_id = node_id
        self.incarnation = incarnation
        self.chain = chain
        self.active: pb.EpochDescriptor
        """The newest epoch, whose end is not decided as far as is known here."""
        self.is_member: bool
        """Whether this node stores the active epoch."""
        self.role: Role
        self.standing: Standing = "sound"
        self.halted: str | None
        """Why it takes no part; None while it does."""
        self.doubt: Doubt
        self.doubt_ends: int | None
        """Where the owner's log ended when it was asked after the doubt began."""
        self.log = log
        self.surroundings = surroundings
        self.timing = timing
        self.owner: Owner | None = None
        self.fence: Fence | None = None
        self._look_at_chain()
        self.enter()
        self.doubt = doubt
        self.tail = Tail(self.active.epoch, self.active.start_offset, Position(self.active.start_offset, 0))
        self.high_watermark = 0
        self.log_start = 0
        """Where the owner's log begins: what lies before it need not be held."""
        self.deleted_below = 0
        """No reader sees what lies before it: see `deletion`. Where `log_start` is higher, that counts."""
        self.commit_known = 0
        """Up to which the active epoch is committed elsewhere, durable here or not."""
        self.effects: list[Effect] = []
        """What is to be done, in order, and was not taken yet."""
        self.waiting_writes: deque[Then] = deque()
        """What is to be called when they are durable, in order."""
        self.to_self: deque[PeerMessage] = deque()
        """What this node has sent to itself in this step."""
        self._no_space = no_space
        self._asked_ms: dict[str, int] = {}

    def _look_at_chain(self) -> None:
        self.active = self.chain.active
        self.is_member = self.node_id in self.active.placement

    def enter(self) -> None:
        """The active epoch is entered: nothing is known against this copy of it."""
        self.role = "follower" if self.is_member else "outsider"
        self._turn("sound")
        self.halted = None
        self.doubt = ""
        self.doubt_ends = None

    def become(self, role: Role) -> None:
        """Take another role in the active epoch, as `BECOMES` allows."""
        assert role in BECOMES[self.role], f"{self.role} of epoch {self.active.epoch} cannot become {role}"
        self.role = role

    def extend_chain(self, decision: bytes) -> pb.EpochDecision:
        """Add the decision about the active epoch; its successor becomes the active one.

        Raises:
            ChainError: as `EpochChain.extend`.
        """
        value = self.chain.extend(decision)
        self._look_at_chain()
        return value

    @property
    def syncs_appends(self) -> bool:
        """Whether an append to the active epoch is done only once it is synced."""
        return syncs_appends(self.active)

    @property
    def promised(self) -> bool:
        """Whether a ballot is promised for the active epoch: then nothing is appended or acknowledged."""
        fence = self.fence
        return fence is not None and fence.entry.HasField("promised")

    @property
    def may_acknowledge(self) -> bool:
        """Whether this node owns the epoch and nothing is promised in it: what is acknowledged now counts."""
        fence = self.fence
        return self.owner is not None and (fence is None or not fence.entry.HasField("promised"))

    def position_of(self, epoch: int, offset: int) -> int | None:
        """Return the digest at an offset of an epoch as far as this node knows it."""
        if epoch == self.tail.epoch:
            return self.tail.digest_at(offset, self.log)
        return 0 if offset == self.start_of(epoch) else self.log.digest_at(epoch, offset)

    def start_of(self, epoch: int) -> int:
        """Return where an epoch of the chain begins."""
        genesis = self.chain.genesis
        return genesis.start_offset if epoch == genesis.epoch else self.decision(epoch - 1).end_offset

    def decision(self, epoch: int) -> pb.EpochDecision:
        """Return the decision about a decided epoch."""
        return self.chain.decision(epoch)

    def ends_of(self, epoch: int) -> list[Position]:
        """Return how a whole copy of a decided epoch may end: as decided, or compacted, the newest last."""
        decision = self.decision(epoch)
        compactions = self.chain.compactions.get(epoch, ())
        digests = [decision.end_digest, *(each.terms.end_digest for each in compactions)]
        return [Position(decision.end_offset, digest) for digest in digests]

    def holders_of(self, epoch: int) -> list[str]:
        """Return who may hold a decided epoch: its own replicas and those of every later one, first of all the living.

        Whoever stored a later epoch has fetched this one, or some of it: history moves with each change of placement,
        and the epoch's own replicas may have left the cluster long ago.
        """
        genesis = self.chain.genesis
        own = genesis.placement if epoch == genesis.epoch else self.decision(epoch - 1).next.placement
        later = [self.decision(at).next.placement for at in range(epoch, self.active.epoch)]
        nodes = dict.fromkeys(node for placement in (own, *later) for node in placement)
        return sorted(nodes, key=lambda node: not self.surroundings.alive(node))

    # --- effects ---------------------------------------------------------------------------------------

    def emit(self, *effects: Effect) -> None:
        """Give out effects that are no writes."""
        self.effects += effects

    def write(self, effect: Write, then: Then | None = None) -> None:
        """Give out a write; `then` is called when it is durable."""
        self.effects.append(effect)
        self.waiting_writes.append(then or _nothing)

    def append(
        self, batches: Sequence[memoryview], positions: Sequence[Position], then: Callable[[Position, int], None]
    ) -> None:
        """Queue batches at the end of the active epoch; `then` gets the new durable end."""
        tail = self.tail
        base = tail.queued
        tail.extend(positions)
        end, rewinds = tail.queued, tail.rewinds

        def wrote(ok: bool, now_ms: int) -> None:
            if not ok:
                if rewinds == tail.rewinds:  # else it was given up with one before it, and others may be queued since
                    # Nothing queued behind it continues the log.
                    tail.rewind()
                    self._no_space(tail)
                return
            tail.wrote(end)
            if tail is self.tail:
                if self.doubt:
                    self.end_doubt_if_whole()
                self.note_commit(self.commit_known)
                then(end, now_ms)

        self.write(Append(tail.epoch, tail.start_offset, base.offset, end.offset, batches), wrote)

    def send(self, to: str, message: PeerMessage, batches: Sequence[memoryview] = ()) -> None:
        """Send to a node; what is for this one is received at the end of the step."""
        if to == self.node_id:
            self.to_self.append(message)
        else:
            self.effects.append(Send((to,), message, batches))

    def about(self, message: MessageT, epoch: int) -> MessageT:
        """Fill in which partition and epoch a message is about."""
        message.topic_id, message.partition = self.key
        if not isinstance(message, pb.MetadataUpdate):
            message.epoch = epoch
        return message

    # --- the chain, towards others ---------------------------------------------------------------------

    def tell_chain(self, to: str, epoch: int) -> None:
        """Send the decisions from `epoch` on."""
        at = epoch - self.chain.genesis.epoch
        decisions = self.chain.decisions[at : at + DECISIONS_MAX] if at >= 0 else []
        if decisions and to != self.node_id:
            update = pb.MetadataUpdate(genesis=self.chain.genesis, first_epoch=epoch, decisions=decisions)
            self.send(to, self.about(update, epoch))

    def ask_chain(self, whom: str, now_ms: int) -> None:
        """Ask a node that seems to know more for its chain, not too often."""
        last_ms = self._asked_ms.get(whom)
        if whom == self.node_id or (last_ms is not None and now_ms - last_ms < self.timing.ask_ms):
            return
        self._asked_ms[whom] = now_ms
        self.send(whom, self.chain_status())

    def chain_status(self) -> pb.EpochStatus:
        """Return how long the chain is here, as a question."""
        status = pb.EpochStatus(previous_hash=self.chain.previous_hash)
        return self.about(status, self.active.epoch)

    def hash_before(self, epoch: int) -> bytes:
        """Return the hash of the decision that began an epoch; empty for the first."""
        at = epoch - self.chain.genesis.epoch
        return decision_hash(self.chain.decisions[at - 1]) if at > 0 else b""

    def is_current(self, sender: str, epoch: int, now_ms: int, previous_hash: bytes = b"") -> bool:
        """Whether a message is about the active epoch; otherwise see to it that the two chains meet.

        Behind a recovery without a quorum another chain may have an epoch of the same number: `previous_hash`, where it
        is told, tells them apart. What a node holds of one says nothing about the other.
        """
        current = self.chain.active.epoch
        if epoch == current:
            if not previous_hash or previous_hash == self.chain.previous_hash:
                return True
            self.ask_chain(sender, now_ms)
            return False
        if epoch > current:
            self.ask_chain(sender, now_ms)
        else:
            self.tell_chain(sender, epoch)
        return False

    def forks(self, sender: str, epoch: int, reason: str) -> None:
        """Another node's chain parts from this one before `epoch`: one is wrong, and no quorum can tell which.

        An operator may have overruled what that node knows, where the chains part: this one then goes on. So its
        decisions are asked for, as far back as one here is marked unsafe; `differs` finds where that is, and judges.
        """
        first_unsafe = self.chain.first_unsafe
        if first_unsafe is None or epoch <= first_unsafe:
            self.halt(reason, for_good=True)
        elif not self.halted_for_good:
            earlier = max(first_unsafe, epoch - DECISIONS_MAX)
            self.send(sender, self.about(pb.EpochStatus(previous_hash=self.hash_before(earlier)), earlier))

    def differs(self, sender: str, epoch: int, other: pb.EpochDecision) -> None:
        """Another node has another decision about a decided epoch.

        Where the chains part in it and an operator had it decided here, without a quorum, this node goes on; the other
        one is told of it, halts and is to be replaced. Otherwise this one halts.
        """
        here = self.decision(epoch)
        if here.previous_hash != other.previous_hash:
            self.forks(sender, epoch, f"{sender} knows another past of epoch {epoch}: the chains fork")
            return
        if here.unsafe or not other.unsafe:
            self.tell_chain(sender, epoch)  # it has to judge, too
        if here.unsafe and not other.unsafe:
            return
        how = ""
        if other.unsafe:
            how = (
                f"; DATA_LOSS: an operator had it ended at offset {other.end_offset} without a quorum, "
                "and this copy is to be replaced"
            )
        self.halt(f"two decisions about epoch {epoch}: the chains fork{how}", for_good=True)

    # --- what is committed -----------------------------------------------------------------------------

    def note_commit(self, offset: int) -> None:
        """Learn that the active epoch is committed up to `offset`; what is not durable here counts later."""
        known = self.commit_known
        if offset > known:
            known = self.commit_known = offset
        durable = self.tail.durable.offset
        if known > self.high_watermark < durable:
            self.raise_watermark(min(known, durable))

    def raise_watermark(self, offset: int) -> None:
        """Note that everything below `offset` is committed; it never goes back."""
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.effects.append(_COMMIT_MOVED)

    def commit_ends(self, offset: int, *, unsafe: bool) -> None:
        """An epoch is decided to end at `offset`: all of it is committed, and only an unsafe end lies below that."""
        assert unsafe or offset >= self.high_watermark, "what is committed lies before the end that is decided"
        self.high_watermark = min(self.high_watermark, offset)
        self.raise_watermark(offset)

    def halt(self, reason: str, *, for_good: bool = False) -> None:
        """Take no further part in this epoch, or in any until an operator helps."""
        self._turn("halted for good" if for_good or self.halted_for_good else "halted")
        if self.halted is None:
            self.halted = reason
            self.emit(Halted(reason))

    @property
    def halted_for_good(self) -> bool:
        """Whether not even the next epoch lets this replica take part again."""
        return self.standing == "halted for good"

    def _turn(self, standing: Standing) -> None:
        assert standing in TURNS[self.standing], f"{self.standing} does not turn into {standing}"
        self.standing = standing

    def fetched(self, owner_end: int) -> None:
        """All was fetched that the owner had given out up to `owner_end`, durable here or not yet."""
        self.doubt_ends = owner_end
        self.end_doubt_if_whole()

    def end_doubt_if_whole(self) -> None:
        """The doubt is over once this copy holds all that the owner had given out when it was asked."""
        if self.doubt and self.doubt_ends is not None and self.tail.durable.offset >= self.doubt_ends:
            self.doubt = ""


def syncs_appends(epoch: pb.EpochDescriptor) -> bool:
    """Return whether an append to an epoch is done only once it is synced."""
    return epoch.flush in {pb.ALWAYS, pb.FLUSH_UNSPECIFIED}


def _nothing(ok: bool, now_ms: int) -> None:
    del now_ms
    assert ok, "only appends may find no space"
