"""Fixture for testing parts of a replica in isolation: shared state, an in-memory log, and settable hints.

No effect is executed automatically: a test inspects the effects and reports when a write is durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa
from tests.broker.core.replication.test_replica import KEY, Log

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import Effect, Send
from tidelog_broker.core.replication.epoch_writer import OffsetAssigner
from tidelog_broker.core.replication.fence import Fence
from tidelog_broker.core.replication.paxos import decision_value
from tidelog_broker.core.replication.ports import Batch, Plan, Position, Timing
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_broker.core.replication.replica_state import Doubt, LogTail, ReplicaState
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.record_batch import encode_batch

__all__ = ["KEY", "Log"]

NODES = ("a", "b", "c")
INCARNATION = 7
"""Incarnation of every node by default."""

EffectT = TypeVar("EffectT")
MessageT = TypeVar("MessageT")


def descriptor(
    epoch: int = 0,
    *,
    owner: str = "a",
    incarnation: int = INCARNATION,
    start: int = 0,
    placement: Sequence[str] = NODES,
    quorum: int = 2,
    flush: pb.Flush = pb.ALWAYS,
) -> pb.EpochDescriptor:
    return pb.EpochDescriptor(
        epoch=epoch,
        owner=owner,
        owner_incarnation=incarnation,
        placement=placement,
        ack_quorum=quorum,
        start_offset=start,
        flush=flush,
    )


def candidate(records: int = 1, *, producer: int = 0, sequence: int = 0, fill: bytes = b"x") -> Batch:
    columns = pa.record_batch({"value": pa.array([fill] * records, pa.binary())})
    encoded = encode_batch(columns, now_us=5, producer_id=producer, base_sequence=sequence)
    data = memoryview(bytearray(encoded.to_bytes()))
    return Batch(unpack_header(data), data)


def run_of(active: pb.EpochDescriptor, *counts: int, fill: bytes = b"x") -> list[Batch]:
    """Return the first batches of an epoch as stamped by its owner, with `counts` records each."""
    owner = OffsetAssigner(active, producers=ProducerTable())
    group = owner.assign([candidate(count, fill=fill) for count in counts], now_us=1)
    return [Batch(header, data) for header, data in zip(group.headers, group.batches, strict=True)]


def end_of(batches: Sequence[Batch]) -> Position:
    return Position(batches[-1].header.end_offset, batches[-1].header.digest)


def ends_of(batches: Sequence[Batch]) -> list[Position]:
    return [Position(batch.header.end_offset, batch.header.digest) for batch in batches]


def decision(
    chain: EpochChain,
    end: Position,
    *,
    owner: str = "b",
    placement: Sequence[str] = NODES,
    quorum: int = 2,
    lost_until: int = 0,
) -> bytes:
    """Return a decision that continues `chain`."""
    plan = Plan(owner, tuple(placement), quorum)
    return decision_value(chain.active, end, chain.previous_hash, plan, INCARNATION, lost_until=lost_until)


def ballot(round_: int, node: str = "c", incarnation: int = INCARNATION) -> pb.Ballot:
    return pb.Ballot(round=round_, node_id=node, incarnation=incarnation)


class Hints:
    """Hints of gossip and `__meta`."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.incarnations: dict[str, int] = dict.fromkeys(NODES, INCARNATION)
        self.next = Plan("b", NODES, 2)
        self.turn = 0
        self.asked_below_ms: list[int] = []
        self.randoms_ms: list[int] = []
        self.backfill_waits_ms: list[int] = []
        self.backfilled_bytes: list[int] = []

    def alive(self, node_id: str) -> bool:
        return node_id not in self.dead

    def incarnation(self, node_id: str) -> int:
        return self.incarnations.get(node_id, 0)

    def plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan:
        return self.next

    def rank(self, key: PartitionKey, active: pb.EpochDescriptor) -> int:
        return self.turn

    def backfill_wait_ms(self, size_bytes: int) -> int:
        self.backfilled_bytes.append(size_bytes)
        return self.backfill_waits_ms.pop(0) if self.backfill_waits_ms else 0

    def random_ms(self, below_ms: int) -> int:
        self.asked_below_ms.append(below_ms)
        return self.randoms_ms.pop(0) if self.randoms_ms else 0


class Bench(ReplicaState):
    """State of a replica, by default the follower `b` of the first epoch. Its log durably holds `held`."""

    def __init__(
        self, chain: EpochChain | None = None, *, node: str = "b", held: Sequence[Batch] = (), doubt: Doubt = ""
    ) -> None:
        self.hints = Hints()
        self.disk = Log()
        super().__init__(
            KEY,
            node_id=node,
            incarnation=INCARNATION,
            chain=chain or EpochChain(descriptor()),
            log=self.disk,
            cluster_hints=self.hints,
            timing=Timing(),
            doubt=doubt,
            no_space=lambda _tail, _now_ms: None,
        )
        if self.is_member:
            self.fence = Fence(KEY, self.active)
        if held:
            self.store(held)
            start = self.active.start_offset
            self.tail = LogTail(self.active.epoch, start, Position(start, 0))
            self.tail.extend(ends_of(held))
            self.tail.wrote(end_of(held))

    def store(self, batches: Sequence[Batch]) -> None:
        """Put batches into the log as if they had been written before."""
        for batch in batches:
            self.disk.epochs.setdefault(batch.header.epoch, []).append((batch.header, batch.data))

    def take(self, *kinds: type[EffectT]) -> list[EffectT]:
        """Return the new effects of these kinds and discard the others."""
        effects, self.effects = self.effects, []
        return [effect for effect in effects if isinstance(effect, kinds)]

    def peek(self) -> list[Effect]:
        """Return the new effects without discarding them."""
        return list(self.effects)

    def sent(self, kind: type[MessageT]) -> list[tuple[str, MessageT]]:
        """Return the receivers of new messages of a kind, and discard all other effects."""
        return [(to, send.message) for send in self.take(Send) for to in send.to if isinstance(send.message, kind)]

    def answer(self, kind: type[MessageT]) -> MessageT:
        """Return the only outgoing message of a kind."""
        [(_, message)] = self.sent(kind)
        return message

    @property
    def writes(self) -> int:
        """Return the number of pending writes."""
        return len(self.waiting_writes)

    def wrote(self, now_ms: int = 0, *, ok: bool = True) -> None:
        """Complete the oldest write."""
        self.waiting_writes.popleft()(ok, now_ms)

    def queue(self, batches: Sequence[Batch]) -> None:
        """Queue batches for the open epoch, like an append of the owner."""
        self.queue_append([batch.data for batch in batches], ends_of(batches), lambda _now_ms: None)
