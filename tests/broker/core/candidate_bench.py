"""Fixture for a candidate: a host that records its calls, and helpers to send answers of other nodes."""

from __future__ import annotations

from tests.broker.core.bench import INCARNATION, KEY, NODES, Hints, ballot, descriptor

from tidelog_broker.core.replication.candidate import Candidate
from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import PeerMessage
from tidelog_broker.core.replication.ports import ClusterHints, Plan, Position, Timing
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

TIMING = Timing()
END = Position(15, 3)
"""Default end of a replica's log."""


class CandidateBench:
    """Node `b`, which misses owner `a` of epoch 4, with its candidate."""

    def __init__(self, placement: tuple[str, ...] = NODES, *, quorum: int = 2, owner: str = "a") -> None:
        self.key: PartitionKey = KEY
        self.node_id = "b"
        self.incarnation = INCARNATION
        self.chain = EpochChain(descriptor(4, start=10, owner=owner, placement=placement, quorum=quorum))
        self.retiring = False
        self.missing = True
        self.owner_may_be_slow = False
        self.hints = Hints()
        self.cluster_hints: ClusterHints = self.hints
        self.timing = TIMING
        self.hints.next = Plan("b", placement, quorum)
        self.out: list[tuple[str, PeerMessage]] = []
        self.attempt = 0
        """Attempt number of the newest pre-vote."""
        self.ballot = pb.Ballot()
        """The last request for promises or accepts."""
        self.proposed = b""
        self.decisions: list[bytes] = []
        self.candidate = Candidate(self, self)

    @property
    def phase(self) -> str:
        return self.candidate.phase

    @property
    def active(self) -> pb.EpochDescriptor:
        return self.chain.active

    @property
    def is_volatile(self) -> bool:
        return False

    def suspects_owner(self, now_ms: int) -> bool:
        return self.missing

    def send(self, to: str, message: PeerMessage) -> None:
        self.out.append((to, message))
        if isinstance(message, pb.PreVote):
            self.attempt = message.attempt
        elif isinstance(message, pb.Seal | pb.OpenEpoch):
            self.ballot = message.ballot
        if isinstance(message, pb.OpenEpoch):
            self.proposed = message.value

    def decided(self, decision: bytes) -> None:
        self.decisions.append(decision)

    def later(self, now_ms: int) -> None:
        """Advance the time, waking the candidate at each of its deadlines."""
        while (due_ms := self.candidate.deadline_ms) is not None and due_ms <= now_ms:
            self.candidate.tick(due_ms)
            if self.candidate.deadline_ms == due_ms:
                break

    # --- other nodes ---

    def asked(self) -> dict[str, PeerMessage]:
        out, self.out = self.out, []
        assert len({to for to, _ in out}) == len(out)
        return dict(out)

    def agree(self, *nodes: str, attempt: int | None = None, agrees: bool = True, round_: int = 0) -> None:
        for node in nodes:
            reply = pb.PreVoteReply(attempt=attempt or self.attempt, agrees=agrees)
            if round_:
                reply.promised.CopyFrom(ballot(round_))
            self.candidate.on_pre_vote_reply(node, reply, 0)

    def promise(
        self,
        node: str,
        end: Position = END,
        *,
        of: pb.Ballot | None = None,
        accepted: tuple[pb.Ballot, bytes] | None = None,
        short: bool = False,
        now_ms: int = 0,
        status: pb.ReplicaStatus = pb.HELD,
        promised: pb.Ballot | None = None,
    ) -> None:
        reply = pb.SealReply(
            ballot=of or self.ballot,
            status=status,
            promised=promised or self.ballot,
            end_offset=end.offset,
            end_digest=end.digest,
            short_log=short,
        )
        if accepted is not None:
            reply.accepted.CopyFrom(accepted[0])
            reply.accepted_value = accepted[1]
        self.candidate.on_seal_reply(node, reply, now_ms)

    def accept(
        self,
        *nodes: str,
        of: pb.Ballot | None = None,
        status: pb.ReplicaStatus = pb.HELD,
        promised: pb.Ballot | None = None,
        now_ms: int = 0,
    ) -> None:
        for node in nodes:
            reply = pb.OpenEpochReply(ballot=of or self.ballot, status=status, promised=promised)
            self.candidate.on_open_reply(node, reply, now_ms)

    # --- how far it is ---

    def sealing(self, *nodes: str) -> CandidateBench:
        """Let `nodes` agree, by default a seal quorum; no other node answers."""
        self.candidate.consider(0)
        self.agree(*(nodes or self.active.placement[: self.candidate.seal_quorum]))
        assert self.phase == "sealing"
        self.out.clear()
        return self

    def opening(self) -> CandidateBench:
        self.sealing()
        self.agree(*self.active.placement)
        for node in self.active.placement[: self.candidate.seal_quorum]:
            self.promise(node)
        assert self.phase == "opening"
        return self

    def value(self) -> pb.EpochDecision:
        """Return the value of the outgoing OPEN_EPOCH."""
        messages = list(self.asked().values())
        [value] = {message.value for message in messages if isinstance(message, pb.OpenEpoch)}
        return pb.EpochDecision.FromString(value)
