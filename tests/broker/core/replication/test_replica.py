"""Replicas of one partition on an ideal network with ideal disks: publish, takeover, catch-up, roll-over."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from tidelog_broker.core.replication.catch_up import CatchUp
from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import (
    Append,
    AppendPartialCopy,
    Effect,
    EpochDecided,
    FinishPartialCopy,
    OwnerConfirmed,
    OwnerReady,
    ReadLog,
    RebuildProducers,
    Send,
    SetAside,
    SyncAhead,
    SyncLog,
    Truncate,
    WriteChain,
    WriteFences,
)
from tidelog_broker.core.replication.ports import Batch, Plan, Position
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_broker.core.replication.replica import Replica
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, unpack_header
from tidelog_proto.batch.record_batch import encode_batch

KEY = (bytes(16), 0)
NODES: tuple[str, ...] = ("a", "b", "c")


def batch(text: str) -> Batch:
    columns = pa.record_batch({"value": pa.array([text.encode()], pa.binary())})
    data = memoryview(bytearray(encode_batch(columns, now_us=5).to_bytes()))
    return Batch(unpack_header(data), data)


def append_of(owner: Replica, one: Batch) -> pb.AppendBatch:
    header = one.header
    return pb.AppendBatch(
        topic_id=KEY[0],
        epoch=header.epoch,
        owner=owner.state.node_id,
        owner_incarnation=header.owner_incarnation,
        base_offset=header.base_offset,
        end_offset=header.end_offset,
        previous_digest=owner.state.position_of(header.epoch, header.base_offset) or 0,
        end_digest=header.digest,
    )


@dataclass
class Log:
    """Epochs as lists of headers and bytes, in place of a disk."""

    epochs: dict[int, list[tuple[BatchHeader, memoryview]]] = field(default_factory=dict)
    fills: dict[int, list[tuple[BatchHeader, memoryview]]] = field(default_factory=dict)
    fronts: dict[int, Position] = field(default_factory=dict)
    """Starts of epochs with a beginning deleted by retention."""

    def limbo(self) -> str | None:
        return None

    def newest_epoch(self) -> int | None:
        return max(self.epochs, default=None)

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        held = self.epochs.get(epoch)
        return (held[-1][0].end_offset, held[-1][0].digest) if held else None

    def copy_start(self, epoch: int) -> int | None:
        held = self.epochs.get(epoch)
        return held[0][0].base_offset if held else None

    def digest_at(self, epoch: int, offset: int) -> int | None:
        front = self.fronts.get(epoch)
        if front is not None and offset == front.offset:
            return front.digest
        return next((h.digest for h, _ in self.epochs.get(epoch, []) if h.end_offset == offset), None)

    def copy_position(self, epoch: int) -> tuple[int, int] | None:
        held = self.fills.get(epoch) or self.epochs.get(epoch)
        return (held[-1][0].end_offset, held[-1][0].digest) if held else None

    def position_beside(self, epoch: int) -> tuple[int, int] | None:
        held = self.fills.get(epoch)
        return (held[-1][0].end_offset, held[-1][0].digest) if held else None

    def log_start(self) -> int:
        return 0

    def raise_log_start(self, offset: int) -> None:
        pass

    def batch_start(self, epoch: int, offset: int) -> int | None:
        del epoch, offset
        return None

    def is_volatile(self, epoch: int) -> bool:
        return False

    def epoch_without_producers(self) -> int | None:
        return None

    def do(self, effect: Effect) -> None:
        match effect:
            case Append():
                self.epochs.setdefault(effect.epoch, []).extend((unpack_header(b), b) for b in effect.batches)
            case Truncate():
                kept = [item for item in self.epochs[effect.epoch] if item[0].end_offset <= effect.end_offset]
                self.epochs[effect.epoch] = kept
            case AppendPartialCopy():
                held = self.epochs.get(effect.epoch, [])
                is_beside = bool(held) and held[-1][0].end_offset > effect.base_offset
                fill = self.fills.setdefault(effect.epoch, [] if is_beside else list(held))
                if effect.start_digest and (not fill or fill[-1][0].end_offset < effect.start_offset):
                    fill.clear()
                    self.fronts[effect.epoch] = Position(effect.start_offset, effect.start_digest)
                fill.extend((unpack_header(b), b) for b in effect.batches)
            case FinishPartialCopy():
                self.epochs[effect.epoch] = self.fills.pop(effect.epoch)
            case SetAside():
                if self.epochs.pop(effect.epoch, None) is None:
                    self.fills.pop(effect.epoch, None)
            case _:
                pass

    def cut_front(self, epoch: int, offset: int) -> None:
        """Delete an epoch's batches that end at or below `offset`, as retention does."""
        held = self.epochs[epoch]
        gone = [header for header, _ in held if header.end_offset <= offset]
        self.epochs[epoch] = held[len(gone) :]
        self.fronts[epoch] = Position(gone[-1].end_offset, gone[-1].digest)

    def content_views(self) -> list[memoryview]:
        return [data for epoch in sorted(self.epochs) for _, data in self.epochs[epoch]]

    def content(self) -> list[bytes]:
        return [bytes(data) for epoch in sorted(self.epochs) for _, data in self.epochs[epoch]]


class Stage:
    """Nodes that execute each other's effects immediately, except for stopped ones."""

    def __init__(
        self, nodes: tuple[str, ...] = NODES, *, quorum: int = 2, flush: pb.Flush = pb.FLUSH_UNSPECIFIED
    ) -> None:
        self.now_ms = 1000
        self.down: set[str] = set()
        self.quorum = quorum
        self.logs = {node: Log() for node in nodes}
        self.incarnations = dict.fromkeys(nodes, 1)
        self.news: dict[str, list[Effect]] = {node: [] for node in nodes}
        self.messages: deque[tuple[str, Send]] = deque()
        self.flush = flush
        self.genesis = pb.EpochDescriptor(placement=nodes, ack_quorum=quorum, flush=flush)
        self.replicas = {node: self.replica(node) for node in nodes}
        self.later(2000)

    def replica(self, node: str) -> Replica:
        return Replica(
            KEY,
            node_id=node,
            incarnation=self.incarnations[node],
            chain=EpochChain(self.genesis),
            fence=None,
            log=self.logs[node],
            cluster_hints=self,
            now_ms=self.now_ms,
        )

    def alive(self, node_id: str) -> bool:
        return node_id in self.logs and node_id not in self.down

    def incarnation(self, node_id: str) -> int:
        return self.incarnations.get(node_id, 0)

    def plan(self, key: tuple[bytes, int], active: pb.EpochDescriptor) -> Plan:
        del key
        owner = next(node for node in active.placement if self.alive(node))
        return Plan(owner, tuple(active.placement), self.quorum, self.flush)

    def rank(self, key: tuple[bytes, int], active: pb.EpochDescriptor) -> int:
        del key
        return sum(1 for node in active.placement if self.alive(node)) and 0

    def backfill_wait_ms(self, size_bytes: int) -> int:
        del size_bytes
        return 0

    def random_ms(self, below_ms: int) -> int:
        return below_ms // 2

    def later(self, ms: int) -> None:
        """Advance the time in steps, running everything that is due at each."""
        until = self.now_ms + ms
        while self.now_ms < until:
            self.now_ms += 10
            for node, replica in self.replicas.items():
                if node not in self.down:
                    replica.tick(self.now_ms)
            self.run()

    def run(self) -> None:
        while True:
            for node in self.replicas:
                self.carry_out(node)
            if not self.messages:
                return
            while self.messages:
                self.deliver()

    def step(self) -> None:
        """Deliver one message, and execute the resulting effects."""
        for node in self.replicas:
            self.carry_out(node)
        self.deliver()

    def deliver(self) -> None:
        sender, send = self.messages.popleft()
        [to] = send.to
        if to in self.replicas and not {to, sender} & self.down:
            batches = [Batch(unpack_header(data), data) for data in send.batches]
            self.replicas[to].receive(sender, send.message, batches, self.now_ms)

    def carry_out(self, node: str) -> None:
        replica, log = self.replicas[node], self.logs[node]
        while effects := replica.take_effects():
            for effect in effects:
                match effect:
                    case Send():
                        self.messages.extend((node, effect._replace(to=(to,))) for to in effect.to)
                    case ReadLog():
                        held = [
                            (h, d)
                            for h, d in log.epochs.get(effect.epoch, [])
                            if effect.from_offset <= h.base_offset and h.end_offset <= effect.end_offset
                        ]
                        if held and held[0][0].base_offset != effect.from_offset:
                            held = []
                        base = Position(
                            effect.from_offset, replica.state.position_of(effect.epoch, effect.from_offset) or 0
                        )
                        end = Position(held[-1][0].end_offset, held[-1][0].digest) if held else base
                        replica.read(effect, [d for _, d in held], base, end, self.now_ms)
                    case SyncAhead():
                        self.synced_ahead(node, effect)
                    case RebuildProducers():
                        table = ProducerTable()
                        for header in (h for epoch in sorted(log.epochs) for h, _ in log.epochs[epoch]):
                            table.apply(header)
                        whole = not replica.backfill.incomplete
                        replica.producers_rebuilt(effect, table if whole else None, 0, self.now_ms)
                    case (
                        Append()
                        | Truncate()
                        | SyncLog()
                        | AppendPartialCopy()
                        | FinishPartialCopy()
                        | SetAside()
                        | WriteChain()
                        | WriteFences()
                    ):
                        log.do(effect)
                        replica.wrote(self.now_ms)
                    case _:
                        self.news[node].append(effect)

    def synced_ahead(self, node: str, effect: SyncAhead) -> None:
        self.replicas[node].synced_ahead(effect, self.now_ms)

    def owner(self) -> Replica:
        return next(r for n, r in self.replicas.items() if r.can_append and n not in self.down)

    def publish(self, *texts: str) -> int:
        owner = self.owner()
        group = owner.accept_group([batch(text) for text in texts], now_us=self.now_ms * 1000, now_ms=self.now_ms)
        self.run()
        return group.end_offset


def test_founders_elect_an_owner_and_commit() -> None:
    stage = Stage()
    end = stage.publish("one", "two")
    assert end == 2
    assert stage.owner().state.high_watermark == 2
    stage.later(100)
    assert {replica.state.high_watermark for replica in stage.replicas.values()} == {2}
    assert len({tuple(log.content()) for log in stage.logs.values()}) == 1


def test_nothing_is_committed_without_a_quorum_and_all_after_it_returns() -> None:
    stage = Stage()
    owner = stage.owner()
    stage.down = set(NODES) - {owner.state.node_id}
    stage.publish("one")
    assert owner.state.high_watermark == 0
    stage.down = set()
    stage.later(1000)
    assert stage.owner().state.high_watermark == 1


def test_dead_owner_is_replaced_and_records_are_kept() -> None:
    stage = Stage()
    stage.publish("one")
    first = stage.owner()
    stage.down = {first.state.node_id}
    stage.later(1000)
    second = stage.owner()
    assert second is not first
    assert second.state.active.epoch == first.state.active.epoch + 1
    assert second.state.high_watermark == 1
    stage.publish("two")
    stage.down = set()
    stage.later(3000)
    assert first.state.role == "follower"
    assert len({tuple(log.content()) for log in stage.logs.values()}) == 1
    assert len(stage.logs["a"].content()) == 2


def test_unacknowledged_tail_is_truncated() -> None:
    stage = Stage()
    first = stage.owner()
    stage.down = set(NODES) - {first.state.node_id}
    stage.publish("lost")
    assert first.state.high_watermark == 0
    stage.down = {first.state.node_id}
    stage.later(2000)
    stage.publish("kept")
    stage.down = set()
    stage.later(3000)
    assert len({tuple(log.content()) for log in stage.logs.values()}) == 1
    assert len(stage.logs["a"].content()) == 1
    decided = [news for news in stage.news[first.state.node_id] if isinstance(news, EpochDecided)]
    assert (decided[-1].epoch, decided[-1].end_offset) == (1, 0)


def test_planned_roll_over_takes_one_round() -> None:
    stage = Stage()
    stage.publish("one")
    first = stage.owner()
    other = next(node for node in NODES if node != first.state.node_id)
    first.roll_over(Plan(other, NODES, 2), stage.now_ms)
    stage.run()
    assert stage.owner().state.node_id == other
    assert stage.publish("two") == 2
    assert stage.owner().state.high_watermark == 2


@pytest.mark.parametrize(("away", "held_by_all"), [(False, 2), (True, 1)])
def test_decision_reports_the_end_held_by_all(*, away: bool, held_by_all: int) -> None:
    stage = Stage()
    stage.publish("one")
    first = stage.owner()
    stage.down = {next(node for node in NODES if node != first.state.node_id)} if away else set()
    stage.publish("two")
    first.roll_over(Plan(first.state.node_id, NODES, 2), stage.now_ms)
    stage.run()
    decided = next(news for news in reversed(stage.news[first.state.node_id]) if isinstance(news, EpochDecided))
    assert (decided.end_offset, decided.held_by_all) == (2, held_by_all)


def test_accepts_of_all_replicas_prove_the_end_held_by_all() -> None:
    stage = Stage()
    first = stage.owner()
    group = first.accept_group([batch("one")], now_us=1, now_ms=stage.now_ms)
    first.roll_over(Plan(first.state.node_id, NODES, 2), stage.now_ms)
    first.candidate.wait_for_all()
    stage.run()
    decided = next(news for news in reversed(stage.news[first.state.node_id]) if isinstance(news, EpochDecided))
    assert (decided.end_offset, decided.held_by_all) == (group.end_offset, group.end_offset)


def test_returning_replica_fetches_missing_records() -> None:
    stage = Stage()
    away = next(node for node in NODES if node != stage.owner().state.node_id)
    stage.down = {away}
    for text in "abcdef":
        stage.publish(text)
    stage.down = set()
    stage.later(2000)
    assert len(stage.logs[away].content()) == 6
    assert stage.replicas[away].state.high_watermark == 6


def test_founding_owner_of_a_new_partition_opens_immediately() -> None:
    genesis = pb.EpochDescriptor(owner="a", owner_incarnation=1, placement=NODES, ack_quorum=2)
    stage = Stage()

    def founded(node: str, *, incarnation: int = 1, fence: pb.FenceEntry | None = None) -> Replica:
        return Replica(
            KEY,
            node_id=node,
            incarnation=incarnation,
            chain=EpochChain(genesis),
            fence=fence,
            log=Log(),
            cluster_hints=stage,
            now_ms=0,
        )

    owner = founded("a")
    assert (owner.state.role, owner.can_append) == ("owner", True)
    effects = owner.take_effects()
    kinds = [type(effect) for effect in effects]
    assert kinds.index(WriteFences) < kinds.index(OwnerReady), "the fence is durable before anything is appended"
    assert founded("b").state.role == "follower"
    assert founded("a", incarnation=2).state.owner is None, "a later start takes over"
    assert founded("a", fence=pb.FenceEntry(descriptor=genesis)).state.owner is None, "it may have appended before"


def test_owner_is_confirmed_by_a_quorum_without_promises() -> None:
    stage = Stage()
    stage.publish("one")
    first = stage.owner()
    number = first.ownership.confirm()
    stage.run()
    assert OwnerConfirmed(number) in stage.news[first.state.node_id]


def test_owner_with_promised_replicas_is_not_confirmed() -> None:
    stage = Stage()
    stage.publish("one")
    first = stage.owner()
    stage.down = {first.state.node_id}
    stage.later(1000)
    assert stage.owner() is not first
    stage.down = set()
    stage.news[first.state.node_id].clear()
    first.ownership.confirm()
    stage.run()
    assert not [news for news in stage.news[first.state.node_id] if isinstance(news, OwnerConfirmed)]
    assert first.state.role == "follower"


def test_append_failed_on_a_full_disk_does_not_affect_later_ones() -> None:
    """Two appends fail on a full disk; between both reports, a second later, the owner's repetition is queued."""
    stage = Stage()
    owner = stage.owner()
    stage.down = set(NODES) - {owner.state.node_id}
    stage.publish("one")
    stage.publish("two")
    stage.down = set()
    follower = next(replica for node, replica in stage.replicas.items() if node != owner.state.node_id)
    batches = [Batch(unpack_header(data), data) for data in stage.logs[owner.state.node_id].content_views()]
    first, second = (append_of(owner, one) for one in batches)
    follower.receive(owner.state.node_id, first, batches[:1], stage.now_ms)
    follower.receive(owner.state.node_id, second, batches[1:], stage.now_ms)
    assert len([effect for effect in follower.take_effects() if isinstance(effect, Append)]) == 2
    follower.wrote(stage.now_ms, ok=False)
    stage.now_ms += follower.state.timing.peer_fetch_ms
    follower.receive(owner.state.node_id, first, batches[:1], stage.now_ms)
    follower.wrote(stage.now_ms, ok=False)
    follower.wrote(stage.now_ms)
    assert follower.state.tail.durable.offset == 1


def test_owner_dead_before_the_replica_started_is_missed() -> None:
    """Its death is not reported again, so the replica has to check by itself."""
    stage = Stage()
    stage.down = {"a"}
    stage.genesis = pb.EpochDescriptor(owner="a", owner_incarnation=1, placement=NODES, ack_quorum=2)
    stage.logs = {node: Log() for node in NODES}
    stage.replicas = {node: stage.replica(node) for node in ("b", "c")}
    assert all(replica.deadline_ms is not None for replica in stage.replicas.values())
    stage.later(2000)
    assert {replica.state.active.owner for replica in stage.replicas.values()} <= {"b", "c"}


class HeldBack(Stage):
    """A stage on which some nodes receive no batches of earlier epochs."""

    held_back: frozenset[str] = frozenset()

    def deliver(self) -> None:
        _, send = self.messages[0]
        if self.held_back.issuperset(send.to) and isinstance(send.message, pb.BackfillReply) and send.batches:
            self.messages.popleft()
        else:
            super().deliver()


def test_new_owner_opens_once_its_history_is_complete() -> None:
    """The owner that history was moved to is dead, and one of the two remaining replicas has no history yet."""
    stage = HeldBack(tuple("abcdef"))
    stage.owner().roll_over(Plan("a", ("a", "b", "c"), 2), stage.now_ms)
    stage.later(500)
    stage.publish("one", "two")
    stage.later(200)
    stage.held_back = frozenset("def")
    stage.owner().roll_over(Plan("d", ("d", "e", "f"), 2), stage.now_ms)
    stage.later(500)
    stage.publish("three")
    stage.down = {"d"}
    stage.later(20_000)
    active = stage.replicas["e"].state.active
    [other] = {"e", "f"} - {active.owner}
    assert stage.replicas[active.owner].state.role == "opening"
    stage.held_back = frozenset({other})
    stage.later(20_000)
    assert stage.replicas[other].backfill.incomplete
    assert stage.owner().state.node_id == active.owner
    assert stage.publish("four") == stage.owner().state.high_watermark == 4


def test_an_owner_asks_its_parts_for_their_deadlines_after_every_step_but_a_publish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    stage.publish("one")
    owner, asked = stage.owner(), [0]

    def ask(_: CatchUp) -> None:
        asked[0] += 1

    def is_asked() -> bool:
        before, _ = asked[0], owner.deadline_ms
        return asked[0] > before

    assert owner.deadline_ms is not None
    monkeypatch.setattr(CatchUp, "deadline_ms", property(ask))
    assert stage.publish("two") == owner.state.high_watermark
    assert not is_asked(), "a write and acknowledgements move the deadline of heartbeats only"
    owner.compacted(stage.now_ms)
    assert is_asked()
    owner.tick(stage.now_ms)
    assert is_asked()
    stage.down = set(NODES) - {owner.state.node_id}
    assert owner.damaged(owner.state.active.epoch, "it has rotted", stage.now_ms) == "once ended"
    assert is_asked()
    owner.roll_over(Plan(owner.state.node_id, NODES, 2), stage.now_ms)
    assert is_asked()


def test_an_acknowledgement_of_a_deletion_asks_the_parts_for_their_deadlines() -> None:
    stage = Stage()
    stage.publish("one", "two")
    owner = stage.owner()
    active, end = owner.state.active, owner.state.tail.durable
    sender = next(name for name in NODES if name != owner.state.node_id)

    def acknowledge(deleting_below: int) -> None:
        assert owner.deadline_ms is not None
        assert owner.deadlines_known
        ack = pb.ReplicationAck(
            topic_id=owner.state.key[0],
            partition=owner.state.key[1],
            epoch=active.epoch,
            owner_incarnation=active.owner_incarnation,
            end_offset=end.offset,
            end_digest=end.digest,
            deleting_below=deleting_below,
        )
        owner.receive(sender, ack, (), stage.now_ms)

    acknowledge(0)
    assert owner.deadlines_known
    acknowledge(1)
    assert not owner.deadlines_known
