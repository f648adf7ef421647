"""The incarnations of nodes that one node knows, with a real journal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.storage.build import HOME
from tests.broker.storage.logs import new_disk

from tidelog_broker.base.offload import Offload
from tidelog_broker.cluster import incarnation_registry
from tidelog_broker.cluster.incarnation_registry import IncarnationRegistry
from tidelog_broker.core import known_incarnations
from tidelog_broker.core.incarnation import make_incarnation
from tidelog_broker.core.known_incarnations import known_incarnation, newest_of
from tidelog_broker.core.rollback_detection import IncarnationTick as Tick
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_broker.storage.io.filesystem import FileSystem, RealFileSystem
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.node import journal
from tidelog_broker.storage.node.incarnation_journal import INCARNATIONS
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_broker.wire.handshake_incarnations import StaleDirectoryError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FRAME_BYTES_MAX_BEFORE_HELLO
from tidelog_proto.wire.frames import encode_frame

OWN = ("a", b"a" * 16)
OTHER = ("b", b"b" * 16)


def at(counter: int, nonce: int = 1) -> int:
    return make_incarnation(counter, nonce)


class Node:
    """The successive incarnations of a node on one directory."""

    def __init__(self, path: Path, fs: FileSystem | None = None) -> None:
        self.path = path / "lives"
        self.fs = fs or RealFileSystem()
        self.refusals: list[str] = []
        self.is_final = False
        """Whether the last refusal lasts."""
        self.writes = 0
        TypedJournal.make(self.fs, self.path, INCARNATIONS)

    def _refused(self, why: str, is_final: bool) -> None:
        self.refusals.append(why)
        self.is_final = is_final

    @contextlib.asynccontextmanager
    async def started(self, incarnation: int, *, takes_part: bool = True) -> AsyncIterator[IncarnationRegistry]:
        workers = IoWorkers(1)
        opened = TypedJournal.open(self.fs, self.path, INCARNATIONS)
        registry = IncarnationRegistry(
            OWN,
            incarnation,
            opened,
            offload=Offload(workers, asyncio.get_running_loop()),
            writes=lambda: self.writes,
            failed=lambda error: pytest.fail(str(error)),
            refused=self._refused,
        )
        await registry.begin(may_withdraw=True)
        if takes_part:
            registry.take_part()
        try:
            yield registry
        finally:
            await registry.close()
            opened.close()
            workers.close()


class Others:
    """The other nodes, and the messages that they receive."""

    def __init__(self, *answers: pb.KnownIncarnation, late: int = 0) -> None:
        self.late = late
        """How many messages are not answered in time."""
        self.heard = asyncio.Event()
        self.sent: list[list[pb.KnownIncarnation]] = []
        self._answers = answers

        self.linked = frozenset({"b"})

    async def exchange_incarnations(
        self, node_id: str, incarnations: pb.Incarnations, *, timeout_s: float
    ) -> pb.IncarnationsReply | None:
        del node_id, timeout_s
        if self.late:
            self.late -= 1
            return None
        self.sent.append(list(incarnations.entries))
        self.heard.set()
        return pb.IncarnationsReply(entries=self._answers)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incarnation_registry, "TICK_S", 0.01)


def offer_of(registry: IncarnationRegistry, peer: str = "b") -> pb.PeerIncarnations:
    return registry.offer(peer)


def offer_of_b(incarnation: int, *past: Tick, tick: int = 0) -> pb.PeerIncarnations:
    listed = [pb.IncarnationTick(incarnation=start.incarnation, tick=start.tick) for start in past]
    return pb.PeerIncarnations(directory_id=OTHER[1], past=listed, tick=tick)


async def test_directory_contains_its_previous_incarnations(node: Node) -> None:
    for counter in (1, 2):
        async with node.started(at(counter)):
            pass
    async with node.started(at(3)) as registry:
        assert [start.incarnation for start in offer_of(registry).past] == [at(1), at(2)]


async def test_start_fails_when_its_incarnation_cannot_be_written(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: TypedJournal[pb.KnownIncarnation], entries: object) -> None:
        del self, entries
        raise StorageFailedError("a write failed")

    failures: list[BaseException] = []
    monkeypatch.setattr(TypedJournal, "append", fail)
    workers = IoWorkers(1)
    opened = TypedJournal.open(node.fs, node.path, INCARNATIONS)
    offload = Offload(workers, asyncio.get_running_loop())
    registry = IncarnationRegistry(
        OWN,
        at(1),
        opened,
        offload=offload,
        writes=lambda: 0,
        failed=failures.append,
        refused=lambda why, is_final: None,
    )
    async with asyncio.timeout(10):
        with pytest.raises(StorageFailedError, match="a write failed"):
            await registry.begin(may_withdraw=True)
    assert [str(failure) for failure in failures] == ["STORAGE_FAILED: a write failed"]
    opened.close()
    workers.close()


async def test_tick_is_durable_before_it_is_sent(node: Node) -> None:
    others = Others()
    async with node.started(at(1)) as registry:
        running = asyncio.create_task(registry.run(others))
        node.writes = 1
        async with asyncio.timeout(20):
            await others.heard.wait()
        reopened = TypedJournal.open(RealFileSystem(), node.path, INCARNATIONS)
        kept = [entry.tick for entry in reopened.load() if entry.own]
        reopened.close()
        running.cancel()
    assert others.sent[0] == [known_incarnation(OWN, Tick(at(1), 1))]
    assert kept == [1]


async def test_idle_node_does_not_advance_its_tick(node: Node) -> None:
    others = Others()
    async with node.started(at(1)) as registry:
        running = asyncio.create_task(registry.run(others))
        await asyncio.sleep(0.1)
        running.cancel()
        assert registry.own.now.tick == 0
    assert others.sent == []


async def test_known_incarnation_survives_a_restart(node: Node) -> None:
    async with node.started(at(1)) as registry:
        await registry.register("b", at(5), offer_of_b(at(5)))
    async with node.started(at(2)) as registry:
        assert registry.newest(OTHER) == Tick(at(5), 0)
        with pytest.raises(ProtocolError, match="uses an older copy of its data directory"):
            await registry.register("b", at(4), offer_of_b(at(4)))
        await registry.register("b", at(6), offer_of_b(at(6), Tick(at(5), 0)))


async def test_incarnation_reported_by_a_third_node_is_compared_and_stored(node: Node) -> None:
    others = Others()
    async with node.started(at(1)) as registry:
        registry.learn("c", [known_incarnation(OTHER, Tick(at(5), 8))])
        running = asyncio.create_task(registry.run(others))
        async with asyncio.timeout(20):
            await others.heard.wait()
        running.cancel()
    async with node.started(at(2)) as registry:
        with pytest.raises(ProtocolError, match="uses an older copy of its data directory"):
            await registry.register("b", at(6), offer_of_b(at(6), Tick(at(5), 7)))


async def test_node_stops_when_another_one_knows_a_later_incarnation(node: Node) -> None:
    async with node.started(at(2)) as registry:
        told = offer_of_b(at(1))
        told.known.append(known_incarnation(OWN, Tick(at(3), 0)))
        with pytest.raises(StaleDirectoryError, match="has recorded start 3"):
            await registry.register("b", at(1), told)
        registry.learn("c", [known_incarnation(OWN, Tick(at(4), 0))])
    assert len(node.refusals) == 1, "the node is ended once"


async def test_message_names_the_tick_that_a_copy_lacks(node: Node) -> None:
    async with node.started(at(1)):
        pass
    async with node.started(at(2)) as registry:
        registry.learn("c", [known_incarnation(OWN, Tick(at(1), 9))])
    assert "tick 9; the directory has 0" in node.refusals[0]


async def test_node_learns_the_later_incarnations_that_another_one_answers_with(node: Node) -> None:
    async with node.started(at(1)) as registry:
        registry.learn("c", [known_incarnation(OTHER, Tick(at(1), 0))])
        assert await registry.exchange(Others(known_incarnation(OTHER, Tick(at(2), 0))), "c")
        assert registry.newest(OTHER) == Tick(at(2), 0)
        reply = registry.learn("c", [known_incarnation(OTHER, Tick(at(1), 0))])
        assert [newest_of(entry) for entry in reply.entries] == [Tick(at(2), 0)]


async def test_superseded_node_is_reported_once_for_each_start(node: Node) -> None:
    reported: list[str] = []
    async with node.started(at(1)) as registry:
        registry.superseded = reported.append
        registry.learn("c", [known_incarnation(OTHER, Tick(at(1), 0))])
        registry.learn("c", [known_incarnation(OTHER, Tick(at(1), 5))])
        assert reported == []
        registry.learn("c", [known_incarnation(OTHER, Tick(at(2), 0))])
    assert reported == ["b"]


async def test_gossip_is_accepted_from_known_starts_and_unknown_nodes(node: Node) -> None:
    async with node.started(at(1)) as registry:
        await registry.register("b", at(5), offer_of_b(at(5)))
        assert registry.is_registered("b", at(5))
        assert not registry.is_registered("b", at(6))
        assert not registry.is_registered("b", at(4))
        assert registry.is_registered("z", at(1))
        assert registry.is_registered("a", at(1))
        assert not registry.is_registered("a", at(2))


async def test_removed_node_is_forgotten(node: Node) -> None:
    async with node.started(at(1)) as registry:
        await registry.register("b", at(5), offer_of_b(at(5)))
        registry.forget({"b"})
        await registry.register("b", at(1), offer_of_b(at(1)))
    async with node.started(at(2)) as registry:
        assert registry.newest(OTHER) == Tick(at(1), 0)


async def test_node_without_incarnations_is_not_compared(node: Node) -> None:
    async with node.started(at(1)) as registry:
        await registry.register("b", at(5), pb.PeerIncarnations())
        assert registry.newest(OTHER) is None


@pytest.mark.parametrize(("directory_id", "incarnation"), [(b"short", at(1)), (b"b" * 17, at(1)), (b"b" * 16, 0)])
async def test_malformed_incarnation_is_not_stored(node: Node, directory_id: bytes, incarnation: int) -> None:
    """The journal takes no such entry: a node that tried to write it would end."""
    async with node.started(at(1)) as registry:
        with pytest.raises(ProtocolError, match="sent an invalid incarnation") as caught:
            await registry.register("b", incarnation, pb.PeerIncarnations(directory_id=directory_id))
        assert caught.value.code == pb.INVALID_REQUEST
        assert registry.newest(("b", directory_id)) is None


async def test_malformed_reports_of_incarnations_are_ignored(node: Node) -> None:
    malformed = [
        pb.KnownIncarnation(node_id="b", directory_id=b"short", incarnation=at(1)),
        pb.KnownIncarnation(node_id="b" * 129, directory_id=b"b" * 16, incarnation=at(1)),
        pb.KnownIncarnation(directory_id=b"b" * 16, incarnation=at(1)),
        pb.KnownIncarnation(node_id="b", directory_id=b"b" * 16),
        known_incarnation(OWN, Tick(0, 0)),
        pb.KnownIncarnation(node_id="b", directory_id=b"b" * 16, incarnation=at(9), withdrawn=[0]),
        pb.KnownIncarnation(node_id="b", directory_id=b"b" * 16, incarnation=at(9), withdrawn=range(1, 100)),
        pb.KnownIncarnation(node_id="a", directory_id=b"a" * 16, incarnation=at(1), withdrawn=[0]),
    ]
    others = Others()
    async with node.started(at(1)) as registry:
        registry.learn("c", [*malformed, known_incarnation(OTHER, Tick(at(5), 0))])
        running = asyncio.create_task(registry.run(others))
        async with asyncio.timeout(20):
            await others.heard.wait()
        running.cancel()
        assert others.sent == [[known_incarnation(OTHER, Tick(at(5), 0))]]
        offer = pb.PeerIncarnations(directory_id=OTHER[1], known=[known_incarnation(OWN, Tick(0, 9))])
        await registry.register("b", at(5), offer)
    assert node.refusals == []


async def test_node_that_did_not_answer_in_time_is_sent_every_known_incarnation_again(node: Node) -> None:
    """The missed incarnations may be of an absent node, whose tick is not sent again otherwise."""
    others = Others(late=2)
    async with node.started(at(1)) as registry:
        assert not await registry.exchange(others, "b")
        registry.learn("c", [known_incarnation(OTHER, Tick(at(5), 8))])
        running = asyncio.create_task(registry.run(others))
        async with asyncio.timeout(20):
            await others.heard.wait()
        running.cancel()
    assert known_incarnation(OTHER, Tick(at(5), 8)) in others.sent[0]


async def test_evicted_incarnations_are_removed_from_the_journal(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_incarnations, "KNOWN_MAX", 3)
    async with node.started(at(1)) as registry:
        for number in range(10):
            await registry.register(f"n{number}", at(1), pb.PeerIncarnations(directory_id=bytes(16)))
        await registry.register("last", at(1), pb.PeerIncarnations(directory_id=bytes(16)))
    reopened = TypedJournal.open(RealFileSystem(), node.path, INCARNATIONS)
    kept = [entry.node_id for entry in reopened.load() if not entry.own]
    reopened.close()
    assert kept == ["n8", "n9", "last"]


async def test_ticks_leave_the_reserve_of_a_full_disk_to_starts_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with a full disk can still be linked with starting nodes."""
    monkeypatch.setattr(journal, "RESERVE_BYTES", 4096)
    disk, others = new_disk(), Others()
    node = Node(HOME, disk)
    async with node.started(at(1)) as registry, asyncio.timeout(60):
        await registry.register("b", at(5), offer_of_b(at(5)))
        disk.free_bytes = 0
        running = asyncio.create_task(registry.run(others))
        for tick in range(1, 100):
            registry.learn("c", [known_incarnation(OTHER, Tick(at(5), tick))])
            others.heard.clear()
            node.writes = tick
            await others.heard.wait()
        raised = registry.own.now.tick
        await registry.register("d", at(1), pb.PeerIncarnations(directory_id=b"d" * 16))
        assert registry.own.now.tick == raised < 99
        disk.free_bytes = None
        while registry.own.now.tick == raised:  # noqa: ASYNC110 - no event says that a tick is raised
            await asyncio.sleep(0.01)
        running.cancel()
    assert registry.newest(OTHER) == Tick(at(5), 99)


async def test_node_restored_from_a_memory_snapshot_stops(node: Node) -> None:
    """A snapshot of a machine was resumed: its links break, and it hears of its own later tick with the next ones."""
    async with node.started(at(1)) as registry:
        told = offer_of_b(at(1))
        told.known.append(known_incarnation(OWN, Tick(at(1), 9)))
        with pytest.raises(StaleDirectoryError, match="tick 9; the directory has 0"):
            await registry.register("b", at(1), told)
        assert registry.is_refused


@pytest.mark.parametrize("in_use", [False, True])
async def test_refusal_without_proof_does_not_stop_the_node(node: Node, *, in_use: bool) -> None:
    """It is durable, so a faulty node must not be able to bring it about with anything that it sends."""
    async with node.started(at(1)):
        pass
    async with node.started(at(2)) as registry:
        named = [
            known_incarnation(OTHER, Tick(at(9), 0)),
            known_incarnation(OWN, Tick(0, 0)),
            pb.KnownIncarnation(),
        ]
        if not in_use:
            named.append(known_incarnation(OWN, Tick(at(1), 0)))
        for known in named:
            error = registry.refuted("b", known, in_use=in_use)
            assert error.code == pb.FORBIDDEN
            assert not isinstance(error, StaleDirectoryError)
        assert not registry.is_refused
    assert node.refusals == []


async def test_stopping_node_stores_the_last_incarnations(node: Node) -> None:
    async with node.started(at(1)) as registry:
        registry.learn("c", [known_incarnation(OTHER, Tick(at(5), 8))])
    async with node.started(at(2)) as registry:
        assert registry.newest(OTHER) == Tick(at(5), 8)


async def test_handshake_with_a_node_that_had_many_directories_fits_its_frames(node: Node) -> None:
    """It was started again and again without a disk that lasts; its own directory is compared all the same."""
    async with node.started(at(1)) as registry:
        registry.learn("c", [known_incarnation(OTHER, Tick(at(5), 8))])
        registry.learn("c", [known_incarnation(("b", b"%016d" % number), Tick(at(1), 0)) for number in range(3000)])
        proof = pb.Envelope(peer_proof=pb.PeerProof(proof=bytes(32), incarnations=offer_of(registry)))
        assert len(encode_frame(proof)) < FRAME_BYTES_MAX_BEFORE_HELLO
        with pytest.raises(ProtocolError, match="uses an older copy of its data directory"):
            await registry.register("b", at(4), offer_of_b(at(4)))


# ------------------------------------------------------------------------------------------ withdrawals


def withdrawal(directory: tuple[str, bytes], incarnation: int) -> pb.KnownIncarnation:
    entry = known_incarnation(directory, Tick(incarnation, 0))
    entry.withdrawn.append(incarnation)
    return entry


async def test_start_that_is_refused_before_it_took_part_is_withdrawn(node: Node) -> None:
    others = Others()
    async with node.started(at(2), takes_part=False) as registry:
        registry.offer("b")
        registry.offer("c")
        registry.refuted("c", known_incarnation(OWN, Tick(at(1), 0)), in_use=True)
        await registry.withdraw(others)
        assert others.sent == [[withdrawal(OWN, at(2))]]
        assert node.is_final
        await registry.withdraw(others)
        assert len(others.sent) == 1
        with pytest.raises(StaleDirectoryError):
            registry.take_part()


async def test_start_that_took_part_is_not_withdrawn(node: Node) -> None:
    others = Others()
    async with node.started(at(2), takes_part=False) as registry:
        registry.offer("b")
        registry.take_part()
        registry.refuted("c", known_incarnation(OWN, Tick(at(1), 0)), in_use=True)
        await registry.withdraw(others)
    assert others.sent == []


async def test_withdrawal_reaches_a_node_linked_meanwhile(node: Node) -> None:
    """It has noted the start, and its answer is on the way when another node refuses."""
    others = Others()
    others.linked = frozenset()
    async with node.started(at(2), takes_part=False) as registry:
        registry.offer("b")
        registry.refuted("c", known_incarnation(OWN, Tick(at(1), 0)), in_use=True)
        withdrawing = asyncio.create_task(registry.withdraw(others))
        await asyncio.sleep(0.05)
        others.linked = frozenset({"b"})
        await withdrawing
    assert others.sent == [[withdrawal(OWN, at(2))]]


async def test_stopping_node_offers_its_incarnation_to_no_further_node(node: Node) -> None:
    others = Others()
    async with node.started(at(2), takes_part=False) as registry:
        registry.offer("b")
        registry.refuted("c", known_incarnation(OWN, Tick(at(1), 0)), in_use=True)
        assert list(registry.offer("b").withdrawn) == [at(2)]
        with pytest.raises(StaleDirectoryError):
            registry.offer("c")
        await registry.withdraw(others)
        with pytest.raises(StaleDirectoryError):
            registry.offer("b")


async def test_handshake_carries_a_withdrawal(node: Node) -> None:
    """A node that has noted the start and refuses it by now makes no link."""
    others = Others()
    others.linked = frozenset()
    async with node.started(at(2), takes_part=False) as registry, asyncio.timeout(20):
        registry.offer("b")
        await registry.register("b", at(1), offer_of_b(at(1)))
        registry.refuted("b", known_incarnation(OWN, Tick(at(3), 1)), in_use=False)
        withdrawing = asyncio.create_task(registry.withdraw(others))
        assert list(registry.offer("b").withdrawn) == [at(2)]
        assert isinstance(registry.withdrawal_noted("b"), StaleDirectoryError)
        await withdrawing
    assert others.sent == []


async def test_incarnation_withdrawn_in_a_handshake_is_dropped_durably(node: Node) -> None:
    async with node.started(at(1)) as registry:
        await registry.register("b", at(5), offer_of_b(at(5), tick=3))
        await registry.register("b", at(6), offer_of_b(at(6), Tick(at(5), 3)))
        ending = offer_of_b(at(6), Tick(at(5), 3))
        assert not await registry.is_withdrawn("b", at(6), ending)
        ending.withdrawn.append(at(6))
        assert await registry.is_withdrawn("b", at(6), ending)
        assert registry.newest(OTHER) == Tick(at(5), 3)
    async with node.started(at(2)) as registry:
        assert registry.newest(OTHER) == Tick(at(5), 3)


async def test_withdrawal_without_an_answer_times_out(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incarnation_registry, "WITHDRAW_S", 0.05)
    others = Others(late=1_000_000)
    async with node.started(at(2), takes_part=False) as registry, asyncio.timeout(20):
        registry.offer("b")
        registry.refuted("c", known_incarnation(OWN, Tick(at(1), 0)), in_use=True)
        await registry.withdraw(others)


async def test_withdrawal_is_durable_before_its_answer_and_restores_an_earlier_start(node: Node) -> None:
    async with node.started(at(1)) as registry:
        registry.learn("c", [known_incarnation(OTHER, Tick(at(5), 8))])
        await registry.register("b", at(6), offer_of_b(at(6), Tick(at(5), 8)))
        registry.learn("b", [withdrawal(OTHER, at(6))])
        await registry.keep_withdrawals([withdrawal(OTHER, at(6))])
        opened = TypedJournal.open(RealFileSystem(), node.path, INCARNATIONS)
        kept = [entry for entry in opened.load() if not entry.own]
        opened.close()
    assert [list(entry.withdrawn) for entry in kept] == [[at(6)]]
    async with node.started(at(2)) as registry:
        assert registry.newest(OTHER) == Tick(at(5), 8)
        with pytest.raises(ProtocolError, match="was withdrawn"):
            await registry.register("b", at(6), offer_of_b(at(6), Tick(at(5), 8)))
        with pytest.raises(ProtocolError, match="uses an older copy of its data directory"):
            await registry.register("b", at(6, 2), offer_of_b(at(6, 2), Tick(at(5), 7)))
        await registry.register("b", at(6, 2), offer_of_b(at(6, 2), Tick(at(5), 8)))


async def test_report_of_a_withdrawn_incarnation_is_answered_with_the_withdrawal(node: Node) -> None:
    async with node.started(at(1)) as registry:
        registry.learn("b", [withdrawal(OTHER, at(6))])
        reply = registry.learn("c", [known_incarnation(OTHER, Tick(at(6), 0))])
        assert [list(entry.withdrawn) for entry in reply.entries] == [[at(6)]]
        assert registry.newest(OTHER) is None


async def test_node_in_doubt_takes_no_part_until_the_other_start_is_withdrawn(node: Node) -> None:
    async with node.started(at(1)):
        pass
    async with node.started(at(2), takes_part=False) as registry:
        error = registry.refuted("b", known_incarnation(OWN, Tick(at(2, 7), 0)), in_use=False)
        assert error.code == pb.EPOCH_CHANGING
        assert "has recorded start 2" in registry.doubt
        with pytest.raises(StaleDirectoryError):
            registry.take_part()
    async with node.started(at(3), takes_part=False) as registry:
        assert registry.doubt, "it is durable: the node that named the other start may be away by now"
        told = offer_of_b(at(1))
        told.known.append(withdrawal(OWN, at(2, 7)))
        await registry.register("b", at(1), told)
        assert not registry.doubt
        registry.take_part()
        assert offer_of(registry).withdrawn == [at(2, 7)]
    async with node.started(at(4)) as registry:
        error = registry.refuted("c", known_incarnation(OWN, Tick(at(2, 7), 0)), in_use=False)
        assert error.code == pb.EPOCH_CHANGING, "the other node has not received the withdrawal yet"
        await registry.register("c", at(1), pb.PeerIncarnations(known=[known_incarnation(OWN, Tick(at(2, 7), 0))]))
        reply = registry.learn("c", [known_incarnation(OWN, Tick(at(2, 7), 0))])
        assert [list(entry.withdrawn) for entry in reply.entries] == [[at(2, 7)]]
    assert node.refusals == []


async def test_node_in_doubt_is_refused_once_the_other_start_took_part(node: Node) -> None:
    async with node.started(at(2), takes_part=False) as registry:
        registry.refuted("b", known_incarnation(OWN, Tick(at(2, 7), 0)), in_use=False)
        registry.learn("b", [known_incarnation(OWN, Tick(at(2, 7), 1))])
        assert node.is_final


async def test_node_that_stays_in_doubt_ends_and_may_start_again(node: Node) -> None:
    async with node.started(at(2), takes_part=False) as registry:
        registry.refuted("b", known_incarnation(OWN, Tick(at(2, 7), 0)), in_use=False)
        registry.refuse_in_doubt()
        assert len(node.refusals) == 1
        assert not node.is_final


async def test_participating_node_stops_for_a_start_that_may_have_taken_part(node: Node) -> None:
    async with node.started(at(2)) as registry:
        registry.learn("b", [known_incarnation(OWN, Tick(at(2, 7), 0))])
        assert registry.is_refused
        assert not node.is_final
    async with node.started(at(3), takes_part=False) as registry:
        assert registry.doubt


async def test_withdrawal_known_to_the_node_is_applied_in_its_handshake(node: Node) -> None:
    """The node that it was sent to may be away."""
    async with node.started(at(1)) as registry:
        await registry.register("b", at(5), offer_of_b(at(5)))
        await registry.register("b", at(6, 7), offer_of_b(at(6, 7), Tick(at(5), 0)))
        again = offer_of_b(at(6), Tick(at(5), 0))
        assert registry.refutation("b", at(6), again) is not None
        again.withdrawn.append(at(6, 7))
        assert registry.refutation("b", at(6), again) is None
        await registry.register("b", at(6), again)


async def test_superseded_node_is_reported_at_a_withdrawal(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incarnation_registry, "DISMISS_AFTER_S", 0)
    reported = asyncio.Event()
    async with node.started(at(1)) as registry, asyncio.timeout(20):
        registry.learn("b", [known_incarnation(OTHER, Tick(at(5), 0))])
        registry.learn("b", [known_incarnation(OTHER, Tick(at(6), 0))])
        registry.superseded = lambda _: reported.set()
        registry.learn("b", [withdrawal(OTHER, at(6))])
        await reported.wait()
        assert registry.is_registered("b", at(5))
        assert not registry.is_registered("b", at(6))
