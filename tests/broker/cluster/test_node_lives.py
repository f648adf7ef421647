"""The lives of nodes at one node, with a real journal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.storage.build import HOME
from tests.broker.storage.logs import new_disk

from tidelog_broker.base.offload import Offload
from tidelog_broker.cluster import node_lives
from tidelog_broker.cluster.node_lives import NodeLives
from tidelog_broker.core import known_lives
from tidelog_broker.core.incarnation import make_incarnation
from tidelog_broker.core.known_lives import known_life, life_of
from tidelog_broker.core.lives import NodeLife
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_broker.storage.io.filesystem import FileSystem, RealFileSystem
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.node import journal
from tidelog_broker.storage.node.lives import LIVES
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_broker.wire.lives import OldLifeError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FRAME_BYTES_MAX_BEFORE_HELLO
from tidelog_proto.wire.frames import encode_frame

OWN = ("a", b"a" * 16)
OTHER = ("b", b"b" * 16)


def at(counter: int, nonce: int = 1) -> int:
    return make_incarnation(counter, nonce)


class Node:
    """A node's lives in a directory, start after start."""

    def __init__(self, path: Path, fs: FileSystem | None = None) -> None:
        self.path = path / "lives"
        self.fs = fs or RealFileSystem()
        self.refusals: list[str] = []
        self.is_final = False
        """Whether the last refusal lasts."""
        self.writes = 0
        TypedJournal.make(self.fs, self.path, LIVES)

    def _refused(self, why: str, is_final: bool) -> None:
        self.refusals.append(why)
        self.is_final = is_final

    @contextlib.asynccontextmanager
    async def life(self, incarnation: int, *, takes_part: bool = True) -> AsyncIterator[NodeLives]:
        workers = IoWorkers(1)
        opened = TypedJournal.open(self.fs, self.path, LIVES)
        lives = NodeLives(
            OWN,
            incarnation,
            opened,
            offload=Offload(workers, asyncio.get_running_loop()),
            writes=lambda: self.writes,
            failed=lambda error: pytest.fail(str(error)),
            refused=self._refused,
        )
        await lives.begin(may_withdraw=True)
        if takes_part:
            lives.take_part()
        try:
            yield lives
        finally:
            await lives.close()
            opened.close()
            workers.close()


class Others:
    """The other nodes, and the messages that they receive."""

    def __init__(self, *answers: pb.KnownLife, late: int = 0) -> None:
        self.late = late
        """How many messages are not answered in time."""
        self.heard = asyncio.Event()
        self.sent: list[list[pb.KnownLife]] = []
        self._answers = answers

        self.linked = frozenset({"b"})

    async def ask_lives(self, node_id: str, lives: pb.Lives, *, timeout_s: float) -> pb.LivesReply | None:
        del node_id, timeout_s
        if self.late:
            self.late -= 1
            return None
        self.sent.append(list(lives.entries))
        self.heard.set()
        return pb.LivesReply(entries=self._answers)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_lives, "TICK_S", 0.01)


def said(lives: NodeLives, peer: str = "b") -> pb.PeerLife:
    return lives.offer(peer)


def life_of_b(incarnation: int, *past: NodeLife, tick: int = 0) -> pb.PeerLife:
    listed = [pb.Life(incarnation=life.incarnation, tick=life.tick) for life in past]
    return pb.PeerLife(directory_id=OTHER[1], past=listed, tick=tick)


async def test_directory_contains_its_previous_lives(node: Node) -> None:
    for counter in (1, 2):
        async with node.life(at(counter)):
            pass
    async with node.life(at(3)) as lives:
        assert [life.incarnation for life in said(lives).past] == [at(1), at(2)]


async def test_start_fails_when_its_life_cannot_be_written(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: TypedJournal[pb.KnownLife], entries: object) -> None:
        del self, entries
        raise StorageFailedError("a write failed")

    failures: list[BaseException] = []
    monkeypatch.setattr(TypedJournal, "append", fail)
    workers = IoWorkers(1)
    opened = TypedJournal.open(node.fs, node.path, LIVES)
    offload = Offload(workers, asyncio.get_running_loop())
    lives = NodeLives(
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
            await lives.begin(may_withdraw=True)
    assert [str(failure) for failure in failures] == ["STORAGE_FAILED: a write failed"]
    opened.close()
    workers.close()


async def test_tick_is_durable_before_it_is_sent(node: Node) -> None:
    others = Others()
    async with node.life(at(1)) as lives:
        running = asyncio.create_task(lives.run(others))
        node.writes = 1
        async with asyncio.timeout(20):
            await others.heard.wait()
        reopened = TypedJournal.open(RealFileSystem(), node.path, LIVES)
        kept = [entry.tick for entry in reopened.load() if entry.own]
        reopened.close()
        running.cancel()
    assert others.sent[0] == [known_life(OWN, NodeLife(at(1), 1))]
    assert kept == [1]


async def test_idle_node_does_not_advance_its_tick(node: Node) -> None:
    others = Others()
    async with node.life(at(1)) as lives:
        running = asyncio.create_task(lives.run(others))
        await asyncio.sleep(0.1)
        running.cancel()
        assert lives.own.now.tick == 0
    assert others.sent == []


async def test_known_life_survives_a_restart(node: Node) -> None:
    async with node.life(at(1)) as lives:
        await lives.meet("b", at(5), life_of_b(at(5)))
    async with node.life(at(2)) as lives:
        assert lives.newest(OTHER) == NodeLife(at(5), 0)
        with pytest.raises(ProtocolError, match="restored from a snapshot or a copy"):
            await lives.meet("b", at(4), life_of_b(at(4)))
        await lives.meet("b", at(6), life_of_b(at(6), NodeLife(at(5), 0)))


async def test_life_reported_by_a_third_node_is_compared_and_stored(node: Node) -> None:
    others = Others()
    async with node.life(at(1)) as lives:
        lives.learn("c", [known_life(OTHER, NodeLife(at(5), 8))])
        running = asyncio.create_task(lives.run(others))
        async with asyncio.timeout(20):
            await others.heard.wait()
        running.cancel()
    async with node.life(at(2)) as lives:
        with pytest.raises(ProtocolError, match="restored from a snapshot or a copy"):
            await lives.meet("b", at(6), life_of_b(at(6), NodeLife(at(5), 7)))


async def test_node_stops_when_another_one_knows_a_later_life(node: Node) -> None:
    async with node.life(at(2)) as lives:
        told = life_of_b(at(1))
        told.known.append(known_life(OWN, NodeLife(at(3), 0)))
        with pytest.raises(OldLifeError, match="has recorded start 3"):
            await lives.meet("b", at(1), told)
        lives.learn("c", [known_life(OWN, NodeLife(at(4), 0))])
    assert len(node.refusals) == 1, "the node is ended once"


async def test_message_names_the_tick_that_a_copy_lacks(node: Node) -> None:
    async with node.life(at(1)):
        pass
    async with node.life(at(2)) as lives:
        lives.learn("c", [known_life(OWN, NodeLife(at(1), 9))])
    assert "tick 9; the directory has 0" in node.refusals[0]


async def test_node_learns_the_later_lives_that_another_one_answers_with(node: Node) -> None:
    async with node.life(at(1)) as lives:
        lives.learn("c", [known_life(OTHER, NodeLife(at(1), 0))])
        assert await lives.exchange(Others(known_life(OTHER, NodeLife(at(2), 0))), "c")
        assert lives.newest(OTHER) == NodeLife(at(2), 0)
        reply = lives.learn("c", [known_life(OTHER, NodeLife(at(1), 0))])
        assert [life_of(entry) for entry in reply.entries] == [NodeLife(at(2), 0)]


async def test_superseded_node_is_reported_once_for_each_start(node: Node) -> None:
    reported: list[str] = []
    async with node.life(at(1)) as lives:
        lives.superseded = reported.append
        lives.learn("c", [known_life(OTHER, NodeLife(at(1), 0))])
        lives.learn("c", [known_life(OTHER, NodeLife(at(1), 5))])
        assert reported == []
        lives.learn("c", [known_life(OTHER, NodeLife(at(2), 0))])
    assert reported == ["b"]


async def test_gossip_is_accepted_from_known_starts_and_unknown_nodes(node: Node) -> None:
    async with node.life(at(1)) as lives:
        await lives.meet("b", at(5), life_of_b(at(5)))
        assert lives.is_registered("b", at(5))
        assert not lives.is_registered("b", at(6))
        assert not lives.is_registered("b", at(4))
        assert lives.is_registered("z", at(1))
        assert lives.is_registered("a", at(1))
        assert not lives.is_registered("a", at(2))


async def test_removed_node_is_forgotten(node: Node) -> None:
    async with node.life(at(1)) as lives:
        await lives.meet("b", at(5), life_of_b(at(5)))
        lives.forget({"b"})
        await lives.meet("b", at(1), life_of_b(at(1)))
    async with node.life(at(2)) as lives:
        assert lives.newest(OTHER) == NodeLife(at(1), 0)


async def test_node_without_lives_is_not_compared(node: Node) -> None:
    async with node.life(at(1)) as lives:
        await lives.meet("b", at(5), pb.PeerLife())
        assert lives.newest(OTHER) is None


@pytest.mark.parametrize(("directory_id", "incarnation"), [(b"short", at(1)), (b"b" * 17, at(1)), (b"b" * 16, 0)])
async def test_malformed_life_is_refused_and_not_stored(node: Node, directory_id: bytes, incarnation: int) -> None:
    """The journal takes no such entry: a node that tried to write it would end."""
    async with node.life(at(1)) as lives:
        with pytest.raises(ProtocolError, match="sent an invalid life") as caught:
            await lives.meet("b", incarnation, pb.PeerLife(directory_id=directory_id))
        assert caught.value.code == pb.INVALID_REQUEST
        assert lives.newest(("b", directory_id)) is None


async def test_malformed_reports_of_lives_are_ignored(node: Node) -> None:
    malformed = [
        pb.KnownLife(node_id="b", directory_id=b"short", incarnation=at(1)),
        pb.KnownLife(node_id="b" * 129, directory_id=b"b" * 16, incarnation=at(1)),
        pb.KnownLife(directory_id=b"b" * 16, incarnation=at(1)),
        pb.KnownLife(node_id="b", directory_id=b"b" * 16),
        known_life(OWN, NodeLife(0, 0)),
        pb.KnownLife(node_id="b", directory_id=b"b" * 16, incarnation=at(9), withdrawn=[0]),
        pb.KnownLife(node_id="b", directory_id=b"b" * 16, incarnation=at(9), withdrawn=range(1, 100)),
        pb.KnownLife(node_id="a", directory_id=b"a" * 16, incarnation=at(1), withdrawn=[0]),
    ]
    others = Others()
    async with node.life(at(1)) as lives:
        lives.learn("c", [*malformed, known_life(OTHER, NodeLife(at(5), 0))])
        running = asyncio.create_task(lives.run(others))
        async with asyncio.timeout(20):
            await others.heard.wait()
        running.cancel()
        assert others.sent == [[known_life(OTHER, NodeLife(at(5), 0))]]
        await lives.meet("b", at(5), pb.PeerLife(directory_id=OTHER[1], known=[known_life(OWN, NodeLife(0, 9))]))
    assert node.refusals == []


async def test_node_that_did_not_answer_in_time_is_sent_every_known_life_again(node: Node) -> None:
    """The missed lives may be of an absent node, whose tick is not sent again otherwise."""
    others = Others(late=2)
    async with node.life(at(1)) as lives:
        assert not await lives.exchange(others, "b")
        lives.learn("c", [known_life(OTHER, NodeLife(at(5), 8))])
        running = asyncio.create_task(lives.run(others))
        async with asyncio.timeout(20):
            await others.heard.wait()
        running.cancel()
    assert known_life(OTHER, NodeLife(at(5), 8)) in others.sent[0]


async def test_evicted_lives_are_removed_from_the_journal(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_lives, "KNOWN_MAX", 3)
    async with node.life(at(1)) as lives:
        for number in range(10):
            await lives.meet(f"n{number}", at(1), pb.PeerLife(directory_id=bytes(16)))
        await lives.meet("last", at(1), pb.PeerLife(directory_id=bytes(16)))
    reopened = TypedJournal.open(RealFileSystem(), node.path, LIVES)
    kept = [entry.node_id for entry in reopened.load() if not entry.own]
    reopened.close()
    assert kept == ["n8", "n9", "last"]


async def test_ticks_leave_the_reserve_of_a_full_disk_to_starts_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with a full disk can still be linked with starting nodes."""
    monkeypatch.setattr(journal, "RESERVE_BYTES", 4096)
    disk, others = new_disk(), Others()
    node = Node(HOME, disk)
    async with node.life(at(1)) as lives, asyncio.timeout(60):
        await lives.meet("b", at(5), life_of_b(at(5)))
        disk.free_bytes = 0
        running = asyncio.create_task(lives.run(others))
        for tick in range(1, 100):
            lives.learn("c", [known_life(OTHER, NodeLife(at(5), tick))])
            others.heard.clear()
            node.writes = tick
            await others.heard.wait()
        raised = lives.own.now.tick
        await lives.meet("d", at(1), pb.PeerLife(directory_id=b"d" * 16))
        assert lives.own.now.tick == raised < 99
        disk.free_bytes = None
        while lives.own.now.tick == raised:  # noqa: ASYNC110 - no event says that a tick is raised
            await asyncio.sleep(0.01)
        running.cancel()
    assert lives.newest(OTHER) == NodeLife(at(5), 99)


async def test_node_restored_from_a_memory_snapshot_stops(node: Node) -> None:
    """A snapshot of a machine was resumed: its links break, and it hears of its own later tick with the next ones."""
    async with node.life(at(1)) as lives:
        told = life_of_b(at(1))
        told.known.append(known_life(OWN, NodeLife(at(1), 9)))
        with pytest.raises(OldLifeError, match="tick 9; the directory has 0"):
            await lives.meet("b", at(1), told)
        assert lives.is_refused


@pytest.mark.parametrize("in_use", [False, True])
async def test_refusal_without_proof_does_not_stop_the_node(node: Node, *, in_use: bool) -> None:
    """It is durable, so a faulty node must not be able to bring it about with anything that it sends."""
    async with node.life(at(1)):
        pass
    async with node.life(at(2)) as lives:
        named = [known_life(OTHER, NodeLife(at(9), 0)), known_life(OWN, NodeLife(0, 0)), pb.KnownLife()]
        if not in_use:
            named.append(known_life(OWN, NodeLife(at(1), 0)))
        for known in named:
            error = lives.refuted("b", known, in_use=in_use)
            assert error.code == pb.FORBIDDEN
            assert not isinstance(error, OldLifeError)
        assert not lives.is_refused
    assert node.refusals == []


async def test_stopping_node_stores_the_last_lives(node: Node) -> None:
    async with node.life(at(1)) as lives:
        lives.learn("c", [known_life(OTHER, NodeLife(at(5), 8))])
    async with node.life(at(2)) as lives:
        assert lives.newest(OTHER) == NodeLife(at(5), 8)


async def test_handshake_with_a_node_that_had_many_directories_fits_its_frames(node: Node) -> None:
    """It was started again and again without a disk that lasts; its own directory is compared all the same."""
    async with node.life(at(1)) as lives:
        lives.learn("c", [known_life(OTHER, NodeLife(at(5), 8))])
        lives.learn("c", [known_life(("b", b"%016d" % number), NodeLife(at(1), 0)) for number in range(3000)])
        proof = pb.Envelope(peer_proof=pb.PeerProof(proof=bytes(32), life=said(lives)))
        assert len(encode_frame(proof)) < FRAME_BYTES_MAX_BEFORE_HELLO
        with pytest.raises(ProtocolError, match="restored from a snapshot or a copy"):
            await lives.meet("b", at(4), life_of_b(at(4)))


# ------------------------------------------------------------------------------------------ withdrawals


def withdrawal(directory: tuple[str, bytes], incarnation: int) -> pb.KnownLife:
    entry = known_life(directory, NodeLife(incarnation, 0))
    entry.withdrawn.append(incarnation)
    return entry


async def test_start_that_is_refused_before_it_took_part_is_withdrawn(node: Node) -> None:
    others = Others()
    async with node.life(at(2), takes_part=False) as lives:
        lives.offer("b")
        lives.offer("c")
        lives.refuted("c", known_life(OWN, NodeLife(at(1), 0)), in_use=True)
        await lives.withdraw(others)
        assert others.sent == [[withdrawal(OWN, at(2))]]
        assert node.is_final
        await lives.withdraw(others)
        assert len(others.sent) == 1
        with pytest.raises(OldLifeError):
            lives.take_part()


async def test_start_that_took_part_is_not_withdrawn(node: Node) -> None:
    others = Others()
    async with node.life(at(2), takes_part=False) as lives:
        lives.offer("b")
        lives.take_part()
        lives.refuted("c", known_life(OWN, NodeLife(at(1), 0)), in_use=True)
        await lives.withdraw(others)
    assert others.sent == []


async def test_withdrawal_reaches_a_node_linked_meanwhile(node: Node) -> None:
    """It has noted the start, and its answer is on the way when another node refuses."""
    others = Others()
    others.linked = frozenset()
    async with node.life(at(2), takes_part=False) as lives:
        lives.offer("b")
        lives.refuted("c", known_life(OWN, NodeLife(at(1), 0)), in_use=True)
        withdrawing = asyncio.create_task(lives.withdraw(others))
        await asyncio.sleep(0.05)
        others.linked = frozenset({"b"})
        await withdrawing
    assert others.sent == [[withdrawal(OWN, at(2))]]


async def test_stopping_node_offers_its_life_to_no_further_node(node: Node) -> None:
    others = Others()
    async with node.life(at(2), takes_part=False) as lives:
        lives.offer("b")
        lives.refuted("c", known_life(OWN, NodeLife(at(1), 0)), in_use=True)
        assert list(lives.offer("b").withdrawn) == [at(2)]
        with pytest.raises(OldLifeError):
            lives.offer("c")
        await lives.withdraw(others)
        with pytest.raises(OldLifeError):
            lives.offer("b")


async def test_handshake_carries_a_withdrawal(node: Node) -> None:
    """A node that has noted the start and refuses it by now makes no link."""
    others = Others()
    others.linked = frozenset()
    async with node.life(at(2), takes_part=False) as lives, asyncio.timeout(20):
        lives.offer("b")
        await lives.meet("b", at(1), life_of_b(at(1)))
        lives.refuted("b", known_life(OWN, NodeLife(at(3), 1)), in_use=False)
        withdrawing = asyncio.create_task(lives.withdraw(others))
        assert list(lives.offer("b").withdrawn) == [at(2)]
        assert isinstance(lives.withdrawal_noted("b"), OldLifeError)
        await withdrawing
    assert others.sent == []


async def test_life_withdrawn_in_a_handshake_is_dropped_durably(node: Node) -> None:
    async with node.life(at(1)) as lives:
        await lives.meet("b", at(5), life_of_b(at(5), tick=3))
        await lives.meet("b", at(6), life_of_b(at(6), NodeLife(at(5), 3)))
        ending = life_of_b(at(6), NodeLife(at(5), 3))
        assert not await lives.is_withdrawn("b", at(6), ending)
        ending.withdrawn.append(at(6))
        assert await lives.is_withdrawn("b", at(6), ending)
        assert lives.newest(OTHER) == NodeLife(at(5), 3)
    async with node.life(at(2)) as lives:
        assert lives.newest(OTHER) == NodeLife(at(5), 3)


async def test_withdrawal_without_an_answer_times_out(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_lives, "WITHDRAW_S", 0.05)
    others = Others(late=1_000_000)
    async with node.life(at(2), takes_part=False) as lives, asyncio.timeout(20):
        lives.offer("b")
        lives.refuted("c", known_life(OWN, NodeLife(at(1), 0)), in_use=True)
        await lives.withdraw(others)


async def test_withdrawal_is_durable_before_its_answer_and_restores_the_earlier_life(
    node: Node,
) -> None:
    async with node.life(at(1)) as lives:
        lives.learn("c", [known_life(OTHER, NodeLife(at(5), 8))])
        await lives.meet("b", at(6), life_of_b(at(6), NodeLife(at(5), 8)))
        lives.learn("b", [withdrawal(OTHER, at(6))])
        await lives.keep_withdrawals([withdrawal(OTHER, at(6))])
        opened = TypedJournal.open(RealFileSystem(), node.path, LIVES)
        kept = [entry for entry in opened.load() if not entry.own]
        opened.close()
    assert [list(entry.withdrawn) for entry in kept] == [[at(6)]]
    async with node.life(at(2)) as lives:
        assert lives.newest(OTHER) == NodeLife(at(5), 8)
        with pytest.raises(ProtocolError, match="was withdrawn"):
            await lives.meet("b", at(6), life_of_b(at(6), NodeLife(at(5), 8)))
        with pytest.raises(ProtocolError, match="restored from a snapshot or a copy"):
            await lives.meet("b", at(6, 2), life_of_b(at(6, 2), NodeLife(at(5), 7)))
        await lives.meet("b", at(6, 2), life_of_b(at(6, 2), NodeLife(at(5), 8)))


async def test_node_that_reports_a_withdrawn_life_is_answered_with_the_withdrawal(node: Node) -> None:
    async with node.life(at(1)) as lives:
        lives.learn("b", [withdrawal(OTHER, at(6))])
        reply = lives.learn("c", [known_life(OTHER, NodeLife(at(6), 0))])
        assert [list(entry.withdrawn) for entry in reply.entries] == [[at(6)]]
        assert lives.newest(OTHER) is None


async def test_node_in_doubt_takes_no_part_until_the_other_start_is_withdrawn(node: Node) -> None:
    async with node.life(at(1)):
        pass
    async with node.life(at(2), takes_part=False) as lives:
        error = lives.refuted("b", known_life(OWN, NodeLife(at(2, 7), 0)), in_use=False)
        assert error.code == pb.EPOCH_CHANGING
        assert "has recorded start 2" in lives.doubt
        with pytest.raises(OldLifeError):
            lives.take_part()
    async with node.life(at(3), takes_part=False) as lives:
        assert lives.doubt, "it is durable: the node that named the other start may be away by now"
        told = life_of_b(at(1))
        told.known.append(withdrawal(OWN, at(2, 7)))
        await lives.meet("b", at(1), told)
        assert not lives.doubt
        lives.take_part()
        assert said(lives).withdrawn == [at(2, 7)]
    async with node.life(at(4)) as lives:
        error = lives.refuted("c", known_life(OWN, NodeLife(at(2, 7), 0)), in_use=False)
        assert error.code == pb.EPOCH_CHANGING, "the other node has not received the withdrawal yet"
        await lives.meet("c", at(1), pb.PeerLife(known=[known_life(OWN, NodeLife(at(2, 7), 0))]))
        reply = lives.learn("c", [known_life(OWN, NodeLife(at(2, 7), 0))])
        assert [list(entry.withdrawn) for entry in reply.entries] == [[at(2, 7)]]
    assert node.refusals == []


async def test_node_in_doubt_is_refused_for_good_once_the_other_start_took_part(node: Node) -> None:
    async with node.life(at(2), takes_part=False) as lives:
        lives.refuted("b", known_life(OWN, NodeLife(at(2, 7), 0)), in_use=False)
        lives.learn("b", [known_life(OWN, NodeLife(at(2, 7), 1))])
        assert node.is_final


async def test_node_that_stays_in_doubt_ends_and_may_start_again(node: Node) -> None:
    async with node.life(at(2), takes_part=False) as lives:
        lives.refuted("b", known_life(OWN, NodeLife(at(2, 7), 0)), in_use=False)
        lives.refuse_in_doubt()
        assert len(node.refusals) == 1
        assert not node.is_final


async def test_participating_node_stops_for_a_start_that_may_have_taken_part(node: Node) -> None:
    async with node.life(at(2)) as lives:
        lives.learn("b", [known_life(OWN, NodeLife(at(2, 7), 0))])
        assert lives.is_refused
        assert not node.is_final
    async with node.life(at(3), takes_part=False) as lives:
        assert lives.doubt


async def test_withdrawal_known_to_the_node_is_applied_in_its_handshake(node: Node) -> None:
    """The node that it was sent to may be away."""
    async with node.life(at(1)) as lives:
        await lives.meet("b", at(5), life_of_b(at(5)))
        await lives.meet("b", at(6, 7), life_of_b(at(6, 7), NodeLife(at(5), 0)))
        again = life_of_b(at(6), NodeLife(at(5), 0))
        assert lives.refutation("b", at(6), again) is not None
        again.withdrawn.append(at(6, 7))
        assert lives.refutation("b", at(6), again) is None
        await lives.meet("b", at(6), again)


async def test_superseded_node_is_reported_when_its_life_is_withdrawn(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_lives, "DISMISS_AFTER_S", 0)
    reported = asyncio.Event()
    async with node.life(at(1)) as lives, asyncio.timeout(20):
        lives.learn("b", [known_life(OTHER, NodeLife(at(5), 0))])
        lives.learn("b", [known_life(OTHER, NodeLife(at(6), 0))])
        lives.superseded = lambda _: reported.set()
        lives.learn("b", [withdrawal(OTHER, at(6))])
        await reported.wait()
        assert lives.is_registered("b", at(5))
        assert not lives.is_registered("b", at(6))
